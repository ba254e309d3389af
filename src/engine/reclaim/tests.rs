//! What reclaiming remembers between its calls.

use std::sync::Arc;

use crate::env::{Scheduler, Steps};
use crate::storage::MemoryStorage;
use crate::{NewRecord, Options};

/// Runs no step.
#[derive(Debug)]
struct Idle;

impl Scheduler for Idle {
    fn begin(&self, _: Steps) {}
}

#[test]
fn reclaiming_ends_when_the_store_is_being_closed_and_forgets_nothing() {
    let options = Options::new().extent_size(64 << 10).background(false).scheduler(Arc::new(Idle));
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    // Each segment evicts the contents of the one before it.
    for _ in 0..160 {
        let _ = log.docs().put("space", "key", &NewRecord::new(&[b'.'; 7000])).unwrap();
    }
    log.checkpoint().unwrap();
    let engine = log.engine();
    let sealed = || engine.log.state.lock().catalog.segments().len();
    let (segments, io) = (sealed(), engine.log.disk.counters());
    assert!(segments > 10);
    engine.log.due.stop();
    engine.reclaimer.reclaim().unwrap();
    assert_eq!((sealed(), engine.log.disk.counters().writes), (segments, io.writes));
    assert!(engine.log.state.lock().suspects.len() >= segments - 1);
}
