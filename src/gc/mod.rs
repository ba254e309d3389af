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

pub(crate) use self::plan::plan_each;
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
