//! Group commit: one sync serves all callers that wait for it.
//!
//! - The first thread that needs a position to be durable and finds no sync running syncs for all;
//!   the others wait. A sync covers what was written before it began, so later callers are covered
//!   by the next one, which the thread that has waited longest leads.
//! - A sync wakes the threads that it has covered, and the next leader.
//! - The durable position moves only after a sync has returned success (O2), to what had been
//!   written when that sync began.
//! - A [`Ticket`](super::ticket::Ticket) waits here, as a thread or as a task.
//! - A waker is code of the caller and may call the store. So a sync only notes which tasks are
//!   ready. A background thread wakes them with [`CommitQueue::wake_ready`]; so does the thread
//!   that closes the store, at the end.

use core::panic::AssertUnwindSafe;
use core::task::Waker;
use std::collections::{BTreeMap, VecDeque};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::engine::setup::locks;
use crate::engine::setup::signal::Signals;
use crate::types::LogPosition;

/// How far the log is written, and how far it is durable.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    written: AtomicU64,
    durable: AtomicU64,
    /// How many calls have waited for a sync.
    waiters: AtomicU64,
    state: Mutex<Waiting>,
    /// Who follows the log in this process.
    pub(crate) followers: Signals,
}

#[derive(Debug, Default)]
struct Waiting {
    /// A sync is running, or a thread was told to begin one.
    in_flight: bool,
    /// The threads that came while a sync was running, in the order in which they came.
    sleepers: Vec<(LogPosition, Arc<Sleeper>)>,
    /// The tasks that wait, each with one waker, however often it is polled.
    wakers: BTreeMap<(LogPosition, WaiterNo), Waker>,
    /// The wakers of tasks whose answer is known, until they are called.
    ready: VecDeque<Waker>,
    last_waiter: WaiterNo,
}

/// The number of a waiting task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct WaiterNo(u64);

/// A thread that waits for the sync of another.
#[derive(Debug, Default)]
struct Sleeper {
    told: Mutex<Option<Told>>,
    changed: Condvar,
}

/// What a thread that waited must do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Check again: its position is durable, or the sync has failed.
    Look,
    /// Sync for all callers that wait.
    Lead,
}

impl Sleeper {
    fn tell(&self, told: Told) {
        *self.told.lock() = Some(told);
        self.changed.notify_one();
    }

    fn wait(&self) -> Told {
        let mut told = self.told.lock();
        loop {
            match *told {
                Some(told) => return told,
                None => self.changed.wait(&mut told),
            }
        }
    }
}

impl CommitQueue {
    /// Notes that the log is durable up to `end`, where appends continue.
    pub(crate) fn begin(&self, end: LogPosition) {
        self.wrote(end);
        self.durable.fetch_max(end.to_u64(), Ordering::AcqRel);
    }

    /// Notes that all before this position was written. Called under the lock of the state.
    pub(crate) fn wrote(&self, end: LogPosition) {
        // The lock orders the callers, so no other caller moves the mark in between.
        if end > self.written() {
            self.written.store(end.to_u64(), Ordering::Release);
            self.followers.ring();
        }
    }

    pub(crate) fn written(&self) -> LogPosition {
        LogPosition::from_u64(self.written.load(Ordering::Acquire))
    }

    pub(crate) fn durable(&self) -> LogPosition {
        LogPosition::from_u64(self.durable.load(Ordering::Acquire))
    }

