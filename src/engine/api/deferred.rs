//! Deferred calls: their callers wait for the disk themselves. See [`Deferred`].

use core::fmt;

use crate::engine::api::run_log::RunLog;
use crate::engine::api::run_writer::{RunWriter, to_json};
use crate::engine::setup::due::Wanted;
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::pages::Deleted;
use crate::engine::values::{Allow, Metadata, Outcome};
use crate::engine::write::batch::{Batch, Committed, Expected};
use crate::engine::write::ticket::{Appended, Pending};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::gc::Rule;
use crate::types::{Durability, RunRef, Version};

/// The calls of a store that make something durable, in a form that does not wait for the disk.
/// Each call does its work at [`Durability::Process`], whatever level its arguments ask for, and
/// returns a [`Pending`] to await, with the errors of the call that it stands for.
/// [`RunLog::deferred`] returns this value.
///
/// So a task of an async runtime does not block its thread on a sync, and all tasks that wait at
/// the same time share one sync. Each call takes microseconds: it copies into the file and may read
/// from it.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-defd-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::{NewRecord, Outcome, RunLog};
///
/// async fn work(log: &RunLog) -> runlog::Result<()> {
///     let run = log.deferred().start_run("planner", "run-1", ()).await?;
///     run.deferred().append_record(&NewRecord::new(b"step 1")).await?;
///     log.deferred().put("plans", "tea", &NewRecord::new(b"boil water")).await?;
///     run.deferred().end(&Outcome::completed()).await?;
///     Ok(())
/// }
/// # use std::{future::Future, pin::pin, sync::Arc, task::{Context, Poll, Wake}, thread};
/// # struct Unpark(thread::Thread);
/// # impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
/// # fn block_on<F: Future>(future: F) -> F::Output {
/// #     let waker = Arc::new(Unpark(thread::current())).into();
/// #     let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
/// #     loop {
/// #         match future.as_mut().poll(&mut context) {
/// #             Poll::Ready(done) => return done,
/// #             Poll::Pending => thread::park(),
/// #         }
/// #     }
/// # }
/// # let log = runlog::Options::new().open(&path)?;
/// # block_on(work(&log))?;
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
///
/// # When a call waits nevertheless
/// - A background thread sets the next segment aside while the tail fills. A call waits for that if
///   the caller fills the rest of an extent faster than one sync takes, or writes a record so large
///   that it is stored in chunks.
/// - When the index is far behind the log (96 full segments, or 131,072 runs in memory), a call
///   brings it up to date, so that memory stays bounded. Other calls do so at a quarter of that.
/// - A store without threads ([`Options::background`](crate::Options::background)) does the due
///   work before a call returns, and syncs when a [`Pending`] is polled.
///
/// # On a full disk
/// A deletion fails with [`Error::DiskFull`] where [`RunLog::delete_run`] makes room first, since
/// making room takes syncs. The call asks the background thread to make room.
#[derive(Debug, Clone, Copy)]
pub struct Deferred<'l> {
    log: &'l RunLog,
}

impl RunLog {
    /// The calls of this store that make something durable, without waiting for the disk.
    pub fn deferred(&self) -> Deferred<'_> {
        Deferred { log: self }
    }

    /// The result of a deferred call. On a full disk it asks the background thread for space.
    fn later<T>(&self, result: Result<T>) -> Pending<T> {
        if result.as_ref().is_err_and(crate::error::Error::is_disk_full) {
            self.log().due.want(Wanted::COMPACT);
        }
        self.log().told_later(result)
    }
}

