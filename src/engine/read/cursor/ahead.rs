//! Reading ahead of a walk where there are no views: the frames of a run that lie near one another,
//! with one read. Each frame is checked before it is used, like one that was read by itself.

use core::ops::Range;
use std::sync::Arc;

use crate::engine::state::payload::CheckedFrame;
use crate::engine::state::run_slice::RunSlice;
use crate::engine::state::segment::{HEADER, Segment};
use crate::engine::storage::disk::pieces::{PIECE, Piece};
use crate::format::frames::frame::{FLAG_CHUNKS, FRAME_HEADER_LEN};
use crate::format::{FrameHeader, FrameKind};
use crate::types::Seq;

/// Reading so many bytes that are not needed costs as much as a read of their own.
const NEAR: u32 = 4 << 10;

/// How many bytes the first read of a walk may have, and the longest, but for the rest of a frame.
/// Each may have twice as many as the one before: a caller that wants the first records does not
/// wait for more.
const FIRST: u32 = 4 << 10;
const MOST: u32 = 256 << 10;

/// How much is read of a frame of which only the start is known. Most are shorter.
const GUESS: u32 = 2 << 10;

/// A record that was checked, and where the walk has its bytes until the next one.
pub(crate) struct Ready {
    pub(super) header: FrameHeader,
    pub(super) bytes: Where,
}

/// Where the kind and the payload of a record are.
pub(super) enum Where {
    /// In a frame of the slice with this number.
    Frame(usize, CheckedFrame),
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

/// Bytes of one segment.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The number of the slice that the segment is of.
    part: usize,
    /// The offset in the segment of the first byte.
    start: u32,
    /// A piece that other walks may use too.
    piece: Option<Shared>,
    /// Without a piece: bytes of its own.
    own: Vec<u8>,
    /// How many of these count; what follows is left from an earlier read.
    len: usize,
    /// How many bytes the last read was allowed.
    allowed: u32,
    /// The slice whose records are in blocks, so that nothing is read ahead.
    refused: Option<usize>,
}

/// A piece, and how many of its bytes were of use.
#[derive(Debug)]
struct Shared {
    piece: Arc<Piece>,
    used: usize,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.piece.note_used(self.used);
    }
}

impl Ahead {
    /// Record `index` of the slice with the number `part`, if it is intact and in one frame of its
    /// own, and the place of its kind and payload for [`Ahead::look`].
    #[inline]
    pub(super) fn record(
        &mut self,
        slice: &RunSlice,
        part: usize,
        index: u32,
    ) -> Option<(FrameHeader, Range<usize>)> {
        let offset = slice.offset(index).ok()?;
        if self.part != part {
            self.part = part;
            self.forget(offset);
        }
        let found = match self.check(&slice.segment, offset) {
            Some(found) => found,
            None => self.read(slice, index, offset)?,
        };
        if let Some(shared) = &mut self.piece {
            shared.used += FRAME_HEADER_LEN + found.1.len();
        }
        Some(found)
    }

    /// The kind and the payload of a record.
    #[inline]
    pub(super) fn look(&self, place: Range<usize>) -> &[u8] {
        self.bytes().get(place).unwrap_or_default()
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match &self.piece {
            Some(shared) => shared.piece.bytes(),
            None => self.own.get(..self.len).unwrap_or_default(),
        }
    }

    /// The bytes from this offset on.
    #[inline]
    fn from(&self, offset: u32) -> Option<&[u8]> {
        self.bytes().get(offset.checked_sub(self.start)? as usize..)
    }

    #[inline]
    fn check(&self, segment: &Segment, offset: u32) -> Option<(FrameHeader, Range<usize>)> {
        let (header, stored) = segment.frames().record_in(self.from(offset)?, offset)?;
        let start = (offset - self.start) as usize + FRAME_HEADER_LEN;
        Some((header, start..start + stored.len()))
    }

    /// Lets go of all bytes: the next ones begin at this offset.
    fn forget(&mut self, offset: u32) {
        (self.piece, self.start, self.len) = (None, offset, 0);
    }

    /// Reads what is missing of record `index`, which is at `offset`, and checks it.
    #[cold]
    fn read(
        &mut self,
        slice: &RunSlice,
        index: u32,
        offset: u32,
    ) -> Option<(FrameHeader, Range<usize>)> {
        if self.refused == Some(self.part) {
            return None;
        }
        if self.from(offset).is_none_or(|there| there.len() < FRAME_HEADER_LEN) {
            self.forget(offset);
            if !self.share(&slice.segment, offset) {
                self.read_near(slice, index, offset)?;
            }
            if let Some(found) = self.check(&slice.segment, offset) {
                return Some(found);
            }
        }
        self.read_rest(&slice.segment, offset)?;
        self.check(&slice.segment, offset)
    }

    /// Takes the piece that has this offset, if it pays and the frame's header is in it.
    fn share(&mut self, segment: &Segment, offset: u32) -> bool {
        let Some(sealed) = segment.sealed() else { return false };
        let start = offset / PIECE * PIECE;
        let len = sealed.end.saturating_sub(start).min(PIECE);
        if sealed.end.min(start + len).saturating_sub(offset) < HEADER {
            return false;
        }
        let at = segment.file_offset() + u64::from(start);
        let piece = segment.disk().piece(at, segment.key().salt, len as usize);
        self.piece = piece.map(|piece| Shared { piece, used: 0 });
        let is_there = self.piece.is_some();
        if is_there {
            self.start = start;
        }
        is_there
    }

    /// Reads the record at `offset`, and those behind it that are near.
    fn read_near(&mut self, slice: &RunSlice, index: u32, offset: u32) -> Option<()> {
        self.allowed = self.allowed.saturating_mul(2).clamp(FIRST, MOST);
        let (mut last, mut end) = (offset, None);
        for next in index.saturating_add(1)..slice.records {
            let next = slice.offset(next).ok()?;
            if next.checked_sub(last)? > NEAR {
                break;
            }
            if next - offset > self.allowed {
                end = Some(next);
                break;
            }
            last = next;
        }
        self.fill(&slice.segment, end.unwrap_or_else(|| last.saturating_add(GUESS)))
    }

    /// Reads the rest of the frame at `offset`, if it is of a record and its header is right.
    fn read_rest(&mut self, segment: &Segment, offset: u32) -> Option<()> {
        let there = self.from(offset)?;
        let len = there.len();
        let header = FrameHeader::decode_with(there, segment.frames(), offset).ok()?;
        if header.kind == FrameKind::Block {
            self.refused = Some(self.part);
        }
        if header.kind != FrameKind::Record
            || header.flags & FLAG_CHUNKS != 0
            || header.frame_len() <= len
        {
            return None;
        }
        if self.piece.is_some() {
            self.forget(offset);
        }
        self.fill(segment, offset.checked_add(u32::try_from(header.frame_len()).ok()?)?)
    }

    /// Reads on up to this offset, or to the end of the frames.
    fn fill(&mut self, segment: &Segment, end: u32) -> Option<()> {
        let last = segment.sealed().map_or(segment.extent_size().bytes_u32(), |at| at.end);
        let len = end.min(last).checked_sub(self.start)? as usize;
        if self.own.len() < len {
            self.own.resize(len, 0);
        }
        let from = segment.file_offset() + u64::from(self.start) + self.len as u64;
        segment.disk().read(from, self.own.get_mut(self.len..len)?).ok()?;
        self.len = len;
        Some(())
    }
}
