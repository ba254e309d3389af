//! A real file: positioned reads and writes, space, views, and the opening of a store.
//!
//! - A store is opened for writing under the [writer lock](crate::engine::storage::lock). A handle
//!   without the lock only reads, to find out who holds it.
//! - Symbolic links and everything else that is not a regular file are refused before they are
//!   read.
//! - Only this process changes the length of a locked file. `known_len` never exceeds the length,
//!   so a range below it can be viewed without a system call: it is lowered before the file is
//!   shortened, and raised under `resizing`.
//! - A failed allocation cuts the file to its old length. So every growth holds `resizing`.

use core::sync::atomic::Ordering;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use rustix::fs::OFlags;

use super::{Region, Storage, TailWindow, ZEROS};
use crate::engine::storage::handle::Handle;
use crate::engine::storage::holes;
use crate::engine::storage::lock::{self, WriterLock};
use crate::engine::storage::mmap_append::TailMaps;
use crate::engine::storage::mmap_read::Windows;
use crate::engine::storage::system::{release_space, reserve_space};
use crate::error::{Error, IoAction, Result};

/// How often opening starts again if the path comes to name another file meanwhile.
const OPEN_ATTEMPTS: usize = 16;

/// One store in a file of the file system.
#[derive(Debug)]
pub struct FileStorage {
    /// Read-locked by each call on the file; `None` once the file was released.
    open: RwLock<Option<Arc<Handle>>>,
    windows: Windows,
    tails: TailMaps,
    resizing: Mutex<()>,
    /// See [`FileStorage::can_allocate`].
    can_allocate: OnceLock<bool>,
}

/// The result of opening a store.
#[derive(Debug)]
pub(crate) enum OpenedFile {
    /// The writer lock is held until the storage is released, or dropped with all of its views.
    Locked(FileStorage),
    /// Another handle has the writer lock. This handle only reads, and has no views.
    Busy(FileStorage),
}

impl FileStorage {
    /// Opens the regular file at `path` and takes the writer lock if it is free.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotRegularFile`], or [`Error::Io`].
    pub(crate) fn open_locked(path: &Path) -> Result<OpenedFile> {
        for _ in 0..OPEN_ATTEMPTS {
            let (file, len) = open_regular(path, open_to_write)?;
            if let Some(opened) = Self::lock(path, file, len)? {
                return Ok(opened);
            }
        }
        let source = io::Error::other("the path names another file again and again");
        Err(Error::io(IoAction::Open, source))
    }

    /// Opens the regular file at `path` to read it: without the lock, and without changing the time
    /// of the last access where this process may ask for that.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::NotRegularFile`], or [`Error::Io`].
    pub(crate) fn open_to_read(path: &Path) -> Result<Self> {
        let open = |flags| open_options(flags).open(path);
        // Only the owner may leave that time alone.
        let opened =
            open_regular(path, |_| open(OFlags::NOATIME).or_else(|_| open(OFlags::empty())));
        let (file, len) = opened?;
        Ok(Self::new(file, len, None))
    }

