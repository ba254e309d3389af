//! Readers next to a compaction that never rests.
//!
//! Goal: whatever is moved, evicted and reused meanwhile, each record that a reader gets has
//! exactly the bytes that its run and its sequence determine, and deleted runs are reported as
//! deleted.
//!
//! Method: on a real file with the smallest extents, writers write runs of which all bytes follow
//! from their numbers, one thread evicts all but the newest and compacts everything, over and over,
//! beside a background thread without a limit of its rate, and readers read any runs in every way
//! there is. They keep payloads and half-read traces, and come back to them later. A run that is
//! held, and one that stays in progress, must be there all the time.
//!
//! Most of the time goes into syncs: 2,000 rounds take about a minute on two cores.

use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::Duration;

use runlog::{
    Compaction, Durability, Error, Metadata, NewRecord, Options, Outcome, Payload, Record,
    Retention, RunLog, RunWriter, Seq, SpaceReturn, Trace,
};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

use runlog_sim::settings::scale;

const WRITERS: u64 = 2;
const READERS: u64 = 3;
/// The runs of each writer that a policy keeps.
const KEPT: u64 = 12;
/// How many runs each writer may write between two collections with compaction.
const AHEAD: u64 = 30;
/// Records of runs that exist all the time.
const LASTING: u64 = 60;
const HELD: &str = "0-0";
const RUNNING: &str = "1-0";

/// The totals of all threads.
#[derive(Debug, Default)]
struct Tally {
    records: AtomicU64,
    traces: AtomicU64,
    gone: AtomicU64,
    let_go: AtomicU64,
    payloads: AtomicU64,
    evicted: AtomicU64,
    moved_segments: AtomicU64,
    moved_bytes: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// How many collections there were, so that writers do not run ahead.
#[derive(Debug, Default)]
struct Pace {
    collections: Mutex<u64>,
    changed: Condvar,
}

impl Pace {
    fn advance(&self) {
        *self.collections.lock().unwrap() += 1;
        self.changed.notify_all();
    }

    fn wait_for(&self, count: u64) {
        let collections = self.collections.lock().unwrap();
        drop(self.changed.wait_while(collections, |collections| *collections < count).unwrap());
    }
}

/// Releases the writers when there is nothing left to wait for.
struct StopWhenDropped<'a>(&'a Pace);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        *self.0.collections.lock().unwrap() = u64::MAX;
        self.0.changed.notify_all();
    }
}

