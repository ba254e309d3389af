//! Walking the records of a run that is ready to be read: which is due next from either end, and
//! whether it is whole.
//!
//! Most records lie in one piece of a mapped file and are as they should be. Those are answered at
//! a glance ([`Walk::glance`]); whatever else there is takes steps ([`Walk::step`]), which check
//! the same and say what is wrong.

use std::borrow::Cow;
use std::sync::Arc;

use crate::engine::read::block::{OpenBlock, gather_chunks};
use crate::engine::read::record::{Record, RecordView};
use crate::engine::state::payload::{Lent, Payload};
use crate::engine::state::run_slice::{Offsets, Opened, RunSlice};
use crate::engine::state::segment::CheckedFrame;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::frame::FLAG_CHUNKS;
use crate::format::{FrameHeader, FrameKind};
use crate::types::{RunNo, Seq};

impl Opened {
    /// Has the first bytes fetched that a walk from the front reads.
    pub(crate) fn foresee(&self) {
        if let Some(part) = self.parts.first()
            && let Offsets::Listed(offsets) = &part.offsets
        {
            for offset in offsets.iter().take(AHEAD as usize) {
                part.segment.foresee(*offset);
            }
        }
    }

    /// Where the first record with a sequence of at least `seq` is.
    fn locate(&self, seq: Seq) -> Result<Spot> {
        for (number, part) in self.parts.iter().enumerate() {
            if part.first_seq.is_some() && part.next_seq > seq {
                return Ok(Spot { part: number, index: part.lower_bound(seq)? });
            }
        }
        Ok(Spot { part: self.parts.len(), index: 0 })
    }

    /// The error with the run and the sequence, where it does not say them itself.
    #[cold]
    fn named(&self, error: Error, seq: Option<Seq>) -> Error {
        match error {
            Error::Corrupt(mut corruption) => {
                corruption.run.get_or_insert_with(|| self.run.clone());
                corruption.seq = corruption.seq.or(seq);
                Error::Corrupt(corruption)
            }
            other => other,
        }
    }

    /// The kind and the payload of a record that lies in chunks.
    #[cold]
    fn gather(&self, header: &FrameHeader, stored: &[u8]) -> Result<Vec<u8>> {
        let gathered = gather_chunks(&self.parts, header, stored);
        gathered.map_err(|error| self.named(error, Some(header.seq)))
    }

    /// An item for what a directory does not list as it should.
    fn unlisted(&self, part: &RunSlice, seq: Option<Seq>, damage: Damage) -> Error {
        let place = Place::Directory { segment: part.segment.id() };
        Error::Corrupt(Corruption { place, damage, run: Some(self.run.clone()), seq })
    }
}

/// A place between records: the part, and the record within it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Spot {
    pub(crate) part: usize,
    pub(crate) index: u32,
}

/// A record as a list has it.
#[derive(Clone, Copy)]
struct Listed<'o> {
    opened: &'o Opened,
    part: &'o RunSlice,
    spot: Spot,
}

/// How many records further on the bytes are fetched already.
const AHEAD: u32 = 3;

/// Records that start within so many bytes of one another are read as one stream.
const NEAR: u32 = 2 << 10;

/// What is left of a run between two ends, and what is known at the front.
#[derive(Debug)]
pub(crate) struct Walk {
    run_no: RunNo,
    front: Spot,
    back: Spot,
    /// The sequence that is due at the front; a larger one means that records are missing.
    expected: Option<Seq>,
    /// The block that was read last, if any was.
    block: Option<Box<OpenBlock>>,
    /// The part of which records are handed out, by its place.
    lent: Option<(usize, Arc<Lent>)>,
    /// Looks at frames through a view, to be counted at the end.
    pub(crate) looks: u64,
}

impl Walk {
    /// All records of a run.
    pub(crate) fn new(opened: &Opened, run_no: RunNo) -> Self {
        let back = Spot { part: opened.parts.len(), index: 0 };
        let front = Spot { part: 0, index: 0 };
        Self { run_no, front, back, expected: Some(Seq(0)), block: None, lent: None, looks: 0 }
    }

    /// Leaves only records with a sequence of at least `low` and below `high`.
    pub(crate) fn leave(
        &mut self,
        opened: &Opened,
        low: Option<Seq>,
        high: Option<Seq>,
    ) -> Result<()> {
        let located = |seq: Option<Seq>| seq.map(|seq| opened.locate(seq)).transpose();
        let found = located(low).and_then(|low| Ok((low, located(high)?)));
        let (from, to) = match opened.parts.first() {
            Some(part) => self.unless_closed(part, found)?,
            None => found?,
        };
        self.front = from.map_or(self.front, |from| from.max(self.front));
        self.back = to.map_or(self.back, |to| to.min(self.back));
        self.expected = self.expected.map(|expected| low.map_or(expected, |low| expected.max(low)));
        Ok(())
    }

