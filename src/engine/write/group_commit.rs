//! Group commit: one sync serves all who wait for it.
//!
//! - The first thread that needs a position to be durable and finds no sync under way does it for
//!   all; the others wait. A sync covers what was written until it begins, so those that come
//!   meanwhile are in the next one, which the thread that has waited longest leads.
//! - A sync wakes the threads that it has covered, and the next leader.
//! - The durable position moves only after a sync was *seen to succeed* (O2), to what had been
//!   written when that sync began.
//! - A [`Ticket`](super::ticket::Ticket) waits here, as a thread or as a task.

use core::task::Waker;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use crate::types::LogPosition;

/// How far the log was written and how far it is durable.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    written: AtomicU64,
    durable: AtomicU64,
    state: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// A sync is under way, or some thread was told to begin one.
    in_flight: bool,
    /// Those who came while one was under way, in the order in which they came.
    sleepers: Vec<(LogPosition, Arc<Sleeper>)>,
    /// The tasks that wait, each once for a position, however often it asks.
    wakers: BTreeMap<LogPosition, Vec<Waker>>,
}

/// A thread that waits for the sync of another.
#[derive(Debug, Default)]
struct Sleeper {
    told: Mutex<Option<Told>>,
    changed: Condvar,
}

/// What a thread that waited is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// Look again: its position is durable, or the sync has failed.
    Look,
    /// Sync for all who wait.
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
    /// The log is durable up to `end`, where appends will go on.
    pub(crate) fn begin(&self, end: LogPosition) {
        self.wrote(end);
        self.durable.fetch_max(end.to_u64(), Ordering::AcqRel);
    }

    /// Everything in front of this position was written. Called under the lock of the state.
    pub(crate) fn wrote(&self, end: LogPosition) {
        // That lock orders the callers, so no other caller moves the mark in between.
        if end > self.written() {
            self.written.store(end.to_u64(), Ordering::Release);
        }
    }

    pub(crate) fn written(&self) -> LogPosition {
        LogPosition::from_u64(self.written.load(Ordering::Acquire))
    }

    pub(crate) fn durable(&self) -> LogPosition {
        LogPosition::from_u64(self.durable.load(Ordering::Acquire))
    }

    /// Waits for the sync that is under way or for the one after it, whichever covers `end`.
    /// A caller that is told to lead must do it: no other thread will.
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

    /// A sync that no thread here waited for has succeeded. It began when everything in front of
    /// `covered` had been written.
    pub(crate) fn cover(&self, covered: LogPosition) {
        self.settle(Some(covered), false);
    }

    /// No sync will succeed any more: wakes all that wait. A later caller finds the disk poisoned,
    /// or becomes the leader of a sync that is refused.
    pub(crate) fn fail(&self) {
        self.settle(None, false);
    }

    /// A sync has succeeded that began when everything in front of `covered` had been written, or
    /// one has failed. Wakes those it concerns; if it `led`, another thread leads from here on.
    pub(crate) fn settle(&self, covered: Option<LogPosition>, led: bool) {
        let mut state = self.state.lock();
        if let Some(covered) = covered {
            self.durable.fetch_max(covered.to_u64(), Ordering::AcqRel);
        }
        let (durable, failed) = (self.durable(), covered.is_none());
        let is_settled = |end: LogPosition| failed || end <= durable;
        let tasks = core::mem::take(&mut state.wakers).into_iter();
        let (ready, tasks) = tasks.partition::<BTreeMap<_, _>, _>(|task| is_settled(task.0));
        let (awake, mut asleep) =
            state.sleepers.drain(..).partition::<Vec<_>, _>(|sleeper| is_settled(sleeper.0));
        let next = (led && !asleep.is_empty()).then(|| asleep.remove(0).1);
        if led {
            state.in_flight = next.is_some();
        }
        (state.wakers, state.sleepers) = (tasks, asleep);
        drop(state);
        if let Some(next) = next {
            next.tell(Told::Lead);
        }
        for (_, sleeper) in awake {
            sleeper.tell(Told::Look);
        }
        for waker in ready.into_values().flatten() {
            waker.wake();
        }
    }

    /// Wakes the task once `end` is durable or never will be.
    pub(crate) fn register(&self, end: LogPosition, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.durable() >= end {
            return false;
        }
        let wakers = state.wakers.entry(end).or_default();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
        true
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

    /// Waits until so many threads wait for a sync.
    fn await_sleepers(queue: &CommitQueue, count: usize) {
        while queue.state.lock().sleepers.len() != count {
            core::hint::spin_loop();
        }
    }

    #[test]
    fn a_sync_wakes_whom_it_covers_and_hands_over_to_who_waits_longest() {
        let queue = CommitQueue::default();
        queue.begin(position(0));
        std::thread::scope(|scope| {
            assert_eq!(queue.join(position(8)), Told::Lead);
            let wait = |offset| {
                let queue = &queue;
                scope.spawn(move || queue.join(position(offset)))
            };
            let covered = wait(8);
            await_sleepers(&queue, 1);
            let longest = wait(24);
            await_sleepers(&queue, 2);
            let later = wait(16);
            await_sleepers(&queue, 3);
            queue.settle(Some(position(8)), true);
            assert_eq!(covered.join().unwrap(), Told::Look);
            assert_eq!(longest.join().unwrap(), Told::Lead);
            assert!(!later.is_finished());
            assert!(queue.state.lock().in_flight, "the next one leads already");
            queue.settle(Some(position(24)), true);
            assert_eq!(later.join().unwrap(), Told::Look);
            assert!(!queue.state.lock().in_flight);
        });
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

    #[test]
    fn poison_tells_all_who_sleep_and_leaves_the_lead_where_it_is() {
        let queue = CommitQueue::default();
        queue.begin(position(0));
        std::thread::scope(|scope| {
            assert_eq!(queue.join(position(8)), Told::Lead);
            let one = scope.spawn(|| queue.join(position(8)));
            let two = scope.spawn(|| queue.join(position(16)));
            await_sleepers(&queue, 2);
            queue.fail();
            assert_eq!(one.join().unwrap(), Told::Look);
            assert_eq!(two.join().unwrap(), Told::Look);
            assert!(queue.state.lock().in_flight, "the sync is still under way");
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
        let waker = Waker::from(Arc::clone(&woken));
        for offset in [8, 16] {
            assert!((0..1000).all(|_| queue.register(position(offset), &waker)));
        }
        let kept: usize = queue.state.lock().wakers.values().map(Vec::len).sum();
        assert_eq!(kept, 2, "one for each ticket");
        queue.cover(position(16));
        assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    }
}
