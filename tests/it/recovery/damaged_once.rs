//! One piece of a store is damaged when its process dies. What the damage hit is lost, and nothing
//! else; and what another process adds after it opened the store is lost only as after any kill or
//! loss of power.
//!
//! The stores are those of [`interrupted`](crate::recovery::interrupted), whose variables choose them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

use runlog::env::Step;
use runlog::format::frames::frame::FLAG_BATCH;
use runlog::format::{EXTENTS_AT, FrameKind, SUPERBLOCK_AT};
use runlog::{
    Allow, Corruption, Durability, Error, LogPosition, Metadata, NewRecord, Outcome, Place,
    ReadLog, ReaderOptions, RunLog, RunQuery,
};
use runlog_sim::{CrashImages, OpKind, SimDisk, SplitMix64, Survivors};

use crate::recovery::agreeing::{all, compare, damage};
use crate::recovery::interrupted::{
    Loss, aligned, check_seeds, check_so_many, is_aligned, left, machine,
};
use crate::support::cuts::open;
use crate::support::frames::{EXTENT, frames_in};
use crate::support::world::Machine;

/// What was added to a damaged store: records with numbers, by the operations after which they
/// were acknowledged, at Process level and at Disk level.
#[derive(Default)]
struct Added {
    process: Vec<usize>,
    durable: Vec<usize>,
    /// Where batches begin, and their lengths.
    batches: Vec<(usize, usize)>,
    deleted: Vec<(String, usize)>,
}

const MARK: &[u8] = b"<added>";

fn record(payload: &[u8]) -> NewRecord<'_> {
    NewRecord::new(payload).durability(Durability::Process)
}

fn numbered(number: usize, len: usize) -> Vec<u8> {
    let mut payload = MARK.to_vec();
    payload.extend(number.to_le_bytes());
    payload.resize(payload.len() + len, 0xdd);
    payload
}

/// Adds records to runs, for as long as there is space.
fn add(
    log: &RunLog,
    disk: &SimDisk,
    (machine, seed): (&Machine, u64),
    random: &mut SplitMix64,
) -> Result<Added, Error> {
    let mut added = Added::default();
    let done = match is_aligned(seed) {
        true => add_aligned(log, disk, random, &mut added),
        false => add_some(log, disk, machine, random, &mut added),
    };
    match done {
        Err(error) if error.is_disk_full() => Ok(added),
        done => done.map(|()| added),
    }
}

/// Adds records of one sector to a run that has some, each of which must be there in a process
/// that only reads, once it was refreshed.
fn add_aligned(
    log: &RunLog,
    disk: &SimDisk,
    random: &mut SplitMix64,
    added: &mut Added,
) -> Result<(), Error> {
    let reader = ReaderOptions::new().open_storage(Arc::new(disk.clone()))?;
    for number in 0..random.index(9) {
        let payload = numbered(number, aligned(log)?.saturating_sub(MARK.len() + 8));
        match log.append_to("agent-0", "run-0", &record(&payload), Allow::nothing()) {
            // Its beginning may be damaged, or left out.
            Err(Error::Corrupt(_) | Error::RunNotFound { .. }) => break,
            done => drop(done?),
        }
        added.process.push(disk.op_count());
        if random.coin() {
            let _ = reader.refresh()?;
            let seen = records(&reader).map(|(_, numbers)| numbers.len());
            assert_eq!(seen, Ok(number + 1), "what a refresh shows");
        }
    }
    log.sync()?;
    added.durable.resize(added.process.len(), disk.op_count());
    Ok(())
}

/// Where something is wrong with a store: in which segments, or elsewhere.
fn problems(log: &RunLog) -> Result<BTreeSet<String>, String> {
    let report = log.verify().map_err(|error| error.to_string())?;
    let place = |found: &Corruption| match found.place {
        Place::Frame(LogPosition { segment, .. }) | Place::Directory { segment } => {
            format!("{segment:?}")
        }
        place => format!("{place:?}"),
    };
    Ok(report.problems.iter().map(place).collect())
}

