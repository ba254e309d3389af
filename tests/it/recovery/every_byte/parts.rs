//! What the bytes of a store are.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use runlog::RunNo;
use runlog::format::frames::frame::{FLAG_BATCH, FLAG_CHUNKS};
use runlog::format::frames::ids::{ids_len, names_in};
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind, PAGE};

use super::store::EXTENT;
use crate::support::frames::records_of;

/// A range of the file.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) range: Range<usize>,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    SegmentHeader,
    Frame(Frame),
}

/// A frame, and what is lost with it.
#[derive(Debug, Clone, PartialEq)]
struct Frame {
    kind: FrameKind,
    header_len: usize,
    /// The length of the header, and of the ids behind it.
    basis: usize,
    is_sealed: bool,
    /// The records that it is needed for, with the name of their run or document.
    items: Vec<(String, u64)>,
}

/// The segments of the file with their frames.
pub(super) fn parts(image: &[u8]) -> Vec<Part> {
    let mut segments = Vec::new();
    let mut names = BTreeMap::<RunNo, String>::new();
    let mut naming = BTreeMap::<RunNo, usize>::new();
    for base in (EXTENTS_AT as usize..image.len()).step_by(EXTENT) {
        let extent = &image[base..(base + EXTENT).min(image.len())];
        let Ok(header) = SegmentHeader::decode(extent) else { continue };
        let (mut at, mut frames) = (SEGMENT_HEADER_LEN, Vec::new());
        let mut ids_of = BTreeMap::new();
        while let Some(rest) = extent.get(at as usize..)
            && let Ok(frame) = FrameHeader::decode(rest, header.key, at)
        {
            let from = base + at as usize;
            let payload = &image[from + frame.header_len()..][..frame.payload_len as usize];
            if let Some((agent, run)) = names_in(frame.kind, payload) {
                names.insert(frame.run_no, run.to_string());
                *naming.entry(frame.run_no).or_insert(0) += 1;
                let ids = ids_len(agent.as_str().len() + run.as_str().len());
                let replaced = if frame.kind == FrameKind::Put { 8 } else { 0 };
                ids_of.insert(from, frame.header_len() + ids + replaced);
            }
            at += u32::try_from(frame.frame_len()).unwrap();
            frames.push((from, frame));
        }
        segments.push((base, frames, ids_of));
    }
    let all = segments.iter().flat_map(|(_, frames, _)| frames).map(|(_, frame)| frame);
    let large = all.filter(|frame| frame.flags & FLAG_CHUNKS != 0);
    let large: BTreeSet<(RunNo, u64)> = large.map(|frame| (frame.run_no, frame.seq.0)).collect();
    let mut parts = Vec::new();
    for (base, frames, ids_of) in segments {
        let range = base..base + SEGMENT_HEADER_LEN as usize;
        parts.push(Part { range, kind: Kind::SegmentHeader });
        let is_sealed = frames.iter().any(|(_, frame)| frame.kind == FrameKind::Seal);
        for (number, (at, frame)) in frames.iter().enumerate() {
            let items = match frame.kind {
                // No run has more than one record with chunks.
                FrameKind::Chunk => large.iter().filter(|(of, _)| *of == frame.run_no).collect(),
                _ => Vec::new(),
            };
            let name = |(of, seq): &(RunNo, u64)| (names[of].clone(), *seq);
            let items = items.into_iter().map(name).chain(items_of(&frames, number, &names));
            let mut items: Vec<(String, u64)> = items.collect();
            items.extend(items_of_piece(image, &frames, number, &names));
            // Without a directory, the only frame with the ids of a run names its records.
            if !is_sealed && naming.get(&frame.run_no) == Some(&1) && ids_of.contains_key(at) {
                let of_run = frames.iter().filter(|(_, other)| other.run_no == frame.run_no);
                let records = of_run.filter(|(_, other)| other.kind == FrameKind::Record);
                items.extend(records.map(|(_, other)| name(&(other.run_no, other.seq.0))));
            }
            let basis = ids_of.get(at).copied().unwrap_or(frame.header_len());
            let kind = Kind::Frame(Frame {
                basis,
                kind: frame.kind,
                header_len: frame.header_len(),
                is_sealed,
                items,
            });
            parts.push(Part { range: *at..at + frame.frame_len(), kind });
        }
    }
    parts
}

/// The records that are lost with the frame of this number.
fn items_of(
    frames: &[(usize, FrameHeader)],
    number: usize,
    names: &BTreeMap<RunNo, String>,
) -> Vec<(String, u64)> {
    let frame = &frames[number].1;
    let of = |frame: &FrameHeader| names.get(&frame.run_no).cloned().unwrap_or_default();
    match frame.kind {
        FrameKind::Record | FrameKind::Put => vec![(of(frame), frame.seq.0)],
        FrameKind::Block => {
            let all = frame.seq.0..frame.seq.0 + u64::from(frame.extra);
            all.map(|seq| (of(frame), seq)).collect()
        }
        _ => Vec::new(),
    }
    .into_iter()
    .chain(batch(frames, number, &of))
    .collect()
}

