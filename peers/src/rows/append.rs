//! Appends. Each round has a new store, and begins with a few appends that do not count. Half of
//! the calls are measured as a whole, for mean and rate; the others one by one. With several
//! threads, one of them appends alone before that, to compare the rates.

use super::{Context, Row};
use crate::engine::{Engine, Kind, Level};
use crate::files::allocated;
use crate::measure::{Appends, Done, folder, quantile, run};
use crate::workload::runs::payloads;
use crate::workload::sizes::Sizes;

/// The parts of a round: the first appends, one thread alone, and each half.
const WARM: u32 = 10;
const ALONE: u32 = 4;
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

impl Append {
    fn has_one_thread(&self) -> bool {
        self.threads == 1
    }

    fn appends(&self, context: &Context, threads: usize, part: u32) -> Appends<'_> {
        let (limit, between) = match self.level {
            Level::Process => (context.scale.appends, 64),
            Level::Disk => (context.scale.durable, 1),
        };
        let (batch, payloads) = (self.batch, &self.payloads);
        Appends { threads, batch, payloads, between, limit: limit.part(part) }
    }
}

/// Checks that what was acknowledged is there: this many records in this many runs.
fn check(engine: &dyn Engine, runs: std::ops::Range<u64>, done: &Done) {
    let mut found = 0;
    for number in runs {
        engine.trace(&run(number).id, &mut |_, _, _| found += 1);
    }
    assert_eq!(found, done.count, "all records are there");
}

impl Row for Append {
    fn name(&self) -> String {
        let how = match self.level {
            Level::Process => "append",
            Level::Disk => "durable append",
        };
        let by =
            if self.has_one_thread() { "1 thread" } else { &format!("{} threads", self.threads) };
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
        let alone = match self.threads {
            1 => "",
            _ => " The rate is also told as a multiple of that of one thread in the same round.",
        };
        let disk = "Disk is the bytes of the blocks of the closed store for each byte of payload; \
                    what a store has at least counts, since these are small.";
        format!("{runs} {bytes}{calls}.{alone} {disk}")
    }

    fn columns(&self) -> Vec<&'static str> {
        let mut columns = vec!["mean us", "records/s"];
        if !self.has_one_thread() {
            columns.push("times 1 thread");
        }
        columns.extend(["p50 us", "p99 us", "p99.9 us", "processor us/record", "disk"]);
        columns
    }

    fn lines(&self) -> Vec<(usize, String)> {
        let how = match self.level {
            Level::Process => "append",
            Level::Disk => "durable append",
        };
        let by = match self.threads {
            1 => String::new(),
            threads => format!(", {threads} threads"),
        };
        let batch = match self.batch {
            1 => String::new(),
            batch => format!(", batches of {batch}"),
        };
        let what = format!("{how}, {}{by}{batch}", self.sizes.name());
        let column = |name| self.columns().iter().position(|column| *column == name).unwrap();
        let mut lines = vec![(0, format!("{what}: us"))];
        match (self.level, self.threads, self.batch, self.sizes) {
            (Level::Process, 1, 1, Sizes::Fixed(_)) => {
                lines.push((column("p99 us"), "the same, 99 %: us".to_owned()));
                lines.push((column("p99.9 us"), "the same, 99.9 %: us".to_owned()));
            }
            (Level::Disk, 64, ..) => {
                let processor = column("processor us/record");
                lines.push((processor, "the same, processor: us".to_owned()));
            }
            _ => {}
        }
        lines
    }

    fn level(&self) -> Level {
        self.level
    }

    fn takes(&self, _kind: Kind) -> bool {
        true
    }

    fn prepare(&mut self, context: &Context, _kinds: &[Kind]) {
        self.payloads = payloads(self.sizes, context.scale.payloads);
    }

    #[allow(clippy::cast_precision_loss, reason = "no store has 2^53 bytes")]
    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let folder = folder(&context.dir);
        let engine = kind.open(folder.path(), self.level);
        context.calm();
        let appends = |threads, part| self.appends(context, threads, part);
        let (all, threads) = (self.threads, self.threads as u64);
        let warm = appends(all, WARM).by_threads(&*engine, 0, false);
        let alone = (!self.has_one_thread())
            .then(|| appends(1, ALONE).by_threads(&*engine, 3 * threads, false));
        let whole = appends(all, HALF).by_threads(&*engine, threads, false);
        let each = appends(all, HALF).by_threads(&*engine, 2 * threads, true);
        if kind.answers() {
            check(&*engine, threads..2 * threads, &whole);
        }
        engine.close();
        let payload = [Some(&warm), alone.as_ref(), Some(&whole), Some(&each)];
        let payload: u64 = payload.into_iter().flatten().map(|done| done.bytes).sum();
        let disk = kind.answers().then(|| allocated(folder.path()) as f64 / payload as f64);
        let mut columns = vec![Some(whole.mean()), Some(1e6 / whole.mean())];
        columns.extend(alone.map(|alone| Some(alone.mean() / whole.mean())));
        columns.extend([5_000, 9_900, 9_990].map(|part| quantile(&each.latencies, part)));
        columns.extend([Some(whole.processor()), disk]);
        columns
    }

    fn finish(&mut self, _context: &Context) {
        self.payloads = Vec::new();
    }
}
