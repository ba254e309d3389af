//! What a refresh costs, and says, when nothing has changed: also where something is damaged.

use core::ops::Range;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use runlog::env::{BootId, Environment};
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Follow, LogCursor, NewRecord, Options, Outcome, ReadLog, Reader, ReaderOptions, RunLog,
    RunStatus,
};

use crate::backup::backups::seals;
use crate::recovery::agreeing::frames;

const EXTENT: u64 = 1 << 20;
/// The most bytes that a look at a store reads of which nothing has changed: almost nothing, or the
/// segments that are damaged, and the one at the end of the log.
const WHOLE: u64 = 160 << 10;
const DAMAGED: u64 = 2 * EXTENT + WHOLE;

/// Counts the bytes that are read.
#[derive(Debug, Default)]
struct Counting {
    storage: MemoryStorage,
    bytes: AtomicU64,
    /// Which of the next reads fails; none if it is not positive.
    fails: AtomicI64,
}

impl Storage for Counting {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        if self.fails.fetch_sub(1, Ordering::Relaxed) == 1 {
            return Err(io::Error::other("this read alone"));
        }
        self.storage.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.storage.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        self.storage.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.punch(offset, len)
    }
}

impl Counting {
    fn holding(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self { storage: MemoryStorage::from_bytes(bytes), ..Self::default() })
    }
}

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

/// A run of records of which each is found by its bytes.
fn write_run(log: &RunLog, count: u8) {
    let run = log.start_run("agent", "run", ()).unwrap();
    for number in 0..count {
        run.append(&[number; 9_000]).unwrap();
    }
}

/// Where the payload of a record of [`write_run`] is.
fn place_of(bytes: &[u8], number: u8) -> usize {
    bytes.windows(9_000).position(|part| part.iter().all(|byte| *byte == number)).unwrap()
}

/// Refreshes again and again: after `first` of them nothing is new, and each reads little.
fn stays_as_it_is(storage: &Counting, reader: &Reader, (first, most): (usize, u64), what: &str) {
    for number in 0..12 {
        let before = storage.bytes.load(Ordering::Relaxed);
        let is_new = reader.refresh().unwrap();
        let read = storage.bytes.load(Ordering::Relaxed) - before;
        assert!(!is_new, "{what}: refresh {number} finds something new");
        assert!(number < first || read < most, "{what}: refresh {number} reads {read} bytes");
    }
    let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let mut nothing = 0;
    while nothing < 6 {
        nothing += usize::from(matches!(follower.try_next(), Ok(None)));
    }
    for number in 0..6 {
        let before = storage.bytes.load(Ordering::Relaxed);
        assert!(matches!(follower.try_next(), Ok(None)), "{what}: look {number}");
        let read = storage.bytes.load(Ordering::Relaxed) - before;
        assert!(read < most, "{what}: look {number} of a follower reads {read} bytes");
    }
}

/// The machine was restarted since, so the log ends at the first of two torn frames.
fn after_a_restart() -> ReaderOptions {
    ReaderOptions::new().environment(Environment::system().boot_id(Some(BootId([9; 16]))))
}

#[test]
fn a_torn_end_of_the_log_is_news_once() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    write_run(&log, 90);
    // As its writer left it when it died.
    let whole = storage.to_bytes();
    let mut bytes = whole.clone();
    let headers = [70, 80].map(|number| place_of(&whole, number) - 72);
    for at in headers {
        bytes[at..at + 72].fill(0x55);
    }
    let storage = Counting::holding(bytes);
    let reader = after_a_restart().open_storage(storage.clone()).unwrap();
    let report = reader.recovery_report();
    assert!(report.torn.is_some(), "{report}");
    assert_eq!(reader.run("run").unwrap().records, 70);
    stays_as_it_is(&storage, &reader, (3, DAMAGED), "torn");
    // What is behind it is looked at again once it is another.
    let at = headers[0];
    storage.write_at(at as u64, &whole[at..at + 72]).unwrap();
    let news = (0..4).filter(|_| reader.refresh().unwrap()).count();
    // The report follows the frames.
    assert!((1..3).contains(&news), "{news} times");
    assert_eq!(reader.run("run").unwrap().records, 80);
    stays_as_it_is(&storage, &reader, (3, DAMAGED), "torn later");
    log.close().unwrap();
}

