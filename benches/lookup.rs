//! Looking up: the trace and the agent of a run by its id and pages of lists, with 1,000, 10,000
//! and (`RUNLOG_BENCH_RUNS=1000,10000,100000`) more runs; beside the least work that a trace could
//! be, and the JSONL layout.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use runlog::RunLog;

use self::jsonl::Jsonl;
use self::workload::{Bare, INTERLEAVED, Picks, RECORDS};

mod jsonl;
mod workload;

/// Reads a trace to its end; the bytes of its payloads.
fn read(log: &RunLog, run: &str) -> usize {
    let records = log.trace(run).unwrap();
    let lens = records.map(|record| record.unwrap().payload().len());
    let (count, bytes) = lens.fold((0, 0), |(count, bytes), len| (count + 1, bytes + len));
    assert_eq!(count, RECORDS);
    bytes
}

fn traces(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trace of 30 x 256 B");
    for runs in workload::run_counts() {
        for (layout, width) in [("contiguous", 1), ("interleaved", INTERLEAVED)] {
            let mut picks = Picks::new(runs);
            let (folder, log) = workload::store(runs, width);
            group.bench_function(BenchmarkId::new(layout, runs), |bencher| {
                bencher.iter(|| read(&log, picks.next()));
            });
            drop((log, folder));
            let bare = Bare::new(runs, width);
            group.bench_function(BenchmarkId::new(format!("bare {layout}"), runs), |bencher| {
                bencher.iter(|| bare.trace(picks.next()));
            });
        }
        if runs <= 10_000 {
            let folder = workload::folder();
            let jsonl = Jsonl::with_runs(folder.path(), runs);
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
            bencher.iter(|| log.runs("agent-7", None, 20).unwrap());
        });
        group.bench_function(BenchmarkId::new("page of 20 of all runs", runs), |bencher| {
            bencher.iter(|| log.all_runs(None, 20).unwrap());
        });
        if runs <= 10_000 {
            let folder = workload::folder();
            let jsonl = Jsonl::with_runs(folder.path(), runs);
            group.bench_function(BenchmarkId::new("agent_of, jsonl", runs), |bencher| {
                bencher.iter(|| jsonl.agent_of(picks.next()).unwrap());
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = workload::criterion();
    targets = traces, lists
}
criterion_main!(benches);
