//! What a process that only reads says of a store that lost a whole segment.

use std::collections::BTreeSet;
use std::sync::Arc;

use runlog::format::FrameKind;
use runlog::storage::MemoryStorage;
use runlog::{Corruption, Error, Place, ReadLog, ReaderOptions, RunLog, RunQuery, Seq};

use crate::backup::backups::seals;
use crate::readers::following::small;
use crate::support::frames::{EXTENT, Frame, frames_in};

fn listed(log: &impl ReadLog) -> BTreeSet<String> {
    log.runs(&RunQuery::new()).map(|run| run.unwrap().run.to_string()).collect()
}

fn directories(damaged: &[Corruption]) -> usize {
    damaged.iter().filter(|found| matches!(found.place, Place::Directory { .. })).count()
}

/// The index of the writer knows the runs of the segment. A reader has none, and says so.
#[test]
fn a_reader_that_lists_no_runs_of_a_lost_segment_names_the_segment() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    for run in 0..20 {
        let writer = log.start_run("agent", &format!("run-{run}"), ()).unwrap();
        for len in [20_000, 5_000] {
            writer.append(&vec![run; len]).unwrap();
        }
    }
    log.checkpoint().unwrap();
    log.close().unwrap();
    let image = storage.to_bytes();
    let mut missed = 0;
    for (start, _) in seals(&image) {
        for from in [start, start + 64] {
            let mut bytes = image.clone();
            let end = (start + (64 << 10)).min(bytes.len());
            bytes[from..end].fill(0x55);
            let open = || Arc::new(MemoryStorage::from_bytes(bytes.clone()));
            let reader = ReaderOptions::new().open_storage(open()).unwrap();
            let report = reader.recovery_report();
            assert_eq!(directories(&report.damaged), 1, "{report}");
            assert!(directories(&reader.verify().unwrap().problems) > 0);
            let mine = listed(&reader);
            missed += usize::from(mine.len() < 20);
            let log = small().open_storage(open()).unwrap();
            let theirs = listed(&log);
            assert!(theirs.is_superset(&mine), "{mine:?} {theirs:?}");
            assert!(!log.verify().unwrap().is_clean());
        }
    }
    assert!(missed > 4, "only {missed} times");
}

/// A closed store with an index. The first segment has three records of each of two runs, the last
/// frames those of the second one; the first run goes on in the next segment.
fn of_two_runs() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let other = log.start_run("agent", "other", ()).unwrap();
    let at = |log: &RunLog| log.stats().unwrap().end;
    let first = at(&log).segment;
    let goes_on = log.start_run("agent", "goes on", ()).unwrap();
    (0..3).for_each(|number| drop(goes_on.append(&[number; 100]).unwrap()));
    while (at(&log).offset as usize) < EXTENT - 8000 {
        other.append(&[9; 1000]).unwrap();
    }
    let ends = log.start_run("agent", "ends", ()).unwrap();
    (0..3).for_each(|number| drop(ends.append(&[number; 100]).unwrap()));
    other.append(&[9; 7900]).unwrap();
    assert!(at(&log).segment > first);
    (3..6).for_each(|number| drop(goes_on.append(&[number; 100]).unwrap()));
    while at(&log).segment.0 < first.0 + 2 {
        other.append(&[9; 7000]).unwrap();
    }
    log.checkpoint().unwrap();
    drop((other, goes_on, ends));
    log.close().unwrap();
    storage.to_bytes()
}

fn opened(image: &[u8]) -> RunLog {
    small().open_storage(Arc::new(MemoryStorage::from_bytes(image.to_vec()))).unwrap()
}

/// The numbers of the records of a run, and those of errors.
fn numbers(log: &RunLog, run: &str) -> (Vec<u64>, Vec<u64>) {
    let (mut found, mut lost) = (Vec::new(), Vec::new());
    for record in log.trace(run).unwrap() {
        match record {
            Ok(record) => found.push(record.seq().0),
            Err(Error::Corrupt(damage)) => lost.push(damage.seq.unwrap().0),
            Err(error) => panic!("{error}"),
        }
    }
    (found, lost)
}

#[test]
fn a_run_that_has_lost_its_name_in_a_segment_is_read_behind_it() {
    let mut image = of_two_runs();
    let frames = frames_in(&image, 0);
    let named = |frame: &Frame| {
        matches!(frame.1.kind, FrameKind::Bind | FrameKind::Start)
            && image[frame.0.clone()].windows(7).any(|part| part == b"goes on")
    };
    let of_names = frames.iter().filter(|frame| named(frame));
    let seal = frames.iter().filter(|frame| frame.1.kind == FrameKind::Seal);
    let places: Vec<_> = of_names.chain(seal).map(|frame| frame.0.start + 72).collect();
    assert!(places.len() > 1);
    places.into_iter().for_each(|at| image[at + 2] ^= 1);
    let log = opened(&image);
    assert_eq!(numbers(&log, "goes on"), (vec![3, 4, 5], vec![0, 1, 2]));
    assert_eq!(log.trace("goes on").unwrap().rev().filter(Result::is_ok).count(), 3);
    assert_eq!(numbers(&log, "ends"), (vec![0, 1, 2], vec![]));
}

/// The directory is made anew of the frames, and does not have it.
#[test]
fn a_last_record_that_is_lost_with_the_directory_is_an_error_of_the_trace() {
    let mut image = of_two_runs();
    let frames = frames_in(&image, 0);
    let [.., (last, record), (seal, of_seal)] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!((record.kind, of_seal.kind), (FrameKind::Record, FrameKind::Seal));
    image[last.start..seal.start + 100].fill(0x55);
    let log = opened(&image);
    assert_eq!(log.run("ends").unwrap().records, 3);
    assert_eq!(numbers(&log, "ends"), (vec![0, 1], vec![2]));
    assert!(log.trace("ends").unwrap().range(Seq(2)..).unwrap().next().unwrap().is_err());
    // A hole in front of it, which is told too.
    let first =
        frames.iter().rfind(|frame| frame.1.run_no == record.run_no && frame.1.seq == Seq(1));
    let hole = first.unwrap().0.clone();
    image[hole.start + 8] ^= 1;
    let log = opened(&image);
    assert_eq!(numbers(&log, "ends"), (vec![0], vec![1, 2]));
    for from in 1..3 {
        assert!(
            log.trace("ends").unwrap().range(Seq(from)..).unwrap().next().unwrap().is_err(),
            "{from}"
        );
    }
    let log = opened(&image);
    assert_eq!(numbers(&log, "goes on"), ((0..6).collect(), vec![]));
}
