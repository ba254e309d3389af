//! Where a file has holes, as far as its file system and the kernel are known to tell.

use std::fs::File;
use std::sync::LazyLock;

use rustix::fs::{SeekFrom, seek};

/// The file system that a file is on, as far as that makes a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// ext4, and its elders, which write zeros instead of allocating.
    Ext4,
    /// A file system in memory. Looking at a hole through a map takes a page of it.
    Tmpfs,
    Other,
}

impl FileSystem {
    pub(crate) fn of(file: &File) -> Self {
        // The type of the field is not the same on all machines.
        match rustix::fs::fstatfs(file).map_or(0, |found| i128::from(found.f_type)) {
            0xEF53 => Self::Ext4,
            0x0102_1994 => Self::Tmpfs,
            _ => Self::Other,
        }
    }

    /// Whether space that was allocated stays the file's.
    pub(crate) fn keeps_space(self) -> bool {
        self != Self::Other
    }
}

/// Whether this kernel is one of those that look into the page cache for what a hole is. Several
/// of the fourth series took pages for holes that were written and not on the disk yet (they were
/// mended one by one until 4.13), and an acknowledged record must not be overlooked.
pub(crate) fn kernel_tells() -> bool {
    static TELLS: LazyLock<bool> =
        LazyLock::new(|| rustix::system::uname().release().to_str().is_ok_and(is_fifth_series));
    *TELLS
}

/// Whether a release of Linux, like 6.1.0-13, is of the fifth series or a later one.
pub(crate) fn is_fifth_series(release: &str) -> bool {
    let series = release.split('.').next().and_then(|series| series.parse::<u32>().ok());
    series.is_some_and(|series| series >= 5)
}

/// The end of the last piece of a range in which a file has data.
pub(crate) fn last_data(file: &File, offset: u64, end: u64) -> u64 {
    let mut last = offset;
    // All other access says where it is meant, so that no code needs the position of the file.
    loop {
        match seek(file, SeekFrom::Data(last)) {
            Ok(data) if data >= end => return last,
            Ok(data) => match seek(file, SeekFrom::Hole(data)) {
                Ok(hole) if hole > last && hole < end => last = hole,
                _ => return end,
            },
            // There is no data up to the end of the file.
            Err(rustix::io::Errno::NXIO) => return last,
            Err(_) => return end,
        }
    }
}

/// Whether the range has a hole, or that is unknown.
pub(crate) fn has_hole(file: &File, offset: u64, end: u64) -> bool {
    seek(file, SeekFrom::Hole(offset)).map_or(true, |hole| hole < end)
}
