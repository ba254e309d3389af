//! Appending: one record of 256 bytes and of real sizes, by one and by eight threads, at each
//! durability level, with stores into a map where possible and with writes; batches; and the same
//! in the JSONL layout.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use runlog::{Durability, NewRecord, Options, RunLog, RunWriter, TailWriter};

use self::jsonl::Jsonl;

mod jsonl;
mod workload;

const WAYS: [(&str, Durability, TailWriter); 3] = [
    ("process", Durability::Process, TailWriter::Auto),
    ("process by writes", Durability::Process, TailWriter::Pwrite),
    ("disk", Durability::Disk, TailWriter::Auto),
];

fn store(writer: TailWriter) -> (tempfile::TempDir, RunLog) {
    let folder = workload::folder();
    let options = Options::new().tail_writer(writer);
    let log = options.create(folder.path().join("bench.runlog")).unwrap();
    (folder, log)
}

fn start(log: &RunLog, number: usize) -> RunWriter {
    let (agent, run) = workload::ids(number);
    log.start_run(&agent, &run, ()).unwrap()
}

/// `count` appends by each of several threads, each into its own run.
fn by_threads(log: &RunLog, threads: usize, count: u64, level: Durability, payloads: &[Vec<u8>]) {
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let writer = start(log, thread);
            scope.spawn(move || {
                for payload in payloads.iter().cycle().take(usize::try_from(count).unwrap()) {
                    let record = NewRecord::json(payload).durability(level);
                    let _ = black_box(writer.append_record(&record).unwrap());
                }
            });
        }
    });
}

fn single(criterion: &mut Criterion) {
    let sizes =
        [("256 B", vec![workload::text(256)]), ("real sizes", workload::real_payloads(4_096, 5))];
    for (size, payloads) in &sizes {
        let mut group = criterion.benchmark_group(format!("append {size}"));
        group.throughput(Throughput::Elements(1));
        for (name, level, way) in WAYS {
            let (_folder, log) = store(way);
            let writer = start(&log, 0);
            let mut next = payloads.iter().cycle();
            group.bench_function(format!("{name}, 1 thread"), |bencher| {
                bencher.iter(|| {
                    let record = NewRecord::json(next.next().unwrap()).durability(level);
                    writer.append_record(&record).unwrap()
                });
            });
            drop(writer);
            group.bench_function(format!("{name}, 8 threads"), |bencher| {
                bencher.iter_custom(|count| {
                    elapsed(|| {
                        by_threads(&log, 8, count.div_ceil(8), level, payloads);
                    })
                });
            });
        }
        let folder = workload::folder();
        let jsonl = Jsonl::new(folder.path());
        let mut next = payloads.iter().cycle();
        group.bench_function("jsonl, 1 thread", |bencher| {
            bencher.iter(|| jsonl.append("agent", "run", next.next().unwrap()));
        });
        let path = folder.path().join("bare.jsonl");
        group.bench_function("jsonl, only open, write, close", |bencher| {
            bencher.iter(|| Jsonl::append_bare(&path, next.next().unwrap()));
        });
        group.finish();
    }
}

fn batches(criterion: &mut Criterion) {
    let payload = workload::text(256);
    let records = [NewRecord::json(&payload); 16];
    let mut group = criterion.benchmark_group("append a batch of 16 x 256 B");
    group.throughput(Throughput::Elements(16));
    for (name, level, way) in WAYS {
        let (_folder, log) = store(way);
        let writer = start(&log, 0);
        let records = records.map(|record| record.durability(level));
        group.bench_function(name, |bencher| {
            bencher.iter(|| writer.append_batch(&records).unwrap());
        });
    }
    group.finish();
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn elapsed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

criterion_group! {
    name = benches;
    config = workload::criterion();
    targets = single, batches
}
criterion_main!(benches);
