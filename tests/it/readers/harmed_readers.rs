//! A reader, a follower and a backup of a file with which something happens while they read it.
//!
//! Goal: whatever happens to the file, each answer is right or a typed error; no call panics or
//! reads without end; a backup fails or opens. Once the good file is back, the reader answers as a
//! new one does, and the follower goes on.
//!
//! Method: the file is in memory, and what it contains changes between two calls or in the middle
//! of one: it is damaged at random places, cut off, emptied, replaced by another store, by an
//! earlier or a later state of the same one, by one of a newer version, or by something else.
//! `RUNLOG_HARMED_READERS` sets the number of rounds, `RUNLOG_HARMED_READERS_SEED` the seed, and
//! `RUNLOG_HARMED_READERS_ROUND` repeats one round.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use runlog::format::map::header::StaticHeader;
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Compression, Error, Follow, Follower, LogCursor, LogEventKind, NewRecord, Options, Outcome,
    ReadLog, Reader, ReaderOptions, Retention, RunLog, RunQuery,
};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

use crate::backup::backups::all;
use crate::readers::replicas::payload;
use crate::support::campaign::variable;

const PAGE: usize = 4096;
/// The most reads of the file by the calls of one part of a round. They need some thousands.
const MOST_READS: u64 = 200_000;
/// The most items of one iterator.
const MOST_ITEMS: usize = 5_000;

/// A file whose contents may change in front of a read.
#[derive(Debug)]
struct Shifting {
    now: Mutex<Arc<Vec<u8>>>,
    next: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
    reads: AtomicU64,
}

impl Shifting {
    fn new(bytes: &Arc<Vec<u8>>) -> Arc<Self> {
        let (now, next, reads) = (Mutex::new(Arc::clone(bytes)), Mutex::default(), 0.into());
        Arc::new(Self { now, next, reads })
    }

    /// The file has these bytes, after so many more reads.
    fn becomes(&self, bytes: &Arc<Vec<u8>>, after: u64) {
        *self.next.lock().unwrap() = Some((after, Arc::clone(bytes)));
        self.reads.store(0, Ordering::Relaxed);
    }

    fn bytes(&self) -> Arc<Vec<u8>> {
        let reads = self.reads.fetch_add(1, Ordering::Relaxed);
        assert!(reads < MOST_READS, "an endless loop: {reads} reads");
        let (mut now, mut next) = (self.now.lock().unwrap(), self.next.lock().unwrap());
        match next.take() {
            Some((0, bytes)) => *now = bytes,
            Some((left, bytes)) => *next = Some((left - 1, bytes)),
            None => {}
        }
        Arc::clone(&now)
    }
}

impl Storage for Shifting {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let (bytes, offset) = (self.bytes(), offset as usize);
        let found = bytes.get(offset..offset + buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        unreachable!("a reader writes nothing")
    }

    fn sync(&self) -> io::Result<()> {
        unreachable!("a reader syncs nothing")
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        unreachable!("a reader changes no length")
    }