    /// Leaves no records, and holds no segment.
    pub(crate) fn end(&mut self) {
        self.lent = None;
        (self.front, self.back) = (Spot { part: 0, index: 0 }, Spot { part: 0, index: 0 });
    }

    /// Whether a record is left.
    pub(crate) fn is_at_record(&mut self, opened: &Opened) -> bool {
        self.settle_front(opened).is_some()
    }

    /// Moves the front to a record, if one is left.
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

    /// Moves the back behind a record, if one is left, and answers that record.
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

    /// Checks the frame of a record, and that it is the record that the list says.
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

    /// The error of the records of a part, from this one on, if they are none: the list repeats
    /// itself.
    fn list_is_over(&self, Listed { opened, part, spot }: Listed<'_>) -> Option<Error> {
        let is_in_block = self.block.as_ref().is_some_and(|block| block.rank(spot).is_some());
        (!is_in_block && part.repeats(spot.index))
            .then(|| opened.unlisted(part, part.presumed_seq(spot.index), Damage::Mismatch))
    }

    fn check_frame(&mut self, listed: Listed<'_>) -> Result<CheckedFrame> {
        let Listed { opened, part, spot } = listed;
        if let Some(block) = &self.block
            && let Some(rank) = block.rank(spot)
        {
            return block.record(&part.segment, rank).map_err(|error| opened.named(error, None));
        }
        let offset = part.offset(spot.index);
        let checked = offset.and_then(|offset| self.check_record(listed, offset));
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
        let has_records = matches!(frame.header.kind, FrameKind::Record | FrameKind::Block);
        if !has_records || frame.header.run_no != self.run_no {
            return Err(part.segment.damaged(offset, Damage::Mismatch));
        }
        Ok(frame)
    }

