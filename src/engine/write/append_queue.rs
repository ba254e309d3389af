//! The queue of threads that append without a pause: one at a time holds the lock of the log's
//! state for a turn of many appends, while the others sleep.
//!
//! A lock that goes to another processor with each append takes the tail, its directory and fresh
//! zeros with it, which costs more than the append. (Restricting how many threads go for a lock is
//! what Dice, "Malthusian Locks", 2017, does for locks in general.)
//!
//! - Only a thread that itself appends without a pause sleeps; the others wait for the lock.
//! - A sleeping thread also looks by itself now and then, so that a thread which stops appending
//!   within its turn holds no other up.

use core::cell::Cell;
use core::time::Duration;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::types::Timestamp;

/// The appends of a turn, while others wait.
const TURN: u32 = 256;

/// A thread appends without a pause if it began its last append no longer ago, in nanoseconds.
const NO_PAUSE: i64 = 2_000;

/// How often a thread looks before it sleeps: for about as long as three appends take.
const LOOKS: u32 = 32;

/// After how long a sleeping thread looks by itself, for each place in the queue: about a turn.
const PATIENCE: Duration = Duration::from_micros(100);

/// The threads that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct AppendQueue {
    waiting: AtomicU32,
    /// The appends of the turn, since a thread waits for the next. Changed under the lock.
    appends: AtomicU32,
    queue: Mutex<()>,
    /// Calls the thread that has waited longest.
    next: Condvar,
}

/// Whether this thread began its last append a while before this one.
#[inline]
fn has_paused(now: Timestamp) -> bool {
    thread_local! {
        static LAST: Cell<Timestamp> = const { Cell::new(Timestamp(0)) };
    }
    let last = LAST.with(|last| last.replace(now));
    !(0..NO_PAUSE).contains(&now.0.saturating_sub(last.0))
}

impl AppendQueue {
    /// Takes the lock for an append that begins now, if that is known.
    #[inline]
    pub(crate) fn lock<'c, T>(
        &self,
        core: &'c Mutex<T>,
        now: Option<Timestamp>,
    ) -> MutexGuard<'c, T> {
        let paused = now.is_none_or(has_paused);
        match core.try_lock() {
            Some(core) => core,
            None if paused => core.lock(),
            None => self.wait(core),
        }
    }

    #[cold]
    fn wait<'c, T>(&self, core: &'c Mutex<T>) -> MutexGuard<'c, T> {
        for _ in 0..LOOKS {
            if self.waiting.load(Ordering::Relaxed) > 0 {
                break;
            }
            core::hint::spin_loop();
            if let Some(core) = core.try_lock() {
                return core;
            }
        }
        let place = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let mut queue = self.queue.lock();
        let core = loop {
            let called = !self.next.wait_for(&mut queue, PATIENCE * place).timed_out();
            if called {
                break MutexGuard::unlocked(&mut queue, || core.lock());
            } else if let Some(core) = core.try_lock() {
                break core;
            }
        };
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.appends.store(0, Ordering::Relaxed);
        core
    }

    /// Counts an append, under the lock; returns whether the turn is over and a thread waits.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let appends = self.appends.load(Ordering::Relaxed) + 1;
        let is_over = appends >= TURN;
        self.appends.store(if is_over { 0 } else { appends }, Ordering::Relaxed);
        is_over
    }

    /// Calls the thread that has waited longest.
    #[cold]
    pub(crate) fn pass_on(&self) {
        self.next.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until so many threads sleep.
    fn await_sleepers(queue: &AppendQueue, count: u32) {
        while queue.waiting.load(Ordering::Relaxed) != count {
            core::hint::spin_loop();
        }
    }

    #[test]
    fn who_has_waited_longest_is_called_after_a_turn() {
        let (queue, lock) = (AppendQueue::default(), Mutex::new(Vec::new()));
        assert!((0..2 * TURN).all(|_| !queue.is_over()), "no thread waits");
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            let wait = |name| {
                let (queue, lock) = (&queue, &lock);
                scope.spawn(move || queue.wait(lock).push(name))
            };
            let first = wait("first");
            await_sleepers(&queue, 1);
            let second = wait("second");
            await_sleepers(&queue, 2);
            assert!((1..TURN).all(|_| !queue.is_over()), "the turn is not over");
            assert!(queue.is_over());
            queue.pass_on();
            held.push("held");
            drop(held);
            first.join().unwrap();
            second.join().unwrap();
        });
        assert_eq!(lock.into_inner().len(), 3, "who was not called has looked by itself");
        assert_eq!(queue.waiting.into_inner(), 0);
    }

    #[test]
    fn only_who_appends_without_a_pause_sleeps() {
        assert!(has_paused(Timestamp(1_000_000)), "the first append of a thread");
        assert!(!has_paused(Timestamp(1_000_000 + NO_PAUSE - 1)));
        assert!(has_paused(Timestamp(1_000_000 + 2 * NO_PAUSE)));
        assert!(has_paused(Timestamp(1_000_000)), "the clock went back");
    }
}
