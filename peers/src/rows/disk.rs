//! Bytes on disk per byte of payload.

use std::time::Instant;

use tempfile::TempDir;

use super::{Context, Row};
use crate::engine::{Engine, Kind, Level};
use crate::files::allocated;
use crate::measure::folder;
use crate::workload::runs::{Records, Runs};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

const AGENTS: u64 = 50;
const AT_ONCE: usize = 64;

/// About how many runs are read.
const READ: u64 = 400;

#[derive(Debug)]
struct Disk {
    sizes: Sizes,
    /// The closed stores, and their bytes at that time.
    stores: Vec<(Kind, TempDir, f64)>,
    payload: f64,
    /// What the bytes of stores contain.
    notes: Vec<String>,
}

pub(super) fn rows() -> Vec<Box<dyn Row>> {
    let row = |sizes| -> Box<dyn Row> {
        Box::new(Disk { sizes, stores: Vec::new(), payload: f64::NAN, notes: Vec::new() })
    };
    [Sizes::Fixed(256), Sizes::LogNormal, Sizes::Real].map(row).into()
}

impl Disk {
    /// About as many bytes as the scale says.
    fn runs(&self, context: &Context) -> Runs {
        let records = match self.sizes {
            Sizes::Real => Records::Real,
            _ => Records::Fixed(100),
        };
        let (sizes, words, agents, at_once) = (self.sizes, Words::new(), AGENTS, AT_ONCE);
        let runs = Runs { count: 0, agents, at_once, favourite: false, records, sizes, words };
        Runs { count: context.scale.disk.div_ceil(runs.typical_bytes()), ..runs }
    }
}

/// How many megabytes of payload are read per second, run by run.
#[allow(clippy::cast_precision_loss, reason = "no store has 2^53 bytes")]
fn read(engine: &dyn Engine, runs: &Runs) -> f64 {
    let picked = runs.count.div_ceil(READ).max(1);
    let ids: Vec<String> = (0..runs.count)
        .step_by(usize::try_from(picked).unwrap())
        .map(|no| runs.run(no).id)
        .collect();
    let mut buffer = Vec::new();
    let mut once = || {
        let mut bytes = 0;
        for id in &ids {
            buffer.clear();
            engine.trace(id, &mut |_, _, payload| buffer.extend_from_slice(payload));
            bytes += std::hint::black_box(&buffer).len();
        }
        bytes
    };
    once();
    let began = Instant::now();
    let bytes = once();
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

#[allow(clippy::cast_precision_loss, reason = "no store has 2^53 bytes")]
impl Row for Disk {
    fn name(&self) -> String {
        format!("disk, {}", self.sizes.name())
    }

    fn what(&self) -> String {
        format!(
            "Bytes of the blocks of all files for each byte of payload, {AT_ONCE} runs written in \
             turns and ended: after the store was closed; after it was opened again, compacted \
             and closed; and the same with compression, where that is an option (runlog, zstd, \
             level 3; fjall has compressed by LZ4 all the while). Reads are of whole runs picked \
             evenly, each record copied into a buffer, the second time."
        )
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["closed", "compacted", "reads MB/s", "compressed", "reads MB/s", "payload MB"]
    }

    fn lines(&self) -> Vec<(usize, String)> {
        let name = format!("bytes on disk / payload, {}", self.sizes.name());
        vec![
            (0, name),
            (1, "the same, compacted".to_owned()),
            (3, "the same, compressed".to_owned()),
        ]
    }

    fn digits(&self) -> usize {
        4
    }

    fn rounds(&self, _context: &Context) -> usize {
        1
    }

    fn prepare(&mut self, context: &Context, kinds: &[Kind]) {
        let open = |kind: &Kind| {
            let folder = folder(&context.dir);
            (*kind, kind.open(folder.path(), Level::Process), folder)
        };
        let stores: Vec<_> = kinds.iter().map(open).collect();
        let engines: Vec<&dyn Engine> = stores.iter().map(|(_, engine, _)| &**engine).collect();
        self.payload = self.runs(context).load(&engines) as f64;
        for (kind, engine, folder) in stores {
            engine.settle();
            engine.close();
            let closed = allocated(folder.path()) as f64;
            self.stores.push((kind, folder, closed));
        }
    }

    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let (_, folder, closed) = self.stores.iter().find(|(of, ..)| *of == kind).unwrap();
        let payload = self.payload;
        let note = |engine: &dyn Engine, when| {
            let part = |(name, bytes)| format!("{name} {:.4}", bytes as f64 / payload);
            let parts: Vec<String> = engine.parts().into_iter().map(part).collect();
            format!("{}, {when}, each by payload: {}", kind.name(), parts.join(", "))
        };
        let mut engine = kind.open(folder.path(), Level::Process);
        let mut notes = vec![note(&*engine, "opened again")];
        engine.compact();
        engine.settle();
        notes.push(note(&*engine, "compacted"));
        notes.retain(|_| !engine.parts().is_empty());
        let runs = self.runs(context);
        let reads = read(&*engine, &runs);
        engine.close();
        let compacted = allocated(folder.path()) as f64;
        let mut engine = kind.open(folder.path(), Level::Process);
        let can = engine.compress();
        engine.settle();
        let compressed = can.then(|| read(&*engine, &runs));
        if can && !engine.parts().is_empty() {
            notes.push(note(&*engine, "compressed"));
        }
        engine.close();
        let small = can.then(|| allocated(folder.path()) as f64 / payload);
        self.notes.append(&mut notes);
        let (closed, compacted) = (closed / payload, compacted / payload);
        vec![Some(closed), Some(compacted), Some(reads), small, compressed, Some(payload / 1e6)]
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    fn finish(&mut self, context: &Context) {
        self.stores.drain(..).for_each(|(kind, folder, _)| context.discard(kind, folder));
    }
}
