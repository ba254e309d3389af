//! The handles of the public API: [`RunLog`], the store, and [`RunWriter`], a run in progress.

use core::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::draft::NewRecord;
use super::ops::check_outcome;
use super::pages::{Adopted, Cursor, Deleted, RunPage};
use super::report::RecoveryReport;
use super::shared::Engine;
use super::stats::Stats;
use super::trace::Trace;
use super::upkeep::Threads;
use super::values::{Allow, Appended, Metadata, Outcome, RunSummary};
use super::verify::VerifyReport;
use crate::error::{Error, Result};
use crate::format::frame;
use crate::types::{AgentId, ContentType, RunId, RunNo, RunRef, RunStatus};

/// An open store. Cheap to clone; all clones are the same store. The last one that is dropped
/// closes it, like [`RunLog::close`], but cannot tell whether that worked.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-log-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// let log = runlog::Options::new().open(&path)?;
/// let run = log.start_run("planner", "run-1", b"{\"goal\":\"tea\"}")?;
/// let _ = run.append(b"boil water")?;
/// run.end(&runlog::Outcome::completed())?;
/// for record in log.trace("run-1")? {
///     println!("{} bytes", record?.payload().len());
/// }
/// # drop(run);
/// log.close()?;
/// # let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RunLog {
    open: Arc<Open>,
}

/// The engine and its threads; dropped with the last handle.
struct Open {
    engine: Arc<Engine>,
    threads: Mutex<Option<Threads>>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let threads = self.threads.get_mut().take();
        drop(threads);
        let _ = self.engine.close();
    }
}

impl RunLog {
    /// Starts the threads of an engine that recovery has put in order.
    pub(crate) fn start(engine: Arc<Engine>) -> Result<Self> {
        let threads = if engine.options.background {
            Some(Threads::start(&engine)?)
        } else {
            engine.open_index()?;
            engine.checkpoint()?;
            engine.after_change();
            None
        };
        Ok(Self { open: Arc::new(Open { engine, threads: Mutex::new(threads) }) })
    }

    fn engine(&self) -> &Arc<Engine> {
        &self.open.engine
    }

    fn check_open(&self) -> Result<()> {
        let engine = self.engine();
        engine.check_open(&engine.core.lock())
    }

