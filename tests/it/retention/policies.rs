//! Deletions: what receipts report, what is erased, and how space is freed. The lives campaign
//! compares each plan of a policy with the planner, and holds, receipts and traces with a model.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use runlog::storage::MemoryStorage;
use runlog::{
    Activity, Compaction, Error, Observer, Options, Outcome, Phase, Retention, Rule, RunLog,
    RunQuery, RunRef, RunStatus, Seq, SpaceReturn,
};
use runlog_sim::{SimClock, SimEntropy};

use crate::support::allocations::most_of;

fn clock() -> SimClock {
    SimClock::new(runlog::Timestamp(1_000_000_000))
}

fn options(clock: &SimClock) -> Options {
    Options::new().extent_size(64 << 10).background(false).environment(
        runlog::env::Environment::system()
            .clock(Arc::new(clock.clone()))
            .entropy(Arc::new(SimEntropy::new(1))),
    )
}

fn by_hand() -> Compaction {
    Compaction::new().automatic(false)
}

fn payload(run: &str, number: usize) -> Vec<u8> {
    format!("{run}/{number}/").bytes().cycle().take(300 + number % 7).collect()
}

/// Runs that are interleaved, so that each is spread over the segments.
fn write_runs(log: &RunLog, clock: &SimClock, names: &[String], records: usize) {
    let writers: Vec<_> =
        names.iter().map(|name| log.start_run("agent", name, b"meta").unwrap()).collect();
    for number in 0..records {
        for writer in &writers {
            let _ = writer.append(&payload(writer.run().as_str(), number)).unwrap();
        }
    }
    for writer in &writers {
        clock.advance(1_000_000);
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
}

fn names(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|number| format!("run-{number:03}")).collect()
}

fn assert_whole(log: &RunLog, names: &[String], records: usize) {
    for name in names {
        let found: Vec<Vec<u8>> = log
            .trace(name.as_str())
            .unwrap()
            .map(|record| record.unwrap().payload().to_vec())
            .collect();
        let expected: Vec<Vec<u8>> = (0..records).map(|number| payload(name, number)).collect();
        assert!(found == expected, "{name}: {} records", found.len());
        assert_eq!(log.metadata(name.as_str()).unwrap().unwrap().payload(), b"meta");
        assert_eq!(log.outcome(name.as_str()).unwrap().unwrap().status(), RunStatus::Completed);
        let middle = log.trace(name.as_str()).unwrap().range(Seq(3)..Seq(7)).unwrap();
        let seqs: Vec<u64> = middle.map(|record| record.unwrap().seq().0).collect();
        assert_eq!(seqs, (3..7).collect::<Vec<_>>());
    }
}

