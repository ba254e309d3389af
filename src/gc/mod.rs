//! What may be deleted. No I/O: directories and sets in, answers out; the engine acts on them.
//!
//! - A segment is dead when every run with frames in it is deleted.
//! - An eviction must outlive the frames that it covers: a segment whose directory lists one is
//!   needed while any other segment has frames of that run. Otherwise a rebuild from the
//!   directories would bring the run back.
//! - A [`Retention`] says what an owner wants to keep; a [`Plan`] says what it deletes.
//! - [`choose`] selects the segments of a compaction.

pub(crate) mod choose;
mod plan;
mod retention;
mod rule;
#[cfg(feature = "serde")]
mod serial;

pub use self::plan::{Candidate, Going, Inventory, Plan, Protected, Totals, plan};
pub use self::retention::{Limits, Retention};
pub use self::rule::{Protection, Rule};

use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::types::RunNo;

/// Whether every run that has frames in the segment is deleted.
///
/// It checks the youngest runs first, since they are most likely to be alive.
pub(crate) fn is_dead(
    directory: &Directory<'_>,
    is_deleted: impl Fn(RunNo) -> bool,
) -> Decoded<bool> {
    for slot in (0..directory.run_count()).rev() {
        if !is_deleted(directory.run_no(slot)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DirectoryBuilder;
    use crate::format::segments::directory::EvictionAt;
    use crate::types::{AgentId, RunId};

    fn directory(runs: &[u64], evictions: &[u64]) -> Vec<u8> {
        let mut builder = DirectoryBuilder::default();
        for &run in runs {
            let (agent, id) = (AgentId::new("a").unwrap(), RunId::new(&run.to_string()).unwrap());
            builder.bind(RunNo(run), agent, id);
        }
        for &run in evictions {
            builder.push_eviction(EvictionAt {
                run_no: RunNo(run),
                offset: 64,
                with_receipt: false,
            });
        }
        builder.encode(RunNo(100))
    }

    #[test]
    fn a_segment_is_dead_when_all_of_its_runs_are_deleted() {
        let bytes = directory(&[1, 5, 9], &[]);
        let view = Directory::new(&bytes).unwrap();
        assert_eq!(is_dead(&view, |_| true), Ok(true));
        assert_eq!(is_dead(&view, |run| run != RunNo(5)), Ok(false));
        let empty = directory(&[], &[]);
        assert_eq!(is_dead(&Directory::new(&empty).unwrap(), |_| false), Ok(true));
    }
}
