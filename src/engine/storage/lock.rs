//! The writer lock: an exclusive, advisory lock of the whole file.
//!
//! - The lock belongs to the open file, not to the process: a second open in the same process is
//!   refused as well, and dropping that second handle releases nothing.
//! - It vanishes with the process, however that ends.

use std::fs::{File, TryLockError};
use std::io;

/// The writer lock of one open file, held until this is dropped.
#[derive(Debug)]
pub(crate) struct WriterLock(File);

impl WriterLock {
    /// Takes the lock, or says `None` if another handle holds it.
    pub(crate) fn acquire(file: &File) -> io::Result<Option<Self>> {
        let file = file.try_clone()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for WriterLock {
    /// Releases the lock at once. Closing the file would do it too, but only when the last copy
    /// of the descriptor is gone, and a child process that is just being started has one.
    fn drop(&mut self) {
        // A lock that cannot be released here goes with the descriptor.
        let _ = self.0.unlock();
    }
}