fn assert_clean(log: &RunLog) {
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn each_deletion_leaves_a_receipt_and_receipts_are_bounded() {
    let (clock, storage) = (clock(), Arc::new(MemoryStorage::new()));
    let options = options(&clock).receipts(8, Duration::from_secs(3600));
    let log = options.create_storage(storage.clone()).unwrap();
    write_runs(&log, &clock, &names(0, 12), 20);
    let _ = log.delete_run("run-000").unwrap();
    clock.advance(1_000_000);
    let _ = log.gc(&Retention::new().keep_newest(6)).unwrap();
    let receipts = log.receipts(100).unwrap();
    let told: Vec<(&str, Rule)> =
        receipts.iter().map(|receipt| (receipt.run.as_str(), receipt.rule)).collect();
    assert_eq!(told.len(), 6);
    assert_eq!(told[5], ("run-000", Rule::Deleted));
    assert!(told[..5].iter().all(|(_, rule)| *rule == Rule::NewestN));
    assert!(receipts.iter().all(|receipt| receipt.agent == "agent" && receipt.bytes > 20 * 300));
    clock.advance(1_000_000);
    let _ = log.gc(&Retention::new().keep_newest(1)).unwrap();
    assert_eq!(log.receipts(100).unwrap().len(), 8, "the oldest are not kept");
    let _ = log.compact().unwrap();
    assert_eq!(log.receipts(100).unwrap().len(), 8);
    assert_eq!(log.receipts(3).unwrap().len(), 3);
    log.close().unwrap();
    let log = options.open_storage(storage).unwrap();
    assert_eq!(log.receipts(100).unwrap().len(), 8);
    clock.advance(3601 * 1_000_000_000);
    assert!(log.receipts(100).unwrap().is_empty(), "they are too old");
}

#[test]
fn a_compaction_goes_to_the_end_also_where_runs_lie_side_by_side_all_over_the_log() {
    let clock = clock();
    // What moves to make the file shorter is another matter.
    let kept = by_hand().space_return(SpaceReturn::Keep);
    let options = options(&clock).compaction(kept);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let running = log.start_run("agent", "running", ()).unwrap();
    write_runs(&log, &clock, &names(0, 30), 100);
    drop(running);
    let before = log.stats().unwrap().sealed_segments;
    assert!(before > 16, "{before}");
    let done = log.compact().unwrap();
    assert!(done.segments >= before, "{done:?} of {before}");
    assert_eq!(log.compact().unwrap().segments, 0, "there was more to do");
    assert_whole(&log, &names(0, 30), 100);
    assert_clean(&log);
}

/// Appends from another thread whenever a step of a compaction begins, and waits for that.
#[derive(Debug)]
struct AppendFirst {
    ask: Mutex<mpsc::Sender<bool>>,
    answers: Mutex<mpsc::Receiver<()>>,
}

impl Observer for AppendFirst {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if activity == Activity::Compaction && phase.is_begin() {
            // At some time the appends stop.
            let _ = self.ask.lock().unwrap().send(true);
            let _ = self.answers.lock().unwrap().recv();
        }
    }
}

#[test]
fn a_compaction_comes_to_its_end_while_others_append() {
    let clock = clock();
    let ((ask, asked), (answer, answers)) = (mpsc::channel(), mpsc::channel());
    let observer = AppendFirst { ask: Mutex::new(ask.clone()), answers: Mutex::new(answers) };
    // With threads, since without them appends do what is due, and wait for the compaction.
    let options = options(&clock).background(true).compaction(by_hand());
    let options = options.observer(Arc::new(observer));
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    write_runs(&log, &clock, &names(0, 30), 50);
    let before = log.stats().unwrap().sealed_segments;
    thread::scope(|scope| {
        let log = &log;
        scope.spawn(move || {
            let run = log.start_run("agent", "endless", ()).unwrap();
            for _ in 0..50 {
                if !asked.recv().unwrap() {
                    return;
                }
                for _ in 0..100 {
                    let _ = run.append(&[7; 6000]).unwrap();
                }
                log.checkpoint().unwrap();
                answer.send(()).unwrap();
            }
        });
        let done = log.compact().unwrap();
        // The receiver is gone if this went on for too long.
        let _ = ask.send(false);
        // Runs that continue from step to step count again in each.
        assert!(done.segments >= before && done.segments < 30 * before, "{done:?} of {before}");
    });
    assert_whole(&log, &names(0, 30), 50);
    assert_clean(&log);
}

#[test]
fn a_trace_that_holds_extents_for_too_long_is_told_that_its_run_went() {
    let clock = clock();
    let compaction = Compaction::new().max_pin_age(Duration::from_secs(60));
    let options = options(&clock).compaction(compaction);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    write_runs(&log, &clock, &names(0, 10), 60);
    let mut trace = log.trace("run-001").unwrap();
    let mut quick = log.trace("run-002").unwrap();
    let _ = trace.next().unwrap().unwrap();
    let _ = log.gc(&Retention::new().keep_newest(2)).unwrap();
    let _ = trace.next().unwrap().unwrap();
    assert!(quick.by_ref().all(|record| record.is_ok()), "it ends in time");
    assert!(log.stats().unwrap().retired_extents > 0, "{:?}", log.stats());
    clock.advance(61_000_000_000);
    assert!(
        matches!(trace.next(), Some(Err(Error::Evicted { run: Some(run) })) if run == "run-001")
    );
    assert!(trace.next().is_none());
    drop(quick);
    log.reclaim().unwrap();
    assert_eq!(log.stats().unwrap().retired_extents, 0, "the trace holds nothing any more");
}

