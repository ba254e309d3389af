//! What a batch of sealed segments changes in each table. No I/O: it needs only the directories and
//! the current rows.
//!
//! Everything is first folded per run in memory, so that each key is written once, even if several
//! segments of the batch name its run. Each table gets its changes in the order of its keys, since
//! a B-tree is slow at unordered ones.

use std::collections::BTreeMap;

use super::row::RunRow;
use super::tables::fence::IndexError;
use super::tables::key;
use super::tables::key::Table;
use super::value;
use crate::format::codec::Decoded;
use crate::format::segments::segment::Purpose;
use crate::format::{Directory, RunEntry};
use crate::types::{AgentId, RunNo, SegmentId};

/// What one sealed segment changes in the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SegmentChange {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// The purpose of the segment.
    pub(crate) purpose: Purpose,
    /// What tells it from another one with the same id, or with another directory.
    pub(crate) stamp: u64,
    /// The entries of its directory by run number, without runs that are deleted.
    pub(crate) runs: Vec<RunEntry>,
    /// The runs that it evicts, wherever their entries are.
    pub(crate) evicted: Vec<RunNo>,
}

impl SegmentChange {
    /// The contents of a directory without the entries of deleted runs. `is_deleted` must know at
    /// least the runs whose evictions were applied in an earlier batch: otherwise their entries
    /// would bring them back.
    pub(crate) fn read(
        (segment, purpose, stamp): (SegmentId, Purpose, u64),
        directory: &Directory<'_>,
        is_deleted: &dyn Fn(RunNo) -> bool,
    ) -> Decoded<Self> {
        let mut runs = Vec::new();
        for slot in 0..directory.run_count() {
            if !is_deleted(directory.run_no(slot)?) {
                runs.push(directory.run(slot)?);
            }
        }
        let evicted = directory.evictions().map(|found| found.map(|found| found.run_no));
        let evicted = evicted.collect::<Decoded<_>>()?;
        Ok(Self { segment, purpose, stamp, runs, evicted })
    }
}

/// What a compaction changes in the index: runs move from victims to outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relocation {
    /// The outputs and their stamps.
    pub(crate) outputs: Vec<(SegmentId, u64)>,
    /// The victims, which have no stamps any more: so an older manifest has segments without.
    pub(crate) victims: Vec<SegmentId>,
    /// Each run that has frames in a victim.
    pub(crate) runs: Vec<Relocated>,
}

/// Where the frames of a run in victims are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Relocated {
    /// The number of the run.
    pub(crate) run_no: RunNo,
    /// The outputs with entries of it, ascending.
    pub(crate) segments: Vec<SegmentId>,
    /// The bytes of its frames in the victims, and in the outputs.
    pub(crate) stored: [u64; 2],
}

impl Relocated {
    /// Gives a row of the run the new segments and bytes.
    pub(crate) fn apply(&self, row: &mut RunRow, victims: &[SegmentId]) {
        let [before, after] = self.stored;
        row.stored = row.stored.saturating_sub(before).saturating_add(after);
        if row.segments.is_empty() {
            return;
        }
        row.segments.retain(|segment| !victims.contains(segment));
        row.segments.extend(&self.segments);
        row.segments.sort_unstable();
        row.segments.dedup();
    }
}

/// What the plan reads of the current index.
pub(super) trait Current {
    /// The row of a run.
    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError>;
    /// The number of runs of an agent.
    fn agent_runs(&self, agent: &AgentId) -> Result<u64, IndexError>;
}

/// A key and its new value; `None` removes it.
pub(super) type KeyChange = (Vec<u8>, Option<Vec<u8>>);

/// The changes of one run.
#[derive(Debug)]
struct RunChange {
    run_no: RunNo,
    old: Option<RunRow>,
    new: Option<RunRow>,
}

/// What a batch of segments changes.
#[derive(Debug)]
pub(super) struct Plan {
    /// By run number.
    runs: Vec<RunChange>,
    agents: BTreeMap<AgentId, u64>,
}

enum Step<'a> {
    Entry(SegmentId, &'a RunEntry),
    Evict,
}

impl Plan {
    /// Folds `changes` into the current index.
    pub(super) fn new(
        changes: &[&SegmentChange],
        current: &impl Current,
    ) -> Result<Self, IndexError> {
        let mut steps = steps(changes);
        // A stable sort, so that entries of one segment stay together.
        steps.sort_by_key(|(run_no, _)| *run_no);
        let mut runs = Vec::new();
        for steps in steps.chunk_by(|(left, _), (right, _)| left == right) {
            runs.extend(fold(steps, current)?);
        }
        Self::of_runs(runs, current)
    }

    /// Gives the rows of these runs their segments. Runs that are not in the index were evicted
    /// meanwhile, and stay evicted.
    pub(super) fn relocation(
        relocation: &Relocation,
        current: &impl Current,
    ) -> Result<Self, IndexError> {
        let mut runs = Vec::new();
        for moved in &relocation.runs {
            if let Some(old) = current.row(moved.run_no)? {
                let mut new = old.clone();
                moved.apply(&mut new, &relocation.victims);
                let (run_no, old, new) = (moved.run_no, Some(old), Some(new));
                runs.push(RunChange { run_no, old, new });
            }
        }
        runs.sort_by_key(|change| change.run_no);
        Self::of_runs(runs, current)
    }

