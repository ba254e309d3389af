//! Writer leases: who has one writes alone, and who had one before does not write any more,
//! whatever clocks say.

use std::time::Duration;

use runlog::env::Environment;
use runlog::{Timestamp, Version};
use runlog_sim::SimClock;
use runlog_stores::sessions::WriterLease;

use super::snapshots::marked;
use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const NANOS: i64 = 60_000_000_000;

/// A store with a clock of the test's, new, reopened or killed before each look.
fn in_each_life(test: impl Fn(&dyn Fn() -> ChatStore, &SimClock)) {
    let clock = SimClock::new(Timestamp(1_700_000_000 * 1_000_000_000));
    let environment = Environment::system().clock(Arc::new(clock.clone()));
    support::in_each_life_of(&options().environment(environment), |log| {
        assert_eq!(log().now().0, clock_now(&clock));
        test(&|| ChatStore::new(&log()), &clock);
    });
}

fn acquire(store: &ChatStore, session: &str, holder: &str) -> Result<WriterLease, SessionError> {
    block_on(store.acquire_writer_lease(session, holder, MINUTE))
}

#[test]
fn a_lease_is_had_by_one_until_it_runs_out_or_is_given_back() {
    in_each_life(|store, clock| {
        assert_eq!(block_on(store().writer_lease("s")).unwrap(), None);
        let first = acquire(&store(), "s", "a").unwrap();
        assert_eq!((&*first.session, &*first.holder), ("s", "a"));
        assert_eq!(first.until.0, clock_now(clock) + NANOS);
        let error = acquire(&store(), "s", "b").unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("\"a\" has the writer lease of \"s\" until"), "{text}");
        let SessionError::LeaseHeld { holder, until, .. } = error else { panic!("{error:?}") };
        assert_eq!((&*holder, until), ("a", first.until));
        assert_eq!(block_on(store().writer_lease("s")).unwrap(), Some(first.clone()));
        acquire(&store(), "another", "b").unwrap();
        clock.advance(NANOS);
        assert_eq!(block_on(store().writer_lease("s")).unwrap(), None);
        let second = acquire(&store(), "s", "b").unwrap();
        assert!(second.epoch > first.epoch);
        assert!(!block_on(store().release_writer_lease(&first)).unwrap());
        assert!(block_on(store().release_writer_lease(&second)).unwrap());
        assert!(!block_on(store().release_writer_lease(&second)).unwrap());
        let third = acquire(&store(), "s", "a").unwrap();
        assert!(third.epoch > second.epoch);
    });
}

fn clock_now(clock: &SimClock) -> i64 {
    runlog::env::Clock::now(clock).0
}

#[test]
fn only_the_holder_of_a_lease_writes_its_session() {
    in_each_life(|store, clock| {
        block_on(store().save(&chat("s", &["before"]))).unwrap();
        let lease = acquire(&store(), "s", "a").unwrap();
        let held = |error| matches!(error, SessionError::LeaseHeld { .. });
        assert!(held(block_on(store().save(&chat("s", &["no"]))).unwrap_err()));
        assert!(held(block_on(store().save_trace_events("s", &[])).unwrap_err()));
        assert!(held(block_on(store().save_snapshot(&marked("s", "no"))).unwrap_err()));
        assert!(held(block_on(store().delete("s")).unwrap_err()));
        assert_eq!(block_on(store().load("s")).unwrap(), Some(chat("s", &["before"])));
        block_on(store().save(&chat("t", &["another"]))).unwrap();
        block_on(store().through(&lease).save(&chat("s", &["mine"]))).unwrap();
        assert_eq!(block_on(store().load("s")).unwrap(), Some(chat("s", &["mine"])));
        let other = block_on(store().through(&lease).save(&chat("t", &["no"]))).unwrap_err();
        assert!(matches!(other, SessionError::OtherSession { .. }), "{other}");
        let other = block_on(store().through(&lease).delete("t")).unwrap_err();
        assert!(matches!(other, SessionError::OtherSession { .. }), "{other}");
        assert_eq!(block_on(store().load("t")).unwrap(), Some(chat("t", &["another"])));
        // No caller took it: neither time nor a clock that jumps back ends it.
        clock.advance(5 * NANOS);
        block_on(store().through(&lease).save(&chat("s", &["late"]))).unwrap();
        clock.advance(-50 * NANOS);
        block_on(store().through(&lease).save(&chat("s", &["early"]))).unwrap();
        assert!(block_on(store().release_writer_lease(&lease)).unwrap());
        block_on(store().save(&chat("s", &["free"]))).unwrap();
        let error = block_on(store().through(&lease).save(&chat("s", &["no"]))).unwrap_err();
        assert!(matches!(error, SessionError::Fenced { found: None, .. }), "{error}");
    });
}

