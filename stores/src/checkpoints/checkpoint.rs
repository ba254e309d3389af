//! A checkpoint, as callers see it.

use core::fmt;

use chrono::{DateTime, Utc};

use super::id::CheckpointId;
use super::key::{TenantId, ThreadKey};
use runlog::Result;

/// A snapshot of the progress of a graph in a thread.
///
/// [`Checkpointer::checkpoint`](super::Checkpointer::checkpoint) makes one with a fresh id and the
/// current time; [`Checkpoint::from_parts`] makes one from known parts.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint<S> {
    /// Its id, unique within its thread.
    pub id: CheckpointId,
    /// The tenant whose thread it is.
    pub tenant_id: TenantId,
    /// The thread.
    pub thread_id: String,
    /// The checkpoint that it branched off, if any.
    pub parent_id: Option<CheckpointId>,
    /// The step within the thread, as the caller counts it. The order of a thread does not depend
    /// on it.
    pub step: usize,
    /// The state after that step.
    pub state: S,
    /// The node that runs next; `None` if the graph has ended.
    pub next_node: Option<String>,
    /// When it was made.
    pub timestamp: DateTime<Utc>,
}

impl<S> Checkpoint<S> {
    /// A checkpoint with all of its parts, for example one that was stored elsewhere.
    #[must_use]
    pub fn from_parts(
        id: CheckpointId,
        key: &ThreadKey,
        parent_id: Option<CheckpointId>,
        step: usize,
        state: S,
        next_node: Option<String>,
        timestamp: DateTime<Utc>,
    ) -> Self {
        let (tenant_id, thread_id) = (key.tenant_id().clone(), key.thread_id().to_owned());
        Self { id, tenant_id, thread_id, parent_id, step, state, next_node, timestamp }
    }

    /// The same with a parent.
    #[must_use]
    pub fn with_parent(mut self, parent_id: CheckpointId) -> Self {
        self.parent_id = Some(parent_id);
        self
    }

    /// The thread and its tenant.
    ///
    /// # Errors
    /// [`runlog::Error::InvalidArgument`] if the thread's id was set to an empty text.
    pub fn key(&self) -> Result<ThreadKey> {
        ThreadKey::new(self.tenant_id.clone(), self.thread_id.clone())
    }
}

impl<S> fmt::Debug for Checkpoint<S> {
    /// Shows everything but the state: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("id", &self.id)
            .field("tenant_id", &self.tenant_id)
            .field("thread_id", &self.thread_id)
            .field("parent_id", &self.parent_id)
            .field("step", &self.step)
            .field("next_node", &self.next_node)
            .field("timestamp", &self.timestamp)
            .finish_non_exhaustive()
    }
}
