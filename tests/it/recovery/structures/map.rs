//! Where the structures of a store are, and the fields of each, as docs/FORMAT.md has them.

use runlog::format::frames::eviction::EVICTION_ITEM_LEN;
use runlog::format::frames::frame::{FLAG_CHUNKS, FLAG_COMPRESSED, FRAME_HEADER_LEN};
use runlog::format::map::manifest::{AREA_HEADER_LEN, AreaHeader, RECORD_LEN};
use runlog::format::segments::directory::{DIRECTORY_HEADER_LEN, HASH_LEN, RUN_ENTRY_LEN};
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{
    EXTENTS_AT, FrameHeader, FrameKind, MANIFEST_AREA_LEN, MANIFEST_AT, OWNER_AT, SUPERBLOCK_AT,
    SegmentKey,
};

/// The extents of all stores here.
pub(crate) const EXTENT: usize = 64 << 10;
const PAGE: usize = 4096;

/// What a structure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    StaticHeader,
    Superblock,
    Owner,
    AreaHeader,
    /// A record of a manifest, or the zeros where the next ones go.
    Record,
    SegmentHeader,
    /// The header of a frame, by its type.
    Frame(u8),
    /// The payload of BIND and START, and of a RECORD in chunks behind its kind.
    Ids,
    Chunks,
    Eviction,
    Origin,
    BlockHead,
    /// What a block becomes.
    BlockRows,
    ChunkHead,
    DirectoryHeader,
    RunEntry,
    Hash,
    DirectoryEviction,
    Offsets,
    /// Bytes that mean nothing but themselves.
    Bytes,
    /// An extent without a segment: of the index, free, or of the manifest.
    Extent,
}

/// A structure: its fields are `widths` bytes long each, again and again up to `len`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Structure {
    pub(crate) kind: Kind,
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Which structure its checksum is in, if not itself: the header of the area, the frame.
    pub(crate) within: Option<usize>,
    pub(crate) widths: &'static [u8],
}

impl Structure {
    /// The place of a field, which is counted modulo how many there are.
    pub(crate) fn field(&self, number: usize) -> (usize, usize) {
        let total: usize = self.widths.iter().map(|&width| usize::from(width)).sum();
        let whole = self.len / total;
        let count = (whole * self.widths.len()).max(1);
        let number = number % count;
        let mut at = self.at + number / self.widths.len() * total;
        for &width in &self.widths[..number % self.widths.len()] {
            at += usize::from(width);
        }
        (at, usize::from(self.widths[number % self.widths.len()]))
    }
}

/// The map of a store.
#[derive(Debug, Default)]
pub(crate) struct Map {
    pub(crate) structures: Vec<Structure>,
    /// The structures of each kind.
    pub(crate) kinds: Vec<Vec<usize>>,
    /// The segments that take frames: the start of the extent, and where the last frame ends.
    pub(crate) open: Vec<(usize, usize)>,
}

const STATIC_HEADER: &[u8] = &[8, 8, 4, 4, 8, 8, 8, 8, 1, 7, 8, 8];
const SUPERBLOCK: &[u8] =
    &[8, 8, 8, 1, 3, 4, 8, 4, 4, 8, 8, 8, 8, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8];
const OWNER: &[u8] = &[8, 4, 2, 2, 8, 8];
const AREA_HEADER: &[u8] = &[8, 8, 8, 8, 8, 4, 8, 8];
const RECORD: &[u8] = &[1, 1, 1, 1, 4, 4, 8, 4, 4, 4, 4];
const SEGMENT_HEADER: &[u8] = &[8, 8, 8, 4, 1, 3, 8, 8, 8, 4];
const FRAME: &[u8] = &[4, 4, 1, 1, 1, 1, 4, 4, 8, 8, 8, 8, 4, 4, 4, 4];
const IDS: &[u8] = &[2, 2, 1, 1, 1, 1];
const CHUNKS: &[u8] = &[8, 4, 4];
const EVICTION: &[u8] = &[8, 8, 8, 2, 2, 1, 1, 2];
const ORIGIN: &[u8] = &[4, 2, 1, 1, 4, 4];
const BLOCK_HEAD: &[u8] = &[1, 3, 4, 4, 4, 8, 8, 4];
const CHUNK_HEAD: &[u8] = &[1, 3, 4, 4];
const DIRECTORY_HEADER: &[u8] = &[8, 4, 4, 4, 4, 8, 8, 8, 8, 8];
const RUN_ENTRY: &[u8] =
    &[8, 8, 8, 4, 4, 2, 1, 1, 4, 8, 4, 4, 8, 8, 8, 8, 8, 8, 4, 2, 2, 4, 8, 4, 8];
