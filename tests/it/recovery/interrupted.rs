//! Recoveries that are interrupted again and again, each time somewhere else, end with what one
//! without an interruption finds.
//!
//! Method: a process appends at Process level, alone and in batches, over segments of which the
//! manifest does not know that they are full. Then it is killed, or the power goes, or a virtual
//! machine is resumed: power is lost and the boot id stays. Perhaps a frame is damaged, and perhaps
//! the disk is full. A process that only reads says what the store has. Then some openings in a row
//! are interrupted at any of their operations: by a kill, or by a loss of power if there was one
//! before. In between, a truncation marker or a superblock may be damaged, if nothing else was.
//! After each of these a process that only reads, and in the end two openings, say the same again.
//!
//! A second campaign opens the store on one disk, of which syncs may fail, and which is full at
//! times. What a failed sync dropped, the next openings still see, and a loss of power takes.
//!
//! - `RUNLOG_INTERRUPTED`: how many stores.
//! - `RUNLOG_INTERRUPTED_FIRST`: the first of them.
//! - `RUNLOG_INTERRUPTED_SEED`: only this one.

use std::io::ErrorKind;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use runlog::env::Step;
use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::map::superblock::Superblock;
use runlog::format::segments::segment::SegmentHeader;
use runlog::format::{EXTENTS_AT, FrameHeader, FrameKind, SUPERBLOCK_AT};
use runlog::{Batch, Durability, Error, Metadata, NewRecord, Outcome, ReaderOptions, RunLog};
use runlog_sim::{CrashImages, Fault, OpKind, SimDisk, SplitMix64, Survivors};

use crate::recovery::agreeing::{Said, all, compare, damage};
use crate::support::background::Background;
use crate::support::campaign::variable;
use crate::support::cuts::open;
use crate::support::frames::{EXTENT, frames_in};
use crate::support::model::SPACE;
use crate::support::world::Machine;

/// How the first process ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Loss {
    Kill,
    Power,
    /// The page cache is lost, and the boot id stays.
    Resumed,
    /// Nothing is lost.
    Closed,
}

pub(crate) fn machine(seed: u64) -> Machine {
    Machine {
        background: Some(Background::default()),
        automatic: false,
        index: seed % 4 == 0,
        ..Machine::new(seed, 1)
    }
}

/// Whether the frames of a store are all of one sector: so what is written into a sector stores no
/// part of another frame.
pub(crate) fn is_aligned(seed: u64) -> bool {
    seed % 4 == 2
}

/// A payload whose frame ends where a sector does.
pub(crate) fn aligned(log: &RunLog) -> Result<usize, Error> {
    let start = log.stats()?.end.offset as usize + FRAME_HEADER_LEN;
    Ok((start + 64).next_multiple_of(512) - start)
}

/// Appends to one run, one sector at a time.
fn work_aligned(log: &RunLog, random: &mut SplitMix64) -> Result<(), Error> {
    let about = Metadata::default().durability(Durability::Process);
    let run = log.start_run("agent-0", "run-0", about)?;
    for step in 0..10 + random.index(40) {
        let _ = run.append(&vec![step as u8; aligned(log)?])?;
        if random.below(20) == 0 {
            log.sync()?;
        }
    }
    Ok(())
}

