//! Refused large records and documents take no space, whatever refuses them.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex};

use runlog::env::Environment;
use runlog::{
    Allow, Batch, Compaction, Error, Expected, NewRecord, Options, Outcome, RunLog, SpaceReturn,
    Timestamp, Version,
};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy, SplitMix64};

use crate::support::background::Background;
use crate::support::callout::{Points, beside};

const EXTENT: u64 = 64 << 10;
const LARGE: usize = 200_000;

fn options() -> Options {
    let environment = Environment::system()
        .clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(1)));
    Options::new().extent_size(EXTENT).background(false).environment(environment)
}

/// A store with a short document, on a disk that has room for this many extents.
fn store(extents: u64) -> (RunLog, SimDisk) {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    disk.set_capacity(extents * EXTENT);
    let _ = log.docs().put("space", "key", &NewRecord::new(b"short")).unwrap();
    (log, disk)
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SplitMix64::new(1).fill(&mut bytes);
    bytes
}

fn extents(log: &RunLog) -> u64 {
    let stats = log.stats().unwrap();
    stats.log_extents + stats.retired_extents
}

/// A condition that fails although it held at the first check cannot be produced here; each other
/// way to refuse a batch is one of these.
fn refusals<'a>(large: &'a [u8]) -> Vec<Batch<'a>> {
    let unmet = Expected::Version(Version(9));
    let mut conflict = Batch::new();
    conflict.put_if("space", "key", NewRecord::new(large), unmet);
    let mut other = Batch::new();
    other.append("agent", "run", NewRecord::new(large));
    other.put_if("space", "key", NewRecord::new(b"new"), unmet);
    let mut missing = Batch::new();
    missing.append("agent", "run", NewRecord::new(large));
    missing.append("agent", "no run", NewRecord::new(b"a step"));
    let mut ended = Batch::new();
    ended.put("space", "other", NewRecord::new(large));
    ended.append("agent", "ended", NewRecord::new(b"a step"));
    vec![conflict, other, missing, ended]
}

#[test]
fn a_batch_that_is_refused_leaves_nothing_of_its_large_records() {
    let (log, _disk) = store(10_000);
    let writer = log.start_run("agent", "run", ()).unwrap();
    log.start_run("agent", "ended", ()).unwrap().end(&Outcome::completed()).unwrap();
    let large = noise(LARGE);
    for batch in refusals(&large) {
        let before = log.stats().unwrap().end;
        for _ in 0..5 {
            let refused = log.commit(&batch).unwrap_err();
            let is_expected = matches!(
                refused,
                Error::Conflict { .. } | Error::RunNotFound { .. } | Error::RunEnded { .. }
            );
            assert!(is_expected, "{refused:?}");
        }
        assert_eq!(log.stats().unwrap().end, before, "{batch:?}");
    }
    let _ = writer.append(b"goes on").unwrap();
    assert_eq!(log.trace("run").unwrap().count(), 1);
}

#[test]
fn a_large_record_that_does_not_fit_the_disk_takes_none_of_it() {
    let (log, disk) = store(200);
    let writer = log.start_run("agent", "run", ()).unwrap();
    let _ = writer.append(b"short").unwrap();
    let (allocated, reserved) = (disk.allocated(), log.stats().unwrap().reserved_extents);
    for _ in 0..3 {
        let refused = writer.append(&noise(300 * 65_536)).unwrap_err();
        assert!(matches!(refused, Error::DiskFull { .. }), "{refused:?}");
        // The tail's segment, and the one set aside, may have got their space.
        assert!(disk.allocated() <= allocated + 2 * EXTENT, "{allocated} {}", disk.allocated());
        assert_eq!(log.stats().unwrap().reserved_extents, reserved);
    }
    let _ = writer.append(&noise(LARGE)).unwrap();
    assert_eq!(log.trace("run").unwrap().count(), 2);
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_large_record_of_a_run_that_has_ended_takes_no_space() {
    let disk = SimDisk::untracked(Vec::new());
    let punch = options().compaction(Compaction::new().space_return(SpaceReturn::Punch));
    let log = punch.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let (before, large) = (disk.allocated(), noise(LARGE));
    let refused = run.append(&large).unwrap_err();
    assert!(matches!(refused, Error::RunEnded { .. }), "{refused:?}");
    let refused = run.append_batch(&[NewRecord::new(b"a step"), NewRecord::new(&large)]);
    assert!(matches!(refused, Err(Error::RunEnded { .. })), "{refused:?}");
    assert_eq!(disk.allocated(), before);
}

#[test]
fn large_records_that_do_not_fit_the_disk_together_leave_nothing_in_their_run() {
    let (log, disk) = store(60);
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"a step").unwrap();
    let (before, end) = (disk.allocated(), log.stats().unwrap().end);
    let (one, two) = (noise(30 << 16), noise(40 << 16));
    let records = [NewRecord::new(&one), NewRecord::new(&two)];
    let mut batch = Batch::new();
    batch.append("agent", "run", records[0]).append("agent", "run", records[1]);
    for refused in [run.append_batch(&records).map(drop), log.commit(&batch).map(drop)] {
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
        assert_eq!(log.stats().unwrap().end, end);
        // The tail's segment, and the one set aside, may have got their space.
        assert!(disk.allocated() <= before + 2 * EXTENT, "{before} {}", disk.allocated());
    }
    let _ = run.append_batch(&[records[0], NewRecord::new(b"a step")]).unwrap();
    assert_eq!(log.trace("run").unwrap().count(), 3);
}

