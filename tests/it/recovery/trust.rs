//! What opening trusts: a store that is damaged in front of its extents answers as before or
//! reports its losses, and later additions stay readable.

use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::format::map::manifest::{
    AREA_HEADER_LEN, Change, RECORD_LEN, RecordKey, encode_batch, read_area,
};
use runlog::format::map::superblock::Superblock;
use runlog::format::segments::segment::{Purpose, SegmentHeader};
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Allow, ExtentNo, NewRecord, Options, Outcome, RunLog, RunQuery, RunStatus, SegmentId,
};
use runlog_sim::SimDisk;

use crate::support::cuts::{check_whole, open};
use crate::support::world::{EXTENT, Machine, World};

const PAGE: usize = 4096;

/// The two superblocks of a file.
fn slots(image: &[u8]) -> [Result<Superblock, runlog::Damage>; 2] {
    [PAGE, 2 * PAGE].map(|at| Superblock::decode(&image[at..at + PAGE]))
}

/// Opens a copy of what a killed process would leave now, changed by `damage`, and compares all of
/// it with the model.
fn check_damaged(world: &World, machine: &Machine, damage: impl Fn(&mut Vec<u8>)) {
    let mut image = world.disk.image();
    damage(&mut image);
    let disk = SimDisk::untracked(image);
    let (least, most) = world.model.after_kill(world.disk.op_count(), false);
    for opened in 0..2 {
        let (gate, log) = open(&disk, machine).unwrap();
        let report = log.recovery_report();
        assert!(!report.salvaged, "{report}");
        assert_eq!(report.damaged.is_empty(), opened != 0, "{report}");
        let found = world.model.check(&log, least, most);
        found.unwrap_or_else(|error| panic!("{error}, {report}"));
        check_whole(&log).unwrap();
        gate.shut();
    }
}

#[test]
fn a_new_store_has_two_superblocks_that_check() {
    let machine = Machine::new(1, 1);
    let disk = SimDisk::untracked(Vec::new());
    let log = machine.options().create_storage(Arc::new(disk.clone())).unwrap();
    for image in [disk.image(), {
        log.close().unwrap();
        disk.image()
    }] {
        let [first, second] = slots(&image).map(Result::unwrap);
        assert_eq!(first.epoch.0.abs_diff(second.epoch.0), 1);
    }
}

/// Directly after the manifest has moved, its old area is soon out of date.
#[test]
fn a_slot_that_does_not_check_never_makes_an_old_manifest_believed() {
    let mut moves = 0;
    for seed in 300..304 {
        let mut machine = Machine::new(seed, 1);
        machine.index = seed % 2 == 0;
        let mut world = World::create(seed, machine.clone(), machine.index);
        let (mut generation, mut due) = (0, 0);
        for step in 0..3000 {
            world.step();
            if step % 60 == 59 {
                world.end_oldest(4);
                world.compact();
            }
            let mut pages = vec![0; 3 * PAGE];
            world.disk.read_at(0, &mut pages).unwrap();
            let [first, second] = slots(&pages).map(Result::unwrap);
            let newest = if first.epoch > second.epoch { first } else { second };
            if newest.manifest.generation != generation {
                (generation, due) = (newest.manifest.generation, 8);
            }
            if due == 0 {
                continue;
            }
            due -= 1;
            moves += 1;
            let newer = if first.epoch > second.epoch { PAGE } else { 2 * PAGE };
            let older = 3 * PAGE - newer;
            machine.boot = 1 + moves % 2;
            match moves % 4 {
                0 => check_damaged(&world, &machine, |image| image[newer + 40] ^= 1),
                1 => check_damaged(&world, &machine, |image| image[newer..newer + PAGE].fill(0)),
                2 => check_damaged(&world, &machine, |image| {
                    image.copy_within(older..older + PAGE, newer);
                }),
                _ => check_damaged(&world, &machine, |image| image[older..older + PAGE].fill(0)),
            }
        }
    }
    assert!(moves > 40, "{moves} times");
}

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// A store with some full segments, closed cleanly.
fn filled(runs: usize) -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    for run in 0..runs {
        fill(&log, &format!("run-{run}"));
    }
    log.close().unwrap();
    storage.to_bytes()
}

