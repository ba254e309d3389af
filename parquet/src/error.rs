//! Why an export stopped.

use std::fmt;
use std::io;
use std::path::PathBuf;

use parquet::errors::ParquetError;

/// Why an export stopped.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExportError {
    /// A file of this name is there, and is not replaced: export into another folder, or remove it.
    Exists(PathBuf),
    /// The store cannot be read.
    Store(runlog::Error),
    /// A file cannot be made, written or named.
    File {
        /// The file, or its folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A table cannot be encoded or written.
    Parquet {
        /// The file.
        path: PathBuf,
        /// What the writer of Parquet says.
        source: ParquetError,
    },
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(path) => write!(
                f,
                "{} exists and is not replaced: name another folder, or remove it",
                path.display()
            ),
            Self::Store(error) => error.fmt(f),
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Parquet { path, source } => write!(f, "{}: {source}", path.display()),
        }
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Exists(_) => None,
            Self::Store(error) => Some(error),
            Self::File { source, .. } => Some(source),
            Self::Parquet { source, .. } => Some(source),
        }
    }
}

impl From<runlog::Error> for ExportError {
    fn from(error: runlog::Error) -> Self {
        Self::Store(error)
    }
}
