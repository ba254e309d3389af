//! Ranges of a run with damaged records: each damaged record is an error at its place, in either
//! direction, and no range has an item outside of it.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use runlog::format::SUPERBLOCK_AT;
use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::storage::MemoryStorage;
use runlog::{Error, Options, Outcome, ReadLog, ReaderOptions, RunLog, Seq};
use runlog_sim::{SimDisk, SplitMix64};

use crate::support::frames::EXTENT;
use crate::support::tap::Tap;

fn options() -> Options {
    Options::new().extent_size(EXTENT as u64).background(false).index(false)
}

fn on(image: &[u8]) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image.to_vec()))
}

fn payload(number: u64) -> Vec<u8> {
    format!("record {number:05} ").repeat(80).into_bytes()
}

/// A closed store with a run in a sealed segment, and one more record of it in the next segment.
struct Store {
    image: Vec<u8>,
    last: u64,
}

impl Store {
    fn new() -> Self {
        let disk = on(&[]);
        let log = options().create_storage(disk.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let mut count = 0..;
        while log.stats().unwrap().sealed_segments == 0 {
            let _ = run.append(&payload(count.next().unwrap())).unwrap();
        }
        drop(run);
        log.close().unwrap();
        Self { image: disk.image(), last: count.start - 1 }
    }

    fn header_of(&self, number: u64) -> Range<usize> {
        let payload = payload(number);
        let at = self.image.windows(payload.len()).position(|part| part == payload).unwrap();
        at - FRAME_HEADER_LEN..at
    }

    /// The store with damage in the headers of these records.
    fn damaged(&self, numbers: &[u64]) -> Vec<u8> {
        let mut image = self.image.clone();
        numbers.iter().for_each(|number| image[self.header_of(*number).start + 20] ^= 1);
        image
    }

    fn check(&self, log: &impl ReadLog, damaged: &[u64], range: &Range<u64>) {
        let trace = || log.trace("run").unwrap().range(Seq(range.start)..Seq(range.end)).unwrap();
        let in_range = (0..=self.last).filter(|number| range.contains(number));
        let expected: Vec<_> = in_range.map(|one| (one, !damaged.contains(&one))).collect();
        let front: Vec<_> = trace().map(item).collect();
        assert_eq!(front, expected, "{damaged:?}, {range:?}");
        let mut back: Vec<_> = trace().rev().map(item).collect();
        back.reverse();
        assert_eq!(back, expected, "{damaged:?}, {range:?} backwards");
    }
}

/// The number of an item, and whether it is a record.
fn item(one: runlog::Result<runlog::Record>) -> (u64, bool) {
    match one {
        Ok(record) => {
            assert_eq!(record.payload(), payload(record.seq().0));
            (record.seq().0, true)
        }
        Err(Error::Corrupt(found)) => (found.seq.unwrap().0, false),
        Err(error) => panic!("{error}"),
    }
}

fn ranges(end: u64) -> impl Iterator<Item = Range<u64>> {
    (0..=end).flat_map(move |low| (low..=end).map(move |high| low..high))
}

#[test]
fn a_range_has_an_error_for_each_damaged_record_in_it_and_nothing_outside() {
    let store = Store::new();
    let last = store.last;
    assert!(last > 30, "{last}");
    let mut cases = vec![vec![], vec![0], vec![0, 1, 2], vec![last - 2, last - 1]];
    cases.push((last / 2 - 3..last / 2 + 4).collect());
    cases.push((0..last).collect());
    let mut random = SplitMix64::new(0x5eed_0001);
    cases.extend((0..4).map(|_| (0..last).filter(|_| random.index(3) == 0).collect::<Vec<_>>()));
    for damaged in cases {
        let disk = on(&store.damaged(&damaged));
        let reader = ReaderOptions::new().open_storage(disk.clone()).unwrap();
        for range in ranges(last + 3) {
            store.check(&reader, &damaged, &range);
        }
        let log = options().open_storage(disk).unwrap();
        for range in ranges(last + 3).step_by(7) {
            store.check(&log, &damaged, &range);
        }
    }
}

/// One read fails, then the run is moved, then another read fails: each is told.
#[test]
fn a_read_that_fails_behind_a_move_is_told_although_an_earlier_one_was() {
    for is_back in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let filler = log.start_run("agent", "filler", ()).unwrap();
        let count = 12;
        for number in 0..count {
            let _ = run.append(&payload(number)).unwrap();
            let _ = filler.append(&[7; 2500]).unwrap();
        }
        let _ = filler.end(&Outcome::completed()).unwrap();
        let more = log.start_run("agent", "more", ()).unwrap();
        let _ = more.append(&[7; 50_000]).unwrap();
        log.checkpoint().unwrap();
        let failing = Arc::new(Mutex::new(0..0));
        let fails = Arc::clone(&failing);
        let busy = Tap::only_reads(storage.clone(), move |offset, len| {
            let range: Range<u64> = fails.lock().unwrap().clone();
            let is_in = offset < range.end && range.start < offset + len as u64;
            if is_in { Err(ErrorKind::Other.into()) } else { Ok(()) }
        });
        let place = |number: u64| {
            let (image, payload) = (storage.to_bytes(), payload(number));
            let at = image.windows(payload.len()).rposition(|part| part == payload).unwrap() as u64;
            at - FRAME_HEADER_LEN as u64..at + payload.len() as u64
        };
        let reader = ReaderOptions::new().open_storage(busy).unwrap();
        let mut trace = reader.trace("run").unwrap();
        let mut next = || if is_back { trace.next_back() } else { trace.next() };
        let seq = |number: u64| if is_back { count - 1 - number } else { number };
        (0..3).for_each(|number| assert_eq!(next().unwrap().unwrap().seq().0, seq(number)));
        *failing.lock().unwrap() = place(seq(3));
        let first = next().unwrap();
        *failing.lock().unwrap() = 0..0;
        let _ = log.delete_run("filler").unwrap();
        assert!(log.compact().unwrap().segments > 0);
        log.reclaim().unwrap();
        *failing.lock().unwrap() = place(seq(6));
        let rest: Vec<_> = core::iter::from_fn(&mut next).collect();
        let told = rest.iter().filter(|item| item.is_err()).count();
        let read = rest.iter().filter(|item| item.is_ok()).count() + usize::from(first.is_ok());
        assert!(
            told > 0 && read + 3 + told >= count as usize,
            "{told} told, {read} read: {rest:?}"
        );
    }
}

