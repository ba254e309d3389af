//! The trait of stores of sessions.

use core::future::{Future, ready};
use core::pin::Pin;
use core::time::Duration;

use super::error::SessionError;
use super::lease::WriterLease;
use super::snapshot::{LoadedSnapshot, SessionSnapshot};
use super::types::{JsonSessions, SessionTypes};
use super::watch::CommitWatch;

/// A call. It begins at its first poll.
pub type Call<'a, R> = Pin<Box<dyn Future<Output = Result<R, SessionError>> + Send + 'a>>;

/// The capabilities of a store beyond parts by id. The default is false for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionStoreCapabilities {
    /// All parts of a session are saved and loaded as of one moment.
    pub atomic_session_snapshots: bool,
    /// A snapshot can be saved on condition that no caller wrote since another one was loaded.
    pub aggregate_cas: bool,
    /// Earlier states of a session can be read.
    pub append_only_event_log: bool,
    /// A writer whose lease was taken cannot write any more.
    pub lease_fencing: bool,
    /// The stored bytes are encrypted.
    pub encrypted_at_rest: bool,
    /// Commits can be watched.
    pub watch: bool,
    /// Artifacts that several sessions use are kept until the last of them is deleted.
    pub reference_aware_artifact_gc: bool,
}

/// A store of sessions and their parts.
///
/// Every save replaces the earlier one, a list as a whole. A missing part is `None`, and deleting a
/// missing part succeeds.
///
/// Parts that a store need not support have defaults: loading returns `None`, and saving returns
/// [`SessionError::Unsupported`], unless the part is empty.
pub trait SessionStore<T: SessionTypes = JsonSessions>: Send + Sync {
    /// Saves a session under its own id.
    fn save<'a>(&'a self, session: &'a T::Session) -> Call<'a, ()>;

    /// A session.
    fn load<'a>(&'a self, id: &'a str) -> Call<'a, Option<T::Session>>;

    /// Deletes a session with all of its parts, and the writer lease through which it is deleted.
    /// Loop checkpoints stay: they belong to runs.
    fn delete<'a>(&'a self, id: &'a str) -> Call<'a, ()>;

    /// The ids of all sessions.
    fn list(&self) -> Call<'_, Vec<String>>;

    /// Whether there is such a session.
    fn exists<'a>(&'a self, id: &'a str) -> Call<'a, bool>;

