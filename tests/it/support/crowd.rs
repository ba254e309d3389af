//! Threads that write to a store on a real file, and what must be there of their work.
//!
//! - What a run contains follows from its [`RunKey`], so two counts say what it must have.
//! - A [`Worker`] starts runs, appends to some at a time, ends them, deletes most of those that
//!   ended, and writes documents. It tells of each call before and after it.
//! - The [`Ledger`] keeps that. Readers compare each answer with it while the workers go on, and
//!   [`Ledger::settle`] compares everything once they are gone.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use runlog::{
    ContentType, Durability, Error, Metadata, NewRecord, Outcome, ReadLog, Record, RunLog,
    RunQuery, RunStatus, RunSummary, RunWriter,
};
use runlog_sim::SplitMix64;

/// The most records that one call appends.
const LONGEST_BATCH: u64 = 6;
/// The runs that a worker appends to at a time, and the ended ones that it keeps.
const OPEN: usize = 3;
const KEPT: usize = 6;

/// A run: the thread and the process that started it, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RunKey {
    pub(crate) thread: u64,
    pub(crate) child: u64,
    pub(crate) number: u64,
}

impl RunKey {
    pub(crate) fn agent(self) -> String {
        format!("agent-{}", self.thread)
    }

    pub(crate) fn run(self) -> String {
        format!("{}-{}-{}", self.thread, self.child, self.number)
    }

    pub(crate) fn from_run(run: &str) -> Self {
        let parts: Vec<u64> = run.split('-').map(|part| part.parse().unwrap()).collect();
        let [thread, child, number] = parts[..] else { panic!("{run} is no run of a worker") };
        Self { thread, child, number }
    }

    fn random(self, case: u64) -> SplitMix64 {
        let run = self.child << 32 | self.number << 8 | self.thread;
        SplitMix64::for_case(SplitMix64::for_case(run, 1).next_u64(), case)
    }

    fn metadata(self) -> Vec<u8> {
        let mut random = self.random(u64::MAX);
        let mut bytes = vec![0; random.index(200)];
        random.fill(&mut bytes);
        bytes
    }

    /// How many records the run gets before it ends.
    pub(crate) fn len(self) -> u64 {
        10 + self.random(u64::MAX - 1).below(80)
    }

    fn outcome(self) -> Outcome {
        let mut random = self.random(u64::MAX - 2);
        let outcome = if random.coin() { Outcome::completed() } else { Outcome::failed() };
        outcome.json(&random.next_u64().to_le_bytes())
    }

    fn record(self, seq: u64) -> Content {
        let mut random = self.random(seq);
        let len = match random.below(100) {
            0 => 0,
            1..70 => 50 + random.index(750),
            70..95 => 800 + random.index(3_200),
            95..99 => 4_000 + random.index(16_000),
            // Above the inline limit: cut into pieces.
            _ => 33_000 + random.index(70_000),
        };
        let mut payload = vec![0; len];
        random.fill(&mut payload);
        let kind = ["", "turn", "tool", "message"][random.index(4)];
        let content = if random.coin() { ContentType::JSON } else { ContentType::BYTES };
        Content { payload, kind, content }
    }

    pub(crate) fn payload(self, seq: u64) -> Vec<u8> {
        self.record(seq).payload
    }

    /// The record has this sequence, and the bytes that follow from it.
    pub(crate) fn check<B: Deref<Target = [u8]>>(self, seq: u64, record: &Record<B>) {
        let content = self.record(seq);
        let is_same = *record.payload() == *content.payload
            && record.kind().unwrap_or_default() == content.kind
            && record.content_type() == content.content
            && !record.is_late();
        assert!(record.seq().0 == seq && is_same, "{self:?} {seq} is another one: {record:?}");
    }
}

/// A record as it must come back.
struct Content {
    payload: Vec<u8>,
    kind: &'static str,
    content: ContentType,
}

