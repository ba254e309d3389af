//! What reclaiming remembers between its calls.

use std::sync::Arc;

use crate::engine::reclaim::dead::{AllUnlisted, Unlisted, is_dead};
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
        let compacting = log.engine().reclaimer.compacting.lock();
        let state = log.log().state.lock();
        let segments = state.catalog.segments().len() + state.unapplied.len() + 1;
        assert!(state.suspects.len() <= segments, "{segments}: {:?}", state.suspects);
        assert!(compacting.unlisted.len() <= segments, "{segments}: {:?}", compacting.unlisted);
    }
}

/// Their receipts keep them, so each pass asks again whether they are dead.
#[test]
fn segments_of_evictions_are_read_once_for_runs_that_they_do_not_list() {
    let storage = Arc::new(MemoryStorage::new());
    let options = options().index(false).compaction(Compaction::new().automatic(false));
    let log = options.create_storage(storage).unwrap();
    for number in 0..1200 {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    for number in 0..1200 {
        let _ = log.delete_run(format!("run-{number}").as_str()).unwrap();
    }
    log.checkpoint().unwrap();
    let reclaimer = &log.engine().reclaimer;
    let pass = || {
        // All that was freed may have needed them.
        reclaimer.compacting.lock().has_freed = true;
        let before = log.engine().log.disk.counters().bytes_read;
        reclaimer.reclaim().unwrap();
        log.engine().log.disk.counters().bytes_read - before
    };
    reclaimer.compacting.lock().unlisted.clear();
    let (first, second) = (pass(), pass());
    let unlisted = core::mem::take(&mut reclaimer.compacting.lock().unlisted);
    assert!(
        unlisted.len() > 1 && unlisted.values().all(|one| *one == Unlisted::default()),
        "{unlisted:?}"
    );
    assert!(second + unlisted.len() as u64 * (48 << 10) < first, "{first} {second}");
}

/// Whether they are dead is asked under the lock on compaction.
#[test]
fn of_a_whole_segment_no_payload_is_read_to_know_its_runs() {
    let extent = 1 << 20;
    let options = Options::new().extent_size(extent).background(false).index(false);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    for number in 0..160 {
        let key = format!("key-{number}");
        for value in [b"1".as_slice(), &[7; 15_000]] {
            let _ = log.docs().put("space", &key, &NewRecord::new(value)).unwrap();
        }
    }
    log.checkpoint().unwrap();
    let state = log.log().state.lock();
    let segments = state.catalog.segments();
    assert!(segments.len() > 1);
    for segment in segments {
        let bytes = || log.engine().log.disk.counters().bytes_read;
        let (before, mut known) = (bytes(), AllUnlisted::new());
        assert!(is_dead(segment, |_| true, &mut known).unwrap());
        assert_eq!(known.len(), 1, "it has evictions");
        assert!(bytes() - before < extent / 2, "{} bytes", bytes() - before);
    }
}