#[test]
fn a_run_over_more_segments_than_one_step_takes_does_not_keep_compaction_from_its_end() {
    let clock = clock();
    let options = options(&clock).compaction(by_hand());
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let long = log.start_run("agent", "long", ()).unwrap();
    let filler = vec![7; 6000];
    for number in 0..130 {
        let run = log.start_run("agent", &format!("short-{number}"), ()).unwrap();
        for part in 0..10 {
            let _ = run.append(&filler).unwrap();
            let _ = long.append(&payload("long", number * 10 + part)).unwrap();
        }
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    log.checkpoint().unwrap();
    assert!(log.stats().unwrap().sealed_segments > 100);
    let _ = log.gc(&Retention::new().keep_newest(1)).unwrap();
    let done = log.compact().unwrap();
    assert!(done.segments > 0, "{done:?}");
    for (number, record) in log.trace("long").unwrap().enumerate() {
        assert_eq!(*record.unwrap().payload(), *payload("long", number));
    }
    assert_eq!(log.run("long").unwrap().records, 1300);
    assert_clean(&log);
}

/// How often a text is in the bytes.
fn occurrences(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).filter(|window| *window == text).count()
}

#[test]
fn of_an_erased_run_no_byte_is_left() {
    for space in [SpaceReturn::Shrink, SpaceReturn::Keep] {
        let (clock, storage) = (clock(), Arc::new(MemoryStorage::new()));
        let compaction = Compaction::new().space_return(space);
        let options = options(&clock).compaction(compaction);
        let log = options.create_storage(storage.clone()).unwrap();
        let secret = b"the secret of the run";
        let large: Vec<u8> = secret.iter().copied().cycle().take(30_000).collect();
        write_runs(&log, &clock, &names(0, 4), 30);
        let run = log.start_run("agent", "secret", secret.as_slice()).unwrap();
        let other = log.start_run("agent", "other", ()).unwrap();
        for _ in 0..40 {
            let _ = run.append(secret).unwrap();
            let _ = other.append(&payload("other", 1)).unwrap();
        }
        let _ = run.append(&large).unwrap();
        let outcome = Outcome::failed().bytes(secret);
        let _ = run.end(&outcome).unwrap();
        let _ = log.compact().unwrap();
        assert!(occurrences(&storage.to_bytes(), secret) > 40);
        drop(run);
        let erased = log.erase_run("secret").unwrap();
        assert_eq!(erased.pinned_extents, 0);
        assert_eq!(occurrences(&storage.to_bytes(), secret), 0, "{space:?}");
        assert_whole(&log, &names(0, 4), 30);
        assert_eq!(log.trace("other").unwrap().count(), 40);
        assert_eq!(log.receipts(10).unwrap()[0].rule, Rule::Erased);
        assert_clean(&log);
        drop(other);
        log.close().unwrap();
        let log = options.open_storage(storage.clone()).unwrap();
        assert_eq!(occurrences(&storage.to_bytes(), secret), 0);
        assert_clean(&log);
    }
}

