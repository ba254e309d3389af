//! The end of a full segment is lost with its SEAL frame, and the log goes on behind it. Whatever
//! becomes of the recovery of such a store, the next one finds the same.

use std::sync::Arc;

use runlog::env::{BootId, Environment, Step};
use runlog::format::FrameKind;
use runlog::{Durability, Metadata, NewRecord, Options, Place, ReadLog, ReaderOptions, RunLog};
use runlog_sim::{CrashImages, Op, SimDisk, Survivors};

use crate::recovery::interrupted::markers;
use crate::support::background::Background;
use crate::support::frames::{EXTENT, frames_in};

/// How much of a write a kill leaves.
const STORED: [usize; 10] = [0, 8, 40, 71, 72, 73, 80, 120, 250, 1000];

fn environment(boot: u8) -> Environment {
    Environment::system().boot_id(Some(BootId([boot; 16])))
}

fn options(boot: u8) -> Options {
    options_of(boot, &Background::default())
}

fn options_of(boot: u8, background: &Background) -> Options {
    Options::new()
        .extent_size(EXTENT as u64)
        .index(false)
        .environment(environment(boot))
        .scheduler(Arc::new(background.clone()))
}

fn on(image: Vec<u8>) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image))
}

/// What a store has: of each run its records, up to the first that cannot be read.
fn contents(log: &impl ReadLog, runs: usize) -> Vec<(usize, Vec<Vec<u8>>, bool)> {
    let of_run = |number| {
        let name = format!("run {number}");
        let Ok(trace) = log.trace(("agent", name.as_str())) else { return (number, vec![], false) };
        let (mut records, mut whole) = (Vec::new(), true);
        for record in trace {
            match record {
                Ok(record) => records.push(record.payload().to_vec()),
                Err(_) => whole = false,
            }
        }
        (number, records, whole)
    };
    (0..runs).map(of_run).collect()
}

/// Reserves the next segment in the middle of the first, so that rolling syncs nothing.
fn reserve_early(log: &RunLog, background: &Background, is_done: &mut bool) {
    if !*is_done && log.stats().unwrap().end.offset as usize > EXTENT / 2 + 2000 {
        *is_done = true;
        Step::ALL.into_iter().for_each(|step| {
            background.run(step);
        });
    }
}

/// A store with runs of which nothing is known to be durable, with frames in two segments.
fn two_segments(runs: usize, len: usize, behind: usize) -> (Vec<u8>, usize) {
    let disk = SimDisk::untracked(Vec::new());
    let background = Background::default();
    let log = options_of(1, &background).create_storage(Arc::new(disk.clone())).unwrap();
    let about = || Metadata::default().durability(Durability::Process);
    let mut is_reserved = false;
    let writers: Vec<_> = (0..runs)
        .map(|run| log.start_run("agent", &format!("run {run}"), about()).unwrap())
        .collect();
    let first = log.stats().unwrap().end.segment;
    let (mut left, mut count) = (behind, 0_usize);
    while left > 0 {
        let mut payload = count.to_le_bytes().to_vec();
        payload.resize(len, 1 + (count % 200) as u8);
        let _ = writers[count % runs].append(&payload).unwrap();
        count += 1;
        reserve_early(&log, &background, &mut is_reserved);
        left -= usize::from(log.stats().unwrap().end.segment != first);
    }
    let image = disk.image();
    let (seal, _) = frames_in(&image, 0).pop().unwrap();
    let said = frames_in(&image, 1).iter().map(|(_, frame)| frame.durable).max().unwrap();
    assert!((said.offset as usize) < seal.start - EXTENT - 10_000, "{said:?}, {seal:?}");
    (image, count)
}

fn reader_of(image: &[u8], durable: bool) -> runlog::Reader {
    let options = ReaderOptions::new().environment(environment(1)).durable_only(durable);
    options.open_storage(on(image.to_vec())).unwrap()
}

