//! Lookups. The stores of all engines are made once and stay open for all rounds.

use std::hint::black_box;

use runlog_sim::SplitMix64;

use super::{Context, Row, Scale};
use crate::engine::{Engine, Kind, Level};
use crate::measure::{Done, Limit, folder, quantile, repeat};
use crate::workload::runs::{Records, Runs};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

/// Records of a run whose trace is read, and bytes of each.
const RECORDS: usize = 30;
const RECORD_LEN: usize = 256;
/// Records of the runs of which only the newest, or the agent, are asked for.
const FEW_RECORDS: usize = 4;
const AGENTS: u64 = 50;
/// Runs that are written in turns.
const AT_ONCE: usize = 64;
/// Runs of one page.
const PAGE: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// The records of a run that was written by itself.
    Contiguous,
    /// Of one that was written with 63 others in turns.
    Interleaved,
    /// The same after the engine has put together what belongs together.
    Compacted,
    /// The newest runs of an agent.
    Newest,
    /// The agent of a run.
    AgentOf,
}

struct Read {
    question: Question,
    runs: Runs,
    stores: Vec<(Kind, Box<dyn Engine>, tempfile::TempDir)>,
}

pub(super) fn rows(scale: Scale) -> Vec<Box<dyn Row>> {
    let row = |question, count, at_once, records, favourite| -> Box<dyn Row> {
        let (sizes, records) = (Sizes::Fixed(RECORD_LEN), Records::Fixed(records));
        let (agents, words) = (AGENTS, Words::new());
        let runs = Runs { count, agents, favourite, at_once, records, sizes, words };
        Box::new(Read { question, runs, stores: Vec::new() })
    };
    let mut rows = Vec::new();
    for &count in scale.runs {
        rows.push(row(Question::Contiguous, count, 1, RECORDS, false));
        rows.push(row(Question::Interleaved, count, AT_ONCE, RECORDS, false));
        rows.push(row(Question::Compacted, count, AT_ONCE, RECORDS, false));
    }
    // Every second run is of one agent.
    let count = 2 * scale.of_agent;
    rows.push(row(Question::Newest, count, AT_ONCE, FEW_RECORDS, true));
    rows.push(row(Question::AgentOf, count, AT_ONCE, FEW_RECORDS, true));
    rows
}

impl Row for Read {
    fn name(&self) -> String {
        let count = self.runs.count;
        match self.question {
            Question::Contiguous => format!("trace among {count} runs, contiguous"),
            Question::Interleaved => format!("trace among {count} runs, interleaved"),
            Question::Compacted => format!("trace among {count} runs, compacted"),
            Question::Newest => format!("newest {PAGE} of an agent with {} runs", count / 2),
            Question::AgentOf => format!("agent of a run among {count}"),
        }
    }

    fn what(&self) -> String {
        let trace = format!(
            "The {RECORDS} records of {RECORD_LEN} B of a run by its id alone, each copied into \
             one buffer; runs at random, in the page cache."
        );
        match self.question {
            Question::Contiguous => format!("{trace} The runs were written one after the other."),
            Question::Interleaved => format!("{trace} {AT_ONCE} runs were written in turns."),
            Question::Compacted => format!(
                "{trace} {AT_ONCE} runs were written in turns, then the engine did what it has \
                 for putting things together: `compact`, `VACUUM`, a major compaction; LMDB and \
                 JSONL have nothing."
            ),
            Question::Newest => format!(
                "The ids of the newest {PAGE} runs of an agent. {FEW_RECORDS} records a run; \
                 JSONL parses all of them, since it has no index."
            ),
            Question::AgentOf => format!("The agent of a run by its id; {} agents.", AGENTS + 1),
        }
    }

    fn columns(&self) -> Vec<&'static str> {
        vec!["mean us", "p50 us", "p99 us", "p99.9 us", "processor us"]
    }

    fn prepare(&mut self, context: &Context, kind: Kind) {
        let folder = folder(&context.dir);
        let mut engine = kind.open(folder.path(), Level::Process);
        self.runs.load(&*engine);
        engine.settle();
        if self.question == Question::Compacted {
            engine.compact();
        }
        self.stores.push((kind, engine, folder));
    }

    fn round(&mut self, context: &Context, kind: Kind) -> Vec<f64> {
        let (_, engine, _) = self.stores.iter().find(|(of, ..)| *of == kind).unwrap();
        let limit = context.scale.lookups;
        self.ask(&**engine, limit.part(10), false);
        let whole = self.ask(&**engine, limit.part(2), false);
        let each = self.ask(&**engine, limit.part(2), true);
        let at = |part| quantile(&each.latencies, part);
        vec![whole.mean(), at(5_000), at(9_900), at(9_990), whole.processor()]
    }

    fn finish(&mut self) {
        for (_, engine, folder) in self.stores.drain(..) {
            engine.close();
            drop(folder);
        }
    }
}

impl Read {
    fn ask(&self, engine: &dyn Engine, limit: Limit, each: bool) -> Done {
        let mut random = SplitMix64::new(99);
        let picks = limit.count.min(4_096);
        let picks: Vec<_> =
            (0..picks).map(|_| self.runs.run(random.below(self.runs.count))).collect();
        let mut next = picks.iter().cycle();
        let mut buffer = Vec::new();
        repeat(limit, each, || {
            let run = next.next().unwrap();
            buffer.clear();
            match self.question {
                Question::Newest => engine.newest(&self.runs.favourite(), PAGE, &mut |id| {
                    buffer.extend_from_slice(id.as_bytes());
                }),
                Question::AgentOf => engine.agent_of(&run.id, &mut |agent| {
                    buffer.extend_from_slice(agent.as_bytes());
                }),
                _ => {
                    engine.trace(&run.id, &mut |_, _, payload| buffer.extend_from_slice(payload));
                    assert_eq!(buffer.len(), RECORDS * RECORD_LEN);
                }
            }
            black_box(&buffer);
        })
    }
}
