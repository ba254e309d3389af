//! Reading compressed data: the records of blocks, and chunks of large records. A trace has one
//! block open at a time, in a buffer that the next block reuses unless a record of it is kept.

pub(crate) mod unique;

use std::sync::Arc;

use crate::engine::read::block::unique::Unique;
use crate::engine::state::payload::CheckedFrame;
use crate::engine::state::run_slice::{Opened, RunSlice, Spot};
use crate::engine::state::segment::Segment;
use crate::error::{Corruption, Damage, Error, Place, Result};
use crate::format::frames::block::{
    BlockHead, BlockRow, InSlice, MAX_BLOCK_RECORDS, MAX_CHUNK_RAW, MAX_RECORD, seq_in,
    unpack_chunk,
};
use crate::format::frames::frame::{Chunks, FLAG_COMPRESSED};
use crate::format::frames::slice::PieceAt;
use crate::format::{FrameHeader, FrameKind};
use crate::types::Seq;

/// The block that a trace is reading.
#[derive(Debug, Default)]
pub(crate) struct OpenBlock {
    /// Where its first record is.
    first: Spot,
    block: Option<FrameHeader>,
    rows: Vec<BlockRow>,
    raw: Arc<Vec<u8>>,
    /// The bytes of its slice.
    unique: Unique,
}

impl OpenBlock {
    /// The index of a record in this block; `None` if the record is not in it.
    #[inline]
    pub(crate) fn rank(&self, spot: Spot) -> Option<u32> {
        let rank = spot.index.checked_sub(self.first.index)?;
        (spot.part == self.first.part && (rank as usize) < self.rows.len()).then_some(rank)
    }

    /// Opens the block in a checked frame, and returns its record at `spot`.
    #[cold]
    pub(crate) fn open(
        &mut self,
        part: &RunSlice,
        Spot { part: number, index }: Spot,
        frame: CheckedFrame,
    ) -> Result<CheckedFrame> {
        self.rows.clear();
        let header = frame.header;
        let offset = header.position.offset;
        let first = part.first_at(offset, index)?;
        let asked = seq_in(&header, index - first);
        let damaged = |damage| damaged_record(&part.segment, offset, asked, damage);
        if !is_listed(part, index, first, &header)? {
            return Err(damaged(Damage::Mismatch));
        }
        let payload = part.segment.look(frame);
        let (head, compressed) = BlockHead::decode(&header, &payload).map_err(damaged)?;
        if Arc::get_mut(&mut self.raw).is_none() {
            self.raw = Arc::default();
        }
        let Some(raw) = Arc::get_mut(&mut self.raw) else { return Err(Error::Poisoned) };
        (self.first, self.block) = (Spot { part: number, index: first }, Some(header));
        if let Err(damage) = head.open(&header, compressed, raw, &mut self.rows) {
            self.rows.clear();
            return Err(damaged(damage));
        }
        if let Some(InSlice { slice, .. }) = head.slice {
            let list = || part.segment.in_directory(|directory| directory.pieces().collect());
            if let Err(error) = self.unique.choose(&part.segment, slice, list) {
                self.rows.clear();
                return Err(error);
            }
        }
        self.record(&part.segment, index - first)
    }

    /// Checks a record of this block. The returned frame has the kind of a block, and the record's
    /// bytes or, in `extra`, their offset.
    #[inline]
    pub(crate) fn record(&mut self, segment: &Segment, rank: u32) -> Result<CheckedFrame> {
        let found = self.block.as_ref().zip(self.rows.get(rank as usize));
        let (block, row) = found.ok_or(Error::Poisoned)?;
        let seq = seq_in(block, rank);
        let damaged = |damage| damaged_record(segment, block.position.offset, seq, damage);
        let mut header = row.header(block, rank);
        (header.kind, header.extra) = (FrameKind::Block, row.start);
        if row.recipe.is_some() {
            let bytes = self.unique.record(segment, (row, &self.raw), damaged);
            let bytes = bytes.map_err(|error| match error {
                Error::Corrupt(corruption) => Error::Corrupt(corruption.at(Some(seq))),
                error => error,
            })?;
            return Ok(CheckedFrame::with_copy(header, bytes));
        }
        row.bytes(&self.raw).map_err(damaged)?;
        Ok(CheckedFrame::without_copy(header))
    }

    /// The bytes of a record that [`OpenBlock::record`] checked.
    pub(crate) fn look(&self, header: &FrameHeader) -> &[u8] {
        let rest = self.raw.get(header.extra as usize..).unwrap_or_default();
        rest.get(..header.payload_len as usize).unwrap_or_default()
    }

    /// All bytes of the block, for records that are kept.
    pub(crate) fn raw(&self) -> &Arc<Vec<u8>> {
        &self.raw
    }
}

impl Opened {
    /// The kind and the payload of a record in chunks.
    #[cold]
    pub(crate) fn gather(&self, header: &FrameHeader, stored: &[u8]) -> Result<Vec<u8>> {
        let gathered = gather_chunks(self, header, stored);
        gathered.map_err(|error| self.named(error, Some(header.seq)))
    }
}

