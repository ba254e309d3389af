//! A segment that is full, of which the manifest does not know it yet: its directory says what it
//! has, whatever has become of its frames.

use std::sync::Arc;
use std::time::Duration;

use runlog::env::{BootId, Environment};
use runlog::format::FrameKind;
use runlog::format::frames::frame::FRAME_HEADER_LEN;
use runlog::storage::MemoryStorage;
use runlog::{Allow, Compaction, Error, Options, Outcome, ReadLog, ReaderOptions, RunLog};
use runlog_sim::{CrashImages, SimDisk, Survivors};

use crate::support::frames::{EXTENT, Frame, frames_in, unindexed};

const RUNS: [&str; 3] = ["first", "second", "third"];

fn options() -> Options {
    unindexed(1)
}

fn payload(run: &str, number: usize) -> Vec<u8> {
    format!("record {number} of {run}").into_bytes()
}

/// Appends until the first segment is full; the file of a process that is killed then.
fn fill(log: &RunLog, file: &MemoryStorage) -> Vec<u8> {
    fill_segment(log, file, 0, "filler")
}

/// Appends to a new run until this segment is full; the file of a process that is killed then.
fn fill_segment(log: &RunLog, file: &MemoryStorage, number: usize, run: &str) -> Vec<u8> {
    let filler = log.start_run("agent", run, ()).unwrap();
    loop {
        let _ = filler.append(&[1; 5000]).unwrap();
        let image = file.to_bytes();
        if frames_in(&image, number).last().is_some_and(|last| last.1.kind == FrameKind::Seal) {
            return image;
        }
    }
}

/// A store that was killed when its first segment had just become full.
fn filled() -> Vec<u8> {
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    for run in RUNS {
        let writer = log.start_run("agent", run, ()).unwrap();
        for number in 0..3 {
            let _ = writer.append(&payload(run, number)).unwrap();
        }
    }
    fill(&log, &file)
}

/// The frames of the first segment.
fn frames(image: &[u8]) -> Vec<Frame> {
    frames_in(image, 0)
}

fn records(log: &impl ReadLog, run: &str) -> Result<Vec<Vec<u8>>, Error> {
    log.trace(("agent", run))?.map(|record| Ok(record?.payload().to_vec())).collect()
}

#[test]
fn frames_that_are_lost_in_a_full_segment_are_missing_and_change_no_other_run() {
    let good = filled();
    let lost = frames(&good)[0].1.run_no;
    let of_first: Vec<_> =
        frames(&good).into_iter().filter(|(_, frame)| frame.run_no == lost).collect();
    let mut image = good;
    let (from, to) = (of_first.first().unwrap().0.start, of_first.last().unwrap().0.end);
    image[from..to].fill(0xff);

    let file = Arc::new(MemoryStorage::from_bytes(image));
    for opening in ["the first", "the next"] {
        let log = options().open_storage(file.clone()).unwrap();
        let lost = records(&log, RUNS[0]).unwrap_err();
        assert!(matches!(lost, Error::Corrupt(_)), "{opening} opening: {lost}");
        for run in &RUNS[1..] {
            let expected: Vec<_> = (0..3).map(|number| payload(run, number)).collect();
            assert_eq!(records(&log, run).unwrap(), expected, "{opening} opening: {run}");
        }
        log.close().unwrap();
    }
}

#[test]
fn a_deletion_whose_frame_is_lost_in_a_full_segment_stays_one() {
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    for run in RUNS {
        let _ = log.start_run("agent", run, ()).unwrap().append(b"one").unwrap();
    }
    let _ = log.end_run("agent", "first", &Outcome::completed(), Allow::nothing()).unwrap();
    log.delete_run(("agent", "first")).unwrap();
    let mut image = fill(&log, &file);
    let evict =
        frames(&image).into_iter().find(|(_, frame)| frame.kind == FrameKind::Evict).unwrap().0;
    image[evict].fill(0xff);

    let file = Arc::new(MemoryStorage::from_bytes(image));
    for opening in ["the first", "the next"] {
        let log = options().open_storage(file.clone()).unwrap();
        let first = log.run(("agent", "first"));
        assert!(matches!(first, Err(Error::RunNotFound { .. })), "{opening} opening: {first:?}");
        assert_eq!(records(&log, "second").unwrap(), [b"one"]);
        log.close().unwrap();
    }
}

