//! What background work is due, and who waits for it: the components ask for work here, and the
//! threads of [`background`](crate::engine::background) find it.

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
    /// To reclaim, too.
    pub(crate) const COMPACT: Self = Self(1 << 4);
    /// Segments are full that may have something to compress.
    pub(crate) const PACK: Self = Self(1 << 5);
    pub(crate) const SPACE_WORK: Self = Self(Self::RECLAIM.0 | Self::COMPACT.0 | Self::PACK.0);

    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// One of the threads: its work, and what wakes it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) name: &'static str,
    pub(crate) does: Wanted,
    bell: Condvar,
}

/// Does the work that is due on the thread of a caller: where there are no threads for it, and
/// where they cannot follow.
pub(crate) trait Helper: Send + Sync {
    /// Does this work.
    fn help(&self, work: Wanted);

    /// Brings the index up to the log, so that memory stays bounded.
    fn catch_up(&self);
}

/// What is wanted, and who does it.
pub(crate) struct Due {
    state: Mutex<State>,
    pub(crate) workers: [Worker; 3],
    /// Something was written since the last background sync.
    dirty: AtomicBool,
    /// Why giving space back failed, unless it has succeeded since.
    failure: Mutex<Option<String>>,
    threads: bool,
    helper: OnceLock<Weak<dyn Helper>>,
}

#[derive(Debug, Default)]
struct State {
    wanted: u8,
    stop: bool,
}

impl Due {
    pub(crate) fn new(threads: bool) -> Self {
        let worker = |name, does| Worker { name, does, bell: Condvar::new() };
        let workers = [
            worker("runlog-sync", Wanted(Wanted::SYNC.0 | Wanted::RESERVE.0)),
            worker("runlog-index", Wanted::CHECKPOINT),
            worker("runlog-space", Wanted::SPACE_WORK),
        ];
        let (state, dirty, failure, helper) = Default::default();
        Self { state, workers, dirty, failure, threads, helper }
    }

    /// From now on `helper` does what is due on the threads of callers.
    pub(crate) fn helped_by(&self, helper: Weak<dyn Helper>) {
        let _ = self.helper.set(helper);
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
    #[inline]
    fn wrote(&self) {
        if self.threads && !self.dirty.load(Ordering::Relaxed) {
            // Under the lock, so that the thread is either before its look or already waiting.
            let _state = self.state.lock();
            self.dirty.store(true, Ordering::Release);
            self.wake(Wanted::SYNC);
        }
    }

    /// A background sync begins; what is written from here on waits for the next one.
    pub(crate) fn begin_sync(&self) {
        self.dirty.store(false, Ordering::Relaxed);
    }

    /// Called by each call that changed the store, with no lock held: does what is due where there
    /// are no threads.
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

    /// Helps with a checkpoint that is late.
    pub(crate) fn catch_up(&self) {
        if let Some(helper) = self.helper.get().and_then(Weak::upgrade) {
            helper.catch_up();
        }
    }

    /// Why the last attempt to give space back failed, if it did.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// How giving space back went.
    pub(crate) fn note_failure(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }

    /// Has all background work end.
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

    /// Waits for so long, or until background work is to end.
    #[expect(clippy::disallowed_methods, reason = "a real pause of a real thread")]
    pub(crate) fn pause(&self, duration: Duration) {
        let until = Instant::now() + duration;
        let mut state = self.state.lock();
        let [.., space] = &self.workers;
        while !state.stop && !space.bell.wait_until(&mut state, until).timed_out() {}
    }

    /// Waits for work of a thread; none if background work is to end. A sync is wanted once what
    /// was first written after the last one is an interval old; other work does not put it off.
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
            match interval.filter(|_| does.has(Wanted::SYNC)) {
                Some(interval) if self.dirty.load(Ordering::Acquire) => {
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
}

impl fmt::Debug for Due {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Due").field("state", &self.state).finish_non_exhaustive()
    }
}