/// The kind and the payload of a record in chunks.
fn gather_chunks(opened: &Opened, header: &FrameHeader, stored: &[u8]) -> Result<Vec<u8>> {
    let wrong = |damage| Error::corrupt(Place::Frame(header.position), damage);
    let (name, said) = stored
        .split_at_checked(usize::from(header.name_len))
        .ok_or_else(|| wrong(Damage::Truncated))?;
    if header.extra > MAX_RECORD {
        let (found, max) = (header.extra.into(), MAX_RECORD.into());
        return Err(wrong(Damage::OutOfRange { found, max }));
    }
    let row = find_row(opened, header, Chunks::decode(said).map_err(wrong)?)?;
    let whole = name.len() + header.extra as usize;
    // Limits the length in the frame to what the chunks can contain.
    let most = row.iter().map(|(_, chunk)| match chunk.flags & FLAG_COMPRESSED {
        0 => chunk.payload_len as usize,
        _ => MAX_CHUNK_RAW as usize,
    });
    let mut bytes = Vec::with_capacity(whole.min(name.len() + most.sum::<usize>()));
    bytes.extend_from_slice(name);
    for (part, chunk) in row {
        let room = whole - bytes.len();
        let stored = part.segment.read_payload(&chunk)?;
        if chunk.flags & FLAG_COMPRESSED != 0 {
            let damaged = |damage| part.segment.damaged(chunk.position.offset, damage);
            unpack_chunk(&stored, room as u64, &mut bytes).map_err(damaged)?;
        } else if stored.len() <= room {
            bytes.extend_from_slice(&stored);
        } else {
            return Err(wrong(Damage::Mismatch));
        }
    }
    if bytes.len() == whole { Ok(bytes) } else { Err(wrong(Damage::Mismatch)) }
}

/// The chunks of a record. A slice has those of one record, and its order is that of the first.
fn find_row<'p>(
    opened: &'p Opened,
    record: &FrameHeader,
    chunks: Chunks,
) -> Result<Vec<(&'p RunSlice, FrameHeader)>> {
    let missing = || Error::corrupt(Place::Frame(record.position), Damage::Missing);
    let mut parts = opened.with_chunks_from(chunks.first).ok_or_else(missing)?;
    let (mut part, mut index) = (parts.next().ok_or_else(missing)?, 0);
    let mut row = Vec::new();
    for number in 0..chunks.count {
        if index >= part.chunks {
            (part, index) = (parts.next().ok_or_else(missing)?, 0);
        }
        let chunk = part.chunk(index)?;
        let is_of_row = match number {
            0 => chunk.lsn == chunks.first,
            _ => chunk.seq.0 == chunks.first.0,
        };
        let is_next = chunk.kind == FrameKind::Chunk && chunk.extra == number;
        if !is_next || !is_of_row || chunk.run_no != record.run_no || chunk.lsn >= record.lsn {
            return Err(Error::corrupt(Place::Frame(chunk.position), Damage::Mismatch));
        }
        row.push((part, chunk));
        index += 1;
    }
    Ok(row)
}

/// Whether the directory lists a block, from `first` on, as often as it has records, and `index` is
/// one of them.
fn is_listed(part: &RunSlice, index: u32, first: u32, block: &FrameHeader) -> Result<bool> {
    let end = first.saturating_add(block.extra);
    let here =
        |at: u32| Ok::<_, Error>(at < part.records && part.offset(at)? == block.position.offset);
    Ok(index < end && here(first)? && here(end - 1)? && !here(end)?)
}

/// The error for one record of the block at `offset`.
#[cold]
fn damaged_record(segment: &Segment, offset: u32, seq: Seq, damage: Damage) -> Error {
    let place = Place::Frame(segment.position(offset));
    Error::Corrupt(Corruption::new(place, damage).at(Some(seq)))
}

/// All damage within a frame with a valid payload: for a block, each record that cannot be read.
/// `pieces` are all PIECEs of the segment.
pub(crate) fn inner_damage(
    segment: &Segment,
    (header, payload): (&FrameHeader, &[u8]),
    pieces: &[PieceAt],
    unique: &mut Unique,
) -> Result<Vec<(Option<Seq>, Damage)>> {
    let (mut raw, mut rows, mut slice) = (Vec::new(), Vec::new(), None);
    let opened = match header.kind {
        FrameKind::Chunk if header.flags & FLAG_COMPRESSED != 0 => {
            unpack_chunk(payload, u64::MAX, &mut raw)
        }
        FrameKind::Block => BlockHead::decode(header, payload).and_then(|(head, compressed)| {
            slice = head.slice;
            head.open(header, compressed, &mut raw, &mut rows)
        }),
        _ => Ok(()),
    };
    match opened {
        Err(damage) if header.kind == FrameKind::Block => {
            return Ok(each_record(header, damage).collect());
        }
        Err(damage) => return Ok(vec![(None, damage)]),
        Ok(()) => {}
    }
    let mut found = Vec::new();
    if let Some(InSlice { slice, .. }) = slice {
        unique.choose(segment, slice, || Ok(pieces.to_vec()))?;
    }
    for (rank, row) in (0..).zip(&rows) {
        let damage = if slice.is_none() {
            row.bytes(&raw).err()
        } else {
            let damaged = |damage| segment.damaged(header.position.offset, damage);
            match unique.record(segment, (row, &raw), damaged) {
                Ok(_) => None,
                Err(Error::Corrupt(corruption)) => Some(corruption.damage),
                Err(error) => return Err(error),
            }
        };
        found.extend(damage.map(|damage| (Some(seq_in(header, rank)), damage)));
    }
    Ok(found)
}

/// Damage that affects all records of a block.
pub(crate) fn each_record(
    block: &FrameHeader,
    damage: Damage,
) -> impl Iterator<Item = (Option<Seq>, Damage)> {
    let count = if block.extra > MAX_BLOCK_RECORDS { 1 } else { block.extra };
    (0..count.max(1)).map(move |rank| (Some(seq_in(block, rank)), damage))
}
