//! File sizes over time.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The size of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Its length.
    pub(crate) len: u64,
    /// The bytes of its blocks.
    pub(crate) allocated: u64,
}

impl Sizes {
    /// The sum over all of these files that exist.
    pub(crate) fn of(paths: &[&Path]) -> Self {
        let there = paths.iter().filter_map(|path| std::fs::metadata(path).ok());
        there.fold(Self { len: 0, allocated: 0 }, |sum, found| Self {
            len: sum.len + found.len(),
            allocated: sum.allocated + found.blocks() * 512,
        })
    }

    pub(crate) fn fits(self, bound: u64) -> bool {
        self.len.max(self.allocated) <= bound
    }
}

/// Checks a file each millisecond until `stop`: its sizes, with the times of changes.
pub(crate) fn watch(path: &Path, since: Instant, stop: &AtomicBool) -> Vec<(Duration, Sizes)> {
    let mut seen: Vec<(Duration, Sizes)> = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let sizes = Sizes::of(&[path]);
        if seen.last().is_none_or(|(_, last)| *last != sizes) {
            seen.push((since.elapsed(), sizes));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    seen
}

/// The time from which the file was no larger than that.
pub(crate) fn small_since(seen: &[(Duration, Sizes)], bound: u64) -> Option<Duration> {
    let last_large = seen.iter().rposition(|(_, sizes)| !sizes.fits(bound));
    seen.get(last_large.map_or(0, |at| at + 1)).map(|(when, _)| *when)
}
