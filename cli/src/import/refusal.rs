//! Why a file is not imported.

use std::fmt;
use std::io;

use runlog_stores::json_lines::{LinesError, MAX_HOLES, MAX_LINE};

use crate::failure::with_sources;
use crate::formats::probe::MAX_DOCUMENT;
use crate::output::{grouped, size};

/// Whose problem it is.
#[derive(Debug)]
pub(crate) enum FileError {
    /// The store's: nothing more can be imported.
    Store(runlog::Error),
    /// The file's: the others can be.
    File(Refusal),
}

/// Why a file is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    Lines(LinesError),
    /// It is compressed and cannot be unpacked.
    Packed {
        what: &'static str,
        why: String,
    },
    /// It begins like UTF-16, and is not.
    NotUtf16,
    /// It is longer than what is held in memory.
    TooLong {
        what: &'static str,
        advice: &'static str,
    },
    /// The run that it would be, or go on, is not as it has to be.
    Run {
        agent: String,
        run: String,
        problem: Problem,
    },
    Store(runlog::Error),
}

/// What is the matter with the run of a file.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It has other records, from this line or step on, where that is known.
    Differs(Option<(&'static str, u64)>),
    /// It did not come from this file.
    Foreign,
    /// It would have to be imported anew, and is held.
    Held,
    /// What was to take its place waits for it, as this run.
    Stays(String),
    /// Somebody deleted it. What was to take its place went.
    Deleted,
}

impl Problem {
    /// Of the run with these ids.
    pub(crate) fn of(self, (agent, run): (&str, &str)) -> FileError {
        let (agent, run) = (agent.to_owned(), run.to_owned());
        Refusal::Run { agent, run, problem: self }.into()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Differs(from) => {
                f.write_str("is there already and differs")?;
                if let Some((what, number)) = from {
                    write!(f, " from {what} {number} on")?;
                }
                f.write_str("; --replace imports the file anew in its place")
            }
            Self::Foreign => f.write_str("is there already, from elsewhere"),
            Self::Held => f.write_str(
                "is held; release it, so that the file can be imported anew in its place",
            ),
            Self::Stays(stand_in) => write!(
                f,
                "is held, or changed since it was to be imported anew; what was to take its place \
                 waits for it as the run {stand_in}, which is held"
            ),
            Self::Deleted => f.write_str(
                "was deleted before an import that was cut short could import it anew; what was \
                 to take its place is erased",
            ),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lines(LinesError::TooLong { line }) => write!(
                f,
                "line {line} has more than {} bytes, which no record has; nothing of the file was \
                 imported",
                grouped(MAX_LINE)
            ),
            Self::Lines(LinesError::Sparse) => write!(
                f,
                "more than {} of it are holes, which no program wrote; nothing of it was imported",
                size(MAX_HOLES)
            ),
            Self::Lines(error) => error.fmt(f),
            Self::Packed { what, why } => {
                write!(f, "{what} data that cannot be unpacked: {why}; nothing of it was imported")
            }
            Self::NotUtf16 => f.write_str(
                "it begins with the mark of UTF-16, and is not valid UTF-16; nothing of it was \
                 imported",
            ),
            Self::TooLong { what, advice } => {
                write!(f, "{what} of more than {}; {advice}", size(MAX_DOCUMENT))
            }
            Self::Run { agent, run, problem } => {
                write!(f, "run {run:?} of agent {agent:?} {problem}")
            }
            Self::Store(error) => f.write_str(&with_sources(error)),
        }
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        LinesError::from(error).into()
    }
}

impl From<LinesError> for FileError {
    fn from(error: LinesError) -> Self {
        Self::File(Refusal::Lines(error))
    }
}

impl From<Refusal> for FileError {
    fn from(refusal: Refusal) -> Self {
        Self::File(refusal)
    }
}

impl From<runlog::Error> for FileError {
    fn from(error: runlog::Error) -> Self {
        use runlog::Error;
        match error {
            Error::TooLarge { .. }
            | Error::InvalidId { .. }
            | Error::RunExists { .. }
            | Error::RunEnded { .. }
            | Error::Evicted { .. }
            | Error::Corrupt(_) => Self::File(Refusal::Store(error)),
            other => Self::Store(other),
        }
    }
}
