//! What is measured. Each file has a group of rows:
//!
//! - [`append`]: appends that survive a kill, and appends that survive power loss.
//! - [`read`]: a run's records by its id, the newest runs of an agent, the agent of a run.
//! - [`reopen`]: opening after a kill.
//! - [`disk`]: bytes on disk.
//!
//! In each round each engine has its turn, and each round begins with another one.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::{Kind, Level};
use crate::measure::Limit;

pub(crate) mod append;
pub(crate) mod disk;
pub(crate) mod read;
pub(crate) mod reopen;

/// How much is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    /// Appends that survive a kill, in one round.
    pub(crate) appends: Limit,
    /// Appends that survive power loss, in one round.
    pub(crate) durable: Limit,
    /// Bytes of different payloads that are appended in turn.
    pub(crate) payloads: usize,
    /// Runs of the stores whose runs are read.
    pub(crate) runs: &'static [u64],
    /// Lookups of one round.
    pub(crate) lookups: Limit,
    /// Runs of the one agent whose newest are asked for.
    pub(crate) of_agent: u64,
    /// Runs of the store that is opened after a kill.
    pub(crate) reopened: u64,
    /// Bytes of payload of the store whose bytes on disk count.
    pub(crate) disk: usize,
}

impl Scale {
    pub(crate) fn full() -> Self {
        Self {
            rounds: 5,
            appends: Limit { count: 400_000, time: Duration::from_secs(2) },
            durable: Limit { count: 100_000, time: Duration::from_secs(1) },
            payloads: 64 << 20,
            runs: &[1_000, 10_000, 100_000],
            lookups: Limit { count: 20_000, time: Duration::from_secs(1) },
            of_agent: 20_000,
            reopened: 130_000,
            disk: 256 << 20,
        }
    }

    /// Less than a minute on two cores.
    pub(crate) fn small() -> Self {
        let short = Limit { count: 20_000, time: Duration::from_millis(25) };
        Self {
            rounds: 3,
            appends: short,
            durable: short,
            payloads: 4 << 20,
            runs: &[500],
            lookups: short,
            of_agent: 500,
            reopened: 1_000,
            disk: 8 << 20,
        }
    }
}

/// What all rows know.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) scale: Scale,
    /// Where the stores lie.
    pub(crate) dir: PathBuf,
}

/// One row of the comparison.
pub(crate) trait Row {
    fn name(&self) -> String;

    /// What is done, in a sentence.
    fn what(&self) -> String;

    /// What is told of it; the first is what engines are compared by, and less is better.
    fn columns(&self) -> Vec<&'static str>;

    /// What the store is asked to survive.
    fn level(&self) -> Level {
        Level::Process
    }

    fn takes(&self, kind: Kind) -> bool {
        kind.answers()
    }

    fn rounds(&self, context: &Context) -> usize {
        context.scale.rounds
    }

    /// Makes ready what all rounds of this engine need.
    fn prepare(&mut self, _context: &Context, _kind: Kind) {}

    /// The columns.
    fn round(&mut self, context: &Context, kind: Kind) -> Vec<f64>;

    /// Lets go of what was made ready.
    fn finish(&mut self) {}
}

/// All rows, in the order of the report.
pub(crate) fn all(scale: Scale) -> Vec<Box<dyn Row>> {
    let mut rows = append::rows();
    rows.extend(read::rows(scale));
    rows.push(Box::new(reopen::Reopen::default()));
    rows.extend(disk::rows());
    rows
}