    /// The next record from the front, with its part and its bytes, if all is as it should be and
    /// it lies in one piece of a mapped file: most do. Else nothing has changed, and
    /// [`Walk::step`] says why.
    #[allow(clippy::inline_always, reason = "moving fields costs more than checking them")]
    #[inline(always)]
    fn glance<'o>(&mut self, opened: &'o Opened) -> Option<(&Arc<Lent>, FrameHeader, &'o [u8])> {
        let Spot { part: number, index } = self.front;
        let part = opened.parts.get(number)?;
        if self.front >= self.back || index >= part.records || self.block.is_some() {
            return None;
        }
        self.lend(Listed { opened, part, spot: self.front });
        if part.segment.disk().is_closed() {
            return None;
        }
        let offset = part.offset(index).ok()?;
        let (header, stored) = part.segment.frames().record(part.segment.mapped()?, offset)?;
        if header.run_no != self.run_no || self.expected != Some(header.seq) {
            return None;
        }
        self.expected = Some(Seq(header.seq.0.checked_add(1)?));
        self.front.index = index + 1;
        self.looks += 1;
        foresee(part, index + 1 + AHEAD);
        Some((&self.lent.as_ref()?.1, header, stored))
    }

    /// Records of the part are about to be handed out.
    #[inline]
    fn lend(&mut self, Listed { part, spot, .. }: Listed<'_>) {
        if self.lent.as_ref().is_none_or(|lent| lent.0 != spot.part) {
            self.lent = Some((spot.part, Lent::of(&part.segment)));
        }
    }

    /// Throws away what was found in a store that is closed by now: it may be zeros.
    fn unless_closed<T>(&mut self, part: &RunSlice, found: Result<T>) -> Result<T> {
        if part.segment.disk().is_closed() {
            self.end();
            return Err(Error::Closed);
        }
        found
    }

    /// Checks the next record from the front and goes on behind it; its part, and its frame.
    fn step<'o>(&mut self, opened: &'o Opened) -> Option<Result<(&'o RunSlice, CheckedFrame)>> {
        let listed = self.settle_front(opened)?;
        self.lend(listed);
        let stepped = self.step_to(opened, listed);
        Some(self.unless_closed(listed.part, stepped))
    }

    fn step_to<'o>(
        &mut self,
        opened: &'o Opened,
        listed: Listed<'o>,
    ) -> Result<(&'o RunSlice, CheckedFrame)> {
        let Listed { part, spot, .. } = listed;
        if let Some(error) = self.list_is_over(listed) {
            self.front = Spot { part: spot.part + 1, index: 0 };
            return Err(error);
        }
        let checked = self.check(listed);
        let seq = match &checked {
            Ok(frame) => Some(frame.header.seq),
            Err(error) => seq_of(error),
        };
        if let (Some(expected), Some(seq)) = (self.expected, seq)
            && seq > expected
        {
            self.expected = Some(seq);
            return Err(opened.unlisted(part, Some(expected), Damage::Missing));
        }
        self.expected = seq.map(|seq| Seq(seq.0.saturating_add(1)));
        self.front.index += 1;
        foresee(part, self.front.index + AHEAD);
        checked.map(|frame| (part, frame))
    }

    /// The next record from the front, to look at.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    pub(crate) fn next_view<'w>(
        &'w mut self,
        opened: &'w Opened,
    ) -> Option<Result<RecordView<'w>>> {
        match self.glance(opened) {
            Some((_, header, stored)) => Some(Ok(Record::new(&header, Cow::Borrowed(stored)))),
            None => self.step_view(opened),
        }
    }

    #[inline(never)]
    fn step_view<'w>(&'w mut self, opened: &'w Opened) -> Option<Result<RecordView<'w>>> {
        let (part, frame) = match self.step(opened)? {
            Ok(checked) => checked,
            Err(error) => return Some(Err(error)),
        };
        let header = frame.header;
        if header.kind == FrameKind::Block {
            let stored = self.block.as_deref().map_or(&[][..], |block| block.look(&header));
            return Some(Ok(Record::new(&header, Cow::Borrowed(stored))));
        }
        let stored = part.segment.look(frame);
        if header.flags & FLAG_CHUNKS != 0 {
            let gathered = opened.gather(&header, &stored);
            let gathered = self.unless_closed(part, gathered);
            return Some(gathered.map(|bytes| Record::new(&header, Cow::Owned(bytes))));
        }
        Some(Ok(Record::new(&header, stored)))
    }

    /// The next record from the front, to keep.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    pub(crate) fn next(&mut self, opened: &Opened) -> Option<Result<Record>> {
        match self.glance(opened) {
            Some((lent, header, _)) => {
                let frame = CheckedFrame::without_copy(header);
                Some(Ok(Record::new(&header, lent.keep(frame))))
            }
            None => self.step_to_keep(opened),
        }
    }

    #[inline(never)]
    fn step_to_keep(&mut self, opened: &Opened) -> Option<Result<Record>> {
        Some(self.step(opened)?.and_then(|(part, frame)| self.keep(opened, part, frame)))
    }

    /// The next record from the back, to keep.
    pub(crate) fn next_back(&mut self, opened: &Opened) -> Option<Result<Record>> {
        let listed = self.settle_back(opened)?;
        let Listed { part, spot, .. } = listed;
        self.lend(listed);
        let checked = match self.list_is_over(listed) {
            Some(error) => {
                self.back = Spot { part: spot.part, index: 0 };
                Err(error)
            }
            None => {
                self.back = spot;
                self.check(listed)
            }
        };
        let checked = self.unless_closed(part, checked);
        Some(checked.and_then(|frame| self.keep(opened, part, frame)))
    }

    /// The record in a frame that was checked, to keep.
    fn keep(&mut self, opened: &Opened, part: &RunSlice, frame: CheckedFrame) -> Result<Record> {
        let header = frame.header;
        if header.kind == FrameKind::Block {
            let block = self.block.as_deref().ok_or(Error::Poisoned)?;
            let stored = Payload::part(block.raw(), header.extra, header.payload_len);
            return Ok(Record::new(&header, stored));
        }
        let Some((_, lent)) = &self.lent else { return Err(Error::Poisoned) };
        let stored = lent.keep(frame);
        if header.flags & FLAG_CHUNKS != 0 {
            let gathered = self.unless_closed(part, opened.gather(&header, &stored));
            return Ok(Record::new(&header, Payload::owned(gathered?)));
        }
        Ok(Record::new(&header, stored))
    }
}

/// Has the bytes of record `index` fetched, which will be read soon, while those in front of it are
/// checked: interleaved runs would wait for the memory at each record. What lies close is fetched
/// by the processor itself.
#[inline]
fn foresee(part: &RunSlice, index: u32) {
    if let Offsets::Listed(offsets) = &part.offsets
        && let Some(offset) = offsets.get(index as usize)
        && let Some(before) = offsets.get(index as usize - 1)
        && offset.wrapping_sub(*before) > NEAR
    {
        part.segment.foresee(*offset);
    }
}

/// The sequence that an error is about.
fn seq_of(error: &Error) -> Option<Seq> {
    match error {
        Error::Corrupt(corruption) => corruption.seq,
        _ => None,
    }
}
