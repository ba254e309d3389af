//! The queue of threads that append without a pause: one at a time holds the lock of the log's
//! state for a turn of many appends, while the others sleep.
//!
//! If the lock goes to another processor with each append, the tail, its directory and fresh zeros
//! follow it, which costs more than the append. (Dice, "Malthusian Locks", 2017, restricts how many
//! threads compete for a lock in general.)
//!
//! - Only a thread that itself appends without a pause sleeps; the others wait for the lock.
//! - A sleeping thread also checks by itself from time to time, so that a thread that stops
//!   appending within its turn does not delay it.

use core::cell::Cell;
use core::time::Duration;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::types::Timestamp;

/// The number of appends in a turn while others wait.
const TURN: u32 = 256;

/// A pause of fewer nanoseconds between the begins of two appends does not count.
const NO_PAUSE: i64 = 2_000;

/// How often a thread tries before it sleeps: for about the time of three appends.
const LOOKS: u32 = 32;

/// After how long a sleeping thread checks by itself, times its place in the queue: about a turn.
const PATIENCE: Duration = Duration::from_micros(100);

/// The threads that wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct AppendQueue {
    waiting: AtomicU32,
    /// The appends of this turn, counted while a thread waits. Changed under the lock.
    appends: AtomicU32,
    queue: Mutex<()>,
    /// Wakes the thread that has waited longest.
    next: Condvar,
}

/// Whether this thread began its last append too long ago to append without a pause.
#[inline]
fn has_paused(now: Timestamp) -> bool {
    thread_local! {
        static LAST: Cell<Timestamp> = const { Cell::new(Timestamp(0)) };
    }
    let last = LAST.with(|last| last.replace(now));
    !(0..NO_PAUSE).contains(&now.0.saturating_sub(last.0))
}

impl AppendQueue {
    /// Takes the lock for an append that begins now; `None` if the time is not known.
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

    /// Wakes the thread that has waited longest.
    #[cold]
    pub(crate) fn pass_on(&self) {
        self.next.notify_one();
    }
}