/// Kills the opening of an image at each operation; calls `check` with what is left.
fn kill_opening(image: &[u8], check: &mut dyn FnMut(Vec<u8>, String)) {
    kill_opening_on(SimDisk::recording_from(image.to_vec()), check);
}

fn kill_opening_on(disk: SimDisk, check: &mut dyn FnMut(Vec<u8>, String)) {
    kill_opening_in(1, disk, check);
}

fn kill_opening_in(boot: u8, disk: SimDisk, check: &mut dyn FnMut(Vec<u8>, String)) {
    options(boot).open_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        let len = match crashes.next_op() {
            Some(Op::Write { data, .. } | Op::Store { data, .. }) => data.len(),
            _ => 0,
        };
        let ends = STORED.into_iter().chain([len.saturating_sub(8), len]);
        for stored in ends.filter(|stored| *stored <= len) {
            let at = format!("killed at {} with {stored} of {len} stored", crashes.boundary());
            check(crashes.killed(stored), at);
        }
        if !crashes.advance() {
            return;
        }
    }
}

fn report(failures: &[String]) {
    assert!(
        failures.is_empty(),
        "{} failures, e.g. {:#?}",
        failures.len(),
        &failures[..failures.len().min(8)]
    );
}

#[test]
fn a_kill_while_a_segment_without_its_end_is_closed_takes_nothing_behind_it() {
    let (good, _) = two_segments(1, 5000, 3);
    let expected = contents(&options(1).open_storage(on(good.clone())).unwrap(), 1);
    let (seal, _) = frames_in(&good, 0).pop().unwrap();
    let mut image = good;
    image[seal.start + 9] ^= 1;
    assert!(contents(&reader_of(&image, false), 1) == expected, "a reader");
    let mut failures = Vec::new();
    kill_opening(&image, &mut |image, at| {
        let reader = contents(&reader_of(&image, false), 1);
        let storage = on(image);
        for (number, boot) in [1, 1, 2].into_iter().enumerate() {
            let log = options(boot).open_storage(storage.clone()).unwrap();
            let found = contents(&log, 1);
            if found != expected || (number == 0 && reader != expected) {
                let told = log.recovery_report();
                failures.push(format!(
                    "{at}, opening {number}: {} of {} (reader {}), {told:?}",
                    found[0].1.len(),
                    expected[0].1.len(),
                    reader[0].1.len()
                ));
                break;
            }
            let verified = log.verify().unwrap();
            if !verified.is_clean() {
                failures.push(format!("{at}, opening {number}: {verified:?}"));
            }
            log.close().unwrap();
        }
    });
    report(&failures);
}

/// The first opening closes the segment with a truncation marker in front of what is lost.
#[test]
fn a_durable_end_that_is_lost_is_told_again_if_the_opening_that_found_it_is_killed() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options(1).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run 0", Metadata::default()).unwrap();
    (0..6_u8).for_each(|number| drop(run.append(&[number; 900]).unwrap()));
    drop(run);
    log.close().unwrap();
    let mut image = disk.image();
    let (last, frame) = frames_in(&image, 0).pop().unwrap();
    image[last].fill(0xff);
    told_until_sealed(&image, Place::Frame(frame.position));
}

/// The same of what was not durable: a kill loses nothing in front of a later segment.
#[test]
fn a_damaged_end_in_front_of_later_frames_is_told_again_if_the_opening_is_killed() {
    let (image, lost) = without_an_end();
    told_until_sealed(&image, lost);
}

/// A store of a killed process whose first segment has lost its last frame and its SEAL, which were
/// not durable; and where that begins.
fn without_an_end() -> (Vec<u8>, Place) {
    let (mut image, _) = two_segments(1, 5000, 3);
    let mut frames = frames_in(&image, 0);
    let (seal, _) = frames.pop().unwrap();
    let (last, frame) = frames.pop().unwrap();
    image[last.start..seal.end].fill(0xff);
    (image, Place::Frame(frame.position))
}