    fn allocate(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a reader allocates nothing")
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<()> {
        unreachable!("a reader punches nothing")
    }
}

fn options() -> Options {
    let options = Options::new().extent_size(64 << 10).background(false);
    options.compression(Compression::Zstd { level: 1 })
}

/// Runs come, grow, end and go; documents change; what is dead is moved.
fn work(log: &RunLog, rng: &mut SplitMix64, steps: u64) {
    for _ in 0..steps {
        let id = format!("run-{}", rng.below(30));
        match rng.below(12) {
            0 | 1 => {
                if let Ok(run) = log.start_run("agent", &id, ()) {
                    let _ = run.end(&Outcome::completed());
                }
            }
            2 if rng.below(3) == 0 => drop(log.delete_run(&id)),
            3 => {
                let key = rng.below(8).to_string();
                log.docs().put("docs", &key, &NewRecord::new(&payload(&key, 0))).unwrap();
            }
            4 if rng.below(4) == 0 => drop(log.compact().unwrap()),
            5 => log.sync().unwrap(),
            _ => {
                let has_ended = log.run(&*id).is_ok_and(|run| run.ended_at.is_some());
                if let (false, Ok(run)) = (has_ended, log.start_run("agent", &id, ())) {
                    let seq = log.run(&*id).unwrap().records;
                    let bytes = [seq, seq + 1].map(|seq| payload(&id, seq));
                    run.append_batch(&bytes.each_ref().map(|one| NewRecord::new(one))).unwrap();
                }
            }
        }
    }
}

/// The states of a file: while it is written, after its writer died, and closed.
fn states(seed: u64) -> Vec<Arc<Vec<u8>>> {
    let mut rng = SplitMix64::new(seed);
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let mut states = Vec::new();
    for _ in 0..10 {
        work(&log, &mut rng, 80);
        states.push(Arc::new(storage.to_bytes()));
    }
    log.close().unwrap();
    states.push(Arc::new(storage.to_bytes()));
    states
}

/// Whether an error is one that a caller can act on.
fn is_typed(error: &Error) -> bool {
    match error {
        // The file was cut off between two calls.
        Error::Io { source, .. } => source.kind() == io::ErrorKind::UnexpectedEof,
        Error::Truncated { .. }
        | Error::Replaced { .. }
        | Error::RunNotFound { .. }
        | Error::Evicted { .. }
        | Error::NotAStore { .. }
        | Error::UnsupportedVersion { .. } => true,
        error => error.is_corruption(),
    }
}

/// What must be typed if it is an error.
fn check<T>(what: &str, answer: &Result<T, Error>) {
    let error = answer.as_ref().err();
    assert!(error.is_none_or(is_typed), "{what}: {error:?}");
}

fn typed<T>(what: &str, answer: Result<T, Error>) -> Option<T> {
    check(what, &answer);
    answer.ok()
}

/// Asks everything. What is answered must be right.
fn ask(log: &Reader) {
    let page = typed("list", log.list_runs(&RunQuery::new().limit(1_000)));
    for run in page.map(|page| page.runs).unwrap_or_default() {
        typed("run", log.run(&run));
        typed("metadata", log.metadata(&run));
        typed("outcome", log.outcome(&run));
        let Some(trace) = typed("trace", log.trace(&run)) else { continue };
        let mut next = 0;
        for item in trace.take(MOST_ITEMS) {
            let Some(record) = typed("record", item) else { continue };
            let seq = record.seq().0;
            assert!(seq >= next, "{} {seq} behind {next}", run.run);
            assert!(record.payload() == payload(run.run.as_str(), seq), "{} {seq}", run.run);
            next = seq + 1;
        }
        if let Some(trace) = typed("trace", log.trace(&run)) {
            let last = trace.rev().take(MOST_ITEMS).inspect(|item| check("record", item)).count();
            assert!(last < MOST_ITEMS, "{} has no end", run.run);
        }
    }
    for key in 0..8 {
        let key = key.to_string();
        if let Some(Some(value)) = typed("document", log.document("docs", &key)) {
            assert!(value.payload() == payload(&key, 0), "document {key}");
        }
        typed("version", log.document_version("docs", &key));
    }
    typed("documents", log.list_documents("docs", "", None, 100));
    typed("agents", log.agents(None, 100));
    typed("held", log.held_runs());
    typed("receipts", log.receipts(100));
    typed("plan", log.gc_plan(&Retention::new().keep_newest(2)));
    typed("stats", log.stats());
    typed("verify", log.verify());
    typed("cursor", log.end_cursor());
    let _ = log.recovery_report().to_string();
}

/// What a follower was told so far.
#[derive(Default)]
struct Told {
    records: BTreeSet<(String, u64, u64)>,
    damage: usize,
}

impl Told {
    /// All that is there by now, up to a failure that would come again.
    fn read_on(&mut self, follower: &mut Follower, most: usize) -> Option<Error> {
        for _ in 0..most {
            match follower.try_next() {
                Ok(None) => return None,
                Ok(Some(event)) => {
                    let LogEventKind::Record(record) = &event.kind else { continue };
                    let (run, seq) = (event.run.to_string(), record.seq().0);
                    assert!(record.payload() == payload(&run, seq), "followed: {run} {seq}");
                    let is_new = self.records.insert((run.clone(), event.number.0, seq));
                    assert!(is_new, "{run} {seq} is told twice");
                }
                Err(error) if error.is_corruption() => self.damage += 1,
                Err(error) => return Some(error),
            }
        }
        assert!(most < MOST_ITEMS, "a follower without end");
        None
    }
}

/// What happens to a file.
fn happen(
    states: &[Arc<Vec<u8>>],
    other: &Arc<Vec<u8>>,
    at: usize,
    rng: &mut SplitMix64,
) -> (&'static str, Arc<Vec<u8>>) {
    let mut bytes = Vec::clone(&states[at]);
    let place = |rng: &mut SplitMix64, len: usize| match rng.below(3) {
        0 => rng.index(len.min(64 << 10)),
        // Headers of extents.
        1 => ((64 << 10) * (1 + rng.index((len >> 16).max(1))) + rng.index(300)).min(len - 1),
        _ => rng.index(len),
    };
    let what = match rng.below(10) {
        0..=2 => {
            for _ in 0..1 + rng.below(12) {
                let at = place(rng, bytes.len());
                bytes[at] ^= 1 << rng.below(8);
            }
            "some bits are flipped"
        }
        3 => {
            let from = place(rng, bytes.len());
            let to = (from + 1 + rng.index(70_000)).min(bytes.len());
            bytes[from..to].fill(0);
            "a part is zeroed"
        }
        4 => {
            let (from, to) = (place(rng, bytes.len()), place(rng, bytes.len()));
            let len = rng.index(9_000).min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + len, to);
            "a part is in another place"
        }
        5 => {
            bytes.truncate(rng.index(bytes.len()));
            "it is cut off"
        }
        6 => {
            bytes.clear();
            "it is emptied"
        }
        7 => return ("it is another store", Arc::clone(other)),
        8 => {
            let state = &states[rng.index(at + 1)];
            return ("it is an earlier state", Arc::clone(state));
        }
        _ if rng.coin() => {
            become_newer(&mut bytes);
            "it is of a newer version"
        }
        _ => {
            bytes = b"something else entirely ".repeat(9_000);
            "it is something else"
        }
    };
    (what, Arc::new(bytes))
}

