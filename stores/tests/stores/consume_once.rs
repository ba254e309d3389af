//! What must happen once happens once: among threads, after kills, and after power cuts at every
//! operation of the disk.

use std::sync::{Arc, Barrier};

use runlog::storage::MemoryStorage;
use runlog::{Error, NewRecord, Options, Outcome, RunLog};
use runlog_sim::Recording;
use runlog_stores::consume_once::{
    Begin, Claim, ConsumeError, ConsumeOnce, EffectLedger, LedgerError,
};

use super::support::{in_crashes, in_each_life, in_memory, options, recording};

mod effects;
mod threads;

#[test]
fn an_id_is_consumed_only_once_it_was_consumed() {
    in_each_life(|log| {
        assert!(!ConsumeOnce::new(&log()).consumed("a").unwrap());
        ConsumeOnce::new(&log()).consume("a", "first").unwrap();
        assert!(ConsumeOnce::new(&log()).consumed("a").unwrap());
        assert!(!ConsumeOnce::new(&log()).consumed("b").unwrap());
    });
}

#[test]
fn whoever_comes_second_learns_who_was_first_and_when() {
    in_each_life(|log| {
        ConsumeOnce::new(&log()).consume("a", "first").unwrap();
        let error = ConsumeOnce::new(&log()).consume("a", "second").unwrap_err();
        let text = error.to_string();
        let ConsumeError::AlreadyConsumed(earlier) = error else { panic!("{error:?}") };
        assert_eq!((&*earlier.id, &*earlier.by), ("a", "first"));
        assert!(text.contains("\"a\" was consumed by \"first\""), "{text}");
        let found = ConsumeOnce::new(&log()).consumption("a").unwrap().unwrap();
        assert_eq!(found, earlier);
    });
}

#[test]
fn cleaning_up_forgets_one_id_and_clearing_all_of_the_set() {
    in_each_life(|log| {
        let other = ConsumeOnce::named(&log(), "other");
        other.consume("a", "x").unwrap();
        for id in ["a", "b", "c"] {
            ConsumeOnce::new(&log()).consume(id, "x").unwrap();
        }
        ConsumeOnce::new(&log()).cleanup("a").unwrap();
        ConsumeOnce::new(&log()).cleanup("never consumed").unwrap();
        let once = ConsumeOnce::new(&log());
        assert!(!once.consumed("a").unwrap() && once.consumed("b").unwrap());
        once.consume("a", "again").unwrap();
        ConsumeOnce::new(&log()).clear().unwrap();
        let once = ConsumeOnce::new(&log());
        assert!(["a", "b", "c"].iter().all(|id| !once.consumed(id).unwrap()));
        once.clear().unwrap();
        once.consume("b", "again").unwrap();
        assert!(ConsumeOnce::named(&log(), "other").consumed("a").unwrap());
    });
}

#[test]
fn clearing_forgets_any_number_of_ids() {
    let log = in_memory();
    let once = ConsumeOnce::new(&log);
    (0..1234).for_each(|id| once.consume(&format!("id {id}"), "x").unwrap());
    once.clear().unwrap();
    assert!((0..1234).all(|id| !once.consumed(&format!("id {id}")).unwrap()));
}

#[test]
fn ids_of_any_characters_stay_distinct_and_others_are_refused() {
    in_each_life(|log| {
        let long = "x".repeat(512);
        let ids = ["a/b", "a_b", "a\\b", ".a", "a", "\0", " ", "\n", "../../etc", &long];
        for id in ids {
            let once = ConsumeOnce::new(&log());
            assert!(!once.consumed(id).unwrap(), "{id:?}");
            once.consume(id, "").unwrap();
        }
        let too_long = "x".repeat(513);
        for id in ["", &too_long] {
            let once = ConsumeOnce::new(&log());
            assert!(matches!(once.consumed(id), Err(Error::InvalidId { .. })));
            let refused = once.consume(id, "x");
            assert!(matches!(refused, Err(ConsumeError::Store(Error::InvalidId { .. }))));
            assert!(once.cleanup(id).is_err());
        }
        let nameless = ConsumeOnce::named(&log(), &too_long);
        assert!(matches!(nameless.consumed("a"), Err(Error::InvalidId { .. })));
    });
}

#[test]
fn of_64_threads_exactly_one_consumes() {
    let storage = Arc::new(MemoryStorage::new());
    let mut log = options().create_storage(storage.clone()).unwrap();
    for turn in 0..10 {
        let (id, start) = (format!("id {turn}"), Barrier::new(64));
        let won: Vec<usize> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..64)
                .map(|thread| {
                    let (once, id, start) = (ConsumeOnce::new(&log), &id, &start);
                    scope.spawn(move || {
                        start.wait();
                        match once.consume(id, &thread.to_string()) {
                            Ok(()) => Some(thread),
                            Err(ConsumeError::AlreadyConsumed(_)) => None,
                            Err(error) => panic!("{error}"),
                        }
                    })
                })
                .collect();
            tries.into_iter().filter_map(|tried| tried.join().unwrap()).collect()
        });
        let [winner] = won[..] else { panic!("{won:?}") };
        log.close().unwrap();
        log = options().open_storage(storage.clone()).unwrap();
        let found = ConsumeOnce::new(&log).consumption(&id).unwrap().unwrap();
        assert_eq!(found.by, winner.to_string());
    }
}

