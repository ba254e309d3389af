//! How large files are, and when they became so.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a file takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Its length.
    pub(crate) len: u64,
    /// The bytes of its blocks.
    pub(crate) allocated: u64,
}

impl Sizes {
    /// Those of all of these files that are there.
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

/// Looks at a file each millisecond until `stop`: its sizes from each moment on when they changed.
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

/// From when on the file was no larger than that.
pub(crate) fn small_since(seen: &[(Duration, Sizes)], bound: u64) -> Option<Duration> {
    let last_large = seen.iter().rposition(|(_, sizes)| !sizes.fits(bound));
    seen.get(last_large.map_or(0, |at| at + 1)).map(|(when, _)| *when)
}
