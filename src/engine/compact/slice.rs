//! Building a slice: its records become recipes, and what is new in them pieces.
//!
//! A slice is closed before it could be too large for one segment. What is in it so far counts as
//! it will be stored, and what is not compressed yet as it is.

use core::ops::Range;

use crate::engine::compact::find::Finder;
use crate::error::Damage;
use crate::format::codec::{Decoded, len_u32};
use crate::format::frames::block::{BlockBuilder, BlockHead, InSlice};
use crate::format::frames::compression::Compressor;
use crate::format::frames::slice::{MAX_UNIQUE, Op, encode_piece, piece_len};
use crate::format::segments::directory::{MAX_RUN_COST, PIECE_COST};
use crate::format::segments::run_entry::records_cost;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{ExtentSize, FrameHeader, FrameKind};
use crate::types::Lsn;

/// A frame without a place, and its payload.
pub(super) type Packed = (FrameHeader, Vec<u8>);

/// The most records of a block in a slice: who reads one record reads the rows and recipes of all.
const BLOCK_RECORDS: usize = 512;
/// The most ranges of all records of a slice.
const MAX_SPANS: usize = 1 << 20;
/// The most bytes of an op in a recipe, and of a recipe.
const MAX_OP: usize = 10;
const MAX_RECIPE: usize = 1 << 20;
/// If a slice takes less than this part of its records, its pieces are stored twice: most records
/// need most of them, so a sector that cannot be read would cost nearly all.
const TWICE_PART: u64 = 100;

/// A slice that is being built.
#[derive(Debug)]
pub(super) struct SliceBuilder {
    finder: Finder,
    /// The most bytes that the slice may take of a segment.
    most: usize,
    /// The most raw bytes of a block.
    block_raw: usize,
    piece_len: usize,
    slice: Lsn,
    pieces: Vec<Packed>,
    /// How many unique bytes are in pieces.
    cut: usize,
    blocks: Vec<Packed>,
    block: BlockBuilder,
    /// The bytes of the frames so far.
    stored: usize,
    records: u32,
    /// How many of them were read again from their blocks.
    checked: u32,
    /// The ranges of the records of the open block, as they were found.
    ranges: Vec<Range<u32>>,
    /// The lengths of all records.
    bytes: u64,
    ops: Vec<Op>,
}

impl SliceBuilder {
    pub(super) fn new(extent_size: ExtentSize, block_raw: usize) -> Self {
        let extent = extent_size.bytes_u32() as usize;
        let rest = SEGMENT_HEADER_LEN as usize
            + FrameKind::Bind.frame_len(0, MAX_RUN_COST)
            + FrameKind::Seal.frame_len(0, MAX_RUN_COST);
        Self {
            finder: Finder::new(),
            most: (extent - extent / 8).saturating_sub(rest),
            block_raw,
            piece_len: piece_len(extent_size) as usize,
            slice: Lsn(0),
            pieces: Vec::new(),
            cut: 0,
            blocks: Vec::new(),
            block: BlockBuilder::default(),
            stored: 0,
            records: 0,
            checked: 0,
            ranges: Vec::new(),
            bytes: 0,
            ops: Vec::new(),
        }
    }