fn become_newer(bytes: &mut [u8]) {
    let mut header = StaticHeader::decode(&bytes[..PAGE]).unwrap();
    (header.version, header.min_reader) = (header.version + 1, header.min_reader + 1);
    bytes[..PAGE].copy_from_slice(&header.encode());
}

fn look(storage: &Arc<Shifting>, rng: &mut SplitMix64) -> Result<Reader, Error> {
    ReaderOptions::new()
        .map_bytes([0, 400, 64 << 20][rng.index(3)])
        .lookup_cache(rng.index(20))
        .shared_bytes([0, 1 << 20][rng.index(2)])
        .open_storage(storage.clone())
}

/// A backup fails, or opens.
fn back_up(reader: &Reader) -> bool {
    let copy = Arc::new(MemoryStorage::new());
    let Some(report) = typed("backup", reader.backup_to_storage(copy.clone())) else {
        return false;
    };
    let found = ReaderOptions::new().open_storage(copy.clone());
    let found = found.unwrap_or_else(|error| panic!("a copy: {error}, {report:?}"));
    ask(&found);
    let opened = options().open_storage(copy);
    opened.unwrap_or_else(|error| panic!("a copy to write to: {error}")).close().unwrap();
    true
}

fn round(states: &[Arc<Vec<u8>>], other: &Arc<Vec<u8>>, rng: &mut SplitMix64) -> &'static str {
    let at = rng.index(states.len());
    let storage = Shifting::new(&states[at]);
    let reader = look(&storage, rng).unwrap();
    let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let mut told = Told::default();
    let most = rng.index(200);
    assert!(told.read_on(&mut follower, most).is_none() && told.damage == 0);
    let runs = reader.list_runs(&RunQuery::new().limit(100)).unwrap().runs;
    let held = (!runs.is_empty()).then(|| &runs[rng.index(runs.len())]);
    let mut held = held.map(|run| reader.trace(run).unwrap());
    if let Some(trace) = &mut held {
        trace.take(rng.index(6)).for_each(|record| drop(record.unwrap()));
    }

    // The writer may have gone on meanwhile, but not back.
    let then = if rng.coin() { at } else { at + rng.index(states.len() - at) };
    let (what, bytes) = happen(states, other, then, rng);
    let after = if rng.coin() { 0 } else { rng.below(60) };
    println!("state {at}, {then}, and after {after} reads {what}");
    storage.becomes(&bytes, after);
    for _ in 0..2 {
        for part in 0..4 {
            match (part + rng.below(4)) % 4 {
                0 => _ = typed("refresh", reader.refresh()),
                1 => ask(&reader),
                2 => _ = back_up(&reader),
                _ => {
                    let failure = told.read_on(&mut follower, MOST_ITEMS);
                    assert!(failure.as_ref().is_none_or(is_typed), "follow: {failure:?}");
                }
            }
        }
        if let Some(trace) = &mut held {
            let items = trace.take(MOST_ITEMS).inspect(|item| check("held", item)).count();
            assert!(items < MOST_ITEMS, "a trace without end");
        }
        if let Some(second) = typed("open", look(&storage, rng)) {
            ask(&second);
        }
        // What was to come in the middle of a call has come.
        storage.becomes(&bytes, 0);
    }

    let good = &states[then + rng.index(states.len() - then)];
    storage.becomes(good, 0);
    reader.refresh().unwrap_or_else(|error| panic!("{what}, and is good again: {error}"));
    let fresh = ReaderOptions::new().open_storage(Shifting::new(good)).unwrap();
    let (mine, expected) = (all(&reader), all(&fresh));
    let odd = mine.keys().chain(expected.keys()).find(|key| mine.get(*key) != expected.get(*key));
    if let Some(key) = odd {
        let len = |found: Option<&Vec<Vec<u8>>>| found.map(Vec::len);
        let lens = (len(mine.get(key)), len(expected.get(key)));
        panic!("{what}, and is good again: {key} is another: {lens:?}");
    }
    let report = reader.verify().unwrap();
    assert!(report.is_clean(), "{what}, and is good again: {:?}", report.problems);
    let failure = told.read_on(&mut follower, MOST_ITEMS);
    assert!(failure.is_none(), "{what}, and is good again: {failure:?}");
    // What is new from here on is told in any case.
    let copy = Arc::new(MemoryStorage::from_bytes(Vec::clone(good)));
    let log = options().open_storage(copy.clone()).unwrap();
    let seq = log.run("run-new").map_or(0, |run| run.records);
    let run = log.start_run("agent", "run-new", ()).unwrap();
    run.append(&payload("run-new", seq)).unwrap();
    drop(run);
    log.close().unwrap();
    storage.becomes(&Arc::new(copy.to_bytes()), 0);
    let (known, damage) = (told.records.len(), told.damage);
    let failure = told.read_on(&mut follower, MOST_ITEMS);
    let new = (failure.is_none(), told.records.len() - known, told.damage - damage);
    assert_eq!(new, (true, 1, 0), "{what}, and goes on: {failure:?}");
    what
}

