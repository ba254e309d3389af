//! Reading the records of a run, in order, forwards and backwards, without a scan.
//!
//! A trace is a view as of the moment it was asked for: it holds the segments that it reads, so
//! that what it shows never changes, whatever is appended, deleted or reclaimed meanwhile (I8).
//! Damage is told where it is, as an error item; the records behind it follow.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use core::time::Duration;
use std::borrow::Cow;
use std::sync::Arc;

use super::block::{OpenBlock, gather_pieces};
use super::env::Clock;
use super::part::{Offsets, Part};
use super::payload::Payload;
use super::segment::CheckedFrame;
use super::values::{Record, RecordView};
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frame::FLAG_PIECES;
use crate::format::{FrameHeader, FrameKind, RecordFrame};
use crate::types::{AgentId, RunId, RunNo, Seq, Timestamp};

/// A place between records: the part, and the record within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Spot {
    part: usize,
    index: u32,
}

/// The records of a run, an iterator from the first to the last, or from the last with `rev()`.
///
/// Made by `RunLog::trace`. An error item says that one record is damaged or missing; the
/// iterator goes on behind it.
pub struct Trace {
    opened: Arc<Opened>,
    run_no: RunNo,
    front: Spot,
    back: Spot,
    /// The sequence that is due at the front; a larger one means that records are missing.
    expected: Option<Seq>,
    /// The block that was read last, if any was.
    block: Option<Box<OpenBlock>>,
    /// Looks at frames through a view, to be counted at the end.
    looks: u64,
    /// How long it may hold up that extents are used again.
    pub(super) pin: Option<Pin>,
}

/// A run that is ready to be read. It is kept where it was looked up, so that the next who reads it
/// finds all of it by one reference.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(super) agent: AgentId,
    pub(super) run: RunId,
    /// What each segment has of it, in the order of the log.
    pub(super) parts: Arc<[Part]>,
}

/// Since when a trace holds its segments, and for how long it may once they do not count any more.
pub(super) struct Pin {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) since: Timestamp,
    pub(super) most: Duration,
}

impl Pin {
    fn is_too_old(&self) -> bool {
        let age = self.clock.now().0.saturating_sub(self.since.0);
        u64::try_from(age).is_ok_and(|age| Duration::from_nanos(age) > self.most)
    }
}

/// How many records further on the bytes are fetched already.
const AHEAD: u32 = 3;

/// Records that start within so many bytes of one another are read as one stream.
const NEAR: u32 = 2 << 10;

impl Trace {
    pub(super) fn new(agent: AgentId, run: RunId, run_no: RunNo, parts: Arc<[Part]>) -> Self {
        Self::of(Arc::new(Opened { agent, run, parts }), run_no)
    }

    pub(super) fn of(opened: Arc<Opened>, run_no: RunNo) -> Self {
        if let Some(part) = opened.parts.first()
            && let Offsets::Listed(offsets) = &part.offsets
        {
            for offset in offsets.iter().take(AHEAD as usize) {
                part.segment.foresee(*offset);
            }
        }
        let back = Spot { part: opened.parts.len(), index: 0 };
        let front = Spot { part: 0, index: 0 };
        let (expected, block, pin) = (Some(Seq(0)), None, None);
        Self { opened, run_no, front, back, expected, block, looks: 0, pin }
    }

    /// Lets go of the segments if they moved or died and were held for too long; answers whether.
    /// Asked only where a record is left: who has read them all has missed nothing.
    fn is_evicted(&mut self) -> bool {
        let Some(pin) = &self.pin else { return false };
        let too_old =
            self.opened.parts.iter().any(|part| part.segment.is_retired()) && pin.is_too_old();
        if too_old {
            let (agent, run) = (self.agent().clone(), self.run().clone());
            self.opened = Arc::new(Opened { agent, run, parts: Arc::new([]) });
            (self.front, self.back) = (Spot { part: 0, index: 0 }, Spot { part: 0, index: 0 });
        }
        too_old
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
    /// Damage of a directory that had to be consulted.
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
        if let Some(low) = low {
            let at = self.locate(low)?;
            self.front = self.front.max(at);
            self.expected = self.expected.map(|expected| expected.max(low));
        }
        if let Some(high) = high {
            let at = self.locate(high)?;
            self.back = self.back.min(at);
        }
        Ok(self)
    }

    /// Where the first record with a sequence of at least `seq` is.
    fn locate(&self, seq: Seq) -> Result<Spot> {
        for (number, part) in self.opened.parts.iter().enumerate() {
            if part.first_seq.is_some() && part.next_seq > seq {
                return Ok(Spot { part: number, index: part.lower_bound(seq)? });
            }
        }
        Ok(Spot { part: self.opened.parts.len(), index: 0 })
    }

