//! The session store of runlog behind the real `SessionStore` of a3s-code-core 9.1.
//!
//! | a3s | here |
//! |---|---|
//! | a snapshot | the parts of a session, all at once |
//! | its `session` and `session_review` | the session |
//! | its `artifacts` and `retained_artifact_uris` | the artifacts |
//! | the digest of a snapshot's content | is compared, and the version of the session guards it |
//! | a loop checkpoint | the same |
//! | a workflow checkpoint | the same, in a set of its own |
//!
//! Not behind this trait: the lease of a whole store, since leases are of sessions here; and
//! `watch_commits`, whose type only the crate itself can make. `EngineSessionStore` has both in its
//! own way, and [`A3sSessionStore::sessions`] gives it. `capabilities` says what there is.

use a3s_code_core::loop_checkpoint::LoopCheckpoint;
use a3s_code_core::orchestration::{WORKFLOW_CHECKPOINT_SCHEMA_VERSION, WorkflowCheckpoint};
use a3s_code_core::run::RunRecord;
use a3s_code_core::session_review::SessionReviewStoreV1;
use a3s_code_core::store::{
    SESSION_SNAPSHOT_SCHEMA_VERSION, SessionData, SessionSnapshotV1, SessionStore,
    SessionStoreCapabilities, snapshot_content_digest,
};
use a3s_code_core::subagent_task_tracker::SubagentTaskSnapshot;
use a3s_code_core::tools::{ArtifactStore, ArtifactStoreLimits, ToolArtifact};
use a3s_code_core::trace::TraceEvent;
use a3s_code_core::verification::VerificationReport;
use anyhow::{Result, ensure};
use async_trait::async_trait;
use runlog::RunLog;
use runlog_stores::sessions::{
    EngineSessionStore, SessionSnapshot, SessionStore as _, SessionTypes,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The newest schema of loop checkpoints that a3s-code-core 9.1 loads.
const LOOP_CHECKPOINT_SCHEMA: u32 = 2;

/// A session as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StoredSession {
    schema_version: u32,
    session: SessionData,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session_review: Option<SessionReviewStoreV1>,
}

impl StoredSession {
    fn new(session: SessionData, session_review: Option<SessionReviewStoreV1>) -> Self {
        let is_bound = session.durable_source.is_some();
        let schema_version = if is_bound { SESSION_SNAPSHOT_SCHEMA_VERSION } else { 1 };
        Self { schema_version, session, session_review }
    }
}

/// The artifacts of a session as they are stored: in the order in which they came, and those that
/// must not go.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StoredArtifacts {
    artifacts: Vec<ToolArtifact>,
    #[serde(default)]
    retained: Vec<String>,
}

impl StoredArtifacts {
    fn of(store: &ArtifactStore) -> Self {
        let mut retained: Vec<String> = store.retained_uris().into_iter().collect();
        retained.sort();
        Self { artifacts: store.artifacts(), retained }
    }

    /// A store with room for all of them.
    fn into_store(self) -> ArtifactStore {
        let usual = ArtifactStoreLimits::default();
        let bytes: usize = self.artifacts.iter().map(|artifact| artifact.content.len()).sum();
        let store = ArtifactStore::with_limits(ArtifactStoreLimits {
            max_artifacts: usual.max_artifacts.max(self.artifacts.len()),
            max_bytes: usual.max_bytes.max(bytes),
        });
        store.set_retained_uris(self.retained);
        self.artifacts.into_iter().for_each(|artifact| store.put(artifact));
        store
    }
}

/// The types of a3s, as the store sees them.
#[derive(Debug, Clone, Copy)]
pub struct A3s;

impl SessionTypes for A3s {
    type Session = StoredSession;
    type Artifacts = StoredArtifacts;
    type TraceEvent = TraceEvent;
    type RunRecord = RunRecord;
    type VerificationReport = VerificationReport;
    type SubagentTask = SubagentTaskSnapshot;
    type LoopCheckpoint = LoopCheckpoint;

    const SESSION_SCHEMA: u32 = SESSION_SNAPSHOT_SCHEMA_VERSION;
    const LOOP_CHECKPOINT_SCHEMA: u32 = LOOP_CHECKPOINT_SCHEMA;

    fn session_id(stored: &StoredSession) -> &str {
        &stored.session.id
    }
}

/// Workflows, of which there is nothing but checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Workflows;

impl SessionTypes for Workflows {
    type Session = Value;
    type Artifacts = Value;
    type TraceEvent = Value;
    type RunRecord = Value;
    type VerificationReport = Value;
    type SubagentTask = Value;
    type LoopCheckpoint = WorkflowCheckpoint;

    const LOOP_CHECKPOINT_SCHEMA: u32 = WORKFLOW_CHECKPOINT_SCHEMA_VERSION;

    fn session_id(_session: &Value) -> &'static str {
        ""
    }
}

