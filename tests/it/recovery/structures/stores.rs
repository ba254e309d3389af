//! Stores with everything in them: sealed segments, records from none to several extents, documents
//! with versions, runs that are ended, in progress, held, released, deleted; outputs of a
//! compaction with blocks; retired and free extents; with an index and without; closed in order
//! and killed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
#[cfg(test)]
use std::time::Duration;

use runlog::env::{BootId, Clock, Entropy, Environment};
#[cfg(test)]
use runlog::format::FrameKind;
use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Batch, Compaction, Compression, NewRecord, Options, Outcome, RunLog, Timestamp,
};

use super::map::{EXTENT, Map};
#[cfg(test)]
use super::{change::with_fields, map::Kind};

/// The namespace of the documents.
pub(crate) const SPACE: &str = "space";

/// A store, and where everything is in it.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) bytes: Vec<u8>,
    pub(crate) map: Map,
}

/// Time and randomness that follow from the order of the calls alone.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Clock for Counter {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.fetch_add(1_000, Ordering::Relaxed) as i64)
    }
}

impl Entropy for Counter {
    fn fill(&self, out: &mut [u8]) -> std::io::Result<()> {
        for byte in out {
            let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            *byte = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
        Ok(())
    }
}

/// How the stores are opened, in the boot of that number.
pub(crate) fn options(boot: u8) -> Options {
    let environment = Environment::system()
        .clock(Arc::new(Counter::default()))
        .entropy(Arc::new(Counter(AtomicU64::new(u64::from(boot) << 32))))
        .boot_id(Some(BootId([boot; 16])));
    Options::new()
        .extent_size(EXTENT as u64)
        .index_cache(1 << 20)
        .background(false)
        .environment(environment)
}

/// The same stores each time.
pub(crate) fn stores() -> &'static [Store] {
    static STORES: OnceLock<Vec<Store>> = OnceLock::new();
    STORES.get_or_init(|| all(Size::Usual))
}

/// The same kinds of stores, with the same in them, but as little of it as there can be.
#[cfg(test)]
pub(crate) fn lean_stores() -> &'static [Store] {
    static STORES: OnceLock<Vec<Store>> = OnceLock::new();
    STORES.get_or_init(|| all(Size::Lean))
}

/// How long the payloads are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "the fuzzer uses the usual stores"))]
enum Size {
    Usual,
    Lean,
}

impl Size {
    fn of(self, usual: usize, lean: usize) -> usize {
        if self == Self::Usual { usual } else { lean }
    }
}

fn all(size: Size) -> Vec<Store> {
    let mut stores = small(size);
    for index in [true, false] {
        stores.extend(everything(index, size));
    }
    let map = |bytes: Vec<u8>| Store { map: Map::of(&bytes), bytes };
    stores.into_iter().map(map).collect()
}

/// A store of one segment, killed and closed.
fn small(size: Size) -> Vec<Vec<u8>> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(7).create_storage(storage.clone()).expect("a new store");
    add_run(&log, 1, size);
    add_documents(&log, 1, size);
    let killed = storage.to_bytes();
    log.close().expect("nothing fails");
    vec![killed, storage.to_bytes()]
}

/// A store with all that there is: killed, killed while somebody reads what moved, closed.
fn everything(index: bool, size: Size) -> [Vec<u8>; 3] {
    let storage = Arc::new(MemoryStorage::new());
    let compaction = Compaction::new().automatic(false);
    let options =
        options(7).index(index).compression(Compression::Zstd { level: 1 }).compaction(compaction);
    let log = options.create_storage(storage.clone()).expect("a new store");
    for number in 0..10 {
        add_run(&log, number, size);
        add_documents(&log, number, size);
    }
    log.sync().expect("nothing fails");
    log.checkpoint().expect("nothing fails");
    for number in [0, 1, 8] {
        let (agent, run) = ids(number);
        let _ = log.delete_run((agent.as_str(), run.as_str())).expect("nothing fails");
    }
    let _ = log.compact().expect("nothing fails");
    for number in 10..17 {
        add_run(&log, number, size);
        add_documents(&log, number, size);
    }
    hold(&log, 9, false);
    hold(&log, 11, true);
    let (agent, run) = ids(12);
    let _ = log.delete_run((agent.as_str(), run.as_str())).expect("nothing fails");
    log.checkpoint().expect("nothing fails");
    // What is read stays as it was, so that its extents are retired for now.
    let mut trace = log.trace(ids(14).1.as_str()).expect("it is there");
    let held = trace.next().expect("it has records");
    let _ = log.compact().expect("nothing fails");
    let retired = storage.to_bytes();
    drop((held, trace));
    log.reclaim().expect("nothing fails");
    add_run(&log, 20, size);
    hold(&log, 10, true);
    add_documents(&log, 3, size);
    let killed = storage.to_bytes();
    log.close().expect("nothing fails");
    [killed, retired, storage.to_bytes()]
}

