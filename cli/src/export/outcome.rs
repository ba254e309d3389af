//! What was written of a run, or why nothing was.

use std::fmt;
use std::io::{self, Write};

use runlog::{Error, Reader, RecordView, RunRef, RunSummary};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::failure::{Failure, with_sources};

/// What was written.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// Records that are damaged, and were left out.
    pub(crate) damaged: u64,
}

/// Calls `take` with each record, and counts it, also if it is damaged.
pub(super) fn each_record(
    log: &Reader,
    run: &RunSummary,
    written: &mut Written,
    mut take: impl FnMut(u64, &RecordView<'_>) -> Result<(), Why>,
) -> Result<(), Why> {
    let mut trace = log.trace(RunRef::from(run))?;
    while let Some(record) = trace.next_view() {
        match record {
            Ok(record) => {
                take(written.records, &record)?;
                written.records += 1;
            }
            Err(Error::Corrupt(_)) => written.damaged += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Why a run is not exported.
#[derive(Debug)]
pub(crate) enum Why {
    /// For a reason that has a word.
    Refused {
        word: &'static str,
        message: String,
    },
    Store(Error),
    Io(io::Error),
}

impl Why {
    /// Something has the name of its file.
    pub(crate) fn exists() -> Self {
        Self::refused("exists", "is there already, and is not replaced")
    }

    /// The records are not those of the file that was imported.
    pub(crate) fn differs() -> Self {
        let message = "the records are not those of the file that was imported; --format jsonl \
                       exports them";
        Self::refused("differs", message)
    }

    pub(crate) fn refused(word: &'static str, message: impl Into<String>) -> Self {
        Self::Refused { word, message: message.into() }
    }

    /// The reason, if other runs can be exported all the same; else the failure.
    pub(crate) fn of_a_run(self) -> Result<Self, Failure> {
        use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        match self {
            Self::Store(error) if is_gone(&error) => {
                Ok(Self::refused("deleted", "was deleted meanwhile"))
            }
            Self::Store(error) if !error.is_corruption() => Err(error.into()),
            Self::Io(error)
                if matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem) =>
            {
                Err(Failure::said(format!("the export stops: {error}")))
            }
            why => Ok(why),
        }
    }

    /// As a word.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Refused { word, .. } => word,
            Self::Store(_) => "damaged",
            Self::Io(_) => "io",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { message, .. } => f.write_str(message),
            Self::Store(error) => f.write_str(&with_sources(error)),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl From<Error> for Why {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Errno> for Why {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Whether the run was deleted meanwhile.
pub(crate) fn is_gone(error: &Error) -> bool {
    error.is_not_found() || matches!(error, Error::Evicted { .. })
}

/// Counts what is written, and makes its digest.
pub(crate) struct Counted<'w, W> {
    out: &'w mut W,
    pub(crate) bytes: u64,
    pub(crate) digest: Option<Sha256>,
}

impl<'w, W> Counted<'w, W> {
    pub(crate) fn new(out: &'w mut W, digest: Option<Sha256>) -> Self {
        Self { out, bytes: 0, digest }
    }
}

impl<W: Write> Write for Counted<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        self.bytes += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
