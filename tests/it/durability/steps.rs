//! The steps of the background work in orders that the test chooses, with a kill after them.

use std::sync::Arc;

use runlog::env::Step;
use runlog::storage::MemoryStorage;
use runlog::{Compaction, NewRecord, Options};

use crate::support::background::Background;

fn options() -> Options {
    let manual = Compaction::new().automatic(false);
    Options::new().extent_size(64 << 10).background(false).compaction(manual)
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
