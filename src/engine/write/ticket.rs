//! The answers of appends: what was appended, and whether it survives power loss.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use crate::engine::setup::due::Wanted;
use crate::engine::write::Log;
use crate::engine::write::group_commit::WaiterNo;
use crate::error::{Error, Result};
use crate::types::{LogPosition, Lsn, Seq};

/// An acknowledged append. It has reached the level that was asked for; the ticket tells when it
/// survives power loss too.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Appended {
    /// The sequence of the record; of the last one for a batch.
    pub seq: Seq,
    /// Its place in the whole log.
    pub lsn: Lsn,
    /// Its durability.
    pub ticket: Ticket,
}

/// The durability of an append that was acknowledged at Process level: wait, ask or await.
///
/// Waiting does the sync unless another thread does. Awaiting asks the background thread for a
/// sync; a store without that thread syncs within the poll (see `Options::background`).
///
/// A background thread calls the waker, or the call that closes the store does so at its end. That
/// thread holds no lock of the store, so the waker may call the store and may drop its last handle.
/// A waker must not block: until it returns, that thread wakes no other task. The store keeps one
/// waker per ticket, however often the ticket is polled, and drops the waker with the ticket.
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
pub struct Ticket {
    log: Arc<Log>,
    end: LogPosition,
    /// Set once it was polled: the number under which it waits.
    waiter: Option<WaiterNo>,
}

impl Clone for Ticket {
    /// Another ticket for the same append. Each can be awaited by a task of its own.
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.log), self.end)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.log.commit.forget(self.end, waiter);
        }
    }
}

impl Ticket {
    pub(crate) fn new(log: Arc<Log>, end: LogPosition) -> Self {
        Self { log, end, waiter: None }
    }

    /// Whether the append already survives power loss.
    pub fn is_durable(&self) -> bool {
        self.log.commit.durable() >= self.end
    }

    /// The result if no sync will cover the append: success if closing has made it durable.
    fn unless_durable(&self, error: Error) -> Result<()> {
        if self.is_durable() { Ok(()) } else { Err(error) }
    }

    /// Returns once the append survives power loss.
    ///
    /// # Errors
    /// The cause of the failed sync, or [`crate::Error::Poisoned`] if an earlier one failed: then
    /// it is unknown whether the append survives.
    pub fn wait(&self) -> Result<()> {
        self.log.commit.note_waiter();
        self.log.sync_through(self.end)
    }
}

impl Future for Ticket {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_durable() {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = self.log.disk.check() {
            return Poll::Ready(self.unless_durable(error));
        }
        if !self.log.due.has_thread() {
            return Poll::Ready(self.wait());
        }
        let Self { log, end, waiter } = &mut *self;
        log.commit.note_waiter();
        if !log.commit.register(*end, waiter, context.waker()) {
            return Poll::Ready(Ok(()));
        }
        // Poison between check and registration woke only the tasks that were registered then.
        if let Err(error) = self.log.disk.check() {
            return Poll::Ready(self.unless_durable(error));
        }
        self.log.due.want(Wanted::SYNC);
        Poll::Pending
    }
}

/// The answer of a call that did not wait for the disk. It is final once it survives power loss.
/// The calls of [`RunLog::deferred`](crate::RunLog::deferred) return it.
///
/// Await it, or [`wait`](Pending::wait) for it. The work is already done and other calls see it;
/// until then only power loss can undo it. A refusal is pending too if it rests on other writes,
/// such as a conflict: until these survive power loss, it could turn out to be wrong.
///
/// Dropping it undoes nothing. It discards the answer, even a refusal.
#[must_use = "it may be a refusal, and is not yet safe from power loss"]
pub struct Pending<T> {
    /// Taken by the poll that returns it.
    answer: Option<Result<T>>,
    ticket: Ticket,
}

impl<T> Unpin for Pending<T> {}

impl<T> Pending<T> {
    pub(crate) fn new(answer: Result<T>, ticket: Ticket) -> Self {
        Self { answer: Some(answer), ticket }
    }

    /// Replaces the answer by the result of `change`; a refusal stays as it is.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Pending<U> {
        Pending { answer: self.answer.map(|answer| answer.map(change)), ticket: self.ticket }
    }

    /// Whether the answer is final, so that [`Pending::wait`] returns at once.
    pub fn is_durable(&self) -> bool {
        self.is_final() || self.ticket.is_durable()
    }

    /// Whether this is a refusal that no power loss can make untrue.
    fn is_final(&self) -> bool {
        matches!(&self.answer, Some(Err(error)) if !Log::rests_on_writes(error))
    }

    /// Returns the answer once it survives power loss. Syncs, unless another thread does.
    ///
    /// # Errors
    /// The refusal; or the cause of the failed sync; [`Error::Poisoned`] if an earlier one failed:
    /// then it is unknown whether the call's work survives.
    pub fn wait(mut self) -> Result<T> {
        if !self.is_final() {
            self.ticket.wait()?;
        }
        self.answer.take().unwrap_or(Err(Error::Closed))
    }

    /// The answer as of now, which survives the death of the process, and a ticket for its
    /// durability. Use it to continue a run before its start is durable.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-now-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// let log = runlog::Options::new().open(&path)?;
    /// let (run, _) = log.deferred().start_run("planner", "run-1", ()).now();
    /// let step = run?.append(b"step 1")?;
    /// step.ticket.wait()?; // this one covers the start
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The refusal, which may rest on writes that a power loss undoes.
    pub fn now(mut self) -> (Result<T>, Ticket) {
        (self.answer.take().unwrap_or(Err(Error::Closed)), self.ticket)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    /// # Panics
    /// When it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if !self.is_final() {
            match Pin::new(&mut self.ticket).poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => {}
            }
        }
        Poll::Ready(self.answer.take().expect("it is polled until it is ready"))
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("end", &self.end).finish_non_exhaustive()
    }
}
