//! What compression of ended runs gains and costs: sessions with the sizes and the text of real
//! ones, in two stores with the same content, one of which compresses.
//!
//! ```sh
//! cargo bench --bench compressed                           # 100 runs, some 120 MB
//! RUNLOG_BENCH_RUNS=800 cargo bench --bench compressed
//! ```
//!
//! Both stores are compacted and in the page cache. The benchmark first compares all bytes. Then it
//! reads whole runs, and single records in the middle of a run, from both in turns, and prints the
//! medians.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
#![allow(clippy::cast_precision_loss, reason = "a benchmark tells ratios")]

use std::hint::black_box;
use std::time::Instant;

use runlog::{Compression, Durability, Metadata, NewRecord, Options, Outcome, RunLog, Seq};
use runlog_sim::SplitMix64;

use self::workload::sizes::{Sizes, records_of_a_run};
use self::workload::text::{Words, Writing};

/// The sessions that the comparison of engines uses too.
#[allow(dead_code, reason = "the comparison uses the rest")]
mod workload {
    #[path = "../../peers/src/workload/sizes.rs"]
    pub(crate) mod sizes;
    #[path = "../../peers/src/workload/text.rs"]
    pub(crate) mod text;
}

/// How many runs are written side by side.
const WIDTH: u64 = 8;
/// Turns of whole runs, and of single records.
const TURNS: usize = 60;
const SINGLES: usize = 400;
const LEVEL: i32 = 3;

/// A store, its content, and its cost.
struct Side {
    name: &'static str,
    log: RunLog,
    _folder: tempfile::TempDir,
}

fn main() {
    let runs = std::env::var("RUNLOG_BENCH_RUNS").map_or(100, |text| text.parse().unwrap());
    let sides = [
        fill("plain", Compression::None, runs),
        fill("compressed", Compression::Zstd { level: LEVEL }, runs),
    ];
    let ids: Vec<String> = (0..runs).map(id).collect();
    let payload: u64 = ids.iter().map(|id| sides[0].log.run(id).unwrap().bytes).sum();
    for id in &ids {
        assert!(records(&sides[0].log, id).eq(records(&sides[1].log, id)), "{id}");
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("{runs} runs, {payload} bytes of payload, zstd level {LEVEL}; load {}\n", load.trim());
    println!("| | file / payload | what lives / payload | a whole run, MB/s | one record, us |");
    println!("|---|---|---|---|---|");
    let mut random = SplitMix64::new(5);
    let mut rates = [Vec::new(), Vec::new()];
    let mut singles = [Vec::new(), Vec::new()];
    for turn in 0..TURNS {
        let id = &ids[random.index(ids.len())];
        for place in [turn % 2, 1 - turn % 2] {
            rates[place].push(rate(&sides[place].log, id));
        }
    }
    for turn in 0..SINGLES {
        let id = &ids[random.index(ids.len())];
        let records = sides[0].log.run(id).unwrap().records;
        let seq = Seq(random.below(records));
        for place in [turn % 2, 1 - turn % 2] {
            singles[place].push(single(&sides[place].log, id, seq));
        }
    }
    for ((side, rates), singles) in sides.iter().zip(&mut rates).zip(&mut singles) {
        let stats = side.log.stats().unwrap();
        println!(
            "| {} | {:.3} | {:.3} | {:.0} | {:.1} |",
            side.name,
            stats.file_len as f64 / payload as f64,
            stats.live_bytes as f64 / payload as f64,
            median(rates),
            median(singles)
        );
    }
}

fn id(number: u64) -> String {
    format!("run-{number:08}")
}

/// A compacted store with this many ended runs.
fn fill(name: &'static str, compression: Compression, runs: u64) -> Side {
    let folder = match std::env::var_os("RUNLOG_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let options = Options::new().compression(compression);
    let log = options.create(folder.path().join("bench.runlog")).unwrap();
    let words = Words::new();
    let process = Durability::Process;
    let numbers: Vec<u64> = (0..runs).collect();
    for group in numbers.chunks(usize::try_from(WIDTH).unwrap()) {
        let mut open: Vec<_> = group
            .iter()
            .map(|&number| {
                let metadata = Metadata::new(b"{}").durability(process);
                let writer = log.start_run("agent", &id(number), metadata).unwrap();
                let mut random = SplitMix64::for_case(5, number);
                let count = records_of_a_run(&mut random);
                (number, writer, random, Writing::new(&words, number), count)
            })
            .collect();
        let longest = open.iter().map(|run| run.4).max().unwrap_or(0);
        for seq in 0..longest {
            for (number, writer, random, writing, count) in &mut open {
                if seq < *count {
                    let record = writing.record(*number, seq, Sizes::Real.next(random));
                    let _ = writer.append_record(&NewRecord::json(&record)).unwrap();
                }
            }
        }
        for (_, writer, ..) in open {
            let _ = writer.end(&Outcome::completed().durability(process)).unwrap();
        }
    }
    log.sync().unwrap();
    log.checkpoint().unwrap();
    let began = Instant::now();
    let done = log.compact().unwrap();
    println!("{name}: compacted in {:.1} s, {done:?}", began.elapsed().as_secs_f64());
    Side { name, log, _folder: folder }
}

fn records(log: &RunLog, id: &str) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let records = log.trace(id).unwrap().map(Result::unwrap);
    records.map(|record| (record.seq().0, record.payload().to_vec()))
}

/// Megabytes of payload a second.
fn rate(log: &RunLog, id: &str) -> f64 {
    let began = Instant::now();
    let mut trace = log.trace(id).unwrap();
    let mut bytes = 0;
    while let Some(record) = trace.next_view() {
        bytes += black_box(record.unwrap().payload()).len();
    }
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

/// Microseconds to read one record.
fn single(log: &RunLog, id: &str, seq: Seq) -> f64 {
    let began = Instant::now();
    let mut trace = log.trace(id).unwrap().range(seq..).unwrap();
    black_box(trace.next_view().unwrap().unwrap().payload());
    began.elapsed().as_secs_f64() * 1e6
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
