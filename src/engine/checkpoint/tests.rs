//! Of which segments the index of a store has a stamp, and which it cannot apply.

use std::sync::Arc;

use crate::engine::state::segment::Segment;
use crate::storage::{MemoryStorage, Storage};
use crate::{Compaction, Compression, Error, NewRecord, Options, Outcome, RunLog};

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

/// Overwrites the first frames of a sealed segment, and its directory.
fn lose(storage: &MemoryStorage, segment: &Segment) {
    let seal = segment.sealed().unwrap().seal;
    for offset in [64, seal + 72] {
        storage.write_at(segment.file_offset() + u64::from(offset), &[0x55; 500]).unwrap();
    }
}

#[test]
fn segments_that_wait_for_a_quarantined_one_end_in_an_error_and_not_in_unbounded_memory() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = options.create_storage(storage.clone()).unwrap();
    (0..10).for_each(|run| fill(&log, &format!("run-{run}")));
    log.checkpoint().unwrap();
    for run in 0.. {
        if !log.log().state.lock().unapplied.is_empty() {
            break;
        }
        fill(&log, &format!("next-{run}"));
    }
    let lost = log.log().state.lock().unapplied.front().cloned().unwrap();
    lose(&storage, &lost);
    let writer = log.start_run("agent", "many", ()).unwrap();
    let error = (0..2_000).find_map(|_| writer.append(&[7; 6_000]).err());
    assert!(error.as_ref().is_some_and(Error::is_quarantine), "{error:?}");
    assert_eq!(log.health().quarantined, [lost.id()]);
    assert!(log.log().state.lock().catalog.index().is_some());
    assert_eq!(log.trace("run-0").unwrap().flatten().count(), 2);
}

#[test]
fn on_a_full_disk_an_index_that_covers_a_quarantined_segment_does_not_give_way() {
    let storage = Arc::new(MemoryStorage::new());
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = options.clone().create_storage(storage.clone()).unwrap();
    (0..20).for_each(|run| fill(&log, &format!("run-{run}")));
    log.checkpoint().unwrap();
    let first = log.log().state.lock().catalog.segments()[0].clone();
    log.close().unwrap();
    lose(&storage, &first);
    let log = options.open_storage(storage).unwrap();
    log.checkpoint().unwrap();
    assert!(!log.engine().checkpoints.make_way().unwrap());
    assert!(log.log().state.lock().catalog.index().is_some());
    assert!(log.run("run-0").is_ok());
}
