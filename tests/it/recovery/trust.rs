//! What opening trusts: a store that is damaged in front of its extents answers as before or
//! reports its losses, and later additions stay readable.

use std::sync::Arc;

use runlog::format::map::manifest::{
    AREA_HEADER_LEN, Change, RECORD_LEN, RecordKey, encode_batch, read_area,
};
use runlog::format::map::superblock::Superblock;
use runlog::format::segments::segment::Purpose;
use runlog::storage::Storage;
use runlog::{ExtentNo, Options, Outcome, RunLog, SegmentId};
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
        }
    }
}
