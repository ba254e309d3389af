//! [`EngineSessionStore`]: sessions as documents of a [`RunLog`].

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Part, SessionError, check_schema, read};
use super::lease::WriterLease;
use super::place::{NewPart, Place, Wanted};
use super::snapshot::{LoadedSnapshot, SessionSnapshot, digest_of, version_of};
use super::store_trait::{Call, SessionStore, SessionStoreCapabilities};
use super::types::{JsonSessions, SessionTypes, Stored};
use super::watch::CommitWatch;
use crate::objects::readable;
use crate::worker::OnThread;
use runlog::{Document, RunLog};

/// Sessions in a [`RunLog`]. Cheap to clone; clones are the same store and share its thread.
///
/// ```
/// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Wake, Waker}, thread};
/// # struct Unpark(thread::Thread);
/// # impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let mut future = pin!(future);
/// #     let waker = Waker::from(Arc::new(Unpark(thread::current())));
/// #     loop {
/// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
/// #             Poll::Ready(output) => return output,
/// #             Poll::Pending => thread::park(),
/// #         }
/// #     }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-sessions-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog_stores::sessions::{EngineSessionStore, SessionStore};
/// use serde_json::json;
///
/// let log = runlog::Options::new().open(&path)?;
/// let store: EngineSessionStore = EngineSessionStore::new(&log);
/// block_on(async {
///     store.save(&json!({ "id": "s-1", "messages": ["tea?"] })).await?;
///     store.save_trace_events("s-1", &[json!({ "kind": "tool_execution" })]).await?;
///     let session = store.load("s-1").await?.expect("it was saved");
///     assert_eq!(session["messages"][0], "tea?");
///     store.delete("s-1").await
/// })?;
/// # drop(store); log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
pub struct EngineSessionStore<T: SessionTypes = JsonSessions> {
    inner: Arc<OnThread<Place>>,
    lease: Option<Arc<WriterLease>>,
    types: PhantomData<fn() -> T>,
}

impl<T: SessionTypes> EngineSessionStore<T> {
    /// The sessions of a store.
    pub fn new(log: &RunLog) -> Self {
        Self::named(log, "default")
    }

    /// One of several independent sets of sessions. The name has at most 480 bytes, else every call
    /// fails with [`Error::InvalidId`](runlog::Error::InvalidId).
    pub fn named(log: &RunLog, name: &str) -> Self {
        let inner = OnThread::new("runlog-sessions", log, |later| Place::new(log, name, later));
        Self { inner: Arc::new(inner), lease: None, types: PhantomData }
    }

    /// The same store for the holder of a lease. A write through it succeeds only for the session
    /// of the lease, and only if the holder still has the lease at the moment of the write. Reads
    /// need no lease. Renewing a lease keeps it valid for this handle.
    #[must_use]
    pub fn through(&self, lease: &WriterLease) -> Self {
        let inner = Arc::clone(&self.inner);
        Self { inner, lease: Some(Arc::new(lease.clone())), types: PhantomData }
    }

    /// The bytes of a part as they were saved; `None` if it is missing. For a loop checkpoint, `id`
    /// is the id of the run.
    pub fn raw<'a>(&'a self, id: &'a str, part: Part) -> Call<'a, Option<Vec<u8>>> {
        let id = id.to_owned();
        Box::pin(self.inner.ask(move |place| {
            let found = place.part(part, &id)?;
            Ok(found.map(|document| document.payload().to_vec()))
        }))
    }

    /// Writes parts of a session.
    async fn write(
        &self,
        session: String,
        parts: Vec<NewPart>,
        wanted: Wanted,
    ) -> Result<bool, SessionError> {
        let lease = self.lease_for(&session)?;
        self.inner.ask(move |place| place.write((&session, lease.as_deref()), &parts, wanted)).await
    }

    /// The lease of this handle, if it may write this session.
    fn lease_for(&self, session: &str) -> Result<Option<Arc<WriterLease>>, SessionError> {
        match &self.lease {
            Some(lease) if lease.session != session => Err(SessionError::OtherSession {
                session: session.to_owned(),
                leased: lease.session.clone(),
            }),
            lease => Ok(lease.clone()),
        }
    }

