//! Power cuts and kills at every operation of the disk: a snapshot is there as a whole or not at
//! all, and what was acknowledged is there.

use runlog_sim::{Fault, Recording, SimDisk};

use super::snapshots::{mark_of, marked};
use super::*;
use crate::support::{in_crashes, recording};

const STEPS: usize = 16;

/// What a step leaves of the session: who saved it, or nothing.
fn after(step: usize) -> Option<String> {
    (!step.is_multiple_of(4)).then(|| step.to_string())
}

/// A store in which a session was saved and deleted, one step after the other, and the number of
/// operations after each.
fn recorded() -> (Recording, Vec<usize>) {
    let (disk, log) = recording();
    let store = ChatStore::new(&log);
    block_on(store.save_snapshot(&marked("another", "x"))).unwrap();
    let mut done = vec![disk.op_count()];
    for step in 1..=STEPS {
        match after(step) {
            Some(mark) => block_on(store.save_snapshot(&marked("s", &mark))).unwrap(),
            None => block_on(store.delete("s")).unwrap(),
        }
        done.push(disk.op_count());
        if step % 5 == 0 {
            log.checkpoint().unwrap();
            let _ = log.compact().unwrap();
        }
    }
    (disk.take_recording(), done)
}

#[test]
fn a_power_cut_or_a_kill_at_any_operation_leaves_whole_snapshots() {
    let (recording, done) = recorded();
    in_crashes(&recording, done[0], |log, _, boundary, context| {
        let acknowledged = done[1..].iter().take_while(|&&after| after <= boundary).count();
        check(&ChatStore::new(log), acknowledged, context);
    });
}

/// The session is as after the last acknowledged step, or as after the next one.
fn check(store: &ChatStore, acknowledged: usize, context: &str) {
    block_on(async {
        let loaded = store.load_snapshot("s").await.unwrap();
        let mark = loaded.as_ref().map(|loaded| mark_of(&loaded.snapshot));
        let next = (acknowledged + 1).min(STEPS);
        assert!(mark == after(acknowledged) || mark == after(next), "{context}: {mark:?}");
        let listed = store.list().await.unwrap();
        assert_eq!(listed.len(), 1 + usize::from(mark.is_some()), "{context}");
        if mark.is_none() {
            assert_eq!(store.load_artifacts("s").await.unwrap(), None, "{context}");
            assert_eq!(store.load_subagent_tasks("s").await.unwrap(), None, "{context}");
        }
        let another = store.load_snapshot("another").await.unwrap().unwrap();
        assert_eq!(mark_of(&another.snapshot), "x", "{context}");
        // It goes on.
        let digest = loaded.map(|loaded| loaded.digest);
        let swapped = store.save_snapshot_cas(&marked("s", "on"), digest.as_deref()).await;
        assert!(swapped.unwrap(), "{context}");
    });
}

#[test]
fn a_save_whose_sync_fails_is_told_and_the_store_says_that_it_is_ill() {
    let disk = SimDisk::new();
    let log = options().sync_interval(None).create_storage(Arc::new(disk.clone())).unwrap();
    let store = ChatStore::new(&log);
    block_on(store.save_snapshot(&marked("s", "before"))).unwrap();
    disk.fail_from(disk.op_count(), Fault::error(std::io::ErrorKind::Other));
    let failed = block_on(store.save_snapshot(&marked("s", "after"))).unwrap_err();
    assert!(matches!(failed, SessionError::Store(_)), "{failed}");
    let ill = block_on(store.health_check()).unwrap_err();
    assert!(matches!(ill, SessionError::Store(_)), "{ill}");
    disk.clear_faults();
    drop((store, log));
    let log = options().open_storage(Arc::new(disk)).unwrap();
    let store = ChatStore::new(&log);
    let found = mark_of(&block_on(store.load_snapshot("s")).unwrap().unwrap().snapshot);
    assert!(found == "before" || found == "after", "{found}");
    block_on(store.health_check()).unwrap();
}
