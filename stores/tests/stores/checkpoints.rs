//! Checkpoints of threads: each comes back as it was put, by thread and tenant only, in one order,
//! whatever happens between two calls; and states cost what is new in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use runlog::env::Environment;
use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog, Timestamp};
use runlog_stores::checkpoints::{
    Checkpoint, CheckpointError, CheckpointId, Checkpointer, TenantId, ThreadKey,
};
use serde_json::{Value, json};

use super::support::{in_each_life, in_memory, options};

mod again;
mod calls;
mod crashes;
mod damage;
mod order;
mod sessions;
mod space;
mod threads;

type Store = Checkpointer<Value>;

fn key(thread: &str) -> ThreadKey {
    key_of("default", thread)
}

fn key_of(tenant: &str, thread: &str) -> ThreadKey {
    ThreadKey::new(TenantId::new(tenant).unwrap(), thread).unwrap()
}

/// An id that is the same each time.
fn id(number: u8) -> CheckpointId {
    CheckpointId::from_bytes([number; 16])
}

/// A checkpoint that is the same each time, one second apart from the next.
fn checkpoint(key: &ThreadKey, number: u8) -> Checkpoint<Value> {
    let (state, at) = (json!({ "number": number }), second(number.into()));
    let next = Some(format!("node {number}"));
    Checkpoint::from_parts(id(number), key, None, number.into(), state, next, at)
}

fn second(second: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(1_700_000_000_000_000_000 + second * 1_000_000_000)
}

/// A clock that stands.
#[derive(Debug)]
struct Still(DateTime<Utc>);

impl runlog::env::Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.timestamp_nanos_opt().unwrap())
    }
}

fn options_at(now: DateTime<Utc>) -> Options {
    let clock = Arc::new(Still(now));
    options().environment(Environment::system().clock(clock))
}

/// All documents of a store whose namespace begins so, with their bytes.
fn documents(log: &RunLog, namespace: &str) -> BTreeMap<String, Vec<u8>> {
    let page = log.docs().list(namespace, "", None, usize::MAX).unwrap();
    let read = |found: runlog::DocumentSummary| {
        let document = log.docs().get(namespace, &found.key).unwrap().unwrap();
        (found.key, document.payload().to_vec())
    };
    page.documents.into_iter().map(read).collect()
}

#[test]
fn a_checkpoint_comes_back_with_all_of_its_fields() {
    in_each_life(|log| {
        let key = key("t");
        let mut put = Store::new(&log()).checkpoint(&key, 7, json!([1, "two"]), None).unwrap();
        put = put.with_parent(id(9));
        Store::new(&log()).put(&put).unwrap();
        let latest = Store::new(&log()).get_latest(&key).unwrap().unwrap();
        assert!(latest == put, "{latest:?} is not {put:?}");
        assert_eq!(
            Store::new(&log()).get_by_id(&key, &put.id).unwrap().unwrap().key().unwrap(),
            key
        );
        for number in 1..4 {
            let put = checkpoint(&key, number);
            Store::new(&log()).put(&put).unwrap();
            assert!(Store::new(&log()).get_by_id(&key, &put.id).unwrap() == Some(put));
        }
    });
}

#[test]
fn states_of_every_size_and_shape_come_back() {
    let sizes = [0, 1, 255, 256, 257, 1023, 5000, 16 << 10, 100_000, 700_000];
    in_each_life(|log| {
        for (number, size) in (1..).zip(sizes) {
            let texts = ["x", "\u{1f980}", "\\\"", "],{\"a\":["];
            for (thread, text) in texts.iter().enumerate() {
                let key = key(&format!("thread {thread}"));
                let mut put = checkpoint(&key, number);
                put.state = json!({ "text": text.repeat(size / text.len()), "deep": [[[[[[]]]]]] });
                Store::new(&log()).put(&put).unwrap();
                assert!(Store::new(&log()).get_latest(&key).unwrap() == Some(put), "{size} {text}");
            }
        }
        let store = Store::new(&log());
        for thread in 0..4 {
            assert_eq!(
                store.list_history(&key(&format!("thread {thread}")), 99).unwrap().len(),
                10
            );
        }
    });
}

