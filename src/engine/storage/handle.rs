//! An open file, which all views of it share.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;

use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

use crate::engine::storage::fork;
use crate::engine::storage::holes::FileSystem;
use crate::engine::storage::lock::WriterLock;

/// The open file with its lock, until both are released.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Read-locked by each call on the file, so that no call is running once the file is released.
    open: RwLock<Option<(File, Option<WriterLock>)>>,
    is_locked: bool,
    file_system: FileSystem,
    pub(crate) known_len: AtomicU64,
    forks: u64,
}

impl Drop for Handle {
    /// A forked child shares the lock with its parent, which continues to hold it.
    fn drop(&mut self) {
        if self.is_inherited() {
            core::mem::forget(self.open.get_mut().take().and_then(|(_, lock)| lock));
        }
    }
}

impl Handle {
    pub(crate) fn new(file: File, len: u64, lock: Option<WriterLock>) -> Self {
        let (file_system, is_locked) = (FileSystem::of(&file), lock.is_some());
        Self {
            open: RwLock::new(Some((file, lock))),
            is_locked,
            file_system,
            known_len: AtomicU64::new(len),
            forks: fork::generation(),
        }
    }

    /// The file, which stays open as long as the returned guard lives.
    ///
    /// # Errors
    /// `NotConnected` once the file was released.
    pub(crate) fn file(&self) -> io::Result<MappedRwLockReadGuard<'_, File>> {
        // Does not queue behind a thread that waits to release the file: that thread waits for
        // running calls, and those may wait for a lock whose holder comes here.
        let open = self.open.read_recursive();
        let open = RwLockReadGuard::try_map(open, |open| Some(&open.as_ref()?.0));
        open.map_err(|_| io::Error::new(io::ErrorKind::NotConnected, "the store is closed"))
    }

    /// Releases the lock and closes the file, once all running calls on it have ended.
    pub(crate) fn release(&self) {
        let open = self.open.write().take();
        drop(open);
    }

    /// Whether a thread waits to release the file.
    #[cfg(test)]
    pub(crate) fn is_being_released(&self) -> bool {
        self.open.is_locked_exclusive()
    }

    /// Whether the file was opened with the writer lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Whether this process is a forked child of the one that opened the file.
    pub(crate) fn is_inherited(&self) -> bool {
        fork::current() != self.forks
    }

    pub(crate) fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// The file is at least this long as long as the lock is held.
    pub(crate) fn known_len(&self) -> u64 {
        self.known_len.load(Ordering::Acquire)
    }
}

/// The options to create a store: only its owner may access it. The mode applies from creation, so
/// no other user can open the file in between.
pub(crate) fn new_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.mode(0o600);
    options
}