/// Appends to runs and writes documents, mostly at Process level.
fn work(log: &RunLog, machine: &Machine, random: &mut SplitMix64) -> Result<(), Error> {
    let background = machine.background.clone().expect("it has one");
    let about = || Metadata::default().durability(Durability::Process);
    let runs = 1 + random.index(3);
    let name = |run: usize| format!("run-{run}");
    for run in 0..runs {
        drop(log.start_run("agent-0", &name(run), about())?);
    }
    if random.coin() {
        log.sync()?;
    }
    let large = [200, 1200, 5000][random.index(3)];
    // Batches alone may be all that is in a segment.
    let batches = [2, 10, 30][random.index(3)];
    let mut ended = vec![false; runs];
    for step in 0..10 + random.index(90) {
        machine.clock.advance(1_000_000);
        let run = random.index(runs);
        let payload: Vec<u8> = vec![step as u8; random.index(large)];
        let record = |payload| NewRecord::new(payload).durability(Durability::Process);
        match random.below(40) {
            0 => log.sync()?,
            1 if !ended[run] => {
                let outcome = Outcome::failed().durability(Durability::Process);
                let _ = log.writer(("agent-0", &*name(run)))?.end(&outcome)?;
                ended[run] = true;
            }
            2..4 => {
                let mut batch = Batch::new();
                batch.put(SPACE, "key 1", record(&payload)).put(SPACE, "key 2", record(&payload));
                let _ = log.commit(batch.durability(Durability::Process))?;
            }
            4..6 => drop(background.run(Step::Reserve)),
            6 => drop(background.run(Step::ALL[random.index(Step::ALL.len())])),
            _ if ended[run] => {}
            kind if kind < 7 + batches => {
                let records: Vec<_> = (0..2 + random.index(6)).map(|_| record(&payload)).collect();
                let _ = log.writer(("agent-0", &*name(run)))?.append_batch(&records)?;
            }
            _ => drop(log.writer(("agent-0", &*name(run)))?.append_record(&record(&payload))?),
        }
    }
    Ok(())
}

/// What the first process leaves.
pub(crate) fn left(seed: u64, machine: &Machine, loss: Loss) -> Vec<u8> {
    let mut random = SplitMix64::for_case(seed, 1);
    let disk = SimDisk::recording();
    let log = machine.options().create_storage(Arc::new(disk.clone())).unwrap();
    let created = disk.op_count();
    let work = if is_aligned(seed) {
        work_aligned(&log, &mut random)
    } else {
        work(&log, machine, &mut random)
    };
    work.unwrap();
    if loss == Loss::Closed {
        log.close().unwrap();
        return disk.image();
    }
    let recording = disk.take_recording();
    drop(log);
    let mut crashes = CrashImages::new(&recording);
    let ops = recording.ops.len();
    let back = random.index((ops - created).min(40));
    crashes.seek(ops - back);
    let mut image = Vec::new();
    match loss {
        Loss::Kill | Loss::Closed => drop(crashes.killed_within_into(&mut random, &mut image)),
        Loss::Power | Loss::Resumed => {
            let survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
            crashes.image_into(survivors, random.next_u64(), &mut image);
        }
    }
    image
}

fn read(image: &[u8], machine: &Machine) -> Result<Said, String> {
    let reader = ReaderOptions::new().environment(machine.environment());
    let disk = Arc::new(SimDisk::untracked(image.to_vec()));
    let reader = reader.open_storage(disk).map_err(|error| format!("a reader: {error}"))?;
    all(&reader)
}

/// Opens the store, and interrupts that. Returns what is left.
fn interrupt(
    image: &[u8],
    machine: &Machine,
    (is_full, loss): (bool, Loss),
    random: &mut SplitMix64,
) -> Result<(Vec<u8>, String), String> {
    let disk = SimDisk::recording_from(image.to_vec());
    if is_full {
        disk.set_capacity(disk.allocated());
    }
    let (gate, log) = open(&disk, machine)?;
    let report = format!("{}", log.recovery_report());
    gate.shut();
    drop(log);
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    let boundary = random.index(recording.ops.len() + 1);
    crashes.seek(boundary);
    let mut left = Vec::new();
    let at = format!("{boundary} of {}", recording.ops.len());
    if loss == Loss::Kill || random.coin() {
        let _ = crashes.killed_within_into(random, &mut left);
        return Ok((left, format!("killed at {at}, {report}")));
    }
    let survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
    crashes.image_into(survivors, random.next_u64(), &mut left);
    Ok((left, format!("power lost at {at}, {survivors:?}, {report}")))
}

/// Damages a truncation marker, or the newest superblock.
fn damage_recovery(image: &mut [u8], random: &mut SplitMix64) -> Option<String> {
    let bit = 1 << random.below(8);
    if random.below(3) == 0 {
        let slots = [0, 1].map(|slot| usize::try_from(SUPERBLOCK_AT).unwrap() + slot * 4096);
        let newest = slots.into_iter().max_by_key(|at| {
            Superblock::decode(&image[*at..*at + 4096]).map_or(0, |block| block.epoch.0)
        })?;
        image[newest + random.index(180)] ^= bit;
        return Some("the newest superblock".to_owned());
    }
    let markers = markers(image);
    let range = markers.get(random.index(markers.len().max(1)))?;
    let end = if random.coin() { 72 } else { range.len() };
    image[range.start + random.index(end)] ^= bit;
    Some(format!("the truncation marker at {:#x}", range.start))
}

