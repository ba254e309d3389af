//! Why a stored record is not a [`TrajectoryRecord`].

use core::fmt;

use serde::Deserialize;
use serde_json::Value;

use super::payload::{KINDS, SCHEMA_VERSION, TrajectoryRecord};
use crate::objects;
use runlog::Seq;

/// A record that cannot be read as a [`TrajectoryRecord`].
/// [`StoredRecord::bytes`](super::StoredRecord::bytes) returns its bytes as they were recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// The sequence of the record in its run in the engine.
    pub place: Seq,
    /// What is wrong.
    pub why: Why,
}

/// The fault of a record. It shows nothing of the record except the name of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The record was written by a newer version. The caller should update the program.
    NewerSchema {
        /// The version of the record.
        found: u64,
        /// The newest known version.
        known: u32,
    },
    /// The kind of the payload is unknown. The caller should update the program, or read the bytes.
    UnknownKind {
        /// The kind; the first 64 characters of a long one.
        kind: String,
    },
    /// The bytes are not JSON. The caller should read the bytes.
    NotJson {
        /// The line of the record where it goes wrong, from 1.
        line: usize,
        /// The column, from 1; 0 at the end of a line.
        column: usize,
    },
    /// The bytes are JSON, but not of the shape of their version and kind. The caller should read
    /// the bytes.
    OtherShape {
        /// The line of the record where it goes wrong, from 1.
        line: usize,
        /// The column, from 1; 0 at the end of a line.
        column: usize,
    },
}

/// Reads a record, or returns why it cannot.
pub(super) fn read(bytes: &[u8]) -> Result<TrajectoryRecord, Why> {
    let error = match objects::from_slice::<TrajectoryRecord>(bytes) {
        Ok(record) if record.schema_version <= SCHEMA_VERSION => return Ok(record),
        Ok(record) => return Err(newer(record.schema_version.into())),
        Err(error) => error,
    };
    let (line, column) = (error.line(), error.column());
    let value: Value = match serde_json::from_slice(bytes) {
        Ok(value) => value,
        // JSON that is nested too deeply is JSON too; no version of the types has such a shape.
        Err(error) if is_json(bytes) => {
            return Err(Why::OtherShape { line: error.line(), column: error.column() });
        }
        Err(error) => return Err(Why::NotJson { line: error.line(), column: error.column() }),
    };
    let version = value.get("schema_version").and_then(Value::as_u64);
    if let Some(found) = version.filter(|found| *found > SCHEMA_VERSION.into()) {
        return Err(newer(found));
    }
    let kind = value.get("payload").and_then(|payload| payload.get("kind")).and_then(Value::as_str);
    match kind {
        Some(kind) if !KINDS.contains(&kind) => {
            Err(Why::UnknownKind { kind: kind.chars().take(64).collect() })
        }
        _ => Err(Why::OtherShape { line, column }),
    }
}

fn newer(found: u64) -> Why {
    Why::NewerSchema { found, known: SCHEMA_VERSION }
}

fn is_json(bytes: &[u8]) -> bool {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    serde::de::IgnoredAny::deserialize(&mut reader).is_ok() && reader.end().is_ok()
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {} of the run ", self.place)?;
        match &self.why {
            Why::NewerSchema { found, known } => {
                write!(f, "has schema version {found}, this program knows up to {known}")
            }
            Why::UnknownKind { kind } => write!(f, "has the unknown kind {kind:?}"),
            Why::NotJson { line, column } => {
                write!(f, "is not JSON (line {line}, column {column})")
            }
            Why::OtherShape { line, column } => {
                write!(f, "is JSON of another shape (line {line}, column {column})")
            }
        }
    }
}

impl std::error::Error for Unreadable {}
