//! Space for deletions on a full disk.
//!
//! A deletion is a write as well. It takes of the space that the engine keeps back for ends and
//! evictions; many deletions use that up. What was deleted before then gives the space for the
//! rest: the engine frees it before it gives up.

use runlog::Error;

/// Deletes many, at most so many in a step: fewer take less space, so that a full disk makes the
/// steps smaller. The space of those before may do for the rest.
pub(super) fn in_steps<T, E: IsFull>(
    all: &[T],
    most: usize,
    mut delete: impl FnMut(&[T]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut rest, mut step) = (all, most);
    while !rest.is_empty() {
        let (some, behind) = rest.split_at(step.min(rest.len()));
        match delete(some) {
            Err(error) if error.is_full() && some.len() > 1 => step = some.len() / 2,
            Err(error) => return Err(error),
            Ok(()) => (rest, step) = (behind, (2 * step).min(most)),
        }
    }
    Ok(())
}

/// Whether an error of a store says that the disk is full.
pub(super) trait IsFull {
    fn is_full(&self) -> bool;
}

impl IsFull for Error {
    fn is_full(&self) -> bool {
        self.is_disk_full()
    }
}