/// Also behind an opening that was killed. A writer goes on without it, and so does the copy.
#[test]
fn a_backup_tells_of_a_damaged_end_that_no_opening_has_told_of() {
    let (image, lost) = without_an_end();
    let (mut failures, mut told) = (Vec::new(), 0);
    let mut check = |image: Vec<u8>, at: String| {
        let (store, copy) = (on(image.clone()), on(Vec::new()));
        let reader = reader_of(&image, false);
        let first = reader.backup_to_storage(copy.clone()).unwrap().damaged;
        let has_told = first.iter().any(|one| one.place == lost);
        told += usize::from(has_told);
        if !has_told && reader.recovery_report().sealed_segments == 0 {
            failures.push(format!("{at}: {first:?}"));
        }
        let log = options(1).open_storage(store.clone()).unwrap();
        let _ = log.writer("run 0").unwrap().append(&[9; 700]).unwrap();
        let source = ReaderOptions::new().environment(environment(1));
        let second = source.open_storage(store).unwrap().backup_to_storage(copy.clone());
        let found = contents(&ReaderOptions::new().open_storage(copy).unwrap(), 1);
        if !second.as_ref().is_ok_and(|done| done.damaged.is_empty()) || found != contents(&log, 1)
        {
            failures.push(format!("{at}, behind the opening: {second:?}"));
        }
    };
    check(image.clone(), "as it is".to_owned());
    kill_opening(&image, &mut check);
    assert!(told > 10);
    report(&failures);
}

/// The log ends there then.
#[test]
fn a_backup_takes_an_end_that_a_loss_of_power_tore_for_no_damage() {
    let (image, _) = without_an_end();
    let mut failures = Vec::new();
    let mut check = |image: Vec<u8>, at: String| {
        let reader = ReaderOptions::new().environment(environment(2));
        let reader = reader.open_storage(on(image)).unwrap();
        let told = reader.backup_to_storage(on(Vec::new())).unwrap().damaged;
        if !told.is_empty() {
            failures.push(format!("{at}: {told:?}, {}", reader.recovery_report()));
        }
    };
    check(image.clone(), "as it is".to_owned());
    kill_opening_in(2, SimDisk::recording_from(image), &mut check);
    report(&failures);
}

/// Each opening tells of what is lost, also behind one that was killed, until the manifest says
/// that the segment is sealed.
fn told_until_sealed(image: &[u8], lost: Place) {
    let (mut seen, mut untold) = (0, Vec::new());
    kill_opening(image, &mut |image, at| {
        seen += markers(&image).len();
        let log = options(1).open_storage(on(image)).unwrap();
        let told = log.recovery_report();
        if told.sealed_segments == 0 && !told.damaged.iter().any(|one| one.place == lost) {
            untold.push(format!("{at}: {told}"));
        }
    });
    assert!(seen > 0);
    report(&untold);
}

#[test]
fn a_kill_while_a_torn_tail_behind_damage_is_closed_takes_nothing_in_front_of_it() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options(1).create_storage(Arc::new(disk.clone())).unwrap();
    let about = Metadata::default().durability(Durability::Process);
    let run = log.start_run("agent", "run 0", about).unwrap();
    for number in 0..6_u8 {
        let _ = run.append(&[number; 900]).unwrap();
    }
    let good = disk.image();
    drop(log);
    let frames = frames_in(&good, 0);
    let (last, second) = (frames.last().unwrap().0.clone(), frames[3].0.clone());
    for torn in [30, 200] {
        let mut image = good.clone();
        image[second.start + 80] ^= 1;
        image[last.start + torn..last.end].fill(0);
        let expected = contents(&options(1).open_storage(on(image.clone())).unwrap(), 1);
        agree_after_kills(&image, &expected, &format!("torn at {torn}"));
    }
}

