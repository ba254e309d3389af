//! The points at which an operation calls out of the engine, and a second operation at one of them.
//!
//! Every call of the storage, the clock, the randomness and the observer is a *point* of the thread
//! that makes it. [`beside`] runs one operation up to a point, holds it there, and runs another one
//! on a second thread meanwhile, which ends or waits for a lock that the first one holds. The state
//! of the second thread, not time, tells which.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use runlog::env::{Clock, Entropy};
use runlog::storage::Storage;
use runlog::{Activity, Observer, Phase, Timestamp};
use runlog_sim::SimDisk;

use super::tap::Tap;

thread_local! {
    /// The points that this thread has passed, if it is the first of two.
    static PASSED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Where the first of two threads is held.
#[derive(Debug, Default)]
struct Hold {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The point at which it must be held.
    point: usize,
    held: bool,
    released: bool,
}

/// What the engine calls, with a point in front of each call. Clones share their points.
#[derive(Debug, Clone)]
pub(crate) struct Points<T> {
    inner: T,
    hold: Arc<Hold>,
}

impl<T> Points<T> {
    fn pass(&self) {
        let Some(passed) = PASSED.get() else { return };
        PASSED.set(Some(passed + 1));
        let mut state = self.hold.state.lock().unwrap();
        if passed != state.point {
            return;
        }
        state.held = true;
        self.hold.changed.notify_all();
        while !state.released {
            state = self.hold.changed.wait(state).unwrap();
        }
    }

    /// Something else with the same points.
    pub(crate) fn with<U>(&self, inner: U) -> Points<U> {
        Points { inner, hold: Arc::clone(&self.hold) }
    }
}

impl Points<SimDisk> {
    pub(crate) fn new(disk: SimDisk) -> Self {
        Self { inner: disk, hold: Arc::default() }
    }

    /// The disk, with a point in front of each call.
    pub(crate) fn storage(&self) -> Arc<dyn Storage> {
        let points = self.with(());
        Tap::new(Arc::new(self.inner.clone()), move |_| {
            points.pass();
            Ok(())
        })
    }
}

/// How two operations ended that ran next to each other.
#[derive(Debug)]
pub(crate) struct Beside {
    /// What each of them answered.
    pub(crate) answers: [String; 2],
    /// The first one came to the point.
    pub(crate) held: bool,
    /// The second one waited for a lock that the first held there.
    pub(crate) blocked: bool,
}

/// Runs `first` up to its call-out `point`, `second` there, and then both to their ends.
pub(crate) fn beside<T: Sync>(
    points: &Points<T>,
    point: usize,
    first: impl FnOnce() -> String + Send,
    second: impl FnOnce() -> String + Send,
) -> Beside {
    *points.hold.state.lock().unwrap() = State { point, held: false, released: false };
    let (first_over, second_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let ids = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let _over = Over(&first_over, points);
            ids[0].store(this_thread(), Ordering::SeqCst);
            PASSED.set(Some(0));
            let answer = first();
            PASSED.set(None);
            answer
        });
        {
            let mut state = points.hold.state.lock().unwrap();
            while !state.held && !first_over.load(Ordering::SeqCst) {
                state = points.hold.changed.wait(state).unwrap();
            }
        }
        let held = points.hold.state.lock().unwrap().held;
        let second = scope.spawn(|| {
            let _over = Over(&second_over, points);
            ids[1].store(this_thread(), Ordering::SeqCst);
            second()
        });
        let blocked = held && sleeps(&ids[1], &second_over, 3);
        {
            points.hold.state.lock().unwrap().released = true;
            points.hold.changed.notify_all();
        }
        // Two threads that both sleep for good wait for each other.
        let is_stuck =
            || sleeps(&ids[0], &first_over, 20_000) && sleeps(&ids[1], &second_over, 20_000);
        while !(first_over.load(Ordering::SeqCst) && second_over.load(Ordering::SeqCst)) {
            assert!(!is_stuck(), "two operations wait for each other");
            thread::yield_now();
        }
        let answers = [first.join().unwrap(), second.join().unwrap()];
        Beside { answers, held, blocked }
    })
}

/// Tells that a thread is over, also by a panic.
struct Over<'a, T>(&'a AtomicBool, &'a Points<T>);

impl<T> Drop for Over<'_, T> {
    fn drop(&mut self) {
        // The lock ensures that the waiting thread either has not looked yet or is already waiting.
        let _state = self.1.hold.state.lock();
        self.0.store(true, Ordering::SeqCst);
        self.1.hold.changed.notify_all();
    }
}

/// The system's number of this thread.
fn this_thread() -> u64 {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Whether a thread sleeps, this many times in a row, before it ends. A thread sleeps here only
/// while it waits for a lock.
fn sleeps(id: &AtomicU64, over: &AtomicBool, times: usize) -> bool {
    let mut in_a_row = 0;
    while in_a_row < times {
        if over.load(Ordering::SeqCst) {
            return false;
        }
        thread::yield_now();
        let id = id.load(Ordering::SeqCst);
        let stat = std::fs::read_to_string(format!("/proc/self/task/{id}/stat"));
        let state = stat.ok().and_then(|stat| stat.rsplit(") ").next()?.chars().next());
        match state {
            Some('S') => in_a_row += 1,
            Some(_) if times > 3 => return false,
            _ => in_a_row = 0,
        }
    }
    true
}

impl<T: Clock> Clock for Points<T> {
    fn now(&self) -> Timestamp {
        self.pass();
        self.inner.now()
    }

    fn monotonic(&self) -> std::time::Duration {
        self.inner.monotonic()
    }
}

impl<T: Entropy> Entropy for Points<T> {
    fn fill(&self, out: &mut [u8]) -> io::Result<()> {
        self.pass();
        self.inner.fill(out)
    }
}

impl Observer for Points<()> {
    fn observe(&self, _: Activity, _: Phase<'_>) {
        self.pass();
    }
}