/// Where truncation markers are in a file.
pub(crate) fn markers(image: &[u8]) -> Vec<Range<usize>> {
    let first = usize::try_from(EXTENTS_AT).unwrap();
    let mut found = Vec::new();
    for start in (first..image.len().saturating_sub(EXTENT - 1)).step_by(EXTENT) {
        let Ok(header) = SegmentHeader::decode(&image[start..]) else { continue };
        for at in (0..u32::try_from(EXTENT).unwrap()).step_by(8) {
            let bytes = &image[start + at as usize..start + EXTENT];
            let Ok(frame) = FrameHeader::decode(bytes, header.key, at) else { continue };
            if frame.kind == FrameKind::Seal && frame.extra < at {
                let from = start + at as usize;
                found.push(from..(from + frame.frame_len()).min(start + EXTENT));
            }
        }
    }
    found
}

fn check(seed: u64) -> Result<(), String> {
    let mut random = SplitMix64::for_case(seed, 2);
    let loss = [Loss::Kill, Loss::Power, Loss::Resumed][random.index(3)];
    let mut machine = machine(seed);
    let mut image = left(seed, &machine, loss);
    machine.boot += u64::from(loss == Loss::Power);
    let mut told = format!("{loss:?}");
    let mut may_damage = random.coin();
    if !may_damage && random.coin() && !frames_in(&image, 0).is_empty() {
        told += &format!(", damaged {}", damage(&mut image, &mut random));
    }
    let is_full = random.below(4) == 0;
    if is_full {
        told += ", full";
    }
    let fail = |told: &str, error: String| format!("{told}: {error}");
    let expected = read(&image, &machine).map_err(|error| fail(&told, error))?;
    for _ in 0..random.index(5) {
        let next = interrupt(&image, &machine, (is_full, loss), &mut random);
        let what;
        (image, what) = match next {
            // What has lost its manifest needs space.
            Err(error) if is_full && told.contains("manifest") && error.contains("space") => {
                return Ok(());
            }
            next => next.map_err(|error| fail(&told, error))?,
        };
        told += &format!("\n   {what}");
        if may_damage
            && random.below(3) == 0
            && let Some(what) = damage_recovery(&mut image, &mut random)
        {
            may_damage = false;
            told += &format!("\n   damaged {what}");
        }
        let now = read(&image, &machine).map_err(|error| fail(&told, error))?;
        compare(&expected, &now, &[]).map_err(|error| fail(&told, format!("a reader: {error}")))?;
    }
    let disk = SimDisk::untracked(image);
    for opening in 0..2 {
        let (gate, log) = match open(&disk, &machine) {
            // What has lost its manifest needs space.
            Err(error) if is_full && told.contains("manifest") && error.contains("space") => {
                return Ok(());
            }
            opened => opened.map_err(|error| fail(&told, error))?,
        };
        told += &format!("\n   {}", log.recovery_report());
        let now = all(&log).map_err(|error| fail(&told, error))?;
        compare(&expected, &now, &[])
            .map_err(|error| fail(&told, format!("opening {opening}: {error}")))?;
        gate.shut();
    }
    Ok(())
}

/// Opens the store once, on a disk that may be full, of which a sync may fail, in a process that
/// may die meanwhile. Returns what happened.
fn open_badly(disk: &SimDisk, machine: &Machine, random: &mut SplitMix64) -> String {
    let is_full = random.below(3) == 0;
    disk.set_capacity(if is_full { disk.allocated() } else { u64::MAX });
    let fault = Fault::short(ErrorKind::Other, random.index(200));
    let how = match random.below(4) {
        0 => {
            let number = random.below(8);
            disk.fail_nth(OpKind::Sync, number, fault);
            format!("sync {number} fails")
        }
        1 | 2 => {
            let number = random.index(40);
            disk.fail_from(disk.op_count() + number, fault);
            format!("killed at {number}")
        }
        _ => "not interrupted".to_owned(),
    };
    let opened = open(disk, machine);
    disk.clear_faults();
    let found = match opened {
        Ok((gate, log)) => {
            gate.shut();
            format!("{}", log.recovery_report())
        }
        Err(error) => error,
    };
    format!("{}{how}: {found}", if is_full { "full, " } else { "" })
}