    /// Starts a run. Started again with the same metadata it is the same run, so that a caller who
    /// does not know whether a start succeeded can repeat it; if the run has ended meanwhile, it
    /// stays ended.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`] unless the metadata says otherwise.
    ///
    /// # Errors
    /// [`Error::RunExists`] if it was started with other metadata, [`Error::InvalidId`],
    /// [`Error::TooLarge`], [`Error::DiskFull`].
    pub fn start_run<'m>(
        &self,
        agent: &str,
        run: &str,
        metadata: impl Into<Metadata<'m>>,
    ) -> Result<RunWriter> {
        let (run_no, agent, run) = self.engine().start(agent, run, &metadata.into())?;
        Ok(RunWriter { log: self.clone(), run_no, agent, run })
    }

    /// A writer of a run in progress, to go on with it.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunEnded`].
    pub fn writer<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunWriter> {
        let engine = self.engine();
        let mut core = engine.core.lock();
        engine.check_open(&core)?;
        let run_no = engine.resolve(&core, run.into())?;
        engine.load(&mut core, run_no)?;
        let hot = core.hot.get_mut(run_no).ok_or(Error::Closed)?;
        let (agent, run, status) = (hot.agent.clone(), hot.run.clone(), hot.status);
        if status.is_ended() {
            return Err(Error::RunEnded { agent, run, status });
        }
        hot.touched = true;
        drop(core);
        Ok(RunWriter { log: self.clone(), run_no, agent, run })
    }

    /// Appends a record by ids. What [`Allow`] permits beyond a writer's rights is marked in the
    /// record and in the run's summary.
    ///
    /// # Errors
    /// As [`RunWriter::append_record`], and [`Error::RunNotFound`].
    pub fn append_to(
        &self,
        agent: &str,
        run: &str,
        record: &NewRecord<'_>,
        allow: Allow,
    ) -> Result<Appended> {
        self.engine().check_record(record)?;
        let run_no = self.engine().ensure_run(agent, run, allow, record.time())?;
        self.engine().append(run_no, record, allow)
    }

    /// Appends a batch by ids; see [`RunWriter::append_batch`].
    ///
    /// # Errors
    /// As [`RunWriter::append_batch`], and [`Error::RunNotFound`].
    pub fn append_batch_to(
        &self,
        agent: &str,
        run: &str,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        self.engine().check_batch(records)?;
        let first = records.first().and_then(NewRecord::time);
        let run_no = self.engine().ensure_run(agent, run, allow, first)?;
        self.engine().append_batch(run_no, records, allow)
    }

    /// Ends a run by ids; see [`RunWriter::end`].
    ///
    /// # Errors
    /// As [`RunWriter::end`], and [`Error::RunNotFound`] unless `allow.unstarted`.
    pub fn end_run(
        &self,
        agent: &str,
        run: &str,
        outcome: &Outcome,
        allow: Allow,
    ) -> Result<Appended> {
        check_outcome(outcome)?;
        let run_no = self.engine().ensure_run(agent, run, allow, outcome.time())?;
        self.engine().end(run_no, outcome)
    }

    /// The records of a run, in order, as of now. Without a scan: the index leads to the segments,
    /// their directories to the records.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace> {
        self.engine().trace(run.into())
    }

    /// The agent that has this run.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn agent_of(&self, run: &str) -> Result<AgentId> {
        let engine = self.engine();
        let core = engine.core.lock();
        engine.check_open(&core)?;
        let run_no = engine.resolve(&core, RunRef::from(run))?;
        engine.agent_of_number(&core, run_no, run)
    }

    /// The summary of a run.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunSummary> {
        let engine = self.engine();
        let core = engine.core.lock();
        engine.check_open(&core)?;
        let run = run.into();
        let run_no = engine.resolve(&core, run)?;
        Ok(RunSummary::from_row(&*engine.named_row(&core, run_no, run.run())?))
    }

    /// What the start of a run said, with its content type; `None` for a run without a start.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
    pub fn metadata<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
    ) -> Result<Option<(ContentType, Vec<u8>)>> {
        let engine = self.engine();
        let core = engine.core.lock();
        engine.check_open(&core)?;
        let run_no = engine.resolve(&core, run.into())?;
        let Some((header, payload)) = engine.start_frame(&core, run_no)? else { return Ok(None) };
        let place = crate::error::Place::Frame(header.position);
        let (_, _, metadata) =
            frame::decode_ids(&payload).map_err(|damage| Error::corrupt(place, damage))?;
        Ok(Some((header.content, metadata.to_vec())))
    }

    /// How a run ended; `None` while it is in progress.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
    pub fn outcome<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<Outcome>> {
        let engine = self.engine();
        let core = engine.core.lock();
        engine.check_open(&core)?;
        let run_no = engine.resolve(&core, run.into())?;
        let Some((header, payload)) = engine.end_frame(&core, run_no)? else { return Ok(None) };
        let status = RunStatus::from_code(header.content.code()).unwrap_or(RunStatus::Interrupted);
        let (content, bytes) = payload.split_first().unwrap_or((&0, &[]));
        let outcome = Outcome::new(status).with_payload(bytes, ContentType::from_code(*content));
        Ok(Some(outcome.at(header.at)))
    }

    /// A page of an agent's runs, newest first. An unknown agent has none.
    ///
    /// A cursor stays valid whatever happens meanwhile: the next page neither repeats nor skips a
    /// run that was there all along.
    ///
    /// # Errors
    /// [`Error::InvalidId`].
    pub fn runs(&self, agent: &str, after: Option<&Cursor>, limit: usize) -> Result<RunPage> {
        let agent = AgentId::new(agent)?;
        let wanted = limit.saturating_add(1);
        let runs = self.engine().page(Some(&agent), after.map(Cursor::key), wanted)?;
        Ok(RunPage::new(runs, limit))
    }

    /// A page of all runs, newest first.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn all_runs(&self, after: Option<&Cursor>, limit: usize) -> Result<RunPage> {
        let wanted = limit.saturating_add(1);
        Ok(RunPage::new(self.engine().page(None, after.map(Cursor::key), wanted)?, limit))
    }

    /// A page of the runs in progress, in the order in which they were started.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn in_progress(&self, after: Option<&Cursor>, limit: usize) -> Result<RunPage> {
        let after = after.map(|cursor| cursor.key().1);
        let wanted = limit.saturating_add(1);
        Ok(RunPage::new(self.engine().in_progress_page(after, wanted)?, limit))
    }

    /// Agents that have runs, by id, behind `after`.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn agents(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentId>> {
        self.engine().agents_page(after, limit)
    }

    /// Ends, as [`RunStatus::Interrupted`], all runs in progress that were neither started nor
    /// appended to since the store was opened: their writers are gone. A second call finds none.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::DiskFull`] and whatever an end can meet; runs that were adopted before stay so.
    pub fn adopt_orphans(&self) -> Result<Adopted> {
        Ok(Adopted { runs: self.engine().adopt()? })
    }

    /// Deletes an ended run. Its space is used again once all runs in the same segments are gone.
    ///
    /// # Durability
    /// Disk. A trace that is being read sees its run to the end.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunInProgress`].
    pub fn delete_run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Deleted> {
        Ok(Deleted { bytes: self.engine().delete(run.into())? })
    }

    /// Returns once everything that was appended so far survives power loss.
    ///
    /// # Errors
    /// What made the sync fail, or [`Error::Poisoned`].
    pub fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.engine().sync_all()
    }

    /// Brings the index up to the last full segment, which otherwise happens in the background.
    ///
    /// # Errors
    /// What made the sync fail. A failure of the index is none: it is built anew.
    pub fn checkpoint(&self) -> Result<()> {
        self.check_open()?;
        self.engine().sync_all()?;
        self.engine().checkpoint()
    }

    /// Gives the space of deleted runs back, as far as possible, which otherwise happens in the
    /// background.
    ///
    /// # Errors
    /// What made a write or sync fail.
    pub fn reclaim(&self) -> Result<()> {
        self.check_open()?;
        self.engine().reclaim()
    }

    /// What opening the store found.
    pub fn recovery_report(&self) -> &RecoveryReport {
        &self.engine().report
    }

    /// Checks everything: each structure, each frame, and the index against the segments. Reads the
    /// whole file; appends and reads go on meanwhile.
    ///
    /// # Errors
    /// Only what keeps it from reading. Damage is in the report.
    pub fn verify(&self) -> Result<VerifyReport> {
        self.engine().verify()
    }

    /// Numbers about the store.
    ///
    /// # Errors
    /// What keeps it from asking for the length of the file.
    pub fn stats(&self) -> Result<Stats> {
        self.engine().stats()
    }

    /// Makes everything durable, brings the index up to date, and marks the file as closed in
    /// order. Other handles get [`Error::Closed`] from then on. The lock is released when the last
    /// handle, writer, ticket, trace, record and payload that refers to the store is dropped.
    ///
    /// # Errors
    /// What made a write or sync fail; reopening recovers whatever was acknowledged.
    pub fn close(self) -> Result<()> {
        let threads = self.open.threads.lock().take();
        drop(threads);
        self.engine().close()
    }
}

