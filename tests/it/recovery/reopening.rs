//! Opening a store that was not closed: data that is not read then is known nevertheless.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use runlog::env::Environment;
use runlog::storage::MemoryStorage;
use runlog::{
    Compaction, Durability, Metadata, NewRecord, Options, Outcome, ReaderOptions, Retention,
    RunLog, RunSummary, Timestamp,
};
use runlog_sim::{OpKind, SimClock, SimDisk, Survivors};
use tempfile::TempDir;

use crate::support::allocations::most_of;
use crate::support::background::Background;
use crate::support::tap::Tap;
use crate::support::told::Ends;

const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// A store in memory that reports to the byte where data ends, and counts the bytes that are read.
#[derive(Debug, Default)]
struct Told {
    bytes: Arc<MemoryStorage>,
    read: Arc<AtomicU64>,
}

impl Told {
    /// What a kill leaves of it now.
    fn killed(&self) -> Self {
        let bytes = Arc::new(MemoryStorage::from_bytes(self.bytes.to_bytes()));
        Self { bytes, read: Arc::default() }
    }

    fn storage(&self) -> Arc<Tap> {
        let read = Arc::clone(&self.read);
        Tap::knows_ends(self.bytes.clone(), move |call| {
            if call.is_read() {
                read.fetch_add(call.len, Ordering::Relaxed);
            }
            Ok(())
        })
    }
}

fn unsynced() -> Metadata<'static> {
    Metadata::default().durability(Durability::Process)
}

fn record(run: &str, number: usize) -> Vec<u8> {
    format!("{run} {number} ").bytes().cycle().take(700).collect()
}

/// Runs that are started, get records and end.
fn write_ended(log: &RunLog, names: impl Iterator<Item = usize>) {
    for name in names {
        let name = format!("short-{name}");
        let run = log.start_run("agent", &name, unsynced()).unwrap();
        for number in 0..12 {
            let _ = run.append(&record(&name, number)).unwrap();
        }
        let ended = Outcome::completed().durability(Durability::Process);
        let _ = run.end(&ended).unwrap();
    }
}

fn all_of(log: &RunLog, run: &str) -> (RunSummary, Vec<Vec<u8>>) {
    let records = log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec());
    (log.run(run).unwrap(), records.collect())
}

#[test]
fn a_run_of_the_tail_that_began_lately_costs_no_look_at_segments_that_are_older() {
    let read_by_open = |runs: usize| {
        let storage = Told::default();
        let log = options().index(false).create_storage(storage.storage()).unwrap();
        write_ended(&log, 0..runs);
        let late = log.start_run("agent", "late", unsynced()).unwrap();
        let segments = log.stats().unwrap().log_extents;
        for number in 0..EXTENT / 500 {
            let _ = late.append(&record("late", number as usize)).unwrap();
        }
        let left = storage.killed();
        let again = options().index(false).open_storage(left.storage()).unwrap();
        assert!(again.recovery_report().is_clean());
        (segments, left.read.load(Ordering::Relaxed))
    };
    let (few, of_few) = read_by_open(60);
    let (many, of_many) = read_by_open(1400);
    assert!(many > few + 180, "{few} and {many} segments");
    // The directory of a segment has a kilobyte; its records in the manifest have 80 bytes. The
    // fill level of the tail varies.
    let more = of_many.saturating_sub(of_few);
    assert!(more < (many - few) * 400 + EXTENT, "{more} more bytes for {} segments", many - few);
}

#[test]
fn a_record_that_ends_in_zeros_counts_where_the_data_ends_within_it() {
    let storage = Told::default();
    let log = options().create_storage(storage.storage()).unwrap();
    let run = log.start_run("agent", "run", unsynced()).unwrap();
    let zeros = [0; 5000];
    for count in 1..8 {
        let record = NewRecord::new(&zeros).kind("zeros").durability(Durability::Process);
        let _ = run.append_record(&record).unwrap();
        let again = options().open_storage(storage.killed().storage()).unwrap();
        assert!(again.recovery_report().is_clean(), "{}", again.recovery_report());
        let records: Vec<_> = again.trace("run").unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), count);
        assert!(records.iter().all(|record| *record.payload() == zeros));
    }
}

