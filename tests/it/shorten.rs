//! `compact` shortens the file as far as that is possible, whatever the background would leave.

use std::sync::Arc;

use runlog::{Compaction, Options, Outcome, RunLog};
use runlog_sim::{SimClock, SimDisk, SimEntropy};

/// The index takes two of these.
const EXTENT: u64 = 1 << 20;

fn options() -> Options {
    let environment = runlog::env::Environment::system()
        .clock(Arc::new(SimClock::new(runlog::Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(11)))
        .boot_id(None);
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
