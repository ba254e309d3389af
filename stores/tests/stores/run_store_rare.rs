//! What a run store answers beside readers, behind damage, and of held runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use runlog::storage::MemoryStorage;
use runlog::{Allow, Metadata, Outcome, Rule, RunLog, Timestamp};
use runlog_sim::SimClock;
use runlog_stores::run_store::{
    OutcomeStatus, RetentionConfig, RunStatus, RunStore, RunStoreError,
};

use super::run_store_world::{NOW, ended, options, outcome, started, success, turn};
use super::support::haunted::{Ask, Haunted};

fn store(storage: &Arc<MemoryStorage>) -> (RunLog, RunStore) {
    let clock = SimClock::new(Timestamp(NOW));
    let options = options(&clock);
    let log = if storage.to_bytes().is_empty() {
        options.create_storage(storage.clone()).unwrap()
    } else {
        options.open_storage(storage.clone()).unwrap()
    };
    (log.clone(), RunStore::on(log, RetentionConfig::default()))
}

#[test]
fn a_rollback_beside_readers_takes_the_whole_run_back() {
    let (_log, store) = store(&Arc::new(MemoryStorage::new()));
    let (is_over, start) = (AtomicBool::new(false), started("a", "r", NOW));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = store.run_started("a", "r");
                }
            });
        }
        let taken_back = (0..20_000).all(|_| {
            store.write_started(&start).unwrap();
            store.rollback_empty_run_start(&start).unwrap()
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(taken_back, "{:?}", store.list_runs("a"));
    });
}

#[test]
fn two_stores_on_one_log_wait_for_each_other_s_rollbacks() {
    let (log, one) = store(&Arc::new(MemoryStorage::new()));
    let other = RunStore::on(log, RetentionConfig::default());
    for number in 0..3_000 {
        let (run, turns) = (format!("r{number}"), [turn(1, "a turn")]);
        let start = started("a", &run, NOW);
        one.write_started(&start).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| other.append_turns("a", &run, &turns).unwrap());
            let _ = one.rollback_empty_run_start(&start).unwrap();
        });
        let there = one.get_run_trace(&run).unwrap_or_default();
        assert!(there.contains(&turns[0]), "{run}: {there:?}");
    }
}

#[test]
fn what_comes_behind_a_lost_record_is_seen() {
    let storage = Arc::new(MemoryStorage::new());
    let (log, runs) = store(&storage);
    runs.write_started(&started("a", "r", NOW)).unwrap();
    for (index, prompt) in ["first", "second", "third"].into_iter().enumerate() {
        runs.append_turns("a", "r", &[turn(index, prompt)]).unwrap();
    }
    drop(runs);
    log.close().unwrap();
    let mut image = storage.to_bytes();
    let second = image.windows(8).position(|bytes| bytes == b"\"second\"").unwrap();
    let line = br#"{"record":"turn""#;
    let line = image[..second].windows(line.len()).rposition(|bytes| bytes == line).unwrap();
    // A byte of the record. Damage of the header of its frame refuses the store.
    image[line] ^= 1;
    let (log, runs) = store(&Arc::new(MemoryStorage::from_bytes(image)));
    assert_eq!(log.run("r").unwrap().records, 4);
    runs.write_ended(&ended("a", "r", NOW + 5, success())).unwrap();
    assert_eq!(runs.list_runs("a")[0].status, RunStatus::Completed);
    assert!(log.run("r").unwrap().status.is_ended());
    let other = ended("a", "r", NOW + 6, outcome(OutcomeStatus::Failure));
    assert!(runs.write_ended(&other).is_err());
    runs.write_ended(&ended("a", "r", NOW + 5, success())).unwrap();
    assert_eq!(log.run("r").unwrap().records, 5);
}

