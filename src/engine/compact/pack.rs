//! Compressing ended runs on their way into the outputs: the records of a short run become a block,
//! those of a long one slices. Everything else stays unchanged.
//!
//! - Blocks and slices have records of one run. So a run dies as a whole, and they can be moved
//!   unchanged.
//! - What does not shrink is marked as tried, and is not tried again. Chunks of records that are in
//!   no slice are compressed each by itself.

use std::collections::HashSet;

use crate::engine::compact::gather::{Found, Gathered};
use crate::engine::compact::slice::SliceBuilder;
use crate::format::codec::len_u32;
use crate::format::frames::block::{BLOCK_RAW, BlockBuilder, pack_chunk};
use crate::format::frames::compression::Compressor;
use crate::format::frames::frame::{
    Chunks, FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_DOCUMENT, FLAG_PLAIN,
};
use crate::format::{ExtentSize, FrameHeader, FrameKind};
use crate::types::{Lsn, RunNo};

/// The part of its length by which a block or chunk must shrink to be worth it.
const GAIN_PART: usize = 10;
/// The length of a block's header.
const HEADER: usize = FrameKind::Block.frame_len(0, 0);

/// Compresses the frames of these runs, in place, until it is to stop. Then not all are. False if
/// it stopped since there are more than `limit` compressed bytes.
pub(super) fn pack(
    gathered: &mut Gathered,
    ended: &HashSet<RunNo>,
    compressor: &mut Compressor,
    (extent_size, limit, is_stopping): (ExtentSize, usize, impl Fn() -> bool),
) -> bool {
    // So that several blocks fit the smallest extents.
    let most = BLOCK_RAW.min(extent_size.bytes_u32() as usize / 4);
    let (mut packed, mut slice) = (Vec::new(), SliceBuilder::new(extent_size, most));
    let (mut runs, mut bytes) = (core::mem::take(&mut gathered.runs), 0);
    for run in runs.iter_mut().filter(|run| ended.contains(&run.run_no)) {
        let mut packing = Packing {
            gathered,
            compressor,
            most,
            block: BlockBuilder::default(),
            slice: &mut slice,
            waiting: Vec::new(),
            chunks: Vec::new(),
            done: Vec::with_capacity(run.frames.len()),
            packed: &mut packed,
            bytes,
        };
        for found in &run.frames {
            if is_stopping() || packing.bytes > limit {
                break;
            }
            packing.add(*found);
        }
        (run.frames, bytes) = packing.finish();
    }
    gathered.runs = runs;
    gathered.packed = packed;
    bytes <= limit
}

/// One run that is being compressed.
struct Packing<'a> {
    gathered: &'a Gathered,
    compressor: &'a mut Compressor,
    most: usize,
    /// The block that is being filled. What is too long for one block becomes a slice.
    block: BlockBuilder,
    slice: &'a mut SliceBuilder,
    /// The frames of the records in the block or slice.
    waiting: Vec<Found>,
    /// Chunks whose record was not found yet.
    chunks: Vec<Found>,
    /// The frames as they will be, and their places among those of the run.
    done: Vec<(Lsn, Found)>,
    packed: &'a mut Vec<Vec<u8>>,
    /// The bytes of all that was compressed.
    bytes: usize,
}

