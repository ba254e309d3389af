//! Retention by runlog.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use runlog::{
    Durability, Metadata, NewRecord, Options, Outcome, Retention, RunLog, RunQuery, RunStatus,
};

use super::Measured;
use super::data::{AGENTS, Data, KEEP, RECORDS, Step, agent_name, agent_of, payload, run_name};
use super::sizes::{self, Sizes};
use crate::measure::processor;

/// The times at which the file is checked again.
const LATER: Duration = Duration::from_secs(5);

/// Fills a store, collects, and checks what is left.
pub(crate) fn measure(data: Data, folder: &Path) -> Measured {
    let path = folder.join("peers.runlog");
    let log = Options::new().create(&path).unwrap();
    fill(data, &log);
    let policy = Retention::new().keep_newest(u64::from(KEEP));
    let stop = AtomicBool::new(false);
    let (began, worked) = (Instant::now(), processor());
    let (delete, collected, right_after, seen) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| sizes::watch(&path, began, &stop));
        let collected = log.gc(&policy).unwrap();
        let delete = began.elapsed();
        let right_after = Sizes::of(&[&path]);
        std::thread::sleep(LATER);
        stop.store(true, Ordering::Release);
        (delete, collected, right_after, watching.join().unwrap())
    });
    let processor = processor().saturating_sub(worked);
    let later = Sizes::of(&[&path]);
    let stats = log.stats().unwrap();
    let live = collected.plan.totals.kept_bytes;
    let bound = live * 115 / 100 + 8 * stats.extent_len;
    check(data, &log);
    // If the file is still too large after five seconds, that counts as five seconds.
    let space = sizes::small_since(&seen, bound).unwrap_or(LATER).max(delete);
    Measured { delete, space, processor, right_after, later, bound, live }
}

fn fill(data: Data, log: &RunLog) {
    let process = Durability::Process;
    let mut writers = HashMap::new();
    data.each_step(|step| match step {
        Step::Start { run } => {
            let metadata = Metadata::new(b"{}").durability(process);
            let agent = agent_name(agent_of(run));
            writers.insert(run, log.start_run(&agent, &run_name(run), metadata).unwrap());
        }
        Step::Append { run, seq } => {
            let _ = writers[&run].append_record(&NewRecord::json(&payload(run, seq))).unwrap();
        }
        Step::End { run } => {
            let writer = writers.remove(&run).unwrap();
            let _ = writer.end(&Outcome::completed().durability(process)).unwrap();
        }
    });
    log.sync().unwrap();
    log.checkpoint().unwrap();
}

/// Checks that exactly the kept runs of the policy are left, with their contents.
fn check(data: Data, log: &RunLog) {
    for agent in 0..AGENTS {
        let page = log.list_runs(&RunQuery::new().agent(&agent_name(agent)).limit(10_000)).unwrap();
        let completed = page.runs.iter().filter(|run| run.status == RunStatus::Completed);
        let mut left: Vec<&str> = completed.map(|run| run.run.as_str()).collect();
        left.sort_unstable_by(|left, right| right.cmp(left));
        let kept: Vec<String> = data.kept_of(agent).into_iter().map(run_name).collect();
        assert_eq!(left, kept);
    }
    let in_progress = log
        .list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(10_000))
        .unwrap()
        .runs;
    let mut left: Vec<&str> = in_progress.iter().map(|run| run.run.as_str()).collect();
    left.sort_unstable();
    let begun: Vec<String> = data.in_progress().into_iter().map(run_name).collect();
    assert_eq!(left, begun);
    for run in data.in_progress().into_iter().chain(data.kept_of(7)) {
        let trace = log.trace(run_name(run).as_str()).unwrap().map(Result::unwrap);
        let records: Vec<Vec<u8>> = trace.map(|record| record.payload().to_vec()).collect();
        let written: Vec<Vec<u8>> = (0..RECORDS).map(|seq| payload(run, seq).to_vec()).collect();
        assert!(records == written, "the records of run {run} are what was written");
    }
    let gone = (0..data.runs()).find(|run| !data.is_in_progress(*run)).unwrap();
    assert!(matches!(log.trace(run_name(gone).as_str()), Err(runlog::Error::RunNotFound { .. })));
    assert!(log.verify().unwrap().is_clean());
}
