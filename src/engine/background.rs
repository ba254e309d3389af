//! Periodic work: syncing, zeros ahead of the tail, setting segments aside, checkpoints of the
//! index, giving space back. By default three threads do it, so that a long checkpoint delays
//! neither a sync nor the zeros; a compaction lets checkpoints in between. Without threads each
//! call that changes the store does the due work before it returns. The work always consists of
//! [`Step`]s, which a [`Scheduler`] can run in any order: no step may rely on another step having
//! run before.
//!
//! [`Scheduler`]: crate::engine::setup::environment::Scheduler

use core::panic::AssertUnwindSafe;
use core::task::Waker;
use core::time::Duration;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::engine::Engine;
use crate::engine::setup::due::{Helper, Wanted, Worker};
use crate::engine::setup::environment::{RunStep, Step};
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Rate;
use crate::engine::setup::signal::Signal;
use crate::engine::values::report::Closed;
use crate::error::{Error, IoAction, Result};
use crate::format::map::superblock::{FLAG_CLEAN, FLAG_INDEX_OPENING};

/// How often the tail is looked at while something is appended.
const POLL: Duration = Duration::from_micros(500);
/// After so many polls without an append its thread waits to be woken: 100 ms.
const IDLE_POLLS: u32 = 200;

/// The background threads. Dropping this stops and joins them.
#[derive(Debug)]
pub(crate) struct Threads {
    engine: Arc<Engine>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them.
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<Self> {
        let mut threads = Self { engine: Arc::clone(engine), handles: Vec::new() };
        for (number, worker) in engine.log.due.workers.iter().enumerate() {
            let engine = Arc::clone(engine);
            let thread = std::thread::Builder::new().name(worker.name.to_owned());
            let run = move || engine.log.due.workers.get(number).map(|one| engine.work_on(one));
            let spawned = thread.spawn(move || run().unwrap_or_default());
            let handle = spawned.map_err(|source| Error::io(IoAction::Thread, source))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.engine.log.due.stop();
        // A waker that drops the last handle of the store closes it on the thread that calls it.
        let own = std::thread::current().id();
        for handle in self.handles.drain(..).filter(|handle| handle.thread().id() != own) {
            let _ = handle.join();
        }
    }
}

/// The engine and its threads, which all handles of a store share. It is dropped with the last one,
/// which closes the store.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) engine: Arc<Engine>,
    threads: Mutex<Option<Threads>>,
    /// Set once closing it has ended.
    over: Arc<OnceLock<()>>,
}

/// A reference that does not keep a store open.
#[derive(Debug, Clone)]
pub(crate) struct WeakOpen {
    open: Weak<Open>,
    over: Arc<OnceLock<()>>,
}

/// Sets what waits for an end, also after a panic.
struct Over<'a>(&'a OnceLock<()>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let _ = self.0.set(());
    }
}

impl Open {
    pub(crate) fn new(engine: Arc<Engine>, threads: Option<Threads>) -> Self {
        Self { engine, threads: Mutex::new(threads), over: Arc::default() }
    }

    pub(crate) fn downgrade(self: &Arc<Self>) -> WeakOpen {
        WeakOpen { open: Arc::downgrade(self), over: Arc::clone(&self.over) }
    }

    /// Stops the threads, and closes the engine.
    pub(crate) fn close(&self) -> Result<Closed> {
        if self.engine.log.disk.is_inherited() {
            return Err(Error::Closed);
        }
        self.engine.compact_before_close();
        let threads = self.threads.lock().take();
        drop(threads);
        self.engine.close()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _over = Over(&self.over);
        if self.engine.log.disk.is_inherited() {
            // A forked child has no threads to join, and dropping the index would write.
            core::mem::forget((Arc::clone(&self.engine), self.threads.get_mut().take()));
            return;
        }
        // The observer was told how it went.
        let _ = self.close();
    }
}

impl WeakOpen {
    pub(crate) fn is_open(&self) -> bool {
        self.over.get().is_none()
    }

    /// The store, unless it is closed. If it is being closed, this returns once closing has ended.
    pub(crate) fn upgrade(&self) -> Option<Arc<Open>> {
        let Some(open) = self.open.upgrade() else {
            self.over.wait();
            return None;
        };
        let engine = &open.engine;
        if engine.log.state.lock().closed || engine.log.disk.is_closed() {
            // The thread that closes it has the lock until closing has ended.
            drop(engine.closing.lock());
            return None;
        }
        Some(open)
    }
}

/// The waker of a task, until it was woken.
pub(crate) type Sleeping = Arc<Mutex<Option<Waker>>>;

