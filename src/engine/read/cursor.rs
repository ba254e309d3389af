//! Walking the records of an opened run from either end, and checking each record.
//!
//! Most records are contiguous in a mapped file and undamaged. [`Walk::glance`] returns these
//! quickly. [`Walk::ready`] handles all others: it makes the same checks and says what is wrong.
//! Where there are no views, it reads ahead.

mod ahead;

use std::borrow::Cow;
use std::sync::Arc;

pub(crate) use self::ahead::Ready;
use self::ahead::{Ahead, Where};
use crate::engine::read::block::OpenBlock;
use crate::engine::read::record::{Record, RecordView};
use crate::engine::state::payload::{CheckedFrame, Payload, Source};
use crate::engine::state::run_slice::{Opened, RunSlice, Spot};
use crate::error::{Damage, Error, Result};
use crate::format::frames::frame::FLAG_CHUNKS;
use crate::format::{FrameHeader, FrameKind};
use crate::types::{RunNo, Seq};

/// A record as a slice lists it.
#[derive(Clone, Copy)]
struct Listed<'o> {
    opened: &'o Opened,
    part: &'o RunSlice,
    spot: Spot,
}

/// How many records ahead bytes are prefetched.
const AHEAD: u32 = 3;

/// Records that start within this many bytes of one another are read as one stream.
const STREAM: u32 = 2 << 10;

/// The offsets of some records that follow one another in a slice.
#[derive(Debug, Default)]
struct Next {
    /// The first of these records.
    first: Spot,
    offsets: Vec<u32>,
}

impl Next {
    /// The offset of the record at this place, if it can be read.
    #[inline]
    fn offset(&mut self, part: &RunSlice, spot: Spot) -> Option<u32> {
        if let Some(offset) = self.get(spot) { Some(offset) } else { self.load(part, spot) }
    }

    #[inline]
    fn get(&self, spot: Spot) -> Option<u32> {
        let behind = spot.index.checked_sub(self.first.index)?;
        self.offsets.get(behind as usize).filter(|_| spot.part == self.first.part).copied()
    }

    #[inline(never)]
    fn load(&mut self, part: &RunSlice, spot: Spot) -> Option<u32> {
        self.first = spot;
        part.offsets_from(spot.index, &mut self.offsets).ok()?;
        for offset in self.offsets.iter().take(AHEAD as usize + 1) {
            part.segment.prefetch(*offset);
        }
        self.get(spot)
    }

    /// Prefetches a record behind this place while the ones before it are checked: otherwise each
    /// record of interleaved runs would wait for memory. The processor itself prefetches close
    /// records.
    #[inline]
    fn prefetch(&self, part: &RunSlice, spot: Spot) {
        let at = |ahead| self.get(Spot { index: spot.index + ahead, ..spot });
        if let (Some(before), Some(offset)) = (at(AHEAD - 1), at(AHEAD))
            && offset.wrapping_sub(before) > STREAM
        {
            part.segment.prefetch(offset);
        }
    }
}

/// The rest of a run between two ends, and the state at the front.
#[derive(Debug, Default)]
pub(crate) struct Walk {
    run_no: RunNo,
    front: Spot,
    back: Spot,
    /// The sequence that is due at the front; a larger one means that records are missing.
    expected: Option<Seq>,
    /// The last block that was read.
    block: Option<Box<OpenBlock>>,
    /// Offsets of the next records.
    next: Next,
    /// What was read ahead where there are no views.
    ahead: Option<Box<Ahead>>,
    /// The segment of the last record that the caller keeps.
    source: Option<Arc<Source>>,
    /// The number of frames read through a view, which is counted at the end.
    pub(crate) looks: u64,
}

impl Walk {
    /// The run whose records it reads.
    pub(crate) fn run_no(&self) -> RunNo {
        self.run_no
    }

    /// The sequence that is due at the front, if it is known.
    pub(crate) fn expected(&self) -> Option<Seq> {
        self.expected
    }

