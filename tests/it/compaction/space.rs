//! The space of the file, and how it is freed: on a full disk, by the numbers of `stats`, and with
//! the used numbers kept safe.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runlog::env::Step;
use runlog::format::EXTENTS_AT;
use runlog::format::map::superblock::Superblock;
use runlog::storage::{MemoryStorage, Storage};
use runlog::{Compaction, Error, NewRecord, Options, Outcome, Retention, RunLog, SpaceReturn};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;
use crate::support::tap::Tap;

const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    let environment = runlog::env::Environment::system()
        .clock(Arc::new(SimClock::new(runlog::Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(7)));
    Options::new().extent_size(EXTENT).background(false).environment(environment)
}

fn payload(run: &str, number: usize) -> Vec<u8> {
    format!("{run}/{number}/").bytes().cycle().take(500).collect()
}

/// Writes interleaved runs, and ends them; returns how many records each has before the disk was
/// full.
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

/// A disk that is full to the last block, with runs that are interleaved in all segments.
fn full_store(compaction: Compaction) -> (SimDisk, RunLog, Vec<(String, usize)>) {
    let disk = SimDisk::untracked(Vec::new());
    let options = options().compaction(compaction);
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    disk.set_capacity(56 * EXTENT);
    let names = names("run", 12);
    let counts = fill(&log, &names, 1_000_000);
    assert!(counts.iter().all(|count| *count > 150), "{counts:?}");
    // What the index or the compaction reserve may have left.
    disk.set_capacity(disk.allocated());
    (disk, log, names.into_iter().zip(counts).collect())
}

