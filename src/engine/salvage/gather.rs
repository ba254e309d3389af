//! The frames of some runs, from all segments, and what stands in them. The same record may be in
//! several segments: a compaction copied it, and the segment that it came from was not erased yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::salvage::census::{Census, Contents};
use crate::engine::salvage::locate::Located;
use crate::engine::state::fold::CREATES;
use crate::engine::state::scan::{Lexed, payload_of};
use crate::error::{Damage, Error, Result};
use crate::format::codec::Decoded;
use crate::format::frames::block::{
    BlockHead, BlockRow, MAX_BLOCK_RECORDS, MAX_RECORD, seq_in, unpack_chunk,
};
use crate::format::frames::compression::Unreadable;
use crate::format::frames::frame::{
    Chunks, FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_IMPLICIT, FLAG_LATE, FRAME_HEADER_LEN,
};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{ContentType, Lsn, RunNo, Seq, Timestamp};

/// The place of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    segment: u32,
    offset: u32,
}

/// A frame of a run that is no record.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameAt {
    pub(crate) lsn: Lsn,
    pub(crate) at: Timestamp,
    pub(crate) content: ContentType,
    pub(crate) extra: u32,
    /// Where its payload is, if that checks.
    pub(crate) whole: Option<Spot>,
}

/// A copy of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordAt {
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
    spot: Spot,
    /// Its place in a block.
    rank: Option<u32>,
    is_whole: bool,
}

/// A copy of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkAt {
    first: Lsn,
    number: u32,
    spot: Spot,
}

/// All frames of a run.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The STARTs without IMPLICIT.
    pub(crate) starts: Vec<FrameAt>,
    /// When it was created, if a START says so.
    pub(crate) created: Option<Timestamp>,
    pub(crate) ends: Vec<FrameAt>,
    pub(crate) holds: Vec<FrameAt>,
    pub(crate) records: Vec<RecordAt>,
    chunks: Vec<ChunkAt>,
}

/// A record that was read.
#[derive(Debug)]
pub(crate) struct ReadRecord {
    pub(crate) at: Timestamp,
    pub(crate) content: ContentType,
    pub(crate) is_late: bool,
    kind_len: usize,
    bytes: Vec<u8>,
}

impl ReadRecord {
    /// A record of these bytes, whose kind must be text.
    fn new(header: &FrameHeader, bytes: Vec<u8>) -> Option<Self> {
        let kind_len = usize::from(header.name_len);
        core::str::from_utf8(bytes.get(..kind_len)?).ok()?;
        let is_late = header.flags & FLAG_LATE != 0;
        Some(Self { at: header.at, content: header.content, is_late, kind_len, bytes })
    }

    pub(crate) fn kind(&self) -> &str {
        let kind = self.bytes.get(..self.kind_len).unwrap_or_default();
        core::str::from_utf8(kind).unwrap_or_default()
    }

    pub(crate) fn payload(&self) -> &[u8] {
        self.bytes.get(self.kind_len..).unwrap_or_default()
    }
}

/// Reads frames again, one by one. It keeps the block that it read last.
#[derive(Debug)]
pub(crate) struct Rereader<'l> {
    located: &'l Located,
    block: Option<(Spot, FrameHeader, Vec<BlockRow>)>,
    raw: Vec<u8>,
}

/// The frames of the runs in `wanted`.
pub(crate) fn gather(
    located: &Located,
    census: &Census,
    wanted: &BTreeSet<RunNo>,
) -> Result<BTreeMap<RunNo, Frames>> {
    let mut all: BTreeMap<RunNo, Frames> = BTreeMap::new();
    for (number, found) in (0_u32..).zip(&located.segments) {
        let span = census.spans.get(number as usize).copied().flatten();
        let Some((first, last)) = span.filter(|(first, last)| first <= last) else { continue };
        if wanted.range(first..=last).next().is_none() {
            continue;
        }
        let mut floor = census.floor;
        let contents = Contents::read(located, found, &mut floor)?;
        for lexed in &contents.frames {
            if wanted.contains(&lexed.header.run_no) {
                let frames = all.entry(lexed.header.run_no).or_default();
                frames.add(number, lexed, &contents.bytes)?;
            }
        }
    }
    for frames in all.values_mut() {
        frames.sort();
    }
    Ok(all)
}

