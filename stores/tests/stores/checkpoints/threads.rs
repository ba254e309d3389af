//! Whole threads: deleting and copying them, and pruning what is old.

use std::time::Duration;

use super::*;
use crate::support::haunted::{Ask, Haunted};

/// Where the documents of the thread with a number are.
fn space_of(number: u64) -> String {
    format!("\0checkpoints/7/default/{number}")
}

fn steps(store: &Store, key: &ThreadKey) -> Vec<usize> {
    store.list_history(key, 999).unwrap().iter().map(|found| found.step).collect()
}

/// Puts a checkpoint whose state shares nothing with others.
fn put_large(store: &Store, key: &ThreadKey, number: u8, parent: Option<u8>) {
    let mut put = checkpoint(key, number);
    let line = |place: u64| format!("{number} {place} {}", "x".repeat(90));
    put.state = json!((0..30).map(line).collect::<Vec<_>>());
    put.parent_id = parent.map(id);
    store.put(&put).unwrap();
}

#[test]
fn a_deleted_thread_is_gone_and_others_are_not() {
    in_each_life(|log| {
        for thread in ["t", "u"] {
            for number in 1..=3 {
                put_large(&Store::new(&log()), &key(thread), number, None);
            }
        }
        assert!(Store::new(&log()).delete_thread(&key("t")).unwrap());
        assert!(!Store::new(&log()).delete_thread(&key("t")).unwrap());
        assert!(!Store::new(&log()).delete_thread(&key_of("other", "u")).unwrap());
        assert!(documents(&log(), &space_of(1)).is_empty());
        assert!(documents(&log(), "\0checkpoints/7/default/gone").is_empty());
        let store = Store::new(&log());
        assert!(store.get_latest(&key("t")).unwrap().is_none());
        assert!(store.get_by_id(&key("t"), &id(1)).unwrap().is_none());
        assert_eq!(steps(&store, &key("u")), [3, 2, 1]);
        put_large(&Store::new(&log()), &key("t"), 9, None);
        assert_eq!(steps(&Store::new(&log()), &key("t")), [9]);
    });
}

#[test]
fn a_copy_has_all_checkpoints_and_goes_its_own_way() {
    in_each_life(|log| {
        let (from, to) = (key("t"), key_of("other", "copy"));
        for number in 1..=3 {
            put_large(&Store::new(&log()), &from, number, number.checked_sub(1));
        }
        assert_eq!(Store::new(&log()).copy_thread(&from, &to).unwrap(), 3);
        let store = Store::new(&log());
        for (old, new) in store
            .list_history(&from, 9)
            .unwrap()
            .into_iter()
            .zip(store.list_history(&to, 9).unwrap())
        {
            assert_eq!(new.key().unwrap(), to);
            assert_eq!((new.id, new.parent_id, new.step), (old.id, old.parent_id, old.step));
            assert!((new.state, new.timestamp) == (old.state, old.timestamp));
        }
        let again = Store::new(&log()).copy_thread(&from, &to).unwrap_err();
        assert!(matches!(again, CheckpointError::ThreadExists { key } if key == to));
        let unknown = Store::new(&log()).copy_thread(&key("no"), &key("x")).unwrap_err();
        assert!(matches!(unknown, CheckpointError::UnknownThread { .. }));
        put_large(&Store::new(&log()), &to, 4, None);
        Store::new(&log()).delete_thread(&from).unwrap();
        assert_eq!(steps(&Store::new(&log()), &to), [4, 3, 2, 1]);
        assert!(documents(&log(), "\0checkpoints/7/default/copy").is_empty());
    });
}

#[test]
fn a_copy_of_a_long_thread_is_whole() {
    let store = Store::new(&in_memory());
    for step in 0..200 {
        let put = store.checkpoint(&key("t"), step, json!("x".repeat(step * 40)), None).unwrap();
        store.put(&put).unwrap();
    }
    assert_eq!(store.copy_thread(&key("t"), &key("copy")).unwrap(), 200);
    let (old, new) = (store.list_history(&key("t"), 999), store.list_history(&key("copy"), 999));
    let states = |history: Vec<Checkpoint<Value>>| history.into_iter().map(|found| found.state);
    assert!(states(old.unwrap()).eq(states(new.unwrap())));
}

