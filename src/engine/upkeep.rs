//! What must be done now and then: syncing, setting segments aside, checkpoints of the index,
//! giving space back. Three threads do it by default, so that a long checkpoint never holds up a
//! sync, nor a compaction a checkpoint; without threads each call that changes the store does what
//! is due before it returns. In all cases the work is made of [`Step`]s, which a [`Scheduler`] can
//! run in any order: no step may rely on another one having run before.
//!
//! [`Scheduler`]: super::env::Scheduler

use core::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::env::Step;
use super::index_slot::{CHECKPOINT_DUE, CHECKPOINT_LATE, RUNS_DUE, RUNS_LATE};
use super::options::Rate;
use super::segment::Segment;
use super::shared::Engine;
use crate::error::{Error, IoAction, Result};

/// Work that is wanted, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wanted(u8);

impl Wanted {
    pub(crate) const SYNC: Self = Self(1);
    pub(crate) const RESERVE: Self = Self(1 << 1);
    pub(crate) const CHECKPOINT: Self = Self(1 << 2);
    pub(crate) const RECLAIM: Self = Self(1 << 3);
    /// To reclaim, too.
    pub(crate) const COMPACT: Self = Self(1 << 4);
    /// Segments are full that may have something to compress.
    pub(crate) const PACK: Self = Self(1 << 5);
    const SPACE_WORK: Self = Self(Self::RECLAIM.0 | Self::COMPACT.0 | Self::PACK.0);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// One of the threads: its work, and what wakes it.
#[derive(Debug)]
struct Worker {
    name: &'static str,
    does: Wanted,
    bell: Condvar,
}

/// What is wanted, and who does it.
#[derive(Debug)]
pub(crate) struct Upkeep {
    state: Mutex<State>,
    workers: [Worker; 3],
    /// Something was written since the last background sync.
    dirty: AtomicBool,
    /// Why giving space back failed, unless it has succeeded since.
    failure: Mutex<Option<String>>,
    threads: bool,
}

#[derive(Debug, Default)]
struct State {
    wanted: u8,
    stop: bool,
}

impl Upkeep {
    pub(crate) fn new(threads: bool) -> Self {
        let worker = |name, does| Worker { name, does, bell: Condvar::new() };
        let workers = [
            worker("runlog-sync", Wanted(Wanted::SYNC.0 | Wanted::RESERVE.0)),
            worker("runlog-index", Wanted::CHECKPOINT),
            worker("runlog-space", Wanted::SPACE_WORK),
        ];
        let (state, dirty, failure) = Default::default();
        Self { state, workers, dirty, failure, threads }
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.threads
    }

    /// Asks for work to be done.
    pub(crate) fn want(&self, work: Wanted) {
        let mut state = self.state.lock();
        if state.wanted & work.0 != work.0 {
            state.wanted |= work.0;
            self.wake(work);
        }
    }

    /// Something was written that the background sync is to cover.
    pub(crate) fn wrote(&self) {
        if self.threads && !self.dirty.load(Ordering::Relaxed) {
            // Under the lock, so that the thread is either before its look or already waiting.
            let _state = self.state.lock();
            self.dirty.store(true, Ordering::Release);
            self.wake(Wanted::SYNC);
        }
    }

    /// Why the last attempt to give space back failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake(Wanted(u8::MAX));
    }

    /// Wakes those who do such work; a caller's compaction that pauses waits there as well.
    fn wake(&self, work: Wanted) {
        for worker in self.workers.iter().filter(|worker| worker.does.has(work)) {
            worker.bell.notify_all();
        }
    }

    /// Background work is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// Waits for so long, or until the threads are to stop.
    #[expect(clippy::disallowed_methods, reason = "a real pause of a real thread")]
    pub(crate) fn pause(&self, duration: std::time::Duration) {
        let until = Instant::now() + duration;
        let mut state = self.state.lock();
        let [.., space] = &self.workers;
        while !state.stop && !space.bell.wait_until(&mut state, until).timed_out() {}
    }
}

