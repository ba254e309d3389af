//! Slices: records of a run that share their bytes. What is equal in two records is stored once.
//!
//! - The **unique bytes** of a slice are cut into pieces. Each is compressed by itself, in a PIECE
//!   frame.
//! - A record is a list of ranges of the unique bytes: its recipe. Recipes stand behind the rows of
//!   a BLOCK.
//! - Nothing refers to another slice, and a slice is in one segment.
//!
//! The layouts are in section 14 of FORMAT.md.

use core::ops::Range;

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, at_most, len_u32};
use crate::format::frames::block::{put_varint, unzigzag, varint, zigzag};
use crate::format::frames::compression::{self, Compressor};
use crate::format::frames::frame::{FrameHeader, FrameKind};
use crate::format::layout::ExtentSize;
use crate::types::{Lsn, RunNo, Timestamp};

/// The most unique bytes of a piece.
pub const MAX_PIECE: u32 = 128 << 10;
/// The most unique bytes of a slice.
pub const MAX_UNIQUE: usize = 16 << 20;
/// The codec of a piece that does not shrink.
const PLAIN: u8 = 0;

/// How many unique bytes the pieces of a store have.
pub fn piece_len(extent_size: ExtentSize) -> u32 {
    (extent_size.bytes_u32() / 32).min(MAX_PIECE)
}

/// The next bytes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The next unique bytes that no record in front has.
    New(u32),
    /// A range of the unique bytes in front of these.
    Copy {
        /// The first byte.
        start: u32,
        /// How many bytes there are.
        len: u32,
    },
}

/// Where the reader of recipes is in the unique bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RecipeAt {
    /// Where the next new bytes are.
    pub new: u32,
    /// The end of the last copy in the block; 0 in front of the first.
    pub copied: u32,
}

impl RecipeAt {
    /// Appends the recipe of a record to `out`. A record of new bytes alone has none.
    pub fn encode(&mut self, ops: &[Op], out: &mut Vec<u8>) {
        let is_new = ops.iter().all(|op| matches!(op, Op::New(_)));
        for op in ops {
            match *op {
                Op::New(len) => {
                    if !is_new {
                        put_varint(u64::from(len) << 1 | 1, out);
                    }
                    self.new += len;
                }
                Op::Copy { start, len } => {
                    put_varint(u64::from(len) << 1, out);
                    put_varint(zigzag(i64::from(start) - i64::from(self.copied)), out);
                    self.copied = start + len;
                }
            }
        }
    }

    /// Calls `visit` with each range of the unique bytes of a record of `len` bytes.
    ///
    /// # Errors
    /// [`Damage`] if the lengths differ, or a copy has bytes that are not in front of it.
    pub fn each_range(
        &mut self,
        recipe: &[u8],
        len: u32,
        mut visit: impl FnMut(Range<u32>),
    ) -> Decoded<()> {
        let (mut reader, mut left) = (Reader::new(recipe), len);
        if recipe.is_empty() {
            let end = self.new.checked_add(len).ok_or(Damage::Truncated)?;
            if len > 0 {
                visit(self.new..end);
            }
            self.new = end;
            return Ok(());
        }
        while !reader.rest().is_empty() {
            let op = varint(&mut reader)?;
            at_most(op >> 1, left)?;
            let len = u32::try_from(op >> 1).map_err(|_| Damage::Truncated)?;
            if len == 0 {
                return Err(Damage::Mismatch);
            }
            left -= len;
            if op & 1 == 1 {
                let end = self.new.checked_add(len).ok_or(Damage::Truncated)?;
                visit(self.new..end);
                self.new = end;
            } else {
                let start = i64::from(self.copied).checked_add(unzigzag(varint(&mut reader)?));
                let start = start.and_then(|start| u32::try_from(start).ok());
                let start = start.ok_or(Damage::Mismatch)?;
                let end = start.checked_add(len).filter(|end| *end <= self.new);
                self.copied = end.ok_or(Damage::Mismatch)?;
                visit(start..self.copied);
            }
        }
        if left == 0 { Ok(()) } else { Err(Damage::Mismatch) }
    }
}

/// Where a PIECE is in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PieceAt {
    /// The slice: the order of its first record.
    pub slice: Lsn,
    /// The place of its first byte in the unique bytes of the slice.
    pub start: u32,
    /// The offset of the frame.
    pub offset: u32,
}

