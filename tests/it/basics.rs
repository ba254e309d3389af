//! Runs are started, appended to, ended, found, listed, deleted.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Allow, ContentType, Error, NewRecord, Options, Outcome, RunLog, RunStatus, Seq};

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
fn large_records_and_batches_come_back_whole() {
    let (_, log) = memory();
    let run = log.start_run("agent", "run", ()).unwrap();
    let large: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
    run.append_record(&NewRecord::new(&large).kind("big")).unwrap();
    let small = vec![1; 100];
    let batch: Vec<NewRecord<'_>> = (0..50).map(|_| NewRecord::new(&small).kind("b")).collect();
    run.append_batch(&batch).unwrap();
    let batch = [NewRecord::new(&large), NewRecord::new(&small)];
    run.append_batch(&batch).unwrap();
    let all = payloads(&log, "run");
    assert_eq!(all.len(), 53);
    assert_eq!(all[0], large);
    assert_eq!(all[51], large);
    assert_eq!(log.trace("run").unwrap().next().unwrap().unwrap().kind(), Some("big"));
}

#[test]
fn starting_and_ending_again_in_the_same_way_is_fine_and_otherwise_an_error() {
    let (_, log) = memory();
    let run = log.start_run("agent", "run", b"a").unwrap();
    log.start_run("agent", "run", b"a").unwrap();
    assert!(matches!(log.start_run("agent", "run", b"b"), Err(Error::RunExists { .. })));
    let outcome = Outcome::failed().with_payload(b"{}", ContentType::JSON);
    run.end(&outcome).unwrap();
    run.end(&outcome).unwrap();
    assert!(matches!(run.end(&Outcome::completed()), Err(Error::RunEnded { .. })));
    assert!(matches!(run.append(b"x"), Err(Error::RunEnded { .. })));
    let late = log.append_to("agent", "run", &NewRecord::new(b"x"), Allow::everything()).unwrap();
    assert_eq!(late.seq, Seq(0));
    assert_eq!(log.run("run").unwrap().late_records, 1);
    assert_eq!(log.outcome("run").unwrap().unwrap().payload(), b"{}");
}

#[test]
fn a_run_id_that_two_agents_use_is_ambiguous_without_the_agent() {
    let (_, log) = memory();
    log.start_run("b", "run", ()).unwrap();
    log.start_run("a", "run", ()).unwrap();
    match log.agent_of("run") {
        Err(Error::Ambiguous { agents, .. }) => {
            assert_eq!(
                agents.iter().map(|a| a.as_str().to_owned()).collect::<Vec<_>>(),
                ["a", "b"]
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(log.run(("a", "run")).unwrap().agent, "a");
}

#[test]
fn deleted_runs_are_gone_and_their_segments_are_used_again() {
    let (storage, log) = memory();
    let mut longest = 0;
    for round in 0..60 {
        for number in 0..10 {
            let id = format!("run-{round}-{number}");
            let run = log.start_run("agent", &id, ()).unwrap();
            for _ in 0..40 {
                run.append(&[round as u8; 200]).unwrap();
            }
            run.end(&Outcome::completed()).unwrap();
        }
        log.sync().unwrap();
        if round >= 2 {
            for number in 0..10 {
                log.delete_run(format!("run-{}-{number}", round - 2).as_str()).unwrap();
            }
        }
        log.checkpoint().unwrap();
        log.reclaim().unwrap();
        if round == 20 {
            longest = storage.to_bytes().len();
        }
    }
    let len = storage.to_bytes().len();
    assert!(len <= longest + (4 << 16), "{len} after {longest}: {:?}", log.stats());
    assert!(matches!(log.run("run-3-3"), Err(Error::RunNotFound { .. })));
    let page = log.all_runs(None, 1000).unwrap();
    assert_eq!(page.runs.len(), 20);
    assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify());
    log.close().unwrap();
    let log = options().open_storage(storage).unwrap();
    assert_eq!(log.all_runs(None, 1000).unwrap().runs.len(), 20);
    assert!(log.verify().unwrap().is_clean(), "{:?}", log.verify());
}
