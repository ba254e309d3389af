//! One writer at 50,000 records a second, with retention and compaction, beside four processes that
//! read: traces, lists, a follower, and backups.
//!
//! Goal: no answer is wrong, no record is missing or told twice, whatever is asked when; and the
//! appends of the writer take no longer than without the readers.
//!
//! Method: the writer's n-th step is a function of n, and it tells in a file how many steps are
//! acknowledged and how many have begun. So each reading process knows what each run must have at
//! least and at most, and compares all that it reads. Each millisecond the writer offers as many
//! appends as fall due, whether the ones before are done or not, first without readers, then with
//! them, then without. Two times are noted of each append: how long the call took, and how long
//! after it was due it was done. The second one has in it how long the writer's thread waited for a
//! processor that the readers had, so it depends on how many there are.
//!
//! It needs the machine for itself, so CI runs it alone:
//! `cargo test --test it -- --ignored load::`.

mod reading;
mod script;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use runlog::{
    AgentId, Durability, Limits, Metadata, NewRecord, Options, Outcome, Reader, Retention, RunLog,
    RunRef, RunWriter,
};

use runlog_sim::settings::{child, child_arguments, scale};
use script::{Board, LANES, Noise, RunKey, Step, Told, agent, kept, per_step};

/// How long the readers read.
const SECONDS: u64 = 20;
const RATE: u64 = 50_000;
/// How long the writer works without readers at most, each of the three times.
const LONGEST_QUIET: Duration = Duration::from_secs(30);
/// How far ahead the writer tells that steps may have begun, and how many it acknowledges at once.
const AHEAD: u64 = 64;
const TOGETHER: u64 = 8;
const RETENTION_EVERY: Duration = Duration::from_millis(300);
const SYNC_EVERY: Duration = Duration::from_millis(250);

/// Not a test of its own: the processes that the test below starts.
#[test]
fn started() {
    let Some(arguments) = child_arguments() else { return };
    let [folder, kind, pause] = &arguments[..] else { panic!("a folder, a kind and a pause") };
    let pause = Duration::from_millis(pause.parse().unwrap());
    reading::run(Path::new(folder), kind.parse().unwrap(), pause);
}

/// How long appends took, in nanoseconds.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    /// The time within which so many of a thousand appends are done, in microseconds.
    fn percentile(&mut self, of_a_thousand: usize) -> f64 {
        self.0.sort_unstable();
        let place = self.0.len() * of_a_thousand / 1000;
        self.0.get(place.min(self.0.len() - 1)).map_or(0.0, |nanos| *nanos as f64 / 1000.0)
    }

    fn print(&mut self, what: &str) {
        let [half, most, nearly, all] = [500, 990, 999, 1000].map(|part| self.percentile(part));
        println!("{what}: p50 {half:.1} us, p99 {most:.1}, p99.9 {nearly:.1}, longest {all:.1}");
    }
}

/// What the writer did for a while.
#[derive(Default)]
struct Work {
    /// How long each call took, and how long after it was due it was done.
    calls: Times,
    done: Times,
    records: u64,
    elapsed: Duration,
}

/// The thread that appends.
struct Writer<'a> {
    log: &'a RunLog,
    board: &'a Board,
    acknowledged: &'a AtomicU64,
    noise: Noise,
    open: Vec<Option<RunWriter>>,
    next: u64,
}

impl Writer<'_> {
    fn step(&mut self) -> u64 {
        let (run, step) = script::step(self.next);
        let place = run.lane as usize;
        match step {
            Step::Start => {
                let metadata = Metadata::new(b"").durability(Durability::Process);
                let started = self.log.start_run(&run.agent(), &run.run(), metadata);
                self.open[place] = Some(started.unwrap());
                0
            }
            Step::Append { seq } => {
                let (writer, count) = (self.open[place].as_ref().unwrap(), per_step(run.lane));
                if count == 1 {
                    writer.append(&run.payload(&self.noise, seq)).unwrap();
                    return 1;
                }
                let payloads = (seq..seq + count).map(|seq| run.payload(&self.noise, seq));
                let payloads: Vec<_> = payloads.collect();
                let records: Vec<_> = payloads.iter().map(|bytes| NewRecord::new(bytes)).collect();
                writer.append_batch(&records).unwrap();
                count
            }
            Step::End => {
                let writer = self.open[place].take().unwrap();
                writer.end(&Outcome::completed().durability(Durability::Process)).unwrap();
                0
            }
        }
    }

    /// Appends at the rate for so long.
    fn work(&mut self, rate: u64, time: Duration) -> Work {
        let (mut work, begun) = (Work::default(), Instant::now());
        let between = 1e9 * script::records_per_step() / rate as f64;
        for number in 0_u64.. {
            let due = Duration::from_millis((number as f64 * between / 1e6) as u64);
            if due >= time && self.next % AHEAD == 0 {
                break;
            }
            if let Some(early) = due.checked_sub(begun.elapsed()) {
                std::thread::sleep(early);
            }
            if self.next % AHEAD == 0 {
                self.board.set(Told::Begun, self.next + AHEAD);
            }
            let start = begun.elapsed();
            let records = self.step();
            if records > 0 {
                let now = begun.elapsed();
                work.calls.0.push((now - start).as_nanos() as u64);
                work.done.0.push(now.saturating_sub(due).as_nanos() as u64);
                work.records += records;
            }
            self.next += 1;
            if self.next % TOGETHER == 0 {
                self.acknowledged.store(self.next, Ordering::Release);
                self.board.set(Told::Acknowledged, self.next);
            }
        }
        work.elapsed = begun.elapsed();
        work
    }
}

