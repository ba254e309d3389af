//! Everything that a caller does to a store, and what must hold whatever its bytes are: nothing
//! panics, the work is bounded by the length of the file, and what was acknowledged is there when
//! the store is opened again.

use std::sync::Arc;

use runlog::{
    Allow, Batch, Compaction, Compression, Error, Expected, NewRecord, Outcome, Record, Retention,
    RunLog, RunQuery, RunStatus, RunSummary, Seq, Trace,
};

use super::counted::{Counted, Done};
use super::stores::{SPACE, options};

/// The most runs that are looked at.
const RUNS: usize = 128;
const AGENT: &str = "new agent";
/// What runs of the store get.
const BEHIND: &[u8] = b"behind what the store says of itself";

/// How far one input came.
#[derive(Debug, Default, Clone, Copy)]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzzer reads only some of it"))]
pub(crate) struct Work {
    pub(crate) opened: bool,
    /// The records and documents that were acknowledged.
    pub(crate) acknowledged: usize,
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

/// What was acknowledged: records by run, and documents.
#[derive(Debug, Default)]
struct Acknowledged {
    runs: Vec<(String, Vec<Vec<u8>>)>,
    documents: Vec<(String, Vec<u8>)>,
    /// Runs of the store that got a record.
    continued: Vec<RunSummary>,
}

/// What may be done to a file: opening it twice, asking everything twice, moving all of it.
fn most(len: usize) -> Done {
    Done { calls: 30_000 + len as u64 / 4, bytes: (128 << 20) + 256 * len as u64 }
}

/// Opens a file, uses it in one of several ways, and opens it again.
///
/// The upper half of `ways` says what is left out, so that a campaign comes to more stores, and
/// whether the runs of the store go on.
pub(crate) fn exercise(bytes: Vec<u8>, ways: u16) -> Work {
    let most = most(bytes.len());
    let way = |bit: u16| ways >> bit & 1 != 0;
    let [brief, unverified, unread, unindexed, continues] = [8, 9, 10, 11, 12].map(way);
    let compression = if way(0) { Compression::None } else { Compression::Zstd { level: 1 } };
    let options = |boot: u16| {
        let compaction = Compaction::new().automatic(way(1));
        options(boot as u8)
            .index(!way(2) && !unindexed)
            .compression(compression)
            .compaction(compaction)
    };
    let file = Arc::new(Counted::new(bytes, most));
    let log = match options(7 + (ways >> 7 & 1)).open_storage(file.clone()) {
        Ok(log) => log,
        Err(error) => {
            file.check();
            let _ = error.to_string();

            return Work { calls: file.done().calls, bytes: file.done().bytes, ..Work::default() };
        }
    };
    let _ = log.recovery_report().to_string();
    if way(3) {
        read_all(&log, Traces::Reversed);
    }
    let mut acknowledged = Acknowledged::default();
    let _ = write(&log, &mut acknowledged, 0);
    if way(4) {
        let _ = delete(&log);
    }
    if !brief {
        read_all(&log, Traces::InOrder);
        let _ = log.verify();
    }
    let _ = write(&log, &mut acknowledged, 1);
    if continues {
        acknowledged.continued = go_on(&log);
    }
    acknowledged.check(&log);
    let count = acknowledged.count();
    // The file of a process that is killed now, or that closes the store.
    let killed = way(5).then(|| file.to_bytes());
    let closed = log.close();
    file.check();
    let first = file.done();
    let file = match killed {
        Some(left) => Arc::new(Counted::new(left, most)),
        None => file,
    };
    file.count_anew();
    let log = match options(7 + (ways >> 6 & 1)).open_storage(file.clone()) {
        Ok(log) => log,
        Err(error) => {
            assert!(count == 0, "{error}, after it was closed: {closed:?}");
            return Work { opened: true, ..Work::default() };
        }
    };
    acknowledged.check(&log);
    let _ = log.compact();
    if !unverified {
        let _ = log.verify();
    }
    acknowledged.check(&log);
    if !unread {
        read_all(&log, Traces::Reversed);
    }
    let _ = log.close();
    file.check();
    let (calls, bytes) = (first.calls + file.done().calls, first.bytes + file.done().bytes);
    Work { opened: true, acknowledged: count, calls, bytes }
}

impl Acknowledged {
    fn count(&self) -> usize {
        self.documents.len()
            + self.continued.len()
            + self.runs.iter().map(|(_, records)| records.len()).sum::<usize>()
    }