/// Where reads fail, and how many of them.
type Failing = Arc<Mutex<(Range<u64>, usize)>>;

/// A store, a writer of it, and a reader whose reads fail where the test says.
fn beside_a_writer(image: Vec<u8>) -> (RunLog, runlog::Reader, Failing) {
    let storage = Arc::new(MemoryStorage::from_bytes(image));
    let log = options().open_storage(storage.clone()).unwrap();
    let failing = Arc::new(Mutex::new((0..0, 0)));
    let fails = Arc::clone(&failing);
    let busy = Tap::only_reads(storage, move |offset, len| {
        let (range, times) = &mut *fails.lock().unwrap();
        let is_in = offset < range.end && range.start < offset + len as u64;
        if is_in && *times > 0 {
            *times -= 1;
            return Err(ErrorKind::Other.into());
        }
        Ok(())
    });
    let reader = ReaderOptions::new().open_storage(busy).unwrap();
    (log, reader, failing)
}

/// A trace that meets damage looks whether the writer has moved the run.
#[test]
fn a_look_at_the_file_that_fails_ends_no_trace() {
    let store = Store::new();
    let harmed = 9;
    for is_back in [false, true] {
        for times in 1..4 {
            let (log, reader, failing) = beside_a_writer(store.damaged(&[harmed]));
            let trace = reader.trace("run").unwrap();
            *failing.lock().unwrap() = (SUPERBLOCK_AT..SUPERBLOCK_AT + 1, times);
            let items: Vec<_> = if is_back { trace.rev().collect() } else { trace.collect() };
            let mut read: Vec<_> = items.iter().flatten().map(|one| one.seq().0).collect();
            read.sort_unstable();
            let expected: Vec<_> = (0..=store.last).filter(|one| *one != harmed).collect();
            assert_eq!(read, expected, "{times} times, from the back: {is_back}");
            let told = items.iter().filter(|item| item.is_err()).count();
            assert!((1..=2).contains(&told), "{told} errors");
            log.close().unwrap();
        }
    }
}
