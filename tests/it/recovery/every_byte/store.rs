//! A store with everything in it, and all that it may answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runlog::env::Environment;
use runlog::{
    Batch, Compression, Durability, Metadata, NewRecord, Options, Outcome, RunLog, TailWriter,
    Timestamp,
};
use runlog_sim::{SimClock, SimDisk, SimEntropy};

use super::answers::{Found, State, text_of};
use crate::support::gate::Gate;

pub(super) const EXTENT: usize = 64 << 10;
/// The namespace of the documents.
pub(super) const SPACE: &str = "space";

/// The file of a store, and the answers that it gave.
pub(super) struct Store {
    pub(super) image: Vec<u8>,
    /// The answers as of the last sync and after each later call.
    pub(super) states: Vec<State>,
    /// The answers before the last segment: those of a log that damage ends early.
    pub(super) before: State,
    /// All payloads that were ever written, as text, by run.
    pub(super) ever: BTreeMap<String, BTreeSet<String>>,
    /// The names of all runs and the keys of all documents, deleted ones included.
    pub(super) runs: Vec<String>,
    pub(super) keys: Vec<String>,
}

pub(super) fn options() -> Options {
    let environment = Environment::system()
        .clock(Arc::new(SimClock::new(Timestamp(1_000_000_000))))
        .entropy(Arc::new(SimEntropy::new(5)));
    Options::new()
        .extent_size(EXTENT as u64)
        .background(false)
        .compression(Compression::Zstd { level: 1 })
        .tail_writer(TailWriter::Pwrite)
        .sync_interval(None)
        .index_cache(1 << 20)
        .environment(environment)
}

/// Text that a compression makes shorter.
fn text(name: &str, number: u64, len: usize) -> Vec<u8> {
    let mut text = format!("{{\"run\":\"{name}\",\"number\":{number},\"text\":\"");
    let mut word = number + 7;
    while text.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text += &format!("word-{:x} ", word >> 52);
    }
    text += "\"}";
    text.into_bytes()
}

struct Building {
    log: RunLog,
    store: Store,
    level: Durability,
}

impl Building {
    fn start(&mut self, run: &str) {
        let metadata = text(run, 1000, 200);
        let metadata = Metadata::new(&metadata).durability(self.level);
        drop(self.log.start_run("agent", run, metadata).unwrap());
        if !self.store.runs.iter().any(|known| known == run) {
            self.store.runs.push(run.to_owned());
        }
    }

    fn append(&mut self, run: &str, number: u64, len: usize) {
        let payload = text(run, number, len);
        let record = NewRecord::json(&payload).kind("step");
        let writer = self.log.writer(("agent", run)).unwrap();
        let _ = writer.append_record(&record.durability(self.level)).unwrap();
        self.store.ever.entry(run.to_owned()).or_default().insert(text_of(&payload));
    }

    fn end(&mut self, run: &str) {
        let outcome = Outcome::completed().bytes(&text(run, 2000, 100)).durability(self.level);
        let _ = self.log.writer(("agent", run)).unwrap().end(&outcome).unwrap();
    }

    fn put(&mut self, keys: &[&str], number: u64, len: usize) {
        let values: Vec<_> = keys.iter().map(|key| text(key, number, len)).collect();
        let mut batch = Batch::new();
        for (key, value) in keys.iter().zip(&values) {
            batch.put(SPACE, key, NewRecord::new(value));
        }
        batch.durability(self.level);
        let _ = self.log.commit(&batch).unwrap();
        for (key, value) in keys.iter().zip(values) {
            self.store.ever.entry((*key).to_owned()).or_default().insert(text_of(&value));
            if !self.store.keys.iter().any(|known| known == key) {
                self.store.keys.push((*key).to_owned());
            }
        }
    }

    /// Notes the answers as of now.
    fn note(&mut self) {
        let found = Found::of(&self.log, &self.store);
        assert!(!found.has_errors(), "{found:?}");
        self.store.states.push(found.answers);
    }
}

