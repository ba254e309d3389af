//! Compares the index with the directories it was built from (I4: rebuilt = incremental).
//!
//! First it looks up each run of the directories in every table. Then it walks each table that has
//! more entries than that. Last it compares the counts of agents with the list of runs by agent.

use core::ops::Bound;

use super::catalog::{Catalog, Order};
use super::merge::Directories;
use super::plan::mark_key;
use super::row::RunRow;
use super::scan::DirectoryScan;
use super::snapshot::{IndexSnapshot, Rows, TableView};
use super::tables::fence::IndexError;
use super::tables::key;
use super::tables::key::Table;
use super::value;
use crate::format::codec::Decoded;
use crate::types::RunNo;

/// Whether a snapshot agrees with the directories up to the segment it goes to. Differences of runs
/// that are excused do not count, and neither do those of counts if `None` is.
///
/// # Errors
/// For damage in the directories or the index, and for an index that cannot be read.
pub(crate) fn check(
    snapshot: &IndexSnapshot,
    directories: &impl Directories,
    is_excused: &dyn Fn(Option<RunNo>) -> bool,
) -> Result<bool, IndexError> {
    let scan = DirectoryScan::up_to(directories, snapshot.applied());
    let (mut expected, mut same) = (Expected::default(), true);
    scan.each_row(|row| {
        expected.add(&row);
        same &= is_excused(Some(row.run_no)) || has_run(snapshot, row)?;
        Ok(())
    })?;
    for table in [Table::Runs, Table::ByAgent, Table::ByState, Table::Documents] {
        let Some(view) = snapshot.table(table) else { continue };
        if view.len()? == expected.len(table) {
            continue;
        }
        for key in keys(view)? {
            let key = key?;
            let run_no = read_run_no(table, &key)?;
            same &=
                is_excused(Some(run_no)) || is_expected(table, &key, scan.find(run_no)?.as_ref());
        }
    }
    Ok(same
        && (is_excused(None)
            || snapshot.meta().runs == expected.runs && counts_of_agents_match(snapshot)?))
}

/// The tables that have one entry for each run.
const LISTS: [Table; 2] = [Table::ByAgent, Table::ByState];

/// How many entries the directories imply.
#[derive(Debug, Default)]
struct Expected {
    runs: u64,
    documents: u64,
}

impl Expected {
    fn add(&mut self, row: &RunRow) {
        self.runs += u64::from(!row.document);
        self.documents += u64::from(row.document);
    }

    fn len(&self, table: Table) -> u64 {
        match table {
            Table::Documents => self.documents,
            Table::Runs => self.runs + self.documents,
            _ => self.runs,
        }
    }
}

/// Whether the tables have the entries of a run.
fn has_run(snapshot: &IndexSnapshot, row: RunRow) -> Result<bool, IndexError> {
    let tables = if row.document { &[Table::Documents][..] } else { &LISTS };
    for table in tables {
        if !has_mark(snapshot, *table, &row)? {
            return Ok(false);
        }
    }
    let mut row = row.without_places();
    let Some(found) = snapshot.row(row.run_no)? else { return Ok(false) };
    if found.segments.is_empty() {
        // It had very many once.
        row.segments.clear();
    }
    Ok(found == row)
}

/// Whether a table has the mark of a run.
fn has_mark(snapshot: &IndexSnapshot, table: Table, row: &RunRow) -> Result<bool, IndexError> {
    let Some((view, key)) = snapshot.table(table).zip(mark_key(table, row)) else {
        return Ok(true);
    };
    let read: fn(&[u8], &[u8]) -> Decoded<()> = match table {
        Table::ByAgent => |key, value| value::read_mark(Table::ByAgent, key, value),
        Table::ByState => |key, value| value::read_mark(Table::ByState, key, value),
        _ => |key, value| value::read_mark(Table::Documents, key, value),
    };
    Ok(view.find(&key, read)?.is_some())
}

/// Whether the number of runs of each agent is that of its list.
fn counts_of_agents_match(snapshot: &IndexSnapshot) -> Result<bool, IndexError> {
    let Some(by_agent) = snapshot.table(Table::ByAgent) else { return Ok(true) };
    let mut stored = snapshot.agents(None)?;
    let agent_of = |key: Result<Vec<u8>, IndexError>| -> Result<String, IndexError> {
        Ok(key::split_id(&key?)?.0)
    };
    let mut listed = keys(by_agent)?.map(agent_of).peekable();
    while let Some(agent) = listed.next() {
        let mut count = 1;
        while listed.next_if_eq(&agent).is_some() {
            count += 1;
        }
        let (agent, stored) = (agent?, stored.next().transpose()?);
        if stored.is_none_or(|(id, found)| id.as_str() != agent || found != count) {
            return Ok(false);
        }
    }
    Ok(stored.next().is_none())
}

/// All keys of a table; the values are not read.
fn keys(view: &TableView) -> Result<Rows<Vec<u8>>, IndexError> {
    view.rows(Bound::Unbounded, Bound::Unbounded, Order::Ascending, |key, _| Ok(key.to_vec()))
}

/// The run that a key belongs to.
fn read_run_no(table: Table, key: &[u8]) -> Decoded<RunNo> {
    match table {
        Table::Documents => Ok(key::read_document_key(key)?.1),
        Table::ByAgent | Table::ByState => Ok(key::read_state_key(key)?.1),
        _ => key::read_run_key(key),
    }
}

/// Whether the directories imply a key.
fn is_expected(table: Table, key: &[u8], row: Option<&RunRow>) -> bool {
    let Some(row) = row else {
        return false;
    };
    match table {
        Table::Runs => true,
        _ => mark_key(table, row).is_some_and(|expected| expected == key),
    }
}