/// Also where free extents stay as they are, and where another process frees them.
#[test]
fn what_an_erasure_leaves_to_a_reader_is_gone_once_the_reader_is() {
    for space in [SpaceReturn::Keep, SpaceReturn::Punch, SpaceReturn::Shrink] {
        for ends in ["the reader", "the store", "the process"] {
            let storage = Arc::new(MemoryStorage::new());
            let options = Options::new().extent_size(64 << 10).background(false);
            let options = options.compaction(Compaction::new().space_return(space));
            let log = options.create_storage(storage.clone()).unwrap();
            let run = log.start_run("agent", "run", ()).unwrap();
            run.append(b"a secret of some length").unwrap();
            run.end(&Outcome::completed()).unwrap();
            let other = log.start_run("agent", "other", ()).unwrap();
            (0..20).for_each(|_| drop(other.append(&[7; 8000]).unwrap()));
            log.checkpoint().unwrap();
            let trace = log.trace("run").unwrap();
            for again in 0..3 {
                let erased = log.erase_run("run").unwrap();
                assert_eq!((erased.bytes > 0, erased.pinned_extents), (again == 0, 1));
            }
            let never = log.erase_run("never");
            assert!(matches!(never, Err(Error::RunNotFound { .. })), "{never:?}");
            let mut image = storage.clone();
            let log = match ends {
                "the reader" => log,
                "the store" => {
                    log.close().unwrap();
                    options.open_storage(storage).unwrap()
                }
                _ => {
                    image = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
                    options.open_storage(image.clone()).unwrap()
                }
            };
            drop((trace, run, other));
            log.reclaim().unwrap();
            let has_secret = image.to_bytes().windows(8).any(|part| part == b"a secret");
            assert!(!has_secret, "{space:?}, {ends} ends");
            assert!(matches!(log.erase_run("run"), Err(Error::RunNotFound { .. })));
            assert!(log.verify().unwrap().is_clean());
        }
    }
}

#[test]
fn a_run_is_erased_also_while_a_large_record_near_it_is_not_in_a_full_segment_yet() {
    let (clock, storage) = (clock(), Arc::new(MemoryStorage::new()));
    let log = options(&clock).create_storage(storage.clone()).unwrap();
    let secret = b"the secret of the run";
    let run = log.start_run("agent", "secret", ()).unwrap();
    let _ = run.append(secret).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    drop(run);
    // Its first chunks are next to the run, and the record itself in the next segment.
    let other = log.start_run("agent", "other", ()).unwrap();
    let large: Vec<u8> = (0..100_000_u32).map(|byte| (byte % 251) as u8).collect();
    let _ = other.append(&large).unwrap();
    let erased = log.erase_run("secret").unwrap();
    assert_eq!(erased.pinned_extents, 0);
    assert_eq!(occurrences(&storage.to_bytes(), secret), 0);
    assert!(*log.trace("other").unwrap().next().unwrap().unwrap().payload() == *large);
    assert_clean(&log);
}

#[test]
fn what_cannot_be_meant_is_refused_and_changes_nothing() {
    let clock = clock();
    let log = options(&clock).create_storage(Arc::new(MemoryStorage::new())).unwrap();
    write_runs(&log, &clock, &names(0, 3), 10);
    let absurd = Retention::new().max_age(Duration::MAX);
    assert!(matches!(log.gc(&absurd), Err(Error::InvalidArgument { .. })));
    assert!(matches!(log.gc_plan(&absurd), Err(Error::InvalidArgument { .. })));
    let none = Retention::new().keep_newest(0).max_bytes(0).max_age(Duration::ZERO);
    assert!(log.gc(&none).unwrap().plan.evict.is_empty(), "0 means no limit");
    assert!(matches!(log.hold("nobody", "why"), Err(Error::RunNotFound { .. })));
    assert!(matches!(log.release("nobody"), Err(Error::RunNotFound { .. })));
    assert!(matches!(log.erase_run("nobody"), Err(Error::RunNotFound { .. })));
    let long = "x".repeat(4097);
    assert!(matches!(log.hold("run-000", &long), Err(Error::InvalidArgument { .. })));
    let running = log.start_run("agent", "running", ()).unwrap();
    assert!(matches!(log.erase_run("running"), Err(Error::RunInProgress { .. })));
    // A clock in front of the records: nothing is old.
    clock.set(runlog::Timestamp(1));
    let old = Retention::new().max_age(Duration::from_nanos(1));
    assert!(log.gc(&old).unwrap().plan.evict.is_empty());
    let left: BTreeSet<String> = log
        .list_runs(&RunQuery::new().limit(10))
        .unwrap()
        .runs
        .iter()
        .map(|run| run.run.to_string())
        .collect();
    assert_eq!(left.len(), 4);
    drop(running);
}

