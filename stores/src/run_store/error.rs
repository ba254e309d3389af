//! The errors of the store, and their form as [`io::Error`].

use core::fmt;
use std::io;

use super::config::ConfigError;
use super::line::LineFault;
use runlog::Error;

/// An error of the store. The calls of the original return [`io::Error`]; this is inside of it:
///
/// | this | [`io::ErrorKind`] |
/// |---|---|
/// | [`StartedDifferently`](Self::StartedDifferently) | `AlreadyExists` |
/// | [`EndedDifferently`](Self::EndedDifferently) | `AlreadyExists` |
/// | [`Foreign`](Self::Foreign) | `AlreadyExists` |
/// | [`NoSuchRun`](Self::NoSuchRun) | `NotFound` |
/// | [`Unreadable`](Self::Unreadable) | `InvalidInput` |
/// | an id that is empty or too long, a line that is too long | `InvalidInput` |
/// | a disk that is full | `StorageFull` |
/// | a store that another process has open | `ResourceBusy` |
/// | damage of the file, or a file that is not a store | `InvalidData` |
/// | an error of the system | its kind |
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RunStoreError {
    /// The run was started before, with another start. Nothing was stored. The caller should choose
    /// another run id, or repeat the first start.
    StartedDifferently {
        /// The agent.
        agent: String,
        /// The run.
        run: String,
    },
    /// The run was ended before, with another end. Nothing was stored. The caller should use the
    /// end that is stored.
    EndedDifferently {
        /// The agent.
        agent: String,
        /// The run.
        run: String,
    },
    /// Another program keeps a run with these ids in the same log. Nothing was stored. The caller
    /// should choose another run id.
    Foreign {
        /// The agent.
        agent: String,
        /// The run.
        run: String,
    },
    /// There is no such run. The caller should check the ids.
    NoSuchRun {
        /// The run.
        run: String,
    },
    /// The line of the record could not be read again: it has JSON that is nested deeper than 127
    /// levels. Nothing was stored. The caller should store that JSON as a text.
    Unreadable {
        /// The fault that a reader would report.
        fault: LineFault,
    },
    /// The configuration cannot be read. The caller should correct it.
    Config(ConfigError),
    /// An error of the engine, which states what to do.
    Engine(Error),
}

impl RunStoreError {
    /// The error of this store inside an [`io::Error`], if any.
    ///
    /// ```
    /// use runlog_stores::run_store::{RetentionConfig, RunStarted, RunStore, RunStoreError};
    /// let folder = std::env::temp_dir().join("runlog-doc-no-folder");
    /// let store = RunStore::new(folder, RetentionConfig::default());
    /// let error = store.write_started(&RunStarted::default()).unwrap_err();
    /// assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    /// assert!(matches!(RunStoreError::of(&error), Some(RunStoreError::Engine(_))));
    /// # let _ = std::fs::remove_dir_all(store.root());
    /// ```
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::StartedDifferently { .. }
            | Self::EndedDifferently { .. }
            | Self::Foreign { .. } => io::ErrorKind::AlreadyExists,
            Self::NoSuchRun { .. } => io::ErrorKind::NotFound,
            Self::Unreadable { .. } => io::ErrorKind::InvalidInput,
            Self::Config(_) => io::ErrorKind::InvalidData,
            Self::Engine(error) => kind_of(error),
        }
    }
}

fn kind_of(error: &Error) -> io::ErrorKind {
    match error {
        Error::Io { source, .. } => source.kind(),
        Error::DiskFull { .. } => io::ErrorKind::StorageFull,
        Error::Busy { .. } | Error::Locked { .. } => io::ErrorKind::ResourceBusy,
        Error::NotFound { .. } | Error::RunNotFound { .. } | Error::Evicted { .. } => {
            io::ErrorKind::NotFound
        }
        Error::AlreadyExists { .. } | Error::RunExists { .. } | Error::RunEnded { .. } => {
            io::ErrorKind::AlreadyExists
        }
        Error::InvalidId { .. }
        | Error::TooLarge { .. }
        | Error::InvalidArgument { .. }
        | Error::Ambiguous { .. } => io::ErrorKind::InvalidInput,
        Error::RunHeld { .. } => io::ErrorKind::PermissionDenied,
        Error::Corrupt(_)
        | Error::Damaged(_)
        | Error::NotAStore { .. }
        | Error::NotRegularFile { .. }
        | Error::UnsupportedVersion { .. }
        | Error::UnsupportedFeatures { .. }
        | Error::Json { .. } => io::ErrorKind::InvalidData,
        _ => io::ErrorKind::Other,
    }
}

impl fmt::Display for RunStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StartedDifferently { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} has another start; use a new run id")
            }
            Self::EndedDifferently { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} has another end, which stays")
            }
            Self::Foreign { agent, run } => {
                write!(f, "run {run:?} of agent {agent:?} belongs to another program; use a new id")
            }
            Self::NoSuchRun { run } => write!(f, "there is no run {run:?}; check the id"),
            Self::Unreadable { fault } => {
                write!(f, "the record could not be read again ({fault}); it was not stored")
            }
            Self::Config(error) => error.fmt(f),
            Self::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for RunStoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Engine(error) => error.source(),
            _ => None,
        }
    }
}

impl From<Error> for RunStoreError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<RunStoreError> for io::Error {
    fn from(error: RunStoreError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// The result within this store.
pub(super) type Result<T, E = RunStoreError> = core::result::Result<T, E>;
