//! Who holds the lock of the core when many threads append without a pause: one at a time, for a
//! turn of many appends, while the others sleep.
//!
//! A lock that goes to another processor with each append takes all with it that it guards: the
//! tail, its directory, zeros that were just written. That costs more than the append. So who finds
//! the lock taken, and does not get it within a moment, sleeps in a queue, and who appends wakes
//! the first of the queue after a turn. (Restricting how many threads go for a lock is what Dice,
//! "Malthusian Locks", 2017, does for locks in general.)
//!
//! - Only a thread that itself appends without a pause sleeps. Whoever comes now and then waits for
//!   the lock as for any other, which is soon had.
//! - Nobody depends on being woken: each also looks by itself now and then, so that a thread which
//!   stops appending within its turn holds nobody up.
//! - Without contention none of this costs more than a look at a counter.

use core::cell::Cell;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

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
pub(crate) struct Turns {
    waiting: AtomicUsize,
    /// The appends of the turn, since somebody waits for the next. Changed under the lock.
    appends: AtomicU32,
    queue: Mutex<VecDeque<Arc<Sleeper>>>,
}

/// A thread that waits.
#[derive(Debug, Default)]
struct Sleeper {
    called: Mutex<bool>,
    changed: Condvar,
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

impl Sleeper {
    fn call(&self) {
        *self.called.lock() = true;
        self.changed.notify_one();
    }

    /// Whether it was called within that time.
    fn wait(&self, patience: Duration) -> bool {
        let mut called = self.called.lock();
        if !*called {
            self.changed.wait_for(&mut called, patience);
        }
        *called
    }
}

impl Turns {
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
        let sleeper = Arc::<Sleeper>::default();
        let mut place = self.enter(&sleeper);
        loop {
            let called = sleeper.wait(PATIENCE * place);
            let locked = if called { Some(core.lock()) } else { core.try_lock() };
            if let Some(core) = locked {
                self.leave(&sleeper);
                self.appends.store(0, Ordering::Relaxed);
                return core;
            }
            place = self.place(&sleeper);
        }
    }

    fn enter(&self, sleeper: &Arc<Sleeper>) -> u32 {
        let mut queue = self.queue.lock();
        queue.push_back(Arc::clone(sleeper));
        self.waiting.store(queue.len(), Ordering::Relaxed);
        u32::try_from(queue.len()).unwrap_or(u32::MAX)
    }

    fn place(&self, sleeper: &Arc<Sleeper>) -> u32 {
        let queue = self.queue.lock();
        let ahead = queue.iter().take_while(|other| !Arc::ptr_eq(other, sleeper)).count();
        u32::try_from(ahead + 1).unwrap_or(u32::MAX)
    }

    fn leave(&self, sleeper: &Arc<Sleeper>) {
        let mut queue = self.queue.lock();
        queue.retain(|other| !Arc::ptr_eq(other, sleeper));
        self.waiting.store(queue.len(), Ordering::Relaxed);
    }

    /// Counts an append, under the lock; answers whether the turn is over and somebody waits.
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

    /// Calls who has waited longest.
    #[cold]
    pub(crate) fn pass_on(&self) {
        let first = {
            let mut queue = self.queue.lock();
            let first = queue.pop_front();
            self.waiting.store(queue.len(), Ordering::Relaxed);
            first
        };
        if let Some(first) = first {
            first.call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until so many threads sleep.
    fn await_sleepers(turns: &Turns, count: usize) {
        while turns.waiting.load(Ordering::Relaxed) != count {
            core::hint::spin_loop();
        }
    }

    #[test]
    fn who_has_waited_longest_is_called_after_a_turn() {
        let (turns, lock) = (Turns::default(), Mutex::new(Vec::new()));
        assert!((0..2 * TURN).all(|_| !turns.is_over()), "nobody waits");
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            let wait = |name| {
                let (turns, lock) = (&turns, &lock);
                scope.spawn(move || turns.wait(lock).push(name))
            };
            let first = wait("first");
            await_sleepers(&turns, 1);
            let second = wait("second");
            await_sleepers(&turns, 2);
            assert!((1..TURN).all(|_| !turns.is_over()), "the turn is not over");
            assert!(turns.is_over());
            let sleeper = Arc::clone(&turns.queue.lock()[0]);
            turns.pass_on();
            assert!(*sleeper.called.lock(), "the first is called");
            assert!(!*turns.queue.lock()[0].called.lock(), "and the second is not");
            held.push("held");
            drop(held);
            first.join().unwrap();
            second.join().unwrap();
        });
        assert_eq!(lock.into_inner().len(), 3, "who was not called has looked by itself");
        assert_eq!(turns.waiting.into_inner(), 0);
        assert!(turns.queue.into_inner().is_empty());
    }

    #[test]
    fn only_who_appends_without_a_pause_sleeps() {
        assert!(has_paused(Timestamp(1_000_000)), "the first append of a thread");
        assert!(!has_paused(Timestamp(1_000_000 + NO_PAUSE - 1)));
        assert!(has_paused(Timestamp(1_000_000 + 2 * NO_PAUSE)));
        assert!(has_paused(Timestamp(1_000_000)), "the clock went back");
    }
}
