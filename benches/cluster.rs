//! How much compaction speeds up traces: runs that were written 64 at a time, before and after
//! their records are next to one another.
//!
//! ```sh
//! cargo bench --bench cluster                              # 10,000 runs of 30 x 1 KB
//! RUNLOG_BENCH_RUNS=20000 cargo bench --bench cluster
//! ```
//!
//! The benchmark reads the same random runs in turns from two stores with the same content, one of
//! which was compacted, and prints the medians of all turns: once with the file in the page cache,
//! and once after the kernel has dropped it, with freshly opened stores and each run read only
//! once. "Bare" is the least that a trace could do ([`Bare`]) with the same two files: its gain is
//! the greatest possible.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use runlog::{Durability, Metadata, NewRecord, Options, Outcome, RunLog};

use self::workload::{Bare, INTERLEAVED, Picks, RECORDS, read};

mod workload;

/// Bytes of a record.
const LEN: usize = 1024;
/// Traces of one turn.
const TURN: usize = 20;
/// Turns with the file in the page cache, and without.
const WARM: usize = 400;
const COLD: usize = 15;

fn main() {
    let runs = std::env::var("RUNLOG_BENCH_RUNS").map_or(10_000, |text| text.parse().unwrap());
    let folders = [workload::folder(), workload::folder()];
    let paths = folders.each_ref().map(workload::path);
    let logs = paths.each_ref().map(|path| fill(path, runs));
    let began = Instant::now();
    let compacted = logs[1].compact().unwrap();
    println!(
        "{runs} runs of {RECORDS} x {LEN} B, {INTERLEAVED} at a time, compacted in {:.1} s \
         ({compacted:?}); load {}\n",
        began.elapsed().as_secs_f64(),
        std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim()
    );
    println!("| a trace, microseconds | as written | compacted | times |\n|---|---|---|---|");
    for number in 0..runs {
        let run = workload::ids(number).1;
        assert_eq!(read(&logs[0], &run), read(&logs[1], &run));
    }
    print("in the page cache", warm(runs, |place, run| read(&logs[place], run)));
    let bare = paths.each_ref().map(|path| Bare::of(path, LEN));
    print("bare, in the page cache", warm(runs, |place, run| bare[place].trace(run)));
    drop(bare);
    for log in logs {
        log.close().unwrap();
    }
    print("not in the page cache", cold(&paths, runs));
}

/// A store with interleaved runs.
fn fill(path: &Path, runs: usize) -> RunLog {
    let log = Options::new().create(path).unwrap();
    let process = Durability::Process;
    let numbers: Vec<usize> = (0..runs).collect();
    for group in numbers.chunks(INTERLEAVED) {
        let start = |&number: &usize| {
            let (agent, run) = workload::ids(number);
            log.start_run(&agent, &run, Metadata::new(b"{}").durability(process)).unwrap()
        };
        let writers: Vec<_> = group.iter().map(start).collect();
        for seq in 0..RECORDS {
            for (writer, number) in writers.iter().zip(group) {
                let payload = workload::payload_of(*number, seq, LEN);
                let _ = writer.append_record(&NewRecord::json(&payload)).unwrap();
            }
        }
        for writer in writers {
            let _ = writer.end(&Outcome::completed().durability(process)).unwrap();
        }
    }
    log.sync().unwrap();
    log.checkpoint().unwrap();
    log
}

/// The average time of a trace in microseconds.
fn turn(runs: &[String], read: impl Fn(&str) -> u64) -> f64 {
    let began = Instant::now();
    for run in runs {
        black_box(read(run));
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(u32::try_from(runs.len()).unwrap())
}

/// Reads traces of the first and of the second store in turns.
fn warm(runs: usize, read: impl Fn(usize, &str) -> u64) -> [f64; 2] {
    let mut picks = Picks::new(runs);
    let mut turns = [Vec::new(), Vec::new()];
    for round in 0..WARM {
        // Each reads its own runs, and begins equally often.
        for place in [round % 2, 1 - round % 2] {
            let next: Vec<String> = (0..TURN).map(|_| picks.next().to_owned()).collect();
            turns[place].push(turn(&next, |run| read(place, run)));
        }
    }
    turns.map(median)
}

/// Like [`warm`], each turn with freshly opened stores that are not in the page cache.
fn cold(paths: &[PathBuf; 2], runs: usize) -> [f64; 2] {
    let mut picks = Picks::new(runs);
    let mut turns = [Vec::new(), Vec::new()];
    for round in 0..COLD {
        for place in [round % 2, 1 - round % 2] {
            forget(&paths[place]);
            let log = Options::new().background(false).open(&paths[place]).unwrap();
            // This trace has opened the index.
            let _ = read(&log, picks.next());
            let next: Vec<String> = (0..TURN).map(|_| picks.next().to_owned()).collect();
            turns[place].push(turn(&next, |run| read(&log, run)));
            log.close().unwrap();
        }
    }
    turns.map(median)
}

/// Makes the kernel drop a file from the page cache.
#[cfg(target_os = "linux")]
fn forget(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &Path) {}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn print(name: &str, [as_written, compacted]: [f64; 2]) {
    println!("| {name} | {as_written:.1} | {compacted:.1} | {:.2} |", as_written / compacted);
}
