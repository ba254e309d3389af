//! Watching commits: each change once and in order, from the moment on at which a caller asks.

use std::pin::Pin;
use std::time::Duration;

use runlog_stores::sessions::{CommitWatch, SessionCommit};

use super::calls::{NEVER, wakers};
use super::snapshots::marked;
use super::*;

fn watch(store: &ChatStore) -> CommitWatch {
    store.watch_commits().expect("this store tells")
}

fn rest(watch: &mut CommitWatch) -> Vec<SessionCommit> {
    std::iter::from_fn(|| watch.try_next()).collect()
}

#[test]
fn each_change_of_a_session_is_told_once_and_in_order() {
    let store = ChatStore::new(&in_memory());
    block_on(async {
        store.save(&chat("early", &[])).await.unwrap();
        let mut first = watch(&store);
        assert!(first.try_next().is_none(), "what was before is not told");
        store.save(&chat("a", &[])).await.unwrap();
        let mut second = watch(&store.clone());
        store.save_trace_events("b", &[]).await.unwrap();
        store.save_snapshot(&marked("a", "x")).await.unwrap();
        store.delete("a").await.unwrap();
        let seen = rest(&mut first);
        let sessions: Vec<_> =
            seen.iter().map(|commit| (&*commit.session, commit.version.is_some())).collect();
        assert_eq!(sessions, [("a", true), ("b", true), ("a", true), ("a", false)]);
        assert!(seen.windows(2).all(|pair| pair[0].lsn < pair[1].lsn));
        let versions: Vec<_> = seen.iter().filter_map(|commit| commit.version).collect();
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(seen.iter().all(|commit| commit.skipped == 0));
        assert_eq!(rest(&mut second), seen[1..]);
        assert_eq!((rest(&mut first), rest(&mut second)), (vec![], vec![]));
    });
}

#[test]
fn the_digest_of_a_commit_is_that_of_its_snapshot() {
    let store = ChatStore::new(&in_memory());
    block_on(async {
        let mut watch = watch(&store);
        store.save_snapshot(&marked("a", "x")).await.unwrap();
        let told = watch.next_commit().await.unwrap().digest().unwrap();
        assert_eq!(store.load_snapshot("a").await.unwrap().unwrap().digest, told);
        assert!(store.save_snapshot_cas(&marked("a", "y"), Some(&told)).await.unwrap());
        let now = watch.next_commit().await.unwrap().digest();
        assert_ne!(now.as_deref(), Some(&*told));
        store.delete("a").await.unwrap();
        assert_eq!(watch.next_commit().await.unwrap().digest(), None);
    });
}

#[test]
fn what_changes_no_session_is_not_told() {
    let store = ChatStore::new(&in_memory());
    block_on(async {
        store.save(&chat("a", &[])).await.unwrap();
        let mut watch = watch(&store);
        store.load("a").await.unwrap();
        store.load_snapshot("a").await.unwrap();
        store.delete("missing").await.unwrap();
        store.save_loop_checkpoint("a", &json!(1)).await.unwrap();
        store.health_check().await.unwrap();
        assert!(!store.save_snapshot_cas(&marked("a", "x"), Some("0")).await.unwrap());
        let lease = store.acquire_writer_lease("a", "x", Duration::MAX).await.unwrap();
        store.save(&chat("a", &[])).await.unwrap_err();
        assert_eq!(rest(&mut watch), []);
        store.through(&lease).save(&chat("a", &[])).await.unwrap();
        assert_eq!(rest(&mut watch).len(), 1);
    });
}

#[test]
fn who_looks_too_late_skips_the_oldest_and_learns_how_many() {
    let store = ChatStore::new(&in_memory());
    block_on(async {
        let mut watch = watch(&store);
        for number in 0..300 {
            store.save(&chat(&format!("{number}"), &[])).await.unwrap();
        }
        let first = watch.next_commit().await.unwrap();
        assert_eq!((&*first.session, first.skipped), ("44", 44));
        let others = rest(&mut watch);
        assert_eq!(others.len(), 255);
        assert!(others.iter().all(|commit| commit.skipped == 0));
        assert_eq!(others.last().unwrap().session, "299");
    });
}

#[test]
fn a_watcher_is_woken_and_ends_with_the_store() {
    let store = ChatStore::new(&in_memory());
    let mut watch = watch(&store);
    assert!(poll_once(&mut watch.next_commit()).is_pending());
    thread::scope(|scope| {
        let watching = scope.spawn(move || {
            let mut seen = Vec::new();
            while let Some(commit) = block_on(watch.next_commit()) {
                seen.push(commit.session);
            }
            assert!(block_on(watch.next_commit()).is_none());
            seen
        });
        let clone = store.clone();
        for number in 0..50 {
            block_on(clone.save(&chat(&format!("{number}"), &[]))).unwrap();
        }
        drop(clone);
        block_on(store.save(&chat("last", &[]))).unwrap();
        drop(store);
        let seen = watching.join().unwrap();
        assert_eq!((seen.len(), &*seen[50]), (51, "last"));
    });
}

#[test]
fn a_watcher_whose_waker_panics_costs_neither_the_call_nor_another_watcher() {
    let store = ChatStore::new(&in_memory());
    let (mut one, mut other) = (watch(&store), watch(&store));
    let (panics, tells, told) = wakers();
    for (watch, waker) in [(&mut one, &panics), (&mut other, &tells)] {
        let mut next = watch.next_commit();
        assert!(Pin::new(&mut next).poll(&mut Context::from_waker(waker)).is_pending());
    }
    block_on(store.save(&chat("a", &[]))).unwrap();
    told.recv_timeout(NEVER).expect("the other watcher is woken");
    assert_eq!((rest(&mut one).len(), rest(&mut other).len()), (1, 1));
}

/// A waker of which it is known how many there are.
struct Counted(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl std::task::Wake for Counted {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_watcher_that_is_polled_again_and_again_keeps_one_waker_and_none_once_it_is_gone() {
    let store = ChatStore::new(&in_memory());
    let (mut watch, count) = (watch(&store), Arc::new(()));
    for _ in 0..1000 {
        let waker = Arc::new(Counted(Arc::clone(&count))).into();
        let mut next = watch.next_commit();
        assert!(Pin::new(&mut next).poll(&mut Context::from_waker(&waker)).is_pending());
    }
    assert_eq!(Arc::strong_count(&count), 2, "one besides this");
    drop(watch);
    assert_eq!(Arc::strong_count(&count), 1);
    block_on(store.save(&chat("a", &[]))).unwrap();
}
