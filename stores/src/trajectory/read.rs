//! Reading a trajectory: its records as they came, and the holes between them.

use core::fmt;
use core::ops::Range;

use super::envelope::seq_of;
use super::holes::Family;
use super::payload::TrajectoryRecord;
use super::unreadable::{self, Unreadable};
use super::{CHILD, TrajectoryLog};
use runlog::{Lsn, Record, Result, Seq, Timestamp, Trace};

/// An item of a trajectory.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Item {
    /// A record.
    Record(StoredRecord),
    /// Sequences are missing between the records in front and behind.
    Hole(Hole),
    /// The next record starts the sequence again.
    Restart(Restart),
}

/// Sequences that no record of this run has, between two records or in front of the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hole {
    /// The sequences.
    pub missing: Range<u64>,
    /// The probable cause.
    pub cause: HoleCause,
}

/// Why a run does not have these records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoleCause {
    /// They were not recorded. A recorder takes a sequence before it writes, and goes on if the
    /// write fails.
    NotRecorded,
    /// Stored records are damaged there; an error item in front of this one reports that. Other
    /// missing ones may never have been recorded.
    Damaged,
    /// Probably nothing is missing: relatives of the run, or records without a run, have all of
    /// these sequences at this place of the log, as with a shared recorder.
    Elsewhere,
}

/// The place where the sequence of a run starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restart {
    /// The last sequence in front; `None` if no record in front has one.
    pub last: Option<u64>,
    /// Whether the next record is a `run_started`, so that another trajectory of the same run
    /// begins. Otherwise the numbers went back: a shared recorder was reset when a relative
    /// started, or a sequence was used twice. Then holes in front of the next record are unknown.
    pub announced: bool,
}

/// A record as it was recorded.
#[derive(Debug, Clone)]
pub struct StoredRecord {
    record: Record,
    seq: Option<u64>,
}

impl StoredRecord {
    /// The JSON, byte for byte as it was recorded.
    pub fn bytes(&self) -> &[u8] {
        self.record.payload()
    }

    /// The sequence that its recorder gave it; `None` if it has none.
    pub fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// The sequence of the record in its run in the engine. Links to children count too, so there
    /// may be gaps.
    pub fn place(&self) -> Seq {
        self.record.seq()
    }

    /// The order of the record in the whole store: larger is later, in all runs.
    pub fn lsn(&self) -> Lsn {
        self.record.lsn()
    }

    /// When it was recorded: the time in the record, else the time of the store's clock.
    pub fn recorded_at(&self) -> Timestamp {
        self.record.timestamp()
    }

    /// The kind of its payload; `None` if it has none, or one of more than 64 bytes.
    pub fn kind(&self) -> Option<&str> {
        self.record.kind()
    }

    /// Whether it came after the end of its run.
    pub fn is_late(&self) -> bool {
        self.record.is_late()
    }

    /// The record as a type.
    ///
    /// # Errors
    /// [`Unreadable`] if it has a newer schema, an unknown kind, or another shape. The bytes are
    /// still available.
    pub fn read(&self) -> Result<TrajectoryRecord, Unreadable> {
        unreadable::read(self.bytes()).map_err(|why| Unreadable { place: self.place(), why })
    }
}

/// An iterator over the items of a trajectory.
///
/// [`TrajectoryLog::trajectory`] makes it. An error item stands for a damaged record; the iterator
/// goes on behind it. It reads one record at a time. At its first hole it reads the sequences of
/// all relatives once.
///
/// Records that a power loss took from the end of a run leave no hole, since nothing shows that
/// they existed.
pub struct Trajectory {
    log: TrajectoryLog,
    trace: Option<Trace>,
    /// Whether sequences are checked.
    numbered: bool,
    family: Option<Family>,
    /// The record behind the items that are returned first.
    held: Option<StoredRecord>,
    /// The record in front: its sequence and where it is.
    last: Option<(u64, Lsn)>,
    /// A `run_started` was returned.
    started: bool,
    damaged: bool,
    /// Whether the items in front of the held record were returned.
    judged: bool,
}

impl Trajectory {
    pub(super) fn new(log: TrajectoryLog, trace: Trace, numbered: bool) -> Self {
        Self::of(log, Some(trace), numbered)
    }

    pub(super) fn of(log: TrajectoryLog, trace: Option<Trace>, numbered: bool) -> Self {
        Self {
            log,
            trace,
            numbered,
            family: None,
            held: None,
            last: None,
            started: false,
            damaged: false,
            judged: false,
        }
    }

    /// The next record, with its sequence.
    fn step(&mut self) -> Option<Result<StoredRecord>> {
        loop {
            match self.trace.as_mut()?.next()? {
                Ok(record) if record.kind() == Some(CHILD) => {}
                Ok(record) => {
                    let seq = seq_of(record.payload());
                    return Some(Ok(StoredRecord { record, seq }));
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The next item in front of this record, if there is one.
    fn in_front(&mut self, record: &StoredRecord) -> Option<Item> {
        if !self.numbered || self.judged {
            return None;
        }
        let announced = record.kind() == Some("run_started");
        let last = self.last.map(|(seq, _)| seq);
        let back = record.seq.zip(last).is_some_and(|(seq, last)| seq <= last);
        if back || announced && self.started {
            // In front of a start, holes are searched as at the beginning.
            self.judged = !announced;
            (self.last, self.started) = (None, false);
            return Some(Item::Restart(Restart { last, announced }));
        }
        self.judged = true;
        self.hole(record).map(Item::Hole)
    }

    fn hole(&mut self, record: &StoredRecord) -> Option<Hole> {
        let next = record.seq?;
        let missing = self.last.map_or(0, |(seq, _)| seq.saturating_add(1))..next;
        if missing.is_empty() {
            return None;
        }
        let between = self.last.map(|(_, lsn)| lsn)..Some(record.lsn());
        let cause = if self.damaged {
            HoleCause::Damaged
        } else if self.family().have(&missing, &between) {
            HoleCause::Elsewhere
        } else {
            HoleCause::NotRecorded
        };
        Some(Hole { missing, cause })
    }

    fn family(&mut self) -> &Family {
        let (log, trace) = (&self.log, &self.trace);
        self.family.get_or_insert_with(|| match trace {
            Some(trace) => Family::around(log, trace.agent(), trace.run()),
            None => Family::default(),
        })
    }

    /// Returns a record.
    fn pass(&mut self, record: StoredRecord) -> Item {
        if let Some(seq) = record.seq {
            self.last = Some((seq, record.lsn()));
            self.damaged = false;
        }
        self.started |= record.kind() == Some("run_started");
        self.judged = false;
        Item::Record(record)
    }
}

impl Iterator for Trajectory {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = match self.held.take() {
            Some(record) => record,
            None => match self.step()? {
                Ok(record) => record,
                Err(error) => {
                    self.damaged = true;
                    return Some(Err(error));
                }
            },
        };
        if let Some(item) = self.in_front(&record) {
            self.held = Some(record);
            return Some(Ok(item));
        }
        Some(Ok(self.pass(record)))
    }
}

impl fmt::Debug for Trajectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trajectory").field("trace", &self.trace).finish_non_exhaustive()
    }
}
