//! Retention of many small runs: 95 of 100 runs are deleted, the oldest first, and their space is
//! given back. Each round fills a store of its own. JSONL is left out: it has a file for each run.

use std::time::Instant;

use super::{Context, Row};
use crate::engine::{Kind, Level, Run};
use crate::files::allocated;
use crate::measure::{folder, micros};
use crate::workload::runs::{Records, Runs};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

const AGENTS: u64 = 50;
const RECORDS: usize = 2;
const RECORD_LEN: usize = 256;
/// One of so many runs is kept.
const KEPT: u64 = 20;

#[derive(Debug)]
struct Gc {
    count: u64,
}

pub(super) fn rows(counts: &[u64]) -> Vec<Box<dyn Row>> {
    counts.iter().map(|&count| -> Box<dyn Row> { Box::new(Gc { count }) }).collect()
}

impl Gc {
    fn runs(&self) -> Runs {
        let (records, sizes) = (Records::Fixed(RECORDS), Sizes::Fixed(RECORD_LEN));
        let (count, words) = (self.count, Words::new());
        Runs { count, agents: AGENTS, at_once: 64, favourite: false, records, sizes, words }
    }

    /// How many runs are kept of each agent.
    fn kept(&self) -> u64 {
        (self.count / KEPT / AGENTS).max(1)
    }
}

impl Row for Gc {
    fn name(&self) -> String {
        format!("retention of {} runs", self.count)
    }

    fn what(&self) -> String {
        format!(
            "Milliseconds to delete all runs but the newest {} of each of {AGENTS} agents, and \
             until the space is given back. Runs of {RECORDS} records of {RECORD_LEN} B. runlog \
             applies a policy, and gives space back by itself; the others know what to delete, do \
             it in one transaction (fjall in batches of runs), and then reorganize their data, \
             except LMDB, which cannot. JSONL has a file for each run, and is left out.",
            self.kept()
        )
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["with the space ms", "delete ms", "MB before", "MB left"]
    }

    fn lines(&self) -> Vec<(usize, String)> {
        let name = self.name();
        vec![(0, format!("{name}, with the space: ms")), (3, "what is left: MB".to_owned())]
    }

    fn takes(&self, kind: Kind) -> bool {
        kind.answers() && !kind.has_file_for_each_run()
    }

    fn rounds(&self, context: &Context) -> usize {
        if self.count > 100_000 { 1 } else { context.scale.rounds }
    }

    fn prepare(&mut self, _context: &Context, _kinds: &[Kind]) {}

    #[allow(clippy::cast_precision_loss, reason = "no store has 2^53 bytes")]
    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let (runs, folder) = (self.runs(), folder(&context.dir));
        let mut engine = kind.open(folder.path(), Level::Process);
        runs.load(&[&*engine]);
        engine.settle();
        context.calm();
        let megabytes = || allocated(folder.path()) as f64 / 1e6;
        let before = megabytes();
        let first = self.count - self.kept() * AGENTS;
        let gone: Vec<Run> = (0..first).map(|number| runs.run(number)).collect();
        let began = Instant::now();
        engine.retain(&gone, self.kept());
        let deleted = began.elapsed();
        engine.compact();
        let all = began.elapsed();
        let (mut newest, agent) = (Vec::new(), runs.run(0).agent);
        engine.newest(&agent, usize::MAX >> 1, &mut |id| newest.push(id.to_owned()));
        assert_eq!(newest.len() as u64, self.kept(), "{} of {agent}", kind.name());
        let mut found = 0;
        engine.trace(&Runs::id(first), &mut |_, _, _| found += 1);
        assert_eq!(found, RECORDS, "the oldest of the kept runs is whole");
        engine.close();
        let left = megabytes();
        context.discard(kind, folder);
        vec![Some(micros(all) / 1e3), Some(micros(deleted) / 1e3), Some(before), Some(left)]
    }
}
