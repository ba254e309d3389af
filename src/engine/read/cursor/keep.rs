//! The bytes of a record that a walk is at: for short use, or to keep.

use core::ops::Range;
use std::borrow::Cow;

use crate::engine::read::cursor::{Ready, Walk, Where};
use crate::engine::read::record::{Record, RecordView};
use crate::engine::state::payload::{CheckedFrame, Payload};
use crate::engine::state::run_slice::{Opened, RunSlice};
use crate::error::{Error, Result};
use crate::format::frames::frame::FLAG_CHUNKS;
use crate::format::{FrameHeader, FrameKind};

impl Walk {
    /// A record, for short use.
    pub(crate) fn view(&self, Ready { header, bytes }: Ready) -> RecordView<'_> {
        let stored = match bytes {
            Where::Ahead(place) => Cow::Borrowed(self.look_ahead(place)),
            Where::Block => Cow::Borrowed(self.look_in_block(&header)),
            Where::Copy(bytes) => Cow::Owned(bytes),
        };
        Record::new(&header, stored)
    }

    /// A record, to keep.
    pub(crate) fn to_keep(&self, Ready { header, bytes }: Ready) -> Result<Record> {
        let stored = match bytes {
            Where::Ahead(place) => Payload::owned(self.look_ahead(place).to_vec()),
            Where::Block => return self.keep_of_block(&header),
            Where::Copy(bytes) => Payload::owned(bytes),
        };
        Ok(Record::new(&header, stored))
    }

    /// The bytes of a record that was read ahead.
    fn look_ahead(&self, place: Range<usize>) -> &[u8] {
        self.ahead.as_ref().map_or(&[], |ahead| ahead.look(place))
    }

    /// The bytes of a record of the last block.
    pub(super) fn look_in_block(&self, header: &FrameHeader) -> &[u8] {
        self.block.as_deref().map_or(&[], |block| block.look(header))
    }

    /// A record of the last block, to keep.
    fn keep_of_block(&self, header: &FrameHeader) -> Result<Record> {
        let block = self.block.as_deref().ok_or(Error::Poisoned)?;
        let stored = Payload::part(block.raw(), header.extra, header.payload_len);
        Ok(Record::new(header, stored))
    }

    /// The record in a checked frame, to keep.
    pub(super) fn keep(
        &mut self,
        opened: &Opened,
        part: &RunSlice,
        frame: CheckedFrame,
    ) -> Result<Record> {
        let header = frame.header;
        if header.kind == FrameKind::Block {
            return self.keep_of_block(&header);
        }
        let stored = self.kept().ok_or(Error::Poisoned)?.keep(frame);
        if header.flags & FLAG_CHUNKS != 0 {
            let gathered = self.unless_closed(part, opened.gather(&header, &stored));
            return Ok(Record::new(&header, Payload::owned(gathered?)));
        }
        Ok(Record::new(&header, stored))
    }
}