fn add_some(
    log: &RunLog,
    disk: &SimDisk,
    machine: &Machine,
    random: &mut SplitMix64,
    added: &mut Added,
) -> Result<(), Error> {
    let background = machine.background.clone().expect("it has one");
    let large = [100, 1200, 6000][random.index(3)];
    let about = Metadata::default().durability(Durability::Process);
    drop(log.start_run("agent-1", "added", about)?);
    for _ in 0..random.index(60) {
        machine.clock.advance(1_000_000);
        let name = ["run-0", "run-1", "added", "added"][random.index(4)];
        let agent = if name == "added" { "agent-1" } else { "agent-0" };
        if agent == "agent-0"
            && !matches!(log.run((agent, name)), Ok(run) if !run.status.is_ended())
        {
            continue;
        }
        let first = added.process.len();
        match random.below(20) {
            0 => {
                log.sync()?;
                added.durable.resize(first, disk.op_count());
            }
            1 => drop(background.run(Step::ALL[random.index(Step::ALL.len())])),
            2 => {
                // Nothing is added to this one.
                let end = Outcome::failed().durability(Durability::Process);
                let _ = log.end_run("agent-0", "run-2", &end, Allow::nothing());
                if log.delete_run(("agent-0", "run-2")).is_ok() {
                    added.deleted.push(("run-2".to_owned(), disk.op_count()));
                }
            }
            3..6 => {
                let count = 2 + random.index(5);
                let payloads: Vec<_> = (first..first + count)
                    .map(|number| numbered(number, random.index(large)))
                    .collect();
                let records: Vec<_> = payloads.iter().map(|payload| record(payload)).collect();
                match log.append_batch_to(agent, name, &records, Allow::nothing()) {
                    Err(Error::Corrupt(_)) => continue,
                    done => drop(done?),
                }
                added.batches.push((first, count));
                added.process.resize(first + count, disk.op_count());
            }
            _ => {
                let payload = numbered(first, random.index(large));
                match log.append_to(agent, name, &record(&payload), Allow::nothing()) {
                    Err(Error::Corrupt(_)) => continue,
                    done => drop(done?),
                }
                added.process.push(disk.op_count());
            }
        }
    }
    Ok(())
}

/// The records of a store: those that were there before, by run, and the numbers of the others.
type Records = (BTreeMap<String, Vec<Vec<u8>>>, Vec<usize>);

fn records(log: &impl ReadLog) -> Result<Records, String> {
    let (mut before, mut numbers) = (BTreeMap::new(), Vec::new());
    let runs = log.list_runs(&RunQuery::new().limit(1000)).map_err(|error| error.to_string())?.runs;
    for run in runs {
        let trace = log.trace((run.agent.as_str(), run.run.as_str()));
        let Ok(trace) = trace else { continue };
        for record in trace.flatten() {
            match record.payload().strip_prefix(MARK) {
                Some(rest) => {
                    numbers.push(usize::from_le_bytes(rest[..8].try_into().expect("eight")));
                }
                None => {
                    let name = format!("{}/{}", run.agent, run.run);
                    let all: &mut Vec<Vec<u8>> = before.entry(name).or_default();
                    all.push(record.payload().to_vec());
                }
            }
        }
    }
    numbers.sort_unstable();
    Ok((before, numbers))
}

/// Damages one piece: a frame, some pages of the log, the header of a segment, or a superblock.
fn damage_piece(image: &mut [u8], random: &mut SplitMix64) -> String {
    let first = usize::try_from(EXTENTS_AT).unwrap();
    let used = image.iter().rposition(|byte| *byte != 0).unwrap_or(0).max(first);
    match random.below(6) {
        0 => {
            let start = (first + random.index(used + 1 - first)) / 512 * 512;
            let end = (start + 512 * (1 + random.index(8))).min(image.len());
            image[start..end].fill(if random.coin() { 0 } else { 0xff });
            format!("{start:#x}..{end:#x}")
        }
        1 => {
            let start = (first + random.index(used + 1 - first)) / EXTENT * EXTENT;
            image[start + random.index(64)] ^= 1 << random.below(8);
            format!("the header at {start:#x}")
        }
        2 => {
            let at = usize::try_from(SUPERBLOCK_AT).unwrap() + random.index(2) * 4096;
            image[at + random.index(180)] ^= 1 << random.below(8);
            format!("the superblock at {at:#x}")
        }
        _ if frames_in(image, 0).is_empty() => "nothing".to_owned(),
        _ => damage(image, random),
    }
}

