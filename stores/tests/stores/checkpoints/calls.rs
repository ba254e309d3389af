//! Calls as futures: each does what its blocking twin does, polling never waits, dropping leaves
//! all or nothing.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use runlog_stores::checkpoints::{AsyncCheckpointer, AsyncSessionLog, SessionLog};
use serde::{Deserialize, Serialize};

use super::*;
use crate::sessions::poll_once;
use crate::support::block_on;

fn asynchronous(log: &RunLog) -> AsyncCheckpointer<Value> {
    AsyncCheckpointer::new(Store::new(log))
}

#[test]
fn each_call_does_what_its_blocking_twin_does() {
    in_each_life(|log| {
        let (key, other) = (key("t"), key("other"));
        let put = |number| block_on(asynchronous(&log()).put(checkpoint(&key, number)));
        for number in 1..=3 {
            put(number).unwrap();
        }
        put(3).unwrap();
        let latest = block_on(asynchronous(&log()).get_latest(&key)).unwrap();
        assert!(latest == Some(checkpoint(&key, 3)));
        let second = block_on(asynchronous(&log()).get_by_id(&key, &id(2))).unwrap();
        assert!(second == Some(checkpoint(&key, 2)));
        assert!(block_on(asynchronous(&log()).get_by_id(&other, &id(2))).unwrap().is_none());
        let branch = block_on(asynchronous(&log()).update_state(&key, &id(1), json!("b"))).unwrap();
        let unknown = block_on(asynchronous(&log()).update_state(&key, &id(9), json!(0)));
        assert!(matches!(unknown, Err(CheckpointError::UnknownParent { .. })));
        let history = block_on(asynchronous(&log()).list_history(&key, 2)).unwrap();
        let ids: Vec<CheckpointId> = history.iter().map(|found| found.id).collect();
        assert_eq!(ids, [branch, id(3)]);

        assert_eq!(block_on(asynchronous(&log()).copy_thread(&key, &other)).unwrap(), 4);
        let tenant = TenantId::default();
        let threads = block_on(asynchronous(&log()).threads(&tenant, None, 9)).unwrap();
        assert_eq!(threads, ["other", "t"]);
        let threads = block_on(asynchronous(&log()).threads(&tenant, Some("other"), 9)).unwrap();
        assert_eq!(threads, ["t"]);
        assert!(block_on(asynchronous(&log()).delete_thread(&other)).unwrap());
        assert!(!block_on(asynchronous(&log()).delete_thread(&other)).unwrap());
        block_on(asynchronous(&log()).prune(&key, Some(1), None::<Duration>)).unwrap();
        // The branch, and what it branched off.
        let left = asynchronous(&log()).blocking().list_history(&key, 9).unwrap();
        assert!(left.iter().map(|found| found.id).eq([branch, id(1)]));
    });
}

#[test]
fn each_call_of_a_session_log_does_what_its_blocking_twin_does() {
    in_each_life(|log| {
        let key = key("t");
        let session = || AsyncSessionLog::<String>::new(SessionLog::new(&log()));
        let events = ["a".to_owned(), "b\n".to_owned(), "c".to_owned()];
        assert_eq!(block_on(session().append(&key, &[])).unwrap(), 0);
        assert_eq!(block_on(session().append(&key, &events)).unwrap(), 3);
        assert_eq!(block_on(session().load_since(&key, 1)).unwrap(), ["b\n", "c"]);
        let numbered = block_on(session().load_numbered_since(&key, 2)).unwrap();
        assert_eq!(numbered, [(3, "c".to_owned())]);
        assert_eq!(block_on(session().archive_before(&key, 2)).unwrap(), 2);
        assert_eq!(session().blocking().load_since(&key, 0).unwrap(), ["c"]);
        let tenant = TenantId::default();
        assert_eq!(block_on(session().threads(&tenant, None, 9)).unwrap(), ["t"]);
        assert!(block_on(session().delete_thread(&key)).unwrap());
    });
}