/// The segment is kept for its eviction, although all of its own runs are deleted.
#[test]
fn a_full_segment_whose_eviction_is_lost_stays_as_long_as_the_run_has_frames_elsewhere() {
    let options = || {
        let manual = Compaction::new().automatic(false);
        options().compaction(manual).receipts(0, Duration::ZERO)
    };
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    for run in ["deleted", "kept"] {
        let _ = log.start_run("agent", run, ()).unwrap().append(b"one").unwrap();
    }
    let end = |log: &RunLog, run: &str| {
        let _ = log.end_run("agent", run, &Outcome::completed(), Allow::nothing()).unwrap();
    };
    end(&log, "deleted");
    let _ = fill_segment(&log, &file, 0, "in front");
    log.delete_run(("agent", "deleted")).unwrap();
    let mut image = fill_segment(&log, &file, 1, "behind");
    let is_evict = |(_, frame): &Frame| frame.kind == FrameKind::Evict;
    let evict = frames_in(&image, 1).into_iter().find(is_evict).unwrap().0;
    image[evict].fill(0xff);

    let file = Arc::new(MemoryStorage::from_bytes(image));
    options().open_storage(file.clone()).unwrap().close().unwrap();
    let log = options().open_storage(file.clone()).unwrap();
    for run in ["in front", "behind"] {
        end(&log, run);
        log.delete_run(("agent", run)).unwrap();
    }
    log.reclaim().unwrap();
    log.close().unwrap();
    let log = options().open_storage(file).unwrap();
    let deleted = log.run(("agent", "deleted"));
    assert!(matches!(deleted, Err(Error::RunNotFound { .. })), "{deleted:?}");
    assert_eq!(records(&log, "kept").unwrap(), [b"one"]);
}

/// Two damages: the ids of a run that goes on in the segment, and the payload of its SEAL frame.
/// What other segments call the run is in no directory that is rebuilt from these frames alone.
fn without_names_and_directory(behind: usize) -> Vec<u8> {
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"zero").unwrap();
    let _ = fill_segment(&log, &file, 0, "in front");
    let _ = run.append(b"one").unwrap();
    let full = fill_segment(&log, &file, 1, "filler");
    // Each is durable when it has begun, and the frames behind it say so.
    for number in 0..behind {
        let _ = log.start_run("agent", &format!("behind {number}"), ()).unwrap();
    }
    let mut image = file.to_bytes();
    // That the segment is full was written to the manifest, and no sync covers that.
    image[..EXTENT].copy_from_slice(&full[..EXTENT]);
    let run = frames(&image)[0].1.run_no;
    let of_segment = frames_in(&image, 1);
    let is_bind = |(_, frame): &&Frame| (frame.run_no, frame.kind) == (run, FrameKind::Bind);
    image[of_segment.iter().find(is_bind).unwrap().0.clone()].fill(0);
    let seal = of_segment.last().unwrap();
    assert_eq!(seal.1.kind, FrameKind::Seal);
    image[seal.0.start + FRAME_HEADER_LEN + 3] ^= 1;
    image
}

#[test]
fn a_run_whose_ids_are_lost_in_a_full_segment_with_a_damaged_directory_stays_readable() {
    for behind in [0, 2] {
        let file = Arc::new(MemoryStorage::from_bytes(without_names_and_directory(behind)));
        let boot = Environment::system().boot_id(Some(BootId([1; 16])));
        let reader = ReaderOptions::new().environment(boot).open_storage(file.clone()).unwrap();
        let mut expected = vec![b"zero".to_vec(), b"one".to_vec()];
        assert_eq!(records(&reader, "run").unwrap(), expected, "{behind}: a reader");
        drop(reader);
        for opened in 0..3 {
            let log = options().open_storage(file.clone()).unwrap();
            let found = records(&log, "run");
            assert_eq!(found.unwrap(), expected, "{behind}: after {opened} openings");
            let _ = log.writer(("agent", "run")).unwrap().append(&[opened]).unwrap();
            expected.push(vec![opened]);
            log.close().unwrap();
        }
    }
}