#[test]
fn whatever_happens_to_the_file_a_reader_answers_rightly_or_says_why_not_and_goes_on() {
    let seed = variable("RUNLOG_HARMED_READERS_SEED", 2026);
    let rounds = variable("RUNLOG_HARMED_READERS", 150);
    println!("RUNLOG_HARMED_READERS={rounds} RUNLOG_HARMED_READERS_SEED={seed}");
    let only = std::env::var("RUNLOG_HARMED_READERS_ROUND").is_ok();
    let first = variable("RUNLOG_HARMED_READERS_ROUND", 0);
    let (states, other) = (states(seed), states(seed + 1).remove(5));
    let mut seen = std::collections::BTreeMap::new();
    for number in first..if only { first + 1 } else { rounds } {
        let mut rng = SplitMix64::for_case(seed, number);
        let done = catch_unwind(AssertUnwindSafe(|| round(&states, &other, &mut rng)));
        let what = done.unwrap_or_else(|panic| {
            println!(
                "again: RUNLOG_HARMED_READERS_SEED={seed} RUNLOG_HARMED_READERS_ROUND={number}"
            );
            std::panic::resume_unwind(panic)
        });
        *seen.entry(what).or_insert(0) += 1;
    }
    println!("{seen:?}");
    assert!(only || seen.len() > 6, "{seen:?}");
}