impl Frames {
    fn add(&mut self, segment: u32, lexed: &Lexed, extent: &[u8]) -> Result<()> {
        let header = &lexed.header;
        let spot = Spot { segment, offset: header.position.offset };
        let is_whole = lexed.payload.is_ok();
        let frame = || FrameAt {
            lsn: header.lsn,
            at: header.at,
            content: header.content,
            extra: header.extra,
            whole: is_whole.then_some(spot),
        };
        match header.kind {
            FrameKind::Start => {
                if header.extra == CREATES {
                    self.created.get_or_insert(header.at);
                }
                if header.flags & FLAG_IMPLICIT == 0 {
                    self.starts.push(frame());
                }
            }
            FrameKind::End => self.ends.push(frame()),
            FrameKind::Hold => self.holds.push(frame()),
            FrameKind::Record => {
                let (seq, lsn) = (header.seq, header.lsn);
                self.records.push(RecordAt { seq, lsn, spot, rank: None, is_whole });
            }
            FrameKind::Block => {
                self.add_block(spot, header, payload_of(extent, header), is_whole)?;
            }
            FrameKind::Chunk if is_whole => {
                let first = if header.extra == 0 { header.lsn } else { Lsn(header.seq.0) };
                self.chunks.push(ChunkAt { first, number: header.extra, spot });
            }
            _ => {}
        }
        Ok(())
    }

    /// The records of a block; of one that is damaged only that they were there.
    fn add_block(
        &mut self,
        spot: Spot,
        header: &FrameHeader,
        payload: &[u8],
        is_whole: bool,
    ) -> Result<()> {
        let (mut raw, mut rows) = (Vec::new(), Vec::new());
        let is_open = is_whole && open_block(header, payload, &mut raw, &mut rows)?;
        let count = header.extra.min(MAX_BLOCK_RECORDS);
        for rank in 0..count {
            let row = rows.get(rank as usize).filter(|_| is_open);
            let lsn = row.map_or(header.lsn, |row| row.lsn);
            let (seq, is_whole) = (seq_in(header, rank), row.is_some());
            self.records.push(RecordAt { seq, lsn, spot, rank: Some(rank), is_whole });
        }
        Ok(())
    }

    fn sort(&mut self) {
        // Of several STARTs the one with the smallest time counts, of the others the last; and of
        // copies one that is whole.
        let is_whole = |frame: &FrameAt| frame.whole.is_some();
        self.starts.sort_by_key(|frame| (frame.at, !is_whole(frame)));
        for frames in [&mut self.ends, &mut self.holds] {
            frames.sort_by_key(|frame| (frame.lsn, is_whole(frame)));
        }
        self.records.sort_unstable();
        self.chunks.sort_unstable();
    }
}

/// Opens a block; answers whether it checks.
fn open_block(
    header: &FrameHeader,
    payload: &[u8],
    raw: &mut Vec<u8>,
    rows: &mut Vec<BlockRow>,
) -> Result<bool> {
    let opened = BlockHead::decode(header, payload)
        .map_err(Unreadable::from)
        .and_then(|(head, compressed)| head.open(header, compressed, raw, rows));
    is_read(opened)
}

/// Whether compressed bytes could be read. Bytes that this build cannot read are not damaged.
fn is_read(result: Result<(), Unreadable>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Unreadable::Damaged(_)) => Ok(false),
        Err(Unreadable::NeedsFeature(feature)) => Err(Error::NeedsFeature { feature }),
    }
}

impl<'l> Rereader<'l> {
    pub(crate) fn new(located: &'l Located) -> Self {
        Self { located, block: None, raw: Vec::new() }
    }

