//! Reading the records of a run, in order, forwards and backwards, without a scan.
//!
//! A trace is a view as of the moment it was asked for: it holds the segments that it reads, so
//! that what it shows never changes, whatever is appended, deleted or reclaimed meanwhile (I8). It
//! ends with the store: [`Error::Closed`] is its last item then, if a record was left.
//! Damage is told where it is, as an error item; the records behind it follow.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use core::time::Duration;
use std::sync::Arc;

use crate::engine::read::cursor::Walk;
use crate::engine::read::record::{Record, RecordView};
use crate::engine::setup::environment::Clock;
use crate::engine::state::run_slice::Opened;
use crate::engine::state::segment::Mark;
use crate::error::{Error, Result};
use crate::types::{AgentId, RunId, RunNo, Seq, Timestamp};

/// The records of a run, an iterator from the first to the last, or from the last with `rev()`.
///
/// Made by `RunLog::trace`. An error item says that one record is damaged or missing; the
/// iterator goes on behind it. Once the store is closed the next item is [`Error::Closed`] and the
/// last one; records that were handed out before stay readable.
pub struct Trace {
    opened: Arc<Opened>,
    walk: Walk,
    /// How long it may hold up that extents are used again.
    pin: Option<Pin>,
}

/// Since when a trace holds its segments, and for how long it may once they do not count any more.
pub(crate) struct Pin {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) since: Timestamp,
    pub(crate) most: Duration,
}

impl Pin {
    fn is_too_old(&self) -> bool {
        let age = self.clock.now().0.saturating_sub(self.since.0);
        u64::try_from(age).is_ok_and(|age| Duration::from_nanos(age) > self.most)
    }
}

impl Trace {
    #[inline]
    pub(crate) fn new(opened: Arc<Opened>, run_no: RunNo, pin: Option<Pin>) -> Self {
        opened.foresee();
        let walk = Walk::new(&opened, run_no);
        Self { opened, walk, pin }
    }

    #[inline]
    fn refusal(&mut self) -> Option<Error> {
        if self.pin.is_some() { self.let_go() } else { None }
    }

    /// Lets go of the segments if they moved or died and were held for too long, and says so. Only
    /// where a record is left: who has read them all has missed nothing.
    #[cold]
    fn let_go(&mut self) -> Option<Error> {
        let pin = self.pin.as_ref()?;
        let mut parts = self.opened.parts.iter();
        if !parts.any(|part| part.segment.is(Mark::Retired))
            || !pin.is_too_old()
            || !self.walk.is_at_record(&self.opened)
        {
            return None;
        }
        let (agent, run) = (self.agent().clone(), self.run().clone());
        let error = Error::Evicted { run: Some(run.clone()) };
        self.opened = Arc::new(Opened { agent, run, parts: Arc::new([]) });
        self.walk.end();
        Some(error)
    }

    /// The agent of the run.
    pub fn agent(&self) -> &AgentId {
        &self.opened.agent
    }

    /// The id of the run.
    pub fn run(&self) -> &RunId {
        &self.opened.run
    }

    /// Only the records with a sequence in this range.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-range-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// # let log = runlog::Options::new().open(&path)?;
    /// # let run = log.start_run("agent", "run", ())?;
    /// # for step in 0..10u8 { let _ = run.append(&[step])?; }
    /// use runlog::Seq;
    /// let seqs: Vec<u64> = log
    ///     .trace("run")?
    ///     .range(Seq(3)..Seq(5))?
    ///     .map(|record| record.map(|record| record.seq().0))
    ///     .collect::<runlog::Result<_>>()?;
    /// assert_eq!(seqs, [3, 4]);
    /// # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Damage of a directory that had to be consulted; [`Error::Closed`].
    pub fn range(mut self, range: impl RangeBounds<Seq>) -> Result<Self> {
        let low = match range.start_bound() {
            Bound::Included(seq) => Some(*seq),
            Bound::Excluded(seq) => Some(Seq(seq.0.saturating_add(1))),
            Bound::Unbounded => None,
        };
        let high = match range.end_bound() {
            Bound::Included(seq) => seq.0.checked_add(1).map(Seq),
            Bound::Excluded(seq) => Some(*seq),
            Bound::Unbounded => None,
        };
        self.walk.leave(&self.opened, low, high)?;
        Ok(self)
    }

    /// The next record, to look at before the next one is asked for. Nothing is copied and nothing
    /// counted for it where the bytes lie in one piece of a mapped file, which makes this the
    /// fastest way to read a run.
    ///
    /// Goes on where the iterator is, and the other way round.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-view-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// # let log = runlog::Options::new().open(&path)?;
    /// # let run = log.start_run("agent", "run", ())?;
    /// # for step in 0..10u8 { let _ = run.append(&[step])?; }
    /// let mut trace = log.trace("run")?;
    /// let mut bytes = 0;
    /// while let Some(record) = trace.next_view() {
    ///     bytes += record?.payload().len();
    /// }
    /// assert_eq!(bytes, 10);
    /// # drop((trace, run)); log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As the items of the iterator: damage of one record, behind which it goes on, or
    /// [`Error::Evicted`] at the end.
    pub fn next_view(&mut self) -> Option<Result<RecordView<'_>>> {
        match self.refusal() {
            Some(error) => Some(Err(error)),
            None => self.walk.next_view(&self.opened),
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.refusal() {
            Some(error) => Some(Err(error)),
            None => self.walk.next(&self.opened),
        }
    }
}

impl DoubleEndedIterator for Trace {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self.refusal() {
            Some(error) => Some(Err(error)),
            None => self.walk.next_back(&self.opened),
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let (Some(part), 1..) = (self.opened.parts.first(), self.walk.looks) {
            part.segment.count_mapped(self.walk.looks);
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace")
            .field("agent", self.agent())
            .field("run", self.run())
            .field("parts", &self.opened.parts.len())
            .finish_non_exhaustive()
    }
}
