//! `compact` shortens the file as far as that is possible, whatever the background would leave.

use std::sync::Arc;

use runlog::{Compaction, Options, Outcome, RunLog};
use runlog_sim::{Fault, OpKind, SimClock, SimDisk, SimEntropy, SplitMix64};

/// The index takes two of these.
const EXTENT: u64 = 1 << 20;

fn options() -> Options {
    let environment = runlog::env::Environment::system()
        .clock(Arc::new(SimClock::new(runlog::Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(11)));
    Options::new()
        .extent_size(EXTENT)
        .background(false)
        .compaction(Compaction::new().automatic(false))
        .environment(environment)
}

fn write_runs(log: &RunLog, count: usize) {
    for number in 0..count {
        let writer = log.start_run("agent", &format!("run-{number:03}"), ()).unwrap();
        for record in 0..40 {
            let line = format!("{number}/{record}/").into_bytes();
            let payload: Vec<u8> = line.iter().copied().cycle().take(10_000).collect();
            let _ = writer.append(&payload).unwrap();
        }
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
}

#[test]
fn compact_shortens_the_file_where_the_background_would_not() {
    for kept in 1..12 {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().create_storage(Arc::new(disk)).unwrap();
        write_runs(&log, 24);
        log.checkpoint().unwrap();
        let before = log.stats().unwrap();
        for number in kept..24 {
            let _ = log.delete_run(format!("run-{number:03}").as_str()).unwrap();
        }
        log.checkpoint().unwrap();
        let _ = log.compact().unwrap();
        let after = log.stats().unwrap();
        // The index is built anew in as many extents as may be left in front of the last segment.
        assert!(after.free_extents <= 2, "{kept} kept: {after:?}");
        assert!(after.file_len < before.file_len, "{kept} kept: {before:?} {after:?}");
        // A second call ends too, and leaves the file no longer.
        let _ = log.compact().unwrap();
        let again = log.stats().unwrap();
        assert!(again.file_len <= after.file_len, "{kept} kept: {after:?} {again:?}");
        for number in 0..kept {
            let records = log.trace(format!("run-{number:03}").as_str()).unwrap();
            assert_eq!(records.filter(|record| record.is_ok()).count(), 40);
        }
        assert!(log.verify().unwrap().is_clean());
    }
}

/// The compaction reserve is free but takes no segment: moving one because of it gained nothing, at
/// each call.
#[test]
fn compact_of_a_compact_store_writes_nothing() {
    for count in 12..40 {
        let disk = SimDisk::untracked(Vec::new());
        let log = options().create_storage(Arc::new(disk)).unwrap();
        write_runs(&log, count);
        for number in 0..count / 3 {
            let _ = log.delete_run(format!("run-{number:03}").as_str()).unwrap();
        }
        log.checkpoint().unwrap();
        for _ in 0..3 {
            let _ = log.compact().unwrap();
        }
        let before = log.stats().unwrap();
        assert!(before.free_extents <= 2, "{count} runs: {before:?}");
        let made = log.compact().unwrap();
        let after = log.stats().unwrap();
        assert_eq!(made, runlog::Compacted::default(), "{count} runs");
        assert_eq!(after.io.bytes_written, before.io.bytes_written, "{count} runs: {after:?}");
        assert_eq!(after.file_len, before.file_len, "{count} runs");
    }
}

/// A long run is in most segments.
#[test]
fn compact_shortens_the_file_where_the_last_segments_share_a_run() {
    for case in (0..12).chain([34, 75, 160, 236, 293]) {
        let mut random = SplitMix64::for_case(77, case);
        let mut below = move |bound: u64| random.below(bound);
        let disk = SimDisk::untracked(Vec::new());
        let log = options().extent_size(64 << 10).create_storage(Arc::new(disk)).unwrap();
        write_beside_a_long_run(&log, &mut below);
        let _ = log.compact().unwrap();
        let first = log.stats().unwrap();
        assert!(first.free_extents <= 2, "case {case}: {first:?}");
        // What moved may fit fewer segments now. A third call has nothing to do.
        let _ = log.compact().unwrap();
        let second = log.stats().unwrap();
        assert!(second.free_extents <= 2, "case {case}: {second:?}");
        assert!(second.file_len <= first.file_len, "case {case}: {first:?} {second:?}");
        let left = first.log_extents.saturating_sub(second.log_extents);
        assert!(left <= 4, "case {case}: {first:?} {second:?}");
        assert_eq!(log.compact().unwrap(), runlog::Compacted::default(), "case {case}");
        assert!(log.stats().unwrap().file_len <= second.file_len, "case {case}");
        assert!(log.verify().unwrap().is_clean(), "case {case}");
    }
}

/// Sixty runs beside one in progress, of which at most eight remain.
fn write_beside_a_long_run(log: &RunLog, below: &mut impl FnMut(u64) -> u64) {
    let long = log.start_run("agent", "long", ()).unwrap();
    let mut kept = Vec::new();
    let reclaim = || {
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
    };
    let delete_one = |kept: &mut Vec<String>, number: u64| {
        let name = kept.swap_remove(usize::try_from(number).unwrap());
        let _ = log.delete_run(name.as_str()).unwrap();
    };
    for number in 0..60_u8 {
        let name = format!("run-{number:03}");
        let run = log.start_run("agent", &name, ()).unwrap();
        for _ in 0..below(60) + 5 {
            let _ = run.append(&[number; 1000]).unwrap();
            if below(4) == 0 {
                let _ = long.append(&[9; 1500]).unwrap();
            }
        }
        let _ = run.end(&Outcome::completed()).unwrap();
        kept.push(name);
        if below(3) == 0 {
            let number = below(kept.len() as u64);
            delete_one(&mut kept, number);
            reclaim();
        }
    }
    log.checkpoint().unwrap();
    while kept.len() > 8 {
        let number = below(kept.len() as u64);
        delete_one(&mut kept, number);
        if below(4) == 0 {
            reclaim();
        }
    }
    reclaim();
}

/// What else was in the segments of the run moves into the space in front that is free then.
#[test]
fn erasing_a_run_and_compacting_makes_no_file_longer() {
    for count in 4..40 {
        // Runs that lie one behind the other may need an extent more than the log did.
        let compact = if count < 11 { [false, true].as_slice() } else { &[true] };
        for &is_compact in compact {
            let disk = SimDisk::untracked(Vec::new());
            let log = options().create_storage(Arc::new(disk)).unwrap();
            write_runs(&log, count);
            log.checkpoint().unwrap();
            if is_compact {
                let _ = log.compact().unwrap();
            }
            let before = log.stats().unwrap();
            let _ = log.erase_run("run-001").unwrap();
            let _ = log.compact().unwrap();
            let after = log.stats().unwrap();
            let what = format!("{count} runs, compact: {is_compact}: {before:?} {after:?}");
            assert!(after.file_len <= before.file_len, "{what}");
            assert!(log.verify().unwrap().is_clean());
        }
    }
}

/// Whichever call fails: what is dead then goes with the next deletion or reclaim.
#[test]
fn a_compaction_that_fails_leaves_no_dead_segment_for_the_next_opening() {
    let small = || options().extent_size(64 << 10);
    let begin = || {
        let disk = SimDisk::untracked(Vec::new());
        let log = small().create_storage(Arc::new(disk.clone())).unwrap();
        write_runs(&log, 3);
        for run in ["run-000", "run-002"] {
            let _ = log.delete_run(run).unwrap();
        }
        log.checkpoint().unwrap();
        (disk, log)
    };
    let mut failed = 0;
    for kind in [OpKind::Write, OpKind::Allocate, OpKind::Punch, OpKind::SetLen, OpKind::Sync] {
        let (disk, log) = begin();
        let _ = disk.take_counts();
        let _ = log.compact().unwrap();
        let count = disk.counts().of(kind);
        drop(log);
        for number in 0..count {
            let (disk, log) = begin();
            disk.fail_nth(kind, number, Fault::error(std::io::ErrorKind::Other));
            let compacted = log.compact();
            disk.clear_faults();
            // Poison ends the store.
            if log.checkpoint().and_then(|()| log.reclaim()).is_err() {
                continue;
            }
            failed += u64::from(compacted.is_err());
            let before = log.stats().unwrap().sealed_segments;
            drop(log);
            let log = small().open_storage(Arc::new(disk)).unwrap();
            log.reclaim().unwrap();
            let now = log.stats().unwrap().sealed_segments;
            assert!(now >= before, "{kind:?} {number}, {compacted:?}: {now} of {before} segments");
        }
    }
    assert!(failed > 20, "only {failed} calls failed");
}
