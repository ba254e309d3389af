//! Traces of a process that only reads, which reads several records with one read: the same records
//! and the same damage as one by one, and no more reads than it takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Compression, Durability, Error, Metadata, NewRecord, Options, Outcome, Reader, ReaderOptions,
    RunLog, RunQuery, RunRef, RunSummary, Seq, Trace,
};
use runlog_sim::SplitMix64;

use crate::support::tap::Tap;

/// What a record is, or the error for it.
type Item = Result<(u64, Option<String>, Vec<u8>), String>;

/// Longer than a piece that traces share.
const LONG: usize = 300 << 10;

fn payload(run: usize, seq: usize, len: usize) -> Vec<u8> {
    let mut bytes = format!("run {run} record {seq} ").into_bytes();
    bytes.extend((0..len).map(|at| b'a' + (at * 7 + run + seq) as u8 % 26));
    bytes
}

/// Runs whose records lie between one another, of any length, some of which end.
fn write(log: &RunLog, runs: usize, records: usize, seed: u64) {
    let mut random = SplitMix64::new(seed);
    let process = Durability::Process;
    let writers: Vec<_> = (0..runs)
        .map(|run| {
            let metadata = Metadata::new(b"{}").durability(process);
            log.start_run("agent", &format!("run-{seed}-{run}"), metadata).unwrap()
        })
        .collect();
    let mut seqs = vec![0; runs];
    for _ in 0..records * runs {
        let run = random.index(runs);
        let len = match random.below(60) {
            0 => random.index(LONG),
            1..=6 => random.index(9_000),
            _ => random.index(500),
        };
        let bytes = payload(run, seqs[run], len);
        let kind = ["", "user", "tool"][random.index(3)];
        let record = NewRecord::new(&bytes).durability(process);
        let record = if kind.is_empty() { record } else { record.kind(kind) };
        writers[run].append_record(&record).unwrap();
        seqs[run] += 1;
    }
    for writer in writers.iter().take(runs * 2 / 3) {
        writer.end(&Outcome::completed().durability(process)).unwrap();
    }
}

fn store(options: &Options, runs: usize, records: usize) -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options.create_storage(storage.clone()).unwrap();
    write(&log, runs, records, 7);
    log.compact().unwrap();
    write(&log, runs, records / 4, 8);
    log.close().unwrap();
    storage
}

/// Readers that read one run's records, and that share what they read.
fn readers(storage: &Arc<impl Storage>) -> Vec<Reader> {
    let open = |bytes| {
        let storage: Arc<dyn Storage> = storage.clone();
        ReaderOptions::new().shared_bytes(bytes).open_storage(storage).unwrap()
    };
    [0, 1 << 20, 16 << 20].into_iter().map(open).collect()
}

fn runs(reader: &Reader) -> Vec<RunSummary> {
    reader.runs(&RunQuery::new()).map(Result::unwrap).collect()
}

fn item<B: core::ops::Deref<Target = [u8]>>(found: Result<runlog::Record<B>, Error>) -> Item {
    let record = found.map_err(|error| error.to_string())?;
    let kind = record.kind().map(str::to_owned);
    Ok((record.seq().0, kind, record.payload().to_vec()))
}

/// One by one, from the end.
fn one_by_one(trace: Trace) -> Vec<Item> {
    let mut items: Vec<Item> = trace.rev().map(item).collect();
    items.reverse();
    items
}

fn views(mut trace: Trace) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some(found) = trace.next_view() {
        items.push(item(found));
    }
    items
}

/// Views and records to keep, in turns.
fn in_turns(mut trace: Trace) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        let found = match items.len() % 3 {
            0 => trace.next().map(item),
            _ => trace.next_view().map(item),
        };
        match found {
            Some(found) => items.push(found),
            None => return items,
        }
    }
}

fn assert_same(reader: &Reader, run: &RunSummary) -> Vec<Item> {
    let trace = || reader.trace(RunRef::from(run)).unwrap();
    let expected = one_by_one(trace());
    for (how, found) in [
        ("views", views(trace())),
        ("kept", trace().map(item).collect()),
        ("turns", in_turns(trace())),
    ] {
        assert!(found == expected, "{how} of {} of {reader:?}", run.run);
    }
    expected
}