/// Loses the last frame of a store with frames of one sector.
fn lose_last(image: &mut [u8], random: &mut SplitMix64) -> String {
    match frames_in(image, 0).pop() {
        Some((range, _)) => {
            image[range].fill(if random.coin() { 0 } else { 0xff });
            "the last frame".to_owned()
        }
        None => "nothing".to_owned(),
    }
}

fn check_added(seed: u64) -> Result<(), String> {
    let mut random = SplitMix64::for_case(seed, 3);
    let losses = [Loss::Kill, Loss::Power, Loss::Resumed];
    let is_aligned = is_aligned(seed);
    let first = match is_aligned {
        true => [Loss::Power, Loss::Closed][random.index(2)],
        false => losses[random.index(3)],
    };
    let mut machine = machine(seed);
    let mut image = left(seed, &machine, first);
    machine.boot += u64::from(first == Loss::Power);
    let damage = if is_aligned && random.coin() { lose_last } else { damage_piece };
    let mut told = format!("{first:?}, damaged {}", damage(&mut image, &mut random));
    let fail = |told: &str, error: String| format!("{told}: {error}");
    let disk = SimDisk::recording_from(image);
    let is_full = is_aligned || random.coin();
    if is_full {
        disk.set_capacity(disk.allocated() + (random.below(3) << 13));
        told += ", full";
    }
    while random.below(3) != 0 {
        // It drops pages, which the next opening still sees.
        disk.fail_nth(OpKind::Sync, random.below(6), ErrorKind::Other);
        if let Ok((gate, log)) = open(&disk, &machine) {
            disk.clear_faults();
            gate.shut();
            drop(log);
            break;
        }
        disk.clear_faults();
        told += ", a failed sync";
    }
    let (gate, log) = match open(&disk, &machine) {
        // What has lost its manifest needs space.
        Err(error) if is_full && error.contains("space") => return Ok(()),
        opened => opened.map_err(|error| fail(&told, error))?,
    };
    let opened = disk.op_count();
    told += &format!("\n   {}", log.recovery_report());
    let (before, _) = records(&log).map_err(|error| fail(&told, error))?;
    let known = problems(&log).map_err(|error| fail(&told, error))?;
    let added = add(&log, &disk, (&machine, seed), &mut random);
    let added = added.map_err(|error| fail(&told, format!("while it is used: {error}")))?;
    gate.shut();
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    let mut boundary = opened + random.index(recording.ops.len() + 1 - opened);
    if random.coin() {
        boundary = recording.ops.len();
    }
    crashes.seek(boundary);
    // A resumed machine may show one piece that is lost, which may be damage.
    let second = if is_aligned { Loss::Power } else { losses[random.index(2)] };
    let mut image = Vec::new();
    if second == Loss::Kill {
        let _ = crashes.killed_within_into(&mut random, &mut image);
    } else {
        let mut survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
        if random.coin() {
            survivors = Survivors::Nothing;
        }
        told += &format!("\n   {survivors:?}");
        crashes.image_into(survivors, random.next_u64(), &mut image);
    }
    machine.boot += u64::from(second == Loss::Power);
    told += &format!("\n   {second:?} at {boundary} of {}", recording.ops.len());
    let levels = if second == Loss::Kill { &added.process } else { &added.durable };
    let least = levels.iter().take_while(|done| **done <= boundary).count();
    let disk = SimDisk::untracked(image);
    let mut said = None;
    for opening in 0..3 {
        let (gate, log) = open(&disk, &machine).map_err(|error| fail(&told, error))?;
        told += &format!("\n   {}", log.recovery_report());
        let fail = |error: String| fail(&told, format!("opening {opening}: {error}"));
        let (old, numbers) = records(&log).map_err(fail)?;
        let count = numbers.len();
        if !numbers.iter().copied().eq(0..count) || count < least {
            return Err(fail(format!("of {} at least {least}: {numbers:?}", added.process.len())));
        }
        let is_half = |(first, len): &(usize, usize)| (first + 1..first + len).contains(&count);
        if let Some(batch) = added.batches.iter().find(|batch| is_half(batch)) {
            return Err(fail(format!("{count} of the batch {batch:?}")));
        }
        for (run, payloads) in &before {
            let deleted = added.deleted.iter().find(|(name, _)| run.ends_with(name));
            match old.get(run) {
                Some(_) if deleted.is_some_and(|(_, done)| *done <= boundary) => {
                    return Err(fail(format!("{run} is back")));
                }
                found if deleted.is_none() && found != Some(payloads) => {
                    let count = found.map(Vec::len);
                    return Err(fail(format!("{run} has {count:?} of {}", payloads.len())));
                }
                _ => {}
            }
        }
        if second != Loss::Resumed
            && let Some(new) = problems(&log).map_err(fail)?.difference(&known).next()
        {
            return Err(fail(format!("another problem: {new}, besides {known:?}")));
        }
        let now = all(&log).map_err(fail)?;
        if let Some(said) = &said {
            compare(said, &now, &[]).map_err(fail)?;
        }
        said = Some(now);
        gate.shut();
    }
    Ok(())
}

