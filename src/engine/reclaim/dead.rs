//! Whether a segment is dead: all runs that have frames in it are deleted.
//!
//! The directory alone does not tell. If damage takes what names a run, recovery builds a directory
//! that does not list it, but `salvage` can read its records. A compaction moves no segment with
//! such frames, so its outputs have none. What only a lost frame could tell keeps no segment: its
//! bytes cannot be read.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use crate::engine::state::scan::{Item, frames_below, lex};
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::format::codec::Decoded;
use crate::format::frames::frame::frame_len;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{Directory, FrameHeader, FrameKind};
use crate::gc;
use crate::types::{RunNo, SegmentId};

/// Whether all runs of a segment are deleted, and no run was missed because of damage. `unlisted`
/// keeps what was found of the runs that a segment does not list.
pub(super) fn is_dead(
    segment: &Segment,
    is_deleted: impl Fn(RunNo) -> bool,
    unlisted: &mut HashMap<SegmentId, BTreeSet<RunNo>>,
) -> Result<bool> {
    let listed = segment.in_directory(|directory| {
        let all_deleted = gc::is_dead(&directory, &is_deleted)?;
        all_deleted.then(|| listed_bytes(&directory)).transpose()
    })?;
    let Some(listed) = listed else { return Ok(false) };
    if segment.directory_damage().is_some() {
        return is_whole(segment);
    }
    let end = segment.sealed().map_or(u32::MAX, |sealed| sealed.end);
    if segment.is_output() || listed == u64::from(end) {
        return Ok(true);
    }
    let runs = match unlisted.entry(segment.id()) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => place.insert(unlisted_runs(segment, end)?),
    };
    Ok(runs.iter().all(|run_no| is_deleted(*run_no)))
}

/// Where a segment ends if it has nothing but the frames that its directory lists: each run has one
/// BIND. What is lost of these takes as much space, so there is none for a frame of another run.
fn listed_bytes(directory: &Directory<'_>) -> Decoded<u64> {
    let mut sum = u64::from(SEGMENT_HEADER_LEN);
    for slot in 0..directory.run_count() {
        let (agent, run) = directory.ids(slot)?;
        let bind = frame_len(4 + agent.len() + run.len()) as u64;
        sum = sum.saturating_add(directory.stored(slot)?).saturating_add(bind);
    }
    Ok(sum)
}

/// The runs that have frames in a segment, damaged or not, and are not in its directory.
fn unlisted_runs(segment: &Segment, end: u32) -> Result<BTreeSet<RunNo>> {
    let frames = frames_below(&lex(&segment.read_all()?, segment.frames()), end);
    let runs = frames.iter().filter(|lexed| has_contents(&lexed.header));
    let runs: BTreeSet<RunNo> = runs.map(|lexed| lexed.header.run_no).collect();
    segment.in_directory(|directory| {
        let unlisted = |run_no| Ok(directory.find_no(run_no)?.is_none().then_some(run_no));
        runs.into_iter().filter_map(|run_no| unlisted(run_no).transpose()).collect()
    })
}

/// Whether a frame has something of a run besides its name.
fn has_contents(header: &FrameHeader) -> bool {
    header.run_no != RunNo(0) && !matches!(header.kind, FrameKind::Bind | FrameKind::Commit)
}

/// Whether a segment has only whole frames up to its end.
fn is_whole(segment: &Segment) -> Result<bool> {
    let (extent, mut at) = (segment.read_all()?, SEGMENT_HEADER_LEN as usize);
    let end = segment.sealed().map_or(usize::MAX, |sealed| sealed.end as usize);
    for item in lex(&extent, segment.frames()) {
        match item {
            Item::Frame(lexed) if at < end && lexed.payload.is_ok() => {
                at += lexed.header.frame_len();
            }
            _ => break,
        }
    }
    Ok(at == end)
}
