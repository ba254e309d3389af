//! The session store of runlog behind the real `SessionStore` of a3s-code-core 3.3, which is the
//! version with 20 methods. What later versions added is in `conformance/a3s`.

use a3s_code_core::loop_checkpoint::{LOOP_CHECKPOINT_SCHEMA_VERSION, LoopCheckpoint};
use a3s_code_core::run::RunRecord;
use a3s_code_core::store::{SessionData, SessionStore};
use a3s_code_core::subagent_task_tracker::SubagentTaskSnapshot;
use a3s_code_core::tools::{ArtifactStore, ArtifactStoreLimits, ToolArtifact};
use a3s_code_core::trace::TraceEvent;
use a3s_code_core::verification::VerificationReport;
use anyhow::Result;
use async_trait::async_trait;
use runlog::RunLog;
use runlog_stores::sessions::{EngineSessionStore, SessionStore as _, SessionTypes};

/// The types of a3s, as the store sees them. Artifacts are stored in the order in which they came.
#[derive(Debug, Clone, Copy)]
pub struct A3s;

impl SessionTypes for A3s {
    type Session = SessionData;
    type Artifacts = Vec<ToolArtifact>;
    type TraceEvent = TraceEvent;
    type RunRecord = RunRecord;
    type VerificationReport = VerificationReport;
    type SubagentTask = SubagentTaskSnapshot;
    type LoopCheckpoint = LoopCheckpoint;

    const LOOP_CHECKPOINT_SCHEMA: u32 = LOOP_CHECKPOINT_SCHEMA_VERSION;

    fn session_id(session: &SessionData) -> &str {
        &session.id
    }
}

/// A `SessionStore` of a3s-code-core on a [`RunLog`]. Calls never hold up the executor.
#[derive(Debug, Clone)]
pub struct A3sSessionStore(EngineSessionStore<A3s>);

impl A3sSessionStore {
    /// The sessions of a store.
    pub fn new(log: &RunLog) -> Self {
        Self(EngineSessionStore::new(log))
    }
}

/// A store with room for all of them.
fn store_of(artifacts: Vec<ToolArtifact>) -> ArtifactStore {
    let usual = ArtifactStoreLimits::default();
    let bytes: usize = artifacts.iter().map(|artifact| artifact.content.len()).sum();
    let store = ArtifactStore::with_limits(ArtifactStoreLimits {
        max_artifacts: usual.max_artifacts.max(artifacts.len()),
        max_bytes: usual.max_bytes.max(bytes),
    });
    artifacts.into_iter().for_each(|artifact| store.put(artifact));
    store
}

#[async_trait]
impl SessionStore for A3sSessionStore {
    async fn save(&self, session: &SessionData) -> Result<()> {
        Ok(self.0.save(session).await?)
    }

    async fn load(&self, id: &str) -> Result<Option<SessionData>> {
        Ok(self.0.load(id).await?)
    }

    async fn delete(&self, id: &str) -> Result<()> {
        Ok(self.0.delete(id).await?)
    }

    async fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.list().await?)
    }

    async fn exists(&self, id: &str) -> Result<bool> {
        Ok(self.0.exists(id).await?)
    }

    async fn save_artifacts(&self, id: &str, artifacts: &ArtifactStore) -> Result<()> {
        Ok(self.0.save_artifacts(id, &artifacts.artifacts()).await?)
    }

    async fn load_artifacts(&self, id: &str) -> Result<Option<ArtifactStore>> {
        Ok(self.0.load_artifacts(id).await?.map(store_of))
    }

    async fn save_trace_events(&self, id: &str, events: &[TraceEvent]) -> Result<()> {
        Ok(self.0.save_trace_events(id, events).await?)
    }

    async fn load_trace_events(&self, id: &str) -> Result<Option<Vec<TraceEvent>>> {
        Ok(self.0.load_trace_events(id).await?)
    }

    async fn save_run_records(&self, id: &str, records: &[RunRecord]) -> Result<()> {
        Ok(self.0.save_run_records(id, records).await?)
    }

    async fn load_run_records(&self, id: &str) -> Result<Option<Vec<RunRecord>>> {
        Ok(self.0.load_run_records(id).await?)
    }

    async fn save_verification_reports(
        &self,
        id: &str,
        reports: &[VerificationReport],
    ) -> Result<()> {
        Ok(self.0.save_verification_reports(id, reports).await?)
    }

    async fn load_verification_reports(&self, id: &str) -> Result<Option<Vec<VerificationReport>>> {
        Ok(self.0.load_verification_reports(id).await?)
    }

    async fn save_subagent_tasks(&self, id: &str, tasks: &[SubagentTaskSnapshot]) -> Result<()> {
        Ok(self.0.save_subagent_tasks(id, tasks).await?)
    }

    async fn load_subagent_tasks(&self, id: &str) -> Result<Option<Vec<SubagentTaskSnapshot>>> {
        Ok(self.0.load_subagent_tasks(id).await?)
    }

    async fn save_loop_checkpoint(&self, run_id: &str, checkpoint: &LoopCheckpoint) -> Result<()> {
        Ok(self.0.save_loop_checkpoint(run_id, checkpoint).await?)
    }

    async fn load_loop_checkpoint(&self, run_id: &str) -> Result<Option<LoopCheckpoint>> {
        Ok(self.0.load_loop_checkpoint(run_id).await?)
    }

    async fn delete_loop_checkpoint(&self, run_id: &str) -> Result<()> {
        Ok(self.0.delete_loop_checkpoint(run_id).await?)
    }

    async fn health_check(&self) -> Result<()> {
        Ok(self.0.health_check().await?)
    }

    fn backend_name(&self) -> &str {
        self.0.backend_name()
    }
}