/// The runs and sequences of all records that can be read.
fn readable(log: &impl ReadLog) -> Result<BTreeSet<(u64, u64)>, String> {
    let mut found = BTreeSet::new();
    let runs = log.list_runs(&RunQuery::new().limit(1000)).map_err(|error| error.to_string())?.runs;
    for run in runs {
        let Ok(trace) = log.trace((run.agent.as_str(), run.run.as_str())) else { continue };
        found.extend(trace.flatten().map(|record| (run.number().0, record.seq().0)));
    }
    Ok(found)
}

/// After a kill, damage costs the records whose frames it hit, and nothing else.
fn check_cost(seed: u64) -> Result<(), String> {
    let mut random = SplitMix64::for_case(seed, 4);
    let machine = machine(seed);
    let good = left(seed, &machine, Loss::Kill);
    let (gate, log) = open(&SimDisk::untracked(good.clone()), &machine)?;
    let expected = readable(&log)?;
    gate.shut();
    let mut image = good.clone();
    let what = damage_piece(&mut image, &mut random);
    let differs = |at: &usize| good[*at] != image[*at];
    let Some(first) = (0..good.len()).find(differs) else { return Ok(()) };
    let last = (0..good.len()).rfind(differs).expect("there is one");
    let all: Vec<_> = (0..9).flat_map(|number| frames_in(&good, number)).collect();
    let is_hit = |range: &Range<usize>| range.start <= last && first < range.end;
    let hit: Vec<_> = all.iter().filter(|(range, _)| is_hit(range)).collect();
    let frame_of: BTreeMap<_, _> = all
        .iter()
        .filter(|(_, frame)| frame.kind == FrameKind::Record)
        .map(|(range, frame)| ((frame.run_no.0, frame.seq.0), (range.clone(), frame.flags)))
        .collect();
    // Large records are in several frames. A SEAL frame of which nothing is left, as zeros, shows
    // that the page cache is lost.
    let has = |kind| hit.iter().any(|(_, frame)| frame.kind == kind);
    // Damage to several frames looks like a lost page cache.
    if hit.len() != 1 || has(FrameKind::Chunk) || (has(FrameKind::Seal) && image[last] == 0) {
        return Ok(());
    }
    let (gate, log) = open(&SimDisk::untracked(image), &machine)
        .map_err(|error| format!("damaged {what}: {error}"))?;
    let found = readable(&log)?;
    // A batch at the end of the log needs its COMMIT.
    let may_go = |(range, flags): &(Range<usize>, u8)| is_hit(range) || *flags & FLAG_BATCH != 0;
    let is_kept = |key: &&(u64, u64)| !frame_of.get(*key).is_some_and(may_go);
    let lost: Vec<_> = expected.difference(&found).filter(is_kept).collect();
    gate.shut();
    if lost.is_empty() {
        return Ok(());
    }
    let hit: Vec<_> = hit.iter().map(|(range, frame)| (range.start, frame.kind)).collect();
    let lost: Vec<_> = lost.iter().map(|key| (key, frame_of.get(*key))).collect();
    Err(format!(
        "damaged {what} ({first:#x}..={last:#x}), hit {hit:x?}, lost {} of {}: {:x?}\n   {}",
        lost.len(),
        expected.len(),
        &lost[..lost.len().min(4)],
        log.recovery_report()
    ))
}

#[test]
fn damage_after_a_kill_costs_what_it_hit() {
    check_seeds(check_cost);
}

#[test]
fn what_is_added_to_a_damaged_store_is_a_prefix_after_the_next_loss() {
    check_so_many(check_added, 10);
}