/// Every write that a store has, through a lease that is over.
fn all_are_fenced(store: &ChatStore, lease: &WriterLease, wanted: Option<u64>) {
    let stale = store.through(lease);
    let refused = |result: Result<(), SessionError>| {
        let error = result.unwrap_err();
        let SessionError::Fenced { session, epoch, found } = &error else { panic!("{error}") };
        assert_eq!((&**session, *epoch, *found), ("s", lease.epoch, wanted));
    };
    block_on(async {
        refused(stale.save(&chat("s", &["stale"])).await);
        refused(stale.save_artifacts("s", &json!(1)).await);
        refused(stale.save_trace_events("s", &[]).await);
        refused(stale.save_run_records("s", &[]).await);
        refused(stale.save_verification_reports("s", &[]).await);
        refused(stale.save_subagent_tasks("s", &[]).await);
        refused(stale.save_snapshot(&marked("s", "stale")).await);
        refused(stale.save_snapshot_cas(&marked("s", "stale"), None).await.map(|_| ()));
        refused(stale.delete("s").await);
        refused(stale.save_loop_checkpoint("r", &json!(1)).await);
        refused(stale.delete_loop_checkpoint("r").await);
        refused(stale.renew_writer_lease(lease, MINUTE).await.map(|_| ()));
    });
}

#[test]
fn every_write_of_a_holder_whose_lease_was_taken_is_refused() {
    in_each_life(|store, clock| {
        let stale = acquire(&store(), "s", "a").unwrap();
        clock.advance(NANOS);
        let lease = acquire(&store(), "s", "b").unwrap();
        block_on(store().through(&lease).save_snapshot(&marked("s", "b"))).unwrap();
        block_on(store().through(&lease).save_loop_checkpoint("r", &json!(7))).unwrap();
        all_are_fenced(&store(), &stale, Some(lease.epoch));
        let digest = block_on(store().load_snapshot("s")).unwrap().unwrap().digest;
        let swap = store();
        let swapped = swap.through(&lease);
        let snapshot = marked("s", "b again");
        assert!(block_on(swapped.save_snapshot_cas(&snapshot, Some(&digest))).unwrap());
        assert!(!block_on(swapped.save_snapshot_cas(&snapshot, Some(&digest))).unwrap());
        assert_eq!(block_on(store().load_loop_checkpoint("r")).unwrap(), Some(json!(7)));
        // The lease goes with its session, which does not make its epochs begin anew.
        block_on(store().through(&lease).delete("s")).unwrap();
        assert!(!block_on(store().release_writer_lease(&lease)).unwrap());
        let again = acquire(&store(), "s", "c").unwrap();
        assert!(again.epoch > lease.epoch);
        all_are_fenced(&store(), &stale, Some(again.epoch));
        all_are_fenced(&store(), &lease, Some(again.epoch));
    });
}

#[test]
fn a_holder_that_comes_back_under_its_name_fences_off_what_it_was() {
    in_each_life(|store, _| {
        let before = acquire(&store(), "s", "a").unwrap();
        let after = acquire(&store(), "s", "a").unwrap();
        assert!(after.epoch > before.epoch);
        all_are_fenced(&store(), &before, Some(after.epoch));
        block_on(store().through(&after).save(&chat("s", &[]))).unwrap();
    });
}

#[test]
fn whoever_writes_after_a_lease_ran_out_ends_it() {
    in_each_life(|store, clock| {
        let lease = acquire(&store(), "s", "a").unwrap();
        block_on(store().through(&lease).save(&chat("s", &["a"]))).unwrap();
        clock.advance(NANOS);
        block_on(store().save(&chat("s", &["somebody"]))).unwrap();
        all_are_fenced(&store(), &lease, None);
        assert_eq!(block_on(store().load("s")).unwrap(), Some(chat("s", &["somebody"])));
    });
}

