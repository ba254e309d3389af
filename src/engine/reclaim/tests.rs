//! The steps of the background threads in orders of the test's choice, with a kill behind them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::disk::Disk;
use crate::engine::recovery;
use crate::engine::shared::Engine;
use crate::storage::MemoryStorage;
use crate::{Batch, Compaction, NewRecord, Options, Outcome};

fn options() -> Options {
    let manual = Compaction::new().automatic(false);
    Options::new().extent_size(64 << 10).background(false).compaction(manual)
}

/// A store as recovery leaves it to the threads: nobody has opened its index yet.
fn recovered(bytes: &[u8]) -> (Arc<MemoryStorage>, Arc<Engine>) {
    let storage = Arc::new(MemoryStorage::from_bytes(bytes.to_vec()));
    let engine = recovery::open(Disk::new(storage.clone()), options(), None).unwrap();
    (storage, engine)
}

fn listed(bytes: &[u8]) -> BTreeSet<String> {
    let storage = Arc::new(MemoryStorage::from_bytes(bytes.to_vec()));
    let log = options().open_storage(storage).unwrap();
    assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify().unwrap().problems);
    let page = log.list("space", "", None, 1000).unwrap();
    page.documents.into_iter().map(|document| document.key).collect()
}

/// Puts and deletes documents, so that what the index knows dies by evictions that it does not
/// know, of which the last one is in the tail; answers the file as a kill leaves it.
fn behind() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let put = |prefix: &str, count: usize, len: usize| {
        for number in 0..count {
            let record = vec![b'.'; len];
            log.put("space", &format!("{prefix}{number}"), &NewRecord::new(&record)).unwrap();
        }
    };
    let delete = |prefix: &str, count: usize| {
        for number in 0..count {
            assert!(log.delete("space", &format!("{prefix}{number}")).unwrap());
        }
    };
    put("early", 40, 6000);
    put("keep", 3, 100);
    put("late", 12, 6000);
    log.checkpoint().unwrap();
    delete("early", 40);
    delete("late", 12);
    put("keep", 3, 101);
    log.reclaim().unwrap();
    put("more", 12, 6000);
    delete("more", 12);
    put("keep", 3, 102);
    log.sync().unwrap();
    storage.to_bytes()
}

type Step = fn(&Engine);

#[test]
fn what_was_deleted_stays_so_whichever_background_step_runs_before_a_kill() {
    let killed = behind();
    let keep = BTreeSet::from(["keep0", "keep1", "keep2"].map(String::from));
    assert_eq!(listed(&killed), keep);
    let reclaim: Step = |engine| engine.reclaim().unwrap();
    let compact: Step = |engine| {
        engine.compact_all().unwrap();
    };
    let checkpoint: Step = |engine| engine.checkpoint().unwrap();
    let steps = [reclaim, compact, checkpoint];
    for order in 0..steps.len().pow(3) {
        let (storage, engine) = recovered(&killed);
        for turn in 0..3 {
            let place = order / steps.len().pow(turn) % steps.len();
            steps[place](&engine);
            assert_eq!(listed(&storage.to_bytes()), keep, "order {order}, step {turn}");
        }
    }
}

/// A store in which each segment evicts what is in the one before it, and nothing was freed yet:
/// its threads were never started.
fn chain() -> Arc<Engine> {
    let storage = Arc::new(MemoryStorage::new());
    drop(options().create_storage(storage.clone()).unwrap());
    let threaded = options().background(true);
    let engine = recovery::open(Disk::new(storage), threaded, None).unwrap();
    let bytes = vec![b'.'; 7000];
    for _ in 0..1600 {
        let mut batch = Batch::new();
        batch.put("space", "key", NewRecord::new(&bytes));
        let _ = engine.commit_batch(&batch).unwrap();
    }
    engine.sync_all().unwrap();
    engine.note_seals().unwrap();
    engine.checkpoint().unwrap();
    engine
}

fn sealed(engine: &Engine) -> usize {
    engine.core.lock().catalog.segments().len()
}

#[test]
fn a_long_chain_of_evictions_is_freed_with_one_sync_for_each() {
    let engine = chain();
    let (segments, syncs) = (sealed(&engine), engine.disk.counters().syncs);
    assert!(segments > 180, "{segments}");
    engine.reclaim().unwrap();
    assert!(sealed(&engine) <= 1 && engine.core.lock().retired.is_empty());
    let syncs = engine.disk.counters().syncs - syncs;
    assert!(syncs <= segments as u64 + 10, "{syncs} syncs for {segments} segments");
}

#[test]
fn reclaiming_ends_when_the_store_is_being_closed_and_forgets_nothing() {
    let engine = chain();
    let (segments, io) = (sealed(&engine), engine.disk.counters());
    engine.upkeep.stop();
    engine.reclaim().unwrap();
    assert_eq!((sealed(&engine), engine.disk.counters().writes), (segments, io.writes));
    assert!(engine.core.lock().suspects.len() >= segments - 1);
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
        let core = log.engine().core.lock();
        let segments = core.catalog.segments().len() + core.unapplied.len() + 1;
        assert!(core.suspects.len() <= segments, "{segments}: {:?}", core.suspects);
    }
}