impl Engine {
    /// See [`RunLog::close`]. Closing twice is fine.
    pub(crate) fn close(&self) -> Result<()> {
        {
            let mut core = self.core.lock();
            if core.closed {
                return Ok(());
            }
            core.closed = true;
        }
        self.sync_all()?;
        self.note_seals()?;
        self.checkpoint()?;
        self.close_index();
        self.disk.sync()?;
        let (end, next) = {
            let core = self.core.lock();
            (core.end_of_log(), (core.next_segment, core.next_run_no, core.next_lsn))
        };
        self.keeper.lock().write_superblock(|block| {
            block.durable = end;
            block.flags = crate::format::superblock::FLAG_CLEAN;
            (block.next_segment, block.next_run_no, block.next_lsn) = next;
        })
    }
}

impl fmt::Debug for RunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLog").field("path", &self.engine().path).finish_non_exhaustive()
    }
}

/// A run in progress. Dropping it without an end leaves the run in progress.
///
/// Several writers of one run are possible (each by [`RunLog::start_run`] with the same metadata
/// or by [`RunLog::writer`]); their records are in the order of the appends.
pub struct RunWriter {
    log: RunLog,
    run_no: RunNo,
    agent: AgentId,
    run: RunId,
}

impl RunWriter {
    /// The agent of the run.
    pub fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// The id of the run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Appends bytes of which nothing is said.
    ///
    /// # Durability
    /// [`crate::Durability::Process`].
    ///
    /// # Errors
    /// As [`RunWriter::append_record`].
    pub fn append(&self, payload: &[u8]) -> Result<Appended> {
        self.append_record(&NewRecord::new(payload))
    }

