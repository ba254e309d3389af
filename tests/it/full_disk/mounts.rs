//! Stores on small, full file systems of the real kernel: each call succeeds or is refused as a
//! whole, deleting always works, and released space can be used again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use runlog::{
    Allow, Compaction, Error, NewRecord, Options, Outcome, Retention, RunLog, SpaceReturn,
};
use runlog_sim::SplitMix64;

use crate::support::mounted::Mounted;

const EXTENT: u64 = 64 << 10;

/// A store with what must be in it.
struct Story {
    options: Options,
    path: std::path::PathBuf,
    log: RunLog,
    random: SplitMix64,
    threads: bool,
    documents: BTreeMap<String, Vec<u8>>,
    runs: BTreeMap<String, Vec<Vec<u8>>>,
    /// Runs that have ended, and whose deletion was refused.
    ended: BTreeSet<String>,
    refused: u32,
}

/// Whether a call succeeded; it may be refused only for lack of space.
fn is_done<T>(done: Result<T, Error>) -> bool {
    match done {
        Ok(_) => true,
        Err(Error::DiskFull { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

impl Story {
    fn bytes(&mut self) -> Vec<u8> {
        let len = if self.random.below(20) == 0 { 200_000 } else { 6000 };
        let mut bytes = vec![0; usize::try_from(self.random.below(len)).unwrap()];
        self.random.fill(&mut bytes);
        bytes
    }

    fn write(&mut self) {
        let name = format!("name-{}", self.random.below(60));
        let value = self.bytes();
        let record = NewRecord::new(&value);
        if self.ended.contains(&name) {
            return;
        }
        if self.random.below(2) == 0 {
            if is_done(self.log.docs().put("space", &name, &record)) {
                self.documents.insert(name, value);
                return;
            }
        } else if self.runs.contains_key(&name) || is_done(self.log.start_run("agent", &name, ())) {
            let records = self.runs.entry(name.clone()).or_default();
            let run = self.log.writer(("agent", name.as_str())).unwrap();
            if is_done(run.append_record(&record)) {
                records.push(value);
                return;
            }
        }
        self.refused += 1;
    }

    /// Does something that a full disk must not prevent for good. Threads free space at the same
    /// time, so a call may come before it.
    fn insist<T>(&self, call: impl Fn(&RunLog) -> Result<T, Error>) -> Option<T> {
        match call(&self.log) {
            Err(Error::DiskFull { .. }) if self.threads => {
                is_done(self.log.reclaim());
                call(&self.log).ok()
            }
            done => Some(done.unwrap()),
        }
    }

    fn delete(&mut self) {
        let name = format!("name-{}", self.random.below(60));
        match self.random.below(4) {
            0 => {
                let was_there = self.documents.contains_key(&name);
                if let Some(found) = self.insist(|log| log.docs().delete("space", &name)) {
                    assert_eq!(found, was_there);
                    self.documents.remove(&name);
                }
            }
            1 if self.runs.contains_key(&name) => {
                let end = |log: &RunLog| {
                    log.end_run("agent", &name, &Outcome::completed(), Allow::nothing())
                };
                if self.ended.contains(&name) || self.insist(end).is_some() {
                    if self.insist(|log| log.delete_run(&name[..])).is_some() {
                        self.runs.remove(&name);
                        self.ended.remove(&name);
                    } else {
                        self.ended.insert(name);
                    }
                }
            }
            // Living runs move if there is space for a copy.
            2 => {
                is_done(self.log.compact());
            }
            _ => {
                is_done(self.log.reclaim());
            }
        }
    }

    fn check(&self) {
        assert!(self.log.verify().unwrap().is_clean(), "{:?}", self.log.verify().unwrap().problems);
        for number in 0..60 {
            let name = format!("name-{number}");
            let found = self.log.docs().get("space", &name).unwrap();
            let found = found.map(|document| document.payload().to_vec());
            assert_eq!(found.as_ref(), self.documents.get(&name), "{name}");
        }
        for (name, records) in &self.runs {
            let found = self.log.trace(&name[..]).unwrap();
            let found: Vec<Vec<u8>> = found.map(|read| read.unwrap().payload().to_vec()).collect();
            assert!(found == *records, "{name}: {} of {}", found.len(), records.len());
        }
    }

    fn reopen(self) -> Self {
        self.log.close().unwrap();
        let log = self.options.clone().open(&self.path).unwrap();
        Self { log, ..self }
    }
}

/// Lives on a file system that is filled again and again, to the last block.
fn live_on(kind: &str, bytes: u64, space: SpaceReturn, threads: bool) {
    let Some(mounted) = Mounted::new(kind, bytes) else { return };
    let compaction = Compaction::new().space_return(space);
    let options = Options::new().extent_size(EXTENT).background(threads).compaction(compaction);
    let path = mounted.at().join("store");
    let log = options.clone().create(&path).unwrap();
    let random = SplitMix64::new(bytes + u64::from(threads));
    let (documents, runs, ended) = Default::default();
    let mut story =
        Story { options, path, log, random, threads, documents, runs, ended, refused: 0 };
    for turn in 0..4 {
        for _ in 0..300 {
            story.write();
        }
        let filler = mounted.fill();
        for _ in 0..200 {
            story.write();
        }
        if turn % 2 == 1 {
            // Opening needs no space, nor does a call that frees some.
            story = story.reopen();
        }
        for _ in 0..60 {
            story.delete();
        }
        story.check();
        for _ in 0..100 {
            story.write();
        }
        story = story.reopen();
        story.check();
        fs::remove_file(filler).unwrap();
        // Its blocks are free once the journal says so.
        fs::File::open(mounted.at()).unwrap().sync_all().unwrap();
    }
    assert!(story.refused > 0, "the file system was never full");
    for name in story.runs.keys().filter(|name| !story.ended.contains(*name)) {
        let run = story.log.writer(("agent", name.as_str())).unwrap();
        run.end(&Outcome::completed()).unwrap();
    }
    let gone = story.log.gc(&Retention::new().keep_newest(1)).unwrap().plan.evict;
    assert_eq!(gone.len(), story.runs.len() - 1);
    story.runs.retain(|name, _| gone.iter().all(|evicted| evicted.run.as_str() != name));
    story.check();
}

#[test]
fn on_a_full_ext4_each_call_does_its_work_or_nothing() {
    for (space, threads) in [(SpaceReturn::Punch, false), (SpaceReturn::Shrink, true)] {
        live_on("ext4", 24 << 20, space, threads);
    }
}

#[test]
fn on_a_full_xfs_each_call_does_its_work_or_nothing() {
    for (space, threads) in [(SpaceReturn::Shrink, false), (SpaceReturn::Punch, true)] {
        live_on("xfs", 320 << 20, space, threads);
    }
}
