//! What only Linux can do. On other systems each function returns that it is unsupported, and its
//! caller uses another way.

pub(super) use crate::engine::storage::system::os::*;

#[cfg(target_os = "linux")]
mod os {
    use std::fs::{self, File};
    use std::io;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};

    use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags};
    use rustix::io::retry_on_intr;

    /// Reserves the space of a range without writing it.
    pub(in crate::engine::storage) fn reserve_space(
        file: &File,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let flags = FallocateFlags::empty();
        Ok(retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, len))?)
    }

    /// Returns the space of a range to the file system.
    pub(in crate::engine::storage) fn release_space(
        file: &File,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(retry_on_intr(|| rustix::fs::fallocate(file, flags, offset, len))?)
    }

    /// A file in `directory` that has no name yet, or `None` if the system cannot make one. If the
    /// directory refuses all new files, trying the named file returns the error.
    pub(in crate::engine::storage) fn unnamed_file(directory: &Path) -> Option<File> {
        let flags = i32::try_from(OFlags::TMPFILE.bits()).ok()?;
        let options = &mut crate::engine::storage::handle::new_file_options();
        let file = options.custom_flags(flags).open(directory).ok()?;
        // The file can only be named through /proc, which a container may lack.
        let seen = fs::metadata(descriptor_path(&file)).ok()?;
        let own = file.metadata().ok()?;
        ((seen.dev(), seen.ino()) == (own.dev(), own.ino())).then_some(file)
    }

    fn descriptor_path(file: &File) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }

    /// Gives such a file its name, which must not be taken.
    pub(in crate::engine::storage) fn link_unnamed(file: &File, path: &Path) -> io::Result<()> {
        let from = descriptor_path(file);
        Ok(rustix::fs::linkat(CWD, from, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    pub(in crate::engine::storage) fn rename_without_replacing(
        from: &Path,
        to: &Path,
    ) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
    }

    /// Syncs the whole file system that a file is on.
    pub(in crate::engine::storage) fn sync_file_system(file: &File) -> io::Result<()> {
        Ok(rustix::fs::syncfs(file)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod os {
    use std::fs::File;
    use std::io;
    use std::path::Path;

    const NO: io::ErrorKind = io::ErrorKind::Unsupported;

    pub(in crate::engine::storage) fn reserve_space(_: &File, _: u64, _: u64) -> io::Result<()> {
        Err(NO.into())
    }

    pub(in crate::engine::storage) fn release_space(_: &File, _: u64, _: u64) -> io::Result<()> {
        Err(NO.into())
    }

    pub(in crate::engine::storage) fn unnamed_file(_: &Path) -> Option<File> {
        None
    }

    pub(in crate::engine::storage) fn link_unnamed(_: &File, _: &Path) -> io::Result<()> {
        Err(NO.into())
    }

    pub(in crate::engine::storage) fn rename_without_replacing(
        _: &Path,
        _: &Path,
    ) -> io::Result<()> {
        Err(NO.into())
    }

    pub(in crate::engine::storage) fn sync_file_system(_: &File) -> io::Result<()> {
        Err(NO.into())
    }
}
