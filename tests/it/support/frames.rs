//! Stores with extents of 64 KiB, and where the frames of their segments are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use runlog::Options;
use runlog::env::Environment;
use runlog::format::frames::block::{BlockHead, seq_in};
use runlog::format::frames::frame::SegmentKey;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};

use super::background::Background;

/// The size of the extents.
pub(crate) const EXTENT: usize = 64 << 10;

/// A store with such extents and no index. Its background work runs when a test says so, so the
/// manifest is not told of full segments.
pub(crate) fn unindexed() -> Options {
    let environment = Environment::system();
    Options::new()
        .extent_size(EXTENT as u64)
        .index(false)
        .environment(environment)
        .scheduler(Arc::new(Background::default()))
}

/// A frame: where it is in the file, and its header.
pub(crate) type Frame = (Range<usize>, FrameHeader);

/// Where the segments of a file are, by their ids.
fn segments(image: &[u8]) -> Vec<(usize, SegmentKey)> {
    let first = usize::try_from(EXTENTS_AT).unwrap();
    let starts = (first..image.len()).step_by(EXTENT);
    let header = |at: &usize| SegmentHeader::decode(&image[*at..]).ok();
    let mut segments: Vec<_> = starts.filter_map(|at| Some((at, header(&at)?.key))).collect();
    segments.sort_by_key(|(_, key)| key.id);
    segments
}

fn frames_of(image: &[u8], (start, key): (usize, SegmentKey)) -> Vec<Frame> {
    let (mut at, mut found) = (SEGMENT_HEADER_LEN, Vec::new());
    while let Ok(frame) = FrameHeader::decode(&image[start + at as usize..], key, at) {
        let from = start + at as usize;
        found.push((from..from + frame.frame_len(), frame));
        at += u32::try_from(frame.frame_len()).unwrap();
    }
    found
}

/// The frames of a segment; 0 is the one with the smallest id. None if there is no such segment.
pub(crate) fn frames_in(image: &[u8], number: usize) -> Vec<Frame> {
    segments(image).get(number).map_or_else(Vec::new, |segment| frames_of(image, *segment))
}

/// All frames of a file.
pub(crate) fn all_frames(image: &[u8]) -> Vec<Frame> {
    segments(image).into_iter().flat_map(|segment| frames_of(image, segment)).collect()
}

/// All frames of one kind.
pub(crate) fn of_kind(image: &[u8], kind: FrameKind) -> Vec<Frame> {
    all_frames(image).into_iter().filter(|(_, header)| header.kind == kind).collect()
}

/// All frames of a file, and their kinds.
pub(crate) fn frames(image: &[u8]) -> Vec<(Range<usize>, FrameKind)> {
    all_frames(image).into_iter().map(|(range, header)| (range, header.kind)).collect()
}

/// A record of a block, and the pieces of a slice that have its bytes: for each place, where the
/// pieces are that have the bytes of this place.
pub(crate) type InBlock = (u64, Vec<Vec<Range<usize>>>);

/// The records of a block, which is one of the frames of a segment.
pub(crate) fn records_of(image: &[u8], frames: &[Frame], block: &Frame) -> Vec<InBlock> {
    let (range, header) = block;
    let from = range.start + header.header_len();
    let payload = &image[from..from + header.payload_len as usize];
    let (head, compressed) = BlockHead::decode(header, payload).unwrap();
    let (mut raw, mut rows) = (Vec::new(), Vec::new());
    head.open(header, compressed, &mut raw, &mut rows).unwrap();
    let slice = head.slice.map(|slice| slice.slice);
    let is_of_slice =
        |frame: &&Frame| frame.1.kind == FrameKind::Piece && Some(frame.1.lsn) == slice;
    let pieces: Vec<&Frame> = frames.iter().filter(is_of_slice).collect();
    let records = (0..).zip(&rows).map(|(rank, row)| {
        let mut places = BTreeMap::<u64, Vec<Range<usize>>>::new();
        if slice.is_some() {
            row.each_range(&raw, |of| {
                for (range, piece) in &pieces {
                    let (start, end) = (piece.seq.0, piece.seq.0 + u64::from(piece.extra));
                    let all = places.entry(start).or_default();
                    if start < of.end.into() && end > of.start.into() && !all.contains(range) {
                        all.push(range.clone());
                    }
                }
            })
            .unwrap();
        }
        let places = places.into_values().filter(|all| !all.is_empty());
        (seq_in(header, rank).0, places.collect())
    });
    records.collect()
}
