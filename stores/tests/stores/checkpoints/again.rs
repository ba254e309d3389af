//! Calls that are repeated, values that could not be read back, and what answers rest on.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use runlog::env::{Clock, Environment};
use runlog::storage::MemoryStorage;
use runlog::{Error, NewRecord, Timestamp};
use runlog_sim::{SimDisk, SplitMix64, Survivors};
use runlog_stores::checkpoints::SessionLog;

use super::*;
use crate::support::open_after;

fn deep(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!([inner]))
}

#[test]
fn the_same_checkpoint_again_is_the_same_in_whatever_order_its_map_comes() {
    let mut random = SplitMix64::new(7);
    let store = Checkpointer::<HashMap<String, f64>>::new(&in_memory());
    let key = key("t");
    for step in 0..200 {
        let mut number = || f64::from_bits(random.next_u64());
        let numbers: Vec<(String, f64)> =
            (0..20).map(|place| (format!("key {place}"), number())).collect();
        let mut numbers: Vec<_> = numbers.into_iter().filter(|(_, it)| it.is_finite()).collect();
        let put = store.checkpoint(&key, step, numbers.iter().cloned().collect(), None).unwrap();
        store.put(&put).unwrap();
        numbers.reverse();
        let mut again = put.clone();
        again.state = numbers.into_iter().collect();
        store.put(&again).unwrap();
        let read = store.get_latest(&key).unwrap().unwrap();
        assert_eq!(read.state, put.state, "step {step}");
        store.put(&read).unwrap();
    }
    assert_eq!(store.list_history(&key, 999).unwrap().len(), 200);
}

#[test]
fn a_state_that_could_not_be_read_back_is_refused_and_the_thread_stays_readable() {
    let log = in_memory();
    let (store, key) = (Store::new(&log), key("t"));
    store.put(&checkpoint(&key, 1)).unwrap();
    let nested = |number, levels| {
        let mut nested = checkpoint(&key, number);
        nested.state = deep(levels);
        nested
    };
    let refused = store.put(&nested(2, 200)).unwrap_err();
    assert!(matches!(refused, CheckpointError::Store(Error::Json { .. })), "{refused:?}");
    assert!(store.update_state(&key, &id(1), deep(200)).is_err());
    store.put(&nested(3, 120)).unwrap();
    assert_eq!(store.get_latest(&key).unwrap().unwrap().step, 3);
    let numbers = Checkpointer::<Vec<f64>>::named(&log, "numbers");
    for none in [f64::NAN, f64::INFINITY] {
        let put = numbers.checkpoint(&key, 0, vec![1.5, none], None).unwrap();
        assert!(numbers.put(&put).is_err());
    }
    assert!(numbers.get_latest(&key).unwrap().is_none());
    let events = SessionLog::<Value>::new(&log);
    assert!(events.append(&key, &[json!(1), deep(200)]).is_err());
    assert_eq!(events.append(&key, &[json!(1), deep(120)]).unwrap(), 2);
    assert_eq!(events.load_since(&key, 0).unwrap().len(), 2);
}

#[test]
fn what_an_answer_rests_on_survives_a_power_cut() {
    type Ask = fn(&RunLog);
    let asks: [Ask; 6] = [
        |log| Store::new(log).put(&checkpoint(&key("t"), 1)).unwrap(),
        |log| {
            let mut other = checkpoint(&key("t"), 1);
            other.step = 99;
            let refused = Store::new(log).put(&other).unwrap_err();
            assert!(matches!(refused, CheckpointError::Exists { .. }));
        },
        |log| assert!(!Store::new(log).delete_thread(&key("missing")).unwrap()),
        |log| assert_eq!(SessionLog::<Value>::new(log).append(&key("t"), &[]).unwrap(), 2),
        |log| assert_eq!(SessionLog::<Value>::new(log).archive_before(&key("t"), 1).unwrap(), 0),
        |log| assert_eq!(SessionLog::<Value>::new(log).archive_before(&key("u"), 9).unwrap(), 0),
    ];
    for (number, ask) in asks.into_iter().enumerate() {
        let disk = SimDisk::new();
        let storage = Arc::new(disk.clone());
        let log = options().sync_interval(None).create_storage(storage).unwrap();
        Store::new(&log).put(&checkpoint(&key("t"), 1)).unwrap();
        let events = SessionLog::<Value>::new(&log);
        events.append(&key("t"), &[json!(1), json!(2)]).unwrap();
        assert_eq!(events.archive_before(&key("t"), 1).unwrap(), 1);
        // As another call leaves it that waits for its sync.
        log.docs().put("another", "call", &NewRecord::new(b"waits")).unwrap();
        ask(&log);
        let image = disk.crash(Survivors::Nothing, 0);
        let (_, log) = open_after(image);
        assert!(log.docs().get("another", "call").unwrap().is_some(), "answer {number}");
    }
}

