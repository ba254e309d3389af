//! Effects that are begun, and finished by the claim of that beginning alone.

use super::*;

fn begin(log: &RunLog, key: &str, by: &str) -> Claim {
    match EffectLedger::new(log).begin(key, by).unwrap() {
        Begin::Go(claim) => claim,
        other => panic!("{other:?}"),
    }
}

fn unfinished(log: &RunLog, key: &str) -> (String, Claim) {
    match EffectLedger::new(log).begin(key, "another").unwrap() {
        Begin::Unfinished { by, claim, .. } => (by, claim),
        other => panic!("{other:?}"),
    }
}

fn is_superseded(done: Result<(), LedgerError>) -> bool {
    matches!(done, Err(LedgerError::Superseded { .. }))
}

#[test]
fn an_effect_is_begun_by_one_and_finished_once() {
    in_each_life(|log| {
        let claim = begin(&log(), "a", "one");
        assert_eq!(unfinished(&log(), "a"), ("one".to_owned(), claim.clone()));
        EffectLedger::new(&log()).complete(&claim, b"\0result\n\xff").unwrap();
        EffectLedger::new(&log()).complete(&claim, b"\0result\n\xff").unwrap();
        let third = EffectLedger::new(&log()).begin("a", "three").unwrap();
        assert!(matches!(&third, Begin::Completed { result, .. } if result == b"\0result\n\xff"));
        let ledger = EffectLedger::new(&log());
        assert!(is_superseded(ledger.complete(&claim, b"other")));
        assert!(is_superseded(ledger.fail(&claim, "\0result\n\u{ff}")));
    });
}

#[test]
fn a_failed_effect_can_be_begun_again() {
    in_each_life(|log| {
        let ledger = || EffectLedger::new(&log());
        let claim = begin(&log(), "a", "one");
        ledger().fail(&claim, "no network").unwrap();
        ledger().fail(&claim, "no network").unwrap();
        assert_eq!(ledger().failure("a").unwrap().as_deref(), Some("no network"));
        let claim = begin(&log(), "a", "two");
        assert_eq!(ledger().failure("a").unwrap(), None);
        ledger().complete(&claim, b"").unwrap();
        ledger().forget("a").unwrap();
        drop(begin(&log(), "a", "three"));
        ledger().clear().unwrap();
        drop(begin(&log(), "a", "four"));
    });
}

#[test]
fn a_worker_that_comes_back_late_changes_nothing_for_the_next_one() {
    in_each_life(|log| {
        let ledger = || EffectLedger::new(&log());
        let late = begin(&log(), "a", "one");
        let (_, operator) = unfinished(&log(), "a");
        ledger().fail(&operator, "it hangs").unwrap();
        let second = begin(&log(), "a", "two");
        assert!(is_superseded(ledger().fail(&late, "no network")));
        assert!(is_superseded(ledger().fail(&late, "it hangs")));
        assert!(is_superseded(ledger().complete(&late, b"paid")));
        assert_eq!(unfinished(&log(), "a"), ("two".to_owned(), second.clone()));
        ledger().complete(&second, b"paid").unwrap();
        assert!(is_superseded(ledger().complete(&late, b"paid")), "its own effect is not known");
        ledger().forget("a").unwrap();
        assert!(is_superseded(ledger().complete(&second, b"paid")));
    });
}

#[test]
fn an_effect_is_completed_with_a_record_or_not_at_all() {
    in_each_life(|log| {
        drop(log().start_run("agent", "run", ()).unwrap());
        let claim = begin(&log(), "a", "one");
        let record = NewRecord::new(b"paid");
        let with = |run| {
            EffectLedger::new(&log()).complete_with(&claim, b"receipt", ("agent", run), &record)
        };
        assert!(matches!(with("no run"), Err(LedgerError::Store(Error::RunNotFound { .. }))));
        assert_eq!(unfinished(&log(), "a").0, "one");
        for _ in 0..2 {
            with("run").unwrap();
        }
        assert_eq!(log().trace("run").unwrap().count(), 1);
        let found = EffectLedger::new(&log()).begin("a", "two").unwrap();
        assert!(matches!(found, Begin::Completed { result, .. } if result == b"receipt"));
    });
}

#[test]
fn what_became_of_an_effect_is_told_also_once_the_run_of_its_record_has_ended() {
    in_each_life(|log| {
        let claims = ["a", "b"].map(|key| begin(&log(), key, "one"));
        drop(log().start_run("agent", "run", ()).unwrap());
        let record = NewRecord::new(b"paid");
        let complete = |claim| {
            EffectLedger::new(&log()).complete_with(claim, b"receipt", ("agent", "run"), &record)
        };
        complete(&claims[0]).unwrap();
        EffectLedger::new(&log()).fail(&claims[1], "refused").unwrap();
        log().writer("run").unwrap().end(&Outcome::completed()).unwrap();
        // The caller does not know whether the first call succeeded.
        complete(&claims[0]).unwrap();
        assert!(is_superseded(complete(&claims[1])));
        assert_eq!(log().trace("run").unwrap().count(), 1);
        drop(begin(&log(), "c", "one"));
        let open = unfinished(&log(), "c").1;
        assert!(matches!(complete(&open), Err(LedgerError::Store(Error::RunEnded { .. }))));
    });
}

