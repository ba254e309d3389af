//! A store under a steady load: how large the file becomes, and how long appends take during
//! compaction.
//!
//! ```sh
//! cargo bench --bench steady                               # 12 MB retained, 20 times over
//! cargo bench --bench steady -- 100000000 50000            # 100 MB, 50,000 appends a second
//! ```
//!
//! 64 runs at a time get 30 records of 256 B each at Process level, and end; new runs replace them.
//! At intervals a policy keeps the newest runs of each agent. The options are the defaults. The
//! benchmark ends when 20 times the retained bytes were written. It measures each append, and
//! whether a compaction was running at its begin or end; it looks at the file whenever a group of
//! runs has ended.
//!
//! The arguments are the bytes that are retained, and the appends a second; without the second one,
//! appends come as fast as possible.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::cast_precision_loss, reason = "for people to read")]

use std::fs::Metadata as FileMetadata;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use runlog::{
    Activity, Durability, Metadata, NewRecord, Observer, Options, Outcome, Phase, Retention, RunLog,
};

use self::workload::{AGENTS, INTERLEAVED, RECORD_LEN, RECORDS};

mod workload;

/// How many times the retained bytes are written.
const TIMES: u64 = 20;
/// The bytes of a record with its frame header.
const FRAME_LEN: u64 = RECORD_LEN as u64 + 48;

/// Counts running compactions.
#[derive(Debug, Default)]
struct Compactions {
    under_way: AtomicUsize,
    begun: AtomicUsize,
}

impl Compactions {
    fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }
}

impl Observer for Compactions {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        if activity == Activity::Compaction {
            match phase {
                Phase::Begin => {
                    self.under_way.fetch_add(1, Ordering::Relaxed);
                    self.begun.fetch_add(1, Ordering::Relaxed);
                }
                Phase::End(_) => _ = self.under_way.fetch_sub(1, Ordering::Relaxed),
            }
        }
    }
}

/// Observations of the file.
#[derive(Debug, Default)]
struct Largest {
    len: u64,
    allocated: u64,
    /// By how much it exceeded its limit, at worst.
    excess: i64,
    of_retained: f64,
}

/// The times of appends in nanoseconds: those during compaction, and all others.
#[derive(Debug, Default)]
struct Times {
    compacting: Vec<u64>,
    otherwise: Vec<u64>,
}

fn main() {
    let wanted = argument(0).unwrap_or(12_000_000);
    let per_run = RECORDS as u64 * FRAME_LEN;
    let keep = (wanted / per_run / AGENTS as u64).max(1);
    let runs = usize::try_from(TIMES * keep).unwrap() * AGENTS;
    let folder = workload::folder();
    let path = workload::path(&folder);
    let compactions = Arc::new(Compactions::default());
    let observer: Arc<dyn Observer> = compactions.clone();
    let log = Options::new().observer(observer).create(&path).unwrap();
    let policy = Retention::new().keep_newest(keep);
    let (mut times, mut largest, mut collected) = (Times::default(), Largest::default(), 0);
    let numbers: Vec<usize> = (0..runs).collect();
    // A tenth of what is kept may wait for the next collection.
    let each = (usize::try_from(keep).unwrap() * AGENTS / INTERLEAVED / 10).max(1);
    let began = Instant::now();
    for (group, runs) in numbers.chunks(INTERLEAVED).enumerate() {
        write(&log, runs, &compactions, &mut times);
        if group % each == each - 1 {
            let done = log.gc(&policy).unwrap();
            collected += done.plan.totals.going;
        }
        let written = (runs[runs.len() - 1] as u64 + 1) * per_run;
        largest.look(&path, written.min(keep * AGENTS as u64 * per_run), &log);
    }
    let took = began.elapsed();
    println!(
        "{} MB retained ({keep} runs of {RECORDS} x {RECORD_LEN} B of each of {AGENTS} agents), \
         written {TIMES} times in {:.1} s, {collected} runs collected in {} collections, \
         {} steps of compaction; load {}",
        keep * AGENTS as u64 * per_run / 1_000_000,
        took.as_secs_f64(),
        numbers.len() / INTERLEAVED / each,
        compactions.begun.load(Ordering::Relaxed),
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
    );
    largest.print();
    times.print();
}

/// The number in this place of the arguments.
fn argument(place: usize) -> Option<u64> {
    std::env::args().filter_map(|text| text.parse().ok()).nth(place)
}

/// Writes some runs, interleaved.
fn write(log: &RunLog, runs: &[usize], compactions: &Compactions, times: &mut Times) {
    let process = Durability::Process;
    let start = |&number: &usize| {
        let (agent, run) = workload::ids(number);
        log.start_run(&agent, &run, Metadata::new(b"{}").durability(process)).unwrap()
    };
    let pause = argument(1).map_or(0, |rate| 1_000_000_000 / rate);
    let pause = Duration::from_nanos(pause);
    let writers: Vec<_> = runs.iter().map(start).collect();
    for seq in 0..RECORDS {
        for (writer, &number) in writers.iter().zip(runs) {
            let payload = workload::payload(number, seq);
            let record = NewRecord::json(&payload);
            let before = compactions.is_under_way();
            let began = Instant::now();
            let _ = writer.append_record(&record).unwrap();
            let took = began.elapsed();
            let nanos = u64::try_from(took.as_nanos()).unwrap();
            let kind = if before || compactions.is_under_way() {
                &mut times.compacting
            } else {
                &mut times.otherwise
            };
            kind.push(nanos);
            if pause > took {
                std::thread::sleep(pause.saturating_sub(took));
            }
        }
    }
    for writer in writers {
        let _ = writer.end(&Outcome::completed().durability(process)).unwrap();
    }
}

impl Largest {
    fn look(&mut self, path: &Path, retained: u64, log: &RunLog) {
        let found: FileMetadata = std::fs::metadata(path).unwrap();
        let allocated = allocated(&found);
        let extents = 8 * log.stats().unwrap().extent_len;
        let most = found.len().max(allocated);
        let may = retained * 3 / 2 + extents;
        self.len = self.len.max(found.len());
        self.allocated = self.allocated.max(allocated);
        self.excess = self.excess.max(most.cast_signed() - may.cast_signed());
        let over = most.saturating_sub(extents) as f64 / retained as f64;
        self.of_retained = self.of_retained.max(over);
    }

    fn print(&self) {
        let Self { len, allocated, excess, of_retained } = self;
        println!("| the file at its largest | bytes |\n|---|---|");
        println!("| length | {len} |\n| allocated | {allocated} |");
        println!("| without 8 extents, over retained bytes (may: 1.5) | {of_retained:.2} |");
        if *excess > 0 {
            println!("| more than it may | {excess} |");
        }
        println!();
    }
}

fn allocated(file: &FileMetadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.blocks() * 512
}

impl Times {
    fn print(self) {
        println!("| appends, microseconds | count | p50 | p99 | p99.9 | p99.99 | largest |");
        println!("|---|---|---|---|---|---|---|");
        let all = self.compacting.iter().chain(&self.otherwise).copied().collect();
        row("all", all);
        row("while compaction was at work", self.compacting);
        row("while it was not", self.otherwise);
    }
}

fn row(name: &str, mut nanos: Vec<u64>) {
    nanos.sort_unstable();
    let at = |part: usize| {
        let place = (nanos.len() * part / 10_000).min(nanos.len().saturating_sub(1));
        nanos.get(place).map_or(0.0, |nanos| *nanos as f64 / 1e3)
    };
    println!(
        "| {name} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
        nanos.len(),
        at(5_000),
        at(9_900),
        at(9_990),
        at(9_999),
        at(10_000),
    );
}
