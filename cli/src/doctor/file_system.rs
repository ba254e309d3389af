//! The file system of a folder: what it is, what it can do, and how much space it has.

use std::io;
use std::path::Path;

use runlog::storage::FileSystem;
use rustix::fs::{StatVfsMountFlags, statvfs};

/// What a file system is, and what is left of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) kind: FileSystem,
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
        kind: FileSystem::of_path(path)?,
        is_read_only: said.f_flag.contains(StatVfsMountFlags::RDONLY),
        free_bytes: said.f_bavail.saturating_mul(said.f_frsize),
        free_files: (said.f_files > 0).then_some(said.f_favail),
    })
}

/// Why it is not known what a file system can do: what this means, if it is not a failure.
pub(super) type Untried = Option<&'static str>;

const NO_UNNAMED: Untried = Some(
    "files without a name are not supported: a process that dies while it makes a store leaves a \
     file that ends in .new",
);
#[cfg(target_os = "linux")]
const NOT_ALLOWED: Untried =
    Some("this user may not make files beside the store; reading needs none");

/// Tries, with a file in the folder that never gets a name, whether space can be set aside without
/// writing it, and space within a file be given back.
#[cfg(target_os = "linux")]
pub(super) fn has_holes(folder: &Path) -> Result<bool, Untried> {
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
            Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => NO_UNNAMED,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => NOT_ALLOWED,
            _ => None,
        })?;
    let allocates = fallocate(&file, FallocateFlags::empty(), 0, LEN).is_ok();
    file.write_all_at(&[1; 4096], 0).map_err(|_| None)?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punches = fallocate(&file, flags, 0, 4096).is_ok();
    Ok(allocates && punches)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn has_holes(_: &Path) -> Result<bool, Untried> {
    Err(NO_UNNAMED)
}