    /// All records of a run.
    pub(crate) fn new(opened: &Opened, run_no: RunNo) -> Self {
        let back = Spot { part: opened.parts.len(), index: 0 };
        Self { run_no, back, expected: Some(Seq(0)), ..Self::default() }
    }

    /// Keeps only records with a sequence of at least `low` and below `high`.
    pub(crate) fn leave(
        &mut self,
        opened: &Opened,
        low: Option<Seq>,
        high: Option<Seq>,
    ) -> Result<()> {
        self.expected = self.expected.map(|expected| expected.max(low.unwrap_or_default()));
        if let Some(part) = opened.parts.first() {
            self.unless_closed(part, Ok(()))?;
        }
        let [from, to] = [low, high].map(|seq| seq.map(|seq| opened.locate(seq)));
        self.front = from.map_or(self.front, |from| from.max(self.front));
        self.back = to.map_or(self.back, |to| to.min(self.back));
        Ok(())
    }

    /// Drops the remaining records and all segments.
    pub(crate) fn end(&mut self) {
        self.source = None;
        (self.front, self.back) = (Spot { part: 0, index: 0 }, Spot { part: 0, index: 0 });
    }

    /// Whether a record is left.
    pub(crate) fn is_at_record(&mut self, opened: &Opened) -> bool {
        self.settle_front(opened).is_some()
    }