/// A thread that wakes a task which follows a log: whenever a signal rings, and every so often.
/// The waker is called here, and never by a thread that holds a lock of the store. Dropping the
/// ticker ends the thread, which may be in a waker, so it is not waited for.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    signal: Arc<Signal>,
}

impl Ticker {
    /// Wakes the task in `sleeping`.
    pub(crate) fn start(signal: Arc<Signal>, often: Duration, sleeping: Sleeping) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, bell) = (Arc::clone(&stop), Arc::clone(&signal));
        let tick = move || {
            bell.arm();
            while !stopped.load(Ordering::Acquire) {
                bell.wait(often);
                // Before the task is woken: what it does not find rings again.
                bell.arm();
                let waker = sleeping.lock().take();
                if let Some(waker) = waker {
                    // A panic is the task's own.
                    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("runlog-follow".to_owned());
        thread.spawn(tick).map_err(|source| Error::io(IoAction::Thread, source))?;
        Ok(Self { stop, signal })
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.signal.ring();
    }
}

impl Engine {
    /// The loop of one thread, until the store is closed.
    fn work_on(&self, worker: &Worker) {
        let options = &self.log.setup.options;
        let (mut deadline, rate) = (None, options.compaction.rate);
        if worker.does.has(Wanted::CHECKPOINT) {
            // An index that the file already has is opened at once.
            let _ = self.run_step(Step::Checkpoint, rate);
        }
        while let Some(work) = self.log.due.await_work(worker, options.sync_interval, &mut deadline)
        {
            // The observer was told of a panic. The thread goes on, since it wakes the tasks.
            if catch_unwind(AssertUnwindSafe(|| self.do_work(work, rate))).is_err() {
                self.log.disk.poison(&Error::Panicked);
            }
            self.log.commit.wake_ready();
        }
    }

    /// Keeps zeros ahead of the tail as long as something is appended, and maps segments.
    fn follow_tail(&self) {
        let (mut last, mut idle) = (None, 0);
        while idle < IDLE_POLLS && self.run_step(Step::Zeros, Rate::Unlimited).is_ok() {
            if self.reclaimer.prefault_next() {
                if self.log.due.is_stopping() {
                    return;
                }
                continue;
            }
            let written = self.log.commit.written();
            idle = if last.replace(written) == Some(written) { idle + 1 } else { 0 };
            if !self.log.due.pause_tail(POLL) {
                return;
            }
        }
        self.log.due.rest_tail();
    }

    fn do_work(&self, work: Wanted, rate: Rate) {
        let run = |step| self.run_step(step, rate);
        if work.has(Wanted::ZEROS) {
            self.follow_tail();
        }
        if work.has(Wanted::RESERVE) {
            let _ = run(Step::Reserve);
        }
        if work.has(Wanted::SYNC) {
            let _ = run(Step::Sync);
        }
        if work.has(Wanted::CHECKPOINT) && self.checkpoints.is_due() {
            let _ = run(Step::Checkpoint);
        }
        if work.has(Wanted::SPACE_WORK) {
            let freed = run(Step::Reclaim).and_then(|()| run(Step::GiveBack));
            // Compaction does not depend on whether freeing succeeded.
            let compacted = if work.has(Wanted::COMPACT) {
                run(Step::Compact)
            } else if work.has(Wanted::PACK) {
                run(Step::Compress)
            } else {
                Ok(())
            };
            let failure = freed.and(compacted).err();
            self.log.due.note_failure(failure.map(|error| error.to_string()));
        }
    }

    /// Does one step of the work. A failure is reported where it occurs; see
    /// [`Monitor`](crate::engine::setup::health::Monitor). Poison also reaches the waiters for a
    /// sync and the next call. Everything else is tried again when it is next due.
    fn run_step(&self, step: Step, rate: Rate) -> Result<()> {
        self.log.setup.monitor.watch_panic(activity_of(step), || self.do_step(step, rate))
    }

    fn do_step(&self, step: Step, rate: Rate) -> Result<()> {
        let automatic = self.log.setup.options.compaction.automatic;
        match step {
            Step::Reserve => self.log.reserve_ahead().and(self.log.space.keep_reserve()),
            Step::Zeros => self.log.write_zeros(),
            Step::Prefault => {
                let _ = self.reclaimer.prefault_next();
                Ok(())
            }
            Step::Sync => {
                self.log.due.begin_sync();
                // The lock orders this thread and each append: this sync covers an append that was
                // placed before, and a later append finds the flag cleared and wakes this thread.
                // Without the lock each could miss the other, and the append would wait for the
                // next one.
                drop(self.log.state.lock());
                self.log.sync_in_step()
            }
            Step::Checkpoint => self.checkpoints.checkpoint(),
            Step::Reclaim => self.reclaimer.reclaim(),
            Step::GiveBack => self.log.space.give_back_freed(),
            Step::Compact if automatic => self.compactor.compact_for_space(rate).map(drop),
            Step::Compress if automatic => self.compactor.compress_cold(rate),
            Step::Compact | Step::Compress => Ok(()),
        }
    }

    /// Works off some of the space that short processes leave. The caller closes the store next;
    /// nothing was told to stop yet, since what sees that once must be able to rely on it.
    pub(crate) fn compact_before_close(&self) {
        let log = &self.log;
        let is_over = log.state.lock().closed || log.due.is_stopping();
        if is_over || !log.setup.options.compaction.automatic {
            return;
        }
        // A failure costs only some space, and the observer was told.
        let _ = self.compactor.compact_before_close();
    }

    /// Makes everything durable, marks the file as cleanly closed, and releases it, even after a
    /// failure. A second call returns the same result.
    pub(crate) fn close(&self) -> Result<Closed> {
        self.log.due.stop();
        let mut closing = self.closing.lock();
        if let Some(known) = &*closing {
            return known.clone();
        }
        let closed = self.log.setup.watch(Activity::Close, || {
            let closed = self.close_in_order();
            let live_views = self.release();
            closed.map(|()| Closed { live_views })
        });
        *closing = Some(closed.clone());
        drop(closing);
        self.log.commit.wake_ready();
        closed
    }

    fn close_in_order(&self) -> Result<()> {
        let Self { log, checkpoints, .. } = self;
        let space = &log.space;
        {
            let mut state = log.state.lock();
            state.closed = true;
            state.tail.stop_storing();
        }
        if space.allocator.lock().superblock.flags & FLAG_CLEAN != 0 {
            return Ok(());
        }
        log.disk.check()?;
        match checkpoints.cover_seals() {
            // The log is durable, and `health` named the segment.
            Err(error) if error.is_quarantine() => {}
            covered => covered?,
        }
        space.release_reserve();
        space.give_back_at_close()?;
        // A failure costs only some space.
        let _ = log.setup.watch_failure(Activity::GiveBack, || log.trim_unused());
        checkpoints.close_index();
        log.disk.sync()?;
        let (end, next, dead) = {
            let state = log.state.lock();
            let next = (state.next_segment, state.next_run_no, state.next_lsn);
            (state.end_of_log(), next, state.dead)
        };
        let mut allocator = space.allocator.lock();
        allocator.write_superblock(|block| {
            block.durable = end;
            // An index that closing left incomplete stays known as such.
            block.flags = FLAG_CLEAN | block.flags & FLAG_INDEX_OPENING;
            block.dead = dead;
            (block.next_segment, block.next_run_no, block.next_lsn) = next;
        })?;
        // No change of the manifest may follow this superblock.
        log.disk.close();
        Ok(())
    }

    /// Closes the file; returns how many views of it live. The last one releases the lock.
    fn release(&self) -> usize {
        let log = &self.log;
        log.disk.close();
        log.state.lock().drop_views();
        log.reserved.lock().clear();
        // Fails all callers that wait for a sync, and ends the followers.
        log.commit.fail();
        log.commit.followers.ring();
        if log.setup.options.keeps_file { 0 } else { log.disk.release() }
    }
}

/// The activity that mainly describes a step.
fn activity_of(step: Step) -> Activity {
    match step {
        Step::Reserve | Step::Zeros | Step::Prefault => Activity::Reserve,
        Step::Sync => Activity::Sync,
        Step::Checkpoint => Activity::IndexCheckpoint,
        Step::Reclaim => Activity::Reclaim,
        Step::GiveBack => Activity::GiveBack,
        Step::Compact | Step::Compress => Activity::Compaction,
    }
}

impl RunStep for Engine {
    fn run_step(&self, step: Step) -> bool {
        // The thread of this step takes no lock of the state, so that no append waits for it.
        if step != Step::Zeros && self.log.state.lock().closed || self.log.disk.is_closed() {
            return false;
        }
        let _ = Self::run_step(self, step, Rate::Unlimited);
        self.log.commit.wake_ready();
        true
    }
}

impl Helper for Engine {
    fn help(&self, work: Wanted) {
        self.do_work(work, Rate::Unlimited);
    }

    fn catch_up(&self) {
        let _ = self.log.sync_all();
        let _ = self.checkpoints.checkpoint();
    }
}