    fn check(&self, log: &RunLog) {
        for (run, records) in self.runs.iter().filter(|(_, records)| !records.is_empty()) {
            let trace = log.trace((AGENT, run.as_str()));
            let trace = trace.unwrap_or_else(|error| panic!("{run} was acknowledged: {error}"));
            let found: Result<Vec<Vec<u8>>, Error> =
                trace.map(|record| Ok(record?.payload().to_vec())).collect();
            let found = found.unwrap_or_else(|error| panic!("{run} was acknowledged: {error}"));
            let short = |records: &[Vec<u8>]| {
                records.iter().map(|one| (one.len(), one.first().copied())).collect::<Vec<_>>()
            };
            assert_eq!(short(&found), short(records), "the records of {run}");
        }
        for run in &self.continued {
            let last = last_of(log, run);
            let last = last.unwrap_or_else(|error| panic!("{} went on: {error}", run.run));
            assert!(last.is_some_and(|last| last == BEHIND), "the last record of {}", run.run);
        }
        for (key, value) in &self.documents {
            let found = log.docs().get(SPACE, key);
            let found = found.unwrap_or_else(|error| panic!("{key} was acknowledged: {error}"));
            let found = found.unwrap_or_else(|| panic!("{key} was acknowledged"));
            assert_eq!(found.payload(), value, "the document {key}");
        }
    }
}

/// How the records of a run are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Traces {
    InOrder,
    Reversed,
}

/// Reads whatever can be read; an error ends what it is about.
fn read_all(log: &RunLog, traces: Traces) {
    let mut runs: Vec<RunSummary> = Vec::new();
    let mut after = None;
    while let Ok(page) = log.list_runs(&RunQuery::new().limit(16).after(after)) {
        runs.extend(page.runs);
        after = page.next;
        if after.is_none() || runs.len() >= RUNS {
            break;
        }
    }
    let mut agent = None;
    for _ in 0..8 {
        let Ok(agents) = log.agents(agent.as_ref(), 4) else { break };
        for one in &agents {
            let _ = log.list_runs(&RunQuery::new().agent(one.as_str()).limit(16));
        }
        agent = agents.last().cloned();
        if agent.is_none() {
            break;
        }
    }
    let _ = log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(16));
    let mut after = None;
    for _ in 0..16 {
        let Ok(page) = log.docs().list(SPACE, "", after.as_deref(), 3) else { break };
        for listed in &page.documents {
            let _ = log.docs().get(SPACE, &listed.key).map(|found| found.map(|one| one.version()));
        }
        after = page.documents.last().map(|last| last.key.clone());
        if after.is_none() {
            break;
        }
    }
    let _ = (log.receipts(16), log.held_runs(), log.stats());
    let _ = log.gc_plan(&Retention::new().keep_newest(1));
    for summary in runs {
        read_run(log, &summary, traces);
    }
}