    /// The name of the network file system that the file is on, if it is on one.
    pub(crate) fn network(&self) -> Option<&'static str> {
        self.handle().ok()?.file_system().network()
    }

    /// The process that has the writer lock, if the system tells.
    pub(crate) fn locked_by(&self) -> Option<u32> {
        let found = self.handle().ok()?.file.metadata().ok()?;
        lock::holder(found.dev(), found.ino())
    }

    /// How many views of this file the program still holds although it closed the store.
    pub(crate) fn live_views(&self) -> usize {
        let found = self.handle().and_then(|handle| handle.file.metadata());
        found.map_or(0, |found| lock::live_views((found.dev(), found.ino())))
    }

    /// Whether `path` names this file.
    pub(crate) fn is_at(&self, path: &Path) -> Result<bool> {
        let read = |source| Error::io(IoAction::Open, source);
        is_file_at(path, &self.handle().map_err(read)?.file).map_err(read)
    }

    /// Takes the lock of a file that was found at `path`; `None` if the path names another file by
    /// now, since the lock is useless then.
    fn lock(path: &Path, file: File, len: u64) -> Result<Option<OpenedFile>> {
        let lock =
            WriterLock::acquire(&file).map_err(|source| Error::io(IoAction::Lock, source))?;
        if !is_file_at(path, &file).map_err(|source| Error::io(IoAction::Open, source))? {
            return Ok(None);
        }
        Ok(Some(match lock {
            Some(lock) => OpenedFile::Locked(Self::new(file, len, Some(lock))),
            None => OpenedFile::Busy(Self::new(file, len, None)),
        }))
    }

    pub(crate) fn new(file: File, len: u64, lock: Option<WriterLock>) -> Self {
        Self {
            open: RwLock::new(Some(Arc::new(Handle::new(file, len, lock)))),
            windows: Windows::default(),
            tails: TailMaps::default(),
            resizing: Mutex::new(()),
            can_allocate: OnceLock::new(),
        }
    }

    /// The open file. It is not released as long as the returned guard lives.
    ///
    /// # Errors
    /// `NotConnected` once the file was released.
    pub(crate) fn handle(&self) -> io::Result<MappedRwLockReadGuard<'_, Arc<Handle>>> {
        // Does not queue behind a thread that waits to release the file: that thread waits for
        // running calls, and those may wait for a lock whose holder comes here.
        let open = RwLockReadGuard::try_map(self.open.read_recursive(), Option::as_ref);
        open.map_err(|_| io::Error::new(io::ErrorKind::NotConnected, "the store is closed"))
    }

    /// Whether the file system can allocate space without a write. It asks for an existing byte.
    fn can_allocate(&self, file: &File) -> bool {
        *self.can_allocate.get_or_init(|| {
            let asked = reserve_space(file, 0, 1);
            !asked.is_err_and(|error| error.kind() == io::ErrorKind::Unsupported)
        })
    }

    /// The file, if this process may write to it.
    fn writable(&self) -> io::Result<MappedRwLockReadGuard<'_, Arc<Handle>>> {
        let handle = self.handle()?;
        if handle.is_locked() { Ok(handle) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

impl Storage for FileStorage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.handle()?.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.handle()?.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let handle = self.writable()?;
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() || end <= handle.known_len() {
            return handle.file.write_all_at(data, offset);
        }
        let _resizing = self.resizing.lock();
        handle.file.write_all_at(data, offset)?;
        handle.known_len.fetch_max(end, Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        // On Linux this also covers stores through maps: the first store into a clean page hits
        // write protection and marks the page dirty, as a write does.
        let handle = self.writable()?;
        self.tails.let_go();
        handle.file.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let handle = self.writable()?;
        let _resizing = self.resizing.lock();
        handle.known_len.fetch_min(len, Ordering::AcqRel);
        handle.file.set_len(len)?;
        handle.known_len.store(len, Ordering::Release);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let handle = self.writable()?;
        let file = &handle.file;
        let end = end_of(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let _resizing = self.resizing.lock();
        let before = file.metadata()?.len();
        let reserved = match reserve_space(file, offset, len) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                write_zeros(file, offset.max(before), end)
            }
            result => result,
        };
        if let Err(error) = reserved {
            // Part of the range may have been reserved, and the file may have grown.
            file.set_len(before)?;
            return Err(error);
        }
        handle.known_len.fetch_max(end, Ordering::Release);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let handle = self.writable()?;
        let file = &handle.file;
        let end = end_of(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // Writing into a hole may find no space, unless the space can be allocated first.
        let released = if self.can_allocate(file) {
            release_space(file, offset, len)
        } else {
            Err(io::ErrorKind::Unsupported.into())
        };
        match released {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                let _resizing = self.resizing.lock();
                let file_len = file.metadata()?.len();
                write_zeros(file, offset, end.min(file_len))
            }
            result => result,
        }
    }

    fn data_end(&self, offset: u64, len: u64) -> io::Result<u64> {
        let (end, handle) = (end_of(offset, len)?, self.handle()?);
        // Other file systems and kernels may report unsynced data as a hole.
        let is_told = handle.file_system().keeps_space() && holes::kernel_tells();
        Ok(if is_told { holes::last_data(&handle.file, offset, end) } else { end })
    }

    fn looking_takes_space(&self, offset: u64, len: u64) -> io::Result<bool> {
        let (end, handle) = (end_of(offset, len)?, self.handle()?);
        let fills_holes = handle.file_system().fills_holes() && len > 0;
        Ok(fills_holes && holes::has_hole(&handle.file, offset, end))
    }

    fn map(&self, offset: u64, len: usize) -> io::Result<Option<Region>> {
        let handle = self.handle()?;
        // Without the lock another process may truncate the file under a view.
        if !handle.is_locked() {
            return Ok(None);
        }
        let end = end_of(offset, len as u64)?;
        if end > handle.known_len() {
            let _resizing = self.resizing.lock();
            let file_len = handle.file.metadata()?.len();
            handle.known_len.store(file_len, Ordering::Release);
            if end > file_len {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        if len == 0 {
            return Ok(Region::new(Arc::new([0; 0]), 0..0));
        }
        Ok(self.windows.view(&handle, offset, len))
    }

    fn prefault(&self, offset: u64, len: usize) -> u64 {
        let (Ok(handle), Ok(end)) = (self.handle(), end_of(offset, len as u64)) else { return 0 };
        // Behind the end of the file there is nothing to map.
        let is_there = handle.is_locked() && end <= handle.known_len();
        if is_there { self.windows.prefault(&handle, offset, len) } else { 0 }
    }

    fn map_tail(&self, offset: u64, len: usize) -> io::Result<Option<Arc<dyn TailWindow>>> {
        let handle = self.handle()?;
        if !handle.is_locked() {
            return Ok(None);
        }
        end_of(offset, len as u64)?;
        Ok(self.tails.window(&handle, offset, len))
    }

    fn release(&self) -> usize {
        let Some(handle) = self.open.write().take() else { return 0 };
        self.tails.close();
        let left = self.windows.close();
        let found = handle.file.metadata().map(|found| (found.dev(), found.ino()));
        drop(handle);
        found.map_or(0, |file| lock::note_views(file, left))
    }
}

/// The end of a range, if a file can be that long.
fn end_of(offset: u64, len: u64) -> io::Result<u64> {
    let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
    end.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

fn write_zeros(file: &File, start: u64, end: u64) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let len = (end - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..usize::try_from(len).unwrap_or(ZEROS.len())], at)?;
        at += len;
    }
    Ok(())
}

