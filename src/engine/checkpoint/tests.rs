//! Segments that the index cannot apply.

use std::sync::Arc;

use crate::engine::state::segment::Segment;
use crate::storage::{MemoryStorage, Storage};
use crate::{Error, Options, Outcome, RunLog};

/// A run of which five fill a segment.
fn fill(log: &RunLog, run: &str) {
    let writer = log.start_run("agent", run, ()).unwrap();
    for record in 0..2 {
        let _ = writer.append(&[record; 6_000]).unwrap();
    }
    let _ = writer.end(&Outcome::completed()).unwrap();
}

/// Overwrites the first frames of a sealed segment, and its directory.
fn lose(storage: &MemoryStorage, segment: &Segment) {
    let at = segment.sealed().unwrap();
    for offset in [64, at.directory() + at.len - 500] {
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