/// The records that need a piece of which there is no other one with the same bytes.
fn items_of_piece(
    image: &[u8],
    frames: &[(usize, FrameHeader)],
    number: usize,
    names: &BTreeMap<RunNo, String>,
) -> Vec<(String, u64)> {
    let (at, piece) = frames[number];
    if piece.kind != FrameKind::Piece {
        return Vec::new();
    }
    let frames: Vec<_> =
        frames.iter().map(|(at, frame)| (*at..*at + frame.frame_len(), *frame)).collect();
    let mut items = Vec::new();
    for block in frames.iter().filter(|(_, frame)| frame.kind == FrameKind::Block) {
        for (seq, places) in records_of(image, &frames, block) {
            if places.iter().any(|all| all.len() == 1 && all[0].start == at) {
                items.push((names[&block.1.run_no].clone(), seq));
            }
        }
    }
    items
}

/// The records of the batch that the frame is in.
fn batch(
    frames: &[(usize, FrameHeader)],
    number: usize,
    of: &impl Fn(&FrameHeader) -> String,
) -> Vec<(String, u64)> {
    let is_in = |frame: &FrameHeader| frame.flags & FLAG_BATCH != 0;
    let is_commit = |frame: &FrameHeader| frame.kind == FrameKind::Commit;
    let frame = &frames[number].1;
    if !is_in(frame) && !is_commit(frame) {
        return Vec::new();
    }
    let before = frames[..number].iter().rev().map(|(_, frame)| frame);
    let before = before.take_while(|frame| is_in(frame) && !is_commit(frame));
    let behind = frames[number..].iter().map(|(_, frame)| frame);
    let is_over = is_commit(frame);
    let behind = behind.take_while(move |frame| !is_over && is_in(frame) && !is_commit(frame));
    before.chain(behind).map(|frame| (of(frame), frame.seq.0)).collect()
}

fn hit<'p>(parts: &'p [Part], at: &Range<usize>) -> impl Iterator<Item = &'p Part> {
    let at = at.clone();
    parts.iter().filter(move |part| part.range.start < at.end && at.start < part.range.end)
}

/// What lies there.
pub(super) fn name_of(parts: &[Part], at: &Range<usize>) -> String {
    let Some(part) = hit(parts, at).next() else {
        return match at.start / PAGE as usize {
            0 => "static header",
            1 | 2 => "superblock",
            3 => "owner",
            page if page < (EXTENTS_AT / PAGE) as usize => "manifest",
            _ => "no frame",
        }
        .to_owned();
    };
    let Kind::Frame(frame) = &part.kind else { return "segment header".to_owned() };
    let place = if frame.is_sealed { "sealed" } else { "open" };
    let is_header = at.start < part.range.start + frame.header_len;
    let half = if is_header { "header" } else { "payload" };
    format!("{place} {:?} {half}", frame.kind)
}

/// Whether a part of this name is what users wrote, or nothing.
pub(super) fn is_bulk(name: &str) -> bool {
    let payloads = ["Record payload", "Put payload", "Chunk payload", "Block payload"];
    name == "no frame" || payloads.iter().any(|payload| name.ends_with(payload))
}

/// Whether it lies in a segment.
pub(super) fn has_segment(parts: &[Part], at: &Range<usize>) -> bool {
    let extent = |at: usize| (at - EXTENTS_AT as usize) / EXTENT;
    at.start >= EXTENTS_AT as usize
        && parts.iter().any(|part| extent(part.range.start) == extent(at.start))
}

/// Whether opening may refuse a file that is damaged there.
pub(super) fn may_refuse(parts: &[Part], at: &Range<usize>) -> bool {
    let all: Vec<&Part> = hit(parts, at).collect();
    if all.is_empty() {
        return at.start < EXTENTS_AT as usize;
    }
    all.iter().any(|part| match &part.kind {
        Kind::SegmentHeader => false,
        Kind::Frame(Frame { is_sealed: true, .. }) => false,
        Kind::Frame(frame) => {
            let is_item = matches!(
                frame.kind,
                FrameKind::Record | FrameKind::Chunk | FrameKind::Start | FrameKind::End
            ) || matches!(frame.kind, FrameKind::Hold | FrameKind::Put);
            !is_item || at.start < part.range.start + frame.basis
        }
    })
}

/// The records that damage there may cost.
pub(super) fn lost_items(parts: &[Part], at: &Range<usize>) -> BTreeSet<(String, u64)> {
    let frames = hit(parts, at).filter_map(|part| match &part.kind {
        Kind::Frame(frame) => Some(frame.items.iter().cloned()),
        Kind::SegmentHeader => None,
    });
    frames.flatten().collect()
}
