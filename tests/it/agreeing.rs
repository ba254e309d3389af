//! All openings of a store agree, whatever was damaged when the process died.
//!
//! Goal: what the first opening decides about a damaged frame, each later opening decides too. It
//! does not go by frames first and by a directory afterwards, or by a floor that it raised itself.
//!
//! Method: a process dies with segments that are full and of which the manifest does not know, and
//! with frames that no sync covers. A frame is damaged, or two, or the ids of a run and the
//! directory of the same segment, or the last record of the manifest. A process that only reads
//! asks everything. Then the store is opened, asked, used or not, killed or closed, and opened
//! again. What it said it must say again; what was added must be there; and what was deleted before
//! or in between must stay deleted.
//!
//! - `RUNLOG_AGREE`: how many damaged stores.
//! - `RUNLOG_AGREE_SEED`: only this one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::map::manifest::RECORD_LEN;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::{NewRecord, Outcome, ReadLog, ReaderOptions};
use runlog_sim::{SimDisk, SplitMix64};

use super::bit_flips::{Answers, answers};
use super::support::background::Background;
use super::support::campaign::variable;
use super::support::cuts::open;
use super::support::harm::{last_uncounted, unsealed};
use super::support::model::SPACE;
use super::support::world::{EXTENT, Machine, World};

type Documents = BTreeMap<String, Option<Vec<u8>>>;

/// A killed process: no step of the background work ran for a while.
fn killed(seed: u64) -> (Machine, Vec<u8>) {
    let background = Background::default();
    let mut machine = Machine { background: Some(background.clone()), ..Machine::new(seed, 1) };
    machine.automatic = seed % 3 == 0;
    let mut random = SplitMix64::for_case(seed, 1);
    let mut world = World::create(seed, machine.clone(), seed % 4 < 3);
    for _ in 0..random.index(3) {
        (0..60).for_each(|_| world.step());
        background.run_some(&mut random, 4);
    }
    let sealed = |world: &World| world.log().stats().unwrap().sealed_segments;
    let goal = sealed(&world) + 1 + random.below(2);
    while sealed(&world) < goal {
        world.step();
    }
    (0..random.index(20)).for_each(|_| world.step());
    if random.below(3) == 0 {
        (0..random.index(4)).for_each(|_| world.delete_run());
        background.run_some(&mut random, 4);
    }
    let image = world.abandon().disk.image();
    machine.boot += random.below(4) / 3;
    (machine, image)
}

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
fn damage(image: &mut [u8], random: &mut SplitMix64) -> String {
    if let Some(at) = last_uncounted(image).filter(|_| random.below(5) == 0) {
        image[at + random.index(RECORD_LEN)] ^= 1 << random.below(8);
        return format!("the record of the manifest at {at:#x}");
    }
    let all = frames(image);
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
fn damage_pair(image: &mut [u8], random: &mut SplitMix64) -> Option<String> {
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

/// All answers, without the space that frames take: compaction copies not all of them. Nor when a
/// run without a START began: if that is lost, it is as long ago as its segments say.
fn all(log: &impl ReadLog) -> Answers {
    let mut all = answers(log);
    for run in all.runs.values_mut() {
        let without = |summary: &str, field: &str| {
            let (before, after) = summary.split_once(field).unwrap();
            format!("{before}{}", after.split_once(", ").unwrap().1)
        };
        run.summary = without(&run.summary, "stored_bytes: ");
        if run.summary.contains("started: false") {
            run.summary = without(&run.summary, "started_at: ");
            run.summary = without(&run.summary, "created_at: ");
        }
    }
    all
}

/// Whether the second answers are the first ones, and what was added.
fn compare(first: &Answers, second: &Answers, added: &[String]) -> Result<(), String> {
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
    match added.iter().find(|run| !second.runs.keys().any(|name| name.1 == **run)) {
        Some(run) => Err(format!("{run} was added, and is gone")),
        None => Ok(()),
    }
}

fn check(seed: u64) -> Result<(), String> {
    let (machine, mut image) = killed(seed);
    let mut random = SplitMix64::for_case(seed, 2);
    // Two holes are no trace of a kill: the log may end in front of one.
    let frames = 1 + random.below(4) / 3;
    let pair = match SplitMix64::for_case(seed, 3).below(4) {
        0 => damage_pair(&mut image, &mut random),
        _ => None,
    };
    let what = pair.unwrap_or_else(|| {
        let each: Vec<_> = (0..frames).map(|_| damage(&mut image, &mut random)).collect();
        each.join(", ")
    });
    let fail = |error: String| format!("{what}: {error}");
    let disk = SimDisk::untracked(image);
    let mut added = Vec::new();
    let reader = ReaderOptions::new().environment(machine.environment());
    let reader =
        reader.open_storage(Arc::new(disk.clone())).map_err(|error| fail(error.to_string()))?;
    let mut before = Some((all(&reader), documents(&reader)));
    drop(reader);
    for opened in 0..3 {
        let (gate, log) = open(&disk, &machine).map_err(fail)?;
        let mut now = (all(&log), documents(&log));
        if let Some(before) = &before {
            let fail = |error| fail(format!("after {opened} openings: {error}"));
            compare(&before.0, &now.0, &added).map_err(fail)?;
            if before.1 != now.1 {
                return Err(fail(format!("documents were {:?}, are {:?}", before.1, now.1)));
            }
        }
        if random.below(3) > 0 {
            let name = format!("added-{opened}");
            let run =
                log.start_run("agent-0", &name, ()).map_err(|error| fail(error.to_string()))?;
            for _ in 0..random.index(40) {
                let _ = run.append(&[7; 2500]).map_err(|error| fail(error.to_string()))?;
            }
            let _ = run.end(&Outcome::completed()).map_err(|error| fail(error.to_string()))?;
            added.push(name);
            let key = format!("key {}", random.index(6));
            let docs = log.docs();
            let written = match random.coin() {
                true => docs.put(SPACE, &key, &NewRecord::new(b"new")).map(drop),
                false => docs.delete(SPACE, &key).map(drop),
            };
            written.map_err(|error| fail(error.to_string()))?;
            now = (all(&log), documents(&log));
        }
        before = Some(now);
        if random.coin() {
            gate.shut();
        } else {
            log.close().map_err(|error| fail(error.to_string()))?;
        }
    }
    Ok(())
}

#[test]
fn all_openings_of_a_damaged_store_say_the_same() {
    let only = std::env::var("RUNLOG_AGREE_SEED").ok().map(|text| text.parse().expect("a number"));
    let count = variable("RUNLOG_AGREE", 300);
    let seeds = only.map_or(0..count, |seed: u64| seed..seed + 1);
    let mut wrong = Vec::new();
    for seed in seeds.clone() {
        let checked = catch_unwind(AssertUnwindSafe(|| check(seed)));
        let checked = checked.unwrap_or_else(|_| Err("a panic".to_owned()));
        if let Err(error) = checked {
            println!("RUNLOG_AGREE_SEED={seed}: {error:.600}");
            wrong.push(seed);
        }
    }
    assert!(wrong.is_empty(), "{} of {} stores: {wrong:?}", wrong.len(), seeds.count());
}