#[test]
fn an_archiving_that_was_broken_off_goes_on_when_it_is_repeated() {
    let disk = SimDisk::new();
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let (events, key) = (SessionLog::<Value>::new(&log), key("t"));
    for number in 0..40 {
        events.append(&key, &[json!("x".repeat(number))]).unwrap();
    }
    let count = |log: &RunLog| log.docs().list("\0session-log/7/default/1", "", None, 999).unwrap();
    let before = count(&log).documents.len();
    // The head is written, and then the disk is full.
    disk.fill_from(disk.op_count() + 3);
    let _ = events.archive_before(&key, 30);
    disk.fill_from(usize::MAX);
    let _ = events.archive_before(&key, 30).unwrap();
    assert!(before == 40 && count(&log).documents.len() == 10, "{}", count(&log).documents.len());
    assert_eq!(events.load_since(&key, 30).unwrap().len(), 10);
}

#[test]
fn a_copy_beside_puts_is_of_one_moment_and_what_is_put_on_it_hides_nothing() {
    let log = in_memory();
    let (store, from) = (Store::new(&log), key("from"));
    store.put(&checkpoint(&from, 0)).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let put = store.checkpoint(&from, step, json!(step), None).unwrap();
                store.put(&put).unwrap();
                if step % 400 == 0 {
                    store.prune(&from, Some(5), None).unwrap();
                }
            }
        });
        for copy in 0..20 {
            let to = key(&format!("copy {copy}"));
            store.copy_thread(&from, &to).unwrap();
            let known = store.list_history(&to, 9999).unwrap();
            let latest = store.get_latest(&to).unwrap().unwrap();
            assert_eq!(known[0].id, latest.id, "copy {copy}");
            let put = store.checkpoint(&to, 0, json!("new"), None).unwrap();
            store.put(&put).unwrap();
            let now = store.list_history(&to, 9999).unwrap();
            assert_eq!(now[0].id, put.id);
            assert!(now[1..] == known[..], "copy {copy}");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// A clock that does something once, when it is asked for the time: between two steps of a call.
#[derive(Default)]
struct Interrupting {
    asked: AtomicUsize,
    act: Mutex<Option<(usize, Act)>>,
}

type Act = Box<dyn FnOnce() + Send>;

impl Interrupting {
    fn after(&self, questions: usize, act: impl FnOnce() + Send + 'static) {
        let at = self.asked.load(Ordering::SeqCst) + questions;
        *self.act.lock().unwrap() = Some((at, Box::new(act)));
    }
}

impl std::fmt::Debug for Interrupting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupting").finish_non_exhaustive()
    }
}

impl Clock for Interrupting {
    fn now(&self) -> Timestamp {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        let mut act = self.act.lock().unwrap();
        let is_now = act.as_ref().is_some_and(|(at, _)| *at == asked);
        let now = if is_now { act.take() } else { None };
        drop(act);
        if let Some((_, act)) = now {
            act();
        }
        Timestamp(1_000_000 * i64::try_from(asked).unwrap())
    }
}

#[test]
fn a_checkpoint_that_is_put_within_a_pruning_keeps_all_of_its_ancestors() {
    let mut kept = 0;
    for questions in 0.. {
        let clock = Arc::<Interrupting>::default();
        // No segment gets full: sealing one asks for the time under a lock.
        let environment = Environment::system().clock(clock.clone());
        let options = options().extent_size(4 << 20).environment(environment);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let (store, key) = (Arc::new(Store::new(&log)), key("t"));
        let first = store.checkpoint(&key, 0, json!("first"), None).unwrap();
        store.put(&first).unwrap();
        let mut line = vec![first.id];
        for step in 1..100 {
            let state = json!([step, "x".repeat(900)]);
            line.push(store.update_state(&key, &line[step - 1], state).unwrap());
        }
        store.put(&store.checkpoint(&key, 100, json!("last"), None).unwrap()).unwrap();
        clock.after(questions, {
            let (store, key, parent) = (Arc::clone(&store), key.clone(), line[50]);
            move || drop(store.update_state(&key, &parent, json!("branch")))
        });
        let _ = store.prune(&key, Some(1), None).unwrap();
        if clock.act.lock().unwrap().is_some() {
            break;
        }
        let there = store.list_history(&key, usize::MAX).unwrap();
        for one in &there {
            let parent = one.parent_id;
            let is_there = parent.is_none_or(|parent| there.iter().any(|one| one.id == parent));
            assert!(is_there, "{questions}: {:?} of {}", one.id, there.len());
        }
        kept += usize::from(there.len() > 50);
    }
    assert!(kept > 1, "{kept}");
}

