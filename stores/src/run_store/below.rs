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
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, mkdirat, openat, statat};
use rustix::io::Errno;

/// A folder that is open.
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// A folder at a path of the caller. The path may be a link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(CWD, path, OFlags::DIRECTORY | READ, Mode::empty())?))
    }

    /// A folder in this one.
    pub(super) fn folder(&self, name: &OsStr) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | READ;
        Ok(Self(openat(&self.0, name, flags, Mode::empty())?))
    }

    /// A regular file in this one; `None` if it is something else.
    pub(super) fn file(&self, name: &OsStr) -> io::Result<Option<File>> {
        // The flags prevent waiting for the other end of a pipe, and getting a controlling
        // terminal.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | READ;
        let file = match openat(&self.0, name, flags, Mode::empty()) {
            Err(Errno::LOOP) => return Ok(None),
            opened => File::from(opened?),
        };
        Ok(file.metadata()?.is_file().then_some(file))
    }

    /// A folder in this one; created for its owner only if it is missing.
    pub(super) fn make_folder(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.0, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.folder(name.as_ref()),
            Err(error) => Err(error.into()),
        }
    }

    /// A new file in this one, for its owner only.
    pub(super) fn make_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    /// The entries with their kinds, sorted by name. Links are not followed.
    pub(super) fn entries(&self) -> io::Result<Vec<(OsString, FileType)>> {
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

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_that_takes_the_place_of_what_was_listed_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, secret) = (folder.path().join("tree"), folder.path().join("secret"));
        for path in [&root.join("a"), &root.join("b"), &secret] {
            fs::create_dir_all(path).unwrap();
            fs::write(path.join("r.jsonl"), "{}").unwrap();
        }
        let opened = Folder::open(&root).unwrap();
        let a = opened.folder("a".as_ref()).unwrap();
        assert_eq!(a.entries().unwrap(), [(OsString::from("r.jsonl"), FileType::RegularFile)]);
        assert!(a.file("r.jsonl".as_ref()).unwrap().is_some());
        fs::remove_file(root.join("a/r.jsonl")).unwrap();
        symlink(secret.join("r.jsonl"), root.join("a/r.jsonl")).unwrap();
        fs::remove_dir_all(root.join("b")).unwrap();
        symlink(&secret, root.join("b")).unwrap();
        assert!(a.file("r.jsonl".as_ref()).unwrap().is_none());
        for name in ["a", "b"] {
            assert_eq!(opened.folder(name.as_ref()).is_ok(), name == "a");
            assert_eq!(opened.make_folder(name).is_ok(), name == "a");
        }
        assert!(a.make_file("r.jsonl").is_err(), "nothing is overwritten");
        // The opened folder is used, whatever has its name now.
        fs::rename(&root, folder.path().join("elsewhere")).unwrap();
        symlink(&secret, &root).unwrap();
        assert_eq!(opened.entries().unwrap().len(), 2);
    }

    #[test]
    fn pipes_are_refused_without_waiting_for_them() {
        let folder = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(CWD, folder.path().join("r.jsonl"), Mode::RWXU).unwrap();
        let opened = Folder::open(folder.path()).unwrap();
        assert_eq!(opened.entries().unwrap(), [(OsString::from("r.jsonl"), FileType::Fifo)]);
        assert!(opened.file("r.jsonl".as_ref()).unwrap().is_none());
    }
}