    /// Appends a value as JSON.
    ///
    /// # Durability
    /// [`crate::Durability::Process`].
    ///
    /// # Errors
    /// [`Error::Json`] if the value cannot be JSON; else as [`RunWriter::append_record`].
    pub fn append_json<T: serde::Serialize + ?Sized>(&self, value: &T) -> Result<Appended> {
        let payload =
            serde_json::to_vec(value).map_err(|source| Error::Json { source: Arc::new(source) })?;
        self.append_record(&NewRecord::json(&payload))
    }

    /// Appends a record. Returns once it has reached the durability that the record asks for.
    ///
    /// # Errors
    /// [`Error::RunEnded`], [`Error::Evicted`] if the run was deleted, [`Error::TooLarge`],
    /// [`Error::DiskFull`] (nothing was stored, later appends work when space returns),
    /// [`Error::Poisoned`] after a failed write or sync.
    pub fn append_record(&self, record: &NewRecord<'_>) -> Result<Appended> {
        let appended = self.log.engine().append(self.run_no, record, Allow::nothing());
        appended.map_err(|error| self.explain(error))
    }

    /// Appends records so that after any crash all of them are there or none. They are next to one
    /// another. The strictest durability that one of them asks for holds for all.
    ///
    /// # Errors
    /// As [`RunWriter::append_record`]; [`Error::TooLarge`] when the batch is longer than a quarter
    /// of an extent, not counting payloads above 256 bytes; [`Error::InvalidArgument`] when it is
    /// empty.
    pub fn append_batch(&self, records: &[NewRecord<'_>]) -> Result<Appended> {
        let appended = self.log.engine().append_batch(self.run_no, records, Allow::nothing());
        appended.map_err(|error| self.explain(error))
    }

    /// Ends the run. Ending it again in the same way is fine.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`] unless the outcome says otherwise.
    ///
    /// # Errors
    /// [`Error::RunEnded`] if it was ended in another way; as [`RunWriter::append_record`].
    pub fn end(&self, outcome: &Outcome) -> Result<Appended> {
        self.log.engine().end(self.run_no, outcome).map_err(|error| self.explain(error))
    }

    /// The engine knows a deleted run by its number only.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Evicted { run: None } => Error::Evicted { run: Some(self.run.clone()) },
            other => other,
        }
    }
}

impl fmt::Debug for RunWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunWriter")
            .field("agent", &self.agent)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}
