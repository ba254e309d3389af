//! The next record where there are no views: from what was read ahead, or else by [`Walk::step`].

use core::ops::Range;
use std::borrow::Cow;

use super::{Spot, Walk};
use crate::engine::read::record::{Record, RecordView};
use crate::engine::state::payload::Payload;
use crate::engine::state::run_slice::Opened;
use crate::error::Result;
use crate::format::frames::frame::FLAG_CHUNKS;
use crate::format::{FrameHeader, FrameKind};
use crate::types::Seq;

/// A record that was checked, and where the walk has its bytes until the next one.
pub(crate) struct Ready {
    header: FrameHeader,
    bytes: Where,
}

/// Where the kind and the payload of a record are.
enum Where {
    /// In what was read ahead.
    Ahead(Range<usize>),
    /// In the block that was read last.
    Block,
    /// Here.
    Copy(Vec<u8>),
}

impl Ready {
    pub(crate) fn seq(&self) -> Seq {
        self.header.seq
    }
}

impl Walk {
    /// The next record from the front, if it is in one frame of its own and everything is right.
    /// Otherwise nothing has changed, like with [`Walk::glance`].
    #[inline]
    fn glance_ahead(&mut self, opened: &Opened) -> Option<Ready> {
        let Spot { part: number, index } = self.front;
        let part = opened.parts.get(number)?;
        let is_in_block = self.block.as_ref().is_some_and(|block| block.rank(self.front).is_some());
        if self.front >= self.back
            || index >= part.records
            || is_in_block
            || part.segment.disk().has_views()
        {
            return None;
        }
        let (header, place) = self.ahead.record(part, number, index)?;
        if header.run_no != self.run_no
            || self.expected != Some(header.seq)
            || part.segment.disk().is_closed()
        {
            return None;
        }
        self.expected = Some(Seq(header.seq.0.checked_add(1)?));
        self.front.index = index + 1;
        Some(Ready { header, bytes: Where::Ahead(place) })
    }

    /// Checks the next record from the front and moves behind it, for [`Walk::view`] or
    /// [`Walk::to_keep`] before the next step. The fastest way where there are no views.
    pub(crate) fn ready(&mut self, opened: &Opened) -> Option<Result<Ready>> {
        // The end of a slice is no reason to step.
        let _ = self.settle_front(opened)?;
        if let Some(ready) = self.glance_ahead(opened) {
            return Some(Ok(ready));
        }
        let (part, frame) = match self.step(opened)? {
            Ok(checked) => checked,
            Err(error) => return Some(Err(error)),
        };
        let header = frame.header;
        if header.kind == FrameKind::Block {
            return Some(Ok(Ready { header, bytes: Where::Block }));
        }
        let stored = part.segment.look(frame);
        let bytes = if header.flags & FLAG_CHUNKS != 0 {
            let gathered = opened.gather(&header, &stored);
            self.unless_closed(part, gathered)
        } else {
            Ok(stored.into_owned())
        };
        Some(bytes.map(|bytes| Ready { header, bytes: Where::Copy(bytes) }))
    }

    /// A record, for short use.
    pub(crate) fn view(&self, Ready { header, bytes }: Ready) -> RecordView<'_> {
        let stored = match bytes {
            Where::Ahead(place) => Cow::Borrowed(self.ahead.look(place)),
            Where::Block => Cow::Borrowed(self.look_in_block(&header)),
            Where::Copy(bytes) => Cow::Owned(bytes),
        };
        Record::new(&header, stored)
    }

    /// A record, to keep.
    pub(crate) fn to_keep(&self, Ready { header, bytes }: Ready) -> Result<Record> {
        let stored = match bytes {
            Where::Ahead(place) => Payload::owned(self.ahead.look(place).to_vec()),
            Where::Block => return self.keep_of_block(&header),
            Where::Copy(bytes) => Payload::owned(bytes),
        };
        Ok(Record::new(&header, stored))
    }
}