#[test]
fn consuming_and_recording_happen_together_or_not_at_all() {
    in_each_life(|log| {
        let writer = log().start_run("agent", "run", ()).unwrap();
        drop(writer);
        let once = ConsumeOnce::new(&log());
        let record = NewRecord::json(b"{\"paid\":1}").kind("payment");
        once.consume_with("a", "x", ("agent", "run"), &record).unwrap();
        let once = ConsumeOnce::new(&log());
        let again = once.consume_with("a", "y", ("agent", "run"), &record);
        assert!(matches!(again, Err(ConsumeError::AlreadyConsumed(_))));
        let missing = once.consume_with("b", "x", ("agent", "no run"), &record);
        assert!(matches!(missing, Err(ConsumeError::Store(Error::RunNotFound { .. }))));
        let log = log();
        assert!(!ConsumeOnce::new(&log).consumed("b").unwrap());
        let records: Vec<_> = log.trace("run").unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].kind(), Some("payment"));
        let run = log.writer("run").unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
        let ended = ConsumeOnce::new(&log).consume_with("c", "x", ("agent", "run"), &record);
        assert!(matches!(ended, Err(ConsumeError::Store(Error::RunEnded { .. }))));
        assert!(!ConsumeOnce::new(&log).consumed("c").unwrap());
    });
}

/// A store in which ids were consumed one after the other, each with a record, and the number of
/// operations after each.
fn recorded(ids: usize) -> (Recording, Vec<usize>) {
    let (disk, log) = recording();
    drop(log.start_run("agent", "run", ()).unwrap());
    let once = ConsumeOnce::new(&log);
    let mut done = vec![disk.op_count()];
    for id in 0..ids {
        let payload = id.to_le_bytes();
        let record = NewRecord::new(&payload);
        once.consume_with(&id.to_string(), "first", ("agent", "run"), &record).unwrap();
        if id % 7 == 3 {
            log.checkpoint().unwrap();
            let _ = log.compact().unwrap();
        }
        if id % 5 == 4 {
            once.cleanup(&(id - 4).to_string()).unwrap();
        }
        done.push(disk.op_count());
    }
    (disk.take_recording(), done)
}

#[test]
fn a_power_cut_or_a_kill_at_any_operation_makes_nothing_happen_twice_or_never() {
    let (recording, done) = recorded(40);
    in_crashes(&recording, done[0], |log, _, boundary, context| {
        let acknowledged = done[1..].iter().take_while(|&&after| after <= boundary).count();
        check(log, acknowledged, context);
    });
}

/// What was acknowledged is there; of the rest each is there with its record, or is not there.
fn check(log: &RunLog, acknowledged: usize, context: &str) {
    let once = ConsumeOnce::new(log);
    let mut recorded = Vec::new();
    for record in log.trace("run").unwrap() {
        let bytes: [u8; 8] = record.unwrap().payload().try_into().unwrap();
        recorded.push(usize::from_le_bytes(bytes));
    }
    assert!(recorded.len() >= acknowledged, "{context}: a record was lost");
    assert!(recorded.iter().copied().eq(0..recorded.len()), "{context}: {recorded:?}");
    for id in 0..40 {
        let cleaned = id % 5 == 0;
        let there = once.consumed(&id.to_string()).unwrap();
        if !cleaned {
            assert_eq!(there, id < recorded.len(), "{context}: id {id}");
        } else if id + 5 <= acknowledged {
            assert!(!there, "{context}: id {id} was cleaned up");
        }
        // Trying again works if it did not happen, and only then.
        let tried = once.consume(&id.to_string(), "second");
        assert_eq!(tried.is_err(), there, "{context}: id {id}");
    }
}

#[test]
fn what_is_no_consumption_is_told_and_stays_readable() {
    let log = in_memory();
    log.docs().put("\0consumed/default", "a", &NewRecord::new(b"not json")).unwrap();
    log.docs().put("\0effects/default", "a", &NewRecord::new(b"{\"state\":\"other\"}")).unwrap();
    let once = ConsumeOnce::new(&log);
    assert!(once.consumed("a").unwrap(), "whatever it is, it is not free");
    assert!(matches!(once.consumption("a"), Err(Error::Json { .. })));
    let tried = once.consume("a", "x");
    assert!(matches!(tried, Err(ConsumeError::Store(Error::Json { .. }))), "{tried:?}");
    let ledger = EffectLedger::new(&log);
    assert!(matches!(ledger.begin("a", "x"), Err(Error::Json { .. })));
    assert_eq!(log.docs().get("\0consumed/default", "a").unwrap().unwrap().payload(), b"not json");
}
