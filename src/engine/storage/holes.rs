//! Where a file has holes, on file systems and kernels that are known to report them correctly.

use std::fs::File;
use std::sync::LazyLock;

use rustix::fs::{SeekFrom, seek};

/// The file system of a file, as far as the engine distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// ext4, and ext2 and ext3, which write zeros instead of allocating.
    Ext4,
    /// A file system in memory. Looking at a hole through a map takes a page.
    Tmpfs,
    /// One whose files other machines write too, by its usual name.
    Network(&'static str),
    Other,
}

impl FileSystem {
    pub(crate) fn of(file: &File) -> Self {
        // The type of the field differs between machines, and so does its sign.
        let found = rustix::fs::fstatfs(file).map_or(0, |found| i128::from(found.f_type));
        Self::numbered(found & 0xFFFF_FFFF)
    }

    /// The file system with this number, of those in the manual page statfs(2).
    fn numbered(number: i128) -> Self {
        match number {
            0xEF53 => Self::Ext4,
            0x0102_1994 => Self::Tmpfs,
            0x6969 => Self::Network("NFS"),
            0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Self::Network("SMB"),
            0x5346_414F | 0x6B41_4653 => Self::Network("AFS"),
            0x00C3_6400 => Self::Network("Ceph"),
            0x0BD0_0BD0 => Self::Network("Lustre"),
            0x7375_7245 => Self::Network("Coda"),
            _ => Self::Other,
        }
    }

    /// The name of a network file system.
    pub(crate) fn network(self) -> Option<&'static str> {
        match self {
            Self::Network(name) => Some(name),
            _ => None,
        }
    }

    /// Whether allocated space is guaranteed to the file.
    pub(crate) fn keeps_space(self) -> bool {
        matches!(self, Self::Ext4 | Self::Tmpfs)
    }
}

/// Whether this kernel checks the page cache before it reports a hole. Several kernels of the
/// fourth series (fixed one by one until 4.13) reported pages as holes that were written but not
/// yet on the disk, and an acknowledged record must not be overlooked.
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

/// The end of the last part of a range that has data.
pub(crate) fn last_data(file: &File, offset: u64, end: u64) -> u64 {
    let mut last = offset;
    // All other access is positioned, so no code needs the file's own position.
    loop {
        match seek(file, SeekFrom::Data(last)) {
            Ok(data) if data >= end => return last,
            Ok(data) => match seek(file, SeekFrom::Hole(data)) {
                Ok(hole) if hole > last && hole < end => last = hole,
                _ => return end,
            },
            // There is no data before the end of the file.
            Err(rustix::io::Errno::NXIO) => return last,
            Err(_) => return end,
        }
    }
}

/// Whether the range has a hole, or may have one.
pub(crate) fn has_hole(file: &File, offset: u64, end: u64) -> bool {
    seek(file, SeekFrom::Hole(offset)).map_or(true, |hole| hole < end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_from_others() {
        for number in [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x00C3_6400] {
            assert!(FileSystem::numbered(number).network().is_some(), "{number:x}");
        }
        // ext4, tmpfs, XFS, btrfs, FUSE, overlay: the last two are of any kind.
        for number in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x6573_5546, 0x794C_7630] {
            assert_eq!(FileSystem::numbered(number).network(), None, "{number:x}");
        }
    }
}
