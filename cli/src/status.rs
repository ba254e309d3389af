//! How runs stand, as words of the command line.

use clap::ValueEnum;
use runlog::RunStatus;

/// Any status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Failed,
    Cancelled,
    Interrupted,
}

impl Status {
    pub(crate) fn wanted(self) -> RunStatus {
        match self {
            Self::InProgress => RunStatus::InProgress,
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
            Self::Interrupted => RunStatus::Interrupted,
        }
    }
}

/// A status that a run ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndStatus {
    Completed,
    Failed,
    Cancelled,
    Interrupted,
}

impl EndStatus {
    /// The status in the library.
    pub(crate) fn status(self) -> RunStatus {
        match self {
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
            Self::Interrupted => RunStatus::Interrupted,
        }
    }
}
