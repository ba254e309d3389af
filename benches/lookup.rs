//! Looking up: the trace and the agent of a run by its id and pages of lists, with 1,000, 10,000
//! and (`RUNLOG_BENCH_RUNS=1000,10000,100000`) more runs; beside the least work that a trace could
//! be, and the JSONL layout.
//!
//! The traces and the agents of runs that were not looked up before have their own rows.
//!
//! A trace here reads each record of a run, its sequence and its payload:
//!
//! - "runlog" finds the run by its id, and checks each frame: the header with the salt and the
//!   place, the payload, the kind, the run, the sequence. The records can be kept.
//! - "views" does the same; each record is valid until the next one (`Trace::next_view`).
//! - "bare" finds the run in a hash map, copies each payload out of a map of the same file, and
//!   compares its CRC ([`Bare`]).
//!
//! Criterion measures its rows one after the other. Before that, all are measured in turns, so that
//! other load on the machine affects all of them, and the medians of all turns are compared.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use runlog::{Options, RunLog, RunQuery};
use runlog_sim::SplitMix64;

use self::jsonl::Jsonl;
use self::workload::{Bare, INTERLEAVED, Picks, RECORD_LEN, RECORDS, read, touch};

mod jsonl;
mod workload;

/// How long both are measured in turns, and the number of traces in one turn.
const TURNS: Duration = Duration::from_secs(3);
const TURN: usize = 20;

/// The same without keeping any record.
fn look(log: &RunLog, run: &str) -> u64 {
    let mut trace = log.trace(run).unwrap();
    let (mut count, mut sum) = (0, 0);
    while let Some(record) = trace.next_view() {
        let record = record.unwrap();
        (count, sum) = (count + 1, sum + touch(record.seq().0, record.payload()));
    }
    assert_eq!(count, RECORDS);
    sum
}

/// The average time of a trace of these runs, in nanoseconds.
fn turn(runs: &[String], read: impl Fn(&str) -> u64) -> f64 {
    let began = Instant::now();
    for run in runs {
        black_box(read(run));
    }
    let each = began.elapsed() / u32::try_from(runs.len()).unwrap();
    each.as_secs_f64() * 1e9
}

/// Measures in turns and prints the medians and their ratio.
fn compare(name: &str, log: &RunLog, bare: &Bare, runs: usize) {
    // Both touch each page of the file beforehand, so that neither has page faults.
    for number in 0..runs {
        let run = workload::ids(number).1;
        assert_eq!(read(log, &run), bare.trace(&run));
    }
    let mut picks = Picks::new(runs);
    let [mut kept, mut seen, mut floor] = [const { Vec::new() }; 3];
    let began = Instant::now();
    while began.elapsed() < TURNS {
        let mut next = || (0..TURN).map(|_| picks.next().to_owned()).collect::<Vec<String>>();
        kept.push(turn(&next(), |run| read(log, run)));
        seen.push(turn(&next(), |run| look(log, run)));
        floor.push(turn(&next(), |run| bare.trace(run)));
    }
    let [kept, seen, floor] = [kept, seen, floor].map(|mut turns| {
        turns.sort_by(f64::total_cmp);
        turns[turns.len() / 2]
    });
    let [of_kept, of_seen] = [kept / floor, seen / floor];
    println!(
        "{runs} runs, {name}: records {kept:.0} ns ({of_kept:.2} times), \
         views {seen:.0} ns ({of_seen:.2} times), bare {floor:.0} ns\n"
    );
}

fn traces(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trace of 30 x 256 B");
    for runs in workload::run_counts() {
        for (layout, width) in [("contiguous", 1), ("interleaved", INTERLEAVED)] {
            let mut picks = Picks::new(runs);
            let (folder, log) = workload::store(runs, width);
            let bare = Bare::of(&workload::path(&folder), RECORD_LEN);
            compare(layout, &log, &bare, runs);
            group.bench_function(BenchmarkId::new(layout, runs), |bencher| {
                bencher.iter(|| read(&log, picks.next()));
            });
            group.bench_function(BenchmarkId::new(format!("views {layout}"), runs), |bencher| {
                bencher.iter(|| look(&log, picks.next()));
            });
            group.bench_function(BenchmarkId::new(format!("bare {layout}"), runs), |bencher| {
                bencher.iter(|| bare.trace(picks.next()));
            });
        }
        if runs <= 10_000 {
            let folder = workload::folder();
            let jsonl = Jsonl::with_runs(folder.path(), workload::lines(runs));
            let mut picks = Picks::new(runs);
            group.bench_function(BenchmarkId::new("jsonl, lines", runs), |bencher| {
                bencher.iter(|| jsonl.trace(picks.next()));
            });
            group.bench_function(BenchmarkId::new("jsonl, parsed", runs), |bencher| {
                bencher.iter(|| jsonl.trace_parsed(picks.next()));
            });
        }
    }
    group.finish();
}

fn lists(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("find and list");
    for runs in workload::run_counts() {
        let (_folder, log) = workload::store(runs, INTERLEAVED);
        let mut picks = Picks::new(runs);
        group.bench_function(BenchmarkId::new("agent_of", runs), |bencher| {
            bencher.iter(|| log.agent_of(picks.next()).unwrap());
        });
        group.bench_function(BenchmarkId::new("page of 20 of an agent's runs", runs), |bencher| {
            bencher.iter(|| log.list_runs(&RunQuery::new().agent("agent-7").limit(20)).unwrap());
        });
        group.bench_function(BenchmarkId::new("page of 20 of all runs", runs), |bencher| {
            bencher.iter(|| log.list_runs(&RunQuery::new().limit(20)).unwrap());
        });
        if runs <= 10_000 {
            let folder = workload::folder();
            let jsonl = Jsonl::with_runs(folder.path(), workload::lines(runs));
            group.bench_function(BenchmarkId::new("agent_of, jsonl", runs), |bencher| {
                bencher.iter(|| jsonl.agent_of(picks.next()).unwrap());
            });
        }
    }
    group.finish();
}

/// A lookup by id, and a sum over its result.
type Lookup = fn(&RunLog, &str) -> u64;

/// Lookups of new ids: the store and its index are opened anew before any id is used a second time.
fn first(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("each id once");
    let agent_of: Lookup = |log, run| log.agent_of(run).unwrap().as_str().len() as u64;
    for runs in workload::run_counts() {
        let (folder, log) = workload::store(runs, INTERLEAVED);
        log.close().unwrap();
        let mut ids: Vec<String> = (0..runs).map(|number| workload::ids(number).1).collect();
        let mut random = SplitMix64::new(99);
        for at in 0..runs {
            ids.swap(at, at + random.index(runs - at));
        }
        for (name, ask) in [("trace", read as Lookup), ("agent_of", agent_of)] {
            group.bench_function(BenchmarkId::new(name, runs), |bencher| {
                bencher.iter_custom(|count| {
                    let mut left = usize::try_from(count).unwrap();
                    let mut took = Duration::ZERO;
                    while left > 0 {
                        let log = Options::new().open_existing(workload::path(&folder)).unwrap();
                        log.checkpoint().unwrap();
                        let asked = &ids[..left.min(runs)];
                        let began = Instant::now();
                        for run in asked {
                            black_box(ask(&log, run));
                        }
                        took += began.elapsed();
                        left -= asked.len();
                        log.close().unwrap();
                    }
                    took
                });
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = workload::criterion();
    targets = traces, lists, first
}
criterion_main!(benches);
