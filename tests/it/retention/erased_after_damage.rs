//! Whatever is damaged: an erasure that says that it is done leaves no byte of the payloads.
//!
//! - `RUNLOG_ERASED`: how many stores.
//! - `RUNLOG_ERASED_SEED`: the first of their seeds; a failure names its own.

use std::sync::Arc;

use runlog::format::EXTENTS_AT;
use runlog::{Durability, Error, NewRecord, Outcome, RunLog};
use runlog_sim::{SimDisk, SplitMix64};

use crate::support::campaign::variable;
use crate::support::frames::unindexed;

/// Runs, and as many documents.
const ITEMS: usize = 6;
const SECTOR: usize = 512;

/// A run or a document, by its number.
#[derive(Debug, Clone, Copy)]
struct Item(usize);

impl Item {
    fn is_run(self) -> bool {
        self.0 < ITEMS
    }

    fn name(self) -> String {
        format!("item {}", self.0)
    }

    /// What its payloads consist of.
    fn mark(self) -> Vec<u8> {
        format!("<payload {:02}>", self.0).into_bytes()
    }

    fn write(self, log: &RunLog, random: &mut SplitMix64) {
        let most = [40, 400, 3_000, 9_000][random.index(4)];
        let payload = self.mark().repeat(1 + random.index(most) / 12);
        let level = if random.coin() { Durability::Disk } else { Durability::Process };
        let record = NewRecord::new(&payload).durability(level);
        if self.is_run() {
            let run = log.start_run("agent", &self.name(), ());
            let _ = run.and_then(|run| run.append_record(&record));
        } else {
            let _ = log.docs().put("space", &self.name(), &record).unwrap();
        }
    }

    fn delete(self, log: &RunLog) {
        if self.is_run() {
            let _ = log.writer(self.name().as_str()).and_then(|run| run.end(&Outcome::completed()));
            let _ = log.delete_run(self.name().as_str());
        } else {
            let _ = log.docs().delete("space", &self.name());
        }
    }

    /// Whether the call says that nothing is left.
    fn erase(self, log: &RunLog) -> Result<bool, Error> {
        let erased = if self.is_run() {
            let _ = log.writer(self.name().as_str()).and_then(|run| run.end(&Outcome::completed()));
            log.erase_run(self.name().as_str())
        } else {
            log.docs().erase("space", &self.name())
        };
        match erased {
            Ok(erased) => Ok(erased.pinned_extents == 0),
            Err(Error::RunNotFound { .. }) => Ok(true),
            // Where its deletion is lost, an earlier run with the same ids is there again.
            Err(Error::Corrupt(_) | Error::RunInProgress { .. } | Error::Ambiguous { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// A store whose process was killed.
fn killed(random: &mut SplitMix64) -> Vec<u8> {
    let disk = SimDisk::untracked(Vec::new());
    let log = unindexed(1).create_storage(Arc::new(disk.clone())).unwrap();
    for _ in 0..20 + random.index(100) {
        let item = Item(random.index(2 * ITEMS));
        match random.index(16) {
            0 => item.delete(&log),
            1 => log.checkpoint().unwrap(),
            2 => drop(log.compact().unwrap()),
            _ => item.write(&log, random),
        }
    }
    disk.image()
}

/// Zeros or other bytes in place of some sectors with something.
fn damage(image: &mut [u8], random: &mut SplitMix64) {
    for _ in 0..1 + random.index(2) {
        let used: Vec<usize> = (EXTENTS_AT as usize..image.len())
            .step_by(SECTOR)
            .filter(|at| image[*at..].iter().take(SECTOR).any(|byte| *byte != 0))
            .collect();
        let at = used[random.index(used.len())];
        let sector = &mut image[at..at + SECTOR];
        if random.coin() { sector.fill(0) } else { random.fill(sector) }
    }
}

/// Whether it opened, and how many erasures said that nothing is left.
fn check(seed: u64) -> (bool, usize) {
    let mut random = SplitMix64::for_case(seed, 9);
    let mut image = killed(&mut random);
    damage(&mut image, &mut random);
    let disk = SimDisk::untracked(image);
    let boot = 1 + random.index(2) as u8;
    let Ok(log) = unindexed(boot).open_storage(Arc::new(disk.clone())) else { return (false, 0) };
    // What is read keeps its segments.
    let (mut done, mut reading) = (0, None);
    for number in 0..2 * ITEMS {
        let item = Item(number);
        match random.below(4) {
            0 => reading = log.trace(&*Item(random.index(ITEMS)).name()).ok(),
            1 => drop(reading.take()),
            _ => {}
        }
        if random.below(3) == 0 {
            let _ = item.erase(&log);
        }
        let is_gone = item.erase(&log).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        if is_gone {
            done += 1;
            let (image, mark) = (disk.image(), item.mark());
            let left = image.windows(mark.len()).position(|part| part == mark);
            assert!(left.is_none(), "RUNLOG_ERASED_SEED={seed}: {item:?} is left at {left:?}");
        }
    }
    drop(reading);
    (true, done)
}

#[test]
fn an_erasure_of_a_damaged_store_that_is_done_leaves_no_byte() {
    let (stores, first) = (variable("RUNLOG_ERASED", 200), variable("RUNLOG_ERASED_SEED", 0));
    let (mut opened, mut done) = (0, 0);
    for seed in first..first + stores {
        let (is_open, erased) = check(seed);
        opened += u64::from(is_open);
        done += erased as u64;
    }
    println!("{opened} of {stores} opened, {done} erasures");
    assert!(stores < 100 || (opened > stores / 2 && done > 2 * stores), "{opened}, {done}");
}