const HASH: &[u8] = &[4, 4];
const DIRECTORY_EVICTION: &[u8] = &[8, 4, 4];

/// How many records behind the last one of a manifest belong to its map.
const NEXT_RECORDS: usize = 4;

impl Map {
    /// The map of a file.
    pub(crate) fn of(file: &[u8]) -> Self {
        let mut map = Self::default();
        map.add(Kind::StaticHeader, 0, 80, None, STATIC_HEADER);
        for slot in 0..2 {
            let at = SUPERBLOCK_AT as usize + slot * PAGE;
            map.add(Kind::Superblock, at, 176, None, SUPERBLOCK);
        }
        map.add(Kind::Owner, OWNER_AT as usize, 280, None, OWNER);
        for area in 0..2 {
            map.add_area(file, (MANIFEST_AT + area * MANIFEST_AREA_LEN) as usize);
        }
        let mut start = EXTENTS_AT as usize;
        while let Some(extent) = file.get(start..).filter(|rest| !rest.is_empty()) {
            map.add_extent(start, &extent[..extent.len().min(EXTENT)]);
            start += EXTENT;
        }
        map.sort();
        map
    }

    /// Which fields differ between two files.
    pub(crate) fn differences(&self, old: &[u8], new: &[u8]) -> String {
        let hidden = [Kind::Bytes, Kind::BlockRows, Kind::Extent];
        let mut told = format!("{} bytes, {} before\n", new.len(), old.len());
        for one in
            self.structures.iter().filter(|one| one.len < 8192 && !hidden.contains(&one.kind))
        {
            let fields: usize = one.widths.iter().map(|&width| usize::from(width)).sum();
            for number in 0..(one.len / fields).max(1) * one.widths.len() {
                let (at, width) = one.field(number);
                let (old, new) = (old.get(at..at + width), new.get(at..at + width));
                if old != new {
                    let (kind, from) = (one.kind, at - one.at);
                    let (file, extent) = (at / EXTENT, at % EXTENT);
                    told += &format!("{kind:?} at {extent:#x} of extent {}, ", file as i64 - 1);
                    told += &format!("field {number} at {from}: {old:x?} is {new:x?}\n");
                }
            }
        }
        told
    }

    /// Adds a structure; its number.
    pub(crate) fn add(
        &mut self,
        kind: Kind,
        at: usize,
        len: usize,
        within: Option<usize>,
        widths: &'static [u8],
    ) -> usize {
        self.structures.push(Structure { kind, at, len, within, widths });
        self.structures.len() - 1
    }

    fn sort(&mut self) {
        let mut kinds = std::collections::BTreeMap::<Kind, Vec<usize>>::new();
        for (number, structure) in self.structures.iter().enumerate() {
            kinds.entry(structure.kind).or_default().push(number);
        }
        self.kinds = kinds.into_values().collect();
    }

    fn add_area(&mut self, file: &[u8], at: usize) {
        let area = &file[at..at + MANIFEST_AREA_LEN as usize];
        if AreaHeader::decode(area).is_err() {
            return;
        }
        let header = self.add(Kind::AreaHeader, at, 60, None, AREA_HEADER);
        let records = area[AREA_HEADER_LEN..].chunks_exact(RECORD_LEN);
        let used = records.take_while(|record| record[..4] != [0; 4]).count();
        for record in 0..used + NEXT_RECORDS {
            // In front of the fields is the check.
            let at = at + AREA_HEADER_LEN + record * RECORD_LEN + 4;
            self.add(Kind::Record, at, RECORD_LEN - 4, Some(header), RECORD);
        }
    }