#[test]
fn a_refused_append_leaves_no_run_that_it_would_have_begun() {
    let (log, disk) = store(10_000);
    disk.set_capacity(disk.allocated() + 4 * EXTENT);
    let mut allow = Allow::nothing();
    allow.unstarted = true;
    let large = noise(30 * 65_536);
    let (large, short) = (NewRecord::new(&large), NewRecord::new(b"short"));
    for _ in 0..3 {
        let refused = log.append_to("agent", "run", &large, allow).unwrap_err();
        assert!(matches!(refused, Error::DiskFull { .. }), "{refused:?}");
        let refused = log.append_batch_to("agent", "run", &[large, short], allow).unwrap_err();
        assert!(matches!(refused, Error::DiskFull { .. }), "{refused:?}");
        assert!(matches!(log.trace("run").map(drop), Err(Error::RunNotFound { .. })));
    }
    let _ = log.append_to("agent", "run", &short, allow).unwrap();
    assert!(log.append_to("agent", "run", &large, allow).is_err());
    assert_eq!(log.trace("run").unwrap().count(), 1);
}

#[test]
fn a_large_document_that_meets_a_full_disk_in_between_leaves_nothing() {
    let (log, disk) = store(10_000);
    let large = noise(LARGE);
    let before = extents(&log);
    for nth in (0..10).cycle().take(100) {
        disk.fail_nth(OpKind::Allocate, nth, ErrorKind::StorageFull);
        let put = log.docs().put("space", "large", &NewRecord::new(&large));
        disk.clear_faults();
        match put {
            Ok(_) => assert!(log.docs().delete("space", "large").unwrap()),
            Err(error) => assert!(matches!(error, Error::DiskFull { .. }), "{nth}: {error:?}"),
        }
    }
    // Segments are freed in groups, once the index has applied them.
    assert!(extents(&log) <= before + 20, "{before} {}", extents(&log));
    assert!(log.verify().unwrap().is_clean());
}

/// The first frames of a run are refused together with the call's own: if they were written before,
/// a crash could leave a run of a refused call.
#[test]
fn a_write_that_is_refused_does_not_begin_its_run() {
    let (large, allow) = (noise(LARGE), Allow::everything());
    let mut refused = 0;
    for len in (500..7_000).step_by(250) {
        let (log, _disk) = store(4);
        let writer = log.start_run("agent", "run", ()).unwrap();
        // Each length leaves room for less.
        while writer.append(&large[..len]).is_ok() {}
        let (record, whole) = (NewRecord::new(&large[..len]), NewRecord::new(&large));
        let last_words = &large[..len.min(4_000)];
        let outcome = Outcome::completed().bytes(last_words);
        for write in 0..4 {
            let before = log.stats().unwrap().end;
            let written = match write {
                0 => log.append_to("agent", "new", &record, allow),
                1 => log.append_batch_to("agent", "new", &[record, record], allow),
                2 => log.append_to("agent", "new", &whole, allow),
                _ => log.end_run("agent", "new", &outcome, allow),
            };
            let Err(error) = written else { continue };
            assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
            assert_eq!(log.stats().unwrap().end, before, "{len}, {write}");
            assert!(matches!(log.run("new"), Err(Error::RunNotFound { .. })));
            refused += 1;
        }
    }
    assert!(refused > 75, "{refused}");
}

/// The writer is opened at each call out of the engine, while a large record that creates the run
/// is refused.
#[test]
fn a_writer_of_a_run_that_a_refused_call_began_goes_on_with_it() {
    let (large, allow) = (noise(LARGE), Allow::everything());
    let mut went_on = 0;
    for (nth, point) in (2..14).flat_map(|nth| (0..60).map(move |point| (nth, point))) {
        let disk = SimDisk::untracked(Vec::new());
        let points = Points::new(disk.clone());
        let options = options().scheduler(Arc::new(Background::default()));
        let log = options.create_storage(points.storage()).unwrap();
        disk.fail_nth(OpKind::Allocate, nth, ErrorKind::StorageFull);
        let writer = Mutex::new(None);
        let append = || {
            let appended = log.append_to("agent", "new", &NewRecord::new(&large), allow);
            format!("{:?}", appended.map(drop).map_err(|error| error.is_disk_full()))
        };
        let take = || {
            *writer.lock().unwrap() = log.writer("new").ok();
            String::new()
        };
        let done = beside(&points, point, append, take);
        disk.clear_faults();
        if let Some(writer) = writer.into_inner().unwrap() {
            let _ = writer.append(b"goes on").unwrap();
            went_on += u64::from(done.answers[0] == "Err(true)");
        }
    }
    assert!(went_on > 0);
}
