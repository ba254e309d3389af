//! Where the space of the file goes, and how it comes back: on a full disk, by the numbers of
//! `stats`, and with the numbers in use kept safe.

use std::sync::Arc;

use runlog::format::superblock::Superblock;
use runlog::storage::MemoryStorage;
use runlog::{
    Compaction, Durability, Error, NewRecord, Options, Outcome, Retention, RunLog, SpaceReturn,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy};

const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    let environment = runlog::env::Environment {
        clock: Arc::new(SimClock::new(runlog::Timestamp(1_000_000_000))),
        entropy: Arc::new(SimEntropy::new(7)),
        boot_id: None,
    };
    Options::new().extent_size(EXTENT).background(false).environment(environment)
}

fn payload(run: &str, number: usize) -> Vec<u8> {
    format!("{run}/{number}/").bytes().cycle().take(500).collect()
}

/// Writes runs side by side, and ends them; answers how many records each has before the disk
/// was full.
fn fill(log: &RunLog, names: &[String], records: usize) -> Vec<usize> {
    let writers: Vec<_> =
        names.iter().map(|name| log.start_run("agent", name, ()).unwrap()).collect();
    let mut counts = vec![0; names.len()];
    'full: for number in 0..records {
        for (writer, count) in writers.iter().zip(&mut counts) {
            match writer.append(&payload(writer.run().as_str(), number)) {
                Ok(_) => *count += 1,
                Err(Error::DiskFull { .. }) => break 'full,
                Err(error) => panic!("{error}"),
            }
        }
    }
    for writer in writers {
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    counts
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:03}")).collect()
}

fn assert_records(log: &RunLog, name: &str, count: usize) {
    let records = log.trace(name).unwrap().map(|record| record.unwrap().payload().to_vec());
    let expected: Vec<Vec<u8>> = (0..count).map(|number| payload(name, number)).collect();
    assert!(records.eq(expected), "{name}");
}

/// A disk that is full to the last block, with runs that lie side by side in all segments.
fn full_store(compaction: Compaction) -> (SimDisk, RunLog, Vec<(String, usize)>) {
    let disk = SimDisk::untracked(Vec::new());
    let options = options().compaction(compaction);
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    disk.set_capacity(56 * EXTENT);
    let names = names("run", 12);
    let counts = fill(&log, &names, 1_000_000);
    assert!(counts.iter().all(|count| *count > 150), "{counts:?}");
    // What the index or the spare may have left.
    disk.set_capacity(disk.allocated());
    (disk, log, names.into_iter().zip(counts).collect())
}