fn read_run(log: &RunLog, summary: &RunSummary, traces: Traces) {
    let look = |record: Record| {
        let _ = (record.kind(), record.timestamp(), record.content_type(), record.payload().len());
    };
    let (agent, run) = (summary.agent.as_str(), summary.run.as_str());
    let _ = (log.agent_of(run), log.run((agent, run)));
    let _ = (log.metadata((agent, run)).is_ok(), log.outcome((agent, run)));
    let Ok(trace) = log.trace((agent, run)) else { return };
    match traces {
        Traces::InOrder => trace.take(RUNS).flatten().for_each(look),
        Traces::Reversed => trace.rev().take(RUNS).flatten().for_each(look),
    }
    let middle = summary.records / 2;
    let range = log.trace((agent, run)).and_then(|trace| trace.range(Seq(middle)..));
    if let Ok(Some(Ok(record))) = range.map(|mut trace| trace.next()) {
        let _ = record.payload().len();
    }
}

/// Writes runs and documents, and notes what was acknowledged.
fn write(log: &RunLog, done: &mut Acknowledged, round: u8) -> runlog::Result<()> {
    for number in 0..2_u8 {
        let run = format!("new-{number}");
        let writer = log.start_run(AGENT, &run, b"metadata")?;
        if round == 0 {
            done.runs.push((run.clone(), Vec::new()));
        }
        let records = &mut done.runs[usize::from(number)].1;
        let large = vec![number * 2 + round; 20_000];
        for payload in [&b"one"[..], b"", &large, b"four"] {
            let _ = writer.append(payload)?;
            records.push(payload.to_vec());
        }
        let _ = writer.append_batch(&[NewRecord::new(b"five"), NewRecord::new(b"six")])?;
        records.extend([b"five".to_vec(), b"six".to_vec()]);
        if (number, round) == (1, 0) {
            let _ = log.hold((AGENT, run.as_str()), "a reason")?;
            let _ = writer.end(&Outcome::completed())?;
            let late = NewRecord::new(b"late");
            let _ = log.append_to(AGENT, &run, &late, Allow::everything())?;
            records.push(b"late".to_vec());
            break;
        }
        if (number, round) == (0, 1) {
            break;
        }
    }
    let keys = ["key-1", "a new key"].map(|key| format!("{key}{round}"));
    let mut batch = Batch::new();
    for key in &keys {
        batch.put(SPACE, key, NewRecord::new(b"written together"));
    }
    batch.append(AGENT, "new-0", NewRecord::new(b"seven")).delete(SPACE, "key-2");
    let _ = log.commit(&batch)?;
    done.documents.extend(keys.map(|key| (key, b"written together".to_vec())));
    done.runs[0].1.push(b"seven".to_vec());
    let _ = log.docs().put_if(SPACE, "key-3", &NewRecord::new(b"new"), Expected::Absent);
    log.sync()
}

/// Deletes some of what was there, and moves the rest; each for itself, since damage may refuse it.
fn delete(log: &RunLog) -> runlog::Result<()> {
    let _ = log.adopt_orphans();
    let page = log.list_runs(&RunQuery::new().limit(5))?;
    let mut runs = page.runs.iter().filter(|summary| summary.agent != AGENT);
    for summary in runs.by_ref().take(2) {
        let _ = log.delete_run((summary.agent.as_str(), summary.run.as_str()));
    }
    let _ = (log.checkpoint(), log.compact(), log.reclaim());
    if let Some(summary) = runs.next() {
        let _ = log.hold((summary.agent.as_str(), summary.run.as_str()), "a reason");
    }
    if let Some(summary) = runs.next() {
        let _ = log.erase_run((summary.agent.as_str(), summary.run.as_str()));
    }
    let _ = log.gc(&Retention::new().keep_newest(4));
    let _ = log.docs().erase(SPACE, "all");
    log.reclaim()
}

/// The number that the next run of a store gets.
#[cfg(test)]
pub(crate) fn next_run_number(bytes: Vec<u8>) -> u64 {
    let most = most(bytes.len());
    let log = options(7).index(false).open_storage(Arc::new(Counted::new(bytes, most)));
    let log = log.expect("nothing was changed");
    drop(log.start_run(AGENT, "next", ()).expect("nothing was changed"));
    log.run((AGENT, "next")).expect("it was started").number().0
}