/// A run of about a segment.
fn fill(log: &RunLog, run: &str) {
    let writer = log.start_run("agent", run, ()).unwrap();
    for record in 0..8 {
        let _ = writer.append(&payload(run, record)).unwrap();
    }
    let _ = writer.end(&Outcome::completed()).unwrap();
}

fn payload(run: &str, record: usize) -> Vec<u8> {
    format!("{run} {record} ").repeat(500).into_bytes()
}

#[track_caller]
fn assert_filled(log: &RunLog, runs: std::ops::Range<usize>) {
    for run in runs {
        let run = format!("run-{run}");
        let trace = log.trace(run.as_str()).unwrap();
        let records: Vec<Vec<u8>> = trace.map(|one| one.unwrap().payload().to_vec()).collect();
        let wanted: Vec<Vec<u8>> = (0..8).map(|record| payload(&run, record)).collect();
        assert!(records == wanted, "{run}");
    }
}

/// The newest superblock, and where the records of its manifest end.
fn manifest(image: &[u8]) -> (Superblock, usize, u64) {
    let newest = slots(image).into_iter().flatten().max_by_key(|block| block.epoch).unwrap();
    let at = usize::try_from(newest.manifest.offset).unwrap();
    let area = &image[at..at + usize::try_from(newest.manifest.len).unwrap()];
    let read = read_area(area, newest.uuid, newest.manifest.generation).unwrap();
    let end = at + AREA_HEADER_LEN + usize::try_from(read.records).unwrap() * RECORD_LEN;
    (newest, end, read.records)
}

/// Adds a batch to the manifest.
pub(crate) fn add_changes(image: &mut [u8], changes: &[Change]) {
    let (newest, end, index) = manifest(image);
    let key = RecordKey { generation: newest.manifest.generation, index };
    let batch = encode_batch(changes, key);
    image[end..end + batch.len()].copy_from_slice(&batch);
}

/// A manifest that names extents that do not exist or are not its own.
#[test]
fn records_of_the_manifest_that_no_writer_writes_cost_no_record() {
    let image = filled(12);
    let far = [ExtentNo(u32::MAX), ExtentNo(u32::MAX - 1), ExtentNo(1 << 20), ExtentNo(40)];
    let last = ExtentNo(u32::try_from((image.len() as u64 - EXTENTS_AT).div_ceil(EXTENT)).unwrap());
    let mut cases: Vec<Vec<Change>> = Vec::new();
    for extent in far.into_iter().chain([last]) {
        let segment = SegmentId(1000);
        let reserve = Change::Reserve { extent, segment, salt: 9, purpose: Purpose::Log };
        for area_len in [0, 4096, EXTENT, 3 * EXTENT, 1 << 32, u64::MAX] {
            cases.push(vec![Change::Meta { extent, area_len }]);
        }
        cases.push(vec![reserve]);
        cases.push(vec![reserve, Change::Retire { extent }]);
        cases.push(vec![Change::Map { extent, slot: 0 }, Change::IndexLen { len: u64::MAX }]);
        cases.push(vec![Change::IndexLen { len: u64::MAX }]);
    }
    for changes in cases {
        // A second batch behind it: the first was durable, whatever it contains.
        for batches in [1, 2] {
            let mut image = image.clone();
            add_changes(&mut image, &changes);
            if batches == 2 {
                add_changes(&mut image, &[Change::IndexLen { len: 0 }]);
            }
            let storage = Arc::new(MemoryStorage::from_bytes(image.clone()));
            let log = options().open_storage(storage.clone()).unwrap();
            assert_filled(&log, 0..12);
            let _ = log.delete_run("run-3").unwrap();
            log.reclaim().unwrap();
            fill(&log, "run-12");
            let _ = log.compact().unwrap();
            assert_filled(&log, 0..3);
            assert_filled(&log, 4..13);
            log.close().unwrap();
            assert!(storage.len().unwrap() < 2 * image.len() as u64, "{changes:?}");
            let log = options().open_storage(storage).unwrap();
            assert_filled(&log, 4..13);
            assert!(log.recovery_report().is_clean(), "{changes:?}: {}", log.recovery_report());
            assert!(log.verify().unwrap().is_clean(), "{changes:?}");
        }
    }
}

