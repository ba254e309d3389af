//! Records that are too long for one frame: what happens to them, and beside them, while they are
//! written, moved, deleted and damaged.
//!
//! [`Meanwhile`] is a clock that does something else when it is asked for the k-th time. A call
//! asks it first, and then in front of each chunk of a record, without a lock, so this does what
//! another thread could do at that moment, and always at the same one.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use runlog::env::{Clock, Environment};
use runlog::format::{FrameHeader, FrameKind};
use runlog::storage::MemoryStorage;
use runlog::{
    Batch, Compaction, Error, Expected, NewRecord, Options, Outcome, Retention, RunLog, Timestamp,
};
use runlog_sim::{SimDisk, SimEntropy, SplitMix64};

use crate::support::frames::all_frames;

const EXTENT: usize = 64 << 10;

type Action = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(crate) struct Meanwhile {
    time: Mutex<i64>,
    due: Mutex<Option<(usize, Action)>>,
    /// The panic of an action, which the engine may take for one of the clock.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Meanwhile {
    /// Calls `action` when the clock is asked for the time with this number from now on.
    pub(crate) fn at(&self, number: usize, action: impl FnOnce() + Send + 'static) {
        *self.due.lock().unwrap() = Some((number, Box::new(action)));
    }

    /// Whether that happened.
    pub(crate) fn is_over(&self) -> bool {
        if let Some(panic) = self.panic.lock().unwrap().take() {
            resume_unwind(panic);
        }
        self.due.lock().unwrap().is_none()
    }
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Clock for Meanwhile {
    fn now(&self) -> Timestamp {
        let mut due = self.due.lock().unwrap();
        let action = match due.take() {
            Some((0, action)) => Some(action),
            later => {
                *due = later.map(|(number, action)| (number - 1, action));
                None
            }
        };
        drop(due);
        if let Some(action) = action {
            *self.panic.lock().unwrap() = catch_unwind(AssertUnwindSafe(action)).err();
        }
        let mut time = self.time.lock().unwrap();
        *time += 1000;
        Timestamp(*time)
    }
}

pub(crate) fn options(clock: &Arc<Meanwhile>) -> Options {
    Options::new()
        .extent_size(EXTENT as u64)
        .background(false)
        .compaction(Compaction::new().automatic(false))
        .environment(
            Environment::system().clock(clock.clone()).entropy(Arc::new(SimEntropy::new(1))),
        )
}

fn create() -> (Arc<Meanwhile>, RunLog) {
    let clock = Arc::new(Meanwhile::default());
    let log = options(&clock).create_storage(Arc::new(MemoryStorage::new())).unwrap();
    (clock, log)
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::new(seed).fill(&mut bytes);
    bytes
}

pub(crate) fn payloads(log: &RunLog, run: &str) -> Vec<Vec<u8>> {
    log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect()
}

pub(crate) fn assert_clean(log: &RunLog) {
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn a_batch_fails_if_its_run_is_replaced_by_another_of_the_same_name_between_its_chunks() {
    let large = noise(1, 30_000);
    for number in 1..5 {
        let (clock, log) = create();
        drop(log.start_run("agent", "run", ()).unwrap());
        let other = log.clone();
        clock.at(number, move || {
            other.writer(("agent", "run")).unwrap().end(&Outcome::completed()).unwrap();
            other.delete_run(("agent", "run")).unwrap();
            drop(other.start_run("agent", "run", ()).unwrap());
        });
        let mut batch = Batch::new();
        batch.append("agent", "run", NewRecord::new(&large));
        batch.append("agent", "run", NewRecord::new(b"short"));
        let refused = log.commit(&batch).unwrap_err();
        assert!(clock.is_over() && matches!(refused, Error::Evicted { .. }), "{refused:?}");
        assert!(payloads(&log, "run").is_empty());
        log.commit(&batch).unwrap();
        assert_eq!(payloads(&log, "run"), [large.clone(), b"short".to_vec()]);
        assert_clean(&log);
        log.compact().unwrap();
        assert_eq!(payloads(&log, "run"), [large.clone(), b"short".to_vec()]);
        assert_clean(&log);
    }
}

#[test]
fn policies_and_holds_say_nothing_of_a_document_that_is_being_written() {
    let (clock, log) = create();
    let run = log.start_run("agent", "run", ()).unwrap();
    run.append(b"record").unwrap();
    run.end(&Outcome::completed()).unwrap();
    log.hold("run", "why").unwrap();
    let (other, policy) = (log.clone(), Retention::new().keep_newest(1));
    clock.at(3, move || {
        assert!(other.gc_plan(&policy).unwrap().evict.is_empty());
        assert!(other.gc(&policy).unwrap().plan.evict.is_empty());
        assert_eq!(other.held_runs().unwrap().len(), 1);
        assert_eq!(other.docs().list("space", "", None, 10).unwrap().documents.len(), 0);
        assert!(other.docs().get("space", "key").unwrap().is_none());
    });
    let large = noise(2, 50_000);
    log.docs().put("space", "key", &NewRecord::new(&large)).unwrap();
    assert!(clock.is_over());
    assert!(*log.docs().get("space", "key").unwrap().unwrap().payload() == *large);
    assert_clean(&log);
}

#[test]
fn a_run_can_be_erased_between_the_chunks_of_another_ones_record() {
    let secret = noise(3, 20_000);
    for number in 1..6 {
        let clock = Arc::new(Meanwhile::default());
        let storage = Arc::new(MemoryStorage::new());
        // Nothing rolls while the record is written: the clock is asked under a lock then.
        let options = options(&clock).extent_size(1 << 20);
        let log = options.create_storage(storage.clone()).unwrap();
        let large = log.start_run("agent", "large", ()).unwrap();
        let small = log.start_run("agent", "small", ()).unwrap();
        large.append(&noise(4, 200_000)).unwrap();
        small.append(&secret).unwrap();
        small.end(&Outcome::completed()).unwrap();
        let other = log.clone();
        clock.at(number, move || {
            let erased = other.erase_run(("agent", "small")).unwrap();
            assert_eq!(erased.pinned_extents, 0);
        });
        large.append(&noise(5, 600_000)).unwrap();
        assert!(clock.is_over());
        let found = payloads(&log, "large");
        assert!(found == [noise(4, 200_000), noise(5, 600_000)]);
        let image = storage.to_bytes();
        let part = |at: usize| &secret[at..at + 64];
        let is_left = (0..secret.len() - 64)
            .step_by(4096)
            .any(|at| image.windows(64).any(|window| window == part(at)));
        assert!(!is_left, "bytes of the erased run are left");
        assert_clean(&log);
    }
}

#[test]
fn a_small_run_among_hundreds_of_segments_of_large_records_can_be_erased() {
    let (_, log) = create();
    let large = log.start_run("agent", "large", ()).unwrap();
    let records: Vec<Vec<u8>> = (0..8).map(|number| noise(10 + number, 1_500_000)).collect();
    for (number, record) in records.iter().enumerate() {
        if number == 4 {
            let small = log.start_run("agent", "small", ()).unwrap();
            small.append(b"a secret").unwrap();
            small.end(&Outcome::completed()).unwrap();
        }
        large.append(record).unwrap();
    }
    let erased = log.erase_run("small").unwrap();
    assert_eq!((erased.bytes, erased.pinned_extents), (8, 0));
    assert!(payloads(&log, "large") == records);
    assert!(log.receipts(10).unwrap().iter().any(|receipt| receipt.run.as_str() == "small"));
    assert_clean(&log);
}

#[test]
fn records_that_threads_append_to_one_run_at_once_come_back_whole() {
    let (_, log) = create();
    drop(log.start_run("agent", "run", ()).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let log = &log;
            scope.spawn(move || {
                let run = log.writer(("agent", "run")).unwrap();
                for number in 0..12 {
                    let len = if number % 3 == 0 { 100 } else { 40_000 };
                    run.append(&noise(thread * 100 + number, len)).unwrap();
                }
            });
        }
    });
    let mut expected: Vec<Vec<u8>> = (0..4_u64)
        .flat_map(|thread| (0..12).map(move |number| (thread, number)))
        .map(|(thread, number)| {
            noise(thread * 100 + number, if number % 3 == 0 { 100 } else { 40_000 })
        })
        .collect();
    expected.sort();
    for compacted in [false, true] {
        if compacted {
            log.compact().unwrap();
        }
        let mut found = payloads(&log, "run");
        found.sort();
        assert!(found == expected);
        let backwards: Vec<u64> =
            log.trace("run").unwrap().rev().map(|record| record.unwrap().seq().0).collect();
        assert_eq!(backwards, (0..48).rev().collect::<Vec<_>>());
        assert_clean(&log);
    }
}

