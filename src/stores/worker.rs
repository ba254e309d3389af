//! The thread that does what calls ask for, so that no executor ever waits for a disk.
//!
//! - One thread a store: what was handed over first is done first.
//! - One sync for all: what calls write waits for the disk once the queue is empty, or has been
//!   gone through once. Only then these calls are answered, in their order; see [`Later`].
//! - The queue is bounded. Whoever finds it full is woken once it is half empty.
//! - A call that is dropped before its turn is skipped; one that was begun is done to its end.
//! - A call that panics, in serde code of the caller's, fails alone: the thread goes on.
//!
//! The thread is started by the first call and ends with the [`Worker`].

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, current};

use parking_lot::{Condvar, Mutex};

use crate::{Error, IoAction, RunLog};

/// Calls that wait for the thread at most; more wait in front of the queue.
const QUEUE: usize = 64;

/// Does what a call asks for; answers what is left to be done once that is durable.
type Job = Box<dyn FnOnce(&Later) -> Option<Finish> + Send>;

/// Waits for the disk and answers a call.
type Finish = Box<dyn FnOnce(&RunLog) + Send>;

/// Where the call that the thread is at says that its answer waits for the disk.
#[derive(Clone, Default)]
pub(super) struct Later(Arc<Mutex<Left>>);

#[derive(Default)]
struct Left {
    wanted: bool,
    then: Vec<Box<dyn FnOnce() + Send>>,
}

impl Later {
    /// The answer is given once everything that was written until now survives power loss.
    pub(super) fn once_durable(&self) {
        self.0.lock().wanted = true;
    }

    /// Does something once everything that was written until now survives power loss, in front of
    /// the answer; nothing if it does not.
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

/// What calls of a store fail with.
pub(super) trait Failure: From<Error> + Send + 'static {
    /// The call panicked in code of the caller's.
    fn no_answer() -> Self;
}

/// The thread and its queue.
#[derive(Debug)]
pub(super) struct Worker {
    /// What the thread is called; Linux shows 15 letters.
    name: &'static str,
    log: RunLog,
    later: Later,
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Who found the queue full.
    waiting: Vec<Waker>,
    ending: bool,
}

impl core::fmt::Debug for Queue {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.state.lock().jobs.len()).finish_non_exhaustive()
    }
}

impl Worker {
    /// A thread that is not started yet.
    pub(super) fn new(name: &'static str, log: &RunLog) -> Self {
        let (log, later) = (log.clone(), Later::default());
        Self { name, log, later, queue: Arc::default(), thread: Mutex::default() }
    }

    /// Where calls that are done by the thread put off waiting for the disk.
    pub(super) fn later(&self) -> Later {
        self.later.clone()
    }

    /// What `work` answers, once the thread has done it. It is handed over when the answer is
    /// polled first.
    pub(super) fn call<R, E, W>(&self, work: W) -> Answer<'_, R, E>
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
            Some(Box::new(move |log| match log.sync() {
                Ok(()) => {
                    left.then.into_iter().for_each(|then| then());
                    fill.end(result);
                }
                Err(error) => fill.end(Err(error.into())),
            }))
        });
        Answer { worker: self, slot, job: Some(job) }
    }

    /// Hands a job over. It comes back if there is no room; the task is woken once there is.
    fn hand_over(&self, job: Job, waker: &Waker) -> Result<Option<Job>, Error> {
        let mut state = self.queue.state.lock();
        if state.jobs.len() >= QUEUE {
            if !state.waiting.iter().any(|other| other.will_wake(waker)) {
                state.waiting.push(waker.clone());
            }
            return Ok(Some(job));
        }
        state.jobs.push_back(job);
        drop(state);
        self.queue.changed.notify_one();
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (queue, later, log) =
                (Arc::clone(&self.queue), self.later.clone(), self.log.clone());
            let started = Builder::new().name(self.name.to_owned());
            let started = started.spawn(move || queue.run(&later, &log));
            *thread = Some(started.map_err(|source| Error::io(IoAction::Thread, source))?);
        }
        Ok(None)
    }
}

impl Drop for Worker {
    /// Waits for the call that is under way, if it was dropped in the middle. There are no others:
    /// a call that is waited for keeps its store.
    fn drop(&mut self) {
        self.queue.state.lock().ending = true;
        self.queue.changed.notify_all();
        let Some(thread) = self.thread.get_mut().take() else { return };
        // A task that the thread woke, and that nobody wants any more, may end here.
        if thread.thread().id() != current().id() {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn run(&self, later: &Later, log: &RunLog) {
        let mut unfinished: Vec<Finish> = Vec::new();
        loop {
            let mut state = self.state.lock();
            let job = loop {
                let is_turn_over = unfinished.len() >= QUEUE;
                if !is_turn_over && let Some(job) = state.jobs.pop_front() {
                    break Some(job);
                }
                if !unfinished.is_empty() {
                    break None;
                }
                if state.ending {
                    return;
                }
                self.changed.wait(&mut state);
            };
            let room = state.jobs.len() <= QUEUE / 2;
            let woken = if room { core::mem::take(&mut state.waiting) } else { Vec::new() };
            drop(state);
            // Wakers are the caller's as well. Whoever waits for the job learns of its panic from
            // `Fill`.
            let _ = catch_unwind(|| woken.into_iter().for_each(Waker::wake));
            match job {
                Some(job) => {
                    // A call that panicked may have left something.
                    drop(later.take());
                    let left = catch_unwind(AssertUnwindSafe(|| job(later)));
                    unfinished.extend(left.ok().flatten());
                }
                None => {
                    for finish in unfinished.drain(..) {
                        let _ = catch_unwind(AssertUnwindSafe(|| finish(log)));
                    }
                }
            }
        }
    }
}

/// Where the answer to one call is put.
struct Slot<R, E>(Mutex<Progress<R, E>>);

enum Progress<R, E> {
    Waiting(Option<Waker>),
    Begun(Option<Waker>),
    Done(Result<R, E>),
    /// Nobody waits for the answer, or it was taken.
    Over,
}

/// The end of a slot that the thread holds. Dropped without an answer it says that there is none.
struct Fill<R, E: Failure>(Arc<Slot<R, E>>);

impl<R, E: Failure> Fill<R, E> {
    /// Whether somebody still wants the answer.
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
    /// What was not handed over yet.
    job: Option<Job>,
}

impl<R, E: Failure> Future for Answer<'_, R, E> {
    type Output = Result<R, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(job) = self.job.take() {
            match self.worker.hand_over(job, context.waker()) {
                Ok(None) => {}
                Ok(Some(job)) => {
                    self.job = Some(job);
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let mut progress = self.slot.0.lock();
        match &mut *progress {
            Progress::Waiting(waker) | Progress::Begun(waker) => {
                *waker = Some(context.waker().clone());
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
        let left = core::mem::replace(&mut *self.slot.0.lock(), Progress::Over);
        // Its waker may do anything when it goes: not under the lock.
        drop(left);
    }
}