/// There are threads, and directories are checked while the store is opened.
#[test]
fn a_damaged_directory_among_many_costs_nothing() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().index(false).create(&path).unwrap();
    write_ended(&log, 0..400);
    assert!(log.stats().unwrap().log_extents > 40);
    let bytes = std::fs::read(&path).unwrap();
    drop(log);
    let magic = b"RLOGDIR2";
    let places: Vec<usize> =
        (0..bytes.len() - 8).filter(|&at| bytes[at..].starts_with(magic)).collect();
    for damaged in [places[3], places[places.len() / 2], places[places.len() - 3]] {
        let mut bytes = bytes.clone();
        // How many evictions it has.
        bytes[damaged + 16] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let log = options().index(false).background(true).open(&path).unwrap();
        for name in (0..400).map(|run| format!("short-{run}")) {
            let records = all_of(&log, &name).1;
            assert_eq!(records.len(), 12, "{name}");
            assert!(records.iter().zip(0..).all(|(found, number)| *found == record(&name, number)));
        }
        assert!(matches!(log.run("none").unwrap_err(), runlog::Error::RunNotFound { .. }));
        let told = log.verify().unwrap().problems.len();
        assert_eq!(told, 1, "verify tells of the directory");
    }
}

#[test]
fn all_of_a_long_tail_that_a_failed_sync_dropped_is_durable_once_the_store_is_opened_again() {
    // Much longer than what is written again at once.
    const LONG: u64 = 1 << 20;
    const RECORDS: usize = 800;
    let machine = Environment::system();
    let options = |environment: Environment| {
        let options = Options::new().extent_size(LONG).background(false).sync_interval(None);
        options.environment(environment)
    };
    let disk = SimDisk::new();
    let log = options(machine.clone()).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for number in 0..RECORDS {
        let _ = run.append(&record("run", number)).unwrap();
    }
    disk.fail_next(OpKind::Sync, io::ErrorKind::Other);
    assert!(log.sync().is_err());
    drop((run, log));
    let log = options(machine.clone()).open_storage(Arc::new(disk.clone())).unwrap();
    assert_eq!(all_of(&log, "run").1.len(), RECORDS);
    // Without another answer from the store.
    let image = disk.crash(Survivors::Nothing, 1);
    drop(log);
    let other = machine;
    let log = options(other).open_storage(Arc::new(SimDisk::from_image(image))).unwrap();
    let expected: Vec<_> = (0..RECORDS).map(|number| record("run", number)).collect();
    assert_eq!(all_of(&log, "run").1, expected);
}

#[test]
fn a_large_document_that_a_kill_left_unsealed_has_the_time_at_which_it_was_written() {
    const AT: Timestamp = Timestamp(1_000_000_000);
    for in_front in [0, 30_000, 50_000, 64_000] {
        let disk = SimDisk::untracked(Vec::new());
        let (clock, system) = (SimClock::new(AT), Environment::system());
        let options = || {
            let environment = system.clone().clock(Arc::new(clock.clone()));
            let options = Options::new().extent_size(EXTENT).environment(environment);
            // No work is done behind the calls.
            options.scheduler(Arc::new(Background::default()))
        };
        let log = options().create_storage(Arc::new(disk.clone())).unwrap();
        let run = log.start_run("agent", "run", unsynced()).unwrap();
        for _ in 0..in_front / 1000 {
            let _ = run.append(&[7; 1000]).unwrap();
        }
        // Its chunks are in front of its start, and lie in several segments.
        log.docs().put("space", "key", &NewRecord::new(&[9; 150_000])).unwrap();
        let killed = SimDisk::untracked(disk.image());
        clock.advance(7_000_000_000);
        let log = options().open_storage(Arc::new(killed)).unwrap();
        assert!(log.recovery_report().scanned_segments > 1);
        let listed = log.docs().list("space", "", None, 10).unwrap();
        assert_eq!(listed.documents[0].timestamp, AT, "{in_front} bytes in front");
    }
}