/// Kills the opening at each operation, also on a full disk: the next one finds the same, also if a
/// truncation marker is damaged.
fn agree_after_kills(image: &[u8], expected: &[(usize, Vec<Vec<u8>>, bool)], case: &str) {
    let mut failures = Vec::new();
    let mut check = |image: Vec<u8>, at: String| {
        let log = options(1).open_storage(on(image)).unwrap();
        let found = contents(&log, 1);
        if found != expected {
            let (count, of, told) = (found[0].1.len(), expected[0].1.len(), log.recovery_report());
            failures.push(format!("{case}, {at}: {count} of {of}, {told:?}"));
        }
    };
    for is_full in [false, true] {
        let disk = SimDisk::recording_from(image.to_vec());
        if is_full {
            disk.set_capacity(disk.allocated());
        }
        kill_opening_on(disk, &mut |image, at| {
            // Those behind it say that the log has ended in front of them.
            for marker in markers(&image).into_iter().take(1) {
                let mut image = image.clone();
                image[marker.start + 9] ^= 1;
                check(image, format!("{at}, full {is_full}, without the marker at {marker:x?}"));
            }
            check(image, format!("{at}, full {is_full}"));
        });
    }
    report(&failures);
}

/// A virtual machine was resumed: pages at the end of a segment are lost, others behind them not.
#[test]
fn pages_that_are_lost_at_the_end_of_a_segment_leave_a_prefix_under_the_same_boot_id() {
    for (len, runs) in [(20, 3), (60, 3), (200, 2), (1500, 2)] {
        let (good, count) = two_segments(runs, len, 6);
        let frames = frames_in(&good, 0);
        let seal = frames.last().unwrap().0.clone();
        let end = seal.end.next_multiple_of(EXTENT);
        let mut lies = Vec::new();
        let floor =
            frames_in(&good, 1).iter().map(|(_, frame)| frame.durable.offset).max().unwrap();
        let first = (frames[0].0.start / EXTENT * EXTENT + floor as usize).next_multiple_of(512);
        for from in (first..seal.end).step_by(512) {
            let mut image = good.clone();
            let start = frames[0].0.start / EXTENT * EXTENT;
            if from <= start {
                continue;
            }
            image[from..end].fill(0);
            let seen = contents(&reader_of(&image, false), runs);
            let storage = on(image);
            let log = options(1).open_storage(storage.clone()).unwrap();
            let found = contents(&log, runs);
            let mut numbers: Vec<usize> = found
                .iter()
                .flat_map(|run| &run.1)
                .map(|record| usize::from_le_bytes(record[..8].try_into().unwrap()))
                .collect();
            numbers.sort_unstable();
            let is_prefix = numbers.iter().copied().eq(0..numbers.len());
            if seen != found || !is_prefix {
                let told = log.recovery_report();
                lies.push(format!("{len}, {from}: {} of {count}, {told:?}", numbers.len()));
            }
            log.close().unwrap();
            let log = options(1).open_storage(storage).unwrap();
            if contents(&log, runs) != found {
                lies.push(format!("{len}, {from}: the second opening differs"));
            }
        }
        report(&lies);
    }
}

