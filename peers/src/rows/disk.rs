//! Bytes on disk for each byte of payload.

use super::{Context, Row};
use crate::engine::{Kind, Level};
use crate::files::allocated;
use crate::measure::folder;
use crate::workload::runs::{Records, Runs};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

const AGENTS: u64 = 50;
const AT_ONCE: usize = 64;

#[derive(Debug)]
struct Disk {
    sizes: Sizes,
}

pub(super) fn rows() -> Vec<Box<dyn Row>> {
    let all = [Sizes::Fixed(256), Sizes::LogNormal, Sizes::Real];
    all.into_iter().map(|sizes| -> Box<dyn Row> { Box::new(Disk { sizes }) }).collect()
}

impl Disk {
    /// About as many bytes as the scale says.
    fn runs(&self, context: &Context) -> Runs {
        let (records, len) = match self.sizes {
            Sizes::Fixed(len) => (Records::Fixed(100), 100 * len),
            Sizes::LogNormal => (Records::Fixed(100), 100 * 1_050),
            Sizes::Real => (Records::Real, 350 * 3_900),
        };
        let count = context.scale.disk.div_ceil(len) as u64;
        let (sizes, words) = (self.sizes, Words::new());
        Runs { count, agents: AGENTS, at_once: AT_ONCE, favourite: false, records, sizes, words }
    }
}

impl Row for Disk {
    fn name(&self) -> String {
        format!("disk, {}", self.sizes.name())
    }

    fn what(&self) -> String {
        format!(
            "Bytes of the blocks of all files for each byte of payload, {AT_ONCE} runs written in \
             turns and ended: after the store was closed; after it was opened again, compacted \
             and closed."
        )
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["closed", "compacted", "payload MB"]
    }

    fn rounds(&self, _context: &Context) -> usize {
        1
    }

    #[allow(clippy::cast_precision_loss, reason = "no store has 2^53 bytes")]
    fn round(&mut self, context: &Context, kind: Kind) -> Vec<f64> {
        let folder = folder(&context.dir);
        let engine = kind.open(folder.path(), Level::Process);
        let payload = self.runs(context).load(&*engine) as f64;
        engine.settle();
        engine.close();
        let closed = allocated(folder.path()) as f64 / payload;
        let mut engine = kind.open(folder.path(), Level::Process);
        engine.compact();
        engine.settle();
        engine.close();
        let compacted = allocated(folder.path()) as f64 / payload;
        vec![closed, compacted, payload / 1e6]
    }
}