fn trace_of(log: &RunLog, run: &RunSummary) -> runlog::Result<Trace> {
    log.trace((run.agent.as_str(), run.run.as_str()))
}

/// The last record of a run.
fn last_of(log: &RunLog, run: &RunSummary) -> runlog::Result<Option<Vec<u8>>> {
    let last = trace_of(log, run)?.next_back().transpose()?;
    Ok(last.map(|last| last.payload().to_vec()))
}

/// Appends to the runs of the store in progress. Those that have the record.
fn go_on(log: &RunLog) -> Vec<RunSummary> {
    let running = RunQuery::new().status(RunStatus::InProgress).limit(RUNS);
    let mut runs = log.list_runs(&running).map(|page| page.runs).unwrap_or_default();
    runs.retain(|run| {
        let writer = log.writer((run.agent.as_str(), run.run.as_str()));
        let appended = run.agent != AGENT && writer.and_then(|run| run.append(BEHIND)).is_ok();
        appended && last_of(log, run).is_ok_and(|last| last.is_some_and(|last| last == BEHIND))
    });
    // The machine may be restarted next.
    if log.sync().is_ok() { runs } else { Vec::new() }
}

/// Opens a file, appends to the runs in progress, and moves all: what was their last record before
/// that is their last one afterwards. How many runs went on.
#[cfg(test)]
pub(crate) fn go_on_and_move(bytes: Vec<u8>) -> usize {
    let options =
        options(7).compression(Compression::None).compaction(Compaction::new().automatic(false));
    let most = most(bytes.len());
    let Ok(log) = options.open_storage(Arc::new(Counted::new(bytes, most))) else { return 0 };
    let acknowledged = Acknowledged { continued: go_on(&log), ..Acknowledged::default() };
    let _ = (log.checkpoint(), log.compact());
    acknowledged.check(&log);
    acknowledged.count()
}

/// Opens a file, appends to the runs in progress, fills the segment, and opens it again, three
/// times, from the second time on behind a compaction: the runs keep all of their records. How many
/// times a run went on, and how many compactions left no damaged segment.
#[cfg(test)]
pub(crate) fn go_on_and_reopen(bytes: Vec<u8>) -> [usize; 2] {
    let most = most(bytes.len() + (1 << 20));
    let file = Arc::new(Counted::new(bytes, most));
    let [mut went_on, mut moved] = [0; 2];
    let options = |boot| options(boot).compaction(Compaction::new().automatic(false));
    let compact = |log: &RunLog| {
        let _ = log.compact();
        usize::from(log.health().compaction.is_none())
    };
    for boot in 7..10 {
        let Ok(log) = options(boot).open_storage(file.clone()) else { break };
        if boot > 7 {
            moved += compact(&log);
        }
        let acknowledged = Acknowledged { continued: go_on(&log), ..Acknowledged::default() };
        let told = |log: &RunLog| -> Vec<String> {
            let runs = acknowledged.continued.iter();
            let told = runs.map(|run| {
                let summary = log.run((run.agent.as_str(), run.run.as_str()));
                let count = trace_of(log, run).map_or(0, |trace| trace.flatten().count());
                format!("{count} records of {summary:?}")
            });
            told.collect()
        };
        let before = told(&log);
        let _ = log.docs().put(SPACE, "large", &NewRecord::new(&[7; 60_000]));
        let _ = log.checkpoint();
        let closed = log.close();
        let left = Arc::new(Counted::new(file.to_bytes(), most));
        let log = match options(boot).open_storage(left) {
            Ok(log) => log,
            Err(error) => panic!("{error}, after it was closed: {closed:?}"),
        };
        for _ in 0..2 {
            acknowledged.check(&log);
            assert_eq!(told(&log), before);
            moved += compact(&log);
        }
        went_on += acknowledged.count();
        file.count_anew();
    }
    [went_on, moved]
}