impl Deferred<'_> {
    /// Starts a run; see [`RunLog::start_run`]. Use [`Pending::now`] to get the writer, and to
    /// append, before the start is durable.
    pub fn start_run<'m>(
        &self,
        agent: &str,
        run: &str,
        metadata: impl Into<Metadata<'m>>,
    ) -> Pending<RunWriter> {
        let metadata = metadata.into().durability(Durability::Process);
        let started = self.log.log().start(agent, run, &metadata);
        self.log.later(started.map(|run| RunWriter::new(self.log.clone(), run)))
    }

    /// Appends a record by ids; see [`RunLog::append_to`].
    pub fn append_to(
        &self,
        agent: &str,
        run: &str,
        record: &NewRecord<'_>,
        allow: Allow,
    ) -> Pending<Appended> {
        let record = record.durability(Durability::Process);
        self.log.later(self.log.log().append_to(agent, run, &record, allow))
    }

    /// Appends a batch by ids; see [`RunLog::append_batch_to`].
    pub fn append_batch_to(
        &self,
        agent: &str,
        run: &str,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Pending<Appended> {
        let records = at_process_level(records);
        self.log.later(self.log.log().append_batch_to(agent, run, &records, allow))
    }

    /// Ends a run by ids; see [`RunLog::end_run`].
    pub fn end_run(
        &self,
        agent: &str,
        run: &str,
        outcome: &Outcome,
        allow: Allow,
    ) -> Pending<Appended> {
        let outcome = outcome.clone().durability(Durability::Process);
        self.log.later(self.log.log().end_run(agent, run, &outcome, allow))
    }

    /// Deletes an ended run; see [`RunLog::delete_run`].
    pub fn delete_run<'r>(&self, run: impl Into<RunRef<'r>>) -> Pending<Deleted> {
        let deleted = self.log.log().delete(run.into(), Rule::Deleted, Durability::Process);
        self.log.later(deleted.map(|(_, bytes)| Deleted { bytes }))
    }

    /// Holds a run; see [`RunLog::hold`].
    pub fn hold<'r>(&self, run: impl Into<RunRef<'r>>, reason: &str) -> Pending<bool> {
        self.log.later(self.log.log().hold(run.into(), Some(reason), Durability::Process))
    }

    /// Releases a run; see [`RunLog::release`].
    pub fn release<'r>(&self, run: impl Into<RunRef<'r>>) -> Pending<bool> {
        self.log.later(self.log.log().hold(run.into(), None, Durability::Process))
    }

    /// Writes a document; see [`Documents::put`](crate::Documents::put).
    pub fn put(&self, namespace: &str, key: &str, value: &NewRecord<'_>) -> Pending<Version> {
        self.put_if(namespace, key, value, Expected::Anything)
    }

    /// Writes a document if its current version is the expected one; see
    /// [`Documents::put_if`](crate::Documents::put_if).
    pub fn put_if(
        &self,
        namespace: &str,
        key: &str,
        value: &NewRecord<'_>,
        expected: Expected,
    ) -> Pending<Version> {
        let mut batch = Batch::new();
        batch.put_if(namespace, key, *value, expected);
        let committed = self.commit(&batch);
        committed.map(|done| done.versions.first().copied().flatten().unwrap_or_default())
    }

    /// Deletes a document. Returns whether it existed. See
    /// [`Documents::delete`](crate::Documents::delete).
    pub fn delete(&self, namespace: &str, key: &str) -> Pending<bool> {
        let mut batch = Batch::new();
        batch.delete(namespace, key);
        self.commit(&batch).map(|done| done.versions.iter().any(Option::is_some))
    }

    /// Applies a [`Batch`], all of it or nothing; see [`RunLog::commit`].
    pub fn commit(&self, batch: &Batch<'_>) -> Pending<Committed> {
        self.log.later(self.log.log().write_batch(batch, Durability::Process))
    }
}

/// The calls of a [`RunWriter`] in a form that does not wait for the disk; see [`Deferred`].
/// [`RunWriter::deferred`] returns this value.
#[derive(Clone, Copy)]
pub struct DeferredWriter<'w> {
    writer: &'w RunWriter,
}

impl RunWriter {
    /// The calls of this writer in a form that does not wait for the disk.
    pub fn deferred(&self) -> DeferredWriter<'_> {
        DeferredWriter { writer: self }
    }
}

impl DeferredWriter<'_> {
    fn later(self, result: Result<Appended>) -> Pending<Appended> {
        self.writer.log.later(result.map_err(|error| self.writer.explain(error)))
    }

    /// Appends bytes without a kind or content type; see [`RunWriter::append`].
    pub fn append(&self, payload: &[u8]) -> Pending<Appended> {
        self.append_record(&NewRecord::new(payload))
    }

    /// Appends a value as JSON; see [`RunWriter::append_json`].
    pub fn append_json<T: serde::Serialize + ?Sized>(&self, value: &T) -> Pending<Appended> {
        self.append_json_with(value, NewRecord::default())
    }

    /// Appends a value as JSON, with a kind and a time; see [`RunWriter::append_json_with`].
    pub fn append_json_with<T: serde::Serialize + ?Sized>(
        &self,
        value: &T,
        record: NewRecord<'_>,
    ) -> Pending<Appended> {
        match to_json(value) {
            Ok(payload) => self.append_record(&record.with_json(&payload)),
            Err(error) => self.later(Err(error)),
        }
    }

    /// Appends a record; see [`RunWriter::append_record`].
    pub fn append_record(&self, record: &NewRecord<'_>) -> Pending<Appended> {
        let record = record.durability(Durability::Process);
        let log = self.writer.log.log();
        self.later(log.append(self.writer.target(), &record, Allow::nothing()))
    }

    /// Appends records, all of them or none; see [`RunWriter::append_batch`].
    pub fn append_batch(&self, records: &[NewRecord<'_>]) -> Pending<Appended> {
        let records = at_process_level(records);
        let log = self.writer.log.log();
        self.later(log.append_batch(self.writer.target(), &records, Allow::nothing()))
    }

    /// Ends the run; see [`RunWriter::end`].
    pub fn end(&self, outcome: &Outcome) -> Pending<Appended> {
        let outcome = outcome.clone().durability(Durability::Process);
        self.later(self.writer.log.log().end(self.writer.target(), &outcome))
    }
}

impl fmt::Debug for DeferredWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeferredWriter").field(self.writer).finish()
    }
}

fn at_process_level<'a>(records: &[NewRecord<'a>]) -> Vec<NewRecord<'a>> {
    records.iter().map(|record| record.durability(Durability::Process)).collect()
}