    /// Moves the front to a record, if one is left.
    fn settle_front(&mut self) -> Option<(usize, u32)> {
        while self.front < self.back {
            let part = self.opened.parts.get(self.front.part)?;
            if self.front.index < part.records {
                return Some((self.front.part, self.front.index));
            }
            self.front = Spot { part: self.front.part + 1, index: 0 };
        }
        None
    }

    /// Moves the back behind a record, if one is left, and answers that record.
    fn settle_back(&mut self) -> Option<(usize, u32)> {
        while self.front < self.back {
            if let Some(index) = self.back.index.checked_sub(1) {
                return Some((self.back.part, index));
            }
            let part = self.back.part.checked_sub(1)?;
            self.back = Spot { part, index: self.opened.parts.get(part)?.records };
        }
        None
    }

    /// Checks the frame of a record.
    #[allow(clippy::inline_always, reason = "moving headers costs more than checking them")]
    #[inline(always)]
    fn check(&mut self, number: usize, index: u32) -> Result<CheckedFrame> {
        let Some(part) = self.opened.parts.get(number) else { return Err(Error::Poisoned) };
        if let Some(block) = &self.block
            && let Some(rank) = block.rank(number, index)
        {
            return block.record(&part.segment, rank).map_err(|error| self.named(error, None));
        }
        let checked = match part.offset(index) {
            Ok(offset) => self.check_record(part, offset, index),
            Err(error) => Err(error),
        };
        self.looks += u64::from(part.segment.is_mapped());
        match checked {
            Ok(frame) if frame.header.kind == FrameKind::Block => {
                let opened = self.block.get_or_insert_default().open(number, part, index, frame);
                opened.map_err(|error| self.named(error, None))
            }
            Ok(frame) => Ok(frame),
            Err(error) => Err(self.named(error, part.presumed_seq(index))),
        }
    }

    #[allow(clippy::inline_always, reason = "moving headers costs more than checking them")]
    #[inline(always)]
    fn check_record(&self, part: &Part, offset: u32, index: u32) -> Result<CheckedFrame> {
        let named =
            |header: &FrameHeader, error| self.named(error, part.seq_at(header, index).ok());
        let frame = part.segment.check_frame(offset, named)?;
        let has_records = matches!(frame.header.kind, FrameKind::Record | FrameKind::Block);
        if !has_records || frame.header.run_no != self.run_no {
            return Err(part.segment.damaged(offset, Damage::Mismatch));
        }
        Ok(frame)
    }

    /// The next record from the front, with its part, if all is as it should be and it lies in one
    /// piece of a mapped file: most do. Else nothing has changed, and [`Trace::step`] says why.
    #[allow(clippy::inline_always, reason = "moving fields costs more than checking them")]
    #[inline(always)]
    fn glance(&mut self) -> Option<(usize, RecordFrame)> {
        let Spot { part: place, index } = self.front;
        let part = self.opened.parts.get(place)?;
        if self.front >= self.back || index >= part.records || self.block.is_some() {
            return None;
        }
        if self.pin.is_some() && self.opened.parts.iter().any(|part| part.segment.is_retired()) {
            return None;
        }
        let offset = part.offset(index).ok()?;
        let frame = part.segment.frames().record(part.segment.mapped()?, offset)?;
        if frame.run_no != self.run_no || self.expected != Some(frame.seq) {
            return None;
        }
        self.expected = Some(Seq(frame.seq.0.checked_add(1)?));
        self.front.index = index + 1;
        self.looks += 1;
        self.foresee(place, index + 1 + AHEAD);
        Some((place, frame))
    }

    /// Checks the next record from the front and goes on behind it; its part, and its frame.
    #[allow(clippy::inline_always, reason = "moving headers costs more than checking them")]
    #[inline(always)]
    fn step(&mut self) -> Option<Result<(usize, CheckedFrame)>> {
        let (part, index) = self.settle_front()?;
        if self.is_evicted() {
            return Some(Err(Error::Evicted { run: Some(self.run().clone()) }));
        }
        let checked = self.check(part, index);
        let seq = match &checked {
            Ok(frame) => Some(frame.header.seq),
            Err(error) => seq_of(error),
        };
        if let (Some(expected), Some(seq)) = (self.expected, seq)
            && seq > expected
        {
            self.expected = Some(seq);
            return Some(Err(self.missing(part, expected)));
        }
        self.expected = seq.map(|seq| Seq(seq.0.saturating_add(1)));
        self.front.index += 1;
        self.foresee(part, self.front.index + AHEAD);
        match checked {
            Ok(frame) => Some(Ok((part, frame))),
            Err(error) => Some(Err(error)),
        }
    }