#[test]
fn tenants_and_threads_never_see_one_another() {
    in_each_life(|log| {
        let keys = [key_of("a", "t"), key_of("b", "t"), key_of("a", "u"), key_of("default", "t")];
        for (number, key) in (1..).zip(&keys) {
            Store::new(&log()).put(&checkpoint(key, number)).unwrap();
        }
        for (number, key) in (1..).zip(&keys) {
            let store = Store::new(&log());
            assert_eq!(store.get_latest(key).unwrap().unwrap().id, id(number));
            assert_eq!(store.list_history(key, 10).unwrap().len(), 1);
            for other in (1..=4).filter(|other| *other != number) {
                assert!(store.get_by_id(key, &id(other)).unwrap().is_none());
                let branch = store.update_state(key, &id(other), json!(0));
                assert!(matches!(branch, Err(CheckpointError::UnknownParent { .. })));
            }
        }
        let store = Store::named(&log(), "other");
        assert!(store.get_latest(&keys[0]).unwrap().is_none());
        let threads = Store::new(&log()).threads(&TenantId::new("a").unwrap(), None, 10).unwrap();
        assert_eq!(threads, ["t", "u"]);
    });
}

#[test]
fn ids_of_any_characters_stay_distinct_and_others_are_refused() {
    let long = "x".repeat(512);
    let texts =
        ["a", "a/b", "a/t/b", "t", "1", "gone", "next", "\0", "\n", " ", "../..", "%", "d1"];
    let names = ["default", "", "1", "1/x", "default/t/a"];
    in_each_life(|log| {
        let mut number = 0;
        for name in names {
            let others = texts[1..].iter().flat_map(|text| [(*text, "a"), ("a", *text)]);
            for (tenant, thread) in others.chain([("a", "a")]) {
                let (store, key) = (Store::named(&log(), name), key_of(tenant, thread));
                assert!(store.get_latest(&key).unwrap().is_none(), "{name:?} {key}");
                store.put(&checkpoint(&key, number)).unwrap();
                number += 1;
            }
        }
    });
    let store = Store::new(&in_memory());
    store.put(&checkpoint(&key(&long), 1)).unwrap();
    assert!(store.get_latest(&key(&long)).unwrap().is_some());
    store.put(&checkpoint(&key_of(&long[..463], "t"), 1)).unwrap();
    for key in [key(&format!("{long}x")), key_of(&long, "t")] {
        for error in [
            store.put(&checkpoint(&key, 1)).unwrap_err(),
            store.get_latest(&key).unwrap_err(),
            store.delete_thread(&key).unwrap_err(),
        ] {
            let refused = matches!(error, CheckpointError::Store(runlog::Error::InvalidId { .. }));
            assert!(refused, "{error}");
        }
    }
    assert!(TenantId::new("").is_err() && ThreadKey::new(TenantId::default(), "").is_err());
    let mut emptied = checkpoint(&key("t"), 2);
    emptied.thread_id.clear();
    assert!(store.put(&emptied).is_err());
}

#[test]
fn keys_and_ids_have_the_json_of_the_original() {
    let key = key_of("acme", "t-1");
    let json = json!({ "tenant_id": "acme", "thread_id": "t-1" });
    assert_eq!(serde_json::to_value(&key).unwrap(), json);
    assert_eq!(serde_json::from_value::<ThreadKey>(json).unwrap(), key);
    for empty in
        [json!({"tenant_id": "", "thread_id": "t"}), json!({"tenant_id": "a", "thread_id": ""})]
    {
        assert!(serde_json::from_value::<ThreadKey>(empty).is_err());
    }
    let text = "01010101-0101-0101-0101-010101010101";
    assert_eq!(serde_json::to_value(id(1)).unwrap(), json!(text));
    assert_eq!(serde_json::from_value::<CheckpointId>(json!(text)).unwrap(), id(1));
    assert!(serde_json::from_value::<CheckpointId>(json!("no uuid")).is_err());
}
