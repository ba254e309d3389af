//! What reclaiming remembers between its calls.

use std::sync::Arc;

use crate::env::{Scheduler, Steps};
use crate::storage::MemoryStorage;
use crate::{Compaction, NewRecord, Options, Outcome};

/// Runs no step.
#[derive(Debug)]
struct Idle;

impl Scheduler for Idle {
    fn begin(&self, _: Steps) {}
}

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

#[test]
fn reclaiming_ends_when_the_store_is_being_closed_and_forgets_nothing() {
    let threads = options().scheduler(Arc::new(Idle));
    let log = threads.create_storage(Arc::new(MemoryStorage::new())).unwrap();
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

#[test]
fn what_is_known_of_segments_goes_with_them() {
    for automatic in [false, true] {
        let options = options().compaction(Compaction::new().automatic(automatic));
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        for number in 0..400 {
            let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
            for _ in 0..12 {
                let _ = run.append(&[7; 6_000]).unwrap();
            }
            let _ = run.end(&Outcome::completed()).unwrap();
            if number >= 20 {
                let _ = log.delete_run(format!("run-{}", number - 20).as_str()).unwrap();
            }
        }
        log.reclaim().unwrap();
        let _ = log.compact().unwrap();
        let state = log.log().state.lock();
        let segments = state.catalog.segments().len() + state.unapplied.len() + 1;
        assert!(state.suspects.len() <= segments, "{segments}: {:?}", state.suspects);
    }
}