/// A `SessionStore` of a3s-code-core on a [`RunLog`]. Calls never hold up the executor.
#[derive(Debug, Clone)]
pub struct A3sSessionStore {
    sessions: EngineSessionStore<A3s>,
    workflows: EngineSessionStore<Workflows>,
}

impl A3sSessionStore {
    /// The sessions of a store.
    pub fn new(log: &RunLog) -> Self {
        let sessions = EngineSessionStore::new(log);
        Self { sessions, workflows: EngineSessionStore::named(log, "a3s workflows") }
    }

    /// What it speaks to: for leases of sessions, and for watching commits.
    pub fn sessions(&self) -> &EngineSessionStore<A3s> {
        &self.sessions
    }
}

fn to_ours(snapshot: &SessionSnapshotV1) -> SessionSnapshot<A3s> {
    let snapshot = snapshot.clone();
    SessionSnapshot {
        session: StoredSession::new(snapshot.session, snapshot.session_review),
        artifacts: Some(StoredArtifacts {
            artifacts: snapshot.artifacts,
            retained: snapshot.retained_artifact_uris,
        }),
        trace_events: Some(snapshot.trace_events),
        run_records: Some(snapshot.run_records),
        verification_reports: Some(snapshot.verification_reports),
        subagent_tasks: Some(snapshot.subagent_tasks),
    }
}

fn to_theirs(snapshot: SessionSnapshot<A3s>) -> SessionSnapshotV1 {
    let StoredArtifacts { artifacts, retained } = snapshot.artifacts.unwrap_or_default();
    SessionSnapshotV1 {
        schema_version: snapshot.session.schema_version,
        session: snapshot.session.session,
        artifacts,
        retained_artifact_uris: retained,
        trace_events: snapshot.trace_events.unwrap_or_default(),
        run_records: snapshot.run_records.unwrap_or_default(),
        verification_reports: snapshot.verification_reports.unwrap_or_default(),
        subagent_tasks: snapshot.subagent_tasks.unwrap_or_default(),
        session_review: snapshot.session.session_review,
    }
}

#[async_trait]
impl SessionStore for A3sSessionStore {
    /// Replaces the conversation, and leaves the findings of its review and all other parts.
    async fn save(&self, session: &SessionData) -> Result<()> {
        loop {
            let found = self.sessions.load(&session.id).await?;
            let is_bound = found.as_ref().is_some_and(|old| old.session.durable_source.is_some());
            ensure!(
                session.durable_source.is_none() && !is_bound,
                "a session that is bound to a durable source is saved as a snapshot"
            );
            if found.is_none_or(|found| found.session_review.is_none()) {
                return Ok(self.sessions.save(&StoredSession::new(session.clone(), None)).await?);
            }
            let Some(mut loaded) = self.sessions.load_snapshot(&session.id).await? else {
                continue;
            };
            let review = loaded.snapshot.session.session_review.take();
            loaded.snapshot.session = StoredSession::new(session.clone(), review);
            let digest = Some(loaded.digest.as_str());
            if self.sessions.save_snapshot_cas(&loaded.snapshot, digest).await? {
                return Ok(());
            }
        }
    }

    async fn load(&self, id: &str) -> Result<Option<SessionData>> {
        Ok(self.sessions.load(id).await?.map(|stored| stored.session))
    }

    async fn delete(&self, id: &str) -> Result<()> {
        Ok(self.sessions.delete(id).await?)
    }

    async fn list(&self) -> Result<Vec<String>> {
        Ok(self.sessions.list().await?)
    }

    async fn exists(&self, id: &str) -> Result<bool> {
        Ok(self.sessions.exists(id).await?)
    }

    async fn save_snapshot(&self, snapshot: &SessionSnapshotV1) -> Result<()> {
        snapshot.ensure_loadable()?;
        Ok(self.sessions.save_snapshot(&to_ours(snapshot)).await?)
    }

    async fn save_snapshot_cas(
        &self,
        snapshot: &SessionSnapshotV1,
        expected_current_digest: Option<&str>,
    ) -> Result<bool> {
        let Some(expected) = expected_current_digest else {
            self.save_snapshot(snapshot).await?;
            return Ok(true);
        };
        snapshot.ensure_loadable()?;
        let new = to_ours(snapshot);
        loop {
            let Some(now) = self.sessions.load_snapshot(&snapshot.session.id).await? else {
                return Ok(false);
            };
            if snapshot_content_digest(&to_theirs(now.snapshot))? != expected {
                return Ok(false);
            }
            // A writer in between makes it begin again: perhaps the content is the same.
            if self.sessions.save_snapshot_cas(&new, Some(&now.digest)).await? {
                return Ok(true);
            }
        }
    }

    async fn load_snapshot(&self, id: &str) -> Result<Option<SessionSnapshotV1>> {
        let Some(loaded) = self.sessions.load_snapshot(id).await? else { return Ok(None) };
        let snapshot = to_theirs(loaded.snapshot);
        snapshot.ensure_loadable()?;
        Ok(Some(snapshot))
    }