#[test]
fn pruning_keeps_the_newest_and_what_they_need() {
    in_each_life(|log| {
        let key = key("t");
        for number in 1..=6 {
            put_large(&Store::new(&log()), &key, number, None);
        }
        let all = documents(&log(), &space_of(1)).len();
        let pruned = Store::new(&log()).prune(&key, Some(2), None).unwrap();
        assert_eq!(pruned.checkpoints, 4);
        assert!(pruned.parts >= 4 && pruned.part_bytes > 4 * 2000, "{pruned:?}");
        assert_eq!(documents(&log(), &space_of(1)).len(), all - 8 - pruned.parts);
        assert_eq!(steps(&Store::new(&log()), &key), [6, 5]);
        assert!(Store::new(&log()).get_by_id(&key, &id(1)).unwrap().is_none());
        let again = Store::new(&log()).prune(&key, Some(2), None).unwrap();
        assert_eq!((again.checkpoints, again.parts), (0, 0));
        // An id that is gone is free, and what comes is the newest.
        put_large(&Store::new(&log()), &key, 1, None);
        assert_eq!(steps(&Store::new(&log()), &key), [1, 6, 5]);
    });
}

#[test]
fn pruning_keeps_the_ancestors_of_what_it_keeps() {
    let store = Store::new(&in_memory());
    let key = key("t");
    // 2 <- 4 <- 7; 3 <- 5 goes; 6 has a parent that is nowhere.
    let parents = [(1, None), (2, None), (3, None), (4, Some(2)), (5, Some(3)), (6, Some(99))];
    for (number, parent) in parents {
        put_large(&store, &key, number, parent);
    }
    put_large(&store, &key, 7, Some(4));
    assert_eq!(store.prune(&key, Some(2), None).unwrap().checkpoints, 3);
    assert_eq!(steps(&store, &key), [7, 6, 4, 2]);
}

#[test]
fn parents_in_a_circle_are_kept_together() {
    let store = Store::new(&in_memory());
    for (number, parent) in [(1, 3), (2, 1), (3, 2), (4, 4)] {
        put_large(&store, &key("t"), number, Some(parent));
    }
    assert_eq!(store.prune(&key("t"), Some(1), None).unwrap().checkpoints, 3);
    put_large(&store, &key("u"), 1, Some(2));
    put_large(&store, &key("u"), 2, Some(1));
    assert_eq!(store.prune(&key("u"), Some(1), None).unwrap().checkpoints, 0);
}

#[test]
fn pruning_by_age_keeps_the_newest_however_old_it_is() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options_at(second(100)).create_storage(storage).unwrap();
    let store = Store::new(&log);
    for number in [10, 20, 30, 99, 40] {
        put_large(&store, &key("t"), number, None);
    }
    let prune = |newest, age| store.prune(&key("t"), newest, Some(Duration::from_secs(age)));
    assert_eq!(prune(None, 80).unwrap().checkpoints, 1);
    assert_eq!(steps(&store, &key("t")), [40, 99, 30, 20]);
    assert_eq!(prune(Some(3), 75).unwrap().checkpoints, 1);
    assert_eq!(prune(None, 10).unwrap().checkpoints, 1);
    assert_eq!(steps(&store, &key("t")), [40, 99]);
    assert_eq!(store.prune(&key("t"), Some(0), Some(Duration::ZERO)).unwrap().checkpoints, 1);
    assert_eq!(steps(&store, &key("t")), [40]);
    let forever = store.prune(&key("t"), None, Some(Duration::MAX)).unwrap();
    assert_eq!(forever.checkpoints, 0);
    assert_eq!(store.prune(&key("none"), Some(1), None).unwrap().checkpoints, 0);
}

