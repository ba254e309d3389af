//! An open file with its lock, which the storage and all views of the file share.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use crate::engine::storage::holes::FileSystem;
use crate::engine::storage::lock::WriterLock;

/// The open file. It is closed, and its lock released, with the last value that refers to it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) file: File,
    lock: Option<WriterLock>,
    file_system: FileSystem,
    pub(crate) known_len: AtomicU64,
}

impl Handle {
    pub(crate) fn new(file: File, len: u64, lock: Option<WriterLock>) -> Self {
        let file_system = FileSystem::of(&file);
        Self { file, lock, file_system, known_len: AtomicU64::new(len) }
    }

    /// Whether the file was opened with the writer lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_some()
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