/// The latest runs are at the end of the file, where the manifest, which has outgrown its first
/// place, the index and the tail are too: all of them move away.
#[test]
fn a_file_becomes_short_however_much_is_at_its_end() {
    let (clock, storage) = (clock(), Arc::new(MemoryStorage::new()));
    let log = options(&clock).create_storage(storage.clone()).unwrap();
    let all = names(0, 1600);
    for some in all.chunks(8) {
        write_runs(&log, &clock, some, 40);
    }
    let before = log.stats().unwrap();
    assert!(before.meta_extents > 0 && before.log_extents > 150, "{before:?}");
    let _ = log.gc(&Retention::new().keep_newest(200)).unwrap();
    let after = log.stats().unwrap();
    assert!(after.free_extents <= after.log_extents / 4, "{after:?}");
    assert!(after.file_len < before.file_len / 2, "{after:?}");
    assert_whole(&log, &all[1400..], 40);
    assert_clean(&log);
    log.close().unwrap();
    let log = options(&clock).open_storage(storage).unwrap();
    assert!(log.recovery_report().is_clean());
    assert_whole(&log, &all[1400..], 40);
}

#[test]
fn a_run_that_is_named_twice_is_deleted_and_counted_once() {
    let log = options(&clock()).create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(&[7; 7000]).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let named =
        [(RunRef::from("run"), Rule::Deleted), (RunRef::from(("agent", "run")), Rule::Deleted)];
    let done = log.evict(&named).unwrap();
    assert_eq!((done.plan.evict.len(), done.plan.totals.going), (1, 1), "{done:?}");
    assert_eq!(log.receipts(10).unwrap().len(), 1);
}

#[test]
fn a_summary_names_its_own_run_and_none_that_has_its_ids_later() {
    let log = options(&clock()).create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let make = || {
        let run = log.start_run("agent", "run", ()).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
        log.run("run").unwrap()
    };
    let first = make();
    log.delete_run(&first).unwrap();
    let second = make();
    let named = [(RunRef::from(&first), Rule::Deleted)];
    assert!(log.evict(&named).unwrap().plan.evict.is_empty());
    for refused in [
        log.delete_run(&first).map(drop),
        log.hold(&first, "why").map(drop),
        log.trace(&first).map(drop),
        log.trace(RunRef::from("run").numbered(first.number())).map(drop),
        log.run(RunRef::from("run").numbered(first.number())).map(drop),
        log.run(RunRef::from(("other", "run")).numbered(second.number())).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::RunNotFound { .. })), "{refused:?}");
    }
    // What is left of it.
    assert_eq!(log.erase_run(&first).unwrap().bytes, 0);
    assert_eq!(log.run(&second).unwrap(), second);
    assert_eq!(log.evict(&[((&second).into(), Rule::Deleted)]).unwrap().plan.evict.len(), 1);
}

#[test]
fn a_plan_takes_no_allocation_for_each_run() {
    let clock = clock();
    let log = options(&clock).create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let planned = |runs: usize| {
        write_runs(
            &log,
            &clock,
            &(0..runs).map(|run| format!("{runs}-{run}")).collect::<Vec<_>>(),
            1,
        );
        log.checkpoint().unwrap();
        most_of(|| log.gc_plan(&Retention::new().keep_newest(10)).unwrap())
    };
    let ((few, least), (many, most)) = (planned(100), planned(10_000));
    let more = many.evict.len() - few.evict.len();
    assert_eq!(more, 10_000);
    println!("{} bytes a run", (most - least) / more);
    assert!(most - least < more * 160, "{most} and {least} bytes");
}
