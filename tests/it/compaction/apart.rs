//! Segments move without those between them that have frames of the same runs.

use std::sync::{Arc, Mutex};

use runlog::storage::MemoryStorage;
use runlog::{Compaction, NewRecord, Outcome, ReaderOptions, RunLog};
use runlog_sim::SplitMix64;

use crate::api::large_records::{Meanwhile, assert_clean, noise, options, payloads};
use crate::support::frames::all_frames;

/// A store with one run that lies in many segments, and what it has.
struct Long {
    clock: Arc<Meanwhile>,
    storage: Arc<MemoryStorage>,
    log: RunLog,
    random: SplitMix64,
    expected: Vec<Vec<u8>>,
    fillers: u64,
}

impl Long {
    fn new(seed: u64) -> Self {
        let (clock, storage) = (Arc::default(), Arc::new(MemoryStorage::new()));
        let log = options(&clock).compaction(Compaction::new()).create_storage(storage.clone());
        let (log, random) = (log.unwrap(), SplitMix64::new(seed));
        drop(log.start_run("agent", "long", ()).unwrap());
        Self { clock, storage, log, random, expected: Vec::new(), fillers: 0 }
    }

    fn append(&mut self, len: usize) {
        let record = noise(self.expected.len() as u64, len);
        self.log.writer("long").unwrap().append(&record).unwrap();
        self.expected.push(record);
    }

    /// Each record of so large a batch is in chunks.
    fn append_batch(&mut self) {
        let numbers = self.expected.len() as u64..;
        let records: Vec<_> = numbers.take(20).map(|number| noise(number, 1_000)).collect();
        let batch: Vec<_> = records.iter().map(|record| NewRecord::new(record)).collect();
        self.log.writer("long").unwrap().append_batch(&batch).unwrap();
        self.expected.extend(records);
    }

    /// Another run, which is deleted later or not. It fills some of a segment, or all of it.
    fn fill(&mut self) {
        let kind = ["dead", "live"][self.random.index(2)];
        self.fillers += 1;
        fill(&self.log, &format!("{kind}-{}", self.fillers), self.random.below(14));
    }

    /// Does `act` in front of a chunk of a large record; returns whether it did. Nothing rolls
    /// before that, since a roll asks the clock under a lock.
    fn append_and(&mut self, act: impl FnOnce() + Send + 'static) -> bool {
        let number = self.random.index(4) + 1;
        let offset = self.log.stats().unwrap().end.offset as usize;
        if offset + (number + 1) * (8 << 10) > 48 << 10 {
            return false;
        }
        self.clock.at(number, act);
        let record = noise(self.expected.len() as u64 + 1_000, 20_000 + 8_000 * number);
        self.log.writer("long").unwrap().append(&record).unwrap();
        assert!(self.clock.is_over());
        self.expected.push(record);
        true
    }

    /// Another thread appends a record and fills segments between two chunks.
    fn append_within_chunks(&mut self) {
        let (log, len, at) = (self.log.clone(), self.random.below(12), self.expected.len());
        let names = ["dead", "live"].map(|kind| format!("{kind}-within-{at}"));
        if self.append_and(move || {
            fill(&log, &names[0], len);
            log.writer("long").unwrap().append(b"within").unwrap();
            fill(&log, &names[1], 12 - len);
        }) {
            self.expected.insert(at, b"within".to_vec());
        }
    }

    /// The process is killed between two chunks.
    fn break_off(&mut self) {
        let (storage, image) = (self.storage.clone(), Arc::new(Mutex::new(Vec::new())));
        let taken = image.clone();
        if self.append_and(move || *taken.lock().unwrap() = storage.to_bytes()) {
            self.expected.pop();
            let image = std::mem::take(&mut *image.lock().unwrap());
            self.open(image);
        }
    }

    fn open(&mut self, image: Vec<u8>) {
        self.storage = Arc::new(MemoryStorage::from_bytes(image));
        let options = options(&self.clock).compaction(Compaction::new());
        self.log = options.open_storage(self.storage.clone()).unwrap();
    }

    fn delete(&self, prefix: &str) {
        let runs = self.log.list_runs(&runlog::RunQuery::new().limit(1_000)).unwrap().runs;
        for run in runs.iter().filter(|run| run.run.as_str().starts_with(prefix)) {
            self.log.delete_run(&run.run).unwrap();
        }
        self.log.checkpoint().unwrap();
        self.log.reclaim().unwrap();
    }

    fn check(&self) {
        assert!(payloads(&self.log, "long") == self.expected);
        let mut backwards: Vec<_> = self
            .log
            .trace("long")
            .unwrap()
            .rev()
            .map(|one| one.unwrap().payload().to_vec())
            .collect();
        backwards.reverse();
        assert!(backwards == self.expected);
        assert_clean(&self.log);
        let copy = Arc::new(MemoryStorage::from_bytes(self.storage.to_bytes()));
        let read = ReaderOptions::new().open_storage(copy).unwrap().trace("long").unwrap();
        assert!(read.map(|one| one.unwrap().payload().to_vec()).eq(self.expected.iter().cloned()));
    }

    /// How many segments have frames of the run between those of another one.
    fn between(&self) -> usize {
        let mut orders = std::collections::BTreeMap::new();
        for (_, header) in all_frames(&self.storage.to_bytes()) {
            if header.run_no.0 == 1 {
                let segment = header.position.segment;
                let (first, last) = orders.entry(segment).or_insert((header.lsn, header.lsn));
                (*first, *last) = ((*first).min(header.lsn), (*last).max(header.lsn));
            }
        }
        let is_within = |one: &&(_, _)| orders.values().any(|all| all.0 < one.0 && one.1 < all.1);
        orders.values().filter(is_within).count()
    }
}

/// Appends a run of so many records of 5,000 bytes, and ends it.
fn fill(log: &RunLog, name: &str, records: u64) {
    let run = log.start_run("agent", name, ()).unwrap();
    for number in 0..records {
        run.append(&noise(number, 5_000)).unwrap();
    }
    run.end(&Outcome::completed()).unwrap();
}

#[test]
fn a_run_reads_the_same_when_segments_move_without_those_between_them() {
    let mut between = 0;
    for seed in 0..24 {
        let mut long = Long::new(seed);
        for _ in 0..60 {
            long.fill();
            match long.random.below(6) {
                0 | 1 => long.append(300),
                2 => long.append(30_000),
                3 => long.append_batch(),
                4 => long.append_within_chunks(),
                _ => long.break_off(),
            }
        }
        long.check();
        for prefix in ["dead", "live-1", "live-2"] {
            long.delete(prefix);
            between += long.between();
            long.check();
        }
        long.open(long.storage.to_bytes());
        long.check();
        long.log.compact().unwrap();
        long.check();
    }
    assert!(between > 100, "{between} segments stayed between those that moved");
}