    /// The frame at a place, if it checks.
    fn frame(&self, spot: Spot) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let Some(found) = self.located.segments.get(spot.segment as usize) else {
            return Ok(None);
        };
        let (disk, at) = (&self.located.disk, found.at + u64::from(spot.offset));
        let head = disk.read_padded(at, FRAME_HEADER_LEN)?;
        let Ok(header) = FrameHeader::decode_with(&head, &found.check, spot.offset) else {
            return Ok(None);
        };
        let room = self.located.extent_size.bytes().saturating_sub(spot.offset.into());
        let len = header.frame_len();
        if len as u64 > room {
            return Ok(None);
        }
        let mut bytes = disk.read_padded(at + FRAME_HEADER_LEN as u64, len - FRAME_HEADER_LEN)?;
        let is_whole = header.check_payload(&found.check, &bytes).is_ok();
        bytes.truncate(header.payload_len as usize);
        Ok(is_whole.then_some((header, bytes)))
    }

    /// The payload of a frame that is no record.
    pub(crate) fn payload(&self, frame: &FrameAt) -> Result<Option<Vec<u8>>> {
        let Some(spot) = frame.whole else { return Ok(None) };
        Ok(self.frame(spot)?.map(|(_, payload)| payload))
    }

    /// The record that these are copies of; `None` if none of them can be read. Recovery may have
    /// given the number of a record that was never durable to a later one: only that counts.
    pub(crate) fn record(
        &mut self,
        frames: &Frames,
        copies: &[RecordAt],
    ) -> Result<Option<ReadRecord>> {
        let latest = copies.iter().map(|copy| copy.lsn).max();
        for copy in copies.iter().filter(|copy| copy.is_whole && Some(copy.lsn) == latest) {
            let read = match copy.rank {
                Some(rank) => self.record_in_block(copy.spot, rank)?,
                None => self.record_in_frame(frames, copy.spot)?,
            };
            if read.is_some() {
                return Ok(read);
            }
        }
        Ok(None)
    }

    fn record_in_frame(&self, frames: &Frames, spot: Spot) -> Result<Option<ReadRecord>> {
        let Some((header, payload)) = self.frame(spot)? else { return Ok(None) };
        if header.flags & FLAG_CHUNKS == 0 {
            return Ok(ReadRecord::new(&header, payload));
        }
        let whole = self.join_chunks(frames, &header, payload)?;
        Ok(whole.and_then(|bytes| ReadRecord::new(&header, bytes)))
    }

    /// The kind of a record in chunks, and the bytes of its chunks.
    fn join_chunks(
        &self,
        frames: &Frames,
        header: &FrameHeader,
        mut payload: Vec<u8>,
    ) -> Result<Option<Vec<u8>>> {
        let kind_len = usize::from(header.name_len);
        let row = payload.get(kind_len..).ok_or(Damage::Truncated).and_then(Chunks::decode);
        let Ok(Chunks { first, count }) = row else { return Ok(None) };
        if header.extra > MAX_RECORD {
            return Ok(None);
        }
        payload.truncate(kind_len);
        let whole = kind_len + header.extra as usize;
        for number in 0..count {
            if !self.append_chunk(frames, (first, number), header, whole, &mut payload)? {
                return Ok(None);
            }
        }
        Ok((payload.len() == whole).then_some(payload))
    }

    /// Appends the bytes of a chunk, from the first copy that can be read; answers whether there is
    /// one. No more than `whole` bytes result.
    fn append_chunk(
        &self,
        frames: &Frames,
        (first, number): (Lsn, u32),
        record: &FrameHeader,
        whole: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<bool> {
        let place = |chunk: &ChunkAt| (chunk.first, chunk.number) < (first, number);
        let from = frames.chunks.partition_point(place);
        let copies = frames.chunks.get(from..).unwrap_or_default().iter();
        for copy in copies.take_while(|chunk| (chunk.first, chunk.number) == (first, number)) {
            let Some((chunk, stored)) = self.frame(copy.spot)? else { continue };
            let (len, room) = (bytes.len(), whole.saturating_sub(bytes.len()));
            if chunk.lsn >= record.lsn {
                continue;
            }
            if chunk.flags & FLAG_COMPRESSED == 0 {
                if stored.len() > room {
                    continue;
                }
                bytes.extend_from_slice(&stored);
                return Ok(true);
            }
            if is_read(unpack_chunk(&stored, room as u64, bytes))? {
                return Ok(true);
            }
            bytes.truncate(len);
        }
        Ok(false)
    }

    fn record_in_block(&mut self, spot: Spot, rank: u32) -> Result<Option<ReadRecord>> {
        if self.block.as_ref().is_none_or(|(known, ..)| *known != spot) {
            self.block = None;
            let Some((header, payload)) = self.frame(spot)? else { return Ok(None) };
            let mut rows = Vec::new();
            if !open_block(&header, &payload, &mut self.raw, &mut rows)? {
                return Ok(None);
            }
            self.block = Some((spot, header, rows));
        }
        let Some((_, block, rows)) = &self.block else { return Ok(None) };
        let Some(row) = rows.get(rank as usize) else { return Ok(None) };
        let bytes: Decoded<&[u8]> = row.bytes(&self.raw);
        Ok(bytes.ok().and_then(|bytes| ReadRecord::new(&row.header(block, rank), bytes.to_vec())))
    }
}