    /// Saves the artifacts of a session.
    fn save_artifacts<'a>(&'a self, _id: &'a str, _artifacts: &'a T::Artifacts) -> Call<'a, ()> {
        unsupported("save artifacts")
    }

    /// The artifacts of a session.
    fn load_artifacts<'a>(&'a self, _id: &'a str) -> Call<'a, Option<T::Artifacts>> {
        missing()
    }

    /// Saves the trace of a session.
    fn save_trace_events<'a>(&'a self, _id: &'a str, events: &'a [T::TraceEvent]) -> Call<'a, ()> {
        only_empty(events, "save trace events")
    }

    /// The trace of a session.
    fn load_trace_events<'a>(&'a self, _id: &'a str) -> Call<'a, Option<Vec<T::TraceEvent>>> {
        missing()
    }

    /// Saves the runs of a session.
    fn save_run_records<'a>(&'a self, _id: &'a str, records: &'a [T::RunRecord]) -> Call<'a, ()> {
        only_empty(records, "save run records")
    }

    /// The runs of a session.
    fn load_run_records<'a>(&'a self, _id: &'a str) -> Call<'a, Option<Vec<T::RunRecord>>> {
        missing()
    }

    /// Saves the verification reports of a session.
    fn save_verification_reports<'a>(
        &'a self,
        _id: &'a str,
        reports: &'a [T::VerificationReport],
    ) -> Call<'a, ()> {
        only_empty(reports, "save verification reports")
    }

    /// The verification reports of a session.
    fn load_verification_reports<'a>(
        &'a self,
        _id: &'a str,
    ) -> Call<'a, Option<Vec<T::VerificationReport>>> {
        missing()
    }

    /// Saves the tasks that a session gave to other agents.
    fn save_subagent_tasks<'a>(
        &'a self,
        _id: &'a str,
        tasks: &'a [T::SubagentTask],
    ) -> Call<'a, ()> {
        only_empty(tasks, "save subagent tasks")
    }

    /// The tasks that a session gave to other agents.
    fn load_subagent_tasks<'a>(&'a self, _id: &'a str) -> Call<'a, Option<Vec<T::SubagentTask>>> {
        missing()
    }

    /// Saves the checkpoint from which the loop of a run can continue. Only the latest is kept.
    fn save_loop_checkpoint<'a>(
        &'a self,
        _run_id: &'a str,
        _checkpoint: &'a T::LoopCheckpoint,
    ) -> Call<'a, ()> {
        unsupported("save loop checkpoints")
    }

    /// The latest checkpoint from which the loop of a run can continue.
    fn load_loop_checkpoint<'a>(&'a self, _run_id: &'a str) -> Call<'a, Option<T::LoopCheckpoint>> {
        missing()
    }

    /// Deletes the checkpoint of a run.
    fn delete_loop_checkpoint<'a>(&'a self, _run_id: &'a str) -> Call<'a, ()> {
        Box::pin(ready(Ok(())))
    }

    /// Whether the store can be written and read now.
    fn health_check(&self) -> Call<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    /// The name of the store, for diagnostics.
    #[expect(clippy::unnecessary_literal_bound, reason = "other stores may hold their names")]
    fn backend_name(&self) -> &str {
        "unknown"
    }

    /// Which of the calls below the store supports, and its promises.
    fn capabilities(&self) -> SessionStoreCapabilities {
        SessionStoreCapabilities::default()
    }

    /// Saves all parts of a session atomically. A part that the snapshot does not have is removed.
    fn save_snapshot<'a>(&'a self, _snapshot: &'a SessionSnapshot<T>) -> Call<'a, ()> {
        unsupported("save snapshots")
    }

    /// Saves a snapshot if the session was not written since the snapshot with this digest was
    /// loaded; without a digest, if there is no session. Returns whether it did.
    fn save_snapshot_cas<'a>(
        &'a self,
        _snapshot: &'a SessionSnapshot<T>,
        _expected_digest: Option<&'a str>,
    ) -> Call<'a, bool> {
        unsupported("compare digests")
    }

    /// All parts of a session at one moment, and the digest of that moment.
    fn load_snapshot<'a>(&'a self, _id: &'a str) -> Call<'a, Option<LoadedSnapshot<T>>> {
        unsupported("load snapshots")
    }

    /// Acquires the right to write a session, for a time. It must be free, expired, or belong to
    /// the same holder. Earlier leases of the session end.
    fn acquire_writer_lease<'a>(
        &'a self,
        _session: &'a str,
        _holder: &'a str,
        _ttl: Duration,
    ) -> Call<'a, WriterLease> {
        unsupported("grant writer leases")
    }

    /// The lease of a session, if it has one that has not expired.
    fn writer_lease<'a>(&'a self, _session: &'a str) -> Call<'a, Option<WriterLease>> {
        missing()
    }

    /// Extends a lease until `ttl` from now, also after it expired, unless another caller took it.
    fn renew_writer_lease<'a>(
        &'a self,
        _lease: &'a WriterLease,
        _ttl: Duration,
    ) -> Call<'a, WriterLease> {
        unsupported("grant writer leases")
    }

    /// Releases a lease. Returns whether the holder still had it.
    fn release_writer_lease<'a>(&'a self, _lease: &'a WriterLease) -> Call<'a, bool> {
        unsupported("grant writer leases")
    }

    /// Watches commits from now on; `None` if the store does not support it.
    fn watch_commits(&self) -> Option<CommitWatch> {
        None
    }
}

fn unsupported<'a, R: Send + 'a>(what: &'static str) -> Call<'a, R> {
    Box::pin(ready(Err(SessionError::Unsupported { what })))
}

fn missing<'a, R: Send + 'a>() -> Call<'a, Option<R>> {
    Box::pin(ready(Ok(None)))
}

fn only_empty<'a, D>(values: &[D], what: &'static str) -> Call<'a, ()> {
    if values.is_empty() { Box::pin(ready(Ok(()))) } else { unsupported(what) }
}
