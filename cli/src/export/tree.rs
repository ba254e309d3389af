//! The files of an export: below the folder that the user names, for their owner only.
//!
//! 1. A file is written under another, hidden name and renamed once it is whole. A process that is
//!    killed leaves at most that one.
//! 2. Nothing that is there is replaced.
//! 3. Links below the folder are not followed.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, mkdirat, openat, renameat_with, statat,
    syncfs, unlinkat,
};
use rustix::io::Errno;

use super::outcome::Why;

/// What the names of unfinished files begin with.
const UNFINISHED: &str = ".runlog-export";

/// The most files that killed processes left behind.
const MAX_LEFT: u32 = 1000;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The folder that the user named.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
}

/// A file that is being written. Unless it is published, it is removed.
#[derive(Debug)]
pub(crate) struct NewFile {
    folder: OwnedFd,
    name: String,
    unfinished: String,
    file: File,
    is_there: bool,
}

impl Tree {
    /// Opens a folder, and makes it if there is none.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self { root: openat(CWD, path, FOLDER, Mode::empty())? })
    }

    /// A new file, by the names that lead to it.
    pub(crate) fn file(&self, names: &[String]) -> Result<NewFile, Why> {
        let mut folder = self.root.try_clone()?;
        let (name, folders) = names.split_last().ok_or_else(Why::differs)?;
        for below in folders {
            match mkdirat(&folder, below, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            folder = match openat(&folder, below, FOLDER | OFlags::NOFOLLOW, Mode::empty()) {
                // A link, or a file.
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let message = format!("{below} is there and is no folder");
                    return Err(Why::refused("in_the_way", message));
                }
                opened => opened?,
            };
        }
        match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => return Err(Why::exists()),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let (unfinished, file) = unfinished(&folder)?;
        Ok(NewFile { folder, name: name.clone(), unfinished, file, is_there: true })
    }

    /// Returns once all files survive power loss.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(syncfs(&self.root)?)
    }
}

/// A file under a name of its own.
fn unfinished(folder: &OwnedFd) -> rustix::io::Result<(String, File)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mut number = 0_u32;
    loop {
        let name = format!("{UNFINISHED}-{}-{number}.tmp", std::process::id());
        match openat(folder, &name, flags, Mode::RUSR | Mode::WUSR) {
            // A process with the same number was killed.
            Err(Errno::EXIST) if number < MAX_LEFT => number += 1,
            opened => return Ok((name, File::from(opened?))),
        }
    }
}

impl NewFile {
    pub(crate) fn as_write(&mut self) -> &mut impl Write {
        &mut self.file
    }

    /// Gives the file its name, unless something has it.
    pub(crate) fn publish(mut self) -> Result<(), Why> {
        let (folder, from, to) = (&self.folder, &self.unfinished, &self.name);
        let renamed = match renameat_with(folder, from, folder, to, RenameFlags::NOREPLACE) {
            // The file system cannot do it in one step.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                // The second name is removed with this value.
                linkat(folder, from, folder, to, AtFlags::empty())
            }
            Ok(()) => {
                self.is_there = false;
                Ok(())
            }
            error => error,
        };
        match renamed {
            Err(Errno::EXIST) => Err(Why::exists()),
            renamed => Ok(renamed?),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_there {
            // A failure leaves a hidden file, which is of no harm.
            let _ = unlinkat(&self.folder, &self.unfinished, AtFlags::empty());
        }
    }
}
