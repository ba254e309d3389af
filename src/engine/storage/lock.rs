//! The writer lock: an exclusive, advisory lock of the whole file.
//!
//! - The lock belongs to the open file, not to the process: a second open in the same process is
//!   refused too, and dropping that second handle releases nothing.
//! - It ends with the process, however that ends.
//! - A forked child shares the lock with its parent, and never releases it.
//! - While the program holds views of a file that it has closed, the last view releases the lock.
//!   Until then an attempt to open the file fails, and says why.

use std::fs::{File, TryLockError};
use std::io;
use std::sync::Weak;

use parking_lot::Mutex;

use crate::engine::storage::fork;
use crate::engine::storage::mmap_read::Window;

/// The writer lock of one open file, held until this is dropped.
#[derive(Debug)]
pub(crate) struct WriterLock {
    file: File,
    /// See [`fork::generation`].
    forks: u64,
}

impl WriterLock {
    /// Takes the lock; `None` if another handle holds it.
    pub(crate) fn acquire(file: &File) -> io::Result<Option<Self>> {
        let file = file.try_clone()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file, forks: fork::generation() })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// The process that holds an exclusive lock of this whole file, as the kernel lists it. Nothing is
/// locked to find out: a writer that comes at that moment would be refused.
pub(crate) fn holder(device: u64, inode: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    let listed = std::fs::read_to_string("/proc/locks").ok()?;
    listed.lines().find_map(|line| {
        // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
        let mut words = line.split_whitespace().skip(1);
        let is_lock = ["FLOCK", "ADVISORY", "WRITE"].iter().all(|word| words.next() == Some(word));
        let (pid, of) = (words.next()?, words.next()?);
        (is_lock && of == file).then(|| pid.parse().ok()).flatten()
    })
}

impl Drop for WriterLock {
    /// Releases the lock at once. Closing the file also releases it, but only with the last copy of
    /// the descriptor, and a child process that is being started has a copy.
    fn drop(&mut self) {
        if fork::current() == self.forks {
            // If unlocking fails, closing the descriptor releases the lock.
            let _ = self.file.unlock();
        }
    }
}

/// The device and the inode of a file.
type FileId = (u64, u64);

/// The windows that live of files that were closed.
static LEFTOVER: Mutex<Vec<(FileId, Weak<Window>)>> = Mutex::new(Vec::new());

/// Notes the windows of a file that was closed; returns how many views of the file live.
pub(super) fn note_views(file: FileId, windows: Vec<Weak<Window>>) -> usize {
    LEFTOVER.lock().extend(windows.into_iter().map(|window| (file, window)));
    live_views(file)
}

/// How many views live of a file that was closed.
pub(super) fn live_views(file: FileId) -> usize {
    let mut leftover = LEFTOVER.lock();
    leftover.retain(|(_, window)| window.strong_count() > 0);
    leftover.iter().filter(|one| one.0 == file).map(|(_, window)| window.strong_count()).sum()
}
