//! The handle of the public API: [`RunLog`], the store.

use core::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::compact::Compacted;
use super::env::Environment;
use super::options::Rate;
use super::pages::{Adopted, Cursor, Deleted, Erased, RunPage};
use super::receipts::Receipt;
use super::report::RecoveryReport;
use super::retain::{Collected, GcPlan};
use super::shared::Engine;
use super::stats::Stats;
use super::trace::Trace;
use super::upkeep::{Steps, Threads};
use super::values::{Metadata, Outcome, RunSummary};
use super::verify::VerifyReport;
use super::writer::RunWriter;
use crate::error::{Error, Result};
use crate::gc::{Retention, Rule};
use crate::types::{AgentId, ContentType, Durability, RunRef, RunStatus, Timestamp};

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
        if self.engine.disk.is_inherited() {
            // Dropping an index writes, and waits for threads that a child does not have.
            core::mem::forget(Arc::clone(&self.engine));
        }
    }
}

impl RunLog {
    /// Starts the threads of an engine that recovery has put in order.
    pub(crate) fn start(engine: Arc<Engine>) -> Result<Self> {
        engine.disk.on_poison(Arc::<Engine>::downgrade(&engine));
        let threads = if let Some(scheduler) = &engine.options.scheduler {
            scheduler.begin(Steps::new(&engine));
            None
        } else if engine.options.background {
            Some(Threads::start(&engine)?)
        } else {
            engine.checkpoint()?;
            engine.after_change();
            None
        };
        Ok(Self { open: Arc::new(Open { engine, threads: Mutex::new(threads) }) })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.open.engine
    }

    fn check_open(&self) -> Result<()> {
        self.engine().open_core().map(drop)
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
        let (engine, metadata) = (self.engine(), metadata.into());
        let started = engine.start(agent, run, &metadata);
        let (run_no, agent, run) = engine.told(started, metadata.durability)?;
        Ok(RunWriter::new(self.clone(), run_no, agent, run))
    }

    /// A writer of a run in progress, to go on with it.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunEnded`].
    pub fn writer<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunWriter> {
        let engine = self.engine();
        let mut core = engine.open_core()?;
        let run_no = engine.resolve(&core, run.into())?;
        engine.load(&mut core, run_no)?;
        let hot = core.hot.get_mut(run_no).ok_or(Error::Closed)?;
        let (agent, run, status) = (hot.agent.clone(), hot.run.clone(), hot.status);
        if status.is_ended() {
            return Err(Error::RunEnded { agent, run, status });
        }
        (hot.touched, hot.has_writer) = (true, true);
        drop(core);
        Ok(RunWriter::new(self.clone(), run_no, agent, run))
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
        let core = engine.open_core()?;
        let run_no = engine.resolve(&core, RunRef::from(run))?;
        engine.agent_of_number(&core, run_no, run)
    }