#[test]
fn a_batch_whose_commit_is_lost_with_the_end_of_its_segment_counts_whole_or_not_at_all() {
    let about = || Metadata::default().durability(Durability::Process);
    let build = |fill: usize| {
        let disk = SimDisk::untracked(Vec::new());
        let background = Background::default();
        let log = options_of(1, &background).create_storage(Arc::new(disk.clone())).unwrap();
        let run = log.start_run("agent", "run 0", about()).unwrap();
        let mut is_reserved = false;
        for _ in 0..fill {
            let _ = run.append(&[9; 5000]).unwrap();
            reserve_early(&log, &background, &mut is_reserved);
        }
        let payloads = [[1_u8; 300], [2; 300], [3; 300]];
        let records: Vec<_> = payloads.iter().map(|payload| NewRecord::new(payload)).collect();
        let _ = run.append_batch(&records).unwrap();
        for _ in 0..3 {
            let _ = run.append(&[7; 7900]).unwrap();
        }
        (disk.image(), log.stats().unwrap().end.segment)
    };
    // So many that the batch is the last in its segment.
    let fill = (1..40).find(|fill| {
        let (image, _) = build(*fill);
        let frames = frames_in(&image, 0);
        let before = frames.len().wrapping_sub(2);
        frames.get(before).is_some_and(|(_, frame)| frame.kind == FrameKind::Commit)
            && frames.last().unwrap().1.kind == FrameKind::Seal
    });
    let (good, _) = build(fill.expect("a batch is at the end"));
    let frames = frames_in(&good, 0);
    let commit = frames.len() - 2;
    let mut failures = Vec::new();
    for first in commit - 3..=commit {
        for until in [0, 40] {
            let mut image = good.clone();
            let (start, end) = (frames[first].0.start, frames[commit + 1].0.start + 72 - until);
            image[start..end].fill(0xee);
            let mut outcome = None;
            let seen = contents(&reader_of(&image, false), 1);
            let mut check = |image: Vec<u8>, at: String| {
                let storage = on(image);
                for boot in [1, 1, 2] {
                    let log = options(boot).open_storage(storage.clone()).unwrap();
                    let found = contents(&log, 1);
                    let of_batch = found[0].1.iter().filter(|one| one.len() == 300).count();
                    let is_same = outcome.get_or_insert(found.clone()) == &found;
                    if !is_same || ![0, 3].contains(&of_batch) || found != seen {
                        let told = log.recovery_report();
                        let (seen, found) = (seen[0].1.len(), found[0].1.len());
                        failures.push(format!(
                            "{first} of {commit}, {until}, {at}, boot {boot}: {of_batch} of the \
                             batch, {found} in all, {seen} for a reader, {told:?}"
                        ));
                    }
                    log.close().unwrap();
                }
            };
            check(image.clone(), "as it is".to_owned());
            kill_opening(&image, &mut check);
        }
    }
    report(&failures);
}

#[test]
fn a_failed_operation_or_a_loss_of_power_in_an_opening_takes_nothing_that_was_durable() {
    let (good, _) = two_segments(1, 5000, 3);
    let expected = contents(&options(1).open_storage(on(good.clone())).unwrap(), 1);
    let (seal, _) = frames_in(&good, 0).pop().unwrap();
    let mut failures = Vec::new();
    for byte in [9, 75] {
        let mut image = good.clone();
        image[seal.start + byte] ^= 1;
        for number in 0..60 {
            let disk = Arc::new(SimDisk::untracked(image.clone()));
            disk.fail_op(number, std::io::ErrorKind::Other);
            let first = options(1).open_storage(disk.clone()).map(drop);
            disk.clear_faults();
            let again = options(1).open_storage(disk.clone());
            let found = again.as_ref().map(|log| contents(log, 1));
            if !found.as_ref().is_ok_and(|found| *found == expected) {
                failures.push(format!(
                    "{byte}: failed {number}: {first:?}, then {:?}",
                    found.map(|found| found[0].1.len())
                ));
            }
        }
        // All that counts is durable: an opening said so and was closed, or its last sync was done.
        let disk = SimDisk::recording_from(image.clone());
        let log = options(1).open_storage(Arc::new(disk.clone())).unwrap();
        let opened = disk.op_count();
        drop(log);
        let recording = disk.take_recording();
        let mut crashes = CrashImages::new(&recording);
        loop {
            for survivors in Survivors::ALL {
                for seed in 0..3 {
                    let image = crashes.image(survivors, seed);
                    let log = options(2).open_storage(on(image)).unwrap();
                    let found = contents(&log, 1);
                    let is_prefix = expected[0].1.starts_with(&found[0].1);
                    let is_done = crashes.boundary() >= opened;
                    if !is_prefix || (is_done && found != expected) {
                        failures.push(format!(
                            "{byte}: power lost at {} of {opened}, {survivors:?}: {}",
                            crashes.boundary(),
                            found[0].1.len()
                        ));
                    }
                }
            }
            if !crashes.advance() {
                break;
            }
        }
    }
    report(&failures);
}

