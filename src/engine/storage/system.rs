//! What only Linux can do. On other systems each function returns that it is unsupported, and its
//! caller uses another way.

pub(super) use crate::engine::storage::system::os::*;

#[cfg(target_os = "linux")]
mod os {
    use std::fs::{self, File};
    use std::io;
    use std::num::NonZeroU64;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
    use std::path::{Path, PathBuf};

    use rustix::fs::{Advice, AtFlags, CWD, FallocateFlags, OFlags, RenameFlags};
    use rustix::io::retry_on_intr;

    const PAGE: usize = 4096;

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

    /// Reads a range from the device, and not from the page cache; both its ends are multiples of
    /// a page. `None` if the system cannot do that.
    pub(in crate::engine::storage) fn read_past_cache(
        file: &File,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<io::Result<()>> {
        let open = |flags: OFlags| {
            let flags = (OFlags::DIRECT | flags).bits().cast_signed();
            File::options().read(true).custom_flags(flags).open(descriptor_path(file))
        };
        // Only the owner may leave the time of the last access alone.
        let read = match open(OFlags::NOATIME).or_else(|_| open(OFlags::empty())) {
            Err(error) => is_gone(&error).then_some(error).map(Err)?,
            Ok(direct) => read_directly(&direct, offset, buf),
        };
        (!read.as_ref().is_err_and(is_unable)).then_some(read)
    }

    /// Whether the device does not answer even when a file is opened; other errors of that say
    /// nothing about it.
    fn is_gone(error: &io::Error) -> bool {
        use rustix::io::Errno;
        let gone = [Errno::IO, Errno::STALE, Errno::NOTCONN, Errno::HOSTDOWN];
        Errno::from_io_error(error).is_some_and(|found| gone.contains(&found))
    }

    fn read_directly(direct: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        // The place in memory must be a multiple, too.
        let mut space = vec![0; buf.len() + PAGE];
        let start = space.as_ptr().align_offset(PAGE);
        let aligned = space.get_mut(start..).and_then(|rest| rest.get_mut(..buf.len()));
        let aligned = aligned.ok_or(io::ErrorKind::InvalidInput)?;
        direct.read_exact_at(aligned, offset)?;
        buf.copy_from_slice(aligned);
        Ok(())
    }

    /// Whether the system refuses to read past its cache, whatever the device answers: the file
    /// system cannot, `/proc` is not there, or the process may not open the file again.
    pub(in crate::engine::storage) fn is_unable(error: &io::Error) -> bool {
        use rustix::io::Errno;
        let found = Errno::from_io_error(error);
        found.is_none_or(|found| {
            let refusals = [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS, Errno::NOENT];
            let of_process = [Errno::ACCESS, Errno::PERM, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
            refusals.contains(&found) || of_process.contains(&found)
        })
    }

    /// Drops what the page cache has of a range, if it is stored and no process maps it. The system
    /// keeps what it caches together with something outside of the range.
    pub(in crate::engine::storage) fn forget_cached(
        file: &File,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        Ok(rustix::fs::fadvise(file, offset, NonZeroU64::new(len), Advice::DontNeed)?)
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

    pub(in crate::engine::storage) fn read_past_cache(
        _: &File,
        _: u64,
        _: &mut [u8],
    ) -> Option<io::Result<()>> {
        None
    }

    pub(in crate::engine::storage) fn forget_cached(_: &File, _: u64, _: u64) -> io::Result<()> {
        Err(NO.into())
    }
}