#[test]
fn on_a_full_disk_large_writes_leave_nothing_behind_that_takes_space() {
    for capacity in (1_000_000..1_200_000).step_by(30_000) {
        let clock = Arc::new(Meanwhile::default());
        let disk = SimDisk::untracked(Vec::new());
        disk.set_capacity(capacity);
        let log = options(&clock).create_storage(Arc::new(disk.clone())).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        run.append(&noise(1, 500_000)).unwrap();
        let large = noise(2, 900_000);
        let mut taken = Vec::new();
        for attempt in 0..6 {
            let refused = match attempt % 3 {
                0 => run.append(&large).map(drop),
                1 => log.docs().put("space", "key", &NewRecord::new(&large)).map(drop),
                _ => run.append_batch(&[NewRecord::new(&large), NewRecord::new(b"x")]).map(drop),
            };
            assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
            taken.push(disk.allocated());
        }
        // Segments for other writes may have got their space after the first refusal.
        let set_aside = 2 * 65_536;
        assert!(taken.iter().all(|taken_now| *taken_now <= taken[0] + set_aside), "{taken:?}");
        assert_eq!(payloads(&log, "run").len(), 1);
        // The segments that were set aside take what fits them.
        run.append(&noise(3, 100_000)).unwrap();
        assert_clean(&log);
    }
}