/// Two holes under one boot id are a loss of power, also if a kill interrupts the recovery.
#[test]
fn a_kill_while_segments_behind_the_end_are_closed_brings_nothing_back() {
    let (good, _) = two_segments(1, 900, 6);
    let frames = frames_in(&good, 0);
    let behind = frames_in(&good, 1);
    let hole = frames.len() - 8;
    for first in [9, 80] {
        for second in [9, 80] {
            let mut image = good.clone();
            image[frames[hole].0.start + first] ^= 1;
            image[behind[2].0.start + second] ^= 1;
            let log = options(1).open_storage(on(image.clone())).unwrap();
            let expected = contents(&log, 1);
            assert!(!log.recovery_report().same_boot);
            agree_after_kills(&image, &expected, &format!("bytes {first} and {second}"));
        }
    }
}

/// What was skipped in front of a torn tail is told by each opening until one succeeded.
#[test]
fn a_kill_in_a_recovery_hides_no_damage() {
    let (good, _) = two_segments(1, 900, 6);
    let behind = frames_in(&good, 1);
    for byte in [9, 80] {
        let mut image = good.clone();
        image[behind[2].0.start + byte] ^= 1;
        let last = behind.last().unwrap().0.clone();
        image[last.start + 200..last.end].fill(0);
        let first =
            options(1).open_storage(on(image.clone())).unwrap().recovery_report().damaged.clone();
        let mut failures = Vec::new();
        kill_opening(&image, &mut |image, at| {
            let log = options(1).open_storage(on(image)).unwrap();
            // A segment that the manifest has as sealed is not read.
            if log.recovery_report().sealed_segments == 2 {
                return;
            }
            let damaged = log.recovery_report().damaged.iter();
            let of_frames = damaged.filter(|one| matches!(one.place, Place::Frame(_)));
            if of_frames.map(|one| one.place).ne(first.iter().map(|one| one.place)) {
                failures.push(format!("{at}: {:?}", log.recovery_report()));
            }
        });
        report(&failures);
        println!("E3 {byte}: {first:?}; {} failures, {:?}", failures.len(), failures.first());
    }
}

#[test]
fn a_loss_of_power_in_a_recovery_takes_nothing_below_the_floor() {
    for torn in [false, true] {
        let disk = SimDisk::untracked(Vec::new());
        let background = Background::default();
        let log = options_of(1, &background).create_storage(Arc::new(disk.clone())).unwrap();
        let about = Metadata::default().durability(Durability::Process);
        let run = log.start_run("agent", "run 0", about).unwrap();
        let mut is_reserved = false;
        while frames_in(&disk.image(), 1).len() < 3 {
            let _ = run.append(&[7; 3000]).unwrap();
            reserve_early(&log, &background, &mut is_reserved);
        }
        log.sync().unwrap();
        let durable = contents(&log, 1)[0].1.len();
        let _ = run.append(&[8; 3000]).unwrap();
        let mut image = disk.image();
        let seal = frames_in(&image, 0).last().unwrap().0.clone();
        let last = frames_in(&image, 1).last().unwrap().0.clone();
        image[seal.start + 9] ^= 1;
        if torn {
            image[last.start + 500..last.end].fill(0);
        }
        for is_full in [false, true] {
            let disk = SimDisk::recording_from(image.clone());
            if is_full {
                disk.set_capacity(disk.allocated());
            }
            let opened = options(2).open_storage(Arc::new(disk.clone()));
            drop(opened);
            let recording = disk.take_recording();
            let mut crashes = CrashImages::new(&recording);
            let mut failures = Vec::new();
            loop {
                for survivors in Survivors::ALL {
                    for seed in 0..3 {
                        let log =
                            options(3).open_storage(on(crashes.image(survivors, seed))).unwrap();
                        let found = contents(&log, 1)[0].1.len();
                        if found < durable {
                            failures.push(format!(
                                "{} {survivors:?}: {found} of {durable}",
                                crashes.boundary()
                            ));
                        }
                    }
                }
                if !crashes.advance() {
                    break;
                }
            }
            report(&failures);
        }
    }
}
