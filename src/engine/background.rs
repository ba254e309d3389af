//! Periodic work: syncing, setting segments aside, checkpoints of the index, giving space back. By
//! default three threads do it, so that a long checkpoint never delays a sync, nor a compaction a
//! checkpoint. Without threads each call that changes the store does the due work before it
//! returns. The work always consists of [`Step`]s, which a [`Scheduler`] can run in any order: no
//! step may rely on another step having run before.
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
use crate::engine::storage::fork;
use crate::engine::write::ticket::HeldWakes;
use crate::error::{Error, IoAction, Result};
use crate::format::map::superblock::{FLAG_CLEAN, FLAG_INDEX_OPENING};

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
        if self.engine.log.disk.is_inherited() {
            // The threads belong to the parent and would never end in a forked child.
            core::mem::forget(core::mem::take(&mut self.handles));
            return;
        }
        let due = &self.engine.log.due;
        due.stop();
        // A thread that wakes tasks ends by itself, without a further step: it may be this one, or
        // a task may wait for this one.
        for handle in self.handles.drain(..).filter(|one| !due.is_waking(one.thread().id())) {
            // A panic was reported when it happened; see `Engine::run_step`.
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
    /// Set once it is dropped and the file is released.
    over: Arc<OnceLock<()>>,
}

/// A reference that does not keep a store open.
#[derive(Debug, Clone)]
pub(crate) struct WeakOpen {
    open: Weak<Open>,
    over: Arc<OnceLock<()>>,
    /// See [`fork`].
    forks: u64,
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
        let (open, over) = (Arc::downgrade(self), Arc::clone(&self.over));
        let is_inherited = self.engine.log.disk.is_inherited();
        WeakOpen { open, over, forks: if is_inherited { u64::MAX } else { fork::current() } }
    }

    /// Stops the threads, and closes the engine.
    pub(crate) fn close(&self) -> Result<()> {
        self.engine.compact_before_close();
        let threads = self.threads.lock().take();
        drop(threads);
        self.engine.close()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.engine.log.disk.is_inherited() {
            let _over = Over(&self.over);
            drop(self.threads.get_mut().take());
            // Dropping an index writes, and waits for threads that do not exist in a forked child.
            core::mem::forget(Arc::clone(&self.engine));
            return;
        }
        // A task that is woken may open the file again, which waits until this is over.
        let _held = HeldWakes::new(&self.engine.log);
        let _over = Over(&self.over);
        // The observer was told how it went.
        let _ = self.close();
    }
}

impl WeakOpen {
    pub(crate) fn is_open(&self) -> bool {
        self.over.get().is_none()
    }

    /// The store, unless it is closed, or another process has it open. If it is just being dropped,
    /// this returns once the file is released.
    pub(crate) fn upgrade(&self) -> Option<Arc<Open>> {
        if fork::current() != self.forks {
            return None;
        }
        let Some(open) = self.open.upgrade() else {
            self.over.wait();
            return None;
        };
        let engine = &open.engine;
        if engine.log.state.lock().closed || engine.log.disk.is_closed() {
            // The thread that closes it has the lock until the file is released.
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
            self.wake_between_steps();
            self.do_work(work, rate);
        }
    }

