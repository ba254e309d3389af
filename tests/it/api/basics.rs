//! Runs are started, appended to, ended, found, listed, deleted.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Batch, Durability, Error, Metadata, NewRecord, Options, Outcome, RunLog, RunStatus, Seq,
};

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

fn memory() -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    (storage, log)
}

fn payloads(log: &RunLog, run: &str) -> Vec<Vec<u8>> {
    log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect()
}

#[test]
fn what_was_appended_comes_back_after_closing_and_opening() {
    let (storage, log) = memory();
    let run = log.start_run("agent", "run", b"meta").unwrap();
    let mut expected = Vec::new();
    for number in 0..2000u32 {
        let payload = vec![number as u8; (number % 300) as usize];
        run.append(&payload).unwrap();
        expected.push(payload);
    }
    run.end(&Outcome::completed()).unwrap();
    assert_eq!(payloads(&log, "run"), expected);
    assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify());
    drop(run);
    log.close().unwrap();
    let log = options().open_storage(storage).unwrap();
    assert!(log.recovery_report().is_clean() && log.recovery_report().clean);
    assert_eq!(payloads(&log, "run"), expected);
    let summary = log.run("run").unwrap();
    assert_eq!((summary.records, summary.status), (2000, RunStatus::Completed));
    let mut back: Vec<_> =
        log.trace("run").unwrap().rev().map(|r| r.unwrap().payload().to_vec()).collect();
    back.reverse();
    assert_eq!(back, expected);
    let some: Vec<_> = log
        .trace("run")
        .unwrap()
        .range(Seq(500)..Seq(1500))
        .unwrap()
        .map(|r| r.unwrap().seq().0)
        .collect();
    assert_eq!(some, (500..1500).collect::<Vec<_>>());
    assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify());
}

#[test]
fn starting_and_ending_again_in_the_same_way_is_fine_and_otherwise_an_error() {
    let (_, log) = memory();
    let run = log.start_run("agent", "run", b"a").unwrap();
    log.start_run("agent", "run", b"a").unwrap();
    assert!(matches!(log.start_run("agent", "run", b"b"), Err(Error::RunExists { .. })));
    let outcome = Outcome::failed().json(b"{}");
    run.end(&outcome).unwrap();
    run.end(&outcome).unwrap();
    assert!(matches!(run.end(&Outcome::completed()), Err(Error::RunEnded { .. })));
    assert!(matches!(run.append(b"x"), Err(Error::RunEnded { .. })));
    let late = log.append_to("agent", "run", &NewRecord::new(b"x"), Allow::everything()).unwrap();
    assert_eq!(late.seq, Seq(0));
    assert_eq!(log.run("run").unwrap().late_records, 1);
    assert_eq!(log.outcome("run").unwrap().unwrap().payload(), b"{}");
}

/// Starts, holds, and refusals for ended runs.
#[test]
fn asking_for_runs_again_keeps_only_some_of_them_in_memory() {
    let log = Options::new().background(false).create_storage(Arc::new(MemoryStorage::new()));
    let log = log.unwrap();
    let metadata = || Metadata::new(b"").durability(Durability::Process);
    let outcome = || Outcome::completed().durability(Durability::Process);
    let names: Vec<String> = (0..12_000).map(|number| format!("run-{number}")).collect();
    for name in &names {
        let run = log.start_run("agent", name, metadata()).unwrap();
        run.end(&outcome()).unwrap();
    }
    // In the next segment, so that the index has all of them.
    let full = log.stats().unwrap().end.segment;
    let last = log.start_run("agent", "last", ()).unwrap();
    while log.stats().unwrap().end.segment == full {
        last.append(&[7; 400_000]).unwrap();
    }
    log.compact().unwrap();
    assert!(log.stats().unwrap().active_runs < 100);
    type Call<'a> = &'a dyn Fn(&RunLog, &str);
    let calls: [Call<'_>; 4] = [
        &|log, name| drop(log.start_run("agent", name, metadata()).unwrap()),
        &|log, name| {
            let refused = log.start_run("agent", name, b"other");
            assert!(matches!(refused, Err(Error::RunExists { .. })));
        },
        &|log, name| {
            let refused = log.writer(("agent", name));
            assert!(matches!(refused, Err(Error::RunEnded { .. })));
        },
        &|log, name| assert!(!log.release(("agent", name)).unwrap()),
    ];
    for call in calls {
        names.iter().for_each(|name| call(&log, name));
        let kept = log.stats().unwrap().active_runs;
        assert!(kept < 10_000, "{kept}");
    }
}

/// Documents, and records of runs: a batch takes no more of the directory than there is.
#[test]
fn a_batch_that_is_refused_is_too_large_and_takes_no_space() {
    for extent_size in [64 << 10, 4 << 20] {
        let options = options().extent_size(extent_size);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let names: Vec<String> = (0..9_000).map(|number| format!("name-{number}")).collect();
        for name in &names {
            drop(log.start_run("agent", name, Metadata::new(b"").durability(Durability::Process)));
        }
        let (mut stored, mut refused) = (0, 0);
        for count in (50..130).step_by(10).chain((1_000..9_000).step_by(800)) {
            let (mut puts, mut appends) = (Batch::new(), Batch::new());
            for name in &names[..count] {
                puts.put("space", name, NewRecord::new(b"1"));
                appends.append("agent", name, NewRecord::new(b"1"));
            }
            for batch in [puts, appends] {
                let before = log.stats().unwrap();
                match log.commit(&batch) {
                    Ok(_) => stored += 1,
                    Err(Error::TooLarge { len, max, .. }) => {
                        assert!(len > max, "{count}: {len} is not more than {max}");
                        assert!(max > extent_size / 5, "{count}: {max}");
                        assert_eq!(log.stats().unwrap().end, before.end, "{count}");
                        refused += 1;
                    }
                    Err(error) => panic!("{count}: {error:?}"),
                }
            }
        }
        assert!(stored > 4 && refused > 4, "{stored}, {refused}");
    }
}

#[test]
fn a_run_is_no_younger_than_what_began_it() {
    let (_storage, log) = memory();
    let (allow, record) = (Allow::everything(), NewRecord::new(b"a step"));
    for round in 0..20 {
        let name = |what: &str| format!("{what}-{round}");
        let _ = log.append_to("agent", &name("one"), &record, allow).unwrap();
        let _ = log.append_batch_to("agent", &name("two"), &[record, record], allow).unwrap();
        let _ = log.end_run("agent", &name("ended"), &Outcome::completed(), allow).unwrap();
        for run in ["one", "two"] {
            let first = log.trace(&name(run)).unwrap().next().unwrap().unwrap().timestamp();
            assert!(log.run(&name(run)).unwrap().created_at() <= first);
        }
        let ended = log.run(&name("ended")).unwrap();
        assert!(ended.started_at <= ended.ended_at.unwrap());
    }
}