#[test]
fn a_document_that_a_full_disk_breaks_off_takes_no_space() {
    let clock = Arc::new(Meanwhile::default());
    let disk = SimDisk::untracked(Vec::new());
    let log = options(&clock).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let other = disk.clone();
    // Another program takes the space while the record is written.
    let filler = log.clone();
    clock.at(4, move || {
        other.set_capacity(other.allocated());
        let run = filler.writer(("agent", "run")).unwrap();
        while run.append(&[7; 5000]).is_ok() {}
    });
    let refused = log.docs().put("space", "key", &NewRecord::new(&noise(2, 300_000)));
    assert!(clock.is_over() && matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    assert!(log.docs().get("space", "key").unwrap().is_none());
    disk.set_capacity(u64::MAX);
    let empty = log.verify().unwrap();
    assert!(empty.is_clean(), "{:?}", empty.problems);
    log.docs().put_if("space", "key", &NewRecord::new(b"value"), Expected::Absent).unwrap();
    assert_eq!(*log.docs().get("space", "key").unwrap().unwrap().payload(), *b"value");
    drop(run);
    log.close().unwrap();
}

/// A closed store: a run that has ended with large and small records, one that goes on, and small
/// runs that were deleted.
fn closed() -> (Arc<Meanwhile>, Arc<MemoryStorage>, Vec<Vec<u8>>) {
    let clock = Arc::new(Meanwhile::default());
    let storage = Arc::new(MemoryStorage::new());
    let log = options(&clock).create_storage(storage.clone()).unwrap();
    let (one, two) = ("one", "two");
    let (first, second) =
        (log.start_run("agent", one, ()).unwrap(), log.start_run("agent", two, ()).unwrap());
    let mut records = Vec::new();
    for number in 0..10 {
        let record = noise(number, if number % 2 == 0 { 30_000 } else { 700 });
        first.append(&record).unwrap();
        second.append(&record).unwrap();
        let gone = log.start_run("agent", &format!("gone-{number}"), ()).unwrap();
        gone.append(&noise(50 + number, 6_000)).unwrap();
        gone.end(&Outcome::completed()).unwrap();
        records.push(record);
    }
    first.end(&Outcome::completed()).unwrap();
    for number in 0..10 {
        log.delete_run(("agent", format!("gone-{number}").as_str())).unwrap();
    }
    drop((first, second));
    log.close().unwrap();
    (clock, storage, records)
}

#[test]
fn each_damaged_frame_of_a_large_record_costs_that_record_and_stops_no_compaction() {
    let (clock, storage, records) = closed();
    let image = storage.to_bytes();
    let all = all_frames(&image);
    let large = |frame: &FrameHeader| matches!(frame.kind, FrameKind::Chunk | FrameKind::Record);
    let hit = all.iter().filter(|(_, frame)| large(frame)).step_by(7);
    let (mut tried, mut refused) = (0, 0);
    for (range, frame) in hit {
        for place in [8, 33, frame.header_len() + 5] {
            let mut image = image.clone();
            image[range.start + place] ^= 4;
            let storage = Arc::new(MemoryStorage::from_bytes(image.clone()));
            let log = match options(&clock).open_storage(storage.clone()) {
                Ok(log) => log,
                Err(error) => {
                    // A damaged header in a segment without a directory.
                    assert!(error.is_damaged() && place < frame.header_len(), "{error}");
                    assert_eq!(storage.to_bytes(), image, "the file is unchanged");
                    refused += 1;
                    continue;
                }
            };
            let compacted = log.compact().unwrap();
            assert!(compacted.segments > 0, "others are moved all the same: {compacted:?}");
            let mut lost = 0;
            for run in ["one", "two"] {
                let found: Vec<_> = log.trace(run).unwrap().collect();
                assert_eq!(found.len(), records.len(), "{run}, {frame:?}");
                for (record, expected) in found.iter().zip(&records) {
                    match record {
                        Ok(record) => assert!(*record.payload() == **expected),
                        Err(error) => lost += usize::from(error.is_corruption()),
                    }
                }
            }
            // The runs that are left were started first.
            let is_dead = frame.run_no.0 > 2;
            assert_eq!(lost, usize::from(!is_dead), "{frame:?}");
            assert_eq!(log.verify().unwrap().is_clean(), is_dead, "{frame:?}");
            tried += 1;
        }
    }
    assert!(refused < tried, "{refused} refused, {tried} opened");
}