/// A store that a kill left, in the middle of a segment.
pub(super) fn everything() -> Store {
    let disk = SimDisk::untracked(Vec::new());
    let gate = Gate::new(&disk);
    let log = options().create_storage(gate.storage()).unwrap();
    let (image, states, before, ever) = (Vec::new(), Vec::new(), State::new(), BTreeMap::new());
    // Each state answers for what only a later one has.
    let (runs, keys) = (vec!["young".to_owned()], vec!["unsynced".to_owned()]);
    let store = Store { image, states, before, ever, runs, keys };
    let mut building = Building { log, store, level: Durability::Process };
    compacted(&mut building);
    sealed(&mut building);
    building.log.sync().unwrap();
    building.log.checkpoint().unwrap();
    building.store.before = Found::of(&building.log, &building.store).answers;
    tail(&mut building);
    gate.shut();
    let Building { log, mut store, .. } = building;
    drop(log);
    store.image = disk.image();
    store
}

/// Outputs of a compaction, with blocks, evictions and receipts, and an index.
fn compacted(building: &mut Building) {
    for group in 0..3 {
        let runs: Vec<String> = (0..4).map(|run| format!("old-{group}-{run}")).collect();
        runs.iter().for_each(|run| building.start(run));
        for number in 0..40 {
            runs.iter().for_each(|run| building.append(run, number, 500));
        }
        runs.iter().for_each(|run| building.end(run));
        building.put(&[&format!("old-{group}")], 1, 900);
        building.put(&["again", "both"], group, 700);
    }
    building.log.hold(("agent", "old-0-1"), "a reason").unwrap();
    building.log.hold(("agent", "old-0-2"), "another reason").unwrap();
    building.log.release(("agent", "old-0-2")).unwrap();
    building.log.checkpoint().unwrap();
    for run in ["old-0-0", "old-1-2", "old-2-3"] {
        let _ = building.log.delete_run(("agent", run)).unwrap();
    }
    building.log.docs().delete(SPACE, "old-1").unwrap();
    // Only full segments are compacted.
    building.start("filler");
    for number in 0..130 {
        building.append("filler", number, 600);
    }
    building.end("filler");
    building.log.checkpoint().unwrap();
    let _ = building.log.compact().unwrap();
}

/// Sealed segments of the log, with chunks, batches, evictions and a hold.
fn sealed(building: &mut Building) {
    for run in ["new-0", "new-1", "new-2"] {
        building.start(run);
    }
    building.append("new-1", 900, 30_000);
    for number in 0..70 {
        for run in ["new-0", "new-1", "new-2"] {
            building.append(run, number, 400);
        }
    }
    building.put(&["again", "more", "both"], 50, 600);
    building.put(&["large"], 50, 30_000);
    building.end("new-2");
    let _ = building.log.delete_run(("agent", "old-2-1")).unwrap();
    building.log.hold(("agent", "old-2-2"), "for later").unwrap();
    for number in 70..130 {
        building.append("new-0", number, 600);
    }
}

/// An unsealed segment: what was synced, and what only a kill leaves.
fn tail(building: &mut Building) {
    building.start("last");
    for number in 0..8 {
        building.append("last", number, 300);
        building.append("new-1", 200 + number, 300);
    }
    building.put(&["again", "tail"], 60, 300);
    building.put(&["both"], 61, 30_000);
    building.append("last", 901, 30_000);
    let _ = building.log.delete_run(("agent", "old-1-0")).unwrap();
    building.log.hold(("agent", "new-2"), "in the tail").unwrap();
    building.start("done");
    building.append("done", 0, 200);
    building.end("done");
    building.log.sync().unwrap();
    building.note();
    building.append("last", 20, 300);
    building.note();
    building.append("new-0", 300, 300);
    building.note();
    building.put(&["again", "unsynced"], 70, 300);
    building.note();
    building.start("young");
    building.note();
    building.append("young", 0, 300);
    building.note();
}
