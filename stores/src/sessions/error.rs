//! The parts of a session, and what can go wrong with them.

use core::fmt;
use std::io;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::objects;
use crate::worker::Failure;
use runlog::{Document, Error, Timestamp};

/// What is stored under an id, each by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// The session itself.
    Session,
    /// What its tools left.
    Artifacts,
    /// The compact trace of what happened.
    TraceEvents,
    /// Its runs, with their events.
    RunRecords,
    /// What was verified.
    VerificationReports,
    /// The tasks that it gave to others.
    SubagentTasks,
    /// The latest place from which the loop of a run can go on; its id is that of the run.
    LoopCheckpoint,
}

impl Part {
    /// The parts that go with a session.
    pub(super) const OF_SESSION: [Self; 6] = [
        Self::Session,
        Self::Artifacts,
        Self::TraceEvents,
        Self::RunRecords,
        Self::VerificationReports,
        Self::SubagentTasks,
    ];

    /// The name, as it is stored and as messages have it.
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

/// Why a call of a session store failed. Never shows what is stored.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum SessionError {
    /// What is stored is not of the type that was asked for. The caller should read its bytes with
    /// `raw`, and save it anew.
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
    /// What is stored was written by a newer program. The caller should update the program, or
    /// read its bytes with `raw`.
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
    /// Somebody has the writer lease of this session. Nothing was written. The caller should wait,
    /// or leave the session to that one.
    LeaseHeld {
        /// The session.
        session: String,
        /// Who has it.
        holder: String,
        /// When it runs out, by the clock of the store.
        until: Timestamp,
    },
    /// The lease is no longer the caller's: somebody else took it, or wrote after it ran out.
    /// Nothing was written. The caller must stop writing this session, and may acquire the lease
    /// again.
    Fenced {
        /// The session.
        session: String,
        /// The epoch of the caller's lease.
        epoch: u64,
        /// The epoch of the lease that there is now; none if no writer has one.
        found: Option<u64>,
    },
    /// A write of another session than that of the lease. Nothing was written. The caller should
    /// write it through the store itself, or with a lease of its own.
    OtherSession {
        /// The session that was to be written.
        session: String,
        /// The session of the lease.
        leased: String,
    },
    /// This store does not do that. Nothing was written. The caller should look at `capabilities`.
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// Code of the caller's types panicked in the middle of the call. A write was done as a whole,
    /// or not at all.
    NoAnswer,
    /// The operating system refused the thread that asynchronous calls are done by. Nothing was
    /// done. The caller should look at the limits of the process, and call again.
    NoThread {
        /// What it said.
        source: Arc<io::Error>,
    },
    /// The store failed. After a failed write, what is stored can be asked once the store works
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
                write!(f, "the writer lease of {session:?} with epoch {epoch} is over: ")?;
                match found {
                    Some(found) => write!(f, "now there is one with epoch {found}"),
                    None => f.write_str("now there is none"),
                }
            }
            Self::OtherSession { session, leased } => {
                write!(f, "the writer lease is of {leased:?}, and not of {session:?}")
            }
            Self::Unsupported { what } => write!(f, "this store does not {what}"),
            Self::NoAnswer => f.write_str("the call ended without an answer"),
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

/// What is looked at before a document is read as its type.
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

/// Refuses what is newer than what is known: it would not be read. For types that interpret no
/// schema nothing is too new, and `known` is the largest number.
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
