//! Copies of all bytes of a store that a process writes, such as those of `cp`: the beginning of
//! the file is of an earlier moment than what is behind it.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{NewRecord, Options, ReaderOptions, RunLog};

/// Where the extents begin: what is in front of them was copied first.
const FRONT: usize = 64 << 10;

fn small() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

fn fill(log: &RunLog, runs: std::ops::Range<usize>) {
    for run in runs {
        let writer = log.start_run("agent", &format!("run-{run}"), ()).unwrap();
        for _ in 0..4 {
            writer.append_record(&NewRecord::new(&vec![run as u8; 9_000])).unwrap();
        }
    }
}

#[test]
fn a_copy_with_an_old_front_is_refused_and_backup_is_named() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    fill(&log, 0..10);
    let front = storage.to_bytes()[..FRONT].to_vec();
    fill(&log, 10..40);
    let mut copy = storage.to_bytes();
    copy[..FRONT].copy_from_slice(&front);
    let copy = Arc::new(MemoryStorage::from_bytes(copy));
    let reader = ReaderOptions::new().open_storage(copy.clone()).map(drop);
    for refused in [reader, small().open_storage(copy).map(drop)] {
        let told = refused.unwrap_err().to_string();
        assert!(told.contains("manifest") && told.contains("`backup`"), "{told}");
    }
    log.close().unwrap();
}
