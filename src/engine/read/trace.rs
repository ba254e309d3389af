//! Reading the records of a run in order, forwards and backwards, without a scan.
//!
//! A trace is a view as of the moment when it was opened. It holds its segments, so its records
//! never change, whatever is appended, deleted or reclaimed meanwhile (I8). It ends with the store:
//! its last item is then [`Error::Closed`], if a record was left. Damage is an error item at its
//! place; the records after it follow.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use core::time::Duration;
use std::sync::Arc;

use crate::engine::read::cursor::{Ready, Walk};
use crate::engine::read::record::{Record, RecordView};
use crate::engine::setup::environment::Clock;
use crate::engine::state::run_slice::Opened;
use crate::engine::state::segment::Mark;
use crate::error::{Corruption, Error, Result};
use crate::types::{AgentId, RunId, RunNo, RunRef, Seq, Timestamp};

/// The records of a run, as an iterator from the first to the last, or the reverse with `rev()`.
///
/// `RunLog::trace` returns it. An error item means that one record is damaged or missing; the
/// iterator continues after it. Once the store is closed, the next item is [`Error::Closed`] and
/// the last one; records that the program holds stay readable.
#[must_use = "a trace reads nothing until its records are asked for"]
pub struct Trace {
    opened: Arc<Opened>,
    walk: Walk,
    /// How long it may keep extents from being reused.
    pin: Option<Pin>,
    moving: Option<Box<Moving>>,
    /// The damage at which the log ends: the item behind the last record.
    lost_end: Option<Box<Corruption>>,
}

/// How long a trace holds its segments, and may hold them once they do not count.
pub(crate) struct Pin {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) since: Timestamp,
    pub(crate) most: Duration,
}

/// Finds a run again of which the records may have moved, or be gone.
pub(crate) trait Reopen: fmt::Debug + Send + Sync {
    /// The run as it is now, and the number of the view that says so.
    ///
    /// # Errors
    /// [`Error::Evicted`] if it was deleted.
    fn reopen(&self, run_no: RunNo) -> Result<(Arc<Opened>, u64)>;

    /// Whether what did not check in the view of this number is damage, and was not moved.
    fn is_damage(&self, found: &Corruption, view: u64) -> Result<bool>;
}

/// What a trace of a process that only reads needs to go on where the writer moved its records.
#[derive(Debug)]
struct Moving {
    reader: Arc<dyn Reopen>,
    view: u64,
    /// The records that are left have sequences from here on.
    low: Seq,
    /// And below this one.
    high: Seq,
    /// How often the run was found again since the last item.
    moves: u64,
}

/// How often a run is found again before there is an item: a writer that never rests would keep
/// the reader.
const MOVES: u64 = 64;

impl Pin {
    fn is_too_old(&self) -> bool {
        let age = self.clock.now().0.saturating_sub(self.since.0);
        u64::try_from(age).is_ok_and(|age| Duration::from_nanos(age) > self.most)
    }
}

impl Trace {
    #[inline]
    pub(crate) fn new(opened: Arc<Opened>, run_no: RunNo, pin: Option<Pin>) -> Self {
        let walk = Walk::new(&opened, run_no);
        Self { opened, walk, pin, moving: None, lost_end: None }
    }

    /// The same for a run that another process may move meanwhile.
    pub(crate) fn moving(mut self, reader: Arc<dyn Reopen>, view: u64) -> Self {
        let high = self.opened.parts.iter().map(|part| part.next_seq).max().unwrap_or_default();
        let moving = Moving { reader, view, low: Seq(0), high, moves: 0 };
        self.moving = Some(Box::new(moving));
        self
    }

    /// The same where the log ends at damage, so that later records may be missing.
    pub(crate) fn ending_at(mut self, lost_end: Option<Corruption>) -> Self {
        self.lost_end = lost_end.map(Box::new);
        self
    }

    /// The item behind the last record, once.
    #[cold]
    fn take_lost_end(&mut self) -> Option<Error> {
        let mut found = *self.lost_end.take()?;
        (found.agent, found.run) = (Some(self.agent().clone()), Some(self.run().clone()));
        Some(Error::Corrupt(found))
    }

    /// Goes on where the records are now. Returns false if the error is damage.
    #[cold]
    fn find_again(&mut self, error: &Error) -> Result<bool> {
        let (Some(moving), Error::Corrupt(found)) = (&mut self.moving, error) else {
            return Ok(false);
        };
        if moving.reader.is_damage(found, moving.view)? {
            return Ok(false);
        }
        let run_no = self.walk.run_no();
        // The writer may be faster again and again, but each time it has moved the run once more.
        loop {
            moving.moves += 1;
            if moving.moves > MOVES {
                return Err(Error::Overtaken { attempts: MOVES });
            }
            let (opened, view) = moving.reader.reopen(run_no)?;
            let mut walk = Walk::new(&opened, run_no);
            let left = walk.leave(&opened, Some(moving.low), Some(moving.high));
            (self.opened, self.walk, moving.view) = (opened, walk, view);
            match left {
                Err(Error::Corrupt(found)) if !moving.reader.is_damage(&found, view)? => {}
                left => return left.map(|()| true),
            }
        }
    }