impl PieceAt {
    /// The place of a PIECE with this header.
    pub fn of(piece: &FrameHeader) -> Self {
        let start = u32::try_from(piece.seq.0).unwrap_or(u32::MAX);
        Self { slice: piece.lsn, start, offset: piece.position.offset }
    }
}

/// The frame of a piece of unique bytes, without a place, and its payload.
pub(crate) fn encode_piece(
    (slice, start): (Lsn, u32),
    run: (RunNo, Timestamp),
    raw: &[u8],
    compressor: &mut Compressor,
) -> (FrameHeader, Vec<u8>) {
    let mut payload = vec![compression::ZSTD];
    if !compressor.compress(raw, raw.len().saturating_sub(1), &mut payload) {
        payload.clear();
        payload.push(PLAIN);
        payload.extend_from_slice(raw);
    }
    payload.shrink_to_fit();
    let mut header = FrameHeader::new(FrameKind::Piece, run.0, run.1);
    (header.lsn, header.extra) = (slice, len_u32(raw.len()));
    header.seq.0 = start.into();
    header.set_payload(b"", &payload);
    (header, payload)
}

/// Appends the unique bytes of the PIECE at this place to `out`.
///
/// # Errors
/// [`Damage`] if it is another frame, or its bytes do not become as many as it says.
pub fn decode_piece(
    at: PieceAt,
    header: &FrameHeader,
    payload: &[u8],
    out: &mut Vec<u8>,
) -> Decoded<()> {
    let told = (header.kind, header.lsn, header.seq.0);
    if told != (FrameKind::Piece, at.slice, u64::from(at.start)) {
        return Err(Damage::Mismatch);
    }
    at_most(header.extra, MAX_PIECE)?;
    let (codec, bytes) = payload.split_first().ok_or(Damage::Truncated)?;
    if *codec != PLAIN {
        return compression::decompress(*codec, bytes, header.extra as usize, out);
    }
    if bytes.len() != header.extra as usize {
        return Err(Damage::Undecodable);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: RecipeAt = RecipeAt { new: 100, copied: 0 };

    fn ranges(recipe: &[u8], len: u32) -> Decoded<(Vec<Range<u32>>, RecipeAt)> {
        let (mut at, mut all) = (START, Vec::new());
        at.each_range(recipe, len, |range| all.push(range))?;
        Ok((all, at))
    }

    #[test]
    fn a_recipe_gives_back_the_ranges_of_its_record() {
        let ops = [
            Op::Copy { start: 90, len: 10 },
            Op::New(7),
            Op::Copy { start: 0, len: 50 },
            Op::Copy { start: 103, len: 4 },
        ];
        let (mut at, mut recipe) = (START, Vec::new());
        at.encode(&ops, &mut recipe);
        let all = vec![90..100, 100..107, 0..50, 103..107];
        assert_eq!(ranges(&recipe, 71), Ok((all, at)));
        assert_eq!(at, RecipeAt { new: 107, copied: 107 });
        let mut at = START;
        recipe.clear();
        at.encode(&[Op::New(9)], &mut recipe);
        assert!(recipe.is_empty());
        let (all, behind) = ranges(&recipe, 9).unwrap();
        assert_eq!((all.len(), all.first(), behind), (1, Some(&(100..109)), at));
        assert_eq!(ranges(&recipe, 0), Ok((Vec::new(), START)));
    }

    #[test]
    fn a_recipe_that_does_not_fit_its_record_is_damage() {
        let encoded = |ops: &[Op]| {
            let mut recipe = Vec::new();
            START.clone().encode(ops, &mut recipe);
            recipe
        };
        let whole = encoded(&[Op::Copy { start: 0, len: 5 }, Op::New(5)]);
        assert!(ranges(&whole, 10).is_ok());
        for len in [0, 4, 9, 11, u32::MAX] {
            assert!(ranges(&whole, len).is_err(), "{len}");
        }
        assert!(ranges(&whole[..whole.len() - 1], 10).is_err());
        let empty = encoded(&[Op::Copy { start: 0, len: 0 }, Op::New(5)]);
        assert!(ranges(&empty, 5).is_err(), "an empty copy");
        for (start, len) in [(96, 5), (100, 1), (u32::MAX - 9, 5)] {
            let copy = encoded(&[Op::Copy { start, len }]);
            assert!(ranges(&copy, len).is_err(), "a copy of bytes that are not in front of it");
        }
        let before = [10, 1]; // Five bytes from -1 on.
        assert!(ranges(&before, 5).is_err());
    }
}