#[test]
fn a_lease_that_is_renewed_stays_the_same_and_lasts_longer() {
    in_each_life(|store, clock| {
        let lease = acquire(&store(), "s", "a").unwrap();
        clock.advance(NANOS / 2);
        let longer = block_on(store().renew_writer_lease(&lease, MINUTE)).unwrap();
        assert_eq!(longer.until.0, lease.until.0 + NANOS / 2);
        assert_eq!((longer.epoch, &longer.holder), (lease.epoch, &lease.holder));
        clock.advance(NANOS / 2);
        assert!(acquire(&store(), "s", "b").is_err());
        block_on(store().through(&lease).save(&chat("s", &["a"]))).unwrap();
        block_on(store().through(&longer).save(&chat("s", &["b"]))).unwrap();
        // Late, but no other caller came.
        clock.advance(10 * NANOS);
        let longer = block_on(store().renew_writer_lease(&longer, Duration::MAX)).unwrap();
        assert_eq!((longer.epoch, longer.until), (lease.epoch, Timestamp(i64::MAX)));
        clock.advance(1000 * NANOS);
        assert!(acquire(&store(), "s", "b").is_err());
        assert!(block_on(store().release_writer_lease(&lease)).unwrap());
    });
}

#[test]
fn a_write_with_a_lease_looks_at_the_lease_and_leaves_it_as_it_is() {
    let log = in_memory();
    let store = ChatStore::new(&log);
    let version = || log.docs().get("\0sessions/default/lease", "s").unwrap().unwrap().version();
    let lease = acquire(&store, "s", "a").unwrap();
    let granted = version();
    assert_eq!(lease.epoch, granted.0);
    for turn in 0..3 {
        let own = store.through(&lease);
        block_on(own.save_snapshot(&marked("s", &turn.to_string()))).unwrap();
        block_on(own.save_loop_checkpoint("run", &json!(turn))).unwrap();
        block_on(own.delete_loop_checkpoint("run")).unwrap();
        assert_eq!(version(), granted, "it was not written again");
    }
    let other = acquire(&store, "s", "a").unwrap();
    assert!(other.epoch > lease.epoch);
    all_are_fenced(&store, &lease, Some(other.epoch));
}

#[test]
fn a_digest_outlives_what_happens_to_leases() {
    in_each_life(|store, _| {
        block_on(store().save_snapshot(&marked("s", "a"))).unwrap();
        let digest = block_on(store().load_snapshot("s")).unwrap().unwrap().digest;
        let lease = acquire(&store(), "s", "a").unwrap();
        let lease = block_on(store().renew_writer_lease(&lease, MINUTE)).unwrap();
        let swapped = store().through(&lease);
        assert!(block_on(swapped.save_snapshot_cas(&marked("s", "b"), Some(&digest))).unwrap());
    });
}