    fn capabilities(&self) -> SessionStoreCapabilities {
        let ours = self.sessions.capabilities();
        SessionStoreCapabilities {
            atomic_session_snapshots: ours.atomic_session_snapshots,
            aggregate_cas: ours.aggregate_cas,
            append_only_event_log: ours.append_only_event_log,
            // Not behind this trait: see the top.
            lease_fencing: false,
            encrypted_at_rest: ours.encrypted_at_rest,
            watch: false,
            reference_aware_artifact_gc: ours.reference_aware_artifact_gc,
        }
    }

    async fn save_artifacts(&self, id: &str, artifacts: &ArtifactStore) -> Result<()> {
        Ok(self.sessions.save_artifacts(id, &StoredArtifacts::of(artifacts)).await?)
    }

    async fn load_artifacts(&self, id: &str) -> Result<Option<ArtifactStore>> {
        Ok(self.sessions.load_artifacts(id).await?.map(StoredArtifacts::into_store))
    }

    async fn save_trace_events(&self, id: &str, events: &[TraceEvent]) -> Result<()> {
        Ok(self.sessions.save_trace_events(id, events).await?)
    }

    async fn load_trace_events(&self, id: &str) -> Result<Option<Vec<TraceEvent>>> {
        Ok(self.sessions.load_trace_events(id).await?)
    }

    async fn save_run_records(&self, id: &str, records: &[RunRecord]) -> Result<()> {
        Ok(self.sessions.save_run_records(id, records).await?)
    }

    async fn load_run_records(&self, id: &str) -> Result<Option<Vec<RunRecord>>> {
        Ok(self.sessions.load_run_records(id).await?)
    }

    async fn save_verification_reports(
        &self,
        id: &str,
        reports: &[VerificationReport],
    ) -> Result<()> {
        Ok(self.sessions.save_verification_reports(id, reports).await?)
    }

    async fn load_verification_reports(&self, id: &str) -> Result<Option<Vec<VerificationReport>>> {
        Ok(self.sessions.load_verification_reports(id).await?)
    }

    async fn save_subagent_tasks(&self, id: &str, tasks: &[SubagentTaskSnapshot]) -> Result<()> {
        Ok(self.sessions.save_subagent_tasks(id, tasks).await?)
    }

    async fn load_subagent_tasks(&self, id: &str) -> Result<Option<Vec<SubagentTaskSnapshot>>> {
        Ok(self.sessions.load_subagent_tasks(id).await?)
    }

    async fn save_loop_checkpoint(&self, run_id: &str, checkpoint: &LoopCheckpoint) -> Result<()> {
        checkpoint.ensure_addressed_by(run_id)?;
        Ok(self.sessions.save_loop_checkpoint(run_id, checkpoint).await?)
    }

    async fn load_loop_checkpoint(&self, run_id: &str) -> Result<Option<LoopCheckpoint>> {
        let Some(checkpoint) = self.sessions.load_loop_checkpoint(run_id).await? else {
            return Ok(None);
        };
        checkpoint.ensure_loadable()?;
        checkpoint.ensure_addressed_by(run_id)?;
        Ok(Some(checkpoint))
    }

    async fn delete_loop_checkpoint(&self, run_id: &str) -> Result<()> {
        Ok(self.sessions.delete_loop_checkpoint(run_id).await?)
    }

    async fn save_workflow_checkpoint(
        &self,
        workflow_id: &str,
        checkpoint: &WorkflowCheckpoint,
    ) -> Result<()> {
        ensure_of(checkpoint, workflow_id)?;
        Ok(self.workflows.save_loop_checkpoint(workflow_id, checkpoint).await?)
    }

    async fn load_workflow_checkpoint(
        &self,
        workflow_id: &str,
    ) -> Result<Option<WorkflowCheckpoint>> {
        let Some(checkpoint) = self.workflows.load_loop_checkpoint(workflow_id).await? else {
            return Ok(None);
        };
        checkpoint.ensure_loadable()?;
        ensure_of(&checkpoint, workflow_id)?;
        Ok(Some(checkpoint))
    }

    async fn delete_workflow_checkpoint(&self, workflow_id: &str) -> Result<()> {
        Ok(self.workflows.delete_loop_checkpoint(workflow_id).await?)
    }

    async fn health_check(&self) -> Result<()> {
        Ok(self.sessions.health_check().await?)
    }

    fn backend_name(&self) -> &str {
        self.sessions.backend_name()
    }
}

fn ensure_of(checkpoint: &WorkflowCheckpoint, workflow_id: &str) -> Result<()> {
    let found = &checkpoint.workflow_id;
    ensure!(found == workflow_id, "the checkpoint is of {found:?}, and not of {workflow_id:?}");
    Ok(())
}
