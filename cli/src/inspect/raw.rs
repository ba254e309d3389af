//! The file of a store, as bytes: it is only read, without a lock, whatever is in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use runlog::Error;
use rustix::fs::OFlags;

use crate::failure::Failure;

/// A file that may be a store.
#[derive(Debug)]
pub(crate) struct Raw {
    file: File,
    path: PathBuf,
}

impl Raw {
    /// Opens a regular file; links are not followed. The time of its last access stays as it is,
    /// where the system grants that.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound => Error::NotFound { path: path.to_path_buf() }.into(),
            _ => Failure::file(path, source),
        };
        if !fs::symlink_metadata(path).map_err(failed)?.is_file() {
            return Err(Error::NotRegularFile { path: path.to_path_buf() }.into());
        }
        let open = |flags: OFlags| {
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | flags;
            OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
        };
        // Only the owner may leave that time alone.
        let file = open(QUIET).or_else(|_| open(OFlags::empty())).map_err(failed)?;
        Ok(Self { file, path: path.to_path_buf() })
    }

    /// Its length now.
    pub(crate) fn len(&self) -> Result<u64, Failure> {
        let found = self.file.metadata().map_err(|source| Failure::file(&self.path, source))?;
        Ok(found.len())
    }

    /// The bytes of a range, with zeros for what is behind the end of the file.
    pub(crate) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Failure> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, at.saturating_add(filled as u64)) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => return Err(Failure::file(&self.path, source)),
            }
        }
        Ok(bytes)
    }
}

#[cfg(target_os = "linux")]
const QUIET: OFlags = OFlags::NOATIME;
#[cfg(not(target_os = "linux"))]
const QUIET: OFlags = OFlags::empty();
