//! [`EntelixCheckpointer`] and [`EntelixSessionLog`]: where graphs of entelix put their
//! checkpoints, and sessions their events.
//!
//! Calls never hold up the executor: a thread of the store does what they ask for. What they wrote
//! survives power loss once they are ready. A future that is dropped half-way leaves a call that
//! was done as a whole or not at all.

use async_trait::async_trait;
use entelix_core::{Error, Result};
use entelix_graph as theirs;
use entelix_session::GraphEvent;
use runlog::RunLog;
use runlog_stores::checkpoints as ours;
use runlog_stores::checkpoints::{AsyncCheckpointer, AsyncSessionLog, CheckpointError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

/// A `Checkpointer` of entelix for any state that serde knows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EntelixCheckpointer<S> {
    store: AsyncCheckpointer<S>,
}

/// A `SessionLog` of entelix. Cheap to clone.
#[derive(Debug, Clone)]
pub struct EntelixSessionLog {
    log: AsyncSessionLog<GraphEvent>,
}

impl<S: 'static> EntelixCheckpointer<S> {
    /// The checkpoints of a store.
    pub fn new(log: &RunLog) -> Self {
        Self { store: AsyncCheckpointer::new(ours::Checkpointer::new(log)) }
    }

    /// What it speaks to: for all that the trait lacks, such as pruning and deleting.
    pub fn store(&self) -> &AsyncCheckpointer<S> {
        &self.store
    }
}

impl EntelixSessionLog {
    /// The session log of a store.
    pub fn new(log: &RunLog) -> Self {
        Self { log: AsyncSessionLog::new(ours::SessionLog::new(log)) }
    }

    /// What it speaks to.
    pub fn log(&self) -> &AsyncSessionLog<GraphEvent> {
        &self.log
    }
}

/// What is the caller's fault is an invalid request; what is not stored as it should be, or could
/// not be stored, says so with all of its causes.
fn error(error: CheckpointError) -> Error {
    match error {
        CheckpointError::UnknownParent { .. }
        | CheckpointError::Exists { .. }
        | CheckpointError::Store(
            runlog::Error::InvalidId { .. }
            | runlog::Error::InvalidArgument { .. }
            | runlog::Error::TooLarge { .. },
        ) => Error::invalid_request(error.to_string()),
        error => Error::provider_network_from(error),
    }
}

fn our_key(key: &entelix_core::ThreadKey) -> Result<ours::ThreadKey> {
    let tenant = ours::TenantId::new(key.tenant_id().as_str());
    let key = tenant.and_then(|tenant| ours::ThreadKey::new(tenant, key.thread_id()));
    key.map_err(|refused| error(refused.into()))
}

fn our_id(id: &theirs::CheckpointId) -> ours::CheckpointId {
    ours::CheckpointId::from_bytes(*id.as_uuid().as_bytes())
}

fn their_id(id: ours::CheckpointId) -> theirs::CheckpointId {
    theirs::CheckpointId::from_uuid(Uuid::from_bytes(*id.as_bytes()))
}

/// A checkpoint of a thread, whose key the caller has.
fn their_checkpoint<S: Clone + Send + Sync + 'static>(
    key: &entelix_core::ThreadKey,
    found: ours::Checkpoint<S>,
) -> theirs::Checkpoint<S> {
    theirs::Checkpoint::from_parts(
        their_id(found.id),
        key,
        found.parent_id.map(their_id),
        found.step,
        found.state,
        found.next_node,
        found.timestamp,
    )
}

#[async_trait]
impl<S> theirs::Checkpointer<S> for EntelixCheckpointer<S>
where
    S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static,
{
    async fn put(&self, checkpoint: theirs::Checkpoint<S>) -> Result<()> {
        let checkpoint = ours::Checkpoint::from_parts(
            our_id(&checkpoint.id),
            &our_key(&checkpoint.key())?,
            checkpoint.parent_id.as_ref().map(our_id),
            checkpoint.step,
            checkpoint.state,
            checkpoint.next_node,
            checkpoint.timestamp,
        );
        self.store.put(checkpoint).await.map_err(error)
    }

    async fn get_latest(
        &self,
        key: &entelix_core::ThreadKey,
    ) -> Result<Option<theirs::Checkpoint<S>>> {
        let found = self.store.get_latest(&our_key(key)?).await.map_err(error)?;
        Ok(found.map(|found| their_checkpoint(key, found)))
    }

    async fn get_by_id(
        &self,
        key: &entelix_core::ThreadKey,
        id: &theirs::CheckpointId,
    ) -> Result<Option<theirs::Checkpoint<S>>> {
        let found = self.store.get_by_id(&our_key(key)?, &our_id(id)).await.map_err(error)?;
        Ok(found.map(|found| their_checkpoint(key, found)))
    }

    async fn list_history(
        &self,
        key: &entelix_core::ThreadKey,
        limit: usize,
    ) -> Result<Vec<theirs::Checkpoint<S>>> {
        let found = self.store.list_history(&our_key(key)?, limit).await.map_err(error)?;
        Ok(found.into_iter().map(|found| their_checkpoint(key, found)).collect())
    }

    async fn update_state(
        &self,
        key: &entelix_core::ThreadKey,
        parent_id: &theirs::CheckpointId,
        new_state: S,
    ) -> Result<theirs::CheckpointId> {
        let parent = our_id(parent_id);
        let branch = self.store.update_state(&our_key(key)?, &parent, new_state).await;
        branch.map(their_id).map_err(error)
    }
}

#[async_trait]
impl entelix_session::SessionLog for EntelixSessionLog {
    async fn append(&self, key: &entelix_core::ThreadKey, events: &[GraphEvent]) -> Result<u64> {
        self.log.append(&our_key(key)?, events).await.map_err(error)
    }

    async fn load_since(
        &self,
        key: &entelix_core::ThreadKey,
        cursor: u64,
    ) -> Result<Vec<GraphEvent>> {
        self.log.load_since(&our_key(key)?, cursor).await.map_err(error)
    }

    async fn archive_before(&self, key: &entelix_core::ThreadKey, watermark: u64) -> Result<usize> {
        let archived = self.log.archive_before(&our_key(key)?, watermark).await.map_err(error)?;
        Ok(usize::try_from(archived).unwrap_or(usize::MAX))
    }
}
