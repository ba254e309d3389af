//! Lookups. Rows about the same runs share their stores, which stay open for all rounds.

use std::hint::black_box;
use std::rc::Rc;

use runlog_sim::SplitMix64;

use super::first::{self, First};
use super::stores::{Order, Shared, Stores};
use super::{Context, Row, Scale};
use crate::engine::{Engine, Kind};
use crate::measure::{Done, Limit, quantile, repeat};
use crate::workload::runs::{Records, Runs};
use crate::workload::sizes::Sizes;
use crate::workload::text::Words;

/// Records of a run whose trace is read, and bytes of each.
pub(super) const RECORDS: usize = 30;
pub(super) const RECORD_LEN: usize = 256;
/// Records of the runs whose newest runs, or agent, are looked up.
const FEW_RECORDS: usize = 4;
const AGENTS: u64 = 50;
/// How many runs are interleaved.
const AT_ONCE: usize = 64;
/// Runs of one page.
const PAGE: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    /// The records of a run that was written alone.
    Contiguous,
    /// Those of a run that was interleaved with 63 others.
    Interleaved,
    /// The same after the engine has reorganized its data.
    Compacted,
    /// The newest runs of an agent.
    Newest,
    /// The agent of a run.
    AgentOf,
}

struct Read {
    question: Question,
    /// Runs of the stores.
    count: u64,
    stores: Shared,
}

fn stores(count: u64, records: usize, favourite: bool) -> Shared {
    let (sizes, records) = (Sizes::Fixed(RECORD_LEN), Records::Fixed(records));
    let (agents, words, at_once) = (AGENTS, Words::new(), AT_ONCE);
    Stores::shared(Runs { count, agents, favourite, at_once, records, sizes, words })
}

pub(super) fn rows(scale: Scale) -> Vec<Box<dyn Row>> {
    let first = |question, stores: &Shared| -> Box<dyn Row> {
        Box::new(First { question, at_once: AT_ONCE, stores: Shared::clone(stores) })
    };
    let row = |question, count, stores: &Shared| -> Box<dyn Row> {
        Box::new(Read { question, count, stores: Shared::clone(stores) })
    };
    let mut rows = Vec::new();
    for &count in scale.runs {
        let stores = stores(count, RECORDS, false);
        rows.push(row(Question::Contiguous, count, &stores));
        rows.push(row(Question::Interleaved, count, &stores));
        rows.push(first(first::Question::Trace, &stores));
        rows.push(row(Question::Compacted, count, &stores));
    }
    // Every second run belongs to one agent.
    let count = 2 * scale.of_agent;
    let stores = stores(count, FEW_RECORDS, true);
    rows.push(row(Question::Newest, count, &stores));
    rows.push(row(Question::AgentOf, count, &stores));
    rows.push(first(first::Question::AgentOf, &stores));
    let stores = self::stores(scale.many, FEW_RECORDS, true);
    rows.push(first(first::Question::AgentOf, &stores));
    rows
}

impl Row for Read {
    fn name(&self) -> String {
        let count = self.count;
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
            "The {RECORDS} records of {RECORD_LEN} B of a run by its id alone: sequence and kind \
             of each, and its payload, copied into one buffer by the caller; no engine copies \
             it before that where it need not. Runs at random, in the page cache. JSONL has a file \
             for each run, so it has the same files in each order."
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

    fn lines(&self) -> Vec<(usize, String)> {
        let name = match self.question {
            Question::Newest | Question::AgentOf => self.name(),
            _ => self.name().replacen("trace", &format!("trace of {RECORDS} x {RECORD_LEN} B"), 1),
        };
        vec![(0, format!("{name}: us"))]
    }

    fn prepare(&mut self, context: &Context, kinds: &[Kind]) {
        let order = match self.question {
            Question::Contiguous => Order::Contiguous,
            Question::Compacted => Order::Compacted(AT_ONCE),
            Question::Interleaved | Question::Newest | Question::AgentOf => {
                Order::Interleaved(AT_ONCE)
            }
        };
        self.stores.borrow_mut().make(context, kinds, order);
    }

    fn round(&mut self, context: &Context, kind: Kind) -> Vec<Option<f64>> {
        let stores = self.stores.borrow();
        let (engine, limit) = (stores.of(kind), context.scale.lookups);
        self.ask(stores.runs(), engine, limit.part(10), false);
        let whole = self.ask(stores.runs(), engine, limit.part(2), false);
        let each = self.ask(stores.runs(), engine, limit.part(2), true);
        let mut columns = vec![Some(whole.mean())];
        columns.extend([5_000, 9_900, 9_990].map(|part| quantile(&each.latencies, part)));
        columns.push(Some(whole.processor()));
        columns
    }

    fn finish(&mut self, context: &Context) {
        if Rc::strong_count(&self.stores) == 1 {
            self.stores.borrow_mut().finish(context);
        }
    }
}

impl Read {
    fn ask(&self, runs: &Runs, engine: &dyn Engine, limit: Limit, each: bool) -> Done {
        let mut random = SplitMix64::new(99);
        let picks = limit.count.min(4_096);
        let picks: Vec<_> = (0..picks).map(|_| runs.run(random.below(runs.count))).collect();
        let mut next = picks.iter().cycle();
        let mut buffer = Vec::new();
        repeat(limit, each, || {
            let run = next.next().unwrap();
            buffer.clear();
            match self.question {
                Question::Newest => engine.newest(&runs.favourite(), PAGE, &mut |id| {
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
