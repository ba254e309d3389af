//! Following the log: [`Follower`].

use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use std::sync::Arc;

use crate::engine::api::reader::Reader;
#[cfg(doc)]
use crate::engine::api::reader::ReaderOptions;
use crate::engine::api::run_log::RunLog;
use crate::engine::background::{Sleeping, Ticker};
use crate::engine::reader::Replica;
use crate::engine::reader::events::{Follow, LogCursor, LogEvent};
use crate::engine::reader::follow::Tailing;
use crate::engine::reader::found::end_of;
use crate::engine::setup::environment::Clock;
use crate::engine::setup::signal::Signal;
use crate::engine::write::Log;
use crate::error::Result;

/// How often a file is looked at that another process writes.
const POLL: Duration = Duration::from_millis(40);

/// How often the log of this process is looked at without having been rung for.
const RARELY: Duration = Duration::from_secs(1);

/// Follows a log: starts, records, ends and deletions of runs, in the order of the log, each record
/// whole and once. Made by [`Reader::follow`] in any process, and by [`RunLog::follow`] in the
/// writer's own.
///
/// As an iterator it waits for the next event, as long as [`Follower::patience`] says. As a task it
/// is awaited with [`Follower::next_event`], by any runtime; with the feature `stream` it is a
/// `futures_core::Stream`.
///
/// - A follower of another process is behind by some 40 ms at most: so often it looks at the file,
///   with four reads of 64 KiB together. In the writer's process it is woken by each append.
/// - It sees what was written, which a power loss may take.
///   [`ReaderOptions::durable_only`] makes it wait for the disk.
/// - Runs that were deleted before it came to them are left out, but for their deletion.
/// - A deletion may be told twice by followers that go on from a stored cursor, since compaction
///   writes deletions anew.
/// - A writer that dies leaves it waiting for the next one; [`Reader::writer`] tells.
///
/// An error is an item. Damage of one record and lost frames are reported at their place in the
/// log, and the follower goes on behind them. Damage of what all records need, such as the
/// manifest, is reported once, and the follower then waits until that can be read again. A failure
/// such as [`Error::Replaced`](crate::Error::Replaced) comes again.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-follow-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use std::time::Duration;
/// use runlog::{Follow, LogCursor, LogEventKind, Reader};
///
/// let log = runlog::Options::new().open(&path)?;
/// log.start_run("agent", "run", ())?.append(b"step 1")?;
///
/// let reader = Reader::open(&path)?; // in any process
/// let follower = reader.follow(Follow::Agent("agent"), LogCursor::START)?;
/// let mut cursor = LogCursor::START;
/// for event in follower.patience(Some(Duration::ZERO)) {
///     let event = event?;
///     match &event.kind {
///         LogEventKind::Record(record) => println!("{}: {}", event.run, record.seq()),
///         LogEventKind::Ended(outcome) => println!("{}: {}", event.run, outcome.status()),
///         _ => {}
///     }
///     cursor = event.cursor; // to be stored, and gone on from
/// }
/// assert!(cursor > LogCursor::START);
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[must_use = "a follower reads nothing until it is asked"]
pub struct Follower {
    tailing: Tailing,
    signal: Arc<Signal>,
    /// The writer, if it is in this process.
    log: Option<Arc<Log>>,
    /// What wakes a task, once one has waited.
    ticker: Option<(Ticker, Sleeping)>,
    patience: Option<Duration>,
    clock: Arc<dyn Clock>,
    is_over: bool,
}

impl Reader {
    /// Follows the log behind a cursor. The follower has a view of its own: what this reader
    /// answers stays as it is.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for a cursor of another store, and
    /// for one that is ahead of all that the store has promised, since it was set back,
    /// [`Error::InvalidId`](crate::Error::InvalidId), and those of [`ReaderOptions::open`].
    pub fn follow(&self, what: Follow<'_>, from: LogCursor) -> Result<Follower> {
        Follower::new(self.replica.again()?, (what, from), (Arc::default(), None))
    }

    /// The cursor behind all that this reader sees.
    ///
    /// # Errors
    /// Damage of a directory.
    pub fn end_cursor(&self) -> Result<LogCursor> {
        self.replica.ask(|_| end_of(&self.replica))
    }
}

impl RunLog {
    /// Follows the log behind a cursor, woken by each append. It ends when the store is closed.
    ///
    /// It reads the file as any other process would, and holds up no append: an append wakes a
    /// thread, and does not even that as long as the follower has more to read. A task is woken by
    /// a thread of the follower, `runlog-follow`.
    ///
    /// # Errors
    /// Those of [`Reader::follow`].
    pub fn follow(&self, what: Follow<'_>, from: LogCursor) -> Result<Follower> {
        let log = self.log();
        let reader = self.reader()?;
        let signal = log.commit.followers.add();
        let replica = Arc::try_unwrap(reader.replica).map_or_else(|shared| shared.again(), Ok)?;
        Follower::new(replica, (what, from), (signal, Some(Arc::clone(log))))
    }
}