/// The background threads; they are stopped and joined when this is dropped.
#[derive(Debug)]
pub(crate) struct Threads {
    engine: Arc<Engine>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts them.
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<Self> {
        let mut threads = Self { engine: Arc::clone(engine), handles: Vec::new() };
        for (number, worker) in engine.upkeep.workers.iter().enumerate() {
            let engine = Arc::clone(engine);
            let thread = std::thread::Builder::new().name(worker.name.to_owned());
            let run = move || engine.upkeep.workers.get(number).map(|one| engine.work_on(one));
            let spawned = thread.spawn(move || run().unwrap_or_default());
            let handle = spawned.map_err(|source| Error::io(IoAction::Thread, source))?;
            threads.handles.push(handle);
        }
        Ok(threads)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if self.engine.disk.is_inherited() {
            // They are threads of the parent: nobody would end here.
            core::mem::forget(core::mem::take(&mut self.handles));
            return;
        }
        self.engine.upkeep.stop();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

/// The steps of the background work of one open store, for a
/// [`Scheduler`](crate::env::Scheduler).
#[derive(Clone)]
pub struct Steps {
    engine: Weak<Engine>,
}

impl Steps {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::downgrade(engine) }
    }

    /// Runs a step to its end, on this thread, whether anything asked for it or not; a step that
    /// has nothing to do does nothing. False if the store is closed: nothing was done then.
    ///
    /// A step that fails is like one that a thread runs: what the failure means for the store is
    /// told by the calls that follow.
    pub fn run(&self, step: Step) -> bool {
        let Some(engine) = self.engine.upgrade().filter(|engine| !engine.core.lock().closed) else {
            return false;
        };
        let _ = engine.run_step(step, Rate::Unlimited);
        true
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

/// Fewer directories are checked sooner than a thread begins.
const WORTH_A_THREAD: usize = 32;

/// Does `work`, and checks directories meanwhile, on another thread if there are many: whoever
/// looks a run up while the index is not open needs all of them. Each is checked once, by whoever
/// comes first, so that this changes nothing but when.
pub(crate) fn checking_ahead<R>(segments: &[Arc<Segment>], work: impl FnOnce() -> R) -> R {
    if segments.len() < WORTH_A_THREAD {
        return work();
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let check = || {
            for segment in segments.iter().take_while(|_| !over.load(Ordering::Relaxed)) {
                // Who needs it is told what is wrong with it.
                let _ = segment.directory();
            }
        };
        let thread = std::thread::Builder::new().name("runlog-check".to_owned());
        // Without the thread it takes longer, and nothing else.
        let _ = thread.spawn_scoped(scope, check);
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

impl Engine {
    /// What one of the threads does until the store is closed.
    fn work_on(&self, worker: &Worker) {
        let (mut deadline, rate) = (None, self.options.compaction.rate);
        if worker.does.has(Wanted::CHECKPOINT) {
            // An index that the file holds is opened at once.
            let _ = self.run_step(Step::Checkpoint, rate);
        }
        while let Some(work) = self.await_work(worker, &mut deadline) {
            self.do_work(work, rate);
        }
    }

    /// Waits for work of a thread; none if the threads are to stop. A sync is wanted once what was
    /// first written after the last one is an interval old; other work does not put it off.
    #[expect(clippy::disallowed_methods, reason = "a real interval of a real thread")]
    fn await_work(&self, worker: &Worker, deadline: &mut Option<Instant>) -> Option<Wanted> {
        let Worker { does, bell, .. } = worker;
        let mut state = self.upkeep.state.lock();
        while !state.stop && state.wanted & does.0 == 0 {
            match self.options.sync_interval.filter(|_| does.has(Wanted::SYNC)) {
                Some(interval) if self.upkeep.dirty.load(Ordering::Acquire) => {
                    let until = *deadline.get_or_insert_with(|| Instant::now() + interval);
                    if bell.wait_until(&mut state, until).timed_out() {
                        state.wanted |= Wanted::SYNC.0;
                    }
                }
                _ => bell.wait(&mut state),
            }
        }
        let work = Wanted(state.wanted & does.0);
        state.wanted &= !does.0;
        if work.has(Wanted::SYNC) {
            *deadline = None;
        }
        (!state.stop).then_some(work)
    }

    fn do_work(&self, work: Wanted, rate: Rate) {
        if work.has(Wanted::RESERVE) {
            let _ = self.run_step(Step::Reserve, rate);
        }
        if work.has(Wanted::SYNC) {
            let _ = self.run_step(Step::Sync, rate);
        }
        if work.has(Wanted::CHECKPOINT) && self.checkpoint_is_due() {
            let _ = self.run_step(Step::Checkpoint, rate);
        }
        if work.has(Wanted::SPACE_WORK) {
            let freed = self.run_step(Step::Reclaim, rate);
            let freed = freed.and_then(|()| self.run_step(Step::GiveBack, rate));
            // What compaction can do does not depend on it.
            let compacted = if work.has(Wanted::COMPACT) {
                self.run_step(Step::Compact, rate)
            } else if work.has(Wanted::PACK) {
                self.run_step(Step::Compress, rate)
            } else {
                Ok(())
            };
            let failure = freed.and(compacted).err();
            *self.upkeep.failure.lock() = failure.map(|error| error.to_string());
        }
    }

    /// Does one step of the work. Whoever waits for a sync is told by the poison, as is the next
    /// call; everything else is tried again when it is next wanted.
    fn run_step(&self, step: Step, rate: Rate) -> Result<()> {
        let automatic = self.options.compaction.automatic;
        match step {
            Step::Reserve => self.reserve_ahead().and(self.keep_spare()),
            Step::Sync => {
                self.upkeep.dirty.store(false, Ordering::Relaxed);
                // The lock orders this thread and each append: one that was placed before is
                // covered by this sync, one that comes later finds the flag down and wakes this
                // thread. Else each could miss the other, and the append waited for the next one.
                drop(self.core.lock());
                self.sync_all()
            }
            Step::Checkpoint => self.checkpoint(),
            Step::Reclaim => self.reclaim(),
            Step::GiveBack => self.give_back_freed(),
            Step::Compact if automatic => self.compact_for_space(rate).map(drop),
            Step::Compress if automatic => self.compress_cold(rate),
            Step::Compact | Step::Compress => Ok(()),
        }
    }

    fn checkpoint_is_due(&self) -> bool {
        let core = self.core.lock();
        let waiting = core.unapplied.len();
        waiting >= CHECKPOINT_DUE
            || self.has_much_dead(&core, core.unapplied.iter())
            || (waiting > 0 && core.hot.len() >= RUNS_DUE)
            || core.catalog.index_failed()
            || (self.options.index
                && core.catalog.index().is_none()
                && !core.catalog.segments().is_empty())
    }

    /// Called by each call that changed the store, with no lock held: does what is due where there
    /// are no threads, and helps where they cannot follow.
    pub(crate) fn after_change(&self) {
        if self.upkeep.has_thread() {
            self.upkeep.wrote();
            return;
        }
        let work = core::mem::take(&mut self.upkeep.state.lock().wanted);
        self.do_work(Wanted(work), Rate::Unlimited);
    }

    /// Helps with a checkpoint that is late, so that memory stays bounded.
    pub(crate) fn keep_up(&self, waiting: usize, runs: usize) {
        if waiting >= CHECKPOINT_LATE || (waiting > 1 && runs >= RUNS_LATE) {
            let _ = self.sync_all();
            let _ = self.checkpoint();
        }
    }

    /// Sets a segment aside if none is, so that rolling costs no sync.
    pub(super) fn reserve_ahead(&self) -> Result<()> {
        let mut core = self.core.lock();
        if core.closed || core.has_next {
            return Ok(());
        }
        let id = core.take_segment_id()?;
        // Locked before the core is let go, so that a roll waits for this segment.
        let mut reserved = self.reserved.lock();
        core.has_next = true;
        let next = core.next_numbers();
        drop(core);
        reserved.push_back(self.reserve(id, next)?);
        drop(reserved);
        self.note_synced();
        Ok(())
    }
}