impl Content {
    fn to_record(&self) -> NewRecord<'_> {
        NewRecord::new(&self.payload).kind(self.kind).content_type(self.content)
    }
}

/// What a worker tells of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Starting,
    Started,
    /// So many records.
    Appending(u64),
    Appended(u64),
    Ending,
    Ended,
    Deleting,
    Deleted,
}

/// One thread that writes.
pub(crate) struct Worker<'l, T> {
    pub(crate) log: &'l RunLog,
    pub(crate) thread: u64,
    pub(crate) child: u64,
    pub(crate) random: SplitMix64,
    pub(crate) tell: T,
}

impl<T: Fn(RunKey, Op)> Worker<'_, T> {
    /// Works as long as it may, with the runs of its thread that there are.
    pub(crate) fn run(&mut self, goes_on: impl Fn() -> bool) {
        let (mut open, mut ended) = self.find_runs();
        let mut next = 0;
        while goes_on() {
            if open.len() < OPEN {
                let run = RunKey { thread: self.thread, child: self.child, number: next };
                next += 1;
                open.push((run, self.start(run), 0));
            }
            let place = self.random.index(open.len());
            let (run, writer, seq) = &mut open[place];
            let left = run.len() - *seq;
            if left > 0 {
                let batch = match self.random.below(8) {
                    0 => self.random.below(LONGEST_BATCH),
                    _ => 0,
                };
                let count = (1 + batch).min(left);
                let is_durable = self.random.below(16) == 0;
                self.append(*run, writer, *seq..*seq + count, is_durable);
                *seq += count;
                continue;
            }
            let (run, writer, _) = open.swap_remove(place);
            (self.tell)(run, Op::Ending);
            let _ = writer.end(&run.outcome()).unwrap();
            (self.tell)(run, Op::Ended);
            ended.push(run);
            let key = self.random.below(9).to_string();
            self.log.docs().put("docs", &key, &NewRecord::new(run.run().as_bytes())).unwrap();
            while ended.len() > KEPT {
                let gone = ended.swap_remove(self.random.index(ended.len()));
                (self.tell)(gone, Op::Deleting);
                self.log.delete_run(&*gone.run()).unwrap();
                (self.tell)(gone, Op::Deleted);
            }
            if self.random.below(40) == 0 {
                let _ = self.log.compact().unwrap();
            }
        }
    }

    /// The runs of this thread: open ones with their lengths, and ended ones.
    fn find_runs(&self) -> (Vec<(RunKey, RunWriter, u64)>, Vec<RunKey>) {
        let (mut open, mut ended) = (Vec::new(), Vec::new());
        let agent = format!("agent-{}", self.thread);
        for summary in self.log.runs(&RunQuery::new().agent(&agent)) {
            let summary = summary.unwrap();
            let run = RunKey::from_run(summary.run.as_str());
            match summary.status {
                RunStatus::InProgress => {
                    open.push((run, self.log.writer(&summary).unwrap(), summary.records));
                }
                _ => ended.push(run),
            }
        }
        (open, ended)
    }

    fn start(&self, run: RunKey) -> RunWriter {
        (self.tell)(run, Op::Starting);
        let metadata = run.metadata();
        let metadata = Metadata::new(&metadata).durability(Durability::Process);
        let writer = self.log.start_run(&run.agent(), &run.run(), metadata).unwrap();
        (self.tell)(run, Op::Started);
        writer
    }

    fn append(&self, run: RunKey, writer: &RunWriter, seqs: core::ops::Range<u64>, durable: bool) {
        let level = if durable { Durability::Disk } else { Durability::Process };
        let (count, last) = (seqs.end - seqs.start, seqs.end - 1);
        let contents: Vec<_> = seqs.map(|seq| run.record(seq)).collect();
        let new: Vec<_> = contents.iter().map(|one| one.to_record().durability(level)).collect();
        (self.tell)(run, Op::Appending(count));
        let appended = match &new[..] {
            [record] => writer.append_record(record).unwrap(),
            records => writer.append_batch(records).unwrap(),
        };
        assert_eq!(appended.seq.0, last, "of {run:?}");
        (self.tell)(run, Op::Appended(count));
    }
}