/// Deletes what a policy does not keep, again and again.
fn retain(log: &RunLog, board: &Board, over: &Receiver<()>) -> u64 {
    let policy = (0..LANES).fold(Retention::new(), |policy, lane| {
        let limits = Limits::new().keep_newest(kept(lane));
        policy.for_agent(AgentId::new(&agent(lane)).unwrap(), limits)
    });
    let mut evicted = 0;
    while over.recv_timeout(RETENTION_EVERY) == Err(RecvTimeoutError::Timeout) {
        let plan = log.gc_plan(&policy).unwrap();
        let ids = |run: runlog::PlannedEviction| (run.agent.to_string(), run.run.to_string());
        let ids: Vec<_> = plan.evict.iter().map(ids).collect();
        let mut ends = vec![0; LANES as usize];
        for (_, run) in &ids {
            let RunKey { lane, number } = RunKey::from_run(run);
            let end = &mut ends[lane as usize];
            *end = (*end).max(number + 1);
        }
        let ends: Vec<(u64, u64)> = (0..LANES).zip(ends).filter(|(_, end)| *end > 0).collect();
        ends.iter().for_each(|(lane, end)| board.set(Told::MayGo(*lane), *end));
        let rules = plan.evict.iter().map(|run| run.rule);
        let runs: Vec<(RunRef<'_>, _)> = ids
            .iter()
            .map(|(agent, run)| (agent.as_str(), run.as_str()).into())
            .zip(rules)
            .collect();
        let collected = log.evict(&runs).unwrap();
        assert_eq!(collected.plan.evict.len(), runs.len());
        ends.iter().for_each(|(lane, end)| board.set(Told::Gone(*lane), *end));
        evicted += runs.len() as u64;
    }
    evicted
}

/// Tells what is durable.
fn sync(log: &RunLog, board: &Board, acknowledged: &AtomicU64, over: &Receiver<()>) {
    while over.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
        let before = acknowledged.load(Ordering::Acquire);
        log.sync().unwrap();
        board.set(Told::Durable, before);
    }
}

/// A process that reads.
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
    what: &'static str,
}

impl Process {
    fn start(dir: &Path, kind: u64, what: &'static str, pause: u64) -> Self {
        let arguments = [dir.to_str().unwrap(), &kind.to_string(), &pause.to_string()];
        let mut child = child("readers::load::started", &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        Self { child, says, what }
    }

    /// Waits until it has opened the store.
    fn is_ready(&mut self) {
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "{} ended by itself", self.what);
        }
    }

    /// Tells it that the writer waits; returns what it says that it did.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.says.read_to_string(&mut said).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}: {status}: {said}", self.what);
        let said = said.lines().find_map(|line| line.strip_prefix("said: "));
        said.unwrap_or_else(|| panic!("{} says nothing", self.what)).to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // If the test fails meanwhile.
        let _ = (self.child.kill(), self.child.wait());
    }
}

/// Goal and method: see the module.
#[test]
#[ignore = "it needs the machine for itself"]
fn four_processes_read_all_that_one_writer_acknowledges_and_do_not_hold_it_up() {
    let (seconds, rate) = (scale(SECONDS, SECONDS), RATE);
    let dir = tempfile::tempdir().unwrap();
    let board = Board::create(&dir.path().join("board"));
    let store = dir.path().join("store");
    let log = Options::new().extent_size(1 << 20).create(&store).unwrap();
    let acknowledged = AtomicU64::new(0);
    let open = (0..LANES).map(|_| None).collect();
    let mut writer = Writer {
        log: &log,
        board: &board,
        acknowledged: &acknowledged,
        noise: Noise::new(),
        open,
        next: 0,
    };
    let kinds = ["traces", "lists", "follower", "backups"];
    let pause = (seconds * 1000 / 4).clamp(300, 5_000);
    let busy = Duration::from_secs(seconds);
    let quiet = (busy / 4).min(LONGEST_QUIET);
    let (mut without, mut with, said, evicted) = std::thread::scope(|scope| {
        let (stop, over) = sync_channel::<()>(0);
        let (stop_sync, over_sync) = sync_channel::<()>(0);
        let (log, board, acknowledged) = (&log, &board, &acknowledged);
        let retaining = scope.spawn(move || retain(log, board, &over));
        scope.spawn(move || sync(log, board, acknowledged, &over_sync));
        // The file and the caches get what they have later.
        writer.work(rate, quiet);
        let mut without = writer.work(rate, quiet);
        let start = |(kind, what)| Process::start(dir.path(), kind, what, pause);
        let mut processes: Vec<_> = (0..).zip(kinds).map(start).collect();
        processes.iter_mut().for_each(Process::is_ready);
        let with = writer.work(rate, busy);
        drop((stop, stop_sync));
        let evicted = retaining.join().unwrap();
        let said: Vec<_> = processes.into_iter().map(Process::end).collect();
        let later = writer.work(rate, quiet);
        without.calls.0.extend(later.calls.0);
        without.done.0.extend(later.done.0);
        (without, with, said, evicted)
    });
    let achieved = with.records as f64 / with.elapsed.as_secs_f64();
    for (kind, said) in kinds.iter().zip(&said) {
        println!("{kind}: {said}");
    }
    let stats = log.stats().unwrap();
    println!(
        "writer: {} records beside the readers, {achieved:.0} a second of {rate}; {evicted} runs \
         evicted",
        with.records
    );
    println!(
        "the file has {} MB: {} live, {} dead, {} of free extents",
        stats.file_len >> 20,
        stats.live_bytes >> 20,
        stats.dead_bytes >> 20,
        (stats.free_extents * stats.extent_len) >> 20
    );
    without.calls.print("calls without readers");
    with.calls.print("calls with readers");
    without.done.print("since they were due, without readers");
    with.done.print("since they were due, with readers");
    drop(writer);
    log.close().unwrap();
    let report = Reader::open(&store).unwrap().verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}
