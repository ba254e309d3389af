//! Files and folders below a path that the user names.
//!
//! The path itself may be a link, since the user chose it. Nothing below it may: each name is
//! opened relative to the folder before it, without following links, and looked at once it is open.
//! So what is imported is what was listed, or refused, also where another program puts a link in
//! its place meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, open, openat, statat};
use rustix::io::Errno;

/// Where a file or a folder is: a path of the user's, and the names that lead down from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    named: PathBuf,
    below: Vec<OsString>,
}

/// An entry of a folder.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) name: OsString,
    /// Of a link, that it is one.
    pub(crate) kind: FileType,
}

impl Place {
    /// A path that the user named.
    pub(crate) fn named(path: &Path) -> Self {
        Self { named: path.to_path_buf(), below: Vec::new() }
    }

    /// What has this name in this folder.
    pub(crate) fn join(&self, name: &OsStr) -> Self {
        let mut below = self.below.clone();
        below.push(name.to_os_string());
        Self { named: self.named.clone(), below }
    }

    /// For people.
    pub(crate) fn path(&self) -> PathBuf {
        let mut path = self.named.clone();
        path.extend(&self.below);
        path
    }

    /// The regular file that is here.
    pub(crate) fn file(&self) -> io::Result<File> {
        // Without waiting for the other end of a pipe, and without becoming a terminal's process.
        let file = File::from(self.open(OFlags::NONBLOCK | OFlags::NOCTTY)?);
        if !file.metadata()?.is_file() {
            return Err(not_regular());
        }
        Ok(file)
    }

    /// The entries of the folder that is here, sorted by name so that every import runs in the
    /// same order.
    pub(crate) fn entries(&self) -> io::Result<Vec<Entry>> {
        let folder = self.open(OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not tell.
                FileType::Unknown => {
                    let stat = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                kind => kind,
            };
            entries.push(Entry { name: OsString::from_vec(name.to_bytes().to_vec()), kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Opens what is here, with these flags.
    fn open(&self, last: OFlags) -> io::Result<OwnedFd> {
        let flags = |depth| {
            let kind = if depth == self.below.len() { last } else { OFlags::DIRECTORY };
            OFlags::RDONLY | OFlags::CLOEXEC | kind
        };
        let mut opened = open(&self.named, flags(0), Mode::empty())?;
        for (depth, name) in (1..).zip(&self.below) {
            let flags = flags(depth) | OFlags::NOFOLLOW;
            opened = openat(&opened, name, flags, Mode::empty()).map_err(refused)?;
        }
        Ok(opened)
    }
}

/// Nothing that has lines, such as a pipe or a device.
pub(crate) fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// What the system says of a link that it was not to follow is about loops of links.
fn refused(error: Errno) -> io::Error {
    if error == Errno::LOOP {
        return io::Error::new(
            io::ErrorKind::InvalidInput,
            "a symbolic link, which is not followed",
        );
    }
    error.into()
}