/// The SEAL frame is replaced in its place, while frames behind it were acknowledged.
#[test]
fn a_crash_while_a_damaged_directory_is_replaced_takes_no_record() {
    let image = without_names_and_directory(2);
    let disk = SimDisk::recording_from(image);
    options().open_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    let check = |image: Vec<u8>, boot: u8, what: String| {
        let log = unindexed(boot).open_storage(Arc::new(SimDisk::untracked(image))).unwrap();
        assert_eq!(records(&log, "run").unwrap(), [b"zero".to_vec(), b"one".to_vec()], "{what}");
        assert!(log.run(("agent", "behind 1")).is_ok(), "{what}");
    };
    loop {
        let at = crashes.boundary();
        for survivors in Survivors::ALL {
            check(crashes.image(survivors, 1), 2, format!("power lost at {at}: {survivors:?}"));
        }
        for stored in [0, 1, 40, 73, 200] {
            check(crashes.killed(stored), 1, format!("killed at {at}, {stored} bytes stored"));
        }
        if !crashes.advance() {
            return;
        }
    }
}

/// One damage after a kill, and nothing says yet that the SEAL frame was durable.
#[test]
fn a_kill_while_a_damaged_directory_is_replaced_takes_nothing_behind_it() {
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    let mut image = fill(&log, &file);
    let expected = records(&log, "filler").unwrap();
    let seal = frames(&image).pop().unwrap().0;
    image[seal.start + FRAME_HEADER_LEN + 3] ^= 1;
    let disk = SimDisk::recording_from(image);
    options().open_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
    let recording = disk.take_recording();
    let mut crashes = CrashImages::new(&recording);
    loop {
        for stored in [0, 40, 73, 200] {
            let killed = SimDisk::untracked(crashes.killed(stored));
            let log = options().open_storage(Arc::new(killed)).unwrap();
            let at = (crashes.boundary(), stored);
            assert!(records(&log, "filler").unwrap() == expected, "killed at {at:?}");
        }
        if !crashes.advance() {
            return;
        }
    }
}

/// One damage after a kill: the log goes on behind the segment, so all of it was written.
#[test]
fn the_log_goes_on_behind_a_full_segment_whose_directory_is_lost_with_its_frame() {
    let file = Arc::new(MemoryStorage::new());
    let log = options().create_storage(file.clone()).unwrap();
    let image = fill(&log, &file);
    let behind = log.start_run("agent", "behind", ()).unwrap();
    for number in 0..3 {
        let _ = behind.append(&payload("behind", number)).unwrap();
    }
    let good = file.to_bytes();
    let expected = ["filler", "behind"].map(|run| records(&log, run).unwrap());
    assert_eq!(expected[1].len(), 3);
    let seal = frames(&image).pop().unwrap().0;
    let check = |file: Vec<u8>, at: &dyn core::fmt::Debug| {
        let log = options().open_storage(Arc::new(MemoryStorage::from_bytes(file))).unwrap();
        for (run, expected) in ["filler", "behind"].iter().zip(&expected) {
            let found = records(&log, run);
            assert!(found.as_ref().is_ok_and(|found| found == expected), "{at:?}, {run}");
        }
        log
    };
    for byte in (0..FRAME_HEADER_LEN).step_by(5) {
        let mut image = good.clone();
        image[seal.start + byte] ^= 1;
        drop(check(image.clone(), &byte));
        let disk = SimDisk::recording_from(image);
        options().open_storage(Arc::new(disk.clone())).unwrap().close().unwrap();
        let recording = disk.take_recording();
        let mut crashes = CrashImages::new(&recording);
        loop {
            for stored in [0, 40, 73] {
                let killed = crashes.killed(stored);
                drop(check(killed, &(byte, crashes.boundary(), stored)));
            }
            if !crashes.advance() {
                break;
            }
        }
    }
}
