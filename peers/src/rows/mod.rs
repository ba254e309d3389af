//! The measurements. Each file has a group of rows:
//!
//! - [`append`]: appends that survive a kill, and appends that survive power loss.
//! - [`paced`]: appends now and then.
//! - [`read`]: a run's records by its id, the newest runs of an agent, the agent of a run.
//! - [`first`]: the same for new ids.
//! - [`stores`]: the stores for these reads.
//! - [`reopen`]: opening after a kill.
//! - [`gc`]: retention of many runs.
//! - [`disk`]: bytes on disk.
//!
//! In each round each engine has its turn, and each round begins with another one.

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::engine::{Kind, Level};
use crate::measure::{Limit, folder};

pub(crate) mod append;
pub(crate) mod disk;
pub(crate) mod first;
mod gc;
mod paced;
pub(crate) mod read;
pub(crate) mod reopen;
mod stores;

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// Appends that survive a kill, in one round.
    pub(crate) appends: Limit,
    /// Appends that survive power loss, in one round.
    pub(crate) durable: Limit,
    /// How long a round appends now and then.
    pub(crate) paced: Duration,
    /// Bytes of different payloads that are appended in turn.
    pub(crate) payloads: usize,
    /// Runs of the stores whose runs are read.
    pub(crate) runs: &'static [u64],
    /// Lookups of one round.
    pub(crate) lookups: Limit,
    /// Runs of the one agent whose newest are asked for.
    pub(crate) of_agent: u64,
    /// Lookups of new ids, directly after the opening and later.
    pub(crate) first: usize,
    /// Runs of the largest store of which agents are asked for.
    pub(crate) many: u64,
    /// Runs of the stores of which most runs are deleted.
    pub(crate) retained: &'static [u64],
    /// Runs of the store that is opened after a kill.
    pub(crate) reopened: u64,
    /// Bytes of payload of the store whose bytes on disk count.
    pub(crate) disk: u64,
}

impl Scale {
    /// Less than half an hour on two cores.
    pub(crate) fn full() -> Self {
        Self {
            rounds: 5,
            appends: Limit { count: 400_000, time: Duration::from_secs(1) },
            durable: Limit { count: 100_000, time: Duration::from_secs(1) },
            paced: Duration::from_secs(5),
            payloads: 64 << 20,
            runs: &[1_000, 10_000, 100_000],
            lookups: Limit { count: 20_000, time: Duration::from_secs(1) },
            of_agent: 20_000,
            first: 1_000,
            many: 1_000_000,
            retained: &[100_000, 1_000_000],
            reopened: 130_000,
            disk: 1_000_000_000,
        }
    }

    /// Less than a minute on two cores.
    pub(crate) fn small() -> Self {
        let short = Limit { count: 20_000, time: Duration::from_millis(25) };
        Self {
            rounds: 3,
            appends: short,
            durable: short,
            paced: Duration::from_millis(250),
            payloads: 4 << 20,
            runs: &[500],
            lookups: short,
            of_agent: 500,
            first: 200,
            many: 2_000,
            retained: &[1_000],
            reopened: 1_000,
            disk: 8_000_000,
        }
    }
}

/// The context of all rows.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) scale: Scale,
    /// Where the stores lie.
    pub(crate) dir: PathBuf,
    /// Folders to remove when all measurements have ended.
    discarded: TempDir,
    count: Cell<usize>,
    began: Instant,
}

impl Context {
    pub(crate) fn new(scale: Scale, dir: PathBuf) -> Self {
        let discarded = folder(&dir);
        Self { scale, dir, discarded, count: Cell::new(0), began: Instant::now() }
    }

    /// Prints the current step on standard error, and the time so far.
    pub(crate) fn tell(&self, what: &str) {
        eprintln!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
    }

    /// Waits until everything that was written or removed is on the disk, so that no row pays for
    /// others.
    pub(crate) fn calm(&self) {
        rustix::fs::syncfs(File::open(&self.dir).unwrap()).unwrap();
    }

    /// Removes the store of an engine, or moves it away if it has so many files that removing them
    /// would take long and keep the disk busy afterwards.
    pub(crate) fn discard(&self, kind: Kind, folder: TempDir) {
        if !kind.has_file_for_each_run() {
            return folder.close().unwrap();
        }
        let name = self.count.replace(self.count.get() + 1).to_string();
        std::fs::rename(folder.keep(), self.discarded.path().join(name)).unwrap();
    }

    /// Removes the stores that were moved away.
    pub(crate) fn finish(self) {
        self.tell("removing what was written");
        self.discarded.close().unwrap();
        eprintln!("{:7.1} s  done", self.began.elapsed().as_secs_f64());
    }
}

/// One row of the comparison.
pub(crate) trait Row {
    fn name(&self) -> String;

    /// The work, in a sentence.
    fn what(&self) -> String;

    /// Its columns; the first is compared between engines, and less is better.
    fn columns(&self) -> Vec<&'static str>;

    /// The lines of the short table: columns where less is better, and their names.
    fn lines(&self) -> Vec<(usize, String)>;

    /// Digits of a figure.
    fn digits(&self) -> usize {
        3
    }

    /// Which failure appends must survive.
    fn level(&self) -> Level {
        Level::Process
    }

    fn takes(&self, kind: Kind) -> bool {
        kind.answers()
    }

    fn rounds(&self, context: &Context) -> usize {
        context.scale.rounds
    }

    /// Prepares what all rounds of these engines need.
    fn prepare(&mut self, context: &Context, kinds: &[Kind]);

    /// The columns. Values that cannot be measured are missing.
    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>>;

    /// Remarks on the table.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Drops what was prepared.
    fn finish(&mut self, _context: &Context) {}
}

/// All rows, in the order of the report.
pub(crate) fn all(scale: Scale) -> Vec<Box<dyn Row>> {
    let mut rows = append::rows();
    rows.extend(paced::rows());
    rows.extend(read::rows(scale));
    rows.push(Box::new(reopen::Reopen::default()));
    rows.extend(gc::rows(scale.retained));
    rows.extend(disk::rows());
    rows
}