    /// Saves a part that readers will read as an `R`.
    fn save_part<'a, R, D>(&'a self, id: &'a str, part: Part, value: &'a D) -> Call<'a, ()>
    where
        R: DeserializeOwned,
        D: Serialize + Sync + ?Sized,
    {
        Box::pin(async move {
            let bytes = readable::<R>(value)?;
            if part == Part::Session {
                check_schema(&bytes, (id, part), T::SESSION_SCHEMA)?;
            }
            let parts = vec![(part, Some(bytes))];
            self.write(id.to_owned(), parts, Wanted::Anything).await.map(|_| ())
        })
    }

    fn load_part<'a, D>(
        &'a self,
        id: &'a str,
        part: Part,
        known: Option<u32>,
    ) -> Call<'a, Option<D>>
    where
        D: DeserializeOwned + Send + 'static,
    {
        let id = id.to_owned();
        Box::pin(self.inner.ask(move |place| {
            let found = place.part(part, &id)?;
            found.map(|document| read(&document, (&id, part), known)).transpose()
        }))
    }

    async fn write_snapshot(
        &self,
        snapshot: &SessionSnapshot<T>,
        wanted: Wanted,
    ) -> Result<bool, SessionError> {
        let id = T::session_id(&snapshot.session).to_owned();
        let parts = parts_of(snapshot)?;
        for (part, bytes) in &parts {
            if let (Part::Session, Some(bytes)) = (part, bytes) {
                check_schema(bytes, (&id, *part), T::SESSION_SCHEMA)?;
            }
        }
        self.write(id, parts, wanted).await
    }
}

/// A snapshot as it is written.
fn parts_of<T: SessionTypes>(snapshot: &SessionSnapshot<T>) -> Result<Vec<NewPart>, SessionError> {
    fn part<D: Stored>(value: Option<&D>) -> runlog::Result<Option<Vec<u8>>> {
        value.map(readable::<D>).transpose()
    }
    let SessionSnapshot { session, artifacts, .. } = snapshot;
    Ok(vec![
        (Part::Session, part(Some(session))?),
        (Part::Artifacts, part(artifacts.as_ref())?),
        (Part::TraceEvents, part(snapshot.trace_events.as_ref())?),
        (Part::RunRecords, part(snapshot.run_records.as_ref())?),
        (Part::VerificationReports, part(snapshot.verification_reports.as_ref())?),
        (Part::SubagentTasks, part(snapshot.subagent_tasks.as_ref())?),
    ])
}

/// A snapshot from stored parts, if there is a session.
fn snapshot_from<T: SessionTypes>(
    id: &str,
    place: &Place,
) -> Result<Option<LoadedSnapshot<T>>, SessionError> {
    fn part<D: DeserializeOwned>(
        id: &str,
        part: Part,
        document: Option<Document>,
    ) -> Result<Option<D>, SessionError> {
        document.map(|document| read(&document, (id, part), None)).transpose()
    }
    let (version, parts) = place.snapshot(id)?;
    let [session, artifacts, traces, runs, reports, tasks] = parts;
    let Some(session) = session else { return Ok(None) };
    let snapshot = SessionSnapshot {
        session: read(&session, (id, Part::Session), Some(T::SESSION_SCHEMA))?,
        artifacts: part(id, Part::Artifacts, artifacts)?,
        trace_events: part(id, Part::TraceEvents, traces)?,
        run_records: part(id, Part::RunRecords, runs)?,
        verification_reports: part(id, Part::VerificationReports, reports)?,
        subagent_tasks: part(id, Part::SubagentTasks, tasks)?,
    };
    Ok(Some(LoadedSnapshot { snapshot, digest: digest_of(version) }))
}

impl<T: SessionTypes> Clone for EngineSessionStore<T> {
    fn clone(&self) -> Self {
        let (inner, lease) = (Arc::clone(&self.inner), self.lease.clone());
        Self { inner, lease, types: PhantomData }
    }
}

