//! The short way of an append: one record of a run that the tail's segment knows, at Process level,
//! with zeros where it goes. That is most records.
//!
//! It does what [`Core::place`] does, in the same order, without what such a record never needs: to
//! roll, to allocate, to bind, to write zeros, to put frames together in a buffer. Whatever else
//! there is is left to the long way, with nothing changed.

use std::sync::Arc;

use crate::engine::state::log_state::{Core, reserve_len};
use crate::engine::values::Appended;
use crate::engine::write::Engine;
use crate::engine::write::pending_frame::{NewRecord, note_record};
use crate::error::Result;
use crate::format::directory::RECORD_COST;
use crate::format::frame::{FRAME_ALIGN, FRAME_HEADER_LEN, frame_len};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{Durability, LogPosition, MAX_KIND_LEN, RunNo, Seq};

/// The longest start of a frame: the header, the kind, and what fills the last word of it.
const HEAD: usize = FRAME_HEADER_LEN + MAX_KIND_LEN + FRAME_ALIGN;

impl Engine {
    /// Appends a record by the short way; none if it has to go the long one.
    #[inline]
    pub(crate) fn append_short(
        self: &Arc<Self>,
        run_no: RunNo,
        record: &NewRecord<'_>,
    ) -> Result<Option<Appended>> {
        let (name, payload) = (record.name().as_bytes(), record.payload());
        if record.level() != Durability::Process || !self.is_short(name.len() + payload.len()) {
            return Ok(None);
        }
        let now = record.time().is_none().then(|| self.now());
        let at = record.time().or(now).unwrap_or_default();
        let mut header = FrameHeader::new(FrameKind::Record, run_no, at);
        header.content = record.content();
        header.set_payload(name, payload);
        let mut core = self.turns.lock(&self.core, now);
        let Some(end) = core.store_record(self, &mut header, name, payload)? else {
            return Ok(None);
        };
        let is_over = self.turns.is_over();
        self.finish(core, end, Durability::Process)?;
        if is_over {
            self.turns.pass_on();
        }
        Ok(Some(self.appended(header.seq, header.lsn, end)))
    }
}

impl Core {
    /// Stores a record behind the last frame, if everything is ready for it.
    fn store_record(
        &mut self,
        engine: &Engine,
        header: &mut FrameHeader,
        name: &[u8],
        payload: &[u8],
    ) -> Result<Option<LogPosition>> {
        let Some(run) = self.hot.get_mut(header.run_no) else { return Ok(None) };
        if self.closed || run.status.is_ended() {
            return Ok(None);
        }
        let len = header.frame_len();
        let directory = frame_len(self.tail.builder.encoded_len() + RECORD_COST);
        let kept = directory + reserve_len(engine.extent_size) as usize;
        // With room for all that, space is had and nothing has to be rolled or sealed.
        let has_room = self.tail.offset as usize + len + kept <= self.tail.allocated as usize;
        if !has_room || !self.tail.has_zeros_for(len) {
            return Ok(None);
        }
        let Some(slot) = self.tail.builder.slot(header.run_no) else { return Ok(None) };
        engine.disk.check()?;
        header.seq = run.next_seq;
        header.position = self.tail.segment.position(self.tail.offset);
        header.lsn = self.next_lsn;
        header.durable = engine.commit.durable();
        let mut head = [0; HEAD];
        head[..FRAME_HEADER_LEN].copy_from_slice(&header.encode_with(self.tail.segment.frames()));
        let named = FRAME_HEADER_LEN + name.len();
        head[FRAME_HEADER_LEN..named].copy_from_slice(name);
        // The head is made of whole words, so that the rest of the payload starts with one.
        let whole = named.next_multiple_of(FRAME_ALIGN);
        let (first, rest) = payload.split_at((whole - named).min(payload.len()));
        head[named..named + first.len()].copy_from_slice(first);
        self.tail.put_frame(engine, &head[..whole], rest)?;
        self.tail.offset += u32::try_from(len).expect("a frame fits its segment");
        self.next_lsn.0 += 1;
        note_record(&mut self.tail.builder, slot, header);
        run.next_seq = Seq(run.next_seq.0 + 1);
        run.touched = true;
        let end = self.end_of_log();
        engine.commit.wrote(end);
        Ok(Some(end))
    }
}
