//! Files and folders below a path that the user names.
//!
//! The path itself may be a link, since the user chose it. Nothing below it may: see
//! [`runlog_stores::safe_open`]. So what is imported is what was listed, or refused, also where
//! another program puts a link in its place meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runlog_stores::safe_open::{self, Folder};
use rustix::fs::FileType;

/// Where a file or a folder is: a path of the user's, and the names that lead down from it.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    named: Arc<Named>,
    below: Vec<OsString>,
}

/// A path of the user's.
#[derive(Debug)]
struct Named {
    path: PathBuf,
    /// The same as [`located`].
    absolute: PathBuf,
    /// The bytes of standard input.
    stdin: Option<File>,
}

/// An entry of a folder.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    /// Of a link, that it is one.
    pub(crate) kind: FileType,
}

impl Location {
    /// A path that the user named.
    pub(crate) fn named(path: &Path) -> Self {
        let named = Named { path: path.to_path_buf(), absolute: located(path), stdin: None };
        Self { named: Arc::new(named), below: Vec::new() }
    }

    /// Standard input. This temporary file has all its bytes.
    pub(crate) fn stdin(read: File) -> Self {
        let path = PathBuf::from("-");
        let named = Named { absolute: path.clone(), path, stdin: Some(read) };
        Self { named: Arc::new(named), below: Vec::new() }
    }

    pub(crate) fn is_stdin(&self) -> bool {
        self.named.stdin.is_some()
    }

    /// The names that lead here from the path of the user's.
    pub(crate) fn relative_path(&self) -> PathBuf {
        self.below.iter().collect()
    }

    /// The entry of this folder with this name.
    pub(crate) fn join(&self, name: &OsStr) -> Self {
        let mut below = self.below.clone();
        below.push(name.to_os_string());
        Self { named: Arc::clone(&self.named), below }
    }

    /// For people.
    pub(crate) fn path(&self) -> PathBuf {
        let mut path = self.named.path.clone();
        path.extend(&self.below);
        path
    }

    /// From the root on: the same for all paths of the user's that lead to this folder.
    pub(crate) fn absolute_path(&self) -> PathBuf {
        let mut path = self.named.absolute.clone();
        path.extend(&self.below);
        path
    }

    /// The name, of a path of the user's the last part of it.
    pub(crate) fn name(&self) -> &OsStr {
        let last = self.below.last().map(OsString::as_os_str);
        let named = || self.named.path.file_name().or_else(|| self.named.absolute.file_name());
        last.or_else(named).unwrap_or_default()
    }

    /// The regular file that is here, and what it is at this moment.
    pub(crate) fn file(&self) -> io::Result<(File, Metadata)> {
        if let Some(read) = &self.named.stdin {
            return Ok((read.try_clone()?, read.metadata()?));
        }
        let file = match self.below.split_last() {
            Some((name, folders)) => self.named.folder(folders)?.file(name)?,
            None => Some(safe_open::file(&self.named.path)?),
        };
        let file = file.ok_or_else(not_regular)?;
        let metadata = file.metadata()?;
        if metadata.is_file() { Ok((file, metadata)) } else { Err(not_regular()) }
    }

    /// The entries of the folder that is here, sorted by name so that every import runs in the
    /// same order.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let entries = self.named.folder(&self.below)?.entries()?;
        Ok(entries.into_iter().map(|(name, kind)| Entry { name, kind }).collect())
    }
}

impl Named {
    /// Opens a folder below the path.
    fn folder(&self, names: &[OsString]) -> io::Result<Folder> {
        let root = Folder::open(&self.path)?;
        names.iter().try_fold(root, |folder, name| folder.folder(name))
    }
}

/// A path from the root on, without links in what leads to it: so a folder has one, and a file one
/// for each of its names. What is not there has the path as it is written.
pub(crate) fn located(path: &Path) -> PathBuf {
    let written = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let found = match (written.parent(), written.file_name()) {
        (Some(folder), Some(name)) if !written.is_dir() => {
            fs::canonicalize(folder).map(|folder| folder.join(name))
        }
        _ => fs::canonicalize(&written),
    };
    found.unwrap_or(written)
}

/// Nothing that has lines, such as a pipe or a device; or a link that is not to be followed.
pub(crate) fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}
