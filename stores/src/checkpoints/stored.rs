//! A checkpoint as it is stored.
//!
//! | key | what |
//! |---|---|
//! | `c/` 16 digits | the checkpoint with this ordinal; they count down, so the newest is first |
//! | `i/` id | the ordinal of the checkpoint with this id |
//! | `p/` name | a part of a state |
//!
//! The document of a checkpoint is a line of JSON with everything but the state, and behind it the
//! rest of the state, which for a short state is all of it:
//!
//! ```text
//! {"schema_version":1,"body":{"id":...,"step":7,...},"state":{"len":2,"crc32":...,"parts":[]}}
//! {}
//! ```

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::checkpoint::Checkpoint;
use super::error::{CheckpointError, Defect};
use super::id::CheckpointId;
use super::json::{SCHEMA_VERSION, json, read_json};
use super::key::{TenantId, ThreadKey};
use super::parts::Layout;

use runlog::{Document, Result};

/// The prefix of the keys of checkpoints.
pub(super) const CHECKPOINTS: &str = "c/";

/// The key of the checkpoint with an ordinal.
pub(super) fn checkpoint_key(ordinal: u64) -> String {
    format!("{CHECKPOINTS}{:016x}", u64::MAX - ordinal)
}

/// The ordinal of the checkpoint with a key.
pub(super) fn ordinal_of(key: &str) -> Option<u64> {
    let digits = key.strip_prefix(CHECKPOINTS)?;
    let ordinal = u64::MAX - u64::from_str_radix(digits, 16).ok()?;
    (checkpoint_key(ordinal) == key).then_some(ordinal)
}

/// The key of the document that maps an id to its ordinal.
pub(super) fn id_key(id: &CheckpointId) -> String {
    format!("i/{id}")
}

/// All of a checkpoint but its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) id: CheckpointId,
    pub(super) tenant_id: TenantId,
    pub(super) thread_id: String,
    pub(super) parent_id: Option<CheckpointId>,
    pub(super) step: usize,
    pub(super) next_node: Option<String>,
    pub(super) timestamp: DateTime<Utc>,
}

impl Body {
    pub(super) fn of<S>(checkpoint: &Checkpoint<S>) -> Self {
        Self {
            id: checkpoint.id,
            tenant_id: checkpoint.tenant_id.clone(),
            thread_id: checkpoint.thread_id.clone(),
            parent_id: checkpoint.parent_id,
            step: checkpoint.step,
            next_node: checkpoint.next_node.clone(),
            timestamp: checkpoint.timestamp,
        }
    }

    pub(super) fn with_state<S>(self, state: S) -> Checkpoint<S> {
        Checkpoint {
            id: self.id,
            tenant_id: self.tenant_id,
            thread_id: self.thread_id,
            parent_id: self.parent_id,
            step: self.step,
            state,
            next_node: self.next_node,
            timestamp: self.timestamp,
        }
    }

    /// Whether this is the body of a checkpoint of that thread.
    fn is_of(&self, key: &ThreadKey) -> bool {
        self.tenant_id == *key.tenant_id() && self.thread_id == key.thread_id()
    }
}

/// The first line of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Line {
    schema_version: u32,
    body: Body,
    state: Layout,
}

/// A checkpoint that was read, without its state.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) body: Body,
    pub(super) layout: Layout,
    /// Behind the first line.
    pub(super) rest: Vec<u8>,
}

/// The document of a checkpoint.
pub(super) fn encode(body: &Body, layout: &Layout, rest: &[u8]) -> Result<Vec<u8>> {
    let (body, state) = (body.clone(), layout.clone());
    let mut document = json(&Line { schema_version: SCHEMA_VERSION, body, state })?;
    document.push(b'\n');
    document.extend_from_slice(rest);
    Ok(document)
}

/// Reads the document of a checkpoint of a thread.
pub(super) fn decode(
    document: &Document,
    thread: &ThreadKey,
    namespace: &str,
    key: &str,
) -> Result<Stored, CheckpointError> {
    let bytes = document.payload();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, behind) = bytes.split_at(end);
    let line: Line = read_json(line, namespace, key)?;
    let Some((_, rest)) = behind.split_first() else {
        return Err(CheckpointError::damaged(namespace, key, Defect::Shape));
    };
    if !line.body.is_of(thread) {
        return Err(CheckpointError::damaged(namespace, key, Defect::Foreign));
    }
    Ok(Stored { body: line.body, layout: line.state, rest: rest.to_vec() })
}

/// Maps an id to its checkpoint.
#[derive(Serialize, Deserialize)]
struct Place {
    schema_version: u32,
    ordinal: u64,
}

/// The document that maps an id to an ordinal.
pub(super) fn encode_place(ordinal: u64) -> Result<Vec<u8>> {
    json(&Place { schema_version: SCHEMA_VERSION, ordinal })
}

/// Reads the document that maps an id to an ordinal.
pub(super) fn decode_place(
    document: &Document,
    namespace: &str,
    key: &str,
) -> Result<u64, CheckpointError> {
    let place: Place = read_json(document.payload(), namespace, key)?;
    Ok(place.ordinal)
}
