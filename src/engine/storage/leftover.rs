//! The files that this process has closed while the program still holds views of them. The last
//! view of a file releases its lock. Until then an attempt to open the file fails, and says why.

use std::sync::Weak;

use parking_lot::Mutex;

use crate::engine::storage::mmap_read::Window;

/// The device and the inode of a file.
type FileId = (u64, u64);

/// The windows that live, by file.
static LEFTOVER: Mutex<Vec<(FileId, Weak<Window>)>> = Mutex::new(Vec::new());

/// Notes the windows of a file that was closed; returns how many views of the file live.
pub(super) fn note(file: FileId, windows: Vec<Weak<Window>>) -> usize {
    LEFTOVER.lock().extend(windows.into_iter().map(|window| (file, window)));
    live_views(file)
}

/// How many views live of a file that was closed.
pub(super) fn live_views(file: FileId) -> usize {
    let mut leftover = LEFTOVER.lock();
    leftover.retain(|(_, window)| window.strong_count() > 0);
    leftover.iter().filter(|one| one.0 == file).map(|(_, window)| window.strong_count()).sum()
}