#[test]
fn a_store_that_becomes_of_a_newer_version_is_refused_until_it_is_not() {
    let states = states(7);
    let (before, after) = (&states[3], &states[4]);
    let storage = Shifting::new(before);
    let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
    let mut newer = Vec::clone(after);
    become_newer(&mut newer);
    storage.becomes(&Arc::new(newer), 0);
    for _ in 0..3 {
        assert!(matches!(reader.refresh(), Err(Error::UnsupportedVersion { .. })));
    }
    let refused = reader.follow(Follow::Everything, LogCursor::START).err();
    assert!(matches!(refused, Some(Error::UnsupportedVersion { .. })), "{refused:?}");
    storage.becomes(after, 0);
    assert!(reader.refresh().unwrap());
    assert!(!reader.refresh().unwrap());
    let fresh = ReaderOptions::new().open_storage(Shifting::new(after)).unwrap();
    assert!(all(&reader) == all(&fresh));
}

/// The same with a real file, whose identity tells more than its bytes do.
#[test]
fn a_file_that_is_away_and_comes_back_is_read_on() {
    let dir = TempDir::new().unwrap();
    let (path, aside) = (dir.path().join("store"), dir.path().join("aside"));
    let states = states(8);
    fs::write(&path, &*states[4]).unwrap();
    let reader = Reader::open(&path).unwrap();
    let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let mut told = Told::default();
    assert!(told.read_on(&mut follower, MOST_ITEMS).is_none());
    let known = all(&reader);

    // Renamed, and another one in its place: the one that was opened can still be read.
    fs::rename(&path, &aside).unwrap();
    for instead in [None, Some(&states[5])] {
        if let Some(bytes) = instead {
            fs::write(&path, &**bytes).unwrap();
        }
        assert!(matches!(reader.refresh(), Err(Error::Replaced { .. })));
        assert!(matches!(follower.try_next(), Err(Error::Replaced { .. })));
        assert!(all(&reader) == known);
        let copy = dir.path().join("copy");
        assert!(matches!(reader.backup_to(&copy), Err(Error::Replaced { .. })));
        assert!(!copy.exists());
    }
    fs::rename(&aside, &path).unwrap();
    assert!(!reader.refresh().unwrap());
    assert!(told.read_on(&mut follower, MOST_ITEMS).is_none());

    // Overwritten in place, as `cp` does it: cut off first.
    let file = File::options().write(true).open(&path).unwrap();
    for len in [0, 5_000, 100_000] {
        file.set_len(len).unwrap();
        ask(&reader);
        typed("refresh", reader.refresh());
        let failure = told.read_on(&mut follower, MOST_ITEMS);
        assert!(failure.as_ref().is_none_or(is_typed), "{failure:?}");
    }
    fs::write(&path, &*states[6]).unwrap();
    reader.refresh().unwrap();
    let fresh = Reader::open(&path).unwrap();
    assert!(all(&reader) == all(&fresh));
    assert!(told.read_on(&mut follower, MOST_ITEMS).is_none());

    // Removed while nothing reads: a new reader says so.
    fs::remove_file(&path).unwrap();
    assert!(matches!(reader.refresh(), Err(Error::Replaced { .. })));
    assert!(matches!(Reader::open(&path), Err(Error::NotFound { .. })));
}
