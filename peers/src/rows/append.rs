//! Appends. Each round has a new store, with a few appends in front that do not count. Half of the
//! calls are measured as a whole, for mean and rate; of the others the time of each is taken.

use super::{Context, Row};
use crate::engine::{Kind, Level};
use crate::measure::{Appends, folder, quantile, run};
use crate::workload::runs::payloads;
use crate::workload::sizes::Sizes;

/// The parts of a round: in front of it, and each half.
const WARM: u32 = 10;
const HALF: u32 = 2;

#[derive(Debug)]
struct Append {
    sizes: Sizes,
    level: Level,
    threads: usize,
    batch: usize,
    payloads: Vec<Vec<u8>>,
}

pub(super) fn rows() -> Vec<Box<dyn Row>> {
    let row = |sizes, level, threads, batch| -> Box<dyn Row> {
        Box::new(Append { sizes, level, threads, batch, payloads: Vec::new() })
    };
    let small = Sizes::Fixed(256);
    let mut rows = vec![
        row(small, Level::Process, 1, 1),
        row(small, Level::Process, 8, 1),
        row(Sizes::LogNormal, Level::Process, 1, 1),
        row(Sizes::Real, Level::Process, 1, 1),
        row(small, Level::Process, 1, 16),
    ];
    rows.extend([1, 2, 8, 64].map(|threads| row(small, Level::Disk, threads, 1)));
    rows.push(row(small, Level::Disk, 1, 16));
    rows
}

impl Row for Append {
    fn name(&self) -> String {
        let how = match self.level {
            Level::Process => "append",
            Level::Disk => "durable append",
        };
        let by = if self.threads == 1 { "1 thread" } else { &format!("{} threads", self.threads) };
        let sizes = self.sizes.name();
        match self.batch {
            1 => format!("{how}, {sizes}, {by}"),
            batch => format!("{how}, batches of {batch}, {sizes}, {by}"),
        }
    }

    fn what(&self) -> String {
        let runs = "Each thread appends to a run of its own.";
        let bytes = "Times are microseconds for a record; quantiles are those of a call";
        let calls =
            if self.batch == 1 { "" } else { ", which appends all records of a batch or none" };
        format!("{runs} {bytes}{calls}.")
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["mean us", "records/s", "p50 us", "p99 us", "p99.9 us", "processor us/record"]
    }

    fn level(&self) -> Level {
        self.level
    }

    fn takes(&self, _kind: Kind) -> bool {
        true
    }

    fn prepare(&mut self, context: &Context, _kind: Kind) {
        if self.payloads.is_empty() {
            self.payloads = payloads(self.sizes, context.scale.payloads);
        }
    }

    fn round(&mut self, context: &Context, kind: Kind) -> Vec<f64> {
        let folder = folder(&context.dir);
        let engine = kind.open(folder.path(), self.level);
        let (limit, between) = match self.level {
            Level::Process => (context.scale.appends, 64),
            Level::Disk => (context.scale.durable, 1),
        };
        let (threads, batch, payloads) = (self.threads, self.batch, &self.payloads);
        let appends =
            |parts| Appends { threads, batch, payloads, between, limit: limit.part(parts) };
        let threads = threads as u64;
        appends(WARM).by_threads(&*engine, 0, false);
        let whole = appends(HALF).by_threads(&*engine, threads, false);
        let each = appends(HALF).by_threads(&*engine, 2 * threads, true);
        if kind.answers() && threads == 1 {
            let mut found = 0;
            engine.trace(&run(threads).id, &mut |_, _, _| found += 1);
            assert_eq!(found, whole.count, "{} has all records", kind.name());
        }
        engine.close();
        let at = |part| quantile(&each.latencies, part);
        let rate = 1e6 / whole.mean();
        vec![whole.mean(), rate, at(5_000), at(9_900), at(9_990), whole.processor()]
    }

    fn finish(&mut self) {
        self.payloads = Vec::new();
    }
}
