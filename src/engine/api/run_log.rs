//! The handle of the public API: [`RunLog`], the store.

use core::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::Engine;
use crate::engine::api::run_writer::RunWriter;
use crate::engine::api::stats::Stats;
use crate::engine::background::Threads;
use crate::engine::compact::Compacted;
use crate::engine::read::Reader;
use crate::engine::read::receipts::Receipt;
use crate::engine::read::trace::Trace;
use crate::engine::retain::{Collected, GcPlan};
use crate::engine::setup::environment::{Environment, Steps};
use crate::engine::values::pages::{Adopted, Cursor, Deleted, Erased, RunPage};
use crate::engine::values::report::RecoveryReport;
use crate::engine::values::summary::RunSummary;
use crate::engine::values::{Metadata, Outcome};
use crate::engine::verify::VerifyReport;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::gc::{Retention, Rule};
use crate::types::{AgentId, ContentType, Durability, RunRef, Timestamp};

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
        if self.engine.log.disk.is_inherited() {
            // Dropping an index writes, and waits for threads that a child does not have.
            core::mem::forget(Arc::clone(&self.engine));
        }
    }
}

impl RunLog {
    /// Starts the threads of an engine that recovery has put in order.
    pub(crate) fn start(engine: Arc<Engine>) -> Result<Self> {
        engine.log.disk.on_poison(Arc::<Log>::downgrade(&engine.log));
        engine.log.due.helped_by(Arc::<Engine>::downgrade(&engine));
        let threads = if let Some(scheduler) = &engine.log.setup.options.scheduler {
            scheduler.begin(Steps::new(Arc::<Engine>::downgrade(&engine)));
            None
        } else if engine.log.setup.options.background {
            Some(Threads::start(&engine)?)
        } else {
            engine.checkpoints.checkpoint()?;
            engine.log.due.after_change();
            None
        };
        Ok(Self { open: Arc::new(Open { engine, threads: Mutex::new(threads) }) })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.open.engine
    }

    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.open.engine.log
    }

    fn check_open(&self) -> Result<()> {
        self.log().reader.open().map(drop)
    }

    /// Asks what is answered by reading. An answer that comes after the end of the store is thrown
    /// away: it may rest on zeros, which views show then.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        let answer = ask(&self.log().reader);
        if self.log().disk.is_closed() { Err(Error::Closed) } else { answer }
    }

    /// Does what is true once it is done, and may fail because of zeros; see [`RunLog::ask`].
    pub(crate) fn work<T>(&self, work: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        self.log().disk.unless_closed(work(self.engine()))
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
        let started = engine.log.start(agent, run, &metadata);
        let (run_no, agent, run) = engine.log.told(started, metadata.durability)?;
        Ok(RunWriter::new(self.clone(), run_no, agent, run))
    }

    /// A writer of a run in progress, to go on with it.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunEnded`].
    pub fn writer<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunWriter> {
        let (run_no, agent, run) = self.work(|engine| engine.log.resume(run.into()))?;
        Ok(RunWriter::new(self.clone(), run_no, agent, run))
    }

    /// The records of a run, in order, as of now. Without a scan: the index leads to the segments,
    /// their directories to the records.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace> {
        self.ask(|reader| reader.trace(run.into()))
    }

    /// The agent that has this run.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn agent_of(&self, run: &str) -> Result<AgentId> {
        self.ask(|reader| reader.agent_of(run))
    }

    /// The summary of a run.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunSummary> {
        self.ask(|reader| reader.summary(run.into()))
    }

    /// What the start of a run said, with its content type; `None` for a run without a start.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
    pub fn metadata<'r>(
        &self,
        run: impl Into<RunRef<'r>>,
    ) -> Result<Option<(ContentType, Vec<u8>)>> {
        self.ask(|reader| reader.metadata(run.into()))
    }

    /// How a run ended; `None` while it is in progress.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::Corrupt`].
    pub fn outcome<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<Outcome>> {
        self.ask(|reader| reader.outcome(run.into()))
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
        self.ask(|reader| reader.page(Some(agent), after.map(Cursor::key), limit))
    }

    /// A page of all runs, newest first.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn all_runs(&self, after: Option<&Cursor>, limit: usize) -> Result<RunPage> {
        self.ask(|reader| reader.page(None, after.map(Cursor::key), limit))
    }

    /// A page of the runs in progress, in the order in which they were started.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn in_progress(&self, after: Option<&Cursor>, limit: usize) -> Result<RunPage> {
        let after = after.map(|cursor| cursor.key().1);
        let wanted = limit.saturating_add(1);
        self.ask(|reader| Ok(RunPage::new(reader.in_progress_page(after, wanted)?, limit)))
    }

    /// Agents that have runs, by id, behind `after`.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn agents(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentId>> {
        self.ask(|reader| reader.agents_page(after, limit))
    }

    /// Ends, as [`Interrupted`](crate::RunStatus), all runs in progress that were neither started
    /// nor appended to since the store was opened: their writers are gone. A second call finds
    /// none.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::DiskFull`] and whatever an end can meet; runs that were adopted before stay so.
    pub fn adopt_orphans(&self) -> Result<Adopted> {
        let adopted = self.log().adopt();
        self.ask(|_| Ok(Adopted { runs: adopted? }))
    }

    /// Deletes an ended run. Its space is used again once all runs in the same segments are gone.
    ///
    /// # Durability
    /// Disk. A trace that is being read sees its run to the end.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunInProgress`].
    pub fn delete_run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Deleted> {
        let deleted = self.engine().retainer.delete(run.into(), Rule::Deleted);
        let (_, bytes) = self.log().told(deleted, Durability::Disk)?;
        Ok(Deleted { bytes })
    }

    /// Deletes an ended run, and rewrites what is stored near it, until no byte of its payloads is
    /// left in the file: not in free extents, nor behind a torn tail, nor in the index. What is
    /// kept to tell of the deletion has the ids of the run.
    ///
    /// Takes as long as copying the segments that had records of the run. Extents that
    /// still have readers keep their bytes until these are gone: [`Erased::pinned_extents`] counts
    /// them, and the next call of [`RunLog::reclaim`] frees them.
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
        let erased = self.engine().retainer.erase(run.into());
        let (bytes, pinned_extents) = self.log().told(erased, Durability::Disk)?;
        Ok(Erased { bytes, pinned_extents })
    }

    /// What a policy would evict now and why, and what it would not. Changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a policy that cannot be meant; [`Error::Corrupt`].
    pub fn gc_plan(&self, policy: &Retention) -> Result<GcPlan> {
        let plan = self.engine().retainer.gc_plan(policy);
        self.ask(|_| Ok(plan?.0))
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
        let collected = self.engine().retainer.gc(policy);
        self.ask(|_| collected)
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
        let collected = self.engine().retainer.evict(runs);
        self.ask(|_| collected)
    }

    /// Receipts of deleted runs, the latest first, as far as they are kept; see
    /// [`Options::receipts`](crate::Options::receipts).
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`].
    pub fn receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
        self.check_open()?;
        self.ask(|reader| reader.list_receipts(limit))
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
        let compacted = self.engine().compactor.compact_all();
        self.ask(|_| compacted)
    }

    /// Returns once everything that was appended so far survives power loss.
    ///
    /// # Errors
    /// What made the sync fail, or [`Error::Poisoned`].
    pub fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.log().sync_all()
    }

    /// Brings the index up to the last full segment, which otherwise happens in the background.
    ///
    /// # Errors
    /// What made the sync fail. Index failures are not returned; the index is rebuilt.
    pub fn checkpoint(&self) -> Result<()> {
        self.check_open()?;
        self.log().sync_all()?;
        let done = self.engine().checkpoints.checkpoint();
        self.ask(|_| done)
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
        let reclaimed = self.engine().retainer.reclaim();
        self.ask(|_| reclaimed)
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
        &self.log().setup.options.environment
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
        let verified = self.engine().verify();
        self.ask(|_| verified)
    }

    /// The time as the clock of the options tells it, which is what is stamped on all that has no
    /// time of its own. May jump in both directions.
    pub fn now(&self) -> Timestamp {
        self.log().setup.now()
    }

    /// Numbers about the store. Reads the directories of all segments: a few milliseconds for
    /// 100,000 runs.
    ///
    /// # Errors
    /// What keeps it from asking for the length of the file.
    pub fn stats(&self) -> Result<Stats> {
        let stats = self.engine().stats();
        self.ask(|_| stats)
    }

    /// Makes everything durable, brings the index up to date, marks the file as closed in order,
    /// and releases the file and its lock.
    ///
    /// Other handles, writers and traces get [`Error::Closed`] from then on. Records and payloads
    /// that were handed out stay readable, and tickets tell that their appends are durable. To let
    /// go of the file, closing copies into memory the data of each mapped segment that the program
    /// holds a record or payload of: up to an extent for each, however small the record.
    ///
    /// # Errors
    /// What made a write or sync fail. The file is released all the same, and reopening recovers
    /// whatever was acknowledged. A second call answers what the first did. [`Error::Io`] with
    /// [`IoAction::Close`](crate::IoAction::Close) when bytes that the program holds could not be
    /// read to be copied (they show zeros), or the system has no memory for the copy (then the file
    /// stays open and locked until the program drops all that refers to the store).
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
