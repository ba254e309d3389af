//! Of which segments the index of a store has a stamp.

use std::sync::Arc;

use crate::storage::MemoryStorage;
use crate::{Compaction, Compression, NewRecord, Options, Outcome, RunLog};

/// A store in which nothing happens by itself.
fn store() -> RunLog {
    let options = Options::new().extent_size(64 << 10).compression(Compression::None);
    let options = options.background(false).compaction(Compaction::new().automatic(false));
    options.create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

/// A run of which five fill a segment.
fn fill(log: &RunLog, run: &str) {
    let writer = log.start_run("agent", run, ()).unwrap();
    for record in 0..2 {
        let _ = writer.append(&[record; 6_000]).unwrap();
    }
    let _ = writer.end(&Outcome::completed()).unwrap();
}

/// The number of stamps in the index, and that of the segments that it covers.
fn stamps(log: &RunLog) -> (u64, u64) {
    let catalog = Arc::clone(&log.log().state.lock().catalog);
    let known = catalog.index().map_or(0, |index| index.stamps().unwrap());
    (known, catalog.segments().len() as u64)
}

#[test]
fn the_index_has_no_stamp_of_a_segment_that_a_compaction_replaced() {
    let log = store();
    (0..48).for_each(|run| fill(&log, &format!("run-{run}")));
    log.checkpoint().unwrap();
    let (before, covered) = stamps(&log);
    assert!(before == covered && covered > 8, "{before} of {covered}");
    for run in (0..48).step_by(2) {
        let _ = log.delete_run(format!("run-{run}").as_str()).unwrap();
    }
    log.checkpoint().unwrap();
    assert!(log.compact().unwrap().segments > 4);
    let (after, covered) = stamps(&log);
    // A segment that was freed without a compaction may have one.
    assert!((covered..covered + 3).contains(&after), "{after} of {covered}, {before} before");
    assert!(covered + 3 < before, "{covered} of {before}");
}

#[test]
fn the_index_has_few_stamps_however_many_segments_were_freed() {
    let log = store();
    let mut most = 0;
    for version in 0..160 {
        let _ = log.docs().put("space", "key", &NewRecord::new(&vec![version; 40_000])).unwrap();
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
        let (known, covered) = stamps(&log);
        assert!(covered < 8, "{covered} segments are left");
        most = most.max(known);
    }
    assert!((60..100).contains(&most), "{most}");
}
