//! The handle of an open store: [`RunLog`].

use core::fmt;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::api::run_writer::RunWriter;
use crate::engine::api::stats::Stats;
use crate::engine::background::{Open, Threads};
use crate::engine::compact::Compacted;
use crate::engine::read::Reader;
use crate::engine::read::receipts::Receipt;
use crate::engine::read::trace::Trace;
use crate::engine::retain::{Collected, GcPlan};
use crate::engine::setup::due::Wanted;
use crate::engine::setup::environment::{Environment, Steps};
use crate::engine::setup::health::Health;
use crate::engine::values::Metadata;
use crate::engine::values::pages::{Adopted, Deleted, Erased};
use crate::engine::values::report::{Closed, RecoveryReport};
use crate::engine::verify::VerifyReport;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::gc::{Retention, Rule};
use crate::types::{Durability, RunRef, Timestamp};

/// An open store. Clones are cheap and share the store. Dropping the last one closes it, like
/// [`RunLog::close`]; only the observer learns whether that worked, by the end of
/// [`Activity::Close`](crate::Activity::Close).
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
    pub(crate) open: Arc<Open>,
}

impl RunLog {
    /// Starts the threads of an engine that recovery has opened.
    pub(crate) fn start(engine: Arc<Engine>) -> Result<Self> {
        engine.log.disk.on_poison(Arc::<Log>::downgrade(&engine.log));
        engine.log.due.helped_by(Arc::<Engine>::downgrade(&engine));
        let threads = if let Some(scheduler) = &engine.log.setup.options.scheduler {
            scheduler.begin(Steps::new(Arc::<Engine>::downgrade(&engine)));
            None
        } else if engine.log.setup.options.background {
            Some(Threads::start(&engine)?)
        } else {
            match engine.checkpoints.checkpoint() {
                // A quarantined segment stops the index, and no opening.
                Err(Error::Corrupt(_)) => {}
                done => done?,
            }
            // Opening moves nothing: a later deletion, or a checkpoint that finds much, asks again.
            engine.log.due.forget(Wanted::MOVES);
            engine.log.due.after_change();
            None
        };
        Ok(Self { open: Arc::new(Open::new(engine, threads)) })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.open.engine
    }

    pub(crate) fn log(&self) -> &Arc<Log> {
        &self.open.engine.log
    }

    /// Refuses a call that changes the store if it is closed, or in a forked child.
    fn check_open(&self) -> Result<()> {
        self.log().disk.check_open()?;
        self.log().reader.open().map(drop)
    }