#[test]
fn two_extents_with_the_same_segment_make_the_manifest_a_damaged_one() {
    for segment in [SegmentId(0), SegmentId(1), SegmentId(u32::MAX)] {
        let mut image = filled(4);
        let len = image.len() as u64;
        image.resize(usize::try_from(len.next_multiple_of(EXTENT) + EXTENT).unwrap(), 0);
        let extent = ExtentNo(u32::try_from((len - EXTENTS_AT).div_ceil(EXTENT)).unwrap());
        let reserve = Change::Reserve { extent, segment, salt: 9, purpose: Purpose::Log };
        add_changes(&mut image, &[reserve]);
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        for opened in 0..2 {
            let log = options().open_storage(storage.clone()).unwrap();
            let report = log.recovery_report();
            assert_eq!(report.is_clean(), opened == 1, "{segment} {report}");
            assert_filled(&log, 0..4 + opened);
            if opened == 0 {
                fill(&log, "run-4");
            }
            log.close().unwrap();
        }
    }
}

/// Each sector of the manifest, lost or in its old state: unknown data is reported, and every
/// answer is as before.
#[test]
fn a_sector_of_the_manifest_that_is_lost_is_told_or_costs_nothing() {
    let (mut told, mut same) = (0, 0);
    for seed in 0..12 {
        let mut machine = Machine::new(seed, 1);
        machine.index = seed % 2 == 0;
        let mut world = World::create(seed, machine.clone(), machine.index);
        for step in 0..150 + 20 * seed {
            world.step();
            if step % 50 == 49 {
                world.end_oldest(4);
                world.compact();
            }
        }
        let image = world.disk.image();
        let (least, most) = world.model.after_kill(world.disk.op_count(), false);
        let (newest, end, _) = manifest(&image);
        let start = usize::try_from(newest.manifest.offset).unwrap();
        for sector in (start..end).step_by(512) {
            let mut image = image.clone();
            image[sector..sector + 512].fill(0);
            machine.boot = 1 + seed % 2;
            let (gate, log) = open(&SimDisk::untracked(image), &machine).unwrap();
            let found = world.model.check(&log, least, most);
            let report = log.recovery_report();
            found.unwrap_or_else(|error| panic!("seed {seed}, {sector:#x}: {error}, {report}"));
            if report.is_clean() {
                same += 1
            } else {
                told += 1
            }
            gate.shut();
        }
    }
    println!("{told} told, {same} without effect");
    assert!(told > 12);
}

/// The extents are enough, and later additions are placed correctly.
#[test]
fn a_store_that_lost_its_manifest_goes_on_where_it_was() {
    let mut appended = 0;
    for seed in 1040..1060 {
        let mut machine = Machine::new(seed, 1);
        machine.index = seed % 4 < 3;
        let mut world = World::create(seed, machine.clone(), machine.index);
        for round in 0..10 {
            for _ in 0..70 {
                world.step();
            }
            if round % 3 == 2 {
                world.end_oldest(4);
                world.compact();
            }
            if round % 2 == 1 {
                world.checkpoint();
            }
        }
        let left = world.abandon();
        let mut image = left.disk.image();
        image[4 * PAGE..16 * PAGE].fill(0);
        let disk = SimDisk::untracked(image);
        let (least, most) = left.model.after_kill(left.disk.op_count(), false);
        for opened in 0..3 {
            let (gate, log) = open(&disk, &machine).unwrap();
            assert_eq!(log.recovery_report().salvaged, opened == 0);
            let found = left.model.check(&log, least, most);
            found.unwrap_or_else(|error| panic!("seed {seed}, opened {opened} times: {error}"));
            gate.shut();
        }
        let (_, log) = open(&disk, &machine).unwrap();
        for summary in log
            .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(100))
            .unwrap()
            .runs
        {
            let name = (summary.agent.as_str(), summary.run.as_str());
            let record = NewRecord::new(b"next");
            let Ok(added) = log.append_to(name.0, name.1, &record, Allow::nothing()) else {
                panic!("{name:?}")
            };
            assert_eq!(added.seq.0, summary.records, "seed {seed}, {name:?}");
            let trace = log.trace(name).unwrap();
            let seqs: Vec<u64> = trace.map(|one| one.unwrap().seq().0).collect();
            assert_eq!(seqs, (0..=summary.records).collect::<Vec<_>>(), "seed {seed}, {name:?}");
            appended += 1;
        }
        check_whole(&log).unwrap();
    }
    assert!(appended > 20, "{appended}");
}

