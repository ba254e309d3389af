//! The thread that does the work of calls, so that no executor waits for a disk.
//!
//! - One thread for each store: jobs run in the order in which they were passed to it.
//! - One sync for many calls: the thread waits for the disk once the queue is empty, or after one
//!   pass through it. Only then it answers these calls, in their order; see [`Later`].
//! - The queue is bounded. Calls that find it full, or others in front of it, wait for a place.
//!   Once it is half empty, the thread wakes as many calls as there are places, in the order in
//!   which they came. So each call is woken about once, however many wait. A woken call that is
//!   neither polled nor dropped loses its place after a moment, so that the others go on.
//! - A call that is dropped before its turn is skipped. A call that has begun is completed.
//! - If a call panics in serde code of the caller, only that call fails; the thread goes on.
//!
//! The first call starts the thread, which ends with the [`Worker`].

use core::future::Future;
use core::mem::forget;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::id;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, current};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use runlog::{Error, RunLog};

/// The most calls in the queue; more wait for a place.
const QUEUE: usize = 64;

/// How long a call that was woken keeps its place in the queue.
const PATIENCE: Duration = Duration::from_millis(10);

/// Does the work of a call; returns what remains to be done once it is durable.
type Job = Box<dyn FnOnce(&Later) -> Option<Finish> + Send>;

/// Answers a call, once a sync behind it is over.
type Finish = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Where the current call of the thread states that its answer waits for the disk.
#[derive(Clone, Default)]
pub(super) struct Later(Arc<Mutex<Left>>);

#[derive(Default)]
struct Left {
    wanted: bool,
    then: Vec<Box<dyn FnOnce() + Send>>,
}

impl Later {
    /// The thread answers once everything that was written until now survives power loss.
    pub(super) fn once_durable(&self) {
        self.0.lock().wanted = true;
    }

    /// Does something before the answer, once everything that was written until now survives power
    /// loss. If the sync fails, it does nothing.
    pub(super) fn then(&self, work: impl FnOnce() + Send + 'static) {
        let mut left = self.0.lock();
        left.wanted = true;
        left.then.push(Box::new(work));
    }

    fn take(&self) -> Left {
        core::mem::take(&mut *self.0.lock())
    }
}

impl core::fmt::Debug for Later {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Later").field(&self.0.lock().wanted).finish()
    }
}

/// The errors of calls of a store.
pub(super) trait Failure: From<Error> + Send + 'static {
    /// The call panicked in code of the caller.
    fn no_answer() -> Self;
    /// The thread cannot be started.
    fn no_thread(source: io::Error) -> Self;
}

/// A blocking store with a thread that does its calls. All async stores use it.
#[derive(Debug)]
pub(super) struct OnThread<T> {
    /// It ends before the store.
    worker: Worker,
    store: Arc<T>,
}

impl<T> OnThread<T> {
    pub(super) fn store(&self) -> &T {
        &self.store
    }
}

impl<T: Send + Sync + 'static> OnThread<T> {
    /// The store may defer waiting for the disk in calls on this thread. The thread is not started
    /// yet.
    pub(super) fn new(name: &'static str, log: &RunLog, store: impl FnOnce(Later) -> T) -> Self {
        let worker = Worker::new(name, log);
        let store = Arc::new(store(worker.later.clone()));
        Self { worker, store }
    }

    /// Gives the thread a job.
    pub(super) fn ask<R, E, W>(&self, work: W) -> Answer<'_, R, E>
    where
        R: Send + 'static,
        E: Failure,
        W: FnOnce(&T) -> Result<R, E> + Send + 'static,
    {
        let store = Arc::clone(&self.store);
        self.worker.call(move || work(&store))
    }
}

/// The thread and its queue.
#[derive(Debug)]
struct Worker {
    /// The name of the thread; Linux shows 15 letters.
    name: &'static str,
    log: RunLog,
    later: Later,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that has the thread.
    process: u32,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Calls that found no place and were not woken since, in their order.
    waiting: BTreeMap<u64, Waker>,
    /// The turn of the next call that finds no place.
    next_turn: u64,
    /// Calls that were woken and have not been polled yet.
    awaited: usize,
    /// When the first of these was woken.
    woken_at: Option<Instant>,
    ending: bool,
}

impl State {
    /// How many calls that wait can be woken now.
    fn room(&self) -> usize {
        let room = if self.jobs.len() > QUEUE / 2 { 0 } else { QUEUE - self.jobs.len() };
        room.saturating_sub(self.awaited).min(self.waiting.len())
    }

