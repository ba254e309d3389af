//! Files below a folder that the caller names, made so that a name has the whole file or nothing.

use std::fs::File;
use std::io;

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, fsync, linkat, mkdirat,
    openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use crate::safe_open::Folder;

impl Folder {
    /// A folder in this one; created for its owner only if it is missing.
    pub(super) fn make_folder(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.0, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.folder(name.as_ref()),
            Err(error) => Err(error.into()),
        }
    }

    /// A new file in this one, for its owner only. It has the name once it is published; if
    /// something has it already, this is an error of the kind `AlreadyExists`.
    pub(super) fn make_file(self, name: &str) -> io::Result<NewFile> {
        match statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => return Err(Errno::EXIST.into()),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let mut number = 0_u32;
        loop {
            let unfinished = format!("{UNFINISHED}-{number}.tmp");
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            match openat(&self.0, &unfinished, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => {
                    let file = File::from(file);
                    if self.lock(&file, &unfinished)? != Lock::Other {
                        let name = name.to_owned();
                        return Ok(NewFile {
                            folder: self,
                            name,
                            unfinished,
                            file,
                            is_there: true,
                        });
                    }
                }
                Err(Errno::EXIST) if self.remove_left(&unfinished)? => continue,
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            number += 1;
        }
    }

    /// Removes an unfinished file of a process that was killed. Returns whether it did.
    fn remove_left(&self, unfinished: &str) -> io::Result<bool> {
        let Ok(Some(file)) = self.file(unfinished.as_ref()) else { return Ok(false) };
        let is_left = self.lock(&file, unfinished)? == Lock::Ours;
        if is_left {
            unlinkat(&self.0, unfinished, AtFlags::empty())?;
        }
        Ok(is_left)
    }

    /// Locks an unfinished file, as long as it is open.
    fn lock(&self, file: &File, name: &str) -> io::Result<Lock> {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Lock::Other),
            Err(_) => return Ok(Lock::None),
        }
        // It may have been published or removed in between.
        let (locked, named) = (fstat(file)?, statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW));
        let is_named =
            named.is_ok_and(|it| (it.st_dev, it.st_ino) == (locked.st_dev, locked.st_ino));
        Ok(if is_named { Lock::Ours } else { Lock::Other })
    }

    /// Returns once its entries survive power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(fsync(&self.0)?)
    }
}

/// What the names of unfinished files begin with.
const UNFINISHED: &str = ".runlog-export";

/// Who has an unfinished file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    /// This call.
    Ours,
    /// Another call, or none any more.
    Other,
    /// It is unknown: the file system has no locks.
    None,
}

/// A file that is being written under a hidden name. Unless it is published, it is removed. What a
/// killed process leaves is removed by the next call that makes a file in the folder.
#[derive(Debug)]
pub(super) struct NewFile {
    folder: Folder,
    name: String,
    unfinished: String,
    /// Locked, so that no other call takes it for one that was left.
    file: File,
    is_there: bool,
}

impl NewFile {
    pub(super) fn as_file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name once its bytes survive power loss; an error of the kind
    /// `AlreadyExists` if something has the name.
    pub(super) fn publish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        let (folder, from, to) = (&self.folder.0, &self.unfinished, &self.name);
        match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
            // The file system cannot do it in one step. The other name is removed by `drop`.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                Ok(linkat(folder, from, folder, to, AtFlags::empty())?)
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                self.is_there = false;
                Ok(())
            }
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_there {
            // A failure leaves a hidden file, which the next export removes.
            let _ = unlinkat(&self.folder.0, &self.unfinished, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use std::ffi::OsString;

    use rustix::fs::{CWD, FileType};

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
        let over = opened.folder("a".as_ref()).unwrap().make_file("r.jsonl");
        assert!(over.is_err(), "nothing is overwritten");
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