/// What is known of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) started: bool,
    /// Records that are acknowledged, and those of which the append has begun.
    pub(crate) acknowledged: u64,
    begun: u64,
    ending: bool,
    pub(crate) ended: bool,
    pub(crate) deleting: bool,
    pub(crate) deleted: bool,
}

/// What is known of all runs.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<RunKey, Known>>);

impl Ledger {
    pub(crate) fn note(&self, run: RunKey, op: Op) {
        let mut runs = self.0.lock().unwrap();
        let known = runs.entry(run).or_default();
        match op {
            Op::Starting => {}
            Op::Started => known.started = true,
            Op::Appending(count) => known.begun += count,
            Op::Appended(count) => known.acknowledged += count,
            Op::Ending => known.ending = true,
            Op::Ended => known.ended = true,
            Op::Deleting => known.deleting = true,
            Op::Deleted => known.deleted = true,
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<RunKey, Known> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn of(&self, run: RunKey) -> Known {
        self.0.lock().unwrap()[&run]
    }

    /// Whether a run may have so many records, of which `before` was known before the question.
    pub(crate) fn check_count(&self, run: RunKey, before: &Known, count: u64) {
        let now = self.of(run);
        let is_so = (before.acknowledged..=now.begun).contains(&count);
        assert!(is_so && !before.deleted, "{run:?}: {count} of {before:?}, {now:?}");
    }

    /// A run that is not found was deleted, or not there before the question.
    pub(crate) fn check_gone(&self, run: RunKey, before: &Known, error: &Error) {
        let is_gone = matches!(error, Error::RunNotFound { .. } | Error::Evicted { .. });
        let may_be_gone = self.of(run).deleting || !before.started;
        assert!(is_gone && may_be_gone, "{run:?}: {error}; {before:?}");
    }

    /// Asks for all records of a run.
    pub(crate) fn check_run(&self, log: &impl ReadLog, run: RunKey, before: &Known) {
        let trace = log.trace(&*run.run());
        match trace.and_then(|trace| trace.collect::<Result<Vec<_>, _>>()) {
            Err(error) => self.check_gone(run, before, &error),
            Ok(records) => {
                records.iter().zip(0..).for_each(|(record, seq)| run.check(seq, record));
                self.check_count(run, before, records.len() as u64);
            }
        }
    }

    /// A list has each living run once, with its status.
    pub(crate) fn check_list(&self, log: &impl ReadLog, before: &BTreeMap<RunKey, Known>) {
        let listed: Vec<_> = log.runs(&RunQuery::new()).map(|run| run.unwrap()).collect();
        let now = self.all();
        let key = |run: &RunSummary| (RunKey::from_run(run.run.as_str()), run.status);
        let statuses: BTreeMap<RunKey, RunStatus> = listed.iter().map(key).collect();
        assert_eq!(statuses.len(), listed.len(), "a run is listed twice");
        for (run, before) in before {
            let (found, now) = (statuses.get(run), &now[run]);
            assert!(found.is_some() || now.deleting || !before.started, "{run:?} is not listed");
            assert!(found.is_none() || !before.deleted, "{run:?} was deleted");
            let has_ended = found.is_some_and(|status| status.is_ended());
            let is_right = (has_ended || !before.ended) && (!has_ended || now.ending);
            assert!(found.is_none() || is_right, "{run:?} is {found:?}: {before:?}, {now:?}");
        }
    }

    /// Compares all of a store that nobody writes any more, and takes what is there of the calls
    /// that nobody acknowledged: from then on it must stay.
    pub(crate) fn settle(&self, log: &impl ReadLog) {
        let before = self.all();
        self.check_list(log, &before);
        let mut runs = BTreeMap::new();
        for summary in lists(log) {
            let run = RunKey::from_run(summary.run.as_str());
            assert_eq!(summary.agent, run.agent().as_str(), "{run:?}");
            assert_eq!(log.agent_of(&run.run()).unwrap(), run.agent().as_str());
            let known = &before[&run];
            self.check_run(log, run, known);
            let count = summary.records;
            let is_whole = count == known.acknowledged || count == known.begun;
            assert!(is_whole, "a part of a call is there: {count}, {known:?}");
            let name = (&summary.agent, &summary.run);
            let metadata = log.metadata(name).unwrap().expect("the run was started");
            assert_eq!(metadata.payload(), run.metadata(), "{run:?}");
            let ended = summary.status.is_ended();
            if ended {
                let (outcome, expected) = (log.outcome(name).unwrap().unwrap(), run.outcome());
                assert_eq!(outcome.status(), expected.status(), "{run:?}");
                assert_eq!(outcome.payload(), expected.payload(), "{run:?}");
                assert_eq!(count, run.len(), "{run:?}");
            }
            let (acknowledged, begun) = (count, count);
            let (ending, started) = (ended, true);
            let known = Known { started, acknowledged, begun, ending, ended, ..Known::default() };
            runs.insert(run, known);
        }
        for run in before.into_keys().filter(|run| !runs.contains_key(run)).collect::<Vec<_>>() {
            let gone = log.run((&*run.agent(), &*run.run()));
            assert!(matches!(gone, Err(Error::RunNotFound { .. })), "{gone:?}");
            let known = Known { deleting: true, deleted: true, ..Known::default() };
            runs.insert(run, known);
        }
        *self.0.lock().unwrap() = runs;
        let report = log.verify().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

/// All runs by three lists, which must agree.
fn lists(log: &impl ReadLog) -> Vec<RunSummary> {
    let all: Vec<_> = log.runs(&RunQuery::new()).map(|run| run.unwrap()).collect();
    let sorted = |mut runs: Vec<RunSummary>| {
        runs.sort_by(|one, other| one.run.as_str().cmp(other.run.as_str()));
        runs
    };
    let all = sorted(all);
    let page = |query: RunQuery| log.list_runs(&query.limit(10_000)).unwrap().runs;
    let agents = log.agents(None, 1000).unwrap();
    let by_agent = agents.iter().flat_map(|agent| page(RunQuery::new().agent(agent.as_str())));
    assert_eq!(sorted(by_agent.collect()), all);
    let running = page(RunQuery::new().status(RunStatus::InProgress).oldest_first());
    let expected = all.iter().filter(|summary| summary.status == RunStatus::InProgress);
    assert!(expected.eq(&sorted(running)));
    all
}

/// What a thread does beside the workers, until it is over.
pub(crate) type Beside<'s, T> = Box<dyn FnOnce(&AtomicBool) -> T + Send + 's>;

/// Two workers take so many steps each, and others do their work beside them.
pub(crate) fn work_beside<T: Send>(
    log: &RunLog,
    ledger: &Ledger,
    steps: u64,
    others: Vec<Beside<'_, T>>,
) -> Vec<T> {
    let over = AtomicBool::new(false);
    let work = |thread| {
        let (random, left) = (SplitMix64::new(thread), AtomicU64::new(steps));
        let tell = |run, op| ledger.note(run, op);
        let mut worker = Worker { log, thread, child: 0, random, tell };
        worker.run(|| left.fetch_sub(1, Ordering::Relaxed) > 1);
    };
    thread::scope(|scope| {
        let over = &over;
        let others: Vec<_> =
            others.into_iter().map(|other| scope.spawn(move || other(over))).collect();
        let workers: Vec<_> = (0..2).map(|thread| scope.spawn(move || work(thread))).collect();
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Release);
        done.into_iter().for_each(|done| done.unwrap());
        others.into_iter().map(|other| other.join().unwrap()).collect()
    })
}