    /// Takes the waiting calls for which there are places now.
    #[expect(clippy::disallowed_methods, reason = "a real moment of a real thread")]
    fn take_turns(&mut self) -> Vec<Waker> {
        let room = self.room();
        if room > 0 {
            // The first of them are the ones that may hold up others.
            if self.awaited == 0 {
                self.woken_at = Some(Instant::now());
            }
            self.awaited += room;
        }
        (0..room).filter_map(|_| self.waiting.pop_first()).map(|(_, waker)| waker).collect()
    }

    /// Calls that were woken a moment ago lose their places.
    fn let_go(&mut self) {
        let is_over = |at: Instant| at.elapsed() >= PATIENCE;
        if self.awaited > 0 && self.woken_at.is_some_and(is_over) {
            self.awaited = 0;
        }
    }

    /// Whether the queue has a place for a call. One that was woken has kept its place; no other
    /// call overtakes those that wait.
    fn has_place(&self, turn: Option<u64>, was_woken: bool) -> bool {
        let before = ..turn.unwrap_or(u64::MAX);
        let is_next = was_woken || self.waiting.range(before).next().is_none();
        let awaited = if was_woken { 0 } else { self.awaited };
        is_next && self.jobs.len() + awaited < QUEUE
    }

    /// A call that found no place was polled again, or was dropped.
    fn end_turn(&mut self, turn: u64) -> Option<Waker> {
        let waker = self.waiting.remove(&turn);
        if waker.is_none() {
            self.awaited = self.awaited.saturating_sub(1);
        }
        waker
    }
}

impl core::fmt::Debug for Queue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.state.lock().jobs.len()).finish_non_exhaustive()
    }
}

impl Worker {
    /// A thread that is not started yet.
    fn new(name: &'static str, log: &RunLog) -> Self {
        let (log, later, process) = (log.clone(), Later::default(), id());
        Self { name, log, later, queue: Arc::default(), thread: Mutex::default(), process }
    }

    /// Whether this is a forked child, which has no such thread.
    fn is_inherited(&self) -> bool {
        id() != self.process
    }

    /// The result of `work`, once the thread has done it. The first poll passes it to the thread.
    fn call<R, E, W>(&self, work: W) -> Answer<'_, R, E>
    where
        R: Send + 'static,
        E: Failure,
        W: FnOnce() -> Result<R, E> + Send + 'static,
    {
        let slot = Arc::new(Slot(Mutex::new(Progress::Waiting(None))));
        let fill = Fill(Arc::clone(&slot));
        let job: Job = Box::new(move |later| {
            if !fill.begin() {
                return None;
            }
            let result = work();
            let left = later.take();
            if !left.wanted {
                fill.end(result);
                return None;
            }
            Some(Box::new(move |synced| match synced {
                Ok(()) => {
                    left.then.into_iter().for_each(|then| then());
                    fill.end(result);
                }
                Err(error) => fill.end(Err(error.into())),
            }))
        });
        Answer { worker: self, slot, job: Some(job), turn: None }
    }

    /// Passes a job to the thread. If there is no place it returns the job, and the task is woken
    /// once there is a place, in its turn.
    fn hand_over(
        &self,
        job: Job,
        turn: &mut Option<u64>,
        waker: &Waker,
    ) -> io::Result<Option<Job>> {
        // Without the thread nothing would do the job, and a later thread would do it unasked.
        self.start()?;
        // Wakers are code of the caller: they are cloned and dropped without the lock.
        let waker = waker.clone();
        let mut state = self.queue.state.lock();
        let before = turn.and_then(|turn| state.end_turn(turn));
        let was_woken = turn.is_some() && before.is_none();
        let left = if state.has_place(*turn, was_woken) {
            *turn = None;
            state.jobs.push_back(job);
            None
        } else {
            let next = state.next_turn;
            state.next_turn += u64::from(turn.is_none());
            state.waiting.insert(*turn.get_or_insert(next), waker);
            Some(job)
        };
        drop(state);
        drop(before);
        self.queue.changed.notify_one();
        Ok(left)
    }

    /// Starts the thread, if it is not there yet.
    fn start(&self) -> io::Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (queue, later, log) =
                (Arc::clone(&self.queue), self.later.clone(), self.log.clone());
            let started = Builder::new().name(self.name.to_owned());
            *thread = Some(started.spawn(move || queue.run(&later, &log))?);
        }
        Ok(())
    }
}