/// The bytes of a record.
fn payload(run: u64, seq: u64) -> Vec<u8> {
    let mut random = SplitMix64::for_case(run, seq);
    let len = if random.below(150) == 0 { 8000 + random.index(30_000) } else { random.index(900) };
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// How many records a run has when it has ended.
fn records_of(run: u64) -> u64 {
    3 + SplitMix64::new(run).below(30)
}

fn id(writer: u64, number: u64) -> String {
    format!("{writer}-{number}")
}

/// What determines the bytes of a run.
fn number_of(id: &str) -> u64 {
    let (writer, number) = id.split_once('-').unwrap();
    writer.parse::<u64>().unwrap() << 32 | number.parse::<u64>().unwrap()
}

fn check<B: Deref<Target = [u8]>>(run: u64, seq: u64, record: &Record<B>) {
    assert_eq!(record.seq(), Seq(seq), "of run {run:#x}");
    assert!(*record.payload() == *payload(run, seq), "run {run:#x}, record {seq}: {record:?}");
}

fn start(log: &RunLog, writer: u64, number: u64) -> RunWriter {
    let unsynced = Metadata::default().durability(Durability::Process);
    log.start_run(&format!("agent-{writer}"), &id(writer, number), unsynced).unwrap()
}

fn append(writer: &RunWriter, from: u64, count: u64) {
    let run = number_of(writer.run().as_str());
    for seq in from..from + count {
        let _ = writer.append(&payload(run, seq)).unwrap();
    }
}

/// Writes runs, three at a time, so that each is spread over the segments.
fn write(log: &RunLog, writer: u64, rounds: u64, written: &AtomicU64, pace: &Pace) {
    let outcome = Outcome::completed().durability(Durability::Process);
    let mut random = SplitMix64::new(writer);
    for first in (1..=rounds).step_by(3) {
        pace.wait_for(first / AHEAD);
        let runs = [0, 1, 2].map(|more| start(log, writer, first + more));
        let mut next = [0; 3];
        loop {
            let mut left = 0;
            for (run, next) in runs.iter().zip(&mut next) {
                let number = number_of(run.run().as_str());
                match records_of(number) - *next {
                    0 => continue,
                    2.. if random.below(8) == 0 => {
                        let both = [0, 1].map(|more| payload(number, *next + more));
                        let both = both.each_ref().map(|bytes| NewRecord::new(bytes));
                        let _ = run.append_batch(&both).unwrap();
                        *next += 2;
                    }
                    _ => {
                        append(run, *next, 1);
                        *next += 1;
                    }
                }
                left += records_of(number) - *next;
            }
            if left == 0 {
                break;
            }
        }
        for run in &runs {
            let _ = run.end(&outcome).unwrap();
        }
        written.store(first + 2, Ordering::SeqCst);
    }
}

/// Evicts, compacts, and frees space, without a pause.
fn collect(log: &RunLog, done: &AtomicBool, pace: &Pace, tally: &Tally) {
    let _stop = StopWhenDropped(pace);
    let policy = Retention::new().keep_newest(KEPT);
    while !done.load(Ordering::SeqCst) {
        let collected = log.gc(&policy).unwrap();
        add(&tally.evicted, collected.plan.evict.len() as u64);
        assert!(collected.plan.evict.iter().all(|run| run.run != HELD && run.run != RUNNING));
        let compacted = log.compact().unwrap();
        add(&tally.moved_segments, compacted.segments);
        add(&tally.moved_bytes, compacted.bytes);
        log.reclaim().unwrap();
        pace.advance();
    }
}

/// A trace that was begun, and what is left of it.
struct Reading {
    run: u64,
    trace: Trace,
    front: u64,
    back: u64,
}

struct Reader<'a> {
    log: &'a RunLog,
    tally: &'a Tally,
    random: SplitMix64,
    /// Traces may be told that their run is gone.
    may_let_go: bool,
    payloads: Vec<(Payload, u64, u64)>,
    readings: Vec<Reading>,
}

impl Reader<'_> {
    fn read_until(&mut self, done: &AtomicBool, written: &[AtomicU64]) {
        while !done.load(Ordering::SeqCst) {
            let writer = self.random.below(WRITERS);
            let last = written[writer as usize].load(Ordering::SeqCst);
            match self.random.below(16) {
                0 => self.begin(HELD, true),
                1 => self.begin(RUNNING, true),
                _ => {
                    let number = (last + 3).saturating_sub(self.random.below(2 * KEPT)).max(1);
                    self.begin(&id(writer, number), false);
                }
            }
            while self.readings.len() > self.random.index(6) {
                let place = self.random.index(self.readings.len());
                let reading = self.readings.swap_remove(place);
                self.go_on(reading);
            }
            while self.payloads.len() > 64 {
                let place = self.random.index(self.payloads.len());
                let (kept, run, seq) = self.payloads.swap_remove(place);
                assert!(*kept == *payload(run, seq), "run {run:#x}, record {seq} changed");
                add(&self.tally.payloads, 1);
            }
        }
        for (kept, run, seq) in self.payloads.drain(..) {
            assert!(*kept == *payload(run, seq), "run {run:#x}, record {seq} changed");
        }
        self.readings.clear();
    }

    /// Begins to read a run, or a range of it.
    fn begin(&mut self, id: &str, must_be_there: bool) {
        let found = self.log.run(id).and_then(|summary| Ok((summary, self.log.trace(id)?)));
        let (summary, trace) = match found {
            Ok(found) => found,
            Err(error) => {
                assert!(error.is_not_found() && !must_be_there, "{id}: {error}");
                return add(&self.tally.gone, 1);
            }
        };
        let run = number_of(id);
        if summary.status.is_ended() && !must_be_there {
            assert_eq!(summary.records, records_of(run), "{id}");
        }
        // More may have been appended since; the range selects the right ones.
        let low = if self.random.coin() { 0 } else { self.random.below(summary.records + 1) };
        let high = low + self.random.below(summary.records - low + 1);
        let (low, high) = if self.random.coin() { (low, high) } else { (low, summary.records) };
        let trace = trace.range(Seq(low)..Seq(high)).unwrap();
        add(&self.tally.traces, 1);
        self.readings.push(Reading { run, trace, front: low, back: high });
    }

    /// Reads on for a while; what is left then is kept for later.
    fn go_on(&mut self, mut reading: Reading) {
        let way = self.random.below(4);
        let most = if self.random.coin() { u64::MAX } else { self.random.below(8) };
        for _ in 0..most {
            if reading.front == reading.back {
                let rest = (reading.trace.next(), reading.trace.next_back());
                assert!(matches!(rest, (None, None)), "run {:#x}: {rest:?}", reading.run);
                return;
            }
            let backwards = way == 2 || (way == 3 && self.random.coin());
            if let Err(error) = self.step(&mut reading, way == 1, backwards) {
                let gone = matches!(error, Error::Evicted { .. }) && self.may_let_go;
                assert!(gone, "run {:#x}: {error}", reading.run);
                return add(&self.tally.let_go, 1);
            }
            add(&self.tally.records, 1);
        }
        self.readings.push(reading);
    }

    fn step(&mut self, reading: &mut Reading, view: bool, backwards: bool) -> runlog::Result<()> {
        let run = reading.run;
        let record = if backwards {
            let record = reading.trace.next_back().expect("a record is left")?;
            reading.back -= 1;
            check(run, reading.back, &record);
            record
        } else if view {
            let record = reading.trace.next_view().expect("a record is left")?;
            check(run, reading.front, &record);
            reading.front += 1;
            return Ok(());
        } else {
            let record = reading.trace.next().expect("a record is left")?;
            check(run, reading.front, &record);
            reading.front += 1;
            record
        };
        if self.random.below(32) == 0 {
            let seq = record.seq().0;
            self.payloads.push((record.into_payload(), run, seq));
        }
        Ok(())
    }
}