#[test]
fn a_full_disk_is_cleaned_up_with_the_extent_that_was_set_aside() {
    let (disk, log, runs) = full_store(Compaction::new().automatic(false));
    assert!(matches!(log.start_run("agent", "more", ()), Err(Error::DiskFull { .. })));
    // Three of four runs are deleted, and each segment has some of the fourth.
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

/// Whatever the manifest needs at that size was allocated before the disk was full.
#[test]
fn a_policy_is_done_on_a_full_disk_whatever_the_size_of_the_store() {
    for segments in [60, 220, 250, 265, 280, 400, 450, 550] {
        for at_once in [1, 40] {
            let disk = SimDisk::untracked(Vec::new());
            let log = options().create_storage(Arc::new(disk.clone())).unwrap();
            let runs = names("run", 40);
            for some in runs.chunks(at_once) {
                // A record takes 552 bytes.
                let records = segments * (EXTENT as usize - 4500) / 552 / 40;
                fill(&log, some, records);
            }
            log.sync().unwrap();
            disk.set_capacity(disk.allocated());
            let collected = log.gc(&Retention::new().keep_newest(10));
            let evicted = collected.map(|collected| collected.plan.evict.len());
            assert_eq!(evicted.unwrap(), 30, "{segments} segments, {at_once} at once");
            log.reclaim().unwrap();
            assert_eq!(fill(&log, &names("more", 2), 200), [200; 2], "{segments} {at_once}");
        }
    }
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
    // The store is too small for a compaction reserve.
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
    // A record of 500 bytes takes 552 with its header.
    let stored = 8 * 200 * 552;
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

/// O16: the record of used numbers may be in a segment that is freed.
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
fn space_that_was_free_when_the_process_died_goes_back_after_the_next_opening() {
    let before = SimDisk::untracked(Vec::new());
    let keeping = Compaction::new().automatic(false).space_return(SpaceReturn::Keep);
    let log = options().compaction(keeping).create_storage(Arc::new(before.clone())).unwrap();
    let runs = names("run", 20);
    fill(&log, &runs[..10], 100);
    fill(&log, &runs[10..], 100);
    log.checkpoint().unwrap();
    for name in &runs[..10] {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    log.reclaim().unwrap();
    assert!(log.stats().unwrap().free_extents > 5);
    let disk = SimDisk::untracked(before.image());
    let punching = Compaction::new().automatic(false).space_return(SpaceReturn::Punch);
    let before = disk.allocated();
    let log = options().compaction(punching).open_storage(Arc::new(disk.clone())).unwrap();
    let free = log.stats().unwrap().free_extents;
    assert!(free > 5 && disk.allocated() + free * EXTENT <= before, "{}", disk.allocated());
}

#[test]
fn the_space_of_an_index_that_is_dropped_goes_back() {
    let disk = SimDisk::untracked(Vec::new());
    let manual = || options().compaction(Compaction::new().automatic(false));
    let log = manual().create_storage(Arc::new(disk.clone())).unwrap();
    for number in 0..4000 {
        let key = format!("key-{number}");
        log.docs().put("space", &key, &NewRecord::new(key.as_bytes())).unwrap();
    }
    log.checkpoint().unwrap();
    let index = log.stats().unwrap().index_extents;
    assert!(index > 2);
    log.close().unwrap();
    let before = disk.allocated();
    let log = manual().index(false).open_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(log.stats().unwrap().index_extents, 0);
    log.close().unwrap();
    assert!(disk.allocated() + index * EXTENT / 2 <= before, "{before}: {}", disk.allocated());
}

#[test]
fn a_close_that_failed_is_not_answered_as_done_by_the_next() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    fill(&log, &names("run", 2), 10);
    let again = log.clone();
    disk.fail_from(disk.op_count(), io::ErrorKind::Other);
    assert!(log.close().is_err());
    disk.clear_faults();
    assert!(again.close().is_err());
}

#[test]
fn a_segment_that_lost_its_directory_alone_is_freed_when_its_runs_are_deleted() {
    let storage = Arc::new(MemoryStorage::new());
    let manual = || options().compaction(Compaction::new().automatic(false));
    let log = manual().create_storage(storage.clone()).unwrap();
    fill(&log, &names("gone", 1), 150);
    fill(&log, &names("kept", 1), 200);
    log.checkpoint().unwrap();
    log.close().unwrap();
    let mut bytes = storage.to_bytes();
    let first = &mut bytes[EXTENTS_AT as usize..][..EXTENT as usize];
    let named = first.windows(8).rposition(|part| part == b"gone-000").unwrap();
    first[named] ^= 1;
    let log = manual().open_storage(Arc::new(MemoryStorage::from_bytes(bytes))).unwrap();
    let before = log.stats().unwrap().log_extents;
    let _ = log.delete_run("gone-000").unwrap();
    log.reclaim().unwrap();
    assert!(log.stats().unwrap().log_extents < before);
}

/// What a compaction writes for a store with `going` runs in progress, interleaved with deleted
/// ones, in the bytes of its segments.
fn amplification(going: usize, gone: usize) -> f64 {
    let storage = Arc::new(MemoryStorage::new());
    let manual = options().index(false).compaction(Compaction::new().automatic(false));
    let log = manual.create_storage(storage).unwrap();
    let start = |name: &String| log.start_run("agent", name, ()).unwrap();
    let kept: Vec<_> = names("going", going).iter().map(start).collect();
    let deleted = names("gone", gone);
    for name in &deleted {
        let passing = start(name);
        for number in 0..60 {
            for writer in kept.iter().cycle().skip(number % going).take(8) {
                let _ = writer.append(&[b'.'; 500]).unwrap();
            }
            let _ = passing.append(&[b'.'; 500]).unwrap();
        }
        let _ = passing.end(&Outcome::completed()).unwrap();
    }
    for name in &deleted {
        let _ = log.delete_run(name.as_str()).unwrap();
    }
    log.sync().unwrap();
    let before = log.stats().unwrap();
    let done = log.compact().unwrap();
    let after = log.stats().unwrap();
    assert!(after.dead_bytes <= before.dead_bytes, "{done:?}: {before:?} {after:?}");
    done.bytes as f64 / (before.log_extents * EXTENT) as f64
}

#[test]
fn a_compaction_writes_at_most_four_times_what_there_is_whatever_goes_on() {
    let several = (17..23).map(|going| (going, going + 20));
    for (going, gone) in [(1, 20), (1, 60), (3, 40)].into_iter().chain(several) {
        let times = amplification(going, gone);
        assert!(times <= 4.0, "{going} in progress, {gone} deleted: {times} times");
    }
}

#[test]
fn a_seal_that_the_manifest_had_no_room_for_is_noted_when_there_is_room() {
    // Whichever record of the manifest is the first for which there is no room.
    for before in 0..4 {
        let [refuses, refused] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (refuse, note) = (Arc::clone(&refuses), Arc::clone(&refused));
        // Areas of the manifest are longer than an extent.
        let storage = Tap::new(Arc::new(MemoryStorage::new()), move |call| {
            let is_area = call.kind == OpKind::Allocate && call.len > EXTENT;
            if !is_area || !refuse.load(Ordering::Relaxed) {
                return Ok(());
            }
            note.store(true, Ordering::Relaxed);
            Err(io::ErrorKind::StorageFull.into())
        });
        let manual = options().compaction(Compaction::new().automatic(false));
        let log = manual.create_storage(storage).unwrap();
        refuses.store(true, Ordering::Relaxed);
        for name in names("gone", before) {
            fill(&log, std::slice::from_ref(&name), 120);
            log.checkpoint().unwrap();
            let _ = log.delete_run(name.as_str()).unwrap();
            log.reclaim().unwrap();
        }
        let writer = log.start_run("agent", "run", ()).unwrap();
        let segment = || log.stats().unwrap().end.segment.0;
        let mut goal = 320;
        while segment() < goal {
            for _ in 0..50 {
                if let Err(error) = writer.append(&[b'.'; 500]) {
                    assert!(matches!(error, Error::DiskFull { .. }), "{error}");
                    refuses.store(false, Ordering::Relaxed);
                }
            }
            log.sync().unwrap();
            if refused.load(Ordering::Relaxed) && goal == 320 {
                goal = segment() + 8;
            }
        }
        refuses.store(false, Ordering::Relaxed);
        log.sync().unwrap();
        log.checkpoint().unwrap();
        let stats = log.stats().unwrap();
        let applied = stats.index_applied.unwrap().0;
        assert!(applied + 4 >= stats.end.segment.0, "{before}: {applied} of {:?}", stats.end);
    }
}

/// The manifest outgrows its area while the extents of the erased run are free and not released.
#[test]
fn of_an_erased_run_no_byte_is_left_where_the_manifest_comes_to_be() {
    let secret = b"MY-SECRET-TOKEN-0123456789";
    let storage = Arc::new(MemoryStorage::new());
    let keeping = options().compaction(Compaction::new().space_return(SpaceReturn::Keep));
    let log = keeping.create_storage(storage.clone()).unwrap();
    let (payload, other) = (secret.repeat(269), vec![b'.'; 7000]);
    let start = |run: &str| log.start_run("agent", run, ()).unwrap();
    let (erased, kept) = (start("erased"), start("kept"));
    for _ in 0..160 {
        let _ = erased.append(&payload).unwrap();
        let _ = kept.append(&other).unwrap();
    }
    let _ = erased.end(&Outcome::completed()).unwrap();
    for _ in 0..180 * 8 {
        let _ = kept.append(&other).unwrap();
    }
    drop((erased, kept));
    assert_eq!(log.erase_run("erased").unwrap().pinned_extents, 0);
    let bytes = storage.to_bytes();
    assert!(!bytes.windows(secret.len()).any(|part| part == secret), "{:?}", log.stats());
}

/// A storage that is longer than what was written to it, and counts what is cut off.
#[derive(Debug, Default)]
struct Long {
    inner: MemoryStorage,
    end: AtomicU64,
    calls: AtomicU64,
}

impl Storage for Long {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner.len()?.max(self.end.load(Ordering::Relaxed)))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let there = self.inner.len()?.saturating_sub(offset).min(buf.len() as u64);
        let (stored, behind) = buf.split_at_mut(there as usize);
        behind.fill(0);
        self.inner.read_at(offset.min(self.inner.len()?), stored)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.end.store(len, Ordering::Relaxed);
        self.inner.set_len(len.min(self.inner.len()?))
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let end = (offset + len).min(self.inner.len()?);
        self.inner.punch(offset.min(end), end.saturating_sub(offset))
    }
}