    /// Notes which records are left behind an item with this sequence.
    fn note(&mut self, seq: Option<Seq>, is_front: bool) {
        let Some(moving) = &mut self.moving else { return };
        moving.moves = 0;
        let Some(seq) = seq else { return };
        if is_front {
            // Behind what is missing, too.
            let next = self.walk.expected().unwrap_or_default();
            moving.low = moving.low.max(next).max(Seq(seq.0.saturating_add(1)));
        } else {
            moving.high = moving.high.min(seq);
        }
    }

    /// The next item of a run that another process may move meanwhile: found again where the run
    /// has moved.
    fn ready(&mut self, is_front: bool) -> Option<Result<Ready>> {
        let next = if is_front { Walk::ready } else { Walk::ready_back };
        let mut item = next(&mut self.walk, &self.opened)?;
        let mut failed = None;
        while let Err(error) = &item {
            match self.find_again(error) {
                Ok(true) => item = next(&mut self.walk, &self.opened)?,
                // The next look at the file may succeed: one that failed costs one record.
                Err(error) if !error.is_corruption() && !matches!(error, Error::Io { .. }) => {
                    self.walk.end();
                    return Some(Err(error));
                }
                moved => {
                    failed = moved.err();
                    break;
                }
            }
        }
        let seq = match &item {
            Ok(ready) => Some(ready.seq()),
            Err(Error::Corrupt(damage)) => damage.seq,
            Err(_) => None,
        };
        self.note(seq, is_front);
        Some(failed.map_or(item, Err))
    }

    #[inline]
    fn refusal(&mut self) -> Option<Error> {
        if self.pin.is_some() { self.let_go() } else { None }
    }

    /// Drops the segments if they moved or died and were held for too long, and returns the error
    /// for that. It does nothing if no record is left, since then the reader has missed nothing.
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
        self.opened = Arc::new(Opened::new(agent, run, Arc::new([])));
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

    /// Only the records with a sequence in this range. Damage of which the sequence is not known is
    /// in each range that it may be in.
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
    /// Damage of a directory that it has to read; [`Error::Closed`].
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
        let next = self.opened.parts.iter().map(|part| part.next_seq).max().unwrap_or_default();
        if high.is_some_and(|high| high <= next) {
            self.lost_end = None;
        }
        if let Some(moving) = &mut self.moving {
            moving.low = moving.low.max(low.unwrap_or_default());
            moving.high = moving.high.min(high.unwrap_or(moving.high));
        }
        match self.walk.leave(&self.opened, low, high) {
            Err(error @ Error::Corrupt(_)) if !self.find_again(&error)? => Err(error),
            Err(error) if !error.is_corruption() => Err(error),
            _ => Ok(self),
        }
    }

    /// The next record, for use before the next call. If its bytes are contiguous in a mapped file,
    /// nothing is copied and no reference is counted, so this is the fastest way to read a run.
    ///
    /// It continues where the iterator is, and the other way round.
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
    /// Those of the iterator's items: damage of one record, after which it continues;
    /// [`Error::Evicted`], [`Error::Closed`] or [`Error::Overtaken`] at the end.
    pub fn next_view(&mut self) -> Option<Result<RecordView<'_>>> {
        match self.refusal() {
            Some(error) => Some(Err(error)),
            None if self.moving.is_some() => {
                let Some(ready) = self.ready(true) else { return self.take_lost_end().map(Err) };
                Some(ready.map(|ready| self.walk.view(&self.opened, ready)))
            }
            None => self.walk.next_view(&self.opened),
        }
    }
}

impl<'a> From<&'a Trace> for RunRef<'a> {
    /// The run of these records, and not a later run with the same ids.
    fn from(trace: &'a Trace) -> Self {
        Self::from((trace.agent(), trace.run())).numbered(trace.walk.run_no())
    }
}

impl Iterator for Trace {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.refusal() {
            Some(error) => Some(Err(error)),
            None if self.moving.is_some() => {
                let Some(ready) = self.ready(true) else { return self.take_lost_end().map(Err) };
                Some(ready.and_then(|ready| self.walk.keep(&self.opened, ready)))
            }
            None => self.walk.next(&self.opened),
        }
    }
}

impl DoubleEndedIterator for Trace {
    fn next_back(&mut self) -> Option<Self::Item> {
        match self.refusal() {
            Some(error) => Some(Err(error)),
            None if self.lost_end.is_some() => self.take_lost_end().map(Err),
            None => {
                let ready = match self.moving {
                    Some(_) => self.ready(false)?,
                    None => self.walk.ready_back(&self.opened)?,
                };
                Some(ready.and_then(|ready| self.walk.keep(&self.opened, ready)))
            }
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