/// Runs that exist all the time.
fn lasting(log: &RunLog) -> RunWriter {
    let held = start(log, 0, 0);
    let running = start(log, 1, 0);
    for seq in 0..LASTING {
        append(&held, seq, 1);
        append(&running, seq, 1);
    }
    let _ = held.end(&Outcome::completed()).unwrap();
    assert!(log.hold(HELD, "it is evidence").unwrap());
    running
}

fn all_at_once(rounds: u64, pin_age: Option<Duration>) -> Tally {
    let folder = TempDir::new().unwrap();
    let compaction = Compaction::new()
        .bytes_per_second(None)
        .max_pin_age(pin_age)
        .space_return(if pin_age.is_some() { SpaceReturn::Punch } else { SpaceReturn::Shrink });
    let options = Options::new().extent_size(64 << 10).compaction(compaction);
    let log = options.create(folder.path().join("store")).unwrap();
    let running = lasting(&log);
    let (done, pace, tally) = (AtomicBool::new(false), Pace::default(), Tally::default());
    let written: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        let (log, done, pace, tally, written) = (&log, &done, &pace, &tally, &written);
        let others: Vec<_> = (0..READERS)
            .map(|reader| {
                scope.spawn(move || {
                    let (random, may_let_go) = (SplitMix64::new(reader), pin_age.is_some());
                    let (payloads, readings) = (Vec::new(), Vec::new());
                    Reader { log, tally, random, may_let_go, payloads, readings }
                        .read_until(done, written);
                })
            })
            .chain([scope.spawn(move || collect(log, done, pace, tally))])
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let written = &written[writer as usize];
                scope.spawn(move || write(log, writer, rounds, written, pace))
            })
            .collect();
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        let others: Vec<_> = others.into_iter().map(|other| other.join()).collect();
        for result in results.into_iter().chain(others) {
            result.unwrap();
        }
    });
    assert_eq!(log.run(HELD).unwrap().records, LASTING);
    append(&running, LASTING, 1);
    let report = log.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    log.reclaim().unwrap();
    assert_eq!(log.stats().unwrap().retired_extents, 0, "nobody reads");
    tally
}

#[test]
fn readers_never_see_other_bytes_whatever_moves_or_goes() {
    let rounds = scale(200, 1_500);
    println!("{rounds} rounds");
    for pin_age in [None, Some(Duration::from_millis(2))] {
        let tally = all_at_once(rounds / 2, pin_age);
        println!("a trace may hold extents for {pin_age:?}: {tally:?}");
        let read = tally.records.load(Ordering::Relaxed);
        assert!(read > rounds, "the readers had too little to do: {read}");
    }
}
