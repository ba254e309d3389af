//! Reading a trajectory: its records as they came, and what is missing between them.

use core::fmt;
use core::ops::Range;

use super::envelope::seq_of;
use super::holes::Family;
use super::payload::TrajectoryRecord;
use super::unreadable::{self, Unreadable};
use super::{CHILD, TrajectoryLog};
use runlog::{Lsn, Record, Result, Seq, Timestamp, Trace};

/// What a trajectory consists of, in its order.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Item {
    /// A record.
    Record(StoredRecord),
    /// Between the records in front and behind, sequences are missing.
    Hole(Hole),
    /// The record behind begins the sequence anew.
    Restart(Restart),
}

/// Sequences that no record of this run has, between two that records have, or in front of the
/// first one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hole {
    /// The sequences.
    pub missing: Range<u64>,
    /// What became of them, as far as can be told.
    pub cause: HoleCause,
}

/// What became of records that a run does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoleCause {
    /// They were not recorded. A recorder takes a sequence before it writes, and goes on if it
    /// cannot.
    NotRecorded,
    /// Stored records are damaged there; an error in front of this item told so. Others among the
    /// missing may never have been recorded.
    Damaged,
    /// Nothing seems to be missing: relatives of the run, or records without a run, have all of
    /// these sequences, in this place of the log, and count as one recorder does that is shared.
    Elsewhere,
}

/// The place where the sequence of a run begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restart {
    /// The last sequence in front; `None` if no record there has one.
    pub last: Option<u64>,
    /// Whether the record behind is a `run_started`, so that another trajectory of the same run
    /// begins. If not, the numbers went back: a recorder that is shared was set back when a
    /// relative started, or a sequence was given twice. What is missing in front of the record
    /// behind cannot be told then.
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

    /// The sequence that its recorder gave it; `None` if it says none.
    pub fn seq(&self) -> Option<u64> {
        self.seq
    }

    /// The place of the record in its run, as the engine counts. Links to children count too, so
    /// that places may be left out.
    pub fn place(&self) -> Seq {
        self.record.seq()
    }

    /// The place of the record in the whole store: larger is later, whatever the run.
    pub fn lsn(&self) -> Lsn {
        self.record.lsn()
    }

    /// When it was recorded, as it says itself or else as the store's clock said.
    pub fn recorded_at(&self) -> Timestamp {
        self.record.timestamp()
    }

    /// The kind of its payload; `None` if it says none, or one of more than 64 bytes.
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
    /// [`Unreadable`], when it is of a newer schema, of an unknown kind, or of another shape. The
    /// bytes are there all the same.
    pub fn read(&self) -> Result<TrajectoryRecord, Unreadable> {
        unreadable::read(self.bytes()).map_err(|why| Unreadable { place: self.place(), why })
    }
}

/// The items of a trajectory, an iterator from the first to the last.
///
/// Made by [`TrajectoryLog::trajectory`]. An error item says that a record is damaged; the iterator
/// goes on behind it. Reads one record at a time; when it meets a hole, the sequences of all
/// relatives once, to tell whether they have them.
///
/// What a power loss took from the end of a run leaves no hole: no trace of it is there.
pub struct Trajectory {
    log: TrajectoryLog,
    trace: Option<Trace>,
    /// Whether sequences mean something here.
    numbered: bool,
    family: Option<Family>,
    /// A record that goes behind the items in front of it.
    held: Option<StoredRecord>,
    /// The record in front: its sequence and where it is.
    last: Option<(u64, Lsn)>,
    /// A `run_started` was handed out.
    started: bool,
    damaged: bool,
    /// What goes in front of the held record was told.
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

    /// What goes in front of this record, if anything still does.
    fn in_front(&mut self, record: &StoredRecord) -> Option<Item> {
        if !self.numbered || self.judged {
            return None;
        }
        let announced = record.kind() == Some("run_started");
        let last = self.last.map(|(seq, _)| seq);
        let back = record.seq.zip(last).is_some_and(|(seq, last)| seq <= last);
        if back || announced && self.started {
            // What is in front of a start is looked for as at the beginning.
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

    /// Hands a record out.
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