#[test]
fn closing_gives_back_so_much_at_most_and_the_next_opening_the_rest() {
    for extent_size in [EXTENT, 4 << 20, 64 << 20] {
        let options = options().extent_size(extent_size);
        let storage = Arc::new(Long::default());
        options.create_storage(storage.clone()).unwrap().close().unwrap();
        let used = storage.len().unwrap();
        storage.end.store(4 << 30, Ordering::Relaxed);
        // Threads that come to nothing before the store is closed.
        let background = Background::default();
        let threads = options.clone().scheduler(Arc::new(background.clone()));
        let log = threads.open_storage(storage.clone()).unwrap();
        storage.calls.store(0, Ordering::Relaxed);
        log.close().unwrap();
        let (left, calls) = (storage.len().unwrap(), storage.calls.load(Ordering::Relaxed));
        assert!(((4 << 30) - (256 << 20)..4 << 30).contains(&left), "{extent_size}: {left}");
        assert!(calls <= 20, "{extent_size}: {calls}");
        let log = threads.open_storage(storage.clone()).unwrap();
        assert!(background.run(Step::GiveBack));
        let (after, most) = (storage.len().unwrap(), used + 2 * extent_size);
        assert!(after <= most, "{extent_size}: {after}");
        drop(log);
    }
}