#[test]
fn a_full_disk_is_cleaned_up_with_the_extent_that_was_set_aside() {
    let (disk, log, runs) = full_store(Compaction::new().automatic(false));
    assert!(matches!(log.start_run("agent", "more", ()), Err(Error::DiskFull { .. })));
    // Three of four runs go, and each segment has some of the fourth.
    for (name, _) in runs.iter().enumerate().filter(|(n, _)| n % 4 != 0).map(|(_, run)| run) {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    log.checkpoint().unwrap();
    let before = log.stats().unwrap();
    assert!(before.dead_bytes > 10 * EXTENT, "{before:?}");
    let done = log.compact().unwrap();
    assert!(done.segments > done.outputs + 8, "{done:?}");
    let after = log.stats().unwrap();
    assert!(after.dead_bytes < before.dead_bytes / 2, "{after:?}");
    let more = names("more", 2);
    let counts = fill(&log, &more, 100);
    assert_eq!(counts, [100, 100]);
    assert!(disk.allocated() <= 56 * EXTENT);
    for (name, count) in runs.iter().step_by(4) {
        assert_records(&log, name, *count);
    }
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_policy_is_done_on_a_full_disk_and_makes_room() {
    let (_, log, runs) = full_store(Compaction::new());
    let collected = log.gc(&Retention::new().keep_newest(3)).unwrap();
    assert_eq!(collected.plan.evict.len(), 9);
    log.reclaim().unwrap();
    let counts = fill(&log, &names("more", 3), 200);
    assert_eq!(counts, [200; 3]);
    for (name, count) in &runs[9..] {
        assert_records(&log, name, *count);
    }
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_compaction_that_meets_a_full_disk_changes_nothing() {
    let disk = SimDisk::untracked(Vec::new());
    let options = options().compaction(Compaction::new().automatic(false));
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let runs = names("run", 6);
    let counts = fill(&log, &runs, 100);
    for name in &runs[3..] {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    // Too small a store for an extent to be set aside.
    disk.set_capacity(disk.allocated());
    for _ in 0..2 {
        if let Err(error) = log.compact() {
            assert!(matches!(error, Error::DiskFull { .. }), "{error}");
        }
        for (name, count) in runs[..3].iter().zip(&counts) {
            assert_records(&log, name, *count);
        }
        assert!(log.verify().unwrap().is_clean());
    }
    disk.set_capacity(1 << 30);
    let _ = log.compact().unwrap();
    assert_records(&log, &runs[0], counts[0]);
}

#[test]
fn the_numbers_say_what_lives_what_is_dead_what_is_free_and_what_pins_what() {
    let options = options().compaction(Compaction::new().automatic(false));
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let runs = names("run", 8);
    fill(&log, &runs, 200);
    log.checkpoint().unwrap();
    let full = log.stats().unwrap();
    // A record of 500 bytes takes 576 with its header.
    let stored = 8 * 200 * 576;
    assert!(full.live_bytes >= stored, "{stored}: {full:?}");
    assert!(full.live_bytes < stored + stored / 8, "{stored}: {full:?}");
    assert!(full.dead_bytes < 3 * EXTENT && full.pinned.is_empty(), "{full:?}");
    let mut trace = log.trace("run-000").unwrap();
    assert!(trace.next().is_some());
    for run in &runs {
        let _ = log.delete_run(run.as_str()).unwrap();
    }
    log.reclaim().unwrap();
    let pinned = log.stats().unwrap();
    assert!(pinned.live_bytes < 2 * EXTENT, "{pinned:?}");
    assert!(!pinned.pinned.is_empty(), "{pinned:?}");
    assert!(pinned.pinned.iter().all(|pin| pin.holders > 0 && pin.bytes == EXTENT));
    assert_eq!(pinned.retired_extents, pinned.pinned.len() as u64);
    drop(trace);
    log.reclaim().unwrap();
    let free = log.stats().unwrap();
    assert!(free.pinned.is_empty() && free.free_bytes > pinned.free_bytes, "{free:?}");
    assert_eq!(free.free_bytes, free.free_extents * EXTENT);
}

/// O16: what says that a number is in use may be in a segment that goes.
#[test]
fn the_numbers_in_use_are_in_a_superblock_before_segments_go() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let runs = names("run", 30);
    fill(&log, &runs, 20);
    for run in &runs {
        let _ = log.delete_run(run.as_str()).unwrap();
    }
    let end = log.stats().unwrap().end;
    log.reclaim().unwrap();
    assert!(log.stats().unwrap().free_extents > 0);
    let bytes = storage.to_bytes();
    let blocks = [4096, 8192].map(|at| Superblock::decode(&bytes[at..]));
    let newest = blocks.into_iter().flatten().max_by_key(|block| block.epoch).unwrap();
    assert!(newest.next_run_no.0 > 30, "{newest:?}");
    assert!(newest.next_segment > end.segment, "{newest:?}");
    assert!(newest.next_lsn.0 > 30 * 22, "{newest:?}");
}

/// The blocks that a store of eight segments takes once it is closed.
fn closed(space: SpaceReturn) -> u64 {
    let disk = SimDisk::untracked(Vec::new());
    let compaction = Compaction::new().automatic(false).space_return(space);
    let options = options().extent_size(1 << 20).compaction(compaction);
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    let counts = fill(&log, &names("run", 4), 3_600);
    assert_eq!(counts, [3_600; 4]);
    log.checkpoint().unwrap();
    log.close().unwrap();
    let again = options.open_storage(Arc::new(disk.clone())).unwrap();
    assert_records(&again, "run-003", 3_600);
    assert!(again.verify().unwrap().is_clean());
    again.close().unwrap();
    disk.allocated()
}

#[test]
fn a_closed_store_gives_back_what_no_frame_is_in() {
    let (kept, given_back) = (closed(SpaceReturn::Keep), closed(SpaceReturn::Shrink));
    // The ends of seven segments, most of the one that is set aside, and the rest of the last.
    let ends = 7 * (28 << 10) + (1 << 20) - (4 << 10);
    let for_compaction = 1 << 20;
    assert!(given_back + ends + for_compaction <= kept, "{given_back} of {kept}");
}

#[test]
fn appends_to_a_store_that_gave_space_back_meet_a_full_disk_before_anything_is_written() {
    let disk = SimDisk::untracked(Vec::new());
    let options = options().compaction(Compaction::new().automatic(false));
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(fill(&log, &names("run", 2), 300), [300; 2]);
    log.close().unwrap();
    let log = options.open_storage(Arc::new(disk.clone())).unwrap();
    let running = log.start_run("agent", "running", ()).unwrap();
    disk.set_capacity(disk.allocated());
    let mut count = 0;
    let refusal = loop {
        let bytes = payload("running", count);
        match running.append_record(&NewRecord::new(&bytes).durability(Durability::Disk)) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refusal, Error::DiskFull { .. }), "{refusal:?}");
    assert_records(&log, "running", count);
    disk.set_capacity(u64::MAX);
    for number in count..count + 500 {
        let _ = running.append(&payload("running", number)).unwrap();
    }
    assert_records(&log, "running", count + 500);
    assert!(log.verify().unwrap().is_clean());
}