impl Follower {
    fn new(
        replica: Replica,
        (what, from): (Follow<'_>, LogCursor),
        (signal, log): (Arc<Signal>, Option<Arc<Log>>),
    ) -> Result<Self> {
        let clock = Arc::clone(&replica.answers.setup.options.environment.clock);
        let tailing = Tailing::new(Arc::new(replica), what, from)?;
        Ok(Self { tailing, signal, log, ticker: None, patience: None, clock, is_over: false })
    }

    /// How long the iterator waits for an event before it ends; for ever by default. It may be
    /// asked again behind its end.
    pub fn patience(mut self, most: Option<Duration>) -> Self {
        self.patience = most;
        self
    }

    /// Where it goes on: behind the last event that it gave.
    pub fn cursor(&self) -> LogCursor {
        self.tailing.cursor()
    }

    /// The next event if it is in the log by now.
    ///
    /// # Errors
    /// See [`Follower`].
    pub fn try_next(&mut self) -> Result<Option<LogEvent>> {
        if self.is_over {
            return Ok(None);
        }
        // What is written before the store is closed is still told, and damage of it.
        let is_closed = self.log.as_ref().is_some_and(|log| log.disk.is_closed());
        let found = self.tailing.next();
        let is_end = match &found {
            Ok(None) => true,
            // A store in memory is released with its bytes.
            Err(error) => !error.is_corruption(),
            Ok(Some(_)) => false,
        };
        if is_closed && is_end {
            self.is_over = true;
            return Ok(None);
        }
        found
    }

    /// The next event, waiting for it at most so long; `None` for ever. `Ok(None)` if there was
    /// none, or the store of this process was closed.
    ///
    /// # Errors
    /// See [`Follower`].
    pub fn next_within(&mut self, most: Option<Duration>) -> Result<Option<LogEvent>> {
        let begun = self.clock.monotonic();
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            let passed = self.clock.monotonic().saturating_sub(begun);
            let left = most.map(|most| most.saturating_sub(passed));
            if self.is_over || left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let often = if self.log.is_some() {
                // What comes from here on rings.
                self.signal.arm();
                if let Some(event) = self.try_next()? {
                    return Ok(Some(event));
                }
                RARELY
            } else {
                POLL
            };
            self.signal.wait(left.unwrap_or(often).min(often));
        }
    }

    /// Polls for the next event; `Ready(None)` once the store of this process is closed. The task
    /// is woken when there may be more. Reads the file, and never waits for a disk that writes.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<LogEvent>>> {
        match self.try_next() {
            Ok(None) if self.is_over => return Poll::Ready(None),
            Ok(None) => {}
            found => return Poll::Ready(found.transpose()),
        }
        match self.sleeping() {
            Ok(sleeping) => *sleeping.lock() = Some(context.waker().clone()),
            Err(error) => return Poll::Ready(Some(Err(error))),
        }
        if self.log.is_none() {
            // The next look comes by itself.
            return Poll::Pending;
        }
        // What came before the waker was there wakes no task.
        match self.try_next() {
            Ok(None) if self.is_over => Poll::Ready(None),
            Ok(None) => Poll::Pending,
            found => Poll::Ready(found.transpose()),
        }
    }

    /// Where a task leaves its waker.
    fn sleeping(&mut self) -> Result<Sleeping> {
        if let Some((_, sleeping)) = &self.ticker {
            return Ok(Arc::clone(sleeping));
        }
        let sleeping = Sleeping::default();
        let (signal, often) = match &self.log {
            Some(log) => (log.commit.followers.add(), RARELY),
            None => (Arc::default(), POLL),
        };
        let ticker = Ticker::start(signal, often, Arc::clone(&sleeping))?;
        self.ticker = Some((ticker, Arc::clone(&sleeping)));
        Ok(sleeping)
    }

    /// Awaits the next event, by any runtime. Dropping the future loses nothing.
    pub fn next_event(&mut self) -> impl Future<Output = Option<Result<LogEvent>>> + Send + '_ {
        poll_fn(|context| self.poll_next(context))
    }
}

impl Iterator for Follower {
    type Item = Result<LogEvent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_within(self.patience).transpose()
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Follower {
    type Item = Result<LogEvent>;

    fn poll_next(
        self: core::pin::Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Self::Item>> {
        Self::poll_next(self.get_mut(), context)
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("cursor", &self.cursor()).finish_non_exhaustive()
    }
}