/// All openings are on one disk: what a failed sync drops stays dropped for the next ones, until
/// the power goes.
fn check_on_one_disk(seed: u64) -> Result<(), String> {
    let mut random = SplitMix64::for_case(seed, 5);
    let loss = [Loss::Kill, Loss::Power, Loss::Resumed][random.index(3)];
    let mut machine = machine(seed);
    let mut image = left(seed, &machine, loss);
    machine.boot += u64::from(loss == Loss::Power);
    let mut told = format!("{loss:?}");
    if random.below(3) == 0 && !frames_in(&image, 0).is_empty() {
        told += &format!(", damaged {}", damage(&mut image, &mut random));
    }
    let fail = |told: &str, error: String| format!("{told}: {error}");
    let disk = SimDisk::from_image(image);
    let expected = read(&disk.image(), &machine).map_err(|error| fail(&told, error))?;
    let has_index = machine.index;
    for _ in 0..1 + random.index(6) {
        machine.index = has_index && random.coin();
        told += &format!("\n   {}", open_badly(&disk, &machine, &mut random));
        if loss != Loss::Kill && random.coin() {
            let survivors = Survivors::ALL[random.index(Survivors::ALL.len())];
            disk.lose_power(survivors, random.next_u64());
            machine.boot += u64::from(loss == Loss::Power && random.coin());
            told += &format!("\n   power lost, {survivors:?}");
        }
        let now = read(&disk.image(), &machine).map_err(|error| fail(&told, error))?;
        compare(&expected, &now, &[]).map_err(|error| fail(&told, format!("a reader: {error}")))?;
    }
    disk.set_capacity(u64::MAX);
    for opening in 0..2 {
        let (gate, log) = open(&disk, &machine).map_err(|error| fail(&told, error))?;
        told += &format!("\n   {}", log.recovery_report());
        let now = all(&log).map_err(|error| fail(&told, error))?;
        compare(&expected, &now, &[])
            .map_err(|error| fail(&told, format!("opening {opening}: {error}")))?;
        gate.shut();
        drop(log);
        // What an opening found is durable, also behind damage that a kill left.
        disk.lose_power(Survivors::Nothing, 1);
        machine.boot += u64::from(loss == Loss::Kill);
    }
    Ok(())
}

/// Checks the seeds that the variables choose.
pub(crate) fn check_seeds(check: fn(u64) -> Result<(), String>) {
    check_so_many(check, 1);
}

/// The same for so many times as many seeds.
pub(crate) fn check_so_many(check: fn(u64) -> Result<(), String>, times: u64) {
    let only = std::env::var("RUNLOG_INTERRUPTED_SEED").ok();
    let only = only.map(|text| text.parse().expect("a number"));
    let count = variable("RUNLOG_INTERRUPTED", 300);
    let first = variable("RUNLOG_INTERRUPTED_FIRST", 0);
    let seeds = only.map_or(first..first + times * count, |seed: u64| seed..seed + 1);
    let mut wrong = Vec::new();
    for seed in seeds.clone() {
        let checked = catch_unwind(AssertUnwindSafe(|| check(seed)));
        let checked = checked.unwrap_or_else(|_| Err("a panic".to_owned()));
        if let Err(error) = checked {
            println!("RUNLOG_INTERRUPTED_SEED={seed}: {error:.1500}");
            wrong.push(seed);
        }
    }
    assert!(wrong.is_empty(), "{} of {} stores: {wrong:?}", wrong.len(), seeds.count());
}

#[test]
fn recoveries_that_are_interrupted_end_with_what_one_alone_finds() {
    check_seeds(check);
}

#[test]
fn recoveries_on_a_failing_disk_end_with_what_one_alone_finds() {
    check_so_many(check_on_one_disk, 4);
}
