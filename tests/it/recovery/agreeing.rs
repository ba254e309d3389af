//! What a store says, compared; and frames to damage.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::map::manifest::RECORD_LEN;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::{ReadLog, Retention, RunQuery};
use runlog_sim::SplitMix64;

use crate::recovery::bit_flips::{Answers, answers};
use crate::support::harm::{last_uncounted, unsealed};
use crate::support::model::SPACE;
use crate::support::world::EXTENT;

type Documents = BTreeMap<String, Option<Vec<u8>>>;

/// The run of which a START and a HOLD are all that there is.
const HELD: &str = "held-alone";

/// The ages of runs that a policy deletes; a world takes about as long.
const AGE: Duration = Duration::from_millis(100);

/// All frames of the log in a file.
pub(crate) fn frames(image: &[u8]) -> Vec<(Range<usize>, FrameKind)> {
    let mut found = Vec::new();
    let extents = usize::try_from(EXTENTS_AT).unwrap()..image.len();
    for base in extents.step_by(usize::try_from(EXTENT).unwrap()) {
        let Ok(header) = SegmentHeader::decode(&image[base..]) else { continue };
        let mut at = SEGMENT_HEADER_LEN;
        while let Ok(frame) = FrameHeader::decode(&image[base + at as usize..], header.key, at) {
            let start = base + at as usize;
            found.push((start..start + frame.frame_len(), frame.kind));
            at += u32::try_from(frame.frame_len()).unwrap();
        }
    }
    found
}

/// Damages a frame, rare kinds as often as records; or the last record of the manifest.
pub(crate) fn damage(image: &mut [u8], random: &mut SplitMix64) -> String {
    if let Some(at) = last_uncounted(image).filter(|_| random.below(5) == 0) {
        image[at + random.index(RECORD_LEN)] ^= 1 << random.below(8);
        return format!("the record of the manifest at {at:#x}");
    }
    let all = frames(image);
    if all.is_empty() {
        image[random.index(EXTENTS_AT as usize)] ^= 0xff;
        return "the front".to_owned();
    }
    let is_of_held = |range: &Range<usize>| {
        image[range.clone()].windows(HELD.len()).any(|bytes| bytes == HELD.as_bytes())
    };
    let mut starts = all.iter().filter(|(_, kind)| *kind == FrameKind::Start);
    let held = starts.find(|(range, _)| is_of_held(range)).filter(|_| random.below(3) > 0);
    if let Some((range, _)) = held {
        image[range.clone()].fill(0xff);
        return format!("the START of {HELD} at {:#x}", range.start);
    }
    let mut kinds: Vec<FrameKind> = all.iter().map(|(_, kind)| *kind).collect();
    kinds.sort_unstable_by_key(|kind| *kind as u8);
    kinds.dedup();
    let kind = kinds[random.index(kinds.len())];
    let of_kind: Vec<_> = all.iter().filter(|(_, found)| *found == kind).collect();
    let (range, _) = of_kind[random.index(of_kind.len())];
    let frame = &mut image[range.clone()];
    let way = random.below(4);
    match way {
        0 => frame.fill(0),
        1 => frame.fill(0xff),
        _ => frame[random.index(range.len())] ^= 1 << random.below(8),
    }
    format!("{kind:?} at {:#x}, way {way}", range.start)
}

