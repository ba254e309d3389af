//! Whether a segment is dead: all runs that have frames in it are deleted.
//!
//! The directory alone does not tell. If damage takes what names a run, recovery builds a directory
//! that does not list it, but `salvage` can read its records. A compaction moves no segment with
//! such frames, so its outputs have none. What only a lost frame could tell keeps no segment: its
//! bytes cannot be read. They are in the file nevertheless, which an erasure must know.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::engine::state::scan::{Item, is_of_run, lex};
use crate::engine::state::segment::Segment;
use crate::error::{Result, unless_damaged};
use crate::format::codec::Decoded;
use crate::format::frames::frame::{FRAME_HEADER_LEN, frame_len};
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::format::{Directory, FrameHeader};
use crate::gc;
use crate::types::{RunNo, SegmentId};

/// What a segment has in front of its end that its directory does not list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unlisted {
    /// The runs of frames, damaged or not.
    runs: BTreeSet<RunNo>,
    /// Whether there are bytes, not only of listed runs, that are no frames.
    has_lost: bool,
}

/// What segments do not list, where that was asked.
pub(crate) type AllUnlisted = HashMap<SegmentId, Unlisted>;

/// How many bytes are read at a time in search of headers of frames.
const WINDOW: u32 = 4 << 10;

/// Whether all runs of a segment are deleted, and no run was missed because of damage.
pub(super) fn is_dead(
    segment: &Segment,
    is_deleted: impl Fn(RunNo) -> bool,
    known: &mut AllUnlisted,
) -> Result<bool> {
    if !segment.in_directory(|directory| gc::is_dead(&directory, &is_deleted))? {
        return Ok(false);
    }
    if segment.directory_damage().is_some() {
        return is_whole(segment);
    }
    let unlisted = unlisted(segment, known)?;
    Ok(unlisted.is_none_or(|unlisted| unlisted.runs.iter().all(|run_no| is_deleted(*run_no))))
}

/// Whether a segment may have bytes, in front of its end, of a run that its directory does not
/// list.
pub(crate) fn may_hide(segment: &Segment, known: &mut AllUnlisted) -> Result<bool> {
    let unlisted = unlisted(segment, known)?;
    Ok(unlisted.is_some_and(|unlisted| unlisted.has_lost || !unlisted.runs.is_empty()))
}

/// What a segment does not list; `None` if a compaction wrote it and its directory is whole.
fn unlisted<'k>(segment: &Segment, known: &'k mut AllUnlisted) -> Result<Option<&'k Unlisted>> {
    if segment.is_output() && segment.directory_damage().is_none() {
        return Ok(None);
    }
    Ok(Some(match known.entry(segment.id()) {
        Entry::Occupied(found) => found.into_mut(),
        Entry::Vacant(place) => {
            let listed = segment.in_directory(|directory| listed_bytes(&directory))?;
            let end = segment.sealed().map_or(u32::MAX, |sealed| sealed.end);
            place.insert(if listed == u64::from(end) {
                Unlisted::default()
            } else {
                find_unlisted(segment, end, listed)?
            })
        }
    }))
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

/// The bytes of frames, and whether there are some of the run besides its name.
type Seen = BTreeMap<RunNo, (u64, bool)>;

fn find_unlisted(segment: &Segment, end: u32, listed: u64) -> Result<Unlisted> {
    let (mut seen, mut has_lost) = (Seen::new(), false);
    if !see_headers(segment, end, &mut seen)? {
        seen.clear();
        for item in lex(&segment.read_all()?, segment.frames()) {
            match item {
                _ if item.offset() >= end => break,
                Item::Frame(lexed) => see(&mut seen, &lexed.header),
                Item::Gap { blank, .. } => has_lost |= !blank,
            }
        }
    }
    segment.in_directory(|directory| {
        let (mut explained, mut runs) = (listed, BTreeSet::new());
        for (run_no, (bytes, has_contents)) in seen {
            if directory.find_no(run_no)?.is_none() {
                explained = explained.saturating_add(bytes);
                runs.extend(has_contents.then_some(run_no));
            }
        }
        // All that is lost was listed if it is as much as what is listed and not there.
        has_lost &= explained != u64::from(end);
        Ok(Unlisted { runs, has_lost })
    })
}

fn see(seen: &mut Seen, header: &FrameHeader) {
    let (bytes, has_contents) = seen.entry(header.run_no).or_default();
    *bytes = bytes.saturating_add(header.frame_len() as u64);
    *has_contents |= is_of_run(header);
}

/// Sees the frames up to the end of a segment by their headers; returns whether that is all there
/// is. Then no payload was looked at.
fn see_headers(segment: &Segment, end: u32, seen: &mut Seen) -> Result<bool> {
    let (mut at, mut from, mut window) = (SEGMENT_HEADER_LEN, 0, Cow::from(&[][..]));
    while at < end {
        let mut bytes = window.get((at - from) as usize..).unwrap_or_default();
        if bytes.len() < FRAME_HEADER_LEN {
            let len = WINDOW.min(end - at) as usize;
            let Some(read) = unless_damaged(segment.read(at, len))? else { return Ok(false) };
            (from, window) = (at, read);
            bytes = &window;
        }
        let Ok(header) = FrameHeader::decode_with(bytes, segment.frames(), at) else {
            return Ok(false);
        };
        see(seen, &header);
        at = at.saturating_add(u32::try_from(header.frame_len()).unwrap_or(u32::MAX));
    }
    Ok(at == end)
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