/// The extent of a segment, or only its head, or only the frame with its directory.
fn lose(image: &mut [u8], extent: u32, part: usize) {
    let at = (EXTENTS_AT + u64::from(extent) * EXTENT) as usize;
    let end = (at + EXTENT as usize).min(image.len());
    match part {
        0 => image[at..end].fill(0),
        1 => image[at..at + 64].fill(0),
        _ => {
            let used = image[at..end].iter().rposition(|&byte| byte != 0).unwrap();
            image[at + used - 1000..at + used + 1].fill(0);
        }
    }
}

/// A tail whose extent was lost, or has its old contents.
#[test]
fn a_tail_without_its_header_is_told() {
    for seed in 0..20 {
        let mut machine = Machine::new(seed, 1);
        let mut world = World::create(seed, machine.clone(), true);
        for step in 0..60 + 10 * seed {
            world.step();
            if step % 50 == 49 {
                world.end_oldest(4);
                world.compact();
            }
        }
        let tail = world.log().stats().unwrap().end.segment;
        let mut image = world.disk.image();
        let extents = image[EXTENTS_AT as usize..].chunks(EXTENT as usize);
        let header = |extent: &[u8]| SegmentHeader::decode(extent).ok().map(|it| it.key.id);
        let extent = extents.clone().position(|extent| header(extent) == Some(tail)).unwrap();
        lose(&mut image, u32::try_from(extent).unwrap(), 0);
        machine.boot += seed % 2;
        let (gate, log) = open(&SimDisk::untracked(image), &machine).unwrap();
        assert!(!log.recovery_report().is_clean(), "seed {seed}");
        gate.shut();
    }
}

/// From the first areas to wider ones and on, by commits that each meet a full disk.
#[test]
fn a_full_disk_never_keeps_the_manifest_from_telling_what_was_freed() {
    for runs in [120, 150, 220, 280, 330, 450, 560, 640] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..runs {
            fill(&log, &format!("run-{run}"));
        }
        log.checkpoint().unwrap();
        disk.set_capacity(disk.allocated());
        let extents = log.stats().unwrap().log_extents;
        for run in 0..runs - 4 {
            let _ = log.delete_run(format!("run-{run}").as_str()).unwrap();
        }
        log.reclaim().unwrap();
        let stats = log.stats().unwrap();
        assert!(stats.log_extents < extents / 2, "{runs}: {stats:?}");
        assert_filled(&log, runs - 4..runs);
        assert!(log.verify().unwrap().is_clean());
    }
}

/// A record of the manifest that was being written, on a disk without a free block.
#[test]
fn a_torn_manifest_is_opened_on_a_full_disk() {
    for runs in [60, 140, 250, 330, 500, 620] {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().index(false).create_storage(Arc::new(disk.clone())).unwrap();
        for run in 0..runs {
            fill(&log, &format!("run-{run}"));
        }
        log.checkpoint().unwrap();
        drop(log);
        let mut image = disk.image();
        let (newest, end, index) = manifest(&image);
        let key = RecordKey { generation: newest.manifest.generation, index };
        let (extent, segment, salt) = (ExtentNo(9999), SegmentId(9999), u64::MAX);
        let reserve = Change::Reserve { extent, segment, salt, purpose: Purpose::Log };
        let record = encode_batch(&[reserve], key);
        image[end..end + 20].copy_from_slice(&record[..20]);
        let disk = SimDisk::from_image(image);
        disk.set_capacity(disk.allocated());
        for _ in 0..2 {
            let log = options().index(false).open_storage(Arc::new(disk.clone())).unwrap();
            assert_filled(&log, 0..runs);
            assert!(!log.recovery_report().salvaged);
        }
    }
}
