//! Which background work is due, and what wakes its thread. Components ask for work here, and the
//! threads of [`background`](crate::engine::background) fetch it.

use core::fmt;
use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// Work that is wanted, as a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wanted(u8);

impl Wanted {
    pub(crate) const SYNC: Self = Self(1);
    pub(crate) const RESERVE: Self = Self(1 << 1);
    pub(crate) const CHECKPOINT: Self = Self(1 << 2);
    pub(crate) const RECLAIM: Self = Self(1 << 3);
    /// Compact; this includes reclaiming.
    pub(crate) const COMPACT: Self = Self(1 << 4);
    /// Compress: full segments may hold compressible records.
    pub(crate) const PACK: Self = Self(1 << 5);
    /// Wake the tasks whose answer is known. Any of the threads does it.
    pub(crate) const WAKE: Self = Self(1 << 6);
    /// Zeros ahead of the tail and segments to map, as long as something is appended.
    pub(crate) const ZEROS: Self = Self(1 << 7);
    /// Work that frees dead segments.
    const FREES: Self = Self(Self::RECLAIM.0 | Self::COMPACT.0);
    /// Work that moves records.
    pub(crate) const MOVES: Self = Self(Self::COMPACT.0 | Self::PACK.0);
    pub(crate) const SPACE_WORK: Self = Self(Self::RECLAIM.0 | Self::MOVES.0);

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// One of the threads: the work that it does, and the bell that wakes it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: &'static str,
    pub(crate) does: Wanted,
    bell: Condvar,
}

/// Does due work on the thread of a caller: without threads, or if they fall behind.
pub(crate) trait Helper: Send + Sync {
    /// Does this work.
    fn help(&self, work: Wanted);

    /// Brings the index up to date, so that memory stays bounded.
    fn catch_up(&self);
}

/// The work that is due.
pub(crate) struct Due {
    state: Mutex<State>,
    pub(crate) workers: [Worker; 3],
    /// Whether something was written since the last background sync.
    dirty: AtomicBool,
    /// Whether the thread of the tail rests until the next append.
    tail_rests: AtomicBool,
    /// Where that thread waits between two looks. It is never notified.
    pause: Condvar,
    /// Why the last attempt to give space back failed; `None` if it succeeded.
    failure: Mutex<Option<String>>,
    threads: bool,
    helper: OnceLock<Weak<dyn Helper>>,
}

#[derive(Debug, Default)]
struct State {
    wanted: u8,
    /// Whether dead segments may be freed since a thread last looked.
    frees: bool,
    stop: bool,
}

impl Due {
    pub(crate) fn new(threads: bool) -> Self {
        let worker = |name, does: u8| {
            let does = Wanted(does | Wanted::WAKE.0);
            Worker { name, does, bell: Condvar::new() }
        };
        let workers = [
            worker("runlog-sync", Wanted::SYNC.0 | Wanted::RESERVE.0),
            worker("runlog-tail", Wanted::ZEROS.0),
            worker("runlog-work", Wanted::CHECKPOINT.0 | Wanted::SPACE_WORK.0),
        ];
        let (dirty, failure, helper, tail_rests, pause) = Default::default();
        // The thread of the tail maps segments at first.
        let wanted = if threads { Wanted::ZEROS.0 } else { 0 };
        let state = Mutex::new(State { wanted, frees: false, stop: false });
        Self { state, workers, dirty, tail_rests, pause, failure, threads, helper }
    }

    /// Sets the helper that does due work on the threads of callers.
    pub(crate) fn helped_by(&self, helper: Weak<dyn Helper>) {
        let _ = self.helper.set(helper);
    }

    pub(crate) fn has_thread(&self) -> bool {
        self.threads
    }

    /// Asks for work.
    pub(crate) fn want(&self, work: Wanted) {
        let mut state = self.state.lock();
        let frees = work.has(Wanted::FREES) && !state.frees;
        if frees || state.wanted & work.0 != work.0 {
            state.wanted |= work.0;
            state.frees |= frees;
            self.wake(work);
        }
    }

    /// Asks the first thread that has no work to wake the tasks that are ready.
    pub(crate) fn want_wake(&self) {
        let mut state = self.state.lock();
        if state.wanted & Wanted::WAKE.0 == 0 {
            state.wanted |= Wanted::WAKE.0;
            let _ = self.workers.iter().any(|worker| worker.bell.notify_all() > 0);
        }
    }

    /// Forgets that this work was asked for; returns whether some of it was.
    pub(crate) fn forget(&self, work: Wanted) -> bool {
        let mut state = self.state.lock();
        let was_wanted = Wanted(state.wanted).has(work);
        state.wanted &= !work.0;
        was_wanted
    }

