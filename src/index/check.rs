//! Compares the index with the directories it was built from (I4: rebuilt = incremental).
//!
//! First it looks up each run of the directories in every table. Then it walks each table that has
//! more entries than that, and reports the unexpected ones. Last it compares the counts of agents
//! with the list of runs by agent. Memory is bounded: differences are reported as they are found,
//! and not collected.

use core::ops::Bound;

use super::catalog::{Catalog, Order};
use super::merge::Directories;
use super::plan::mark_key;
use super::row::{RunRow, RunState, Span};
use super::scan::DirectoryScan;
use super::snapshot::{IndexSnapshot, Rows, TableView};
use super::tables::fence::IndexError;
use super::tables::key;
use super::tables::key::Table;
use super::value;
use crate::format::codec::Decoded;
use crate::types::{AgentId, RunNo};

/// One difference between the index and the directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    /// The table.
    pub(crate) table: Table,
    /// The run or agent of the entry; `None` if the difference concerns the table as a whole.
    pub(crate) subject: Option<Subject>,
    /// How it differs.
    pub(crate) kind: DifferenceKind,
}

/// The run or agent of an entry that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A run.
    Run(RunNo),
    /// An agent.
    Agent(AgentId),
}

/// How an entry differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DifferenceKind {
    /// The entry is missing.
    Missing,
    /// The entry should not be there.
    Extra,
    /// The entry has another value.
    Wrong,
    /// The entry cannot be read.
    Unreadable(IndexError),
}

/// Compares a snapshot with the directories up to the segment it goes to. It calls `report` with
/// each difference, and returns the number of compared runs.
///
/// An unreadable directory is treated as empty, so its runs are reported as differences.
///
/// # Errors
/// Only for damage in the directories. Damage in the index is a difference.
pub(crate) fn check(
    snapshot: &IndexSnapshot,
    directories: &impl Directories,
    report: &mut dyn FnMut(Difference),
) -> Result<u64, IndexError> {
    let scan = DirectoryScan::up_to(directories, snapshot.applied());
    let mut check = Check { snapshot, report, expected: Expected::default() };
    scan.each_state(|row, spans| {
        check.run(&row, &spans);
        Ok(())
    })?;
    for table in [Table::Runs].into_iter().chain(LISTS).chain([Table::Spans, Table::Documents]) {
        check.extras(table, |run_no| scan.state(run_no))?;
    }
    if snapshot.meta().runs != check.expected.runs {
        let (table, kind) = (Table::Meta, DifferenceKind::Wrong);
        (check.report)(Difference { table, subject: None, kind });
    }
    check.agents();
    Ok(check.expected.runs)
}

/// The tables that have one entry for each run.
const LISTS: [Table; 3] = [Table::RunIds, Table::ByAgent, Table::ByState];

/// How many entries the directories imply.
#[derive(Debug, Default)]
struct Expected {
    runs: u64,
    spans: u64,
    documents: u64,
}

impl Expected {
    fn len(&self, table: Table) -> u64 {
        match table {
            Table::Spans => self.spans,
            Table::Documents => self.documents,
            Table::Runs => self.runs + self.documents,
            _ => self.runs,
        }
    }
}

struct Check<'a> {
    snapshot: &'a IndexSnapshot,
    report: &'a mut dyn FnMut(Difference),
    expected: Expected,
}

