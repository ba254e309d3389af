//! Looking runs up: by one directory after the other, and, after many lookups, by one table.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Allow, Error, Metadata, NewRecord, Options, Outcome, RunLog};

fn records(log: &RunLog, run: &str) -> Vec<(u64, Vec<u8>)> {
    let trace = log.trace(run).unwrap().map(Result::unwrap);
    trace.map(|record| (record.seq().0, record.payload().to_vec())).collect()
}

/// Runs of one segment, of two and of many.
fn filled() -> (RunLog, Vec<String>) {
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let runs: Vec<String> = (0..60).map(|run| format!("run-{run}")).collect();
    for (number, run) in runs.iter().enumerate() {
        let writer = log.start_run(&format!("agent-{}", number % 7), run, ()).unwrap();
        for record in 0..(number % 9) * 40 {
            let bytes = format!("{run} {record} {}", "x".repeat(number * 5));
            let _ = writer.append(bytes.as_bytes()).unwrap();
        }
        let _ = writer.end(&Outcome::completed()).unwrap();
    }
    log.checkpoint().unwrap();
    (log, runs)
}

#[test]
fn runs_are_found_again_with_all_of_their_records() {
    let (log, runs) = filled();
    let first: Vec<_> = runs.iter().map(|run| records(&log, run)).collect();
    assert_eq!(first[17].len(), 320);
    for _ in 0..4 {
        for (run, first) in runs.iter().zip(&first) {
            assert_eq!(&records(&log, run), first, "{run}");
            let summary = log.run(run).unwrap();
            assert_eq!(summary.records, first.len() as u64, "{run}");
            assert_eq!(log.agent_of(run).unwrap(), summary.agent);
            assert_eq!(log.trace(run).unwrap().agent(), &summary.agent);
        }
    }
}

#[test]
fn what_happens_after_a_lookup_is_seen_by_the_next_one() {
    let (log, runs) = filled();
    for _ in 0..3 {
        for run in &runs {
            drop(records(&log, run));
        }
    }
    log.delete_run(runs[20].as_str()).unwrap();
    let _ = log.start_run("another", &runs[30], Metadata::new(b"{}")).unwrap();
    let late = NewRecord::new(b"late");
    let _ = log.append_to("agent-5", &runs[40], &late, Allow::everything()).unwrap();
    for checkpointed in [false, true] {
        if checkpointed {
            log.checkpoint().unwrap();
        }
        for _ in 0..2 {
            let gone = log.trace(runs[20].as_str()).unwrap_err();
            assert!(matches!(gone, Error::RunNotFound { .. }), "{gone:?}");
            let two = log.trace(runs[30].as_str()).unwrap_err();
            assert!(matches!(two, Error::Ambiguous { .. }), "{two:?}");
            assert_eq!(records(&log, &runs[40]).last().unwrap().1, b"late");
        }
    }
}