/// A store whose unsealed segment evicts the run that the sealed one evicts. The sealed one has
/// `gone` and most of `filler`, and the unsealed one the rest of that, `kept` and `other`.
#[cfg(test)]
pub(crate) fn evicted_again() -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let manual = Compaction::new().automatic(false);
    let log = options(7).compaction(manual).receipts(0, Duration::ZERO);
    let log = log.create_storage(storage.clone()).expect("a new store");
    let run = |name: &str, records: usize| {
        let run = log.start_run("agent", name, b"").expect("nothing fails");
        for _ in 0..records {
            let _ = run.append(&[7; 4_000]).expect("nothing fails");
        }
        let _ = run.end(&Outcome::completed()).expect("nothing fails");
    };
    run("gone", 1);
    let gone = log.run("gone").expect("it was started").number().0;
    let _ = log.delete_run("gone").expect("nothing fails");
    run("filler", 16);
    run("kept", 2);
    run("other", 1);
    let _ = log.delete_run("other").expect("nothing fails");
    log.checkpoint().expect("nothing fails");
    let bytes = storage.to_bytes();
    let store = Store { map: Map::of(&bytes), bytes };
    let last = store.map.structures.iter().rposition(|one| one.kind == Kind::Eviction);
    with_fields(&store, &[(last.expect("two were evicted"), 0, gone)])
}

/// A store with the runs `other` and `full`, of one record each, in this order; each field of a
/// record is set to a value. The last record may be torn then.
#[cfg(test)]
pub(crate) fn with_records(
    other: &[(usize, u64)],
    full: &[(usize, u64)],
    is_torn: bool,
) -> Vec<u8> {
    let storage = Arc::new(MemoryStorage::new());
    let log = options(7).create_storage(storage.clone()).expect("a new store");
    for run in ["other", "full"] {
        let run = log.start_run("agent", run, b"").expect("nothing fails");
        let _ = run.append(b"first").expect("nothing fails");
    }
    log.sync().expect("nothing fails");
    let bytes = storage.to_bytes();
    let store = Store { map: Map::of(&bytes), bytes };
    let structures = store.map.structures.iter().enumerate();
    let is_record = |kind| kind == Kind::Frame(FrameKind::Record as u8);
    let records: Vec<_> = structures.filter(|(_, one)| is_record(one.kind)).collect();
    let fields = records.iter().zip([other, full]).flat_map(|((record, _), fields)| {
        fields.iter().map(move |&(field, value)| (*record, field, value))
    });
    let mut bytes = with_fields(&store, &fields.collect::<Vec<_>>());
    if is_torn {
        let last = records[1].1;
        bytes[last.at + last.len] ^= 1;
    }
    bytes
}

fn hold(log: &RunLog, number: usize, held: bool) {
    let (agent, run) = ids(number);
    let run = (agent.as_str(), run.as_str());
    let _ = log.hold(run, "a reason").expect("nothing fails");
    if !held {
        let _ = log.release(run).expect("nothing fails");
    }
}

fn ids(number: usize) -> (String, String) {
    (format!("agent-{}", number % 3), format!("run-{number}"))
}

/// Runs that are alike in nothing; one of four stays in progress.
fn add_run(log: &RunLog, number: usize, size: Size) {
    let (agent, run) = ids(number);
    let writer = log.start_run(&agent, &run, &[number as u8; 20]).expect("nothing fails");
    for seq in 0..14_usize {
        let len = match (number, seq) {
            (_, 3) => 0,
            (2 | 14, 6) => size.of(150_000, 66_000),
            (3, 8) | (1, 5) => size.of(20_000, 9_000),
            _ => (number * 131 + seq * 257) % size.of(1_500, 150),
        };
        // Some of it can be compressed, and some cannot.
        let noise = |at: usize| ((at * at * 31 + seq * 7919) >> 3) as u8;
        let payload: Vec<u8> =
            (0..len).map(|at| if number % 2 == 0 { at as u8 / 64 } else { noise(at) }).collect();
        let record = NewRecord::new(&payload).kind(if seq % 2 == 0 { "turn" } else { "" });
        let _ = writer.append_record(&record).expect("nothing fails");
    }
    let batch = [NewRecord::new(b"one of two"), NewRecord::new(b"two of two").kind("last")];
    let _ = writer.append_batch(&batch).expect("nothing fails");
    if number % 4 != 3 {
        let _ = writer.end(&Outcome::completed()).expect("nothing fails");
    }
    if number % 4 == 1 {
        let late = NewRecord::new(b"late");
        let _ = log.append_to(&agent, &run, &late, Allow::everything()).expect("nothing fails");
    }
}

/// Documents that replace one another, one that is deleted, and one that is long.
fn add_documents(log: &RunLog, number: usize, size: Size) {
    let len = if number == 5 { size.of(30_000, 9_000) } else { 200 };
    let key = format!("key-{}", number % 4);
    let value = vec![number as u8; len];
    let mut batch = Batch::new();
    batch.put(SPACE, &key, NewRecord::new(&value)).put(SPACE, "all", NewRecord::new(&value[..9]));
    let _ = log.commit(&batch).expect("nothing fails");
    if number % 8 == 6 {
        let _ = log.docs().delete(SPACE, "key-1").expect("nothing fails");
    }
}