/// A daemon may stop, or be killed, before its compaction was done, and delete nothing afterwards.
#[test]
fn what_was_deleted_before_an_opening_is_compacted_without_another_deletion() {
    for killed in [false, true] {
        let disk = SimDisk::untracked(Vec::new());
        let manual = options().compaction(Compaction::new().automatic(false));
        let log = manual.create_storage(Arc::new(disk.clone())).unwrap();
        let names: Vec<String> = (0..8).map(|run| format!("run-{run}")).collect();
        for name in &names {
            let _ = log.start_run("agent", name, unsynced()).unwrap();
        }
        for number in 0..160 {
            for name in &names {
                let _ = log.writer(name.as_str()).unwrap().append(&record(name, number)).unwrap();
            }
        }
        for name in &names[1..] {
            let _ = log.writer(name.as_str()).unwrap().end(&Outcome::completed()).unwrap();
            let _ = log.delete_run(name.as_str()).unwrap();
        }
        log.sync().unwrap();
        log.checkpoint().unwrap();
        let before = log.stats().unwrap();
        assert!(before.dead_bytes > 8 * EXTENT, "{before:?}");
        let image = disk.image();
        log.close().unwrap();
        let left = SimDisk::untracked(if killed { image } else { disk.image() });

        let (told, ends) = channel();
        let threads = options().background(true).observer(Arc::new(Ends(told)));
        let log = threads.open_storage(Arc::new(left)).unwrap();
        while log.stats().unwrap().dead_bytes > 4 * EXTENT {
            // So long that only a store that does nothing waits for it.
            let step = ends.recv_timeout(Duration::from_secs(20));
            step.unwrap_or_else(|_| panic!("killed: {killed}, {:?}", log.stats().unwrap()));
        }
        let kept = all_of(&log, &names[0]).1;
        assert!(kept.len() == 160 && log.verify().unwrap().is_clean());
        log.close().unwrap();
    }
}

/// Each opening after a kill and each copy leaves out numbers, up to 2^40 of them.
#[test]
fn run_numbers_that_are_far_apart_cost_no_memory() {
    let taken = |is_killed: bool| {
        let storage = Arc::new(MemoryStorage::new());
        options().create_storage(storage.clone()).unwrap().close().unwrap();
        let mut image = storage.to_bytes();
        for round in 0..=100 {
            let storage = Arc::new(MemoryStorage::from_bytes(image));
            let log = options().open_storage(storage.clone()).unwrap();
            write_ended(&log, round * 10..round * 10 + 10);
            log.sync().unwrap();
            if round % 2 == 0 {
                let _ = log.delete_run(&format!("short-{}", round * 10 + 5)).unwrap();
            }
            let killed = storage.to_bytes();
            log.close().unwrap();
            image = if is_killed { killed } else { storage.to_bytes() };
        }
        let copy = Arc::new(MemoryStorage::new());
        let image = Arc::new(MemoryStorage::from_bytes(image));
        let reader = ReaderOptions::new().open_storage(image).unwrap();
        let _ = reader.backup_to_storage(copy.clone()).unwrap();
        let (last, memory) = most_of(|| {
            let log = options().open_storage(copy).unwrap();
            write_ended(&log, 9000..9001);
            let kept = log.gc(&Retention::new().keep_newest(100)).unwrap();
            assert_eq!(kept.plan.totals.kept, 100);
            let last = log.run("short-9000").unwrap().number();
            log.close().unwrap();
            last
        });
        println!("the last run has the number {last}, and the store took {memory} bytes");
        (last, memory)
    };
    let ((_, without), (last, with)) = (taken(false), taken(true));
    assert!(last.0 > 1 << 40, "{last}");
    assert!(with < without + (256 << 10), "{with} and {without} bytes");
}
