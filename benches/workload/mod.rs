//! The workloads of the benchmarks: sizes of records, stores with many runs, and the least work
//! that a lookup could possibly do.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use criterion::Criterion;
use runlog::{Durability, Metadata, NewRecord, Options, Outcome, RunLog};
use runlog_sim::SplitMix64;

/// Records of a run in the lookup benchmarks.
pub(crate) const RECORDS: usize = 30;
/// Bytes of a record there.
pub(crate) const RECORD_LEN: usize = 256;
/// Agents that the runs belong to.
pub(crate) const AGENTS: usize = 50;
/// Runs that are written at once where runs are interleaved.
pub(crate) const INTERLEAVED: usize = 64;

/// Short measurements: the differences that count here are large.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args()
}

/// How many runs the stores of the lookup benchmarks have: `RUNLOG_BENCH_RUNS`, by commas.
pub(crate) fn run_counts() -> Vec<usize> {
    let text = std::env::var("RUNLOG_BENCH_RUNS").unwrap_or("1000,10000".to_owned());
    text.split(',').map(|count| count.trim().parse().expect("a number of runs")).collect()
}

/// A folder that vanishes; in `RUNLOG_BENCH_DIR` if that is set.
pub(crate) fn folder() -> tempfile::TempDir {
    match std::env::var_os("RUNLOG_BENCH_DIR") {
        Some(dir) => tempfile::tempdir_in(PathBuf::from(dir)).unwrap(),
        None => tempfile::tempdir().unwrap(),
    }
}

/// The quantiles of record sizes in real sessions, in thousandths.
const REAL_SIZES: [(u64, usize); 10] = [
    (0, 120),
    (10, 235),
    (100, 579),
    (250, 686),
    (500, 1_049),
    (750, 1_932),
    (900, 6_140),
    (950, 15_375),
    (990, 51_045),
    (1_000, 114_865),
];

/// Payloads as real sessions have them: between two quantiles all sizes are as likely.
pub(crate) fn real_payloads(count: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut random = SplitMix64::new(seed);
    let mut size = || {
        let at = random.below(1_000);
        let above = REAL_SIZES.iter().position(|&(quantile, _)| quantile > at).unwrap();
        let ((low, from), (high, to)) = (REAL_SIZES[above - 1], REAL_SIZES[above]);
        from + (to - from) * usize::try_from(at - low).unwrap()
            / usize::try_from(high - low).unwrap()
    };
    (0..count).map(|_| text(size())).collect()
}

/// One JSON string of this length without a line break.
pub(crate) fn text(len: usize) -> Vec<u8> {
    let mut bytes = vec![b'a'; len];
    let words = bytes.iter_mut().zip(b"\"role\": assistant, 0123456789 ".iter().cycle());
    words.for_each(|(byte, &letter)| *byte = if letter == b'"' { b'\'' } else { letter });
    if let [first, .., last] = &mut bytes[..] {
        (*first, *last) = (b'"', b'"');
    }
    bytes
}

/// The agent and the id of a run.
pub(crate) fn ids(number: usize) -> (String, String) {
    (format!("agent-{}", number % AGENTS), format!("run-{number:08}"))
}

/// The payload of a record of the lookup benchmarks.
pub(crate) fn payload(run: usize, seq: usize) -> Vec<u8> {
    let mut payload = text(RECORD_LEN);
    payload[1..17].copy_from_slice(format!("{run:010}{seq:06}").as_bytes());
    payload
}

/// A store with so many runs, `width` of which are written at once, and the file's folder.
pub(crate) fn store(runs: usize, width: usize) -> (tempfile::TempDir, RunLog) {
    let folder = folder();
    let log = Options::new().create(folder.path().join("bench.runlog")).unwrap();
    let numbers: Vec<usize> = (0..runs).collect();
    let process = Durability::Process;
    for group in numbers.chunks(width) {
        let start = |&number: &usize| {
            let (agent, run) = ids(number);
            log.start_run(&agent, &run, Metadata::new(b"{}").durability(process)).unwrap()
        };
        let writers: Vec<_> = group.iter().map(start).collect();
        for seq in 0..RECORDS {
            for (writer, &number) in writers.iter().zip(group) {
                let _ = writer.append_record(&NewRecord::json(&payload(number, seq))).unwrap();
            }
        }
        for writer in writers {
            let _ = writer.end(&Outcome::completed().durability(process)).unwrap();
        }
    }
    log.checkpoint().unwrap();
    (folder, log)
}

/// The least that a lookup could do: a hash map from the id to the places of the records, a copy
/// of each, and its checksum.
pub(crate) struct Bare {
    bytes: Vec<u8>,
    places: HashMap<String, Vec<usize>>,
}

impl Bare {
    /// The same records in the same order as in [`store`].
    pub(crate) fn new(runs: usize, width: usize) -> Self {
        let mut bytes = Vec::with_capacity(runs * RECORDS * RECORD_LEN);
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        let numbers: Vec<usize> = (0..runs).collect();
        for group in numbers.chunks(width) {
            for seq in 0..RECORDS {
                for &number in group {
                    places.entry(ids(number).1).or_default().push(bytes.len());
                    bytes.extend_from_slice(&payload(number, seq));
                }
            }
        }
        Self { bytes, places }
    }

    /// The records of a run, and a checksum over their checksums.
    pub(crate) fn trace(&self, run: &str) -> (Vec<Vec<u8>>, u32) {
        let mut sum = 0;
        let copy = |&at: &usize| {
            let record = self.bytes[at..at + RECORD_LEN].to_vec();
            sum ^= crc32fast::hash(&record);
            record
        };
        let records = self.places[run].iter().map(copy).collect();
        (records, sum)
    }
}

/// Run numbers in an order without any.
pub(crate) struct Picks {
    random: SplitMix64,
    runs: Vec<String>,
}

impl Picks {
    pub(crate) fn new(runs: usize) -> Self {
        Self { random: SplitMix64::new(99), runs: (0..runs).map(|number| ids(number).1).collect() }
    }

    pub(crate) fn next(&mut self) -> &str {
        let at = self.random.index(self.runs.len());
        &self.runs[at]
    }
}
