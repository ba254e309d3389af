//! An open file: what all views of it hold.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use crate::engine::storage::fork;
use crate::engine::storage::holes::FileSystem;
use crate::engine::storage::lock::WriterLock;

/// The open file with its lock, which is released when the last view of the file is gone.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) lock: Option<WriterLock>,
    pub(crate) file: File,
    pub(crate) file_system: FileSystem,
    pub(crate) known_len: AtomicU64,
    pub(crate) forks: u64,
}

impl Drop for Handle {
    /// A child that was forked shares the lock with its parent, who goes on to hold it.
    fn drop(&mut self) {
        if self.is_inherited() {
            core::mem::forget(self.lock.take());
        }
    }
}

impl Handle {
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether this process is a child that was forked from the one that opened the file.
    pub(crate) fn is_inherited(&self) -> bool {
        fork::current() != self.forks
    }

    pub(crate) fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// The file is at least this long, as long as the lock is held.
    pub(crate) fn known_len(&self) -> u64 {
        self.known_len.load(Ordering::Acquire)
    }
}

/// How a new store is opened: for its owner alone. The mode counts from the start, so no
/// other user can open the file in between.
pub(crate) fn new_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.mode(0o600);
    options
}
