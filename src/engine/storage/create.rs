//! Creating a store so that no other process ever sees a part of it.
//!
//! 1. [`Creation::begin`] makes a file without a name in the directory of the store (Linux), or
//!    else one with a temporary name. It locks the file at once.
//! 2. The engine fills it through [`Creation::storage`].
//! 3. [`Creation::finish`] syncs the file, gives it its name in a way that fails if the name is
//!    taken, and syncs the directory. Naming it before the sync could leave an empty file after a
//!    crash.
//!
//! A `Creation` that is dropped or fails leaves nothing behind. Only if the process dies can a file
//! with a temporary name remain, `.{name}.{pid}.{random}.new`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::storage::file::FileStorage;
use crate::engine::storage::handle::new_file_options;
use crate::engine::storage::lock::WriterLock;
use crate::engine::storage::system::{
    link_unnamed, rename_without_replacing, sync_file_system, unnamed_file,
};
use crate::error::{Error, IoAction, Result};

/// A new store that has no name yet.
#[derive(Debug)]
pub(crate) struct Creation {
    storage: Arc<FileStorage>,
    path: PathBuf,
    directory: PathBuf,
    temporary: Option<TemporaryName>,
}

/// A name that is removed when this is dropped.
#[derive(Debug)]
struct TemporaryName(PathBuf);

impl Drop for TemporaryName {
    fn drop(&mut self) {
        // Best effort: the creation has already failed, and its error is the one to report.
        let _ = fs::remove_file(&self.0);
    }
}

impl Creation {
    /// Makes an empty, locked file of mode 0600, the future store at `path`.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] or [`Error::NotRegularFile`] if something is already there;
    /// [`Error::Io`] or [`Error::DiskFull`] if the system refuses.
    pub(crate) fn begin(path: &Path) -> Result<Self> {
        Self::begin_with(path, unnamed_file)
    }

    /// Makes an empty, locked file that [`Creation::replace`] puts in the place of the store at
    /// `path`.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::DiskFull`] if the system refuses.
    pub(crate) fn begin_replacement(path: &Path) -> Result<Self> {
        let (directory, name) = split(path)?;
        let (file, temporary) = named_file(&directory, name)?;
        Self::of(file, path.to_path_buf(), directory, Some(temporary))
    }

    fn begin_with(path: &Path, unnamed: impl Fn(&Path) -> Option<File>) -> Result<Self> {
        let (directory, name) = split(path)?;
        if let Ok(found) = fs::symlink_metadata(path) {
            return Err(if found.is_file() {
                Error::AlreadyExists { path: path.to_path_buf() }
            } else {
                Error::NotRegularFile { path: path.to_path_buf() }
            });
        }
        let (file, temporary) = match unnamed(&directory) {
            Some(file) => (file, None),
            None => named_file(&directory, name).map(|(file, name)| (file, Some(name)))?,
        };
        Self::of(file, directory.join(name), directory, temporary)
    }

    fn of(
        file: File,
        path: PathBuf,
        directory: PathBuf,
        temporary: Option<TemporaryName>,
    ) -> Result<Self> {
        let lock = WriterLock::acquire(&file)
            .and_then(|lock| lock.ok_or_else(|| io::ErrorKind::WouldBlock.into()))
            .map_err(|source| Error::io(IoAction::Lock, source))?;
        let storage = Arc::new(FileStorage::new(file, 0, Some(lock)));
        Ok(Self { storage, path, directory, temporary })
    }

    /// The file to fill.
    pub(crate) fn storage(&self) -> &Arc<FileStorage> {
        &self.storage
    }

