//! The unique bytes of slices, decompressed as records need them.

use core::ops::Range;

use crate::engine::state::segment::Segment;
use crate::error::{Damage, Error, Result};
use crate::format::codec::{at_most, check_crc};
use crate::format::frames::block::BlockRow;
use crate::format::frames::slice::{MAX_UNIQUE, PieceAt, decode_piece};
use crate::types::{Lsn, SegmentId};

/// The pieces of one slice. What was decompressed is kept until another slice is asked for: a long
/// record needs most pieces, and the next one the same again.
#[derive(Debug, Default)]
pub(crate) struct Unique {
    of: Option<(SegmentId, Lsn)>,
    /// By their places in the slice. Two at one place have the same bytes.
    pieces: Vec<PieceAt>,
    /// The bytes of each.
    open: Vec<Option<Vec<u8>>>,
}

impl Unique {
    /// The pieces of a slice of the segment, of which `list` has all.
    pub(crate) fn choose(
        &mut self,
        segment: &Segment,
        slice: Lsn,
        list: impl FnOnce() -> Result<Vec<PieceAt>>,
    ) -> Result<()> {
        let of = Some((segment.id(), slice));
        if self.of != of {
            self.of = None;
            self.pieces = list()?;
            self.pieces.retain(|piece| piece.slice == slice);
            self.open.clear();
            self.open.resize(self.pieces.len(), None);
            self.of = of;
        }
        Ok(())
    }

    /// The kind and the payload of a record of a block with these raw bytes.
    pub(crate) fn record(
        &mut self,
        segment: &Segment,
        (row, raw): (&BlockRow, &[u8]),
        damaged: impl Fn(Damage) -> Error,
    ) -> Result<Vec<u8>> {
        let mut ranges = Vec::new();
        row.each_range(raw, |range| ranges.push(range)).map_err(&damaged)?;
        let mut out = Vec::with_capacity(row.len as usize);
        for range in ranges {
            self.append(segment, range, &mut out)?;
        }
        check_crc(row.crc, crc32fast::hash(&out)).map_err(damaged)?;
        Ok(out)
    }

    /// Appends a range of the unique bytes.
    fn append(&mut self, segment: &Segment, range: Range<u32>, out: &mut Vec<u8>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let behind = self.pieces.partition_point(|piece| piece.start <= at);
            let number = behind.checked_sub(1);
            let start = number.and_then(|number| self.pieces.get(number)).map(|piece| piece.start);
            let (Some(number), Some(start)) = (number, start) else {
                return Err(segment.damaged_directory(Damage::Missing));
            };
            let bytes = self.piece(segment, number)?;
            let rest = bytes.get((at - start) as usize..).unwrap_or_default();
            let some = rest.get(..(range.end - at) as usize).unwrap_or(rest);
            if some.is_empty() {
                let offset = self.pieces.get(number).map_or(0, |piece| piece.offset);
                return Err(segment.damaged(offset, Damage::Truncated));
            }
            out.extend_from_slice(some);
            at += u32::try_from(some.len()).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    /// The bytes of the last of the pieces at one place, from whichever is whole.
    fn piece(&mut self, segment: &Segment, number: usize) -> Result<&[u8]> {
        if self.open.get(number).is_some_and(Option::is_none) {
            let start = self.pieces.get(number).map(|piece| piece.start);
            let upto = self.pieces.get(..=number).unwrap_or_default();
            let same = upto.iter().rev().take_while(|piece| Some(piece.start) == start);
            let mut read = Err(segment.damaged_directory(Damage::Missing));
            for piece in same {
                read = read_piece(segment, *piece);
                if !matches!(read, Err(Error::Corrupt(_) | Error::Io { .. })) {
                    break;
                }
            }
            let bytes = read?;
            let most = MAX_UNIQUE as u64;
            let found = self.open.iter().flatten().map(Vec::len).sum::<usize>() + bytes.len();
            at_most(found as u64, most).map_err(|damage| segment.damaged_directory(damage))?;
            if let Some(open) = self.open.get_mut(number) {
                *open = Some(bytes);
            }
        }
        Ok(self.open.get(number).and_then(Option::as_deref).unwrap_or_default())
    }
}

fn read_piece(segment: &Segment, at: PieceAt) -> Result<Vec<u8>> {
    let (header, payload) = segment.read_frame(at.offset)?;
    let mut bytes = Vec::new();
    decode_piece(at, &header, &payload, &mut bytes)
        .map_err(|damage| segment.damaged(at.offset, damage))?;
    Ok(bytes)
}
