//! The parts of a session, and errors.

use core::fmt;
use std::io;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::objects;
use crate::worker::Failure;
use runlog::{Document, Error, Timestamp};

/// A part that is stored under an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// The session itself.
    Session,
    /// The artifacts of its tools.
    Artifacts,
    /// The compact trace of what happened.
    TraceEvents,
    /// Its runs, with their events.
    RunRecords,
    /// Its verification reports.
    VerificationReports,
    /// The tasks that it gave to other agents.
    SubagentTasks,
    /// The latest checkpoint from which the loop of a run can continue; its id is that of the run.
    LoopCheckpoint,
}

impl Part {
    /// The parts that are deleted with a session.
    pub(super) const OF_SESSION: [Self; 6] = [
        Self::Session,
        Self::Artifacts,
        Self::TraceEvents,
        Self::RunRecords,
        Self::VerificationReports,
        Self::SubagentTasks,
    ];

    /// The name, in the store and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Artifacts => "artifacts",
            Self::TraceEvents => "trace_events",
            Self::RunRecords => "run_records",
            Self::VerificationReports => "verification_reports",
            Self::SubagentTasks => "subagent_tasks",
            Self::LoopCheckpoint => "loop_checkpoint",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a call of a session store failed. It never shows stored data.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SessionError {
    /// The stored part cannot be read as the requested type. The caller should read its bytes with
    /// `raw`, and save the part again.
    Unreadable {
        /// The id of the session, or of the run.
        id: String,
        /// Which part.
        part: Part,
        /// Whether it is JSON at all.
        is_json: bool,
        /// The line where it goes wrong, from 1.
        line: usize,
        /// The column, from 1; 0 at the end of a line.
        column: usize,
    },
    /// A newer program wrote the stored part. The caller should update the program, or read the
    /// bytes with `raw`.
    NewerSchema {
        /// The id of the session, or of the run.
        id: String,
        /// Which part.
        part: Part,
        /// The schema version that it has.
        found: u64,
        /// The newest that the types know.
        known: u32,
    },
    /// Another caller has the writer lease of this session. Nothing was written. The caller should
    /// wait, or leave the session to the holder.
    LeaseHeld {
        /// The session.
        session: String,
        /// Who has it.
        holder: String,
        /// When it expires, by the clock of the store.
        until: Timestamp,
    },
    /// The caller no longer has the lease: another caller took it, or wrote after it expired.
    /// Nothing was written. The caller must stop writing this session, and may acquire the lease
    /// again.
    Fenced {
        /// The session.
        session: String,
        /// The epoch of the caller's lease.
        epoch: u64,
        /// The epoch of the current lease; `None` if there is none.
        found: Option<u64>,
    },
    /// The write was for another session than that of the lease. Nothing was written. The caller
    /// should write it through the store itself, or with a lease of that session.
    OtherSession {
        /// The session that was to be written.
        session: String,
        /// The session of the lease.
        leased: String,
    },
    /// This store does not support the call. Nothing was written. The caller should check
    /// `capabilities`.
    Unsupported {
        /// The call.
        what: &'static str,
    },
    /// Code of the caller's types panicked during the call. A write was done as a whole, or not at
    /// all.
    NoAnswer,
    /// The operating system refused the thread for asynchronous calls. Nothing was done. The caller
    /// should check the limits of the process, and call again.
    NoThread {
        /// The error of the system.
        source: Arc<io::Error>,
    },
    /// The store failed. After a failed write, the caller should load the part once the store works
    /// again.
    Store(Error),
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { id, part, is_json, line, column } => {
                let what = if *is_json { "JSON of another shape" } else { "not JSON" };
                write!(f, "{part} of {id:?} is {what} (line {line}, column {column})")
            }
            Self::NewerSchema { id, part, found, known } => write!(
                f,
                "{part} of {id:?} has schema version {found}, this program knows up to {known}"
            ),
            Self::LeaseHeld { session, holder, until } => {
                write!(f, "{holder:?} has the writer lease of {session:?} until {until} ns")
            }
            Self::Fenced { session, epoch, found } => {
                write!(f, "the writer lease of {session:?} with epoch {epoch} has ended: ")?;
                match found {
                    Some(found) => write!(f, "the current one has epoch {found}"),
                    None => f.write_str("there is no current one"),
                }
            }
            Self::OtherSession { session, leased } => {
                write!(f, "the writer lease is for {leased:?}, not for {session:?}")
            }
            Self::Unsupported { what } => write!(f, "this store cannot {what}; see `capabilities`"),
            Self::NoAnswer => f.write_str("the call ended without a result, since it panicked"),
            Self::NoThread { source } => write!(f, "no thread for the call: {source}; call again"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for SessionError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::NoThread { source } => Some(&**source),
            _ => None,
        }
    }
}

impl From<Error> for SessionError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

impl Failure for SessionError {
    fn no_answer() -> Self {
        Self::NoAnswer
    }

    fn no_thread(source: io::Error) -> Self {
        Self::NoThread { source: Arc::new(source) }
    }
}

/// The fields that are checked before a document is read as its type.
#[derive(Deserialize)]
struct Schema {
    schema_version: Option<u64>,
}

/// Reads a document as its type, unless it is of a newer schema than `known`.
pub(super) fn read<D: DeserializeOwned>(
    document: &Document,
    (id, part): (&str, Part),
    known: Option<u32>,
) -> Result<D, SessionError> {
    let bytes = document.payload();
    if let Some(known) = known {
        check_schema(bytes, (id, part), known)?;
    }
    serde_json::from_slice(bytes).map_err(|error| SessionError::Unreadable {
        id: id.to_owned(),
        part,
        is_json: is_json(bytes),
        line: error.line(),
        column: error.column(),
    })
}

/// Refuses a schema that is newer than the known one, since it could not be read. For types that
/// interpret no schema, `known` is the largest number.
pub(super) fn check_schema(
    bytes: &[u8],
    (id, part): (&str, Part),
    known: u32,
) -> Result<(), SessionError> {
    match schema_of(bytes).filter(|found| known < u32::MAX && *found > known.into()) {
        Some(found) => Err(SessionError::NewerSchema { id: id.to_owned(), part, found, known }),
        None => Ok(()),
    }
}

/// The `schema_version` of an object, if it has one.
fn schema_of(bytes: &[u8]) -> Option<u64> {
    objects::from_slice::<Schema>(bytes).ok()?.schema_version
}

fn is_json(bytes: &[u8]) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    IgnoredAny::deserialize(&mut reader).is_ok() && reader.end().is_ok()
}