#[test]
fn of_8_threads_that_take_turns_each_has_the_lease_alone() {
    let log = in_memory();
    let shared = ChatStore::new(&log);
    thread::scope(|scope| {
        for number in 0..8 {
            let store = if number % 2 == 0 { shared.clone() } else { ChatStore::new(&log) };
            scope.spawn(move || {
                for _ in 0..5 {
                    let name = format!("thread {number}");
                    let lease = loop {
                        match acquire(&store, "s", &name) {
                            Ok(lease) => break lease,
                            Err(SessionError::LeaseHeld { .. }) => thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    let own = store.through(&lease);
                    let lines = block_on(own.load("s")).unwrap().map(|chat| chat.messages);
                    let mut lines = lines.unwrap_or_default();
                    lines.push(name);
                    block_on(own.save(&Chat { id: "s".into(), messages: lines })).unwrap();
                    assert!(block_on(store.release_writer_lease(&lease)).unwrap());
                }
            });
        }
    });
    let lines = block_on(shared.load("s")).unwrap().unwrap().messages;
    assert_eq!(lines.len(), 40, "no line was lost");
    assert!(log.docs().get("\0sessions/default/lease", "s").unwrap().is_none());
    let head = log.docs().get("\0sessions/default/head", "s").unwrap().unwrap();
    assert!(head.version() > Version(0));
}

#[test]
fn what_a_refusal_rests_on_survives_a_power_cut() {
    type Ask = fn(&ChatStore, &WriterLease);
    let asks: [Ask; 6] = [
        |store, _| assert!(acquire(store, "s", "third").is_err()),
        |store, _| assert!(block_on(store.save(&chat("s", &["no"]))).is_err()),
        |store, old| assert!(block_on(store.renew_writer_lease(old, MINUTE)).is_err()),
        |store, old| assert!(!block_on(store.release_writer_lease(old)).unwrap()),
        |store, old| {
            let fenced = store.clone().through(old);
            assert!(block_on(fenced.save(&chat("s", &["no"]))).is_err());
        },
        |store, _| {
            let snapshot = marked("t", "no");
            assert!(!block_on(store.save_snapshot_cas(&snapshot, None)).unwrap());
        },
    ];
    for (number, ask) in asks.into_iter().enumerate() {
        let disk = runlog_sim::SimDisk::new();
        let storage = Arc::new(disk.clone());
        let log = options().sync_interval(None).create_storage(storage).unwrap();
        let store = ChatStore::new(&log);
        block_on(store.save(&chat("t", &["there"]))).unwrap();
        let old = acquire(&store, "s", "first").unwrap();
        assert!(block_on(store.release_writer_lease(&old)).unwrap());
        acquire(&store, "s", "second").unwrap();
        // As another call leaves it that waits for its sync.
        log.docs().put("another", "call", &NewRecord::new(b"waits")).unwrap();
        ask(&store, &old);
        let image = disk.crash(runlog_sim::Survivors::Nothing, 0);
        let (_, log) = support::open_after(image);
        assert!(log.docs().get("another", "call").unwrap().is_some(), "answer {number}");
    }
}

#[test]
fn the_loop_checkpoint_of_a_leased_session_is_written_through_its_lease_only() {
    let clock = SimClock::new(Timestamp(1_700_000_000 * 1_000_000_000));
    let environment = Environment::system().clock(Arc::new(clock.clone()));
    let storage = Arc::new(runlog::storage::MemoryStorage::new());
    let log = options().environment(environment).create_storage(storage).unwrap();
    let store: EngineSessionStore = EngineSessionStore::new(&log);
    let checkpoint = json!({ "session_id": "s", "turn": 3 });
    let acquired = |holder| block_on(store.acquire_writer_lease("s", holder, MINUTE)).unwrap();
    let first = acquired("a");
    let save = |store: &EngineSessionStore| block_on(store.save_loop_checkpoint("r", &checkpoint));
    let delete = |store: &EngineSessionStore| block_on(store.delete_loop_checkpoint("r"));
    assert!(matches!(save(&store), Err(SessionError::LeaseHeld { .. })));
    save(&store.through(&first)).unwrap();
    assert!(matches!(delete(&store), Err(SessionError::LeaseHeld { .. })));
    clock.advance(NANOS);
    let second = acquired("b");
    assert!(matches!(save(&store.through(&first)), Err(SessionError::Fenced { .. })));
    assert!(matches!(delete(&store.through(&first)), Err(SessionError::Fenced { .. })));
    let of_another = json!({ "session_id": "t" });
    let refused = block_on(store.through(&second).save_loop_checkpoint("q", &of_another));
    assert!(matches!(refused, Err(SessionError::OtherSession { .. })));
    delete(&store.through(&second)).unwrap();
    assert!(block_on(store.release_writer_lease(&second)).unwrap());
    save(&store).unwrap();
    assert_eq!(block_on(store.load_loop_checkpoint("r")).unwrap(), Some(checkpoint.clone()));
}

#[test]
fn a_session_takes_the_lease_with_it_through_which_it_is_deleted() {
    let log = in_memory();
    let store = ChatStore::new(&log);
    block_on(async {
        for number in 0..40 {
            let id = format!("s-{number}");
            let lease = store.acquire_writer_lease(&id, "me", 60 * MINUTE).await.unwrap();
            let own = store.through(&lease);
            own.save(&chat(&id, &[])).await.unwrap();
            // Again after any answer: nothing is left to do.
            for _ in 0..2 {
                own.delete(&id).await.unwrap();
            }
            assert!(store.writer_lease(&id).await.unwrap().is_none());
            let late = own.save(&chat(&id, &["late"])).await.unwrap_err();
            assert!(matches!(late, SessionError::Fenced { found: None, .. }), "{late}");
            assert!(!store.exists(&id).await.unwrap());
            store.save(&chat(&id, &["new"])).await.unwrap();
            let late = own.delete(&id).await.unwrap_err();
            assert!(matches!(late, SessionError::Fenced { found: None, .. }), "{late}");
            store.delete(&id).await.unwrap();
        }
    });
    let left = log.docs().list("\0sessions/default/lease", "", None, 9).unwrap();
    assert!(left.documents.is_empty(), "{left:?}");
}
