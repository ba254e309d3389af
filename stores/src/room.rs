//! Space for deletions on a full disk.
//!
//! A deletion is a write too. It uses the space that the engine reserves for ends and evictions,
//! and many deletions use that up. Then the engine frees the space of what was deleted before, and
//! the rest of the deletions use it.

use runlog::Error;

/// Deletes many documents in steps of limited size. A smaller step needs less space, so a full disk
/// makes the steps smaller. The space of earlier steps may suffice for the rest.
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
