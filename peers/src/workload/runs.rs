//! Runs, one after the other or many at a time.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use runlog_sim::SplitMix64;

use super::sizes::{Sizes, records_of_a_run};
use super::text::{Words, Writing};
use crate::engine::{Change, Engine, New, Run};

/// Kinds of records, with their percentages.
const KINDS: [(&str, u64); 4] =
    [("assistant", 40), ("progress", 32), ("tool_result", 22), ("user", 6)];
/// How many changes a store gets at once when it is loaded.
const LOADED_AT_ONCE: usize = 10_000;
/// About how many bytes of payload are made at once.
const GROUP_BYTES: u64 = 4 << 20;

/// How many records a run has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Records {
    Fixed(usize),
    /// As in real sessions.
    Real,
}

/// A set of runs. The seed and the run's number determine a run and its records.
#[derive(Debug)]
pub(crate) struct Runs {
    pub(crate) count: u64,
    pub(crate) agents: u64,
    /// Whether every second run belongs to one further agent.
    pub(crate) favourite: bool,
    /// How many runs are interleaved.
    pub(crate) at_once: usize,
    pub(crate) records: Records,
    pub(crate) sizes: Sizes,
    pub(crate) words: Words,
}

impl Runs {
    pub(crate) fn run(&self, number: u64) -> Run {
        let agent = if self.favourite && number.is_multiple_of(2) {
            self.favourite()
        } else {
            format!("agent-{:03}", number % self.agents)
        };
        Run { number, agent, id: Self::id(number) }
    }

    /// The id of a run.
    pub(crate) fn id(number: u64) -> String {
        format!("run-{number:08}")
    }

    /// The agent that has half of the runs, if there is one.
    pub(crate) fn favourite(&self) -> String {
        format!("agent-{:03}", self.agents)
    }

    /// The records of a run.
    pub(crate) fn records(&self, number: u64) -> Vec<Vec<u8>> {
        let mut random = SplitMix64::for_case(23, number);
        let count = match self.records {
            Records::Fixed(count) => count,
            Records::Real => records_of_a_run(&mut random),
        };
        let mut writing = Writing::new(&self.words, random.next_u64());
        let record = |seq| writing.record(number, seq, self.sizes.next(&mut random));
        (0..count).map(record).collect()
    }

    /// Writes all runs into stores, and ends them. Returns the bytes of all payloads. The records
    /// are made once, and each store has a thread that writes them.
    pub(crate) fn load(&self, engines: &[&dyn Engine]) -> u64 {
        std::thread::scope(|scope| {
            let stores = engines.iter().map(|&engine| {
                let at_once = self.at_once;
                let (sender, groups) = sync_channel::<Arc<Group>>(1);
                scope.spawn(move || {
                    for group in groups {
                        let changes = group.changes(at_once);
                        changes.chunks(LOADED_AT_ONCE).for_each(|changes| engine.load(changes));
                    }
                });
                sender
            });
            let stores: Vec<_> = stores.collect();
            let (mut first, mut bytes) = (0, 0);
            while first < self.count {
                let group = Arc::new(self.group(first));
                first += group.runs.len() as u64;
                bytes += group.records.iter().flatten().map(|one| one.len() as u64).sum::<u64>();
                for store in &stores {
                    store.send(Arc::clone(&group)).unwrap();
                }
            }
            bytes
        })
    }

    /// The runs that stores get at once: many, even if runs are not interleaved, and always
    /// complete sets of interleaved runs.
    fn group(&self, first: u64) -> Group {
        let at_once = self.at_once as u64;
        let len = GROUP_BYTES / self.typical_bytes() / at_once * at_once;
        let numbers = first..self.count.min(first + len.max(at_once));
        let runs = numbers.clone().map(|number| self.run(number)).collect();
        Group { runs, records: numbers.map(|number| self.records(number)).collect() }
    }

    /// About as many bytes as a run has.
    pub(crate) fn typical_bytes(&self) -> u64 {
        let records = match self.records {
            Records::Fixed(count) => count,
            Records::Real => 350,
        };
        (records * self.sizes.typical()) as u64
    }
}

/// Runs with their records, on their way into stores.
struct Group {
    runs: Vec<Run>,
    records: Vec<Vec<Vec<u8>>>,
}

impl Group {
    /// All changes of these runs, with this many runs interleaved.
    fn changes(&self, at_once: usize) -> Vec<Change<'_>> {
        let mut changes = Vec::new();
        for (runs, records) in self.runs.chunks(at_once).zip(self.records.chunks(at_once)) {
            changes.extend(runs.iter().map(Change::Start));
            let longest = records.iter().map(Vec::len).max().unwrap_or_default();
            for seq in 0..longest {
                for (run, records) in runs.iter().zip(records) {
                    let Some(payload) = records.get(seq) else { continue };
                    let new = New { kind: kind(run.number, seq), payload };
                    let seq = u32::try_from(seq).unwrap();
                    changes.push(Change::Record { run: run.number, seq, new });
                }
            }
            changes.extend(runs.iter().map(Change::End));
        }
        changes
    }
}

/// The kind of a record.
pub(crate) fn kind(run: u64, seq: usize) -> &'static str {
    let mut at = SplitMix64::for_case(run, seq as u64).below(100);
    for (kind, share) in KINDS {
        if at < share {
            return kind;
        }
        at -= share;
    }
    KINDS[0].0
}

/// Payloads of many runs, to append in turn: those of the runs' records one after the other, up to
/// this many bytes.
pub(crate) fn payloads(sizes: Sizes, bytes: usize) -> Vec<Vec<u8>> {
    let (records, words) = (Records::Real, Words::new());
    let runs = Runs { count: 0, agents: 1, at_once: 1, favourite: false, records, sizes, words };
    let mut left = bytes;
    let all = (0..).flat_map(|number| runs.records(number));
    let enough = all.take_while(|payload| {
        let go_on = left > 0;
        left = left.saturating_sub(payload.len());
        go_on
    });
    enough.collect()
}
