//! The file system of a folder: what it is, what it can do, and how much space it has.

use std::io;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Other machines may write its files too.
    pub(super) is_network: bool,
    /// Allocated space is guaranteed to the file, so that a store through a map always finds it.
    pub(super) keeps_space: bool,
}

#[cfg(any(test, target_os = "linux"))]
const fn local(name: &'static str) -> Kind {
    Kind { name, is_network: false, keeps_space: false }
}

#[cfg(any(test, target_os = "linux"))]
const fn network(name: &'static str) -> Kind {
    Kind { name, is_network: true, keeps_space: false }
}

#[cfg(any(test, target_os = "linux"))]
const fn keeping(name: &'static str) -> Kind {
    Kind { name, is_network: false, keeps_space: true }
}

/// Those that people meet, by their numbers in statfs(2). The library decides by the same ones.
#[cfg(any(test, target_os = "linux"))]
const KINDS: [(i128, Kind); 19] = [
    (0xEF53, keeping("ext4")),
    (0x0102_1994, keeping("tmpfs")),
    (0x5846_5342, local("XFS")),
    (0x9123_683E, local("btrfs")),
    (0x2FC1_2FC1, local("ZFS")),
    (0xF2F5_2010, local("F2FS")),
    (0x794C_7630, local("overlay")),
    (0x6573_5546, local("FUSE")),
    (0x4D44, local("FAT")),
    (0x2011_BAB0, local("exFAT")),
    (0x6969, network("NFS")),
    (0x517B, network("SMB")),
    (0xFF53_4D42, network("SMB")),
    (0xFE53_4D42, network("SMB")),
    (0x5346_414F, network("AFS")),
    (0x6B41_4653, network("AFS")),
    (0x00C3_6400, network("Ceph")),
    (0x0BD0_0BD0, network("Lustre")),
    (0x7375_7245, network("Coda")),
];

/// What a file system is, and what is left of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// `None` if its number is not known.
    pub(super) kind: Option<Kind>,
    pub(super) is_read_only: bool,
    /// What this user may still take.
    pub(super) free_bytes: u64,
    /// The files that may still be made; `None` if it does not count them.
    pub(super) free_files: Option<u64>,
}

/// Looks at the file system of a path.
pub(super) fn of(path: &Path) -> io::Result<Found> {
    let said = statvfs(path)?;
    Ok(Found {
        kind: kind_of(path),
        is_read_only: said.f_flag.contains(StatVfsMountFlags::RDONLY),
        free_bytes: said.f_bavail.saturating_mul(said.f_frsize),
        free_files: (said.f_files > 0).then_some(said.f_favail),
    })
}

#[cfg(target_os = "linux")]
fn kind_of(path: &Path) -> Option<Kind> {
    // The type of the field differs between machines, and so does its sign.
    let number = i128::from(rustix::fs::statfs(path).ok()?.f_type) & 0xFFFF_FFFF;
    numbered(number)
}

#[cfg(not(target_os = "linux"))]
fn kind_of(_: &Path) -> Option<Kind> {
    None
}

#[cfg(any(test, target_os = "linux"))]
fn numbered(number: i128) -> Option<Kind> {
    KINDS.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind)
}

/// What it can do, as tried with a file in the folder that never gets a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    /// Space can be set aside without writing it.
    pub(super) allocates: bool,
    /// Space within a file can be given back.
    pub(super) punches: bool,
}

/// Why the abilities are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Untried {
    /// Files without a name are not supported.
    NoUnnamed,
    /// This user may not make files there.
    NotAllowed,
    /// The system failed.
    Failed,
}

/// Tries what the file system of a folder can do.
#[cfg(target_os = "linux")]
pub(super) fn abilities(folder: &Path) -> Result<Abilities, Untried> {
    use std::fs::OpenOptions;
    use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

    use rustix::fs::{FallocateFlags, OFlags, fallocate};
    use rustix::io::Errno;

    const LEN: u64 = 8192;
    let flags = OFlags::TMPFILE.bits().cast_signed();
    let opened =
        OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(folder);
    let file =
        opened.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {
                Untried::NoUnnamed
            }
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Untried::NotAllowed,
            _ => Untried::Failed,
        })?;
    let allocates = fallocate(&file, FallocateFlags::empty(), 0, LEN).is_ok();
    file.write_all_at(&[1; 4096], 0).map_err(|_| Untried::Failed)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punches = fallocate(&file, flags, 0, 4096).is_ok();
    Ok(Abilities { allocates, punches })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn abilities(_: &Path) -> Result<Abilities, Untried> {
    Err(Untried::NoUnnamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_there_once_and_network_file_systems_keep_nothing() {
        let mut numbers: Vec<i128> = KINDS.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), KINDS.len());
        assert!(KINDS.iter().all(|(_, kind)| !(kind.is_network && kind.keeps_space)));
        assert_eq!(numbered(0x6969).map(|kind| (kind.name, kind.is_network)), Some(("NFS", true)));
        assert_eq!(numbered(1), None);
    }
}
