//! The writer lock: one exclusive lock on one byte far behind the end of every store.
//!
//! - The lock belongs to the open file, not to the process: a second open in the same process is
//!   refused as well, and dropping that second handle releases nothing.
//! - It is advisory on Unix. It vanishes with the process, however that ends.
//! - The byte `2^61 - 1` is no byte of a file, so readers that pin other bytes do not meet it.
//! - Where the system has no byte-range locks the whole file is locked instead.

use core::ops::Bound;
use std::fs::{File, TryLockError};
use std::io;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// The first byte that the lock covers.
const LOCK_START: Bound<u64> = Bound::Included((1 << 61) - 1);
/// The byte behind the last that the lock covers.
const LOCK_END: Bound<u64> = Bound::Excluded(1 << 61);

/// The writer lock of one open file, held until this is dropped.
#[derive(Debug)]
pub(super) enum WriterLock {
    /// One byte of the file.
    Byte(FileBackend),
    /// The whole file.
    File(File),
}

impl WriterLock {
    /// Takes the lock, or says `None` if somebody else holds it.
    pub(super) fn acquire(file: &File) -> io::Result<Option<Self>> {
        let backend = FileBackend::new(file.try_clone()?).map_err(io::Error::other)?;
        match backend.try_lock_range(LOCK_START, LOCK_END) {
            Ok(true) => Ok(Some(Self::Byte(backend))),
            Ok(false) => Ok(None),
            Err(BackendError::Unsupported) => Self::acquire_whole_file(file.try_clone()?),
            Err(error) => Err(error.into()),
        }
    }

    fn acquire_whole_file(file: File) -> io::Result<Option<Self>> {
        match file.try_lock() {
            Ok(()) => Ok(Some(Self::File(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for WriterLock {
    /// Releases the lock at once. Closing the file would do it too, but only when the last copy
    /// of the descriptor is gone, and a child process that is just being started has one.
    fn drop(&mut self) {
        let released = match self {
            Self::Byte(backend) => backend.unlock_range(LOCK_START, LOCK_END).map_err(Into::into),
            Self::File(file) => file.unlock(),
        };
        // A lock that cannot be released here goes with the descriptor; nobody could do more.
        drop(released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_file_lock_excludes_a_second_one_and_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let first = File::create(&path).unwrap();
        let second = File::open(&path).unwrap();
        let held = WriterLock::acquire_whole_file(first).unwrap();
        assert!(held.is_some());
        assert!(WriterLock::acquire_whole_file(second.try_clone().unwrap()).unwrap().is_none());
        drop(held);
        assert!(WriterLock::acquire_whole_file(second).unwrap().is_some());
    }
}
