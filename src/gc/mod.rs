//! What may go. Pure: directories and sets in, answers out; the engine acts on them.
//!
//! - A segment is dead when every run with frames in it is deleted.
//! - An eviction must outlive the frames that it covers: a segment whose directory lists one is
//!   needed as long as any other segment still has frames of that run, else a rebuild from the
//!   directories would bring the run back.
//! - What an owner wants to keep is a [`Retention`]; what goes by it is a [`Plan`].
//! - Which segments a compaction takes is [`choose`]'s.

pub(crate) mod choose;
mod plan;
mod retention;

pub use self::plan::{
    Candidate, Going, Inventory, Plan, Protected, Protection, Rule, Totals, plan,
};
pub use self::retention::{Limits, Retention};

use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::types::RunNo;

/// Whether every run that has frames in the segment is deleted.
///
/// Looks at the youngest runs first, since they are the likeliest to live.
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

/// Whether a directory lists an eviction of a run that has frames in another segment.
pub(crate) fn evicts_from(evicting: &Directory<'_>, other: &Directory<'_>) -> Decoded<bool> {
    // Both lists are in the order of the run numbers.
    let (mut eviction, mut slot) = (0, 0);
    while eviction < evicting.eviction_count() && slot < other.run_count() {
        match evicting.eviction(eviction)?.run_no.cmp(&other.run_no(slot)?) {
            core::cmp::Ordering::Less => eviction += 1,
            core::cmp::Ordering::Greater => slot += 1,
            core::cmp::Ordering::Equal => return Ok(true),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DirectoryBuilder;
    use crate::format::directory::EvictionAt;
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

    #[test]
    fn an_eviction_is_needed_while_another_segment_has_the_run() {
        let (older, other) = (directory(&[1, 2], &[]), directory(&[3], &[]));
        let younger = directory(&[], &[2]);
        let view = Directory::new(&younger).unwrap();
        assert_eq!(evicts_from(&view, &Directory::new(&older).unwrap()), Ok(true));
        assert_eq!(evicts_from(&view, &Directory::new(&other).unwrap()), Ok(false));
    }
}
