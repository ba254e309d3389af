//! The workloads of the benchmarks: sizes of records, stores with many runs, and the least work
//! that a lookup could possibly do.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::Criterion;
use memmap2::Mmap;
use runlog::{Durability, Metadata, NewRecord, Options, Outcome, RunLog};
use runlog_sim::SplitMix64;

/// Records of a run in the lookup benchmarks.
pub(crate) const RECORDS: usize = 30;
/// Bytes of a record there.
pub(crate) const RECORD_LEN: usize = 256;
/// Agents that the runs belong to.
pub(crate) const AGENTS: usize = 50;
/// How many runs are interleaved.
pub(crate) const INTERLEAVED: usize = 64;

/// Short measurements suffice: the differences that matter here are large.
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

/// A temporary folder, in `RUNLOG_BENCH_DIR` if that is set.
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

/// Payloads with sizes as in real sessions: uniform between two quantiles.
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
    payload_of(run, seq, RECORD_LEN)
}

/// A payload of this length that contains its run and its sequence.
pub(crate) fn payload_of(run: usize, seq: usize, len: usize) -> Vec<u8> {
    let mut payload = text(len);
    payload[1..17].copy_from_slice(format!("{run:010}{seq:06}").as_bytes());
    payload
}

/// The same runs for another layout: agent, run, and a line for each record.
pub(crate) fn lines(runs: usize) -> impl Iterator<Item = (String, String, Vec<u8>)> {
    (0..runs).map(|number| {
        let (agent, run) = ids(number);
        let lines = (0..RECORDS).flat_map(|seq| [payload(number, seq), b"\n".to_vec()].concat());
        (agent, run, lines.collect())
    })
}

/// The file of a [`store`].
pub(crate) fn path(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("bench.runlog")
}

/// A store with this many runs, `width` of which are interleaved, and the file's folder.
pub(crate) fn store(runs: usize, width: usize) -> (tempfile::TempDir, RunLog) {
    let folder = folder();
    let log = Options::new().create(path(&folder)).unwrap();
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

/// The least that a trace could do: a hash map from the id to the places of the records, a copy of
/// each from a map of the store's own file, and the CRC of its payload. So the bytes have the same
/// layout as for the engine, contiguous or interleaved, with the same headers between them; but
/// nothing else is read: no header, no directory, no kind, no number.
pub(crate) struct Bare {
    file: Mmap,
    /// The bytes of each payload.
    len: usize,
    places: HashMap<String, [Place; RECORDS]>,
}

/// Where a payload is, and its CRC.
#[derive(Clone, Copy, Default)]
struct Place {
    at: usize,
    crc: u32,
}

impl Bare {
    /// Finds the payloads of this length that [`payload_of`] made.
    pub(crate) fn of(path: &Path, len: usize) -> Self {
        let file = File::open(path).unwrap();
        // SAFETY: what is in the file already does not change, and no process cuts it off.
        #[allow(unsafe_code, reason = "the floor reads the same map as the engine")]
        let file = unsafe { Mmap::map(&file) }.unwrap();
        let mut places: HashMap<String, [Place; RECORDS]> = HashMap::new();
        let mut at = 0;
        while let Some(bytes) = file.get(at..at + len) {
            let Some((run, seq)) = numbers_of(bytes) else {
                at += 8;
                continue;
            };
            let found = Place { at, crc: crc32fast::hash(bytes) };
            places.entry(ids(run).1).or_default()[seq] = found;
            at += len;
        }
        Self { file, len, places }
    }

    /// Reads all records of a run; returns the sum of the bytes that it touched.
    pub(crate) fn trace(&self, run: &str) -> u64 {
        let records = (0..).zip(&self.places[run]).map(|(seq, place)| {
            let payload = self.file[place.at..place.at + self.len].to_vec();
            assert_eq!(crc32fast::hash(&payload), place.crc);
            (seq, payload)
        });
        records.map(|(seq, payload)| touch(seq, &payload)).sum()
    }
}

/// Reads a trace to its end; returns the sum of the bytes that it touched.
pub(crate) fn read(log: &RunLog, run: &str) -> u64 {
    let records = log.trace(run).unwrap().map(Result::unwrap);
    let touched = records.map(|record| touch(record.seq().0, record.payload()));
    let (count, sum) = touched.fold((0, 0), |(count, sum), touched| (count + 1, sum + touched));
    assert_eq!(count, RECORDS);
    sum
}

/// What the benchmarks do with a record.
pub(crate) fn touch(seq: u64, payload: &[u8]) -> u64 {
    seq + u64::from(payload[16]) + payload.len() as u64
}

/// The run and the sequence in a payload, if these bytes are one.
fn numbers_of(bytes: &[u8]) -> Option<(usize, usize)> {
    let digits = bytes.get(1..17).filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let digits = std::str::from_utf8(digits).ok()?;
    let (run, seq) = (digits[..10].parse().ok()?, digits[10..].parse().ok()?);
    (bytes == payload_of(run, seq, bytes.len())).then_some((run, seq))
}

/// Run numbers in random order.
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
