//! Ranges of a run that has lost a record for good, so that its sequences have a hole, and whose
//! other records are damaged: no range has a record that is outside of it, and none leaves out
//! what it has without a word, in either direction.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::format::{FrameKind, SUPERBLOCK_AT};
use runlog::storage::MemoryStorage;
use runlog::{Damage, Error, Options, Outcome, ReadLog, ReaderOptions, RunLog, Seq};
use runlog_sim::{SimDisk, SplitMix64};

use crate::support::frames::{EXTENT, frames_in};
use crate::support::reads::OnlyReads;

/// The record that the directory does not list.
const HOLE: u64 = 3;

fn options() -> Options {
    Options::new().extent_size(EXTENT as u64).background(false).index(false)
}

fn on(image: &[u8]) -> Arc<SimDisk> {
    Arc::new(SimDisk::untracked(image.to_vec()))
}

fn payload(number: u64) -> Vec<u8> {
    format!("record {number:05} ").repeat(80).into_bytes()
}

/// A record, or the damage in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Record(u64),
    Damaged,
}

/// A closed store with a run in a sealed segment, and the records that its directory lists there.
struct Store {
    image: Vec<u8>,
    listed: Vec<u64>,
}

impl Store {
    fn new() -> Self {
        let disk = on(&[]);
        let log = options().create_storage(disk.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        (0..8).for_each(|number| drop(run.append(&payload(number)).unwrap()));
        log.sync().unwrap();
        let mut image = disk.image();
        drop((run, log));
        let frames = frames_in(&image, 0);
        let records = frames.iter().filter(|(_, frame)| frame.kind == FrameKind::Record);
        let lost = records.map(|(at, _)| at.start).nth(HOLE as usize).unwrap();
        image[lost + 20] ^= 1;
        let disk = on(&image);
        let log = options().open_storage(disk.clone()).unwrap();
        let run = log.writer("run").unwrap();
        let mut count = 8..;
        while log.stats().unwrap().sealed_segments == 0 {
            let _ = run.append(&payload(count.next().unwrap())).unwrap();
        }
        // The last one is in the next segment.
        let last = count.start - 1;
        drop(run);
        log.close().unwrap();
        let listed = (0..last).filter(|number| *number != HOLE).collect();
        Self { image: disk.image(), listed }
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

    /// What a range has, if these records are damaged: such a one may have any number that those
    /// around it leave to it.
    fn expected(&self, damaged: &[u64], range: &Range<u64>) -> Vec<Item> {
        let is_whole = |number: &&u64| !damaged.contains(number);
        let end = *self.listed.last().unwrap() + 1;
        let item = |(index, number): (usize, &u64)| {
            if !damaged.contains(number) {
                return range.contains(number).then_some(Item::Record(*number));
            }
            let (before, behind) = self.listed.split_at(index);
            let front = before.iter().rposition(|one| is_whole(&one));
            let least = front.map_or(index as u64, |at| before[at] + (index - at) as u64);
            let back = behind.iter().position(|one| is_whole(&one));
            let most = match back {
                Some(at) => behind[at] - at as u64,
                None => end - behind.len() as u64,
            };
            let is_in = range.start <= most && least < range.end && !range.is_empty();
            is_in.then_some(Item::Damaged)
        };
        let mut items: Vec<_> = self.listed.iter().enumerate().filter_map(item).collect();
        items.extend(range.contains(&end).then_some(Item::Record(end)));
        items
    }

    fn check(&self, log: &impl ReadLog, damaged: &[u64], range: &Range<u64>) {
        let trace = || log.trace("run").unwrap().range(Seq(range.start)..Seq(range.end)).unwrap();
        let expected = self.expected(damaged, range);
        let front: Vec<_> = trace().filter_map(|one| item(one, range)).collect();
        assert_eq!(front, expected, "{damaged:?}, {range:?}");
        let mut back: Vec<_> = trace().rev().filter_map(|one| item(one, range)).collect();
        back.reverse();
        assert_eq!(back, expected, "{damaged:?}, {range:?} backwards");
    }
}

/// An item of a range, unless it says that the hole is there.
fn item(one: runlog::Result<runlog::Record>, range: &Range<u64>) -> Option<Item> {
    match one {
        Ok(record) => {
            assert_eq!(record.payload(), payload(record.seq().0));
            Some(Item::Record(record.seq().0))
        }
        Err(Error::Corrupt(found)) if found.damage == Damage::Missing => {
            assert_eq!(found.seq, Some(Seq(HOLE)), "{range:?}");
            assert!(range.contains(&HOLE), "{range:?}");
            None
        }
        Err(Error::Corrupt(_) | Error::Io { .. }) => Some(Item::Damaged),
        Err(error) => panic!("{error}"),
    }
}

fn ranges(end: u64) -> impl Iterator<Item = Range<u64>> {
    (0..=end).flat_map(move |low| (low..=end).map(move |high| low..high))
}

#[test]
fn a_range_has_what_is_in_it_and_nothing_else_if_a_run_with_a_hole_is_damaged() {
    let store = Store::new();
    let (count, last) = (store.listed.len(), *store.listed.last().unwrap());
    assert!(count > 30, "{count}");
    // The first one that a search looks at.
    let middle = store.listed[count / 2];
    let most: Vec<_> = store.listed.iter().copied().filter(|number| number % 9 != 1).collect();
    let mut cases = vec![
        vec![],
        vec![middle],
        vec![HOLE + 1],
        vec![HOLE - 1, HOLE + 1, HOLE + 2],
        vec![0],
        vec![0, 1, 2],
        vec![last],
        vec![last - 1, last],
        (middle - 3..middle + 4).collect(),
        most,
        store.listed.clone(),
    ];
    let seed = 0x5eed_0001;
    println!("seed {seed:#x}");
    let mut random = SplitMix64::new(seed);
    cases.extend((0..4).map(|_| {
        store.listed.iter().copied().filter(|_| random.index(3) == 0).collect::<Vec<_>>()
    }));
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

/// The first record that a search looks at is damaged.
#[test]
fn a_record_behind_a_damaged_one_is_found_by_its_number() {
    let store = Store::new();
    let middle = store.listed[store.listed.len() / 2];
    let log = options().open_storage(on(&store.damaged(&[middle]))).unwrap();
    let all: Vec<_> = log.trace("run").unwrap().flatten().map(|record| record.seq()).collect();
    assert!(all.len() > 30 && !all.contains(&Seq(middle)));
    for seq in all {
        let found: Vec<_> = log.trace("run").unwrap().range(seq..=seq).unwrap().collect();
        assert!(matches!(&found[..], [Ok(record)] if record.seq() == seq), "{seq}: {found:?}");
    }
    let found: Vec<_> =
        log.trace("run").unwrap().range(Seq(middle)..=Seq(middle)).unwrap().collect();
    assert!(matches!(&found[..], [Err(error)] if error.is_corruption()), "{found:?}");
}

#[test]
fn a_range_leaves_out_a_sector_that_cannot_be_read_in_front_of_it() {
    let store = Store::new();
    let (count, last) = (store.listed.len(), *store.listed.last().unwrap());
    let unread = store.listed[count / 2];
    let disk = on(&store.image);
    let log: RunLog = options().open_storage(disk.clone()).unwrap();
    assert_eq!(log.trace("run").unwrap().flatten().count(), count + 1);
    let header = store.header_of(unread);
    disk.fail_reads_in(header.start as u64..header.end as u64, ErrorKind::Other);
    for range in ranges(last + 3) {
        store.check(&log, &[unread], &range);
    }
}

/// The writer fills a segment between any two items, so that the reader finds the run again.
#[test]
fn a_trace_gives_each_damage_once_while_a_writer_goes_on() {
    let store = Store::new();
    for is_back in [false, true] {
        for harmed in [&[9, 10][..], &[4, 5, 6, 10]] {
            let storage = Arc::new(MemoryStorage::from_bytes(store.damaged(harmed)));
            let log = options().open_storage(storage.clone()).unwrap();
            let reader = ReaderOptions::new().open_storage(storage).unwrap();
            let mut trace = reader.trace("run").unwrap();
            let (mut records, mut errors) = (0, 0);
            for number in 0_u64.. {
                assert!(number < 300, "it does not end: {records} records, {errors} errors");
                match if is_back { trace.next_back() } else { trace.next() } {
                    None => break,
                    Some(Ok(_)) => records += 1,
                    Some(Err(_)) => errors += 1,
                }
                let busy = log.start_run("agent", &format!("busy-{number}"), ()).unwrap();
                let _ = busy.append(&[7; 60_000]).unwrap();
            }
            let whole = store.listed.len() + 1 - harmed.len();
            assert_eq!(records, whole, "{harmed:?}, from the back: {is_back}");
            let most = harmed.len() + 1;
            assert!((harmed.len()..=most).contains(&errors), "{errors} errors of {harmed:?}");
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
        let busy = OnlyReads::new(storage.clone(), move |offset, len| {
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

/// Reads of the header of record 2 or 4, which are beside the hole, fail while the range is looked
/// for, and not while it is read.
#[test]
fn a_range_has_nothing_outside_of_it_if_a_read_failed_while_it_was_looked_for() {
    let store = Store::new();
    let disk = on(&store.image);
    let log: RunLog = options().open_storage(disk.clone()).unwrap();
    let last = *store.listed.last().unwrap();
    for unread in [vec![2], vec![4], vec![2, 4], vec![1, 2], vec![4, 5, 6]] {
        for range in ranges(last + 3) {
            for is_back in [false, true] {
                for number in &unread {
                    let header = store.header_of(*number);
                    let header = header.start as u64..header.end as u64;
                    disk.fail_reads_in(header, ErrorKind::Other);
                }
                let trace = log.trace("run").unwrap();
                let trace = trace.range(Seq(range.start)..Seq(range.end)).unwrap();
                disk.clear_faults();
                let seqs = |found: Vec<runlog::Result<runlog::Record>>| {
                    found.into_iter().flatten().map(|one| one.seq().0).collect::<Vec<_>>()
                };
                let found = if is_back {
                    let mut found = seqs(trace.rev().collect());
                    found.reverse();
                    found
                } else {
                    seqs(trace.collect())
                };
                let expected: Vec<_> =
                    range.clone().filter(|one| *one <= last + 1 && *one != HOLE).collect();
                assert_eq!(found, expected, "{unread:?}, {range:?}, from the back: {is_back}");
            }
        }
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
    let busy = OnlyReads::new(storage, move |offset, len| {
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

/// The run is found again, and the search does not see a record that was given.
#[test]
fn a_trace_gives_a_record_once_although_a_read_fails_while_it_finds_the_run_again() {
    let store = Store::new();
    for unread in 0..3 {
        for times in 1..4 {
            let (log, reader, failing) = beside_a_writer(store.image.clone());
            let mut trace = reader.trace("run").unwrap();
            let mut seqs: Vec<_> = (0..3).map(|_| trace.next().unwrap().unwrap().seq().0).collect();
            let busy = log.start_run("agent", "busy", ()).unwrap();
            let _ = busy.append(&[7; 60_000]).unwrap();
            let header = store.header_of(unread);
            *failing.lock().unwrap() = (header.start as u64..header.end as u64, times);
            seqs.extend(trace.flatten().map(|one| one.seq().0));
            let last = *store.listed.last().unwrap();
            let mut expected = store.listed.clone();
            expected.push(last + 1);
            assert_eq!(seqs, expected, "record {unread}, {times} times");
        }
    }
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
            let mut expected: Vec<_> =
                store.listed.iter().copied().filter(|one| *one != harmed).collect();
            expected.push(store.listed.last().unwrap() + 1);
            assert_eq!(read, expected, "{times} times, from the back: {is_back}");
            let told = items.iter().filter(|item| item.is_err()).count();
            assert!((1..=2).contains(&told), "{told} errors");
            log.close().unwrap();
        }
    }
}
