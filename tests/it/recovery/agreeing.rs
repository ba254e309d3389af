//! All openings of a store agree, whatever was damaged when the process died.
//!
//! Goal: what the first opening decides about a damaged frame, each later opening decides too. It
//! does not go by frames first and by a directory afterwards, or by a floor that it raised itself.
//!
//! Method: a process dies with segments that are full and of which the manifest does not know, and
//! with frames that no sync covers. A frame is damaged, or two, or the ids of a run and the
//! directory of the same segment, or the last record of the manifest. A process that only reads
//! asks everything. Then the store is opened, with an index or without one, asked, used or not,
//! killed or closed, and opened again. It must say again what it said, and list runs in the same
//! order, of which policies delete the same. What was added must be there, and what was deleted
//! before or in between must stay deleted. A process that reads beside the writer and one that
//! begins to read must say the same too.
//!
//! In some stores a run has only its START and a HOLD, perhaps in the next segment, and the START
//! is damaged: nothing says then when it began, until it goes on.
//!
//! - `RUNLOG_AGREE`: how many damaged stores.
//! - `RUNLOG_AGREE_SEED`: only this one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::map::manifest::RECORD_LEN;
use runlog::format::segments::segment::{SEGMENT_HEADER_LEN, SegmentHeader};
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind};
use runlog::{
    Allow, Error, NewRecord, Outcome, ReadLog, Reader, ReaderOptions, Retention, RunLog, RunQuery,
    RunStatus,
};
use runlog_sim::{SimDisk, SplitMix64};

use crate::recovery::bit_flips::{Answers, answers};
use crate::support::background::Background;
use crate::support::campaign::variable;
use crate::support::cuts::open;
use crate::support::harm::{last_uncounted, unsealed};
use crate::support::model::SPACE;
use crate::support::world::{EXTENT, Machine, World};

type Documents = BTreeMap<String, Option<Vec<u8>>>;

/// The run of which a START and a HOLD are all that there is.
const HELD: &str = "held-alone";

/// The ages of runs that a policy deletes; a world takes about as long.
const AGE: Duration = Duration::from_millis(100);

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
    if random.below(3) == 0 {
        hold_alone(&mut world, &mut random);
    }
    let image = world.abandon().disk.image();
    machine.boot += random.below(4) / 3;
    (machine, image)
}

/// Starts a run, and holds it, perhaps in another segment and for a moment only.
fn hold_alone(world: &mut World, random: &mut SplitMix64) {
    let run = ("agent-0", HELD);
    drop(world.log().start_run(run.0, run.1, ()).unwrap());
    let segment = |world: &World| world.log().stats().unwrap().end.segment;
    let begun = segment(world);
    while random.below(40) > 0 && segment(world) == begun {
        world.step();
    }
    assert!(world.log().hold(run, "why").unwrap());
    if random.coin() {
        assert!(world.log().release(run).unwrap());
    }
    (0..random.index(20)).for_each(|_| world.step());
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

/// A process that begins to read.
fn read(disk: &SimDisk, machine: &Machine) -> Result<Reader, String> {
    let reader = ReaderOptions::new().environment(machine.environment());
    reader.open_storage(Arc::new(disk.clone())).map_err(|error| error.to_string())
}

/// Adds a run, and changes others. Returns the name of the new one.
fn change(
    log: &RunLog,
    machine: &Machine,
    random: &mut SplitMix64,
    opened: usize,
) -> Result<String, Error> {
    let pass = || machine.clock.advance(10_000_000);
    let name = format!("added-{opened}");
    pass();
    go_on(log, random)?;
    pass();
    let run = log.start_run("agent-0", &name, ())?;
    for _ in 0..random.index(40) {
        let _ = run.append(&[7; 2500])?;
    }
    let _ = run.end(&Outcome::completed())?;
    pass();
    go_on(log, random)?;
    let key = format!("key {}", random.index(6));
    let docs = log.docs();
    match random.coin() {
        true => docs.put(SPACE, &key, &NewRecord::new(b"new")).map(drop)?,
        false => docs.delete(SPACE, &key).map(drop)?,
    }
    Ok(name)
}

/// Goes on with two runs, and with the one that is held alone: appends to them, or ends them.
fn go_on(log: &RunLog, random: &mut SplitMix64) -> Result<(), Error> {
    let query = RunQuery::new().status(RunStatus::InProgress).limit(1000);
    let mut runs = log.list_runs(&query)?.runs;
    let held = runs.iter().position(|run| run.run.as_str() == HELD);
    let held = held.filter(|_| random.coin()).map(|at| runs.swap_remove(at));
    let others = (0..2).filter_map(|_| match runs.len() {
        0 => None,
        count => Some(runs.swap_remove(random.index(count))),
    });
    let chosen: Vec<_> = others.chain(held).collect();
    for run in &chosen {
        let (agent, name) = (run.agent.as_str(), run.run.as_str());
        let done = match random.below(3) {
            0 => log.end_run(agent, name, &Outcome::failed(), Allow::nothing()).map(drop),
            1 => log.release(run).map(drop),
            _ => log.append_to(agent, name, &NewRecord::new(b"more"), Allow::nothing()).map(drop),
        };
        match done {
            Err(Error::Corrupt(_)) | Ok(()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn check(seed: u64) -> Result<(), String> {
    let (mut machine, mut image) = killed(seed);
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
    let mut before = all(&read(&disk, &machine).map_err(fail)?).map_err(fail)?;
    for opened in 0..3 {
        let fail = |error: String| fail(format!("after {opened} openings: {error}"));
        machine.index = random.below(4) > 0;
        let (gate, log) = open(&disk, &machine).map_err(fail)?;
        let mut now = all(&log).map_err(fail)?;
        compare(&before, &now, &added).map_err(fail)?;
        if random.below(3) > 0 {
            let fail = |error| fail(format!("while it is used: {error}"));
            let beside = read(&disk, &machine).map_err(fail)?;
            let changed = change(&log, &machine, &mut random, opened);
            added.push(changed.map_err(|error| fail(error.to_string()))?);
            now = all(&log).map_err(fail)?;
            beside.refresh().map_err(|error| fail(error.to_string()))?;
            for reader in [beside, read(&disk, &machine).map_err(fail)?] {
                let said = all(&reader).map_err(fail)?;
                compare(&now, &said, &added).map_err(|error| fail(format!("a reader: {error}")))?;
            }
        }
        before = now;
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
