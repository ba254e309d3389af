//! The report of importing or exporting a tree of files.

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::error::RunStoreError;
use crate::json_lines::{LinesError, MAX_HOLES, MAX_LINE};
use runlog::Error;

/// The result of an import.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Imported {
    /// Files that became runs.
    pub new: u64,
    /// Files that were stored in part, and whose rest was added.
    pub continued: u64,
    /// Files that were already stored.
    pub unchanged: u64,
    /// Lines that were added.
    pub lines: u64,
    /// How many of these lines are not records. They are stored nevertheless.
    pub damaged_lines: u64,
    /// What was not imported, and why.
    pub problems: Vec<TreeProblem>,
}

/// The result of an export.
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

/// A part of a tree that was skipped.
#[derive(Debug)]
pub struct TreeProblem {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub why: Refusal,
}

/// Why a part of a tree was skipped.
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
    /// A run with these ids exists, with other lines. It was not changed.
    Differs {
        /// The number of the first line that differs, from 1.
        line: u64,
    },
    /// A file with this name exists. It was not changed.
    AlreadyThere,
    /// Records are damaged; they are missing in the file.
    Damaged {
        /// How many.
        records: u64,
    },
    /// The system refused.
    Io(io::Error),
    /// The store refused. Lines that were imported before stay, and the next import goes on behind
    /// them.
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
                write!(f, "the run exists already, and differs from line {line} on")
            }
            Refusal::AlreadyThere => f.write_str("the file exists already"),
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