/// `put` does not ask whether there is a parent.
#[test]
fn a_checkpoint_whose_parent_is_deleted_by_a_pruning_is_no_damage_to_that() {
    let mut random = SplitMix64::new(44);
    let mut state = || json!((0..30_000).map(|_| random.next_u64()).collect::<Vec<_>>());
    let states: Vec<Value> = (0..4).map(|_| state()).collect();
    for questions in 0.. {
        let clock = Arc::<Interrupting>::default();
        let environment = Environment::system().clock(clock.clone());
        let options = options().extent_size(8 << 20).environment(environment);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let (store, key) = (Arc::new(Store::new(&log)), key("t"));
        let mut ids = Vec::new();
        for (step, state) in states.iter().enumerate() {
            let put = store.checkpoint(&key, step, state.clone(), None).unwrap();
            store.put(&put).unwrap();
            ids.push(put.id);
        }
        let late = store.checkpoint(&key, 9, json!("late"), None).unwrap();
        let late = late.with_parent(ids[states.len() - 2]);
        clock.after(questions, {
            let (store, late) = (Arc::clone(&store), late.clone());
            move || store.put(&late).unwrap()
        });
        let pruned = store.prune(&key, Some(1), None);
        assert!(pruned.is_ok(), "{questions}: {pruned:?}");
        if clock.act.lock().unwrap().is_some() {
            assert!(questions > 9, "{questions}");
            break;
        }
        assert_eq!(store.get_by_id(&key, &late.id).unwrap().as_ref(), Some(&late));
    }
}

#[test]
fn a_pruning_beside_one_who_always_puts_ends_and_takes_nothing_that_is_needed() {
    let log = in_memory();
    let (store, key) = (Store::new(&log), key("t"));
    let state = |step: usize| json!(["x".repeat(3000), step, "y".repeat(3000), step / 7]);
    let first = store.checkpoint(&key, 0, state(0), None).unwrap();
    store.put(&first).unwrap();
    for step in 1..600 {
        store.put(&store.checkpoint(&key, step, state(step), None).unwrap()).unwrap();
    }
    let (is_over, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let (mut put, mut last) = (Vec::new(), None);
            while !is_over.load(Ordering::Relaxed) {
                let step = 600 + put.len();
                let new = store.checkpoint(&key, step, state(step % 30), None).unwrap();
                store.put(&new).unwrap();
                put.push(new.id);
                // A branch, of one that may be going.
                last = match store.update_state(&key, &last.unwrap_or(first.id), state(step)) {
                    Ok(branch) => {
                        put.push(branch);
                        Some(branch)
                    }
                    Err(CheckpointError::UnknownParent { .. }) => Some(new.id),
                    Err(error) => panic!("{error}"),
                };
                has_begun.store(true, Ordering::Relaxed);
            }
            put
        });
        while !has_begun.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let pruned = store.prune(&key, Some(1), None).unwrap();
        is_over.store(true, Ordering::Relaxed);
        let put = writer.join().unwrap();
        assert!(pruned.checkpoints >= 500, "{pruned:?}, {} put", put.len());
        let there = store.list_history(&key, usize::MAX).unwrap();
        let newest: Vec<_> = there.iter().map(|one| one.id).collect();
        let lasting = put.iter().rev().take_while(|id| newest.contains(id)).count();
        assert!(lasting + there.len() > 1, "{pruned:?}");
        // What was put once the pruning had read the thread is there, each with its parents.
        for one in &there {
            assert_eq!(store.get_by_id(&key, &one.id).unwrap().as_ref(), Some(one));
            if let Some(parent) = one.parent_id {
                assert!(newest.contains(&parent), "{:?} has no parent", one.id);
            }
        }
    });
}
