//! The steps of the background work in orders that the test chooses, with a kill after them.

use std::collections::BTreeSet;
use std::sync::Arc;

use runlog::env::Step;
use runlog::storage::MemoryStorage;
use runlog::{Compaction, NewRecord, Options, RunLog};

use crate::support::background::Background;

fn options() -> Options {
    let manual = Compaction::new().automatic(false);
    Options::new().extent_size(64 << 10).background(false).compaction(manual)
}

fn put(log: &RunLog, prefix: &str, count: usize, len: usize) {
    for number in 0..count {
        let record = vec![b'.'; len];
        log.docs().put("space", &format!("{prefix}{number}"), &NewRecord::new(&record)).unwrap();
    }
}

fn delete(log: &RunLog, prefix: &str, count: usize) {
    for number in 0..count {
        assert!(log.docs().delete("space", &format!("{prefix}{number}")).unwrap());
    }
}

fn listed(bytes: &[u8]) -> BTreeSet<String> {
    let storage = Arc::new(MemoryStorage::from_bytes(bytes.to_vec()));
    let log = options().open_storage(storage).unwrap();
    assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify().unwrap().problems);
    let page = log.docs().list("space", "", None, 1000).unwrap();
    page.documents.into_iter().map(|document| document.key).collect()
}

/// Puts and deletes documents, so that runs in the index die by evictions that it has not applied,
/// the last of which is in the tail. Returns the file as a kill leaves it.
fn behind() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    put(&log, "early", 40, 6000);
    put(&log, "keep", 3, 100);
    put(&log, "late", 12, 6000);
    log.checkpoint().unwrap();
    delete(&log, "early", 40);
    delete(&log, "late", 12);
    put(&log, "keep", 3, 101);
    log.reclaim().unwrap();
    put(&log, "more", 12, 6000);
    delete(&log, "more", 12);
    put(&log, "keep", 3, 102);
    log.sync().unwrap();
    storage.to_bytes()
}

#[test]
fn what_was_deleted_stays_so_whichever_background_step_runs_before_a_kill() {
    let killed = behind();
    let keep = BTreeSet::from(["keep0", "keep1", "keep2"].map(String::from));
    assert_eq!(listed(&killed), keep);
    let steps = [Step::Reclaim, Step::Compact, Step::Checkpoint];
    for order in 0..steps.len().pow(3) {
        let (storage, background) =
            (MemoryStorage::from_bytes(killed.clone()), Background::default());
        let storage = Arc::new(storage);
        let threads =
            options().compaction(Compaction::new()).scheduler(Arc::new(background.clone()));
        let log = threads.open_storage(storage.clone()).unwrap();
        for turn in 0..3 {
            let place = order / steps.len().pow(turn) % steps.len();
            assert!(background.run(steps[place]));
            assert_eq!(listed(&storage.to_bytes()), keep, "order {order}, step {turn}");
        }
        drop(log);
    }
}

#[test]
fn a_long_chain_of_evictions_is_freed_with_one_sync_for_each() {
    let background = Background::default();
    let threads = options().scheduler(Arc::new(background.clone()));
    let log = threads.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let bytes = vec![b'.'; 7000];
    for _ in 0..1600 {
        log.docs().put("space", "key", &NewRecord::new(&bytes)).unwrap();
    }
    assert!(background.run(Step::Sync) && background.run(Step::Checkpoint));
    let before = log.stats().unwrap();
    assert!(before.sealed_segments > 180, "{before:?}");
    assert!(background.run(Step::Reclaim));
    let after = log.stats().unwrap();
    assert!(after.sealed_segments <= 1 && after.retired_extents == 0, "{after:?}");
    let syncs = after.io.syncs - before.io.syncs;
    assert!(syncs <= before.sealed_segments + 10, "{syncs} syncs: {before:?}");
}
