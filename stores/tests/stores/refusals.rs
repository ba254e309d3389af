//! A refusal may rest on what another caller has just done: a store waits until that survives power
//! loss, since the caller gives up what it had.

use std::io::ErrorKind;
use std::sync::Arc;

use runlog::{Error, NewRecord, Outcome, RunLog};
use runlog_sim::{Fault, OpKind, SimDisk};
use runlog_stores::checkpoints::{CheckpointId, Checkpointer, TenantId, ThreadKey};
use runlog_stores::run_store::{OutcomeStatus, RetentionConfig, RunStore, RunStoreError};
use serde_json::{Value, json};

use super::run_store_world::{NOW, ended, outcome, started, success, turn};
use super::support::{in_memory, options};

/// Asks behind a change that is not durable yet. Afterwards it is.
fn durably<T>(log: &RunLog, ask: impl FnOnce() -> T) -> T {
    let behind = log.deferred().put("elsewhere", "key", &NewRecord::new(b"waits for a sync"));
    assert!(!behind.is_durable());
    let answer = ask();
    assert!(behind.is_durable(), "the answer rests on it");
    answer
}

#[test]
fn a_run_store_refuses_once_what_it_refuses_for_is_durable() {
    let log = in_memory();
    let store = RunStore::on(log.clone(), RetentionConfig::default());
    store.write_started(&started("a", "r", NOW)).unwrap();
    durably(&log, || store.write_started(&started("a", "r", NOW + 1)).unwrap_err());
    store.append_turns("a", "r", &[turn(0, "go on")]).unwrap();
    assert!(!durably(&log, || store.rollback_empty_run_start(&started("a", "r", NOW)).unwrap()));
    assert!(!durably(&log, || store.rollback_empty_run_start(&started("a", "no", NOW)).unwrap()));
    store.write_ended(&ended("a", "r", NOW + 2, success())).unwrap();
    let other = ended("a", "r", NOW + 2, outcome(OutcomeStatus::Failure));
    durably(&log, || store.write_ended(&other).unwrap_err());
    store.write_started(&started("a", "held", NOW)).unwrap();
    assert!(log.hold(("a", "held"), "kept").unwrap());
    let rollback = || store.rollback_empty_run_start(&started("a", "held", NOW)).unwrap_err();
    assert_eq!(durably(&log, rollback).kind(), ErrorKind::PermissionDenied);
    let foreign = log.start_run("a", "foreign", b"of another program").unwrap();
    let refused = durably(&log, || store.append_turns("a", "foreign", &[turn(0, "mine")]));
    let refused = refused.unwrap_err();
    let inner = refused.get_ref().and_then(|error| error.downcast_ref::<RunStoreError>());
    assert!(matches!(inner, Some(RunStoreError::Foreign { .. })), "{refused:?}");
    let _ = foreign.end(&Outcome::completed()).unwrap();
}

#[test]
fn a_checkpointer_refuses_once_what_it_refuses_for_is_durable() {
    let log = in_memory();
    let store = Checkpointer::<Value>::new(&log);
    let key = |thread: &str| ThreadKey::new(TenantId::default(), thread).unwrap();
    let put = store.checkpoint(&key("t"), 1, json!(1), None).unwrap();
    store.put(&put).unwrap();
    let missing = CheckpointId::from_bytes([9; 16]);
    durably(&log, || store.update_state(&key("t"), &missing, json!(2)).unwrap_err());
    durably(&log, || store.copy_thread(&key("missing"), &key("new")).unwrap_err());
    durably(&log, || store.copy_thread(&key("t"), &key("t")).unwrap_err());
}

#[test]
fn a_rollback_that_fails_tells_why() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let store = RunStore::on(log, RetentionConfig::default());
    store.write_started(&started("a", "r", NOW)).unwrap();
    disk.fail_next(OpKind::Sync, Fault { error: ErrorKind::TimedOut, stored: 0 });
    let failed = store.rollback_empty_run_start(&started("a", "r", NOW)).unwrap_err();
    let inner = failed.get_ref().and_then(|error| error.downcast_ref::<RunStoreError>());
    let is_cause = matches!(inner, Some(RunStoreError::Engine(Error::Io { .. })));
    assert!(is_cause || failed.kind() == ErrorKind::TimedOut, "{failed:?}");
}