/// Damages the ids of a run that goes on in a segment, of which the manifest does not know that it
/// is full, and the directory of that segment. The header of the SEAL frame stays whole.
pub(crate) fn damage_pair(image: &mut [u8], random: &mut SplitMix64) -> Option<String> {
    let (all, extents) = (frames(image), unsealed(image));
    let extent = |at: usize| at as u64 / EXTENT * EXTENT;
    let is_full = |(range, kind): &&(Range<usize>, FrameKind)| {
        *kind == FrameKind::Seal && extents.contains(&extent(range.start))
    };
    let seals: Vec<_> = all.iter().filter(is_full).collect();
    let (seal, _) = seals.get(random.index(seals.len().max(1)))?;
    let goes_on = |two: &&[(Range<usize>, FrameKind)]| {
        (two[0].1, two[1].1 != FrameKind::Start) == (FrameKind::Bind, true)
            && extent(two[0].0.start) == extent(seal.start)
    };
    let binds: Vec<_> = all.windows(2).filter(goes_on).collect();
    let (bind, _) = &binds.get(random.index(binds.len().max(1)))?[0];
    image[bind.start + random.index(bind.len())] ^= 1 << random.below(8);
    let at = seal.start + FRAME_HEADER_LEN;
    image[at + random.index(seal.end - at)] ^= 1 << random.below(8);
    Some(format!("BIND at {:#x} and the directory at {at:#x}", bind.start))
}

fn documents(log: &impl ReadLog) -> Documents {
    let read = |number: u64| {
        let key = format!("key {number}");
        let found = log.document(SPACE, &key).ok()??;
        Some((key, Some(found.payload().to_vec())))
    };
    (0..6).filter_map(read).collect()
}

/// What a store says.
#[derive(Debug)]
pub(crate) struct Said {
    answers: Answers,
    documents: Documents,
    /// All runs, newest first.
    listed: Vec<String>,
    /// What policies delete.
    planned: [Vec<String>; 2],
}

/// All answers, without the space that frames take: compaction copies not all of them.
pub(crate) fn all(log: &impl ReadLog) -> Result<Said, String> {
    let mut answers = answers(log);
    for run in answers.runs.values_mut() {
        let (before, after) = run.summary.split_once("stored_bytes: ").unwrap();
        run.summary = format!("{before}{}", after.split_once(", ").unwrap().1);
    }
    let listed = |query: RunQuery| -> Result<Vec<String>, String> {
        let page = log.list_runs(&query.limit(1000)).map_err(|error| error.to_string())?;
        Ok(page.runs.iter().map(|run| format!("{}/{}", run.agent, run.run)).collect())
    };
    let (newest, mut oldest) = (listed(RunQuery::new())?, listed(RunQuery::new().oldest_first())?);
    oldest.reverse();
    if newest != oldest {
        return Err(format!("the lists are {newest:?} and, backwards, {oldest:?}"));
    }
    let planned = |policy: Retention| -> Result<Vec<String>, String> {
        let plan = log.gc_plan(&policy).map_err(|error| error.to_string())?;
        Ok(plan.evict.iter().map(|run| format!("{}/{}", run.agent, run.run)).collect())
    };
    let planned =
        [planned(Retention::new().keep_newest(1))?, planned(Retention::new().max_age(AGE))?];
    Ok(Said { answers, documents: documents(log), listed: newest, planned })
}

/// Whether the second answers are the first ones, with what was added.
pub(crate) fn compare(one: &Said, other: &Said, added: &[String]) -> Result<(), String> {
    let (first, second) = (&one.answers, &other.answers);
    for (name, run) in &first.runs {
        match second.runs.get(name) {
            Some(same) if same == run => {}
            Some(other) => return Err(format!("{name:?} differs: {}", run.difference(other))),
            None => return Err(format!("{name:?} is gone")),
        }
    }
    let came =
        second.runs.keys().find(|name| !first.runs.contains_key(*name) && !added.contains(&name.1));
    if let Some(name) = came {
        return Err(format!("{name:?} came up"));
    }
    if let Some(run) = added.iter().find(|run| !second.runs.keys().any(|name| name.1 == **run)) {
        return Err(format!("{run} was added, and is gone"));
    }
    if one.documents != other.documents {
        return Err(format!("documents were {:?}, are {:?}", one.documents, other.documents));
    }
    if one.listed != other.listed {
        return Err(format!("the lists are {:?} and {:?}", one.listed, other.listed));
    }
    if one.planned != other.planned {
        return Err(format!("the plans are {:?} and {:?}", one.planned, other.planned));
    }
    Ok(())
}