/// While a test holds it, callers that write or read a [`Gated`] wait.
static GATE: Mutex<()> = Mutex::new(());

/// A state that waits until a test lets it go, or panics when it is read if it is negative.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "i64", from = "i64")]
struct Gated(i64);

impl Clone for Gated {
    /// What serde calls before it writes.
    fn clone(&self) -> Self {
        drop(GATE.lock().unwrap());
        Self(self.0)
    }
}

impl From<Gated> for i64 {
    fn from(state: Gated) -> Self {
        state.0
    }
}

impl From<i64> for Gated {
    fn from(number: i64) -> Self {
        assert!(number >= 0, "this is what the test wants");
        Self(number)
    }
}

fn gated(store: &AsyncCheckpointer<Gated>, number: i64) -> Checkpoint<Gated> {
    store.blocking().checkpoint(&key("t"), 0, Gated(number), None).unwrap()
}

#[test]
fn polling_never_waits_and_what_is_dropped_before_its_turn_is_not_done() {
    let store = AsyncCheckpointer::new(Checkpointer::<Gated>::new(&in_memory()));
    let (first, second, third) = (gated(&store, 1), gated(&store, 2), gated(&store, 3));
    let key = key("t");
    let closed = GATE.lock().unwrap();
    let mut putting = pin!(store.put(first));
    let mut looking = pin!(store.list_history(&key, 9));
    for _ in 0..3 {
        assert!(poll_once(&mut putting).is_pending());
    }
    {
        let mut dropped = pin!(store.put(second));
        assert!(poll_once(&mut dropped).is_pending());
        let _never_polled = store.put(third);
    }
    assert!(poll_once(&mut looking).is_pending());
    drop(closed);
    block_on(putting).unwrap();
    let found = block_on(looking).unwrap();
    assert!(found.iter().map(|found| found.state.0).eq([1]), "{found:?}");
}

#[test]
fn a_panic_in_a_state_ends_its_call_alone() {
    let log = in_memory();
    let store = AsyncCheckpointer::new(Checkpointer::<Gated>::new(&log));
    let numbers = Checkpointer::<i64>::new(&log);
    numbers.put(&numbers.checkpoint(&key("t"), 0, -1, None).unwrap()).unwrap();
    assert!(matches!(block_on(store.put(gated(&store, -1))), Err(CheckpointError::NoAnswer)));
    let lost = block_on(store.get_latest(&key("t"))).unwrap_err();
    assert!(matches!(lost, CheckpointError::NoAnswer), "{lost}");
    block_on(store.put(gated(&store, 1))).unwrap();
    assert_eq!(block_on(store.get_latest(&key("t"))).unwrap().unwrap().state, Gated(1));
}

#[test]
fn calls_can_go_from_thread_to_thread() {
    fn sent<T: Send>(future: T) -> T {
        future
    }
    let (store, key) = (asynchronous(&in_memory()), key("t"));
    let session = AsyncSessionLog::<String>::new(SessionLog::new(store.blocking().log()));
    block_on(sent(store.put(checkpoint(&key, 1)))).unwrap();
    block_on(sent(session.append(&key, &["a".to_owned()]))).unwrap();
    std::thread::scope(|scope| {
        for number in 2..6 {
            let (store, key) = (store.clone(), &key);
            scope.spawn(move || block_on(store.put(checkpoint(key, number))).unwrap());
        }
    });
    assert_eq!(block_on(sent(store.list_history(&key, 9))).unwrap().len(), 5);
}

#[test]
fn a_file_can_be_opened_again_once_the_last_handle_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    for number in 0..3 {
        let log = Options::new().open(&path).unwrap();
        let store = asynchronous(&log);
        let found = block_on(store.get_latest(&key("t"))).unwrap();
        assert_eq!(found.map(|found| found.step), usize::from(number).checked_sub(1));
        block_on(store.put(checkpoint(&key("t"), number))).unwrap();
        drop(store);
        log.close().unwrap();
    }
}