/// The writer lives, and was not restarted: what it writes behind two damaged frames counts once it
/// is durable.
#[test]
fn what_a_writer_appends_behind_damage_is_seen() {
    let storage = Arc::new(Counting::default());
    let log = options().create_storage(storage.clone()).unwrap();
    write_run(&log, 60);
    let bytes = storage.storage.to_bytes();
    for number in [20, 40] {
        storage.write_at(place_of(&bytes, number) as u64 - 72, &[0x55; 72]).unwrap();
    }
    let reader = after_a_restart().open_storage(storage.clone()).unwrap();
    stays_as_it_is(&storage, &reader, (3, DAMAGED), "damaged");
    let run = log.writer("run").unwrap();
    for number in 0..4_u64 {
        run.append(&[99; 3_000]).unwrap();
        log.sync().unwrap();
        run.append(&[99; 100]).unwrap();
        let news = (0..3).filter(|_| reader.refresh().unwrap()).count();
        assert!(news > 0, "nothing is new behind {number}");
        let last = reader.trace("run").unwrap().next_back().unwrap().unwrap();
        assert!(last.seq().0 >= 60 + 2 * number, "{}", last.seq());
    }
    drop(run);
    log.close().unwrap();
}

#[test]
fn damage_that_stays_costs_a_refresh_one_look_at_the_segment() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    write_run(&log, 200);
    let whole = storage.to_bytes();
    let (_, seal) = seals(&whole)[0];
    let frames = [130, 150].map(|number| place_of(&whole, number));
    let harms: [(&str, Vec<(usize, usize)>); 5] = [
        ("the header of a frame", vec![(frames[0] - 72, 72)]),
        ("a payload", vec![(frames[0] + 500, 1)]),
        ("many frames", vec![(frames[0] - 72, 150_000)]),
        ("the directory", vec![(seal + 72, 40)]),
        ("directory and frames", vec![(seal, 72), (frames[0] - 72, 72), (frames[1] + 7, 1)]),
    ];
    for (what, places) in harms {
        let mut bytes = whole.clone();
        for (at, len) in &places {
            bytes[*at..at + len].fill(0x55);
        }
        let storage = Counting::holding(bytes);
        let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
        assert!(!reader.recovery_report().is_clean(), "{what}");
        stays_as_it_is(&storage, &reader, (3, DAMAGED), what);
        // It is restored in place.
        storage.write_at(0, &whole).unwrap();
        assert!(reader.refresh().unwrap(), "{what}: restored");
        assert!(reader.recovery_report().is_clean(), "{what}: {}", reader.recovery_report());
        assert_eq!(reader.trace("run").unwrap().filter(Result::is_ok).count(), 200);
        stays_as_it_is(&storage, &reader, (0, WHOLE), "restored");
    }
    log.close().unwrap();
}

/// Refreshes until nothing is new; all that a fresh reader sees is seen then.
fn is_as_fresh(storage: &Arc<MemoryStorage>, reader: &Reader, options: &ReaderOptions, what: &str) {
    for _ in 0..6 {
        let _ = reader.refresh().unwrap();
    }
    let fresh = options.clone().open_storage(Arc::<MemoryStorage>::clone(storage)).unwrap();
    let readable = |log: &Reader| log.trace("run").unwrap().filter(Result::is_ok).count();
    assert_eq!(readable(reader), readable(&fresh), "{what}");
}