#[test]
fn a_result_takes_the_space_that_it_has() {
    let log = Options::new().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let claim = begin(&log, "a", "one");
    let result = vec![0xff; 19 << 20];
    EffectLedger::new(&log).complete(&claim, &result).unwrap();
    let stored = log.docs().get("\0effects/default", "a").unwrap().unwrap().payload().len();
    assert!(stored < result.len() + 100, "{stored}");
}

#[test]
fn a_restart_shows_what_was_begun_and_never_finished() {
    in_each_life(|log| {
        let ledger = || EffectLedger::new(&log());
        let claims = ["a", "b", "c", "d"].map(|key| begin(&log(), key, "worker"));
        ledger().complete(&claims[1], b"done").unwrap();
        ledger().fail(&claims[3], "refused").unwrap();
        let found = ledger().unfinished().unwrap();
        let keys: Vec<&str> = found.iter().map(|effect| effect.key.as_str()).collect();
        assert_eq!(keys, ["a", "c"]);
        assert!(found.iter().all(|effect| effect.by == "worker"));
        assert_eq!([&found[0].claim, &found[1].claim], [&claims[0], &claims[2]]);
        assert!(EffectLedger::named(&log(), "other").unfinished().unwrap().is_empty());
        ledger().fail(&found[0].claim, "it did not happen").unwrap();
    });
}

#[test]
fn clearing_forgets_nothing_that_happened_after_its_first_deletion() {
    let log = in_memory();
    let (once, ledger) = (ConsumeOnce::new(&log), EffectLedger::new(&log));
    let syncs = || log.stats().unwrap().io.syncs;
    type Clear = fn(&RunLog);
    let clears: [Clear; 2] = [
        |log| ConsumeOnce::new(log).clear().unwrap(),
        |log| EffectLedger::new(log).clear().unwrap(),
    ];
    for round in 0..20 {
        for clear in clears {
            for number in 0..300 {
                once.consume(&format!("id {number:03}"), "before").unwrap();
                drop(begin(&log, &format!("id {number:03}"), "before"));
            }
            let before = syncs();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while syncs() == before {
                        std::thread::yield_now();
                    }
                    once.consume("later", "meanwhile").unwrap();
                    drop(begin(&log, "later", "meanwhile"));
                });
                clear(&log);
            });
            assert!(once.consumed("later").unwrap(), "round {round}");
            assert_eq!(unfinished(&log, "later").0, "meanwhile", "round {round}");
            once.clear().unwrap();
            ledger.clear().unwrap();
            assert!(!once.consumed("later").unwrap() && ledger.unfinished().unwrap().is_empty());
        }
    }
}

#[test]
fn a_record_counts_as_appended_only_if_the_effect_was_completed_with_that_one() {
    in_each_life(|log| {
        for run in ["run", "other"] {
            drop(log().start_run("agent", run, ()).unwrap());
        }
        let with = |claim: &Claim, run, record: NewRecord<'_>| {
            EffectLedger::new(&log()).complete_with(claim, b"receipt", ("agent", run), &record)
        };
        let records = || ["run", "other"].map(|run| log().trace(run).unwrap().count());
        let paid = NewRecord::new(b"paid").kind("payment");
        // Completed without a record: by the worker, and by an operator.
        for key in ["by the worker", "by an operator"] {
            let claim = begin(&log(), key, "one");
            let done_by =
                if key == "by the worker" { claim.clone() } else { unfinished(&log(), key).1 };
            EffectLedger::new(&log()).complete(&done_by, b"receipt").unwrap();
            assert!(is_superseded(with(&claim, "run", paid)), "{key}");
            assert_eq!(records(), [0, 0], "{key}");
        }
        let claim = begin(&log(), "with a record", "one");
        with(&claim, "run", paid).unwrap();
        // It is the same record, whatever time it has.
        with(&claim, "run", paid.at(runlog::Timestamp(7))).unwrap();
        let others = [
            ("run", NewRecord::new(b"refunded").kind("payment")),
            ("run", NewRecord::new(b"paid").kind("refund")),
            ("other", paid),
        ];
        for (run, other) in others {
            assert!(is_superseded(with(&claim, run, other)), "{run}: {other:?}");
        }
        assert!(is_superseded(EffectLedger::new(&log()).complete(&claim, b"receipt")));
        assert_eq!(records(), [1, 0]);
    });
}

#[test]
fn effects_that_earlier_versions_completed_are_completed() {
    let log = in_memory();
    let stored = b"{\"state\":\"completed\",\"begun\":7}\nreceipt";
    log.docs().put("\0effects/default", "a", &NewRecord::new(stored)).unwrap();
    let found = EffectLedger::new(&log).begin("a", "one").unwrap();
    assert!(matches!(found, Begin::Completed { result, .. } if result == b"receipt"));
}
