//! Why a call about checkpoints or session logs failed.

use core::fmt;
use std::io;
use std::sync::Arc;

use super::id::CheckpointId;
use super::key::ThreadKey;
use crate::worker::Failure;
use runlog::Error;

/// What went wrong. It never shows the contents of a state or an event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The thread has no checkpoint with the id that a branch was to start from. Nothing was
    /// stored. The caller should look at the history of the thread.
    UnknownParent {
        /// The id.
        parent: CheckpointId,
    },
    /// The thread has another checkpoint with this id. Nothing was stored. The caller should give
    /// the new one an id of its own.
    Exists {
        /// The id.
        id: CheckpointId,
    },
    /// The thread to copy does not exist. The caller should check the key.
    UnknownThread {
        /// The thread.
        key: ThreadKey,
    },
    /// The target of a copy exists. Nothing was changed. The caller should delete it first, or
    /// choose another key.
    ThreadExists {
        /// The thread.
        key: ThreadKey,
    },
    /// A document was written by a newer version. The caller should update the program; the bytes
    /// can be read with [`Documents::get`](runlog::Documents::get).
    NewerSchema {
        /// The namespace of the document.
        namespace: String,
        /// Its key.
        key: String,
        /// The version that it says.
        found: u64,
        /// The newest version that is known.
        known: u32,
    },
    /// A document does not fit its place, or is missing. Other threads are not affected. The caller
    /// should restore the thread from a copy, or delete it.
    /// [`Documents::get`](runlog::Documents::get) reads the documents that are there.
    Damaged {
        /// The namespace of the document.
        namespace: String,
        /// Its key.
        key: String,
        /// What is wrong with it.
        defect: Defect,
    },
    /// A state or an event is not of the type that was asked for. The caller should read the bytes:
    /// [`Checkpointer::state_bytes`](super::Checkpointer::state_bytes), or
    /// [`Documents::get`](runlog::Documents::get).
    OtherShape {
        /// The namespace of the document.
        namespace: String,
        /// Its key.
        key: String,
        /// The line of the JSON where it goes wrong, from 1.
        line: usize,
        /// The column, from 1; 0 at the end of a line.
        column: usize,
    },
    /// Code of the caller's types panicked in the middle of an asynchronous call. The change was
    /// made as a whole, or not at all.
    NoAnswer,
    /// The operating system refused the thread for asynchronous calls. Nothing was done. The caller
    /// should check the limits of the process, and call again.
    NoThread {
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// The store failed, or refused an id or a size. The caller should ask for the state of the
    /// thread once the store works again.
    Store(Error),
}

/// What is wrong with a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defect {
    /// Another document refers to it, and it is missing.
    Missing,
    /// It is not JSON of the shape that this place requires.
    Shape,
    /// It does not state the version of its schema.
    NoSchema,
    /// It belongs to another thread, checkpoint, or place.
    Foreign,
    /// The state that it describes does not have the stated length or checksum.
    Checksum,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is missing",
            Self::Shape => "does not have the shape that its place requires",
            Self::NoSchema => "does not state the version of its schema",
            Self::Foreign => "belongs to another place",
            Self::Checksum => "describes a state with another length or checksum",
        })
    }
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownParent { parent } => {
                write!(f, "the thread has no checkpoint {parent} to branch off; check its history")
            }
            Self::Exists { id } => {
                write!(f, "the thread has another checkpoint {id}; use a new id")
            }
            Self::UnknownThread { key } => write!(f, "there is no {key}; check the key"),
            Self::ThreadExists { key } => write!(f, "{key} exists already; delete it first"),
            Self::NewerSchema { namespace, key, found, known } => write!(
                f,
                "document {key:?} of {namespace:?} has schema version {found}, this program knows \
                 up to {known}"
            ),
            Self::Damaged { namespace, key, defect } => {
                write!(f, "document {key:?} of {namespace:?} {defect}")
            }
            Self::OtherShape { namespace, key, line, column } => write!(
                f,
                "document {key:?} of {namespace:?} has JSON of another shape (line {line}, column \
                 {column})"
            ),
            Self::NoAnswer => f.write_str("the call ended without a result, since it panicked"),
            Self::NoThread { source } => write!(f, "no thread for the call: {source}; call again"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CheckpointError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::NoThread { source } => Some(&**source),
            _ => None,
        }
    }
}

impl From<Error> for CheckpointError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Failure for CheckpointError {
    fn no_answer() -> Self {
        Self::NoAnswer
    }

    fn no_thread(source: io::Error) -> Self {
        Self::NoThread { source: Arc::new(source) }
    }
}

impl CheckpointError {
    pub(super) fn damaged(namespace: &str, key: &str, defect: Defect) -> Self {
        Self::Damaged { namespace: namespace.to_owned(), key: key.to_owned(), defect }
    }

    pub(super) fn shape(namespace: &str, key: &str, error: &serde_json::Error) -> Self {
        let (namespace, key) = (namespace.to_owned(), key.to_owned());
        Self::OtherShape { namespace, key, line: error.line(), column: error.column() }
    }

    /// Whether a required document is missing: another caller may have deleted it meanwhile.
    pub(super) fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Damaged { defect: Defect::Missing, .. } | Self::Store(Error::Evicted { .. })
        )
    }
}