#[test]
fn the_second_of_two_headers_in_one_gap_is_seen_once_it_is_restored() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    write_run(&log, 200);
    log.close().unwrap();
    let whole = storage.to_bytes();
    let (_, seal) = seals(&whole)[0];
    let options = ReaderOptions::new();
    for (is_sealed, numbers) in [(true, [60, 61]), (false, [190, 191])] {
        let mut bytes = whole.clone();
        if is_sealed {
            bytes[seal..seal + 72].fill(0x55);
        }
        let headers = numbers.map(|number| place_of(&whole, number) - 72);
        for at in headers {
            bytes[at..at + 72].fill(0x55);
        }
        let storage = Arc::new(MemoryStorage::from_bytes(bytes));
        let reader = options.clone().open_storage(storage.clone()).unwrap();
        is_as_fresh(&storage, &reader, &options, "damaged");
        storage.write_at(headers[1] as u64, &whole[headers[1]..headers[1] + 72]).unwrap();
        is_as_fresh(&storage, &reader, &options, "restored");
    }
}

#[test]
fn the_second_of_two_holes_is_seen_once_it_is_restored() {
    for options in [ReaderOptions::new(), after_a_restart()] {
        let storage = Arc::new(MemoryStorage::new());
        let log = self::options().create_storage(storage.clone()).unwrap();
        write_run(&log, 90);
        let whole = storage.to_bytes();
        let headers = [70, 80].map(|number| place_of(&whole, number) - 72);
        for at in headers {
            storage.write_at(at as u64, &[0x55; 72]).unwrap();
        }
        let reader = options.clone().open_storage(storage.clone()).unwrap();
        is_as_fresh(&storage, &reader, &options, "two holes");
        storage.write_at(headers[1] as u64, &whole[headers[1]..headers[1] + 72]).unwrap();
        is_as_fresh(&storage, &reader, &options, "one hole");
    }
}

/// Zeros at the end of a record look like the end of what was written.
#[test]
fn what_a_writer_appends_behind_zeros_and_damage_is_seen() {
    for options in [ReaderOptions::new(), after_a_restart()] {
        let storage = Arc::new(MemoryStorage::new());
        let log = self::options().create_storage(storage.clone()).unwrap();
        write_run(&log, 90);
        let run = log.writer("run").unwrap();
        run.append(&[0; 9_000]).unwrap();
        let whole = storage.to_bytes();
        for number in [70, 80] {
            storage.write_at(place_of(&whole, number) as u64 - 72, &[0x55; 72]).unwrap();
        }
        let reader = options.clone().open_storage(storage.clone()).unwrap();
        for _ in 0..3 {
            is_as_fresh(&storage, &reader, &options, "behind zeros");
            run.append(&[99; 3_000]).unwrap();
            log.sync().unwrap();
            run.append(&[99; 100]).unwrap();
            log.sync().unwrap();
            run.append(&[98; 100]).unwrap();
        }
        is_as_fresh(&storage, &reader, &options, "at last");
    }
}

/// A reader reads less at once than the record has bytes, so it must look for what is behind it.
#[test]
fn what_a_writer_appends_behind_a_damaged_header_of_a_long_record_is_seen() {
    for (len, in_batch, options) in [
        (30_000, false, ReaderOptions::new()),
        (70_000, false, ReaderOptions::new()),
        (300_000, false, ReaderOptions::new()),
        (300_000, false, after_a_restart()),
        (70_000, true, ReaderOptions::new()),
        (300_000, true, ReaderOptions::new()),
    ] {
        let storage = Arc::new(MemoryStorage::new());
        let log = self::options().create_storage(storage.clone()).unwrap();
        write_run(&log, 3);
        log.sync().unwrap();
        let reader = options.clone().open_storage(storage.clone()).unwrap();
        let run = log.writer("run").unwrap();
        if in_batch {
            let _ = log.docs().put("space", "key", &NewRecord::new(&vec![77; len])).unwrap();
        } else {
            run.append(&vec![77; len]).unwrap();
        }
        let bytes = storage.to_bytes();
        let at = bytes.windows(9_000).position(|part| *part == [77; 9_000]).unwrap();
        storage.write_at(at as u64 - 60, &[0x55; 8]).unwrap();
        for _ in 0..3 {
            run.append(&[99; 3_000]).unwrap();
            log.sync().unwrap();
            run.append(&[99; 100]).unwrap();
            log.sync().unwrap();
            is_as_fresh(&storage, &reader, &options, &format!("{len}"));
            let report = reader.recovery_report();
            assert_eq!(report.damaged.len(), 1, "{len}: {report}");
        }
    }
}

