//! What each implementation of a store of sessions does.

use core::future::{Future, ready};
use core::pin::Pin;
use core::time::Duration;

use super::error::SessionError;
use super::lease::WriterLease;
use super::snapshot::{LoadedSnapshot, SessionSnapshot};
use super::types::{JsonSessions, SessionTypes};
use super::watch::CommitWatch;

/// A call under way. What it does begins when it is polled first.
pub type Call<'a, R> = Pin<Box<dyn Future<Output = Result<R, SessionError>> + Send + 'a>>;

/// What a store does beyond keeping parts by id. All false unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionStoreCapabilities {
    /// All parts of a session are saved and loaded as of one moment.
    pub atomic_session_snapshots: bool,
    /// A snapshot can be saved only if no writer wrote since another was loaded.
    pub aggregate_cas: bool,
    /// Earlier states of a session can be read.
    pub append_only_event_log: bool,
    /// A writer whose lease was taken cannot write any more.
    pub lease_fencing: bool,
    /// What is stored cannot be read without a key.
    pub encrypted_at_rest: bool,
    /// Commits can be watched.
    pub watch: bool,
    /// Artifacts that several sessions refer to are kept until none does.
    pub reference_aware_artifact_gc: bool,
}

/// A store of sessions and of what belongs to them, each part by itself.
///
/// Every save replaces what was saved before, a list as a whole. What is missing is `None`, and
/// deleting it is fine.
///
/// The parts that a store may leave out have defaults: what is asked for is not there, and what is
/// to be saved is refused with [`SessionError::Unsupported`], unless it is empty.
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

    /// Saves the tasks that a session gave to others.
    fn save_subagent_tasks<'a>(
        &'a self,
        _id: &'a str,
        tasks: &'a [T::SubagentTask],
    ) -> Call<'a, ()> {
        only_empty(tasks, "save subagent tasks")
    }

    /// The tasks that a session gave to others.
    fn load_subagent_tasks<'a>(&'a self, _id: &'a str) -> Call<'a, Option<Vec<T::SubagentTask>>> {
        missing()
    }

    /// Saves the place from which the loop of a run can go on. The latest only is kept.
    fn save_loop_checkpoint<'a>(
        &'a self,
        _run_id: &'a str,
        _checkpoint: &'a T::LoopCheckpoint,
    ) -> Call<'a, ()> {
        unsupported("save loop checkpoints")
    }

    /// The latest place from which the loop of a run can go on.
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

    /// What the store is, for diagnostics.
    #[expect(clippy::unnecessary_literal_bound, reason = "other stores may hold their names")]
    fn backend_name(&self) -> &str {
        "unknown"
    }

    /// What the store does of the calls below, and what it promises.
    fn capabilities(&self) -> SessionStoreCapabilities {
        SessionStoreCapabilities::default()
    }

    /// Saves all parts of a session at once, all of them or none. A part that the snapshot does not
    /// have is removed.
    fn save_snapshot<'a>(&'a self, _snapshot: &'a SessionSnapshot<T>) -> Call<'a, ()> {
        unsupported("save snapshots")
    }

    /// Saves a snapshot if it was not written since the snapshot with this digest was loaded;
    /// with no digest, if there is no session. Answers whether it did.
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

    /// Takes the right to write a session, for a while. It must be free, or have run out, or be
    /// the holder's own; in any case earlier leases of the session are over.
    fn acquire_writer_lease<'a>(
        &'a self,
        _session: &'a str,
        _holder: &'a str,
        _ttl: Duration,
    ) -> Call<'a, WriterLease> {
        unsupported("grant writer leases")
    }

    /// The lease of a session, if somebody has one that did not run out.
    fn writer_lease<'a>(&'a self, _session: &'a str) -> Call<'a, Option<WriterLease>> {
        missing()
    }

    /// Keeps a lease for longer: until `ttl` from now. Also after it ran out, unless it was taken.
    fn renew_writer_lease<'a>(
        &'a self,
        _lease: &'a WriterLease,
        _ttl: Duration,
    ) -> Call<'a, WriterLease> {
        unsupported("grant writer leases")
    }

    /// Gives a lease back. Answers whether it was still the holder's.
    fn release_writer_lease<'a>(&'a self, _lease: &'a WriterLease) -> Call<'a, bool> {
        unsupported("grant writer leases")
    }

    /// Sees what is committed from now on; none if the store does not tell.
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