    /// Notes that a call waits for a sync.
    pub(crate) fn note_waiter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
    }

    /// How many calls have waited for a sync.
    pub(crate) fn waiters(&self) -> u64 {
        self.waiters.load(Ordering::Relaxed)
    }

    /// Waits for the running sync or the one after it, whichever covers `end`. A caller that is
    /// told to lead must do so: no other thread will.
    pub(crate) fn join(&self, end: LogPosition) -> Told {
        let sleeper = {
            let mut state = self.state.lock();
            if self.durable() >= end {
                return Told::Look;
            }
            if !state.in_flight {
                state.in_flight = true;
                return Told::Lead;
            }
            let sleeper = Arc::<Sleeper>::default();
            state.sleepers.push((end, Arc::clone(&sleeper)));
            sleeper
        };
        sleeper.wait()
    }

    /// Notes a successful sync that no thread here waited for. It began after everything in front
    /// of `covered` was written. Returns whether tasks are ready.
    pub(crate) fn cover(&self, covered: LogPosition) -> bool {
        self.settle(Some(covered), false)
    }

    /// Tells all waiters, because no sync will succeed from now on. A later caller finds the disk
    /// poisoned, or becomes the leader of a sync that is refused. Returns whether tasks are ready.
    pub(crate) fn fail(&self) -> bool {
        self.settle(None, false)
    }

    /// Notes a successful sync that began after everything in front of `covered` was written, or a
    /// failed one. Wakes the threads that this concerns. If the sync `led`, another thread leads
    /// from now on. Returns whether tasks are ready to be woken.
    pub(crate) fn settle(&self, covered: Option<LogPosition>, led: bool) -> bool {
        let mut state = self.state.lock();
        if let Some(covered) = covered {
            self.durable.fetch_max(covered.to_u64(), Ordering::AcqRel);
        }
        let (durable, failed) = (self.durable(), covered.is_none());
        let is_settled = |end: LogPosition| failed || end <= durable;
        let tasks = core::mem::take(&mut state.wakers).into_iter();
        let (ready, tasks) = tasks.partition::<BTreeMap<_, _>, _>(|((end, _), _)| is_settled(*end));
        let (awake, mut asleep) =
            state.sleepers.drain(..).partition::<Vec<_>, _>(|sleeper| is_settled(sleeper.0));
        let next = (led && !asleep.is_empty()).then(|| asleep.remove(0).1);
        if led {
            state.in_flight = next.is_some();
        }
        (state.wakers, state.sleepers) = (tasks, asleep);
        state.ready.extend(ready.into_values());
        let any_ready = !state.ready.is_empty();
        drop(state);
        if let Some(next) = next {
            next.tell(Told::Lead);
        }
        for (_, sleeper) in awake {
            sleeper.tell(Told::Look);
        }
        any_ready
    }

    /// Wakes all tasks that are ready. The caller holds no lock.
    pub(crate) fn wake_ready(&self) {
        while let Some(waker) = self.take_ready() {
            locks::assert_none_held();
            // A waker that panics must not cost another task its wake.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }

    fn take_ready(&self) -> Option<Waker> {
        self.state.lock().ready.pop_front()
    }

    /// Wakes the task once `end` is durable or never will be. Its waker replaces the previous one
    /// of this waiter. Returns false if `end` is already durable.
    pub(crate) fn register(
        &self,
        end: LogPosition,
        waiter: &mut Option<WaiterNo>,
        waker: &Waker,
    ) -> bool {
        // Cloning and dropping a waker runs code of its task.
        let waker = waker.clone();
        let mut state = self.state.lock();
        if self.durable() >= end {
            return false;
        }
        let waiter = *waiter.get_or_insert_with(|| {
            state.last_waiter.0 += 1;
            state.last_waiter
        });
        let last = state.wakers.insert((end, waiter), waker);
        drop(state);
        drop(last);
        true
    }

    /// Removes a task that does not wait any more.
    pub(crate) fn forget(&self, end: LogPosition, waiter: WaiterNo) {
        let waker = self.state.lock().wakers.remove(&(end, waiter));
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use core::task::Waker;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    use super::{CommitQueue, LogPosition, Told};
    use crate::types::SegmentId;

    fn position(offset: u32) -> LogPosition {
        LogPosition { segment: SegmentId(1), offset }
    }

    /// Waits until this many threads wait for a sync.
    fn await_sleepers(queue: &CommitQueue, count: usize) {
        while queue.state.lock().sleepers.len() != count {
            core::hint::spin_loop();
        }
    }

    #[test]
    fn a_sync_by_the_way_covers_and_leaves_the_lead_where_it_is() {
        let queue = CommitQueue::default();
        queue.begin(position(0));
        std::thread::scope(|scope| {
            assert_eq!(queue.join(position(8)), Told::Lead);
            let covered = scope.spawn(|| queue.join(position(8)));
            await_sleepers(&queue, 1);
            let later = scope.spawn(|| queue.join(position(16)));
            await_sleepers(&queue, 2);
            queue.cover(position(8));
            assert_eq!(covered.join().unwrap(), Told::Look);
            assert!(queue.state.lock().in_flight && queue.state.lock().sleepers.len() == 1);
            queue.settle(None, true);
            assert_eq!(later.join().unwrap(), Told::Look, "it is told that the sync has failed");
            assert_eq!(queue.join(position(16)), Told::Lead);
        });
    }

    #[derive(Default)]
    struct Woken(AtomicU64);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_that_polls_again_and_again_is_kept_and_woken_once() {
        let queue = CommitQueue::default();
        let woken = Arc::new(Woken::default());
        let mut waiters = [(8, None), (16, None)];
        for (offset, waiter) in &mut waiters {
            // A task may be polled with another waker each time.
            for _ in 0..1000 {
                let waker = Waker::from(Arc::new(Woken::default()));
                assert!(queue.register(position(*offset), waiter, &waker));
            }
            let waker = Waker::from(Arc::clone(&woken));
            assert!(queue.register(position(*offset), waiter, &waker));
        }
        assert_eq!(queue.state.lock().wakers.len(), 2, "one for each ticket");
        assert!(queue.cover(position(16)));
        assert_eq!(woken.0.load(Ordering::Relaxed), 0, "it only notes them");
        queue.wake_ready();
        assert!(!queue.cover(position(16)));
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_task_that_no_longer_waits_is_kept_no_longer() {
        let queue = CommitQueue::default();
        let waker = Waker::from(Arc::new(Woken::default()));
        let (mut one, mut two) = (None, None);
        assert!(queue.register(position(8), &mut one, &waker));
        assert!(queue.register(position(8), &mut two, &waker));
        queue.forget(position(8), one.unwrap());
        assert_eq!(queue.state.lock().wakers.len(), 1, "the other one waits still");
        queue.forget(position(8), two.unwrap());
        assert!(queue.state.lock().wakers.is_empty());
    }
}