    /// Makes the file durable and gives it its name. The lock stays held throughout.
    ///
    /// # Errors
    /// [`Error::AlreadyExists`] if another process created the file first. If only the last step
    /// fails, the sync of the directory, the whole store is there, but a power loss may remove its
    /// name.
    pub(crate) fn finish(self) -> Result<Arc<FileStorage>> {
        let Self { storage, path, directory, temporary } = self;
        let refused = |source| Error::io(IoAction::Create, source);
        let handle = storage.handle().map_err(refused)?;
        handle.file.sync_all().map_err(refused)?;
        let named = match &temporary {
            None => link_unnamed(&handle.file, &path),
            Some(temporary) => rename_or_link(temporary, &path),
        };
        // Before the sync of the directory, so that the temporary name is durably removed too.
        drop(temporary);
        named.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => Error::AlreadyExists { path: path.clone() },
            _ => refused(source),
        })?;
        sync_directory(&directory, &handle.file).map_err(refused)?;
        drop(handle);
        Ok(storage)
    }

    /// Makes the file durable and puts it in the place of `old`, the store at the path, with the
    /// owner and the mode of that file. Returns the new name of the old file, which has this name
    /// durably before it loses the other one. A crash leaves the old store or the new one in place.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses. If only the last step fails, the sync of the directory,
    /// a power loss may undo the replacement.
    pub(crate) fn replace(self, old: &FileStorage) -> Result<PathBuf> {
        let Self { storage, path, directory, temporary } = self;
        let refused = |source| Error::io(IoAction::Create, source);
        let handle = storage.handle().map_err(refused)?;
        let file = &handle.file;
        let like = old.handle().and_then(|old| old.file.metadata()).map_err(refused)?;
        let of_new = file.metadata().map_err(refused)?;
        if (of_new.uid(), of_new.gid()) != (like.uid(), like.gid()) {
            fchown(file, Some(like.uid()), Some(like.gid())).map_err(refused)?;
        }
        file.set_permissions(like.permissions()).map_err(refused)?;
        file.sync_all().map_err(refused)?;
        let kept = link_aside(&path).map_err(refused)?;
        sync_directory(&directory, file).map_err(refused)?;
        if let Some(TemporaryName(temporary)) = &temporary {
            fs::rename(temporary, &path).map_err(refused)?;
        }
        sync_directory(&directory, file).map_err(refused)?;
        Ok(kept)
    }
}

/// Gives the file at `path` a second name that is free: `{name}.damaged`, or with a number behind
/// that.
fn link_aside(path: &Path) -> io::Result<PathBuf> {
    for number in 1.. {
        let mut name = path.as_os_str().to_owned();
        name.push(".damaged");
        if number > 1 {
            name.push(format!("-{number}"));
        }
        let aside = PathBuf::from(name);
        match fs::hard_link(path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            linked => return linked.map(|()| aside),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// The directory of a path, and the name in it.
fn split(path: &Path) -> Result<(PathBuf, &OsStr)> {
    let name =
        path.file_name().ok_or_else(|| Error::NotRegularFile { path: path.to_path_buf() })?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    Ok((directory, name))
}

/// A new file in `directory` under a name that no other process uses.
fn named_file(directory: &Path, name: &OsStr) -> Result<(File, TemporaryName)> {
    let random = getrandom::u64()
        .map_err(|error| Error::io(IoAction::Randomness, io::Error::other(error)))?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.{random:016x}.new", std::process::id()));
    let path = directory.join(temporary);
    let file = new_file_options()
        .create_new(true)
        .open(&path)
        .map_err(|source| Error::io(IoAction::Create, source))?;
    Ok((file, TemporaryName(path)))
}

/// Replaces the temporary name by `path`, which must not exist. A rename leaves one name at any
/// time; where the system has no such rename, a second name is linked.
fn rename_or_link(temporary: &TemporaryName, path: &Path) -> io::Result<()> {
    match rename_without_replacing(&temporary.0, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            fs::hard_link(&temporary.0, path)
        }
        result => result,
    }
}

/// Makes the names in `directory` durable. A directory without read permission cannot be opened for
/// that; then the whole file system is synced.
fn sync_directory(directory: &Path, file: &File) -> io::Result<()> {
    match File::open(directory) {
        Ok(opened) => opened.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => sync_file_system(file),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::storage::{OpenedFile, Storage};

    type Unnamed = fn(&Path) -> Option<File>;
    /// Both ways to create: the way of this system, and with a temporary name.
    const WAYS: [Unnamed; 2] = [unnamed_file, |_| None];

    fn entries(directory: &Path) -> Vec<String> {
        let names = fs::read_dir(directory).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn of_two_creators_one_makes_a_file_that_is_whole_locked_private_and_alone() {
        for unnamed in WAYS {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("store");
            let slow = Creation::begin_with(&path, unnamed).unwrap();
            let fast = Creation::begin_with(&path, unnamed).unwrap();
            slow.storage().write_at(0, b"slow").unwrap();
            fast.storage().write_at(0, b"fast").unwrap();
            assert!(!path.exists());
            let winner = fast.finish().unwrap();
            assert!(matches!(slow.finish(), Err(Error::AlreadyExists { .. })));
            assert_eq!(fs::read(&path).unwrap(), b"fast");
            assert_eq!(entries(dir.path()), ["store"]);
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.mode() & 0o7777, found.nlink()), (0o600, 1));
            assert!(matches!(FileStorage::open_locked(&path), Ok(OpenedFile::Busy(_))));
            drop(winner);
            assert!(matches!(FileStorage::open_locked(&path), Ok(OpenedFile::Locked(_))));
            assert!(matches!(Creation::begin(&path), Err(Error::AlreadyExists { .. })));
        }
    }
}
