//! How a command ends: [`Exit`] when it ran to its end, [`Failure`] when it could not.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::escape::shown;

/// The documented exit codes. Code 2, usage, is clap's.
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
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Error => 1,
            Exit::Damage => 3,
            Exit::Busy => 4,
        })
    }
}

/// Why a command stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store refused.
    Store(runlog::Error),
    /// Standard output does not take more.
    Output(io::Error),
    /// A file beside the store could not be used.
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Anything that one sentence says.
    Said(String),
}

impl Failure {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File { path: path.to_path_buf(), source }
    }

    pub(crate) fn said(message: impl Into<String>) -> Self {
        Self::Said(message.into())
    }

    /// Whether the reader of standard output has gone, which is its right.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Store(error) if error.is_busy() => Exit::Busy,
            Self::Store(error) if error.is_corruption() => Exit::Damage,
            Self::Output(_) if self.is_closed_pipe() => Exit::Fine,
            _ => Exit::Error,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{}", with_sources(error)),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::File { path, source } => write!(f, "{}: {source}", shown(path)),
            Self::Said(message) => f.write_str(message),
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