#[test]
fn every_record_is_what_it_is_one_by_one_wherever_it_lies() {
    let zstd = Compression::Zstd { level: 1 };
    for (options, scale) in [
        (Options::new().extent_size(64 << 10), 30),
        (Options::new().extent_size(4 << 20), 300),
        (Options::new().extent_size(4 << 20).compression(zstd), 300),
        (Options::new().extent_size(64 << 10).compression(zstd), 30),
    ] {
        let storage = store(&options.background(false), 9, scale);
        for reader in readers(&storage) {
            let mut records = 0;
            for run in runs(&reader) {
                let items = assert_same(&reader, &run);
                assert_eq!(items.len() as u64, run.records);
                assert!(items.iter().all(Result::is_ok));
                records += items.len();
                let (low, high) = (run.records / 3, run.records * 2 / 3);
                let trace = reader.trace(RunRef::from(&run)).unwrap();
                let part = views(trace.range(Seq(low)..Seq(high)).unwrap());
                assert!(part == items[low as usize..high as usize]);
            }
            assert!(records > 9 * scale, "{records}");
        }
    }
}

#[test]
fn a_damaged_record_is_told_and_its_neighbours_are_read() {
    let storage = store(&Options::new().extent_size(64 << 10).background(false), 5, 60);
    let good = storage.to_bytes();
    let mut random = SplitMix64::new(3);
    let mut told = 0;
    for _ in 0..60 {
        let mut bytes = good.clone();
        // Not in the pages in front of the extents.
        let at = (128 << 10) + random.index(bytes.len() - (128 << 10));
        bytes[at] ^= 1 << random.index(8);
        let harmed = Arc::new(MemoryStorage::from_bytes(bytes));
        for reader in readers(&harmed) {
            for run in runs(&reader) {
                let items = assert_same(&reader, &run);
                told += items.iter().filter(|item| item.is_err()).count();
            }
        }
    }
    assert!(told > 30, "{told}");
}

/// The reads of the file, and their bytes, while `work` is done.
fn counted(
    storage: &Arc<MemoryStorage>,
    shared_bytes: usize,
    work: impl FnOnce(&Reader, &[RunSummary]),
) -> (u64, u64) {
    let counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let noted = Arc::clone(&counts);
    let storage = Tap::only_reads(storage.clone(), move |_, len| {
        noted.0.fetch_add(1, Ordering::Relaxed);
        noted.1.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    });
    let reader = ReaderOptions::new().shared_bytes(shared_bytes).open_storage(storage).unwrap();
    let runs = runs(&reader);
    let now = || (counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed));
    let before = now();
    work(&reader, &runs);
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}

/// Runs whose records of 300 bytes lie in turns.
fn in_turn(runs: usize, records: usize) -> Arc<MemoryStorage> {
    let storage = Arc::new(MemoryStorage::new());
    let log = Options::new().background(false).create_storage(storage.clone()).unwrap();
    let writers: Vec<_> =
        (0..runs).map(|run| log.start_run("agent", &format!("run-{run}"), ()).unwrap()).collect();
    for seq in 0..records {
        for (run, writer) in writers.iter().enumerate() {
            let bytes = payload(run, seq, 300);
            let record = NewRecord::new(&bytes).durability(Durability::Process);
            writer.append_record(&record).unwrap();
        }
    }
    drop(writers);
    log.close().unwrap();
    storage
}

#[test]
fn records_that_lie_together_are_read_together() {
    let storage = in_turn(1, 20_000);
    let (reads, bytes) = counted(&storage, 0, |reader, runs| {
        assert_eq!(views(reader.trace(RunRef::from(&runs[0])).unwrap()).len(), 20_000);
    });
    assert!(reads < 120, "{reads} reads");
    assert!(bytes < 10 << 20, "{bytes} bytes");
}

#[test]
fn who_wants_the_first_record_reads_little() {
    let storage = in_turn(1, 20_000);
    let (reads, bytes) = counted(&storage, 0, |reader, runs| {
        assert!(reader.trace(RunRef::from(&runs[0])).unwrap().next_view().unwrap().is_ok());
    });
    assert!(reads == 1 && bytes <= 8 << 10, "{reads} reads of {bytes} bytes");
}

#[test]
fn records_far_from_one_another_are_read_by_themselves_or_out_of_shared_pieces() {
    let storage = in_turn(50, 1_000);
    let all = |reader: &Reader, runs: &[RunSummary]| {
        for run in runs {
            assert_eq!(views(reader.trace(RunRef::from(run)).unwrap()).len(), 1_000);
        }
    };
    let (reads, bytes) = counted(&storage, 0, all);
    assert!(reads <= 50_100 && bytes < 120 << 20, "{reads} reads of {bytes} bytes");
    // All of it is read once; the segment that takes frames is not shared.
    let (reads, bytes) = counted(&storage, 32 << 20, all);
    assert!(reads < 12_000 && bytes < 40 << 20, "{reads} reads of {bytes} bytes");
    // There is too little room for that, which is noticed.
    let (_, bytes) = counted(&storage, 2 << 20, all);
    assert!(bytes < 140 << 20, "{bytes} bytes");
}
