//! Files below a folder that the caller names, opened so that no link is followed.
//!
//! Each name is opened relative to the folder that listed it, and checked once it is open. So the
//! file that is read is the one that was listed, or it is refused, even if another program replaces
//! it with a link meanwhile.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};
use rustix::io::Errno;

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

/// Without waiting for the other end of a pipe, and without getting a controlling terminal.
const AT_ONCE: OFlags = READ.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens what is at a path of the caller. The path may be a link; what is there may be no file.
///
/// # Errors
/// Those of the system.
pub fn file(path: &Path) -> io::Result<File> {
    Ok(openat(CWD, path, AT_ONCE, Mode::empty())?.into())
}

/// A folder that is open.
#[derive(Debug)]
pub struct Folder(pub(crate) OwnedFd);

impl Folder {
    /// A folder at a path of the caller. The path may be a link.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(CWD, path, OFlags::DIRECTORY | READ, Mode::empty())?))
    }

    /// A folder in this one.
    ///
    /// # Errors
    /// Those of the system.
    pub fn folder(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | READ;
        Ok(Self(openat(&self.0, name, flags, Mode::empty())?))
    }

    /// A regular file in this one; `None` if it is something else.
    ///
    /// # Errors
    /// Those of the system.
    pub fn file(&self, name: &OsStr) -> io::Result<Option<File>> {
        let file = match openat(&self.0, name, AT_ONCE | OFlags::NOFOLLOW, Mode::empty()) {
            Err(Errno::LOOP) => return Ok(None),
            opened => File::from(opened?),
        };
        Ok(file.metadata()?.is_file().then_some(file))
    }

    /// The entries with their kinds, sorted by name. Links are not followed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn entries(&self) -> io::Result<Vec<(OsString, FileType)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not state it.
                FileType::Unknown => {
                    let stat = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                kind => kind,
            };
            entries.push((OsString::from_vec(name.to_bytes().to_vec()), kind));
        }
        entries.sort_by(|left, right| left.0.cmp(&right.0));
        Ok(entries)
    }
}