/// A store whose writer has written a document, and a run with a long record and a batch; and where
/// the frames of these are.
fn written() -> (Vec<u8>, Vec<Range<usize>>) {
    let file = Arc::new(MemoryStorage::new());
    let log = options().extent_size(64 << 10).create_storage(file.clone()).unwrap();
    let before = frames(&file.to_bytes()).len();
    let _ = log.docs().put("space", "key", &NewRecord::new(&[7; 20_000])).unwrap();
    let run = log.start_run("agent", "run", b"metadata").unwrap();
    let _ = run.append(&[8; 18_000]).unwrap();
    let _ = run.append_batch(&[NewRecord::new(b"one"), NewRecord::new(b"two")]).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let whole = file.to_bytes();
    let new: Vec<_> = frames(&whole).into_iter().skip(before).map(|(range, _)| range).collect();
    assert!(new.len() > 8, "{new:?}");
    (whole, new)
}

/// The same before these frames were written.
fn without(whole: &[u8], frames: &[Range<usize>]) -> Vec<u8> {
    let mut image = whole.to_vec();
    for frame in frames {
        image[frame.clone()].fill(0);
    }
    image
}

fn has_all_that_was_written(reader: &Reader, what: &str) {
    let document = reader.document("space", "key").unwrap().unwrap();
    assert_eq!(document.payload(), [7; 20_000], "{what}");
    let trace = reader.trace("run").unwrap();
    let lens: Vec<_> = trace.map(|record| record.unwrap().payload().len()).collect();
    assert_eq!(lens, [18_000, 3, 3], "{what}");
    assert_eq!(reader.run("run").unwrap().status, RunStatus::Completed, "{what}");
}

/// A writer writes several frames at once, and a reader may look in between, again and again.
#[test]
fn a_reader_that_looks_between_any_two_frames_has_all_of_them_in_the_end() {
    let (whole, new) = written();
    for first in 0..new.len() {
        let shared = Arc::new(MemoryStorage::from_bytes(without(&whole, &new[first..])));
        let reader = ReaderOptions::new().open_storage(shared.clone()).unwrap();
        for frame in &new[first..] {
            shared.write_at(frame.start as u64, &whole[frame.clone()]).unwrap();
            let _ = reader.refresh().unwrap();
        }
        has_all_that_was_written(&reader, &format!("{first} frames at first"));
    }
}

/// Whichever read of a reader that looks between any two frames.
#[test]
fn a_read_that_failed_costs_the_next_refresh_nothing() {
    let (whole, new) = written();
    let mut failed = 0;
    for first in 0..new.len() {
        for number in 1.. {
            let shared = Counting::holding(without(&whole, &new[first..]));
            let reader = ReaderOptions::new().open_storage(shared.clone()).unwrap();
            shared.fails.store(number, Ordering::Relaxed);
            let before = failed;
            for frame in &new[first..] {
                shared.write_at(frame.start as u64, &whole[frame.clone()]).unwrap();
                failed += usize::from(reader.refresh().is_err());
            }
            if shared.fails.swap(0, Ordering::Relaxed) > 0 {
                break;
            }
            let _ = reader.refresh().unwrap();
            let what = format!("{first} frames at first, read {number} fails");
            assert_eq!(failed - before, 1, "{what}");
            has_all_that_was_written(&reader, &what);
        }
    }
    assert!(failed > 100, "{failed}");
}
