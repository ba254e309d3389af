//! A file to import, and its bytes: a short one is read once and stays in memory, a long one is
//! read as its lines are needed.

use std::fs::{File, Metadata};
use std::io::{self, Cursor, Seek as _};
use std::os::unix::fs::FileExt as _;

use runlog::Timestamp;
use runlog_stores::json_lines::{Ending, Lines, LinesError};

use crate::formats::probe::{Known, probe};

/// The longest file that is read at once.
const SHORT: u64 = 8 << 20;

/// A file, as far as it went when it was opened.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) file: File,
    len: u64,
    pub(crate) modified: Timestamp,
    /// All of it, if it is short.
    whole: Option<Vec<u8>>,
}

impl Input {
    /// A file, from its beginning on, wherever it stands.
    pub(crate) fn new(mut file: File, metadata: &Metadata) -> io::Result<Self> {
        let (len, modified) = (metadata.len(), Timestamp::from(metadata.modified()?));
        let whole = if len <= SHORT {
            Some(read(&file, len)?)
        } else {
            file.rewind()?;
            None
        };
        Ok(Self { file, len, modified, whole })
    }

    /// What it is, by its content and its name.
    pub(crate) fn probe(&mut self, name: &str) -> io::Result<Known> {
        match &self.whole {
            Some(bytes) => probe(&mut Cursor::new(bytes), self.len, name),
            None => probe(&mut self.file, self.len, name),
        }
    }

    /// All of it, if it is short.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.whole.as_deref()
    }

    /// Its lines, and the file itself.
    pub(crate) fn into_lines(self) -> Result<(FileLines, File), LinesError> {
        let lines = match self.whole {
            Some(bytes) => FileLines::Short(Lines::new(Cursor::new(bytes), self.len)),
            None => FileLines::Long(Lines::of_file(self.file.try_clone()?)?),
        };
        Ok((lines, self.file))
    }
}

fn read(file: &File, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the file became shorter while it was read")
        }
        _ => error,
    })?;
    Ok(bytes)
}

/// The lines of a file, from the first one or from a place on.
#[derive(Debug)]
pub(crate) enum FileLines {
    Short(Lines<Cursor<Vec<u8>>>),
    Long(Lines<File>),
}

impl FileLines {
    /// As [`Lines::read_onto`].
    pub(crate) fn read_onto(&mut self, buffer: &mut Vec<u8>) -> Result<Option<Ending>, LinesError> {
        match self {
            Self::Short(lines) => lines.read_onto(buffer),
            Self::Long(lines) => lines.read_onto(buffer),
        }
    }

    /// As [`Lines::rewind`].
    pub(crate) fn rewind(&mut self) -> Result<(), LinesError> {
        match self {
            Self::Short(lines) => lines.rewind(),
            Self::Long(lines) => lines.rewind(),
        }
    }
}