impl<T: SessionTypes> fmt::Debug for EngineSessionStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineSessionStore")
            .field("place", self.inner.store())
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl<T: SessionTypes> SessionStore<T> for EngineSessionStore<T> {
    fn save<'a>(&'a self, session: &'a T::Session) -> Call<'a, ()> {
        self.save_part::<T::Session, _>(T::session_id(session), Part::Session, session)
    }

    fn load<'a>(&'a self, id: &'a str) -> Call<'a, Option<T::Session>> {
        self.load_part(id, Part::Session, Some(T::SESSION_SCHEMA))
    }

    fn delete<'a>(&'a self, id: &'a str) -> Call<'a, ()> {
        Box::pin(async move {
            let (lease, id) = (self.lease_for(id)?, id.to_owned());
            self.inner.ask(move |place| place.delete(&id, lease.as_deref())).await
        })
    }

    fn list(&self) -> Call<'_, Vec<String>> {
        Box::pin(self.inner.ask(|place| Ok(place.list()?)))
    }

    fn exists<'a>(&'a self, id: &'a str) -> Call<'a, bool> {
        let id = id.to_owned();
        Box::pin(self.inner.ask(move |place| Ok(place.exists(&id)?)))
    }

    fn save_artifacts<'a>(&'a self, id: &'a str, artifacts: &'a T::Artifacts) -> Call<'a, ()> {
        self.save_part::<T::Artifacts, _>(id, Part::Artifacts, artifacts)
    }

    fn load_artifacts<'a>(&'a self, id: &'a str) -> Call<'a, Option<T::Artifacts>> {
        self.load_part(id, Part::Artifacts, None)
    }

    fn save_trace_events<'a>(&'a self, id: &'a str, events: &'a [T::TraceEvent]) -> Call<'a, ()> {
        self.save_part::<Vec<T::TraceEvent>, _>(id, Part::TraceEvents, events)
    }

    fn load_trace_events<'a>(&'a self, id: &'a str) -> Call<'a, Option<Vec<T::TraceEvent>>> {
        self.load_part(id, Part::TraceEvents, None)
    }

    fn save_run_records<'a>(&'a self, id: &'a str, records: &'a [T::RunRecord]) -> Call<'a, ()> {
        self.save_part::<Vec<T::RunRecord>, _>(id, Part::RunRecords, records)
    }

    fn load_run_records<'a>(&'a self, id: &'a str) -> Call<'a, Option<Vec<T::RunRecord>>> {
        self.load_part(id, Part::RunRecords, None)
    }

    fn save_verification_reports<'a>(
        &'a self,
        id: &'a str,
        reports: &'a [T::VerificationReport],
    ) -> Call<'a, ()> {
        self.save_part::<Vec<T::VerificationReport>, _>(id, Part::VerificationReports, reports)
    }

    fn load_verification_reports<'a>(
        &'a self,
        id: &'a str,
    ) -> Call<'a, Option<Vec<T::VerificationReport>>> {
        self.load_part(id, Part::VerificationReports, None)
    }

    fn save_subagent_tasks<'a>(
        &'a self,
        id: &'a str,
        tasks: &'a [T::SubagentTask],
    ) -> Call<'a, ()> {
        self.save_part::<Vec<T::SubagentTask>, _>(id, Part::SubagentTasks, tasks)
    }

    fn load_subagent_tasks<'a>(&'a self, id: &'a str) -> Call<'a, Option<Vec<T::SubagentTask>>> {
        self.load_part(id, Part::SubagentTasks, None)
    }

    fn save_loop_checkpoint<'a>(
        &'a self,
        run_id: &'a str,
        checkpoint: &'a T::LoopCheckpoint,
    ) -> Call<'a, ()> {
        Box::pin(async move {
            let session = T::checkpoint_session(checkpoint).map(str::to_owned);
            let lease = match &session {
                Some(session) => self.lease_for(session)?,
                None => self.lease.clone(),
            };
            let (run, bytes) = (run_id.to_owned(), readable::<T::LoopCheckpoint>(checkpoint)?);
            check_schema(&bytes, (run_id, Part::LoopCheckpoint), T::LOOP_CHECKPOINT_SCHEMA)?;
            self.inner
                .ask(move |place| {
                    place.write_checkpoint(
                        &run,
                        (session.as_deref(), lease.as_deref()),
                        Some(&bytes),
                    )
                })
                .await
        })
    }

    fn load_loop_checkpoint<'a>(&'a self, run_id: &'a str) -> Call<'a, Option<T::LoopCheckpoint>> {
        self.load_part(run_id, Part::LoopCheckpoint, Some(T::LOOP_CHECKPOINT_SCHEMA))
    }

    fn delete_loop_checkpoint<'a>(&'a self, run_id: &'a str) -> Call<'a, ()> {
        let (run, lease) = (run_id.to_owned(), self.lease.clone());
        Box::pin(self.inner.ask(move |place| {
            let there = place.part(Part::LoopCheckpoint, &run)?;
            // A checkpoint that cannot be read names no session.
            let there: Option<T::LoopCheckpoint> =
                there.and_then(|there| serde_json::from_slice(there.payload()).ok());
            let session = there.as_ref().and_then(T::checkpoint_session);
            place.write_checkpoint(&run, (session, lease.as_deref()), None)
        }))
    }

    fn health_check(&self) -> Call<'_, ()> {
        Box::pin(self.inner.ask(|place| Ok(place.check_health()?)))
    }

    fn backend_name(&self) -> &'static str {
        "runlog"
    }

    fn capabilities(&self) -> SessionStoreCapabilities {
        SessionStoreCapabilities {
            atomic_session_snapshots: true,
            aggregate_cas: true,
            // Documents keep their latest version only.
            append_only_event_log: false,
            lease_fencing: true,
            encrypted_at_rest: false,
            watch: true,
            // Artifacts belong to one session, and go with it.
            reference_aware_artifact_gc: false,
        }
    }

    fn save_snapshot<'a>(&'a self, snapshot: &'a SessionSnapshot<T>) -> Call<'a, ()> {
        Box::pin(async move { self.write_snapshot(snapshot, Wanted::Anything).await.map(|_| ()) })
    }

    fn save_snapshot_cas<'a>(
        &'a self,
        snapshot: &'a SessionSnapshot<T>,
        expected_digest: Option<&'a str>,
    ) -> Call<'a, bool> {
        let wanted = match expected_digest {
            None => Wanted::NoSession,
            Some(digest) => version_of(digest).map_or(Wanted::Nothing, Wanted::Head),
        };
        Box::pin(self.write_snapshot(snapshot, wanted))
    }

    fn load_snapshot<'a>(&'a self, id: &'a str) -> Call<'a, Option<LoadedSnapshot<T>>> {
        let id = id.to_owned();
        Box::pin(self.inner.ask(move |place| snapshot_from(&id, place)))
    }

    fn acquire_writer_lease<'a>(
        &'a self,
        session: &'a str,
        holder: &'a str,
        ttl: Duration,
    ) -> Call<'a, WriterLease> {
        let (session, holder) = (session.to_owned(), holder.to_owned());
        Box::pin(self.inner.ask(move |place| place.acquire(&session, &holder, ttl)))
    }

    fn writer_lease<'a>(&'a self, session: &'a str) -> Call<'a, Option<WriterLease>> {
        let session = session.to_owned();
        Box::pin(self.inner.ask(move |place| Ok(place.current_lease(&session)?)))
    }

    fn renew_writer_lease<'a>(
        &'a self,
        lease: &'a WriterLease,
        ttl: Duration,
    ) -> Call<'a, WriterLease> {
        let lease = lease.clone();
        Box::pin(self.inner.ask(move |place| place.renew(&lease, ttl)))
    }

    fn release_writer_lease<'a>(&'a self, lease: &'a WriterLease) -> Call<'a, bool> {
        let lease = lease.clone();
        Box::pin(self.inner.ask(move |place| Ok(place.release(&lease)?)))
    }

    fn watch_commits(&self) -> Option<CommitWatch> {
        Some(self.inner.store().hub.watch())
    }
}
