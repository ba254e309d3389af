//! Compressing ended runs on their way into the outputs: records become blocks, and chunks of large
//! records are compressed each by itself. Everything else stays unchanged.
//!
//! - A block has records of one run that follow one another. So a run dies as a whole, and blocks
//!   can be moved unchanged.
//! - Data that does not shrink by a tenth is marked as tried, and is not tried again.

use std::collections::HashSet;

use crate::engine::compact::gather::{Found, Gathered};
use crate::format::frames::block::{BLOCK_RAW, BlockBuilder, pack_chunk};
use crate::format::frames::compression::Compressor;
use crate::format::frames::frame::{FLAG_CHUNKS, FLAG_COMPRESSED, FLAG_DOCUMENT, FLAG_PLAIN};
use crate::format::{ExtentSize, FrameHeader, FrameKind};
use crate::types::RunNo;

/// The part of its length by which data must shrink to be worth compressing.
const GAIN_PART: usize = 10;

/// Compresses the frames of these runs, in place, until it is to stop. Then not all are.
pub(super) fn pack(
    gathered: &mut Gathered,
    ended: &HashSet<RunNo>,
    compressor: &mut Compressor,
    (extent_size, is_stopping): (ExtentSize, impl Fn() -> bool),
) {
    // So that several blocks fit the smallest extents.
    let most = BLOCK_RAW.min(extent_size.bytes_u32() as usize / 4);
    let mut packed = Vec::new();
    let mut runs = core::mem::take(&mut gathered.runs);
    for run in runs.iter_mut().filter(|run| ended.contains(&run.run_no)) {
        let mut packing = Packing {
            gathered,
            compressor,
            most,
            block: BlockBuilder::default(),
            waiting: Vec::new(),
            done: Vec::with_capacity(run.frames.len()),
            packed: &mut packed,
        };
        for found in &run.frames {
            if is_stopping() {
                break;
            }
            packing.add(*found);
        }
        packing.close();
        run.frames = packing.done;
    }
    gathered.runs = runs;
    gathered.packed = packed;
}

/// One run that is being compressed.
struct Packing<'a> {
    gathered: &'a Gathered,
    compressor: &'a mut Compressor,
    most: usize,
    /// The block that is being filled, and its frames.
    block: BlockBuilder,
    waiting: Vec<Found>,
    done: Vec<Found>,
    packed: &'a mut Vec<Vec<u8>>,
}

impl Packing<'_> {
    fn add(&mut self, found: Found) {
        let header = &found.header;
        match header.kind {
            _ if header.flags & (FLAG_DOCUMENT | FLAG_PLAIN | FLAG_COMPRESSED) != 0 => {
                self.close();
                self.done.push(found);
            }
            FrameKind::Record if header.flags & FLAG_CHUNKS != 0 => {
                self.close();
                self.done.push(plain(found));
            }
            FrameKind::Record => {
                if !self.block.takes(header, self.most) {
                    self.close();
                }
                self.block.push(header, self.gathered.payload(&found));
                self.waiting.push(found);
            }
            FrameKind::Chunk => {
                self.close();
                let chunk = self.chunk(&found);
                self.done.push(chunk);
            }
            _ => {
                self.close();
                self.done.push(found);
            }
        }
    }

    /// Ends the block that is being filled: the waiting records become one frame, or stay.
    fn close(&mut self) {
        let Some(first) = self.waiting.first().copied() else { return };
        let plainly: usize = self.waiting.iter().map(|found| found.header.frame_len()).sum();
        let most = (plainly - plainly / GAIN_PART).saturating_sub(FrameKind::Block.frame_len(0, 0));
        match self.block.finish(self.compressor, most) {
            Some((header, payload)) => {
                self.waiting.clear();
                self.keep(first, header, payload);
            }
            None => self.done.extend(self.waiting.drain(..).map(plain)),
        }
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

    fn keep(&mut self, first: Found, mut header: FrameHeader, payload: Vec<u8>) {
        header.position = first.header.position;
        let packed = Some(self.packed_as(payload));
        self.done.push(Found { header, packed, ..first });
    }

    fn packed_as(&mut self, payload: Vec<u8>) -> usize {
        self.packed.push(payload);
        self.packed.len() - 1
    }
}

/// A frame that stays as it is, marked as tried.
fn plain(mut found: Found) -> Found {
    found.header.flags |= FLAG_PLAIN;
    found
}