    fn do_work(&self, work: Wanted, rate: Rate) {
        // A waker that was called since the work was fetched may have closed the store.
        let is_over = || self.log.due.is_stopping();
        let run = |step| if is_over() { Err(Error::Closed) } else { self.run_step(step, rate) };
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
            if !is_over() {
                let failure = freed.and(compacted).err();
                self.log.due.note_failure(failure.map(|error| error.to_string()));
            }
        }
    }

    /// Wakes the tasks that are ready, unless the store is being closed: then the thread that
    /// closes it does so at its end.
    fn wake_between_steps(&self) {
        // Mostly there are none, and closing waits for this thread.
        if self.log.commit.owe() {
            self.log.due.while_waking(|| self.log.wake_ready());
        }
    }

    /// Does one step of the work. A failure is reported where it occurs; see
    /// [`Monitor`](crate::engine::setup::health::Monitor). Poison also reaches the waiters for a
    /// sync and the next call. Everything else is tried again when it is next due.
    fn run_step(&self, step: Step, rate: Rate) -> Result<()> {
        let done = self.log.setup.monitor.watch_panic(activity_of(step), || {
            self.log.poison_on_panic(|| self.do_step(step, rate))
        });
        self.wake_between_steps();
        done
    }

    fn do_step(&self, step: Step, rate: Rate) -> Result<()> {
        let automatic = self.log.setup.options.compaction.automatic;
        match step {
            Step::Reserve => self.log.reserve_ahead().and(self.log.space.keep_reserve()),
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
        // A second panic would end the process.
        let is_over =
            || std::thread::panicking() || log.state.lock().closed || log.due.is_stopping();
        if log.disk.is_inherited() || !log.setup.options.compaction.automatic || is_over() {
            return;
        }
        // A failure costs only some space, and the observer was told.
        let _ = log.setup.monitor.watch_panic(Activity::Compaction, || {
            log.poison_on_panic(|| self.compactor.compact_before_close())
        });
    }

    /// Makes everything durable, marks the file as cleanly closed, and releases it, even after a
    /// failure. A second call returns the same result.
    pub(crate) fn close(&self) -> Result<()> {
        if self.log.disk.is_inherited() {
            return Err(Error::Closed);
        }
        self.log.due.stop();
        let mut closing = self.closing.lock();
        if let Some(known) = &*closing {
            return known.clone();
        }
        let closed = self.log.setup.watch(Activity::Close, || {
            let closed = self.close_in_order();
            let released = self.release();
            closed.and(released)
        });
        *closing = Some(closed.clone());
        drop(closing);
        self.log.wake_ready();
        closed
    }

    fn close_in_order(&self) -> Result<()> {
        let Self { log, checkpoints, .. } = self;
        let space = &log.space;
        log.state.lock().closed = true;
        if space.allocator.lock().superblock.flags & FLAG_CLEAN != 0 {
            return Ok(());
        }
        log.disk.check()?;
        checkpoints.cover_seals()?;
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

    /// Releases the file and its lock, even while other values refer to the store.
    fn release(&self) -> Result<()> {
        let log = &self.log;
        log.disk.close();
        log.state.lock().tail.close();
        // Fails all callers that wait for a sync, and ends the followers.
        log.commit.fail();
        log.commit.followers.ring();
        log.disk.release()
    }
}

/// The activity that mainly describes a step.
fn activity_of(step: Step) -> Activity {
    match step {
        Step::Reserve => Activity::Reserve,
        Step::Sync => Activity::Sync,
        Step::Checkpoint => Activity::IndexCheckpoint,
        Step::Reclaim => Activity::Reclaim,
        Step::GiveBack => Activity::GiveBack,
        Step::Compact | Step::Compress => Activity::Compaction,
    }
}

impl RunStep for Engine {
    fn run_step(&self, step: Step) -> bool {
        if self.log.state.lock().closed {
            return false;
        }
        let _ = Self::run_step(self, step, Rate::Unlimited);
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

#[cfg(test)]
mod tests {
    use core::future::Future;
    use core::pin::Pin;
    use core::task::Context;
    use std::task::Wake;

    use super::*;
    use crate::engine::setup::environment::{Scheduler, Steps};
    use crate::storage::MemoryStorage;
    use crate::{Observer, Options, Phase, RunLog};

    #[derive(Debug)]
    struct Idle;

    impl Scheduler for Idle {
        fn begin(&self, _: Steps) {}
    }

    /// What it was told since the store was closed.
    #[derive(Debug, Default)]
    struct Behind {
        closed: AtomicBool,
        told: Mutex<Vec<Activity>>,
    }

    impl Observer for Behind {
        fn observe(&self, activity: Activity, phase: Phase<'_>) {
            if self.closed.load(Ordering::SeqCst) {
                self.told.lock().push(activity);
            }
            let has_ended = activity == Activity::Close && !phase.is_begin();
            self.closed.fetch_or(has_ended, Ordering::SeqCst);
        }
    }

    /// A task that drops the last handle where it is woken.
    struct Drops(Mutex<Option<RunLog>>);

    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().take());
        }
    }

    #[test]
    fn a_step_behind_a_waker_that_closed_the_store_is_left_out() {
        let behind = Arc::<Behind>::default();
        let options = Options::new().extent_size(64 << 10).scheduler(Arc::new(Idle));
        let options = options.observer(Arc::<Behind>::clone(&behind));
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let mut ticket = run.append(b"waited for").unwrap().ticket;
        drop(run);
        let engine = Arc::clone(log.engine());
        let waker = Waker::from(Arc::new(Drops(Mutex::new(Some(log)))));
        let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending());
        engine.log.sync_in_step().unwrap();
        assert!(!behind.closed.load(Ordering::SeqCst), "it wakes behind the step");
        engine.do_work(Wanted::SPACE_WORK, Rate::Unlimited);
        assert!(behind.closed.load(Ordering::SeqCst), "it was woken behind the first step");
        assert_eq!(*behind.told.lock(), []);
    }
}
