//! Where the records of a store are in its file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use runlog::format::frames::block::{BlockHead, seq_in};
use runlog::format::frames::frame::{
    Chunks, FLAG_CHUNKS, FLAG_DOCUMENT, FRAME_HEADER_LEN, FrameCheck, decode_ids,
};
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{FrameHeader, FrameKind};

use super::FRONT;
use crate::support::frames::EXTENT;

/// Where the bytes of one copy of a record are.
pub(super) type Copy = Vec<Range<usize>>;

/// Where the bytes of the frames of a store are.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) names: BTreeMap<u64, (String, String)>,
    pub(super) documents: BTreeSet<u64>,
    /// By the number of the run and the sequence.
    pub(super) records: BTreeMap<(u64, u64), Vec<Copy>>,
}

/// Walks the frames of all segments.
pub(super) fn places(image: &[u8]) -> Places {
    let mut places = Places::default();
    let mut chunks: BTreeMap<(u64, u64, u32), Vec<Range<usize>>> = BTreeMap::new();
    let mut long: Vec<(FrameHeader, Chunks, Range<usize>)> = Vec::new();
    for start in (FRONT..image.len()).step_by(EXTENT) {
        let segment = &image[start..image.len().min(start + EXTENT)];
        let Ok(header) = SegmentHeader::decode(segment) else { continue };
        let check = FrameCheck::new(header.key);
        let mut at = SEGMENT_HEADER_LEN as usize;
        while let Some(Ok(header)) =
            segment.get(at..).map(|rest| FrameHeader::decode_with(rest, &check, at as u32))
        {
            let range = start + at..start + at + header.frame_len();
            let from = at + FRAME_HEADER_LEN;
            let payload = &segment[from..from + header.payload_len as usize];
            at += header.frame_len();
            let run = header.run_no.0;
            match header.kind {
                FrameKind::Bind | FrameKind::Start => {
                    let (agent, name, _) = decode_ids(payload).unwrap();
                    places.names.insert(run, (agent.to_string(), name.to_string()));
                    if header.flags & FLAG_DOCUMENT != 0 {
                        places.documents.insert(run);
                    }
                }
                FrameKind::Record if header.flags & FLAG_CHUNKS != 0 => {
                    let row = Chunks::decode(&payload[usize::from(header.name_len)..]).unwrap();
                    long.push((header, row, range));
                }
                FrameKind::Record => {
                    places.records.entry((run, header.seq.0)).or_default().push(vec![range]);
                }
                FrameKind::Block => {
                    let _ = BlockHead::decode(&header, payload).unwrap();
                    for rank in 0..header.extra {
                        let seq = seq_in(&header, rank).0;
                        let copies = places.records.entry((run, seq)).or_default();
                        copies.push(vec![range.clone()]);
                    }
                }
                FrameKind::Chunk => {
                    let first = if header.extra == 0 { header.lsn.0 } else { header.seq.0 };
                    chunks.entry((run, first, header.extra)).or_default().push(range);
                }
                _ => {}
            }
        }
    }
    for (header, row, range) in long {
        let run = header.run_no.0;
        let mut copy = vec![range];
        // Copies of chunks are rare; the first one stands for all.
        let found = (0..row.count).map_while(|number| chunks.get(&(run, row.first.0, number)));
        copy.extend(found.map(|copies| copies[0].clone()));
        if copy.len() as u32 <= row.count {
            // The segment of a chunk is free: the run was deleted.
            continue;
        }
        places.records.entry((run, header.seq.0)).or_default().push(copy);
    }
    places
}
