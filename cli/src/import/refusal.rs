//! Why a file is not imported.

use std::fmt;
use std::io;

use runlog_stores::json_lines::{LinesError, MAX_HOLES, MAX_LINE};

use crate::failure::with_sources;
use crate::output::{grouped, size};

/// Whose problem it is.
#[derive(Debug)]
pub(crate) enum FileError {
    /// The store's: nothing more can be imported.
    Store(runlog::Error),
    /// The file's: the others can be.
    File(Refusal),
}

/// Why a file is refused, for people.
#[derive(Debug)]
pub(crate) struct Refusal {
    text: String,
    /// A file that is being written may be without it soon.
    pub(crate) may_pass: bool,
}

impl FileError {
    /// A file that cannot be imported.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::File(Refusal { text: text.into(), may_pass: false })
    }

    /// A file that cannot be imported now.
    pub(crate) fn not_yet(text: impl Into<String>) -> Self {
        Self::File(Refusal { text: text.into(), may_pass: true })
    }

    /// A file whose run is not as it has to be.
    pub(crate) fn of_run((agent, run): (&str, &str), why: &str) -> Self {
        Self::refused(format!("run {run:?} of agent {agent:?} {why}"))
    }

    /// A file whose run did not come from it.
    pub(crate) fn foreign(ids: (&str, &str)) -> Self {
        Self::of_run(ids, "is there already, from elsewhere")
    }

    /// A file that differs from its run, perhaps from this line or step on.
    pub(crate) fn differs(ids: (&str, &str), from: Option<(&str, u64)>) -> Self {
        let from = from.map(|(what, number)| format!(" from {what} {number} on"));
        let why = "; --replace replaces the run";
        let from = from.unwrap_or_default();
        Self::of_run(ids, &format!("is there already and differs{from}{why}"))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::refused(error.to_string())
    }
}

impl From<LinesError> for FileError {
    fn from(error: LinesError) -> Self {
        let why = match error {
            LinesError::TooLong { line } => {
                let most = grouped(MAX_LINE);
                format!("line {line} has more than {most} bytes, which no record has")
            }
            LinesError::Sparse => {
                format!("more than {} of it are holes, which no program wrote", size(MAX_HOLES))
            }
            error => return Self::refused(error.to_string()),
        };
        Self::refused(why + "; nothing of it was imported")
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
            | Error::Corrupt(_) => Self::refused(with_sources(&error)),
            other => Self::Store(other),
        }
    }
}