    fn of_runs(runs: Vec<RunChange>, current: &impl Current) -> Result<Self, IndexError> {
        let mut deltas: BTreeMap<&AgentId, i64> = BTreeMap::new();
        for change in &runs {
            if let Some(row) = change.old.as_ref().filter(|row| !row.document) {
                *deltas.entry(&row.agent).or_default() -= 1;
            }
            if let Some(row) = change.new.as_ref().filter(|row| !row.document) {
                *deltas.entry(&row.agent).or_default() += 1;
            }
        }
        let mut agents = BTreeMap::new();
        for (agent, delta) in deltas.into_iter().filter(|(_, delta)| *delta != 0) {
            let count = current.agent_runs(agent)?.saturating_add_signed(delta);
            agents.insert(agent.clone(), count);
        }
        Ok(Self { runs, agents })
    }

    /// The change of the number of runs.
    pub(super) fn new_runs(&self) -> i64 {
        let is_run = |row: Option<&RunRow>| i64::from(row.is_some_and(|row| !row.document));
        let delta = |change: &RunChange| is_run(change.new.as_ref()) - is_run(change.old.as_ref());
        self.runs.iter().map(delta).sum()
    }

    /// The changes of one table, in the order of its keys.
    pub(super) fn changes(&self, table: Table) -> Vec<KeyChange> {
        let mut out = Vec::new();
        match table {
            Table::Runs => {
                for change in &self.runs {
                    let value = change.new.as_ref().map(value::row_value);
                    out.push((key::run_key(change.run_no).to_vec(), value));
                }
            }
            Table::ByAgent | Table::ByState | Table::Documents => {
                self.marks(table, &mut out);
            }
            Table::Agents => {
                for (agent, count) in &self.agents {
                    let value = (*count > 0).then(|| value::agent_value(agent.as_str(), *count));
                    out.push((agent.as_str().as_bytes().to_vec(), value));
                }
            }
            Table::Segments | Table::Meta => {}
        }
        out.sort_by(|(left, _), (right, _)| left.cmp(right));
        out
    }

    /// Moves the mark of each run from the key of its old row to that of its new one.
    fn marks(&self, table: Table, out: &mut Vec<KeyChange>) {
        for change in &self.runs {
            let old = change.old.as_ref().and_then(|row| mark_key(table, row));
            let new = change.new.as_ref().and_then(|row| mark_key(table, row));
            if old == new {
                continue;
            }
            out.extend(old.map(|key| (key, None)));
            out.extend(new.map(|key| {
                let mark = value::mark(table, &key);
                (key, Some(mark))
            }));
        }
    }
}

/// The key of the mark that a run, or a version of a document, has in a table; `None` if the table
/// has no mark for it.
pub(super) fn mark_key(table: Table, row: &RunRow) -> Option<Vec<u8>> {
    let (run, agent) = (row.run.as_str(), row.agent.as_str());
    if row.document {
        return (table == Table::Documents).then(|| key::document_key(agent, run, row.run_no));
    }
    match table {
        Table::ByAgent => Some(key::state_key(Some(agent), row.state(), row.time_key())),
        Table::ByState => Some(key::state_key(None, row.state(), row.time_key())),
        Table::Runs | Table::Agents | Table::Documents | Table::Segments | Table::Meta => None,
    }
}

fn steps<'a>(changes: &[&'a SegmentChange]) -> Vec<(RunNo, Step<'a>)> {
    let mut steps = Vec::new();
    for change in changes {
        for entry in &change.runs {
            steps.push((entry.run_no, Step::Entry(change.segment, entry)));
        }
        steps.extend(change.evicted.iter().map(|&run_no| (run_no, Step::Evict)));
    }
    steps
}

/// The change that the steps of one run make; `None` if the run exists neither before nor after.
fn fold(
    steps: &[(RunNo, Step<'_>)],
    current: &impl Current,
) -> Result<Option<RunChange>, IndexError> {
    let Some(&(run_no, _)) = steps.first() else {
        return Ok(None);
    };
    let old = current.row(run_no)?;
    if steps.iter().any(|(_, step)| matches!(step, Step::Evict)) {
        return Ok(old.is_some().then_some(RunChange { run_no, old, new: None }));
    }
    let mut new = old.clone();
    for (_, step) in steps {
        if let Step::Entry(segment, entry) = step {
            match &mut new {
                Some(row) => row.apply(*segment, entry),
                none => *none = Some(RunRow::first(*segment, entry)),
            }
        }
    }
    if let (Some(old), Some(new)) = (&old, &mut new)
        && old.segments.is_empty()
    {
        // It lists none, so it may not list only some.
        new.segments.clear();
    }
    Ok(Some(RunChange { run_no, old, new }))
}