impl Packing<'_> {
    fn add(&mut self, found: Found) {
        let header = &found.header;
        match header.kind {
            _ if header.flags & (FLAG_DOCUMENT | FLAG_PLAIN | FLAG_COMPRESSED) != 0 => {
                self.keep(found);
            }
            FrameKind::Record if header.flags & FLAG_CHUNKS != 0 => self.add_large(found),
            FrameKind::Record => {
                let gathered = self.gathered;
                self.add_record(header, gathered.payload(&found), &[found]);
            }
            FrameKind::Chunk => self.chunks.push(found),
            _ => self.keep(found),
        }
    }

    /// Adds a record in chunks, if all of them are here. Otherwise each stays a frame.
    fn add_large(&mut self, found: Found) {
        let gathered = self.gathered;
        let payload = gathered.payload(&found);
        let kind = payload.get(..usize::from(found.header.name_len)).unwrap_or_default();
        let row = Chunks::decode(payload.get(kind.len()..).unwrap_or_default());
        let first = row.as_ref().map_or(Lsn(0), |row| row.first);
        let is_of_row = |chunk: &mut Found| {
            let header = &chunk.header;
            header.lsn == first || (header.extra > 0 && header.seq.0 == first.0)
        };
        let mut frames: Vec<Found> = self.chunks.extract_if(.., is_of_row).collect();
        let numbers = frames.iter().map(|chunk| chunk.header.extra);
        let is_whole = row.is_ok_and(|row| numbers.eq(0..row.count));
        // Each payload was checked when it was gathered.
        let (mut bytes, mut crc) = (kind.to_vec(), crc32fast::Hasher::new());
        crc.update(kind);
        for chunk in &frames {
            let payload = gathered.payload(chunk);
            let of_payload = (chunk.header.payload_crc, payload.len() as u64);
            crc.combine(&crc32fast::Hasher::new_with_initial_len(of_payload.0, of_payload.1));
            bytes.extend_from_slice(payload);
        }
        if !is_whole || bytes.len() != kind.len() + found.header.extra as usize {
            self.chunks.append(&mut frames);
            self.keep(plain(found));
            return;
        }
        let mut header = FrameHeader { flags: found.header.flags & !FLAG_CHUNKS, ..found.header };
        (header.payload_crc, header.payload_len) = (crc.finalize(), len_u32(bytes.len()));
        frames.push(found);
        self.add_record(&header, &bytes, &frames);
    }

    /// Adds a record, which is in these frames.
    fn add_record(&mut self, header: &FrameHeader, bytes: &[u8], frames: &[Found]) {
        if self.slice.is_empty() {
            if !self.block.is_next(header) {
                self.close();
            }
            if bytes.len() <= self.most && self.block.takes(header, self.most) {
                self.block.push(header, bytes);
                self.waiting.extend_from_slice(frames);
                return;
            }
            let mut waiting = self.block.records();
            if !waiting.all(|(header, bytes)| self.slice.add(header, bytes, self.compressor)) {
                drop(waiting);
                self.slice.clear();
                self.close();
            }
        }
        if !self.slice.add(header, bytes, self.compressor) {
            self.close();
            if !self.slice.add(header, bytes, self.compressor) {
                for found in frames {
                    self.leave(*found);
                }
                return;
            }
        }
        self.waiting.extend_from_slice(frames);
    }

    /// Ends the block or slice that is being filled: the waiting records become fewer bytes, or
    /// stay.
    fn close(&mut self) {
        let Some(first) = self.waiting.first().copied() else { return };
        let plainly: usize = self.waiting.iter().map(|found| found.header.frame_len()).sum();
        let frames = if self.slice.is_empty() {
            let most = (plainly - plainly / GAIN_PART).saturating_sub(HEADER);
            self.block.finish(self.compressor, most).map(|frame| vec![frame])
        } else {
            self.block = BlockBuilder::default();
            let frames = self.slice.finish(self.compressor);
            frames.filter(|(_, stored)| *stored < plainly).map(|(frames, _)| frames)
        };
        let place = frames.iter().flatten().map(|(header, _)| header.lsn).min().unwrap_or_default();
        let waiting = core::mem::take(&mut self.waiting);
        match frames {
            Some(frames) => {
                // All frames of a slice are where its first record was.
                for (mut header, payload) in frames {
                    header.position = first.header.position;
                    let packed = Some(self.packed_as(payload));
                    self.done.push((place, Found { header, packed, ..first }));
                }
            }
            None => waiting.into_iter().for_each(|found| self.leave(found)),
        }
    }

    /// Keeps a frame by itself: a chunk may be compressed.
    fn leave(&mut self, found: Found) {
        let is_chunk = found.header.kind == FrameKind::Chunk;
        let found = if is_chunk { self.chunk(&found) } else { plain(found) };
        self.done.push((found.header.lsn, found));
    }

    /// All frames, in the order of the log, and the bytes of all that was compressed.
    fn finish(mut self) -> (Vec<Found>, usize) {
        self.close();
        for chunk in core::mem::take(&mut self.chunks) {
            self.leave(chunk);
        }
        self.done.sort_by_key(|(place, _)| *place);
        (self.done.into_iter().map(|(_, found)| found).collect(), self.bytes)
    }

    /// Keeps a frame as it is.
    fn keep(&mut self, found: Found) {
        self.done.push((self.gathered.place_of(&found), found));
    }

    fn chunk(&mut self, found: &Found) -> Found {
        let (raw, crc) = (self.gathered.payload(found), found.header.payload_crc);
        let most = raw.len() - raw.len() / GAIN_PART;
        let Some(payload) = pack_chunk(self.compressor, raw, crc, most) else {
            return plain(*found);
        };
        let header = FrameHeader {
            flags: found.header.flags | FLAG_COMPRESSED,
            payload_len: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            payload_crc: crc32fast::hash(&payload),
            ..found.header
        };
        Found { header, packed: Some(self.packed_as(payload)), ..*found }
    }

    fn packed_as(&mut self, payload: Vec<u8>) -> usize {
        self.bytes += payload.len();
        self.packed.push(payload);
        self.packed.len() - 1
    }
}

/// A frame that stays as it is, marked as tried.
fn plain(mut found: Found) -> Found {
    found.header.flags |= FLAG_PLAIN;
    found
}