    /// Forgets all records.
    pub(super) fn clear(&mut self) {
        self.finder.clear();
        (self.pieces, self.blocks, self.block) = Default::default();
        (self.cut, self.stored, self.bytes) = (0, 0, 0);
        (self.records, self.checked) = (0, 0);
        self.ranges.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// Adds a record: a header with its order, sequence, time and lengths, and its kind and
    /// payload. False, and nothing changes, if the slice may become too large.
    pub(super) fn add(
        &mut self,
        record: &FrameHeader,
        bytes: &[u8],
        compressor: &mut Compressor,
    ) -> bool {
        let is_first = self.is_empty();
        if is_first {
            self.slice = record.lsn;
        }
        let before = (self.finder.mark(), self.pieces.len(), self.cut, self.stored);
        let new = len_u32(self.finder.unique().len());
        self.finder.find(bytes, &mut self.ops);
        let mut fits = self.finder.unique().len() <= MAX_UNIQUE && self.finder.spans() <= MAX_SPANS;
        while fits && self.finder.unique().len() - self.cut >= self.piece_len {
            self.cut_piece(record, self.piece_len, compressor);
            fits = self.stored <= self.most;
        }
        let recipe = self.ops.len() * MAX_OP;
        fits = fits && self.len() + recipe <= self.most && recipe <= MAX_RECIPE;
        let ranges = self.ranges.len();
        fits = fits && self.is_made_of(bytes, new);
        if !fits {
            self.finder.go_back(before.0);
            self.pieces.truncate(before.1);
            (self.cut, self.stored) = (before.2, before.3);
            self.ranges.truncate(ranges);
            return false;
        }
        if is_first || !self.block.is_next(record) {
            let own = self.ranges.split_off(ranges);
            self.close_block(compressor);
            self.ranges = own;
        }
        if self.block.is_empty() {
            self.block = BlockBuilder::in_slice(InSlice { slice: self.slice, new });
        }
        self.block.push_in_slice(record, &self.ops);
        if self.block.len() >= BLOCK_RECORDS || self.block.raw_len() >= self.block_raw {
            self.close_block(compressor);
        }
        self.records += 1;
        self.bytes += bytes.len() as u64;
        true
    }

    /// The bytes that the slice takes of a segment, at most.
    fn len(&self) -> usize {
        let frames = FrameKind::Piece.frame_len(0, 1 + self.finder.unique().len() - self.cut)
            + FrameKind::Block.frame_len(0, 64 + self.block.raw_len());
        self.stored + frames + self.listed(self.records + 1, self.pieces.len() + 1)
    }

    /// The bytes that the directory has of this many records and pieces, at most.
    fn listed(&self, records: u32, pieces: usize) -> usize {
        records_cost(records) + (self.blocks.len() + 1) * records_cost(0) + pieces * PIECE_COST
    }

    /// Ends the slice. Its frames, PIECEs first, and their bytes; `None` if the records do not come
    /// back as they were.
    pub(super) fn finish(&mut self, compressor: &mut Compressor) -> Option<(Vec<Packed>, usize)> {
        self.close_block(compressor);
        let rest = self.finder.unique().len() - self.cut;
        if let Some((last, _)) = self.blocks.last().filter(|_| rest > 0) {
            let last = *last;
            self.cut_piece(&last, rest, compressor);
        }
        let is_whole = self.records == self.checked;
        let mut frames = core::mem::take(&mut self.pieces);
        let pieces = frames.len();
        let again: usize = frames.iter().map(|(header, _)| header.frame_len()).sum();
        let is_small = self.stored as u64 * TWICE_PART < self.bytes;
        let listed = self.listed(self.records, 2 * pieces);
        frames.append(&mut self.blocks);
        if is_small && self.stored + again + listed <= self.most {
            frames.extend_from_within(..pieces);
            self.stored += again;
        }
        let stored = self.stored;
        self.clear();
        is_whole.then_some((frames, stored))
    }

    fn close_block(&mut self, compressor: &mut Compressor) {
        let most = self.block.raw_len() + self.block.raw_len() / 64 + 1024;
        if let Some(packed) = self.block.finish(compressor, most) {
            // Records that are not counted as checked keep the slice from being used.
            self.checked += self.check_block(&packed).unwrap_or(0);
            self.stored += packed.0.frame_len();
            self.blocks.push(packed);
        }
        self.ranges.clear();
    }

    fn cut_piece(&mut self, record: &FrameHeader, len: usize, compressor: &mut Compressor) {
        let raw = self.finder.unique().get(self.cut..self.cut + len).unwrap_or_default();
        let (at, run) = ((self.slice, len_u32(self.cut)), (record.run_no, record.at));
        let piece = encode_piece(at, run, raw, compressor);
        self.stored += piece.0.frame_len();
        self.pieces.push(piece);
        self.cut += len;
    }

    /// Whether a record consists of what was found, and notes the ranges. New bytes begin at `new`.
    fn is_made_of(&mut self, record: &[u8], mut new: u32) -> bool {
        let (unique, mut rest) = (self.finder.unique(), record);
        for op in &self.ops {
            let range = match *op {
                Op::New(len) => new..new + len,
                Op::Copy { start, len } => start..start + len,
            };
            if let Op::New(len) = op {
                new += len;
            }
            let bytes = unique.get(range.start as usize..range.end as usize).unwrap_or_default();
            let Some(behind) = rest.strip_prefix(bytes) else { return false };
            rest = behind;
            self.ranges.push(range);
        }
        rest.is_empty()
    }

    /// How many records a block has, if their recipes give the ranges that were found.
    fn check_block(&self, (header, payload): &Packed) -> Decoded<u32> {
        let (mut raw, mut rows, mut found) = (Vec::new(), Vec::new(), Vec::new());
        let (head, compressed) = BlockHead::decode(header, payload)?;
        head.open(header, compressed, &mut raw, &mut rows)?;
        for row in &rows {
            row.each_range(&raw, |range| found.push(range))?;
        }
        if found == self.ranges { Ok(len_u32(rows.len())) } else { Err(Damage::Mismatch) }
    }
}