    fn add_extent(&mut self, start: usize, extent: &[u8]) {
        let Ok(header) = SegmentHeader::decode(extent) else {
            self.add(Kind::Extent, start, extent.len().max(8), None, &[8]);
            return;
        };
        self.add(Kind::SegmentHeader, start, 60, None, SEGMENT_HEADER);
        let mut at = SEGMENT_HEADER_LEN as usize;
        let mut sealed = false;
        while let Some((frame, payload)) = frame_at(extent, header.key, at) {
            let end = at + frame.frame_len();
            sealed |= frame.kind == FrameKind::Seal;
            self.add_frame(start + at, &frame, payload);
            at = end;
        }
        if !sealed {
            self.open.push((start, start + at));
        }
    }

    /// Adds a frame and what is in it.
    pub(crate) fn add_frame(&mut self, at: usize, frame: &FrameHeader, payload: &[u8]) {
        let header = self.add(Kind::Frame(frame.kind as u8), at + 4, 68, None, FRAME);
        let (at, within) = (at + FRAME_HEADER_LEN, Some(header));
        let mut add = |kind, from: usize, len, widths| {
            if from + len <= payload.len() && len > 0 {
                self.add(kind, at + from, len, within, widths);
            }
        };
        match frame.kind {
            FrameKind::Bind | FrameKind::Start => add(Kind::Ids, 0, 8, IDS),
            FrameKind::Record if frame.flags & FLAG_CHUNKS != 0 => {
                add(Kind::Chunks, frame.name_len.into(), 16, CHUNKS);
            }
            FrameKind::Chunk if frame.flags & FLAG_COMPRESSED != 0 => {
                add(Kind::ChunkHead, 0, 12, CHUNK_HEAD);
            }
            FrameKind::Evict => {
                for item in evictions(payload) {
                    add(Kind::Eviction, item, EVICTION_ITEM_LEN, EVICTION);
                }
            }
            FrameKind::Origin => {
                add(Kind::Origin, 0, 16, ORIGIN);
                add(Kind::Origin, 16, payload.len().saturating_sub(16), &[4]);
            }
            FrameKind::Block => {
                add(Kind::BlockHead, 0, 36, BLOCK_HEAD);
                add(Kind::BlockRows, 0, payload.len(), &[1]);
            }
            FrameKind::Seal => {
                for (kind, from, len, widths) in directory(payload) {
                    add(kind, from, len, widths);
                }
            }
            _ => {}
        }
        add(Kind::Bytes, 0, payload.len(), &[1]);
    }
}

/// The frame at a place of an extent.
pub(crate) fn frame_at(extent: &[u8], key: SegmentKey, at: usize) -> Option<(FrameHeader, &[u8])> {
    let bytes = extent.get(at..)?;
    let header = FrameHeader::decode(bytes, key, at as u32).ok()?;
    let payload = bytes.get(FRAME_HEADER_LEN..FRAME_HEADER_LEN + header.payload_len as usize)?;
    Some((header, payload))
}

/// Where the items of an EVICT are.
fn evictions(payload: &[u8]) -> Vec<usize> {
    let (mut places, mut at) = (Vec::new(), 0);
    while let Some(item) = payload.get(at..at + EVICTION_ITEM_LEN) {
        places.push(at);
        let len = |at: usize| usize::from(u16::from_le_bytes([item[at], item[at + 1]]));
        at += EVICTION_ITEM_LEN + len(24) + len(26);
    }
    places
}

/// What is where in a directory.
fn directory(payload: &[u8]) -> Vec<(Kind, usize, usize, &'static [u8])> {
    let count = |at: usize| {
        let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        u32::from_le_bytes(bytes.unwrap_or_default()) as usize
    };
    let (runs, evictions, offsets) = (count(8), count(12), count(16));
    let mut parts = vec![(Kind::DirectoryHeader, 0, DIRECTORY_HEADER_LEN, DIRECTORY_HEADER)];
    let mut at = DIRECTORY_HEADER_LEN;
    let lists = [
        (Kind::RunEntry, runs, RUN_ENTRY_LEN, RUN_ENTRY),
        (Kind::Hash, runs, HASH_LEN, HASH),
        (Kind::DirectoryEviction, evictions, 16, DIRECTORY_EVICTION),
    ];
    for (kind, count, len, widths) in lists {
        for _ in 0..count {
            parts.push((kind, at, len, widths));
            at += len;
        }
    }
    parts.push((Kind::Offsets, at, offsets * 4, &[4]));
    at += offsets * 4;
    parts.push((Kind::Bytes, at, payload.len().saturating_sub(at), &[1]));
    parts
}