impl Check<'_> {
    fn tell(&mut self, table: Table, run_no: RunNo, kind: DifferenceKind) {
        (self.report)(Difference { table, subject: Some(Subject::Run(run_no)), kind });
    }

    fn tell_table(&mut self, table: Table, error: IndexError) {
        let kind = DifferenceKind::Unreadable(error);
        (self.report)(Difference { table, subject: None, kind });
    }

    /// Compares every entry of a run.
    fn run(&mut self, row: &RunRow, spans: &[Span]) {
        self.expected.runs += u64::from(!row.document);
        self.expected.documents += u64::from(row.document);
        self.expected.spans += spans.len() as u64;

        let found = match self.snapshot.row(row.run_no) {
            Ok(Some(found)) if found == *row => None,
            Ok(Some(_)) => Some(DifferenceKind::Wrong),
            Ok(None) => Some(DifferenceKind::Missing),
            Err(error) => Some(DifferenceKind::Unreadable(error)),
        };
        if let Some(kind) = found {
            self.tell(Table::Runs, row.run_no, kind);
        }
        let found = match self.snapshot.spans(row.run_no) {
            Ok(found) if found == spans => None,
            Ok(found) if found.len() < spans.len() => Some(DifferenceKind::Missing),
            Ok(_) => Some(DifferenceKind::Wrong),
            Err(error) => Some(DifferenceKind::Unreadable(error)),
        };
        if let Some(kind) = found {
            self.tell(Table::Spans, row.run_no, kind);
        }
        let tables = if row.document { &[Table::Documents][..] } else { &LISTS };
        for table in tables {
            self.mark(*table, row);
        }
    }

    /// Compares whether a table has the mark of a run. One that another state of the run has left
    /// is found by [`Check::extras`].
    fn mark(&mut self, table: Table, row: &RunRow) {
        let Some(view) = self.snapshot.table(table) else { return };
        let Some(key) = mark_key(table, row) else { return };
        let read: fn(&[u8], &[u8]) -> Decoded<()> = match table {
            Table::RunIds => |key, value| value::read_mark(Table::RunIds, key, value),
            Table::ByAgent => |key, value| value::read_mark(Table::ByAgent, key, value),
            Table::ByState => |key, value| value::read_mark(Table::ByState, key, value),
            _ => |key, value| value::read_mark(Table::Documents, key, value),
        };
        match view.find(&key, read) {
            Ok(Some(())) => {}
            Ok(None) => self.tell(table, row.run_no, DifferenceKind::Missing),
            Err(error) => self.tell(table, row.run_no, DifferenceKind::Unreadable(error)),
        }
    }

    /// Walks a table whose number of entries differs from that of the directories, and reports the
    /// unexpected ones.
    fn extras(
        &mut self,
        table: Table,
        state: impl Fn(RunNo) -> Decoded<RunState>,
    ) -> Result<(), IndexError> {
        let Some(view) = self.snapshot.table(table) else {
            return Ok(());
        };
        match view.len() {
            Ok(len) if len == self.expected.len(table) => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                self.tell_table(table, error);
                return Ok(());
            }
        }
        let rows = match keys(view) {
            Ok(rows) => rows,
            Err(error) => {
                self.tell_table(table, error);
                return Ok(());
            }
        };
        for key in rows {
            let key = match key {
                Ok(key) => key,
                Err(error) => {
                    self.tell_table(table, error);
                    break;
                }
            };
            match read_run_no(table, &key) {
                Ok(run_no) if is_expected(table, &key, &state(run_no)?) => {}
                Ok(run_no) => self.tell(table, run_no, DifferenceKind::Extra),
                Err(damage) => self.tell_table(table, damage.into()),
            }
        }
        Ok(())
    }

    /// Compares the number of runs of each agent with the list of runs by agent.
    fn agents(&mut self) {
        if let Err(error) = self.count_agents() {
            self.tell_table(Table::Agents, error);
        }
    }

    fn count_agents(&mut self) -> Result<(), IndexError> {
        let Some(by_agent) = self.snapshot.table(Table::ByAgent) else {
            return Ok(());
        };
        let mut stored = self.snapshot.agents(None)?.peekable();
        let mut counted = keys(by_agent)?.peekable();
        while let Some(key) = counted.next().transpose()? {
            let (agent, _) = key::split_id(&key)?;
            let mut count: u64 = 1;
            let is_same = |key: &Result<Vec<u8>, IndexError>| {
                let next = key.as_ref().map(|key| key::split_id(key));
                matches!(next, Ok(Ok((next, _))) if next == agent)
            };
            while counted.next_if(is_same).is_some() {
                count += 1;
            }
            let is_before = |row: &Result<(AgentId, u64), IndexError>| {
                row.as_ref().is_ok_and(|(id, _)| id.as_str() < agent.as_str())
            };
            while let Some(Ok((id, _))) = stored.next_if(is_before) {
                self.tell_agent(id, DifferenceKind::Extra);
            }
            let is_this = |row: &Result<(AgentId, u64), IndexError>| {
                row.as_ref().map_or(true, |(id, _)| id.as_str() == agent)
            };
            match stored.next_if(is_this).transpose()? {
                Some((_, found)) if found == count => {}
                Some((id, _)) => self.tell_agent(id, DifferenceKind::Wrong),
                None => {
                    if let Ok(id) = AgentId::new(&agent) {
                        self.tell_agent(id, DifferenceKind::Missing);
                    }
                }
            }
        }
        for row in stored {
            self.tell_agent(row?.0, DifferenceKind::Extra);
        }
        Ok(())
    }

    fn tell_agent(&mut self, agent: AgentId, kind: DifferenceKind) {
        let subject = Some(Subject::Agent(agent));
        (self.report)(Difference { table: Table::Agents, subject, kind });
    }
}

/// All keys of a table; the values are not read.
fn keys(view: &TableView) -> Result<Rows<Vec<u8>>, IndexError> {
    view.rows(Bound::Unbounded, Bound::Unbounded, Order::Ascending, |key, _| Ok(key.to_vec()))
}

/// The run that a key belongs to.
fn read_run_no(table: Table, key: &[u8]) -> Decoded<RunNo> {
    match table {
        Table::RunIds | Table::Documents => key::read_id_key(key),
        Table::ByAgent | Table::ByState => Ok(key::read_state_key(key)?.1),
        Table::Spans => Ok(key::read_span_key(key)?.0),
        _ => key::read_run_key(key),
    }
}

/// Whether the directories imply a key.
fn is_expected(table: Table, key: &[u8], state: &RunState) -> bool {
    let Some(row) = &state.row else {
        return false;
    };
    match table {
        Table::Runs => true,
        Table::Spans => key::read_span_key(key)
            .is_ok_and(|(_, segment)| state.spans.iter().any(|span| span.segment == segment)),
        _ => mark_key(table, row).is_some_and(|expected| expected == key),
    }
}
