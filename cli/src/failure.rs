//! How a command ends: [`Exit`] if it completed, [`Failure`] if it could not.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::escape::shown;

/// The documented exit codes. Code 2 is clap's, for wrong usage, and that of a failed search, as it
/// is grep's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    /// All is well.
    Fine,
    /// Something could not be done.
    Error,
    /// Stored bytes are damaged.
    Damage,
    /// Another process has the store open.
    Busy,
    /// The arguments do not go together; or a search failed, or could not read a record.
    Trouble,
}

impl Exit {
    /// The exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Error => 1,
            Self::Damage => 3,
            Self::Busy => 4,
            Self::Trouble => 2,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store refused.
    Store(runlog::Error),
    /// Standard output accepts no more.
    Output(io::Error),
    /// Standard input cannot be read.
    Input(io::Error),
    /// Arguments that do not go together.
    Usage(String),
    /// A file beside the store could not be used.
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// No run has the name of an argument, or several have.
    NoRun {
        /// What is wrong.
        message: String,
        /// Whether several runs have it.
        is_ambiguous: bool,
        /// Those runs, or others with similar names, each as `AGENT/RUN`.
        candidates: Vec<String>,
    },
    /// A failure that is described by a sentence.
    Said(String),
}

impl Failure {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_path_buf(), source }
    }

    pub(crate) fn said(message: impl Into<String>) -> Self {
        Self::Said(message.into())
    }

    /// Whether the reader of standard output has closed it, which is not an error.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What kind of failure it is, as a word of docs/schema/messages.schema.json, and how the
    /// command ends.
    fn class(&self) -> (&'static str, Exit) {
        match self {
            Self::Store(error) if error.is_busy() => ("busy", Exit::Busy),
            Self::Store(error) if error.is_corruption() => ("damage", Exit::Damage),
            Self::Store(error) if error.is_not_found() => ("not_found", Exit::Error),
            Self::Store(_) => ("store", Exit::Error),
            Self::Output(_) if self.is_closed_pipe() => ("output", Exit::Fine),
            Self::Output(_) => ("output", Exit::Error),
            Self::Usage(_) => ("usage", Exit::Trouble),
            Self::Input(_) | Self::File { .. } => ("file", Exit::Error),
            Self::NoRun { is_ambiguous: true, .. } => ("ambiguous", Exit::Error),
            Self::NoRun { .. } => ("no_run", Exit::Error),
            Self::Said(_) => ("other", Exit::Error),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        self.class().0
    }

    pub(crate) fn exit(&self) -> Exit {
        self.class().1
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{}", with_sources(error)),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::Input(error) => write!(f, "cannot read standard input: {error}"),
            Self::Usage(message) => f.write_str(message),
            Self::File { path, source } => write!(f, "{}: {source}", shown(path)),
            Self::Said(message) => f.write_str(message),
            Self::NoRun { message, is_ambiguous, candidates } => {
                f.write_str(message)?;
                match candidates.as_slice() {
                    [] => Ok(()),
                    names if *is_ambiguous => write!(f, ": {}", names.join(", ")),
                    names => write!(f, "; did you mean {}?", names.join(", ")),
                }
            }
        }
    }
}

/// An error and all that caused it, in one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

impl From<runlog::Error> for Failure {
    fn from(error: runlog::Error) -> Self {
        Self::Store(error)
    }
}

impl From<runlog::InvalidId> for Failure {
    fn from(invalid: runlog::InvalidId) -> Self {
        Self::Store(invalid.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