    /// Moves the front to the next record, if one is left.
    fn settle_front<'o>(&mut self, opened: &'o Opened) -> Option<Listed<'o>> {
        while self.front < self.back {
            let spot = self.front;
            let part = opened.parts.get(spot.part)?;
            if spot.index < part.records {
                return Some(Listed { opened, part, spot });
            }
            self.front = Spot { part: spot.part + 1, index: 0 };
        }
        None
    }

    /// Moves the back behind the last record that is left, and returns that record.
    fn settle_back<'o>(&mut self, opened: &'o Opened) -> Option<Listed<'o>> {
        while self.front < self.back {
            if let Some(index) = self.back.index.checked_sub(1) {
                let spot = Spot { part: self.back.part, index };
                return Some(Listed { opened, part: opened.parts.get(spot.part)?, spot });
            }
            let part = self.back.part.checked_sub(1)?;
            self.back = Spot { part, index: opened.parts.get(part)?.records };
        }
        None
    }

    /// Checks the frame of a record, and that it is the record that the list claims.
    fn check(&mut self, listed: Listed<'_>) -> Result<CheckedFrame> {
        let Listed { opened, part, spot } = listed;
        let frame = self.check_frame(listed)?;
        match part.presumed_seq(spot.index) {
            Some(due) if due != frame.header.seq => {
                let error = part.segment.damaged(frame.header.position.offset, Damage::Mismatch);
                Err(opened.named(error, Some(due)))
            }
            _ => Ok(frame),
        }
    }

    fn check_frame(&mut self, listed: Listed<'_>) -> Result<CheckedFrame> {
        let Listed { opened, part, spot } = listed;
        if let Some(block) = &mut self.block
            && let Some(rank) = block.rank(spot)
        {
            return block.record(&part.segment, rank).map_err(|error| opened.named(error, None));
        }
        let checked = part.offset(spot.index).and_then(|offset| self.check_record(listed, offset));
        self.looks += u64::from(part.segment.is_mapped());
        match checked {
            Ok(frame) if frame.header.kind == FrameKind::Block => {
                let block = self.block.get_or_insert_default().open(part, spot, frame);
                block.map_err(|error| opened.named(error, None))
            }
            Ok(frame) => Ok(frame),
            Err(error) => Err(opened.named(error, part.presumed_seq(spot.index))),
        }
    }

    #[allow(clippy::inline_always, reason = "moving headers costs more than checking them")]
    #[inline(always)]
    fn check_record(&self, listed: Listed<'_>, offset: u32) -> Result<CheckedFrame> {
        let Listed { opened, part, spot } = listed;
        let named =
            |header: &FrameHeader, error| opened.named(error, part.seq_at(header, spot.index).ok());
        let frame = part.segment.check_frame(offset, named)?;
        let has_records =
            matches!(frame.header.kind, FrameKind::Record | FrameKind::Block | FrameKind::Put);
        if !has_records || frame.header.run_no != self.run_no {
            return Err(part.segment.damaged(offset, Damage::Mismatch));
        }
        Ok(frame)
    }

    /// The next record from the front, with its bytes, if it is contiguous in a mapped file and
    /// everything is right. Otherwise nothing has changed, and [`Walk::step`] finds out why.
    #[allow(clippy::inline_always, reason = "moving fields costs more than checking them")]
    #[inline(always)]
    fn glance<'o>(&mut self, opened: &'o Opened) -> Option<(FrameHeader, &'o [u8])> {
        let Spot { part: number, index } = self.front;
        let part = opened.parts.get(number)?;
        if self.front >= self.back || index >= part.records || self.block.is_some() {
            return None;
        }
        if part.segment.disk().is_closed() {
            return None;
        }
        let offset = self.next.offset(part, self.front)?;
        let (header, stored) = part.segment.frames().record(part.segment.mapped()?, offset)?;
        if header.run_no != self.run_no || self.expected != Some(header.seq) {
            return None;
        }
        self.expected = Some(Seq(header.seq.0.checked_add(1)?));
        self.front.index = index + 1;
        self.looks += 1;
        self.next.prefetch(part, self.front);
        Some((header, stored))
    }

    /// The record that was read ahead, if it is in one frame of its own and everything is right.
    /// Otherwise nothing has changed, like with [`Walk::glance`].
    #[inline]
    fn glance_ahead(&mut self, Listed { part, spot, .. }: Listed<'_>) -> Option<Ready> {
        let is_in_block = self.block.as_ref().is_some_and(|block| block.rank(spot).is_some());
        if is_in_block || part.segment.disk().has_views() {
            return None;
        }
        let ahead = self.ahead.get_or_insert_default();
        let (header, place) = ahead.record(part, spot.part, spot.index)?;
        if header.run_no != self.run_no
            || self.expected != Some(header.seq)
            || part.segment.disk().is_closed()
        {
            return None;
        }
        self.expected = Some(Seq(header.seq.0.checked_add(1)?));
        self.front.index += 1;
        Some(Ready { header, bytes: Where::Ahead(place) })
    }

    /// What the payloads of a slice share.
    #[inline]
    fn source(&mut self, part: &RunSlice) -> &Arc<Source> {
        let last = self.source.take().filter(|source| source.is_of(&part.segment));
        self.source.insert(last.unwrap_or_else(|| Source::new(&part.segment)))
    }

    /// Discards a result if the store is closed by now: the file may have been released.
    fn unless_closed<T>(&mut self, part: &RunSlice, found: Result<T>) -> Result<T> {
        if part.segment.disk().is_closed() {
            self.end();
            return Err(Error::Closed);
        }
        found
    }

    /// Checks the next record from the front and moves behind it.
    fn step(&mut self, listed: Listed<'_>) -> Result<CheckedFrame> {
        let Listed { opened, part, .. } = listed;
        let checked = self.check(listed);
        let seq = seq_of(checked.as_ref());
        if let (Some(expected), Some(seq)) = (self.expected, seq)
            && seq > expected
        {
            self.expected = Some(seq);
            return Err(opened.unlisted(part, Some(expected), Damage::Missing));
        }
        self.expected = seq.map(|seq| Seq(seq.0.saturating_add(1)));
        self.front.index += 1;
        checked
    }

    /// The next record from the front, for short use.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    pub(crate) fn next_view<'w>(
        &'w mut self,
        opened: &'w Opened,
    ) -> Option<Result<RecordView<'w>>> {
        if let Some((header, stored)) = self.glance(opened) {
            return Some(Ok(Record::new(&header, Cow::Borrowed(stored))));
        }
        match self.ready(opened)? {
            Ok(ready) => Some(Ok(self.view(opened, ready))),
            Err(error) => Some(Err(error)),
        }
    }

    /// The next record from the front, to keep.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    pub(crate) fn next(&mut self, opened: &Opened) -> Option<Result<Record>> {
        if let Some((header, _)) = self.glance(opened) {
            let frame = CheckedFrame::without_copy(header);
            let part = opened.parts.get(self.front.part)?;
            return Some(Ok(Record::new(&header, self.source(part).keep(frame))));
        }
        Some(self.ready(opened)?.and_then(|ready| self.keep(opened, ready)))
    }

    /// Checks the next record from the front and moves behind it, for [`Walk::view`] or
    /// [`Walk::keep`] before the next step.
    #[inline(never)]
    pub(crate) fn ready(&mut self, opened: &Opened) -> Option<Result<Ready>> {
        let listed = self.settle_front(opened)?;
        if let Some(ready) = self.glance_ahead(listed) {
            return Some(Ok(ready));
        }
        let checked = self.step(listed);
        Some(self.locate(listed, checked))
    }

    /// The same from the back.
    pub(crate) fn ready_back(&mut self, opened: &Opened) -> Option<Result<Ready>> {
        let listed = self.settle_back(opened)?;
        self.back = listed.spot;
        let checked = self.check(listed);
        Some(self.locate(listed, checked))
    }

    /// Where the bytes of a checked record are.
    fn locate(&mut self, listed: Listed<'_>, checked: Result<CheckedFrame>) -> Result<Ready> {
        let Listed { opened, part, spot } = listed;
        let frame = self.unless_closed(part, checked)?;
        let header = frame.header;
        let bytes = if header.kind == FrameKind::Block {
            frame.into_copy().map_or(Where::Block, Where::Copy)
        } else if header.flags & FLAG_CHUNKS != 0 {
            let gathered = opened.gather(&header, &part.segment.look(frame));
            Where::Copy(self.unless_closed(part, gathered)?)
        } else {
            Where::Frame(spot.part, frame)
        };
        Ok(Ready { header, bytes })
    }

    /// A record, for short use.
    pub(crate) fn view<'w>(
        &'w self,
        opened: &'w Opened,
        Ready { header, bytes }: Ready,
    ) -> RecordView<'w> {
        let stored = match bytes {
            Where::Frame(part, frame) => {
                opened.parts.get(part).map(|part| part.segment.look(frame))
            }
            Where::Ahead(place) => self.ahead.as_ref().map(|ahead| ahead.look(place).into()),
            Where::Block => self.block.as_ref().map(|block| block.look(&header).into()),
            Where::Copy(bytes) => Some(Cow::Owned(bytes)),
        };
        Record::new(&header, stored.unwrap_or_default())
    }

    /// A record, to keep.
    pub(crate) fn keep(&mut self, opened: &Opened, ready: Ready) -> Result<Record> {
        let Ready { header, bytes } = ready;
        let stored = match bytes {
            Where::Frame(part, frame) => {
                self.source(opened.parts.get(part).ok_or(Error::Closed)?).keep(frame)
            }
            Where::Block => {
                let block = self.block.as_deref().ok_or(Error::Poisoned)?;
                Payload::part(block.raw(), header.extra, header.payload_len)
            }
            bytes => Payload::owned(self.view(opened, Ready { header, bytes }).stored.into_owned()),
        };
        Ok(Record::new(&header, stored))
    }
}

/// The sequence of a record, or in an error.
fn seq_of(checked: Result<&CheckedFrame, &Error>) -> Option<Seq> {
    match checked {
        Ok(frame) => Some(frame.header.seq),
        Err(Error::Corrupt(corruption)) => corruption.seq,
        Err(_) => None,
    }
}
