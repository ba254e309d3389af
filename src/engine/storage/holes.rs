//! File systems; and where a file has holes, on those and on kernels that report them correctly.

use std::fs::File;
use std::sync::LazyLock;

use rustix::fs::{SeekFrom, seek};

/// A kind of file system, and what the engine relies on there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSystem {
    name: Option<&'static str>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// ext4, and ext2 and ext3, which write zeros instead of allocating.
    Ext4,
    /// A file system in memory. Looking at a hole through a map takes a page.
    Tmpfs,
    /// Other machines write its files too.
    Network,
    /// Nothing that matters is known of it.
    Other,
}

/// The common ones, by their numbers in the manual page statfs(2).
const KINDS: [(i128, &str, Kind); 19] = [
    (0xEF53, "ext4", Kind::Ext4),
    (0x0102_1994, "tmpfs", Kind::Tmpfs),
    (0x6969, "NFS", Kind::Network),
    (0x517B, "SMB", Kind::Network),
    (0xFF53_4D42, "SMB", Kind::Network),
    (0xFE53_4D42, "SMB", Kind::Network),
    (0x5346_414F, "AFS", Kind::Network),
    (0x6B41_4653, "AFS", Kind::Network),
    (0x00C3_6400, "Ceph", Kind::Network),
    (0x0BD0_0BD0, "Lustre", Kind::Network),
    (0x7375_7245, "Coda", Kind::Network),
    (0x5846_5342, "XFS", Kind::Other),
    (0x9123_683E, "btrfs", Kind::Other),
    (0x2FC1_2FC1, "ZFS", Kind::Other),
    (0xF2F5_2010, "F2FS", Kind::Other),
    (0x794C_7630, "overlay", Kind::Other),
    (0x6573_5546, "FUSE", Kind::Other),
    (0x4D44, "FAT", Kind::Other),
    (0x2011_BAB0, "exFAT", Kind::Other),
];

impl FileSystem {
    /// That of a file or folder.
    ///
    /// # Errors
    /// What statfs(2) says.
    #[cfg(feature = "unstable-internals")]
    pub fn of_path(path: &std::path::Path) -> std::io::Result<Self> {
        // The type of the field differs between machines, and so does its sign.
        Ok(Self::numbered(i128::from(rustix::fs::statfs(path)?.f_type) & 0xFFFF_FFFF))
    }

    pub(crate) fn of(file: &File) -> Self {
        let found = rustix::fs::fstatfs(file).map_or(0, |found| i128::from(found.f_type));
        Self::numbered(found & 0xFFFF_FFFF)
    }

    fn numbered(number: i128) -> Self {
        let known = KINDS.iter().find(|(known, ..)| *known == number);
        known.map_or(Self { name: None, kind: Kind::Other }, |(_, name, kind)| Self {
            name: Some(name),
            kind: *kind,
        })
    }

    /// Its usual name; `None` if the engine does not know its number.
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn name(self) -> Option<&'static str> {
        self.name
    }

    /// The name of a network file system. The engine does not write stores there, unless
    /// [`Options::network_file_systems`](crate::Options::network_file_systems) allows it.
    pub fn network(self) -> Option<&'static str> {
        self.name.filter(|_| self.kind == Kind::Network)
    }

    /// Whether allocated space is guaranteed to the file. Only there the engine stores frames
    /// through a map.
    pub fn keeps_space(self) -> bool {
        matches!(self.kind, Kind::Ext4 | Kind::Tmpfs)
    }

    /// Whether looking at a hole through a map takes space.
    pub(crate) fn fills_holes(self) -> bool {
        self.kind == Kind::Tmpfs
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