    /// Notes a write for the next background sync, and wakes the thread of the tail. If that thread
    /// begins to rest at the same time, the next write wakes it.
    #[inline]
    fn wrote(&self) {
        if self.tail_rests.load(Ordering::Relaxed) && self.tail_rests.swap(false, Ordering::Relaxed)
        {
            self.want(Wanted::ZEROS);
        }
        if self.threads && !self.dirty.load(Ordering::Relaxed) {
            // The lock ensures that the thread either has not looked yet or is already waiting.
            let _state = self.state.lock();
            self.dirty.store(true, Ordering::Release);
            self.wake(Wanted::SYNC);
        }
    }

    /// Begins a background sync. Writes from here on wait for the next one.
    pub(crate) fn begin_sync(&self) {
        self.dirty.store(false, Ordering::Relaxed);
    }

    /// Every call that changed the store ends with this, holding no lock. In a store without
    /// threads it does the due work.
    #[inline]
    pub(crate) fn after_change(&self) {
        if self.threads {
            self.wrote();
            return;
        }
        let work = core::mem::take(&mut self.state.lock().wanted);
        if let Some(helper) = self.helper.get().and_then(Weak::upgrade) {
            helper.help(Wanted(work));
        }
    }

    /// Helps with a late checkpoint.
    pub(crate) fn catch_up(&self) {
        if let Some(helper) = self.helper.get().and_then(Weak::upgrade) {
            helper.catch_up();
        }
    }

    /// Why the last attempt to give space back failed; `None` if it succeeded.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Notes how giving space back went.
    pub(crate) fn note_failure(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }

    /// Tells all background threads to stop.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake(Wanted(u8::MAX));
    }

    /// Wakes the threads for this work. A caller's compaction that pauses waits there too.
    fn wake(&self, work: Wanted) {
        for worker in self.workers.iter().filter(|worker| worker.does.has(work)) {
            worker.bell.notify_all();
        }
    }

    /// Whether background work must stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// From now on the next write wakes the thread of the tail.
    pub(crate) fn rest_tail(&self) {
        self.tail_rests.store(true, Ordering::Relaxed);
    }

    /// Lets the thread of the tail wait for this long; returns false if it must stop.
    pub(crate) fn pause_tail(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        // Not on the bell of the thread: a task that is to be woken would be left to it.
        let _ = self.pause.wait_for(&mut state, duration);
        !state.stop
    }

    /// Waits for this long, or until background work must stop.
    #[expect(clippy::disallowed_methods, reason = "a real pause of a real thread")]
    pub(crate) fn pause(&self, duration: Duration) {
        let until = Instant::now() + duration;
        let mut state = self.state.lock();
        let [.., worker] = &self.workers;
        while !state.stop && !worker.bell.wait_until(&mut state, until).timed_out() {}
    }

    /// The same, but ends when dead segments may be freed: then it returns the rest of the time.
    #[expect(clippy::disallowed_methods, reason = "a real pause of a real thread")]
    pub(crate) fn pause_or_free(&self, duration: Duration) -> Option<Duration> {
        let until = Instant::now() + duration;
        let mut state = self.state.lock();
        let [.., worker] = &self.workers;
        while !(state.stop || state.frees && Instant::now() < until) {
            if worker.bell.wait_until(&mut state, until).timed_out() {
                return None;
            }
        }
        state.frees = false;
        (!state.stop).then(|| until.saturating_duration_since(Instant::now()))
    }

    /// Waits until there is work for a thread. `None` if background work must stop. A sync is due
    /// one interval after the first write that the last sync did not cover; other work does not
    /// delay it.
    #[expect(clippy::disallowed_methods, reason = "a real interval of a real thread")]
    pub(crate) fn await_work(
        &self,
        worker: &Worker,
        interval: Option<Duration>,
        deadline: &mut Option<Instant>,
    ) -> Option<Wanted> {
        let Worker { does, bell, .. } = worker;
        let mut state = self.state.lock();
        while !state.stop && state.wanted & does.0 == 0 {
            let syncs = does.has(Wanted::SYNC) && self.dirty.load(Ordering::Acquire);
            if let Some(interval) = interval.filter(|_| syncs && deadline.is_none()) {
                // None for an interval that ends behind all times.
                *deadline = Instant::now().checked_add(interval);
            }
            match deadline.filter(|_| syncs) {
                Some(until) if bell.wait_until(&mut state, until).timed_out() => {
                    state.wanted |= Wanted::SYNC.0;
                }
                Some(_) => {}
                None => bell.wait(&mut state),
            }
        }
        let work = Wanted(state.wanted & does.0);
        // Tasks do not wait for other work.
        let work = if work.has(Wanted::WAKE) { Wanted::WAKE } else { work };
        state.wanted &= !work.0;
        if work.has(Wanted::SYNC) {
            *deadline = None;
        }
        state.frees &= !work.has(Wanted::FREES);
        (!state.stop).then_some(work)
    }
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Due").field("state", &self.state).finish_non_exhaustive()
    }
}
