//! Group commit: one sync serves all who wait for it.
//!
//! - [`CommitQueue`] knows how far the log was written and how far it is durable.
//! - Whoever needs a position to be durable and finds no sync under way does it for all; the
//!   others wait. One sync is under way at a time.
//! - The durable position moves only after a sync was *seen to succeed* (O2), to what had been
//!   written when that sync began.
//! - [`Ticket`]: what an append hands out, to be waited for or awaited.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::observer::Activity;
use super::shared::Engine;
use crate::error::Result;
use crate::types::LogPosition;

/// How far the log was written and how far it is durable.
#[derive(Debug, Default)]
pub(crate) struct CommitQueue {
    written: AtomicU64,
    durable: AtomicU64,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    in_flight: bool,
    wakers: Vec<(LogPosition, Waker)>,
}

impl CommitQueue {
    /// The log is durable up to `end`, where appends will go on.
    pub(crate) fn begin(&self, end: LogPosition) {
        self.wrote(end);
        self.durable.fetch_max(end.to_u64(), Ordering::AcqRel);
    }

    /// Everything in front of this position was written. Called under the lock of the core.
    pub(crate) fn wrote(&self, end: LogPosition) {
        // That lock orders the callers, so nobody else moves the mark in between.
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

    /// Returns once everything in front of `end` is durable.
    pub(crate) fn sync_through(&self, engine: &Engine, end: LogPosition) -> Result<()> {
        loop {
            if self.durable() >= end {
                return Ok(());
            }
            engine.disk.check()?;
            let mut state = self.state.lock();
            if self.durable() >= end {
                return Ok(());
            }
            if state.in_flight {
                self.changed.wait(&mut state);
                continue;
            }
            state.in_flight = true;
            drop(state);
            self.lead(engine)?;
        }
    }

    /// Syncs for everybody.
    fn lead(&self, engine: &Engine) -> Result<()> {
        let covered = self.written.load(Ordering::Acquire);
        let result = {
            let _watch = engine.watch(Activity::Sync);
            engine.disk.sync()
        };
        self.state.lock().in_flight = false;
        self.cover(if result.is_ok() { Some(LogPosition::from_u64(covered)) } else { None });
        if result.is_ok() {
            engine.note_synced();
        }
        result
    }

    /// A sync has succeeded that began when everything in front of `covered` had been written, or
    /// one has failed. Wakes whoever waits for it.
    pub(crate) fn cover(&self, covered: Option<LogPosition>) {
        let mut state = self.state.lock();
        if let Some(covered) = covered {
            self.durable.fetch_max(covered.to_u64(), Ordering::AcqRel);
        }
        let (durable, failed) = (self.durable(), covered.is_none());
        let (ready, waiting): (Vec<_>, Vec<_>) =
            state.wakers.drain(..).partition(|(end, _)| failed || *end <= durable);
        state.wakers = waiting;
        self.changed.notify_all();
        drop(state);
        for (_, waker) in ready {
            waker.wake();
        }
    }

    /// Wakes the task once `end` is durable or never will be.
    fn register(&self, end: LogPosition, waker: &Waker) -> bool {
        let mut state = self.state.lock();
        if self.durable() >= end {
            return false;
        }
        state.wakers.push((end, waker.clone()));
        true
    }
}

/// The durability of an append that was acknowledged at Process level: wait for it, ask for it,
/// or await it as a future.
///
/// Waiting does the sync if nobody else does. Awaiting asks the background thread for one; a store
/// without one (see `Options::sync_interval`) syncs within the poll.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let dir = std::env::temp_dir().join(format!("runlog-doc-ticket-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&dir);
/// let log = runlog::Options::new().open(&dir)?;
/// let run = log.start_run("agent", "run", ())?;
/// let appended = run.append(b"step 1")?; // survives a kill from here on
/// appended.ticket.wait()?; // and a power loss from here on
/// # drop(run); log.close()?; let _ = std::fs::remove_file(&dir);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Ticket {
    engine: Arc<Engine>,
    end: LogPosition,
}

impl Ticket {
    pub(crate) fn new(engine: Arc<Engine>, end: LogPosition) -> Self {
        Self { engine, end }
    }

    /// Whether the append survives power loss already.
    pub fn is_durable(&self) -> bool {
        self.engine.commit.durable() >= self.end
    }

    /// Returns once the append survives power loss.
    ///
    /// # Errors
    /// What made the sync fail, or [`crate::Error::Poisoned`] if an earlier one did: then nobody
    /// knows whether the append survives.
    pub fn wait(&self) -> Result<()> {
        self.engine.commit.sync_through(&self.engine, self.end)
    }
}

impl Future for Ticket {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_durable() {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = self.engine.disk.check() {
            return Poll::Ready(Err(error));
        }
        if !self.engine.upkeep.has_thread() {
            return Poll::Ready(self.wait());
        }
        if !self.engine.commit.register(self.end, context.waker()) {
            return Poll::Ready(Ok(()));
        }
        // A failure between the check and the registration would wake nobody.
        if let Err(error) = self.engine.disk.check() {
            return Poll::Ready(Err(error));
        }
        self.engine.upkeep.want(super::upkeep::Wanted::SYNC);
        Poll::Pending
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("end", &self.end).finish_non_exhaustive()
    }
}
