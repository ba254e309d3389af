//! What a process that only reads says of a store that lost a whole segment.

use std::collections::BTreeSet;
use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Corruption, Place, ReadLog, ReaderOptions, RunQuery};

use crate::backups::seals;
use crate::following::small;

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