#[test]
fn parts_that_a_kept_checkpoint_shares_with_others_stay() {
    let store = Store::new(&in_memory());
    let key = key("t");
    let mut messages = Vec::new();
    for number in 1..=50_u8 {
        messages.push(json!({ "role": "user", "content": format!("{number} ").repeat(700) }));
        let mut put = checkpoint(&key, number);
        put.state = json!({ "messages": messages });
        store.put(&put).unwrap();
    }
    let branch = store.update_state(&key, &id(25), json!({ "messages": messages[..20] })).unwrap();
    let kept = store.prune(&key, Some(1), None).unwrap();
    assert_eq!(kept.checkpoints, 49, "the branch and its parent stay");
    assert_eq!(steps(&store, &key), [26, 25]);
    let latest = store.get_latest(&key).unwrap().unwrap();
    assert_eq!((latest.id, latest.state), (branch, json!({ "messages": messages[..20] })));
    let parent = store.get_by_id(&key, &id(25)).unwrap().unwrap();
    assert_eq!(parent.state, json!({ "messages": messages[..25] }));
}

#[test]
fn putting_pruning_copying_and_deleting_at_once_never_breaks_a_checkpoint() {
    let log = in_memory();
    std::thread::scope(|scope| {
        for writer in 0..3_u8 {
            let store = Store::new(&log);
            scope.spawn(move || {
                for turn in 0..30_u8 {
                    put_large(&store, &key("t"), writer * 30 + turn, None);
                }
            });
        }
        let store = Store::new(&log);
        scope.spawn(move || {
            for _ in 0..20 {
                store.prune(&key("t"), Some(3), None).unwrap();
            }
        });
        let store = Store::new(&log);
        scope.spawn(move || {
            for turn in 0..10 {
                let copied = store.copy_thread(&key("t"), &key("copy"));
                if let Ok(count) = copied {
                    assert_eq!(store.list_history(&key("copy"), 99).unwrap().len(), count);
                }
                store.delete_thread(&key("copy")).unwrap();
                if turn == 5 {
                    store.delete_thread(&key("t")).unwrap();
                }
            }
        });
        let store = Store::new(&log);
        scope.spawn(move || {
            for _ in 0..100 {
                store.list_history(&key("t"), 5).unwrap();
                store.get_latest(&key("t")).unwrap();
            }
        });
    });
    let store = Store::new(&log);
    put_large(&store, &key("t"), 99, None);
    let left = store.list_history(&key("t"), 999).unwrap();
    assert!(store.copy_thread(&key("t"), &key("copy")).is_ok());
    assert_eq!(store.list_history(&key("copy"), 999).unwrap().len(), left.len());
}

#[test]
fn a_thread_that_is_deleted_while_it_is_listed_counts_as_there_or_gone_and_never_as_a_part() {
    let there = || {
        let (disk, log) = Haunted::new(options());
        let store = Store::new(&log);
        for number in 1..=6 {
            put_large(&store, &key("t"), number, None);
        }
        (disk, log, store)
    };
    // As a deletion is while its sweep is under way: the head is gone, and the oldest of the rest.
    let half_deleted = |log: &RunLog| {
        log.docs().delete("\0checkpoints/7/default/t/default", "t").unwrap();
        let keys = documents(log, &space_of(1)).into_keys().filter(|key| key.starts_with("c/"));
        for key in keys.collect::<Vec<_>>().iter().rev().take(3) {
            log.docs().delete(&space_of(1), key).unwrap();
        }
    };
    let looks: [fn(&Store) -> usize; 2] = [
        |store| store.list_history(&key("t"), 99).unwrap().len(),
        |store| match store.copy_thread(&key("t"), &key("copy")) {
            Ok(copied) => {
                assert_eq!(steps(store, &key("copy")).len(), copied);
                copied
            }
            Err(CheckpointError::UnknownThread { .. }) => 0,
            Err(error) => panic!("{error}"),
        },
    ];
    for look in looks {
        let (disk, _, store) = there();
        let reads = disk.counted(Ask::Read, || assert_eq!(look(&store), 6));
        let mut found = Vec::new();
        for number in 0..reads {
            let (disk, log, store) = there();
            disk.before(Ask::Read, number, move || half_deleted(&log));
            found.push(look(&store));
            assert!(disk.is_over());
        }
        assert!(found.iter().all(|found| [0, 6].contains(found)), "{found:?}");
        assert!(found.contains(&0), "{found:?}");
    }
}
