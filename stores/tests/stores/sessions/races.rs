//! Concurrent calls: a load during which another caller writes, saves at the same time, and calls
//! that are dropped half-way, each also with a crash in the midst of it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};

use runlog::Timestamp;
use runlog::env::{Clock, Environment};
use runlog::storage::MemoryStorage;
use runlog_sim::SplitMix64;
use runlog_stores::sessions::Call;

use super::snapshots::{mark_of, marked};
use super::*;
use crate::support::haunted::{Ask, Haunted};
use crate::support::{Crash, in_crashes, open_after, recording};

/// The caller that saved the session; `None` if there is no session.
fn found(store: &ChatStore) -> Option<String> {
    block_on(store.load_snapshot("s")).unwrap().map(|loaded| mark_of(&loaded.snapshot))
}

#[test]
fn a_snapshot_in_the_midst_of_which_somebody_writes_is_that_of_one_moment() {
    let reads = {
        let (disk, log) = Haunted::new(options());
        let store = ChatStore::new(&log);
        block_on(store.save_snapshot(&marked("s", "before"))).unwrap();
        disk.counted(Ask::Read, || assert!(found(&store).is_some()))
    };
    assert!(reads >= 6, "six parts: {reads}");
    for deletes in [false, true] {
        let mut seen = BTreeSet::new();
        // In front of the first read the version of the head was looked at.
        for number in 0..reads {
            let (disk, log) = Haunted::new(options());
            let (store, other) = (ChatStore::new(&log), ChatStore::new(&log));
            block_on(store.save_snapshot(&marked("s", "before"))).unwrap();
            disk.before(Ask::Read, number, move || {
                block_on(async {
                    if deletes {
                        other.delete("s").await.unwrap();
                    } else {
                        other.save_snapshot(&marked("s", "after")).await.unwrap();
                    }
                });
            });
            // The parts must agree on who saved them.
            seen.insert(found(&store));
            assert!(disk.is_over(), "read {number} came");
        }
        let after = (!deletes).then(|| "after".to_owned());
        assert_eq!(seen, BTreeSet::from([after]));
    }
}

#[test]
fn a_call_that_is_dropped_in_front_of_any_operation_is_done_and_a_crash_there_leaves_all_or_none() {
    let changes = {
        let (disk, log) = Haunted::new(options());
        let store = ChatStore::new(&log);
        block_on(store.save_snapshot(&marked("s", "before"))).unwrap();
        let after = marked("s", "after");
        disk.counted(Ask::Change, || block_on(store.save_snapshot(&after)).unwrap())
    };
    assert!(changes >= 2, "a write and a sync: {changes}");
    for number in 0..changes {
        let (disk, log) = Haunted::new(options());
        let store = ChatStore::new(&log);
        block_on(store.save_snapshot(&marked("s", "before"))).unwrap();
        let ((came, has_come), (go, may_go)) = (mpsc::channel(), mpsc::channel());
        disk.before(Ask::Change, number, move || {
            came.send(()).unwrap();
            may_go.recv().unwrap();
        });
        let after = marked("s", "after");
        let mut call = store.save_snapshot(&after);
        assert!(poll_once(&mut call).is_pending());
        has_come.recv().unwrap();
        drop(call);
        for crash in Crash::all() {
            let image = match crash {
                Crash::PowerCut(survivors) => disk.disk.crash(survivors, number as u64),
                Crash::Kill => disk.disk.image(),
            };
            let (_, log) = open_after(image);
            let left = found(&ChatStore::new(&log)).unwrap();
            assert!(left == "before" || left == "after", "operation {number}, {crash:?}: {left}");
        }
        go.send(()).unwrap();
        assert_eq!(found(&store).as_deref(), Some("after"), "what was begun is done");
    }
}

#[test]
fn of_calls_that_are_dropped_at_random_a_crash_at_any_operation_leaves_all_or_nothing() {
    let seed = 0xd0_0b;
    println!("seed {seed:#x}");
    let mut random = SplitMix64::new(seed);
    let (disk, log) = recording();
    let store = ChatStore::new(&log);
    block_on(store.save_snapshot(&marked("s", "before"))).unwrap();
    // What was there when so many operations were done.
    let mut states = vec![(disk.op_count(), found(&store))];
    for turn in 0..30 {
        let snapshot = marked("s", &turn.to_string());
        let (mut saving, mut deleting) = (store.save_snapshot(&snapshot), store.delete("s"));
        let call = if turn % 5 == 4 { &mut deleting } else { &mut saving };
        let _ = poll_once(call);
        for _ in 0..random.below(300) * u64::from(random.coin()) {
            thread::yield_now();
        }
        drop((saving, deleting));
        // The thread has done by then what it had begun.
        let found = found(&store);
        states.push((disk.op_count(), found));
    }
    in_crashes(&disk.take_recording(), states[0].0, |log, _, boundary, context| {
        let past = states.iter().rposition(|(at, _)| *at <= boundary).unwrap();
        let left = found(&ChatStore::new(log));
        let possible = &states[past..states.len().min(past + 2)];
        let fits = possible.iter().any(|(_, state)| *state == left);
        assert!(fits, "{context}: {left:?} is not one of {possible:?}");
    });
}

/// A save that was told to be done.
struct Save {
    mark: String,
    /// Its place among the moments at which saves began and ended.
    began: usize,
    ended: usize,
    /// The operations that were done when it ended.
    told: usize,
}