    /// The summary of a run.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunSummary> {
        let engine = self.engine();
        let core = engine.open_core()?;
        let run = run.into();
        let run_no = engine.resolve(&core, run)?;
        let row = engine.named_row(&core, run_no, run.run())?;
        Ok(RunSummary::from_row(Arc::unwrap_or_clone(row)))
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
        let core = engine.open_core()?;
        let run_no = engine.resolve(&core, run.into())?;
        let start = engine.start_frame(&core, run_no)?;
        Ok(start.map(|(header, metadata)| (header.content, metadata)))
    }

    /// How a run ended; `None` while it is in progress.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
    pub fn outcome<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<Outcome>> {
        let engine = self.engine();
        let core = engine.open_core()?;
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
        AgentId::check(agent)?;
        self.engine().page(Some(agent), after.map(Cursor::key), limit)
    }

    /// A page of all runs, newest first.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn all_runs(&self, after: Option<&Cursor>, limit: usize) -> Result<RunPage> {
        self.engine().page(None, after.map(Cursor::key), limit)
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
        let deleted = self.engine().delete(run.into(), Rule::Deleted);
        Ok(Deleted { bytes: self.engine().told(deleted, Durability::Disk)? })
    }

    /// Deletes an ended run, and rewrites what is stored near it, until no byte of its payloads is
    /// left in the file: not in free extents, nor behind a torn tail, nor in the index. What is
    /// kept to tell of the deletion has the ids of the run.
    ///
    /// Takes as long as copying the segments that had records of the run. Extents that somebody
    /// still reads keep their bytes until they are let go: [`Erased::pinned_extents`] counts them,
    /// and the next call of [`RunLog::reclaim`] frees them.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// As [`RunLog::delete_run`]; [`Error::Corrupt`] when a segment with records of the run is
    /// damaged, since a copy would hide what is missing; [`Error::DiskFull`]; [`Error::Closed`]
    /// when the store is closed meanwhile. The run is deleted then, and bytes remain: another call
    /// goes on, as it does with any run that was deleted and has bytes left.
    pub fn erase_run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Erased> {
        let erased = self.engine().erase(run.into());
        let (bytes, pinned_extents) = self.engine().told(erased, Durability::Disk)?;
        Ok(Erased { bytes, pinned_extents })
    }

    /// What a policy would evict now and why, and what it would not. Changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a policy that cannot be meant; [`Error::Corrupt`].
    pub fn gc_plan(&self, policy: &Retention) -> Result<GcPlan> {
        Ok(self.engine().gc_plan(policy)?.0)
    }

    /// Evicts what a policy does not keep, and frees what is dead then. A run in progress is never
    /// evicted, nor is one that is held.
    ///
    /// Segments without living runs are free when this returns, so that what is appended next takes
    /// their place. In the background, or in a store without threads before this returns, their
    /// space goes back to the file system, and living runs move out of the other segments; see
    /// [`Compaction`](crate::Compaction).
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// As [`RunLog::gc_plan`]; what made a write or sync fail. Runs that were evicted before it
    /// stay so.
    pub fn gc(&self, policy: &Retention) -> Result<Collected> {
        self.engine().gc(policy)
    }

    /// Evicts these runs, each for the rule that is named with it, and frees what is dead then, as
    /// [`RunLog::gc`] does for a policy: for owners whose plan no policy can say, since it looks
    /// into records, made with [`retention::plan`](crate::retention::plan) or without. A run that
    /// is in progress, held, or not there is passed over.
    ///
    /// # Durability
    /// Disk; one sync serves many runs.
    ///
    /// # Errors
    /// [`Error::Ambiguous`]; [`Error::InvalidArgument`] for [`Rule::Erased`], for which there is
    /// [`RunLog::erase_run`]. Otherwise as [`RunLog::gc`].
    pub fn evict(&self, runs: &[(RunRef<'_>, Rule)]) -> Result<Collected> {
        self.engine().evict(runs)
    }

    /// Receipts of deleted runs, the latest first, as far as they are kept; see
    /// [`Options::receipts`](crate::Options::receipts).
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`].
    pub fn receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
        self.check_open()?;
        self.engine().list_receipts(limit)
    }

    /// Compacts all full segments: the records of each ended run come to lie next to one another,
    /// and the space of deleted ones becomes free. With `Options::compression` all runs there that
    /// have ended are compressed, while what happens by itself waits until several segments are
    /// worth it. Appends and reads go on meanwhile.
    ///
    /// # Errors
    /// [`Error::DiskFull`] when there is no room for a copy: nothing has changed then. What made a
    /// write or sync fail.
    pub fn compact(&self) -> Result<Compacted> {
        self.check_open()?;
        self.engine().compact_all()
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
    /// background: frees what is dead and, unless the options say otherwise, moves what lives out
    /// of segments that are mostly dead. On a full disk that has no space for that the index gives
    /// way: it is built anew once there is space for the log to go on.
    ///
    /// # Errors
    /// What made a write or sync fail. [`Error::DiskFull`] if living records must move and there is
    /// no space for a copy; what was dead as a whole is free then.
    pub fn reclaim(&self) -> Result<()> {
        self.check_open()?;
        // Only what the catalog covers can be freed.
        self.engine().cover_seals()?;
        self.engine().reclaim()?;
        self.engine().give_back_freed()?;
        let compacted = if self.engine().options.compaction.automatic {
            self.engine().compact_for_space(Rate::Unlimited).map(drop)
        } else {
            Ok(())
        };
        self.engine().let_log_go_on()?;
        compacted
    }

    /// What the store takes from its surroundings, as its options said: for layers on top of it
    /// that need the same time and the same randomness.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-envi-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// let log = runlog::Options::new().open(&path)?;
    /// assert!(log.environment().clock.now().0 > 0);
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn environment(&self) -> &Environment {
        &self.engine().options.environment
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

    /// The time as the clock of the options tells it, which is what is stamped on all that has no
    /// time of its own. May jump in both directions.
    pub fn now(&self) -> Timestamp {
        self.engine().now()
    }

    /// Numbers about the store. Reads the directories of all segments: a few milliseconds for
    /// 100,000 runs.
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

impl fmt::Debug for RunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLog").field("path", &self.engine().path).finish_non_exhaustive()
    }
}