    /// Answers a question by reading. An answer that arrives after the store was closed is
    /// discarded: it may rest on a state without segments.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&Reader) -> Result<T>) -> Result<T> {
        let answer = ask(&self.log().reader);
        if self.log().disk.is_closed() { Err(Error::Closed) } else { answer }
    }

    /// Does work whose result stays true, but which may fail because the file was released.
    pub(crate) fn work<T>(&self, work: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        let done = work(self.engine());
        self.log().disk.unless_closed(done)
    }

    /// Starts a run. Starting it again with the same metadata returns the same run, so a caller who
    /// does not know whether a start succeeded can repeat it. If the run has ended meanwhile, it
    /// stays ended. [`RunWriter::was_found`] tells whether the run existed before the call.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`] unless the metadata says otherwise.
    ///
    /// # Errors
    /// [`Error::RunExists`] if the run was started with other metadata, [`Error::RunEnded`] if it
    /// has ended without a start, [`Error::InvalidId`], [`Error::TooLarge`], [`Error::DiskFull`].
    pub fn start_run<'m>(
        &self,
        agent: &str,
        run: &str,
        metadata: impl Into<Metadata<'m>>,
    ) -> Result<RunWriter> {
        let (engine, metadata) = (self.engine(), metadata.into());
        let started = engine.log.start(agent, run, &metadata);
        Ok(RunWriter::new(self.clone(), engine.log.told(started, metadata.durability)?))
    }

    /// A writer that continues a run in progress.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunEnded`].
    pub fn writer<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<RunWriter> {
        let opened = self.work(|engine| engine.log.resume(run.into()))?;
        Ok(RunWriter::new(self.clone(), opened))
    }

    /// The records of a run as of now, in order. It does not scan: the index leads to the segments,
    /// and their directories to the records.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`].
    pub fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace> {
        self.ask(|reader| reader.trace(run.into()))
    }

    /// Ends, as [`Interrupted`](crate::RunStatus), all runs in progress that were neither started
    /// nor appended to since the store was opened, because their writers are gone. A second call
    /// finds no such run.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::DiskFull`], and those of ending a run. Runs that were already ended stay ended.
    pub fn adopt_orphans(&self) -> Result<Adopted> {
        let adopted = self.log().adopt();
        self.ask(|_| adopted.map(|runs| Adopted { runs }))
    }

    /// Deletes an ended run. Its space can be used again once all runs in the same segments are
    /// deleted, or once compaction has moved the others.
    ///
    /// # Durability
    /// Disk. A trace that was opened before still reads the run to its end.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::RunInProgress`], [`Error::RunHeld`],
    /// [`Error::DiskFull`].
    pub fn delete_run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Deleted> {
        let deleted = self.engine().retainer.delete(run.into(), Rule::Deleted);
        let (_, bytes) = self.log().told(deleted, Durability::Disk)?;
        Ok(Deleted { bytes })
    }

    /// Deletes an ended run, and copies its neighbours to other extents, until the file contains no
    /// byte of its payloads: not in free extents, not behind a torn tail, and not in the index. The
    /// receipt of the deletion keeps the ids of the run.
    ///
    /// It copies the segments that had records of the run, and takes as long as that. Extents that
    /// still have readers keep their bytes until the readers drop them: [`Erased::pinned_extents`]
    /// counts these extents, and the next call of [`RunLog::reclaim`] frees them.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// Those of [`RunLog::delete_run`]; [`Error::Corrupt`] if a segment with records of the run is
    /// damaged, since a copy would hide what is missing; [`Error::Io`] if one cannot be read;
    /// [`Error::DiskFull`]; [`Error::Closed`] if the store is closed meanwhile. The run is deleted
    /// then, but bytes remain, after damage only in such segments: call it again to continue. After
    /// [`Error::RunNotFound`] no byte of it remains. In a store with a quarantined segment
    /// ([`Health::quarantined`]) it returns [`Error::Corrupt`] and deletes nothing.
    pub fn erase_run<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Erased> {
        let erased = self.engine().retainer.erase(run.into());
        let (bytes, pinned_extents) = self.log().told(erased, Durability::Disk)?;
        Ok(Erased { bytes, pinned_extents })
    }

    /// What a policy would evict now and why, and what it would keep and why. Changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if [`Retention::check`] refuses the policy; [`Error::Corrupt`].
    pub fn gc_plan(&self, policy: &Retention) -> Result<GcPlan> {
        let plan = self.engine().retainer.gc_plan(policy);
        self.ask(|_| Ok(plan?.0))
    }

    /// Evicts the runs that a policy does not keep, and frees the segments that are dead
    /// afterwards. It never evicts a run in progress or a held run.
    ///
    /// Segments without living runs are free when the call returns, and the next appends use them.
    /// Later, in the background, their blocks return to the file system, and living runs move out
    /// of other segments; a store without threads does both before the call returns. See
    /// [`Compaction`](crate::Compaction).
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// Those of [`RunLog::gc_plan`], and the cause of a failed write or sync. Runs that were
    /// evicted before the error stay evicted. A segment that cannot be read is no error: it stays,
    /// and [`RunLog::health`] says so.
    pub fn gc(&self, policy: &Retention) -> Result<Collected> {
        let collected = self.engine().retainer.gc(policy);
        self.ask(|_| collected)
    }

    /// Evicts these runs, each for the rule next to it, and frees the segments that are dead
    /// afterwards, as [`RunLog::gc`] does for a policy. Use it for plans that no policy can
    /// express, for example because they depend on the contents of records;
    /// [`retention::plan`](crate::retention::plan) can help to make them. A run that is in
    /// progress, held, or does not exist is skipped.
    ///
    /// # Durability
    /// Disk; one sync serves many runs.
    ///
    /// # Errors
    /// [`Error::Ambiguous`]; [`Error::InvalidArgument`] for [`Rule::Erased`]: use
    /// [`RunLog::erase_run`] for that. Otherwise those of [`RunLog::gc`].
    pub fn evict(&self, runs: &[(RunRef<'_>, Rule)]) -> Result<Collected> {
        let collected = self.engine().retainer.evict(runs);
        let collected = self.log().told(collected, Durability::Disk);
        self.ask(|_| collected)
    }

    /// The receipts of deleted runs, the latest first, at most `limit`. How long receipts are kept
    /// is set by [`Options::receipts`](crate::Options::receipts).
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`].
    pub fn receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
        self.ask(|reader| Ok(reader.list_receipts(limit)?.0))
    }

    /// Compacts all full segments: it puts the records of each ended run next to one another, and
    /// frees the space of deleted runs. With `Options::compression` it compresses all ended runs in
    /// these segments, while background compression waits until several segments are worth it. One
    /// step compresses 32 MiB of the log or more; a run that is in several steps then lies in as
    /// many places.
    /// With [`SpaceReturn::Shrink`](crate::SpaceReturn::Shrink) it makes the file as short as the
    /// segments allow; the background does so only where that is worth its writes. Appends and
    /// reads continue meanwhile.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if there is no space for any step; nothing has changed then. A step that
    /// frees space gets by with an extent. One that only orders or compresses runs needs room for
    /// its whole copy, up to 8 extents. The cause of a failed write or sync.
    pub fn compact(&self) -> Result<Compacted> {
        self.check_open()?;
        let compacted = self.engine().compactor.compact_all();
        self.ask(|_| compacted)
    }

    /// Returns once everything that was appended before the call survives power loss.
    ///
    /// # Errors
    /// The cause of a failed sync, or [`Error::Poisoned`].
    pub fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.log().sync_all()
    }

    /// Brings the index up to the last full segment. Otherwise this happens in the background.
    ///
    /// # Errors
    /// The cause of a failed sync. [`Error::Corrupt`] if the index lacks a quarantined segment
    /// ([`Health::quarantined`]). Other failures of the index are not returned; it is rebuilt.
    pub fn checkpoint(&self) -> Result<()> {
        self.check_open()?;
        self.log().sync_all()?;
        let done = self.engine().checkpoints.checkpoint();
        self.ask(|_| done)
    }

    /// Frees the space of deleted runs as far as possible. Otherwise this happens in the
    /// background. It frees dead segments and, unless the options forbid it, moves living runs out
    /// of segments that are mostly dead. If a full disk has no space for that, it drops the index,
    /// which is rebuilt once there is space for the log to continue.
    ///
    /// # Errors
    /// The cause of a failed write or sync. [`Error::DiskFull`] if living records must move and
    /// there is no space for a copy; the segments that were dead as a whole are free then. A
    /// segment that cannot be read is no error: it stays, and [`RunLog::health`] says so.
    pub fn reclaim(&self) -> Result<()> {
        self.check_open()?;
        let reclaimed = self.engine().retainer.reclaim();
        self.ask(|_| reclaimed)
    }

    /// The clock and the randomness of this store, as its options set them, for layers on top that
    /// need the same.
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

    /// Checks everything: each structure, each frame, and the index against the segments. It reads
    /// the whole file and changes nothing. Appends and reads continue meanwhile.
    ///
    /// # Errors
    /// Only what keeps it from reading. Damage is in the report instead.
    pub fn verify(&self) -> Result<VerifyReport> {
        let verified = self.engine().verify();
        self.ask(|_| verified)
    }

    /// The time of the clock in the options, which stamps everything that has no time of its own.
    /// It may jump in both directions.
    pub fn now(&self) -> Timestamp {
        self.log().setup.now()
    }

    /// Numbers about the store. Reads all directories: a few milliseconds for 100,000 runs.
    ///
    /// # Errors
    /// The cause, if the length of the file cannot be read; [`Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        let stats = self.engine().stats();
        self.ask(|_| stats)
    }

    /// What is wrong with the store, as far as its calls and its background work have noticed since
    /// it was opened: poison and its cause, a full disk, repeated failures, and stalled compaction;
    /// and when it last synced. It also answers for a poisoned or closed store.
    ///
    /// It takes one lock that no append and no read takes, and does no I/O, so it is cheap.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-health-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// let log = runlog::Options::new().open(&path)?;
    /// log.start_run("planner", "run-1", ())?;
    /// let health = log.health();
    /// assert!(health.is_well());
    /// let sync = health.last_sync.expect("the start was synced");
    /// println!("the last sync was {:?} ago and took {:?}", sync.ago, sync.took);
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn health(&self) -> Health {
        let quarantined = self.log().quarantined();
        Health { quarantined, ..self.log().setup.monitor.health() }
    }

    /// Makes everything durable, brings the index up to date, marks the file as cleanly closed, and
    /// closes it. Other handles, writers and traces return [`Error::Closed`] from then on. Tickets
    /// report their appends as durable.
    ///
    /// Records and payloads that the program holds stay readable. They, and traces, may be views of
    /// the file; the last view releases the lock of the file. [`Closed::live_views`] says how many
    /// views live. Until they are dropped, opening the file returns [`Error::Locked`] in this
    /// process, and [`Error::Busy`] in others.
    ///
    /// If much was deleted since a compaction last came to its end, closing compacts some of it, so
    /// that programs which are too short for the background keep no dead space. It does if the
    /// deleted bytes are at least 4 extents and an eighth of the log, and
    /// [`Compaction::automatic`](crate::Compaction::automatic) is set; it stops behind a step
    /// with which it has read or written 32 MiB. A step takes up to 8 extents, and with the default
    /// extents some tenths of a second.
    ///
    /// # Errors
    /// The cause of a failed write or sync. The file is closed nevertheless, and reopening recovers
    /// everything that was acknowledged. A second call returns the result of the first.
    pub fn close(self) -> Result<Closed> {
        self.open.close()
    }
}

impl fmt::Debug for RunLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunLog").field("path", &self.engine().path).finish_non_exhaustive()
    }
}