/// Opens the regular file at `path`, and returns its length.
fn open_regular(path: &Path, open: impl FnOnce(&Path) -> io::Result<File>) -> Result<(File, u64)> {
    // Checked before it is opened, since opening a device can have side effects.
    let found = fs::symlink_metadata(path).map_err(|source| refusal(path, source))?;
    if !found.is_file() {
        return Err(Error::NotRegularFile { path: path.to_path_buf() });
    }
    let file = open(path).map_err(|source| refusal(path, source))?;
    let opened = file.metadata().map_err(|source| Error::io(IoAction::Open, source))?;
    if !opened.is_file() {
        return Err(Error::NotRegularFile { path: path.to_path_buf() });
    }
    Ok((file, opened.len()))
}

/// The error for a path that could not be opened.
fn refusal(path: &Path, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::NotFound {
        return Error::NotFound { path: path.to_path_buf() };
    }
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Error::NotRegularFile { path: path.to_path_buf() },
        _ => Error::io(IoAction::Open, source),
    }
}

fn open_to_write(path: &Path) -> io::Result<File> {
    open_options(OFlags::empty()).write(true).open(path)
}

/// The options to open an existing store: no following of links, no blocking on a FIFO.
fn open_options(flags: OFlags) -> OpenOptions {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | flags;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    options
}

/// Whether `path` names the file that is open as `file`.
fn is_file_at(path: &Path, file: &File) -> io::Result<bool> {
    let named = match fs::symlink_metadata(path) {
        Ok(named) => named,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let opened = file.metadata()?;
    Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
