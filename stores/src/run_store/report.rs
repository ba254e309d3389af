//! What became of the files of a tree that was imported, or exported.

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::error::RunStoreError;
use crate::json_lines::{LinesError, MAX_HOLES, MAX_LINE};
use runlog::Error;

/// What became of the files of a tree.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Imported {
    /// Files that are runs now.
    pub new: u64,
    /// Files of which a part was there, and the rest was added.
    pub continued: u64,
    /// Files that were there.
    pub unchanged: u64,
    /// Lines that were added.
    pub lines: u64,
    /// Of these, lines that are no records. They are kept all the same.
    pub damaged_lines: u64,
    /// What was not imported, and why.
    pub problems: Vec<TreeProblem>,
}

/// What was written into a tree.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Exported {
    /// Files that were written.
    pub files: u64,
    /// Their lines.
    pub lines: u64,
    /// What was not written, and why.
    pub problems: Vec<TreeProblem>,
}

/// A part of a tree that was passed over.
#[derive(Debug)]
pub struct TreeProblem {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub why: Refusal,
}

/// Why a part of a tree was passed over.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// It is a link, a special file, a file outside of the folder of an agent, a folder within
    /// one, or hidden. Links are not followed.
    NotARun,
    /// Its name is not UTF-8, and cannot become an id.
    NameNotUtf8,
    /// A line is longer than 64 MiB. Nothing of the file was imported.
    LineTooLong {
        /// The number of the line, from 1.
        line: u64,
    },
    /// More than 64 MiB of it are holes, which no program wrote. Nothing of the file was imported.
    Sparse,
    /// A run with these ids is there already, with other lines. It was left as it is.
    Differs {
        /// The number of the first line that differs, from 1.
        line: u64,
    },
    /// There is a file of this name already. It was left as it is.
    AlreadyThere,
    /// The bytes of records are damaged; they are missing in the file.
    Damaged {
        /// How many.
        records: u64,
    },
    /// The system refused.
    Io(io::Error),
    /// The store refused. What was imported of the file before stays, and the next import goes on
    /// there.
    Store(RunStoreError),
}

impl fmt::Display for TreeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.why {
            Refusal::NotARun => f.write_str("not a file of a run"),
            Refusal::NameNotUtf8 => f.write_str("the name is not UTF-8"),
            Refusal::LineTooLong { line } => {
                write!(f, "line {line} is longer than {MAX_LINE} bytes")
            }
            Refusal::Sparse => write!(f, "more than {MAX_HOLES} bytes of it are holes"),
            Refusal::Differs { line } => {
                write!(f, "the run is there already, and differs from line {line} on")
            }
            Refusal::AlreadyThere => f.write_str("there is a file already"),
            Refusal::Damaged { records } => write!(f, "{records} damaged records are missing"),
            Refusal::Io(error) => error.fmt(f),
            Refusal::Store(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<LinesError> for Refusal {
    fn from(error: LinesError) -> Self {
        match error {
            LinesError::TooLong { line } => Self::LineTooLong { line },
            LinesError::Sparse => Self::Sparse,
            LinesError::Io(error) => Self::Io(error),
        }
    }
}

impl From<RunStoreError> for Refusal {
    fn from(error: RunStoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Store(error.into())
    }
}

impl Imported {
    pub(super) fn refuse(&mut self, path: &Path, why: Refusal) {
        self.problems.push(TreeProblem { path: path.to_owned(), why });
    }
}
