//! What an append hands out: that it is there, and whether it survives power loss.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use crate::engine::setup::due::Wanted;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::types::{LogPosition, Lsn, Seq};

/// An acknowledged append. The level that was asked for is reached; the ticket tells when the
/// append survives power loss too.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The sequence of the (last) record.
    pub seq: Seq,
    /// Its place in the whole log.
    pub lsn: Lsn,
    /// Its durability.
    pub ticket: Ticket,
}

/// The durability of an append that was acknowledged at Process level: wait for it, ask for it,
/// or await it as a future.
///
/// Waiting does the sync unless another thread does. Awaiting asks the background thread for one; a
/// store without one (see `Options::sync_interval`) syncs within the poll. The thread that knows
/// the outcome wakes the task, perhaps from within the engine, so a waker must not call the store.
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
    log: Arc<Log>,
    end: LogPosition,
}

impl Ticket {
    pub(crate) fn new(log: Arc<Log>, end: LogPosition) -> Self {
        Self { log, end }
    }

    /// Whether the append survives power loss already.
    pub fn is_durable(&self) -> bool {
        self.log.commit.durable() >= self.end
    }

    /// What no sync will make durable any more, unless closing the store has done so in between.
    fn unless_durable(&self, error: Error) -> Result<()> {
        if self.is_durable() { Ok(()) } else { Err(error) }
    }

    /// Returns once the append survives power loss.
    ///
    /// # Errors
    /// What made the sync fail, or [`crate::Error::Poisoned`] if an earlier one did: then it is
    /// unknown whether the append survives.
    pub fn wait(&self) -> Result<()> {
        self.log.sync_through(self.end)
    }
}

impl Future for Ticket {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_durable() {
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = self.log.disk.check() {
            return Poll::Ready(self.unless_durable(error));
        }
        if !self.log.due.has_thread() {
            return Poll::Ready(self.wait());
        }
        if !self.log.commit.register(self.end, context.waker()) {
            return Poll::Ready(Ok(()));
        }
        // Poison between the check and the registration has told those who were there by then.
        if let Err(error) = self.log.disk.check() {
            return Poll::Ready(self.unless_durable(error));
        }
        self.log.due.want(Wanted::SYNC);
        Poll::Pending
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("end", &self.end).finish_non_exhaustive()
    }
}