    /// The record in a frame that was checked, to keep.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    fn keep(&self, part: usize, frame: CheckedFrame) -> Result<Record> {
        let Some(part) = self.opened.parts.get(part) else { return Err(Error::Poisoned) };
        let header = frame.header;
        if header.kind == FrameKind::Block {
            let block = self.block.as_deref().ok_or(Error::Poisoned)?;
            let stored = Payload::part(block.raw(), header.extra, header.payload_len);
            return Ok(Record::new(&header, stored));
        }
        let stored = part.segment.keep(frame);
        if header.flags & FLAG_PIECES != 0 {
            return Ok(Record::new(&header, Payload::owned(self.gather(&header, &stored)?)));
        }
        Ok(Record::new(&header, stored))
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
        if let Some((part, frame)) = self.glance() {
            let part = self.opened.parts.get(part)?;
            let stored = Cow::Borrowed(part.segment.viewed(frame.start, frame.len));
            return Some(Ok(Record::of(&frame, stored)));
        }
        let (part, frame) = match self.step()? {
            Ok(checked) => checked,
            Err(error) => return Some(Err(error)),
        };
        let part = self.opened.parts.get(part)?;
        let header = frame.header;
        if header.kind == FrameKind::Block {
            let stored = self.block.as_deref().map_or(&[][..], |block| block.look(&header));
            return Some(Ok(Record::new(&header, Cow::Borrowed(stored))));
        }
        let stored = part.segment.look(frame);
        if header.flags & FLAG_PIECES != 0 {
            return Some(match self.gather(&header, &stored) {
                Ok(bytes) => Ok(Record::new(&header, Cow::Owned(bytes))),
                Err(error) => Err(error),
            });
        }
        Some(Ok(Record::new(&header, stored)))
    }

    /// Has the bytes of a record fetched that will be read soon, while those in front of it are
    /// checked: interleaved runs would wait for the memory at each record. What lies close is
    /// fetched by the processor itself.
    #[inline]
    fn foresee(&self, part: usize, index: u32) {
        if let Some(part) = self.opened.parts.get(part)
            && let Offsets::Listed(offsets) = &part.offsets
            && let [before, offset] =
                offsets.get(index as usize - 1..=index as usize).unwrap_or(&[])
            && offset.wrapping_sub(*before) > NEAR
        {
            part.segment.foresee(*offset);
        }
    }

    /// The error with the run and the sequence, where it does not say them itself.
    #[cold]
    fn named(&self, error: Error, seq: Option<Seq>) -> Error {
        match error {
            Error::Corrupt(mut corruption) => {
                corruption.run.get_or_insert_with(|| self.run().clone());
                corruption.seq = corruption.seq.or(seq);
                Error::Corrupt(corruption)
            }
            other => other,
        }
    }

    /// The kind and the payload of a record that lies in pieces.
    #[cold]
    fn gather(&self, header: &FrameHeader, stored: &[u8]) -> Result<Vec<u8>> {
        let gathered = gather_pieces(&self.opened.parts, header, stored);
        gathered.map_err(|error| self.named(error, Some(header.seq)))
    }

    /// An item for records that should be here and are not.
    fn missing(&self, part: usize, seq: Seq) -> Error {
        let segment = self.opened.parts.get(part).map(|part| part.segment.id()).unwrap_or_default();
        Error::Corrupt(Corruption {
            place: Place::Directory { segment },
            damage: Damage::Missing,
            run: Some(self.run().clone()),
            seq: Some(seq),
        })
    }
}

/// The sequence that an error is about.
fn seq_of(error: &Error) -> Option<Seq> {
    match error {
        Error::Corrupt(corruption) => corruption.seq,
        _ => None,
    }
}

impl Iterator for Trace {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some((part, frame)) = self.glance() {
            let part = self.opened.parts.get(part)?;
            let stored = Payload::view(&part.segment, frame.start, frame.len);
            return Some(Ok(Record::of(&frame, stored)));
        }
        match self.step()? {
            Ok((part, frame)) => Some(self.keep(part, frame)),
            Err(error) => Some(Err(error)),
        }
    }
}

impl DoubleEndedIterator for Trace {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (part, index) = self.settle_back()?;
        if self.is_evicted() {
            return Some(Err(Error::Evicted { run: Some(self.run().clone()) }));
        }
        self.back = Spot { part, index };
        Some(match self.check(part, index) {
            Ok(frame) => self.keep(part, frame),
            Err(error) => Err(error),
        })
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let (Some(part), 1..) = (self.opened.parts.first(), self.looks) {
            part.segment.count_mapped(self.looks);
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