impl Drop for Worker {
    /// Waits for the current call if it was dropped in the middle. There are no other calls, since
    /// a call that a caller awaits keeps its store.
    fn drop(&mut self) {
        if self.is_inherited() {
            forget(self.thread.get_mut().take());
            return;
        }
        self.queue.state.lock().ending = true;
        self.queue.changed.notify_all();
        let Some(thread) = self.thread.get_mut().take() else { return };
        // A task that the thread woke, and that its caller dropped, may end here.
        if thread.thread().id() != current().id() {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn run(&self, later: &Later, log: &RunLog) {
        let mut unfinished: Vec<Finish> = Vec::new();
        // The jobs since the first of those that are unfinished, with it.
        let mut passed = 0;
        loop {
            let mut state = self.state.lock();
            let job = loop {
                state.let_go();
                if passed < QUEUE
                    && let Some(job) = state.jobs.pop_front()
                {
                    break Some(job);
                }
                if !unfinished.is_empty() || state.room() > 0 {
                    break None;
                }
                if state.ending {
                    return;
                }
                if state.waiting.is_empty() {
                    self.changed.wait(&mut state);
                } else {
                    self.changed.wait_for(&mut state, PATIENCE);
                }
            };
            let woken = state.take_turns();
            drop(state);
            wake_all(woken);
            match job {
                Some(job) => {
                    // A call that panicked may have left something. The caller that waits for the
                    // job learns of a panic from `Fill`.
                    drop(later.take());
                    let left = catch_unwind(AssertUnwindSafe(|| job(later)));
                    unfinished.extend(left.ok().flatten());
                    passed += usize::from(!unfinished.is_empty());
                }
                None => {
                    finish_all(&mut unfinished, log);
                    passed = 0;
                }
            }
        }
    }
}

/// Waits for the disk once for many calls, and answers them.
fn finish_all(unfinished: &mut Vec<Finish>, log: &RunLog) {
    let mut is_synced = false;
    for finish in unfinished.drain(..) {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            let synced = if is_synced { Ok(()) } else { log.sync() };
            is_synced = synced.is_ok();
            finish(synced);
        }));
    }
}

/// Wakes tasks. Wakers are code of the caller: one that panics costs no other task its wake.
pub(super) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Where the answer to one call is put.
struct Slot<R, E>(Mutex<Progress<R, E>>);

enum Progress<R, E> {
    Waiting(Option<Waker>),
    Begun(Option<Waker>),
    Done(Result<R, E>),
    /// No caller waits for the answer, or it was taken.
    Over,
}

/// The end of a slot that the thread holds. If it is dropped without an answer, it reports that.
struct Fill<R, E: Failure>(Arc<Slot<R, E>>);

impl<R, E: Failure> Fill<R, E> {
    /// Whether a caller still wants the answer.
    fn begin(&self) -> bool {
        let mut progress = self.0.0.lock();
        let Progress::Waiting(waker) = &mut *progress else { return false };
        let waker = waker.take();
        *progress = Progress::Begun(waker);
        true
    }

    fn end(&self, result: Result<R, E>) {
        let mut progress = self.0.0.lock();
        let waker = match &mut *progress {
            Progress::Waiting(waker) | Progress::Begun(waker) => waker.take(),
            Progress::Done(_) | Progress::Over => return,
        };
        *progress = Progress::Done(result);
        drop(progress);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<R, E: Failure> Drop for Fill<R, E> {
    fn drop(&mut self) {
        self.end(Err(E::no_answer()));
    }
}

/// The answer to a call, to be awaited.
pub(super) struct Answer<'a, R, E> {
    worker: &'a Worker,
    slot: Arc<Slot<R, E>>,
    /// The job, if it was not passed to the thread yet.
    job: Option<Job>,
    /// Its turn, if the queue was full.
    turn: Option<u64>,
}

impl<R, E: Failure> Future for Answer<'_, R, E> {
    type Output = Result<R, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.worker.is_inherited() {
            return Poll::Ready(Err(Error::Closed.into()));
        }
        if let Some(job) = this.job.take() {
            match this.worker.hand_over(job, &mut this.turn, context.waker()) {
                Ok(None) => {}
                Ok(Some(job)) => {
                    this.job = Some(job);
                    return Poll::Pending;
                }
                Err(source) => return Poll::Ready(Err(E::no_thread(source))),
            }
        }
        let new = context.waker().clone();
        let mut progress = this.slot.0.lock();
        match &mut *progress {
            Progress::Waiting(waker) | Progress::Begun(waker) => {
                let old = waker.replace(new);
                drop(progress);
                drop(old);
                Poll::Pending
            }
            Progress::Done(_) | Progress::Over => {
                match core::mem::replace(&mut *progress, Progress::Over) {
                    Progress::Done(result) => Poll::Ready(result),
                    _ => Poll::Ready(Err(E::no_answer())),
                }
            }
        }
    }
}

impl<R, E> Drop for Answer<'_, R, E> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            let waker = self.worker.queue.state.lock().end_turn(turn);
            // The next one may take its place.
            self.worker.queue.changed.notify_one();
            drop(waker);
        }
        let left = core::mem::replace(&mut *self.slot.0.lock(), Progress::Over);
        // Dropping its waker may run any code: not under the lock.
        drop(left);
    }
}