#[test]
fn of_saves_at_the_same_time_a_crash_at_any_operation_leaves_the_last_or_a_later_one_whole() {
    let (disk, log) = recording();
    let first = disk.op_count();
    let (start, moment) = (Barrier::new(4), AtomicUsize::new(0));
    let saves: Vec<Save> = thread::scope(|scope| {
        let saving: Vec<_> = (0..4)
            .map(|thread| {
                let (store, start) = (ChatStore::new(&log), &start);
                let (disk, moment) = (&disk, &moment);
                scope.spawn(move || {
                    start.wait();
                    let save = |turn: usize| {
                        let mark = format!("{thread}.{turn}");
                        let began = moment.fetch_add(1, Ordering::SeqCst);
                        block_on(store.save_snapshot(&marked("s", &mark))).unwrap();
                        let told = disk.op_count();
                        Save { mark, began, ended: moment.fetch_add(1, Ordering::SeqCst), told }
                    };
                    (0..8).map(save).collect::<Vec<_>>()
                })
            })
            .collect();
        saving.into_iter().flat_map(|saving| saving.join().unwrap()).collect()
    });
    in_crashes(&disk.take_recording(), first, |log, _, boundary, context| {
        let store = ChatStore::new(log);
        let mut told = saves.iter().filter(|save| save.told <= boundary);
        let Some(mark) = found(&store) else {
            assert!(told.next().is_none(), "{context}: a save was lost");
            return;
        };
        let left = saves.iter().find(|save| save.mark == mark).unwrap();
        for save in told {
            // They came one after the other, or at the same time.
            let overtook = left.ended < save.began;
            assert!(!overtook, "{context}: {} is there, and {} came later", left.mark, save.mark);
        }
        block_on(store.save_snapshot(&marked("s", "on"))).unwrap();
        assert_eq!(found(&store).as_deref(), Some("on"), "{context}");
    });
}

/// A clock that stands at a time, and does something when it is looked at next.
struct Interrupted {
    now: AtomicI64,
    next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interrupted").finish_non_exhaustive()
    }
}

impl Clock for Interrupted {
    fn now(&self) -> Timestamp {
        let next = self.next.lock().unwrap().take();
        next.into_iter().for_each(|next| next());
        Timestamp(self.now.load(Ordering::SeqCst))
    }
}

#[test]
fn a_lease_that_is_taken_between_the_look_at_it_and_the_write_keeps_each_write_out() {
    type Write = fn(&EngineSessionStore) -> Call<'_, ()>;
    let writes: [Write; 6] = [
        |store| Box::pin(async { store.save(&json!({ "id": "s", "new": 1 })).await }),
        |store| Box::pin(async { store.save_artifacts("s", &json!("new")).await }),
        |store| {
            let checkpoint = json!({ "session_id": "s", "new": 1 });
            Box::pin(async move { store.save_loop_checkpoint("r", &checkpoint).await })
        },
        |store| store.delete_loop_checkpoint("r"),
        |store| {
            let snapshot = SessionSnapshot::new(json!({ "id": "s", "new": 1 }));
            Box::pin(async move { store.save_snapshot(&snapshot).await })
        },
        |store| store.delete("s"),
    ];
    for (write, has_lease) in writes.iter().flat_map(|write| [(write, true), (write, false)]) {
        let clock = Arc::new(Interrupted { now: AtomicI64::new(1), next: Mutex::default() });
        let environment = Environment::system().clock(clock.clone());
        let memory = Arc::new(MemoryStorage::new());
        let log = options().environment(environment).create_storage(memory).unwrap();
        let (store, other) = (EngineSessionStore::new(&log), EngineSessionStore::new(&log));
        let (session, checkpoint) = (json!({ "id": "s" }), json!({ "session_id": "s" }));
        block_on(async {
            let store: &EngineSessionStore = &store;
            store.save(&session).await.unwrap();
            store.save_artifacts("s", &json!("old")).await.unwrap();
            store.save_loop_checkpoint("r", &checkpoint).await.unwrap();
        });
        let ttl = std::time::Duration::from_nanos(5);
        let writer = if has_lease {
            let lease = block_on(store.acquire_writer_lease("s", "first", ttl)).unwrap();
            clock.now.store(100, Ordering::SeqCst);
            store.through(&lease)
        } else {
            store.clone()
        };
        let second: EngineSessionStore = other.clone();
        let taking = move || {
            let taken = block_on(second.acquire_writer_lease("s", "second", ttl));
            assert!(taken.is_ok(), "{taken:?}");
        };
        *clock.next.lock().unwrap() = Some(Box::new(taking));
        let refused = block_on(write(&writer)).unwrap_err();
        assert!(clock.next.lock().unwrap().is_none(), "it was in between");
        let is_fenced = matches!(refused, SessionError::Fenced { .. });
        let is_held = matches!(refused, SessionError::LeaseHeld { .. });
        assert!(if has_lease { is_fenced } else { is_held }, "{refused:?}");
        block_on(async {
            assert_eq!(other.load("s").await.unwrap(), Some(session.clone()));
            assert_eq!(other.load_artifacts("s").await.unwrap(), Some(json!("old")));
            assert_eq!(other.load_loop_checkpoint("r").await.unwrap(), Some(checkpoint.clone()));
        });
    }
}