#[test]
fn a_held_run_that_never_began_keeps_no_other_from_being_adopted() {
    let (log, store) = store(&Arc::new(MemoryStorage::new()));
    // As a kill leaves it.
    let mark = Metadata::json(br#"{"store":"run_store"}"#);
    drop(log.start_run("a", "never", mark).unwrap());
    log.hold(("a", "never"), "why").unwrap();
    store.write_started(&started("a", "orphan", NOW)).unwrap();
    assert_eq!(store.adopt_orphans(), 1);
    assert_eq!(store.list_runs("a")[0].status, RunStatus::Incomplete);
}

#[test]
fn a_run_that_is_deleted_while_it_is_started_or_ended_again_counts_as_deleted() {
    let again: [fn(&RunStore) -> std::io::Result<()>; 2] = [
        |store| store.write_started(&started("a", "r", NOW)),
        |store| store.write_ended(&ended("a", "r", NOW, success())),
    ];
    let ended_once = || {
        let (disk, log) = Haunted::new(options(&SimClock::new(Timestamp(NOW))));
        let store = RunStore::on(log.clone(), RetentionConfig::default());
        store.write_started(&started("a", "r", NOW)).unwrap();
        store.write_ended(&ended("a", "r", NOW, success())).unwrap();
        (disk, log, store)
    };
    for again in again {
        let (disk, _, store) = ended_once();
        let reads = disk.counted(Ask::Read, || again(&store).unwrap());
        assert!(reads > 0);
        for number in 0..reads {
            let (disk, log, store) = ended_once();
            disk.before(Ask::Read, number, move || drop(log.delete_run(("a", "r"))));
            again(&store).unwrap_or_else(|error| panic!("read {number}: {error}"));
            assert!(disk.is_over());
        }
    }
}

#[test]
fn no_record_goes_into_a_run_of_another_program_that_has_its_ids_now() {
    type Remove = fn(&RunLog);
    let removes: [Remove; 3] = [
        |log| _ = log.delete_run(("a", "r")).unwrap(),
        |log| _ = log.erase_run(("a", "r")).unwrap(),
        |log| _ = log.evict(&[(("a", "r").into(), Rule::Age)]).unwrap(),
    ];
    for remove in removes {
        let (log, store) = store(&Arc::new(MemoryStorage::new()));
        store.append_turns("a", "r", &[turn(0, "p")]).unwrap();
        for _ in 0..2 {
            drop(log.end_run("a", "r", &Outcome::completed(), Allow::nothing()).unwrap());
            remove(&log);
            let other = log.start_run("a", "r", b"of another program").unwrap();
            for _ in 0..2 {
                for refused in [
                    store.append_turns("a", "r", &[turn(1, "p")]),
                    store.write_started(&started("a", "r", NOW)),
                    store.write_ended(&ended("a", "r", NOW, success())),
                ] {
                    let refused = refused.expect_err("it is not shown, so it must not be told");
                    assert!(matches!(
                        RunStoreError::of(&refused),
                        Some(RunStoreError::Foreign { .. })
                    ));
                }
                assert_eq!(log.run("r").unwrap().records, 0);
                drop(other.end(&Outcome::completed()).unwrap());
            }
            // And once it is gone, the ids are free.
            remove(&log);
            store.append_turns("a", "r", &[turn(2, "p")]).unwrap();
            assert_eq!(store.get_run_trace_for("a", "r").unwrap(), [turn(2, "p")]);
        }
    }
}

/// A run of another program stays one that nobody uses.
#[test]
fn a_refused_append_makes_no_use_of_the_run_of_another_program() {
    let storage = Arc::new(MemoryStorage::new());
    let (log, first) = store(&storage);
    let _ = log.start_run("a", "r", b"of another program").unwrap();
    drop(first);
    log.close().unwrap();
    let (log, store) = store(&storage);
    let refused = store.append_turns("a", "r", &[turn(1, "p")]).unwrap_err();
    assert!(matches!(RunStoreError::of(&refused), Some(RunStoreError::Foreign { .. })));
    assert_eq!(log.adopt_orphans().unwrap().runs.len(), 1);
}
