//! The contents of the index at one moment: lookups and lists without a transaction of their own.
//!
//! A snapshot holds the opened tables of one read transaction, so that a lookup is only a descent
//! of a B-tree. It keeps only the pages of its moment from being freed; the engine replaces its
//! snapshot after each apply.
//!
//! The checksum of its value verifies every answer. It cannot detect a missing entry, or an old
//! page in the place of a newer one: `check` does.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use std::sync::{Arc, OnceLock};

use redb::{Range, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::catalog::{Catalog, Order, RunKey, RunList};
use super::merge::Applied;
use super::row::{RowSummary, RunRow};
use super::store::META_KEY;
use super::tables::fence::{Fenced, IndexError};
use super::tables::key;
use super::tables::key::{Bytes, State, Table};
use super::value::{self, Meta};
use crate::error::Damage;
use crate::format::codec::Decoded;
use crate::types::{AgentId, RunNo, SegmentId};

/// The contents of the index at one moment. Clones share it.
#[derive(Clone)]
pub(crate) struct IndexSnapshot {
    tables: Arc<Tables>,
}

struct Tables {
    meta: Meta,
    runs: TableView,
    by_agent: TableView,
    by_state: TableView,
    agents: TableView,
    documents: TableView,
    segments: TableView,
    states_in_use: OnceLock<u16>,
}

impl IndexSnapshot {
    pub(super) fn new(transaction: &ReadTransaction) -> Result<Self, IndexError> {
        let tables = Tables {
            meta: Self::read_meta(transaction)?,
            runs: TableView::open(transaction, Table::Runs)?,
            by_agent: TableView::open(transaction, Table::ByAgent)?,
            by_state: TableView::open(transaction, Table::ByState)?,
            agents: TableView::open(transaction, Table::Agents)?,
            documents: TableView::open(transaction, Table::Documents)?,
            segments: TableView::open(transaction, Table::Segments)?,
            states_in_use: OnceLock::new(),
        };
        Ok(Self { tables: Arc::new(tables) })
    }

    /// What the index says of itself, whatever other tables there are.
    pub(super) fn read_meta(transaction: &ReadTransaction) -> Result<Meta, IndexError> {
        let table = TableView::open(transaction, Table::Meta)?;
        Ok(table.find(META_KEY, value::read_meta)?.ok_or(Damage::Missing)?)
    }

    pub(super) fn meta(&self) -> Meta {
        self.tables.meta
    }

    pub(super) fn table(&self, table: Table) -> Option<&TableView> {
        Some(match table {
            Table::Runs => &self.tables.runs,
            Table::ByAgent => &self.tables.by_agent,
            Table::ByState => &self.tables.by_state,
            Table::Agents => &self.tables.agents,
            Table::Documents => &self.tables.documents,
            Table::Segments => &self.tables.segments,
            Table::Meta => return None,
        })
    }

    /// How far the index goes.
    pub(crate) fn applied(&self) -> Applied {
        self.tables.meta.applied
    }

    /// How many runs the index has.
    pub(crate) fn run_count(&self) -> u64 {
        self.tables.meta.runs
    }

    /// Of how many segments the index has a stamp.
    #[cfg(test)]
    pub(crate) fn stamps(&self) -> Result<u64, IndexError> {
        self.tables.segments.len()
    }

    /// Whether each of these segments, which ascend, was applied with this stamp.
    pub(crate) fn has_applied(
        &self,
        segments: impl Iterator<Item = (SegmentId, u64)>,
    ) -> Result<bool, IndexError> {
        let (start, end) = (Bound::Unbounded, Bound::Unbounded);
        let mut known =
            self.tables.segments.rows(start, end, Order::Ascending, value::read_stamp)?;
        for wanted in segments {
            let found = known.find(|known| !known.as_ref().is_ok_and(|known| known.0 < wanted.0));
            if found.transpose()? != Some(wanted) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The rows of all runs that may have entries in a segment.
    pub(crate) fn rows_in(&self, segment: SegmentId) -> Result<Vec<RunRow>, IndexError> {
        let mut rows = Vec::new();
        self.tables.runs.each(|key, value| {
            let row = value::read_row(key, value)?;
            if row.can_be_in(segment) {
                rows.push(row);
            }
            Ok(())
        })?;
        Ok(rows)
    }

    /// The runs of a list that are in one state.
    fn runs_in(&self, list: &RunList<'_>, state: State) -> Result<Rows<RunKey>, IndexError> {
        let key = |key: RunKey| Bound::Included(key::state_key(list.agent, state, key));
        let (start, end) = (key(list.keys.0), key(list.keys.1));
        if list.agent.is_some() {
            return self.tables.by_agent.rows(start, end, list.order, read_by_agent);
        }
        self.tables.by_state.rows(start, end, list.order, |key, value| {
            value::read_mark(Table::ByState, key, value)?;
            key::read_state_key(key)
        })
    }

    /// In which states there are runs: few of the states are in use, and a list needs no ranges of
    /// the others. A bit for each code.
    fn states_in_use(&self) -> Result<u16, IndexError> {
        if let Some(known) = self.tables.states_in_use.get() {
            return Ok(*known);
        }
        let (mut in_use, mut next) = (0, 0);
        loop {
            let start = Bound::Included(vec![next]);
            let read = |key: &[u8], value: &[u8]| {
                value::read_mark(Table::ByState, key, value)?;
                key::read_state_code(key)
            };
            let by_state = &self.tables.by_state;
            let mut rows = by_state.rows(start, Bound::Unbounded, Order::Ascending, read)?;
            let Some(code) = rows.next().transpose()? else { break };
            (in_use, next) = (in_use | 1 << code, code + 1);
        }
        Ok(*self.tables.states_in_use.get_or_init(|| in_use))
    }

    /// The agents that have runs, and how many, by id, strictly above `after`.
    pub(crate) fn agents(&self, after: Option<&str>) -> Result<Rows<(AgentId, u64)>, IndexError> {
        let start = match after {
            Some(agent) => Bound::Excluded(agent.as_bytes().to_vec()),
            None => Bound::Unbounded,
        };
        self.tables.agents.rows(start, Bound::Unbounded, Order::Ascending, |key, value| {
            let count = value::read_agent(key, value)?;
            let agent = core::str::from_utf8(key).map_err(|_| Damage::NotUtf8)?;
            Ok((AgentId::new(agent).map_err(|_| Damage::Truncated)?, count))
        })
    }
}

impl Catalog for IndexSnapshot {
    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError> {
        self.tables.runs.find(&key::run_key(run_no), value::read_row)
    }

    fn runs_page(&self, list: &RunList<'_>, limit: usize) -> Result<Vec<RunKey>, IndexError> {
        if list.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let in_use = self.states_in_use()?;
        let mut merged = Merged::new(list.order);
        for state in list.states().filter(|state| in_use & 1 << state.code() != 0) {
            merged.add(self.runs_in(list, state)?)?;
        }
        merged.take(limit).collect()
    }

    fn has_run_of(
        &self,
        agent: &str,
        is_wanted: &dyn Fn(RunNo) -> bool,
    ) -> Result<bool, IndexError> {
        let (start, end) = key::agent_range(agent);
        let (start, end) = (Bound::Included(start), Bound::Excluded(end));
        // The newest of a state first: those that went since are mostly old.
        for key in self.tables.by_agent.rows(start, end, Order::Descending, read_by_agent)? {
            let (_, run_no) = key?;
            if is_wanted(run_no) {
                let is_there = self.row(run_no)?.is_some_and(|row| row.agent == agent);
                return if is_there { Ok(true) } else { Err(Damage::IndexPages.into()) };
            }
        }
        Ok(false)
    }

    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError> {
        self.agents(after)?.take(limit).map(|row| Ok(row?.0)).collect()
    }

    fn documents_page(
        &self,
        namespace: &str,
        from: Bound<&str>,
        limit: usize,
    ) -> Result<Vec<(String, RunNo)>, IndexError> {
        let (start, end) = key::document_range(namespace, from);
        let (start, end) = (Bound::Included(start), Bound::Excluded(end));
        let rows = self.tables.documents.rows(start, end, Order::Ascending, read_document)?;
        let (mut page, mut keys): (Vec<(String, RunNo)>, usize) = (Vec::new(), 0);
        for row in rows {
            let row = row?;
            if page.last().is_none_or(|last| last.0 != row.0) {
                if keys == limit {
                    break;
                }
                keys += 1;
            }
            page.push(row);
        }
        Ok(page)
    }

    fn count_runs(&self) -> Result<u64, IndexError> {
        Ok(self.run_count())
    }

    fn each_summary(&self, visit: &mut dyn FnMut(RowSummary<'_>)) -> Result<(), IndexError> {
        self.tables.runs.each(|key, value| {
            visit(value::read_summary(key, value)?);
            Ok(())
        })
    }
}

impl fmt::Debug for IndexSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexSnapshot").field("meta", &self.meta()).finish_non_exhaustive()
    }
}

fn read_by_agent(key: &[u8], value: &[u8]) -> Decoded<RunKey> {
    value::read_mark(Table::ByAgent, key, value)?;
    key::read_state_key(key)
}

fn read_document(key: &[u8], value: &[u8]) -> Decoded<(String, RunNo)> {
    value::read_mark(Table::Documents, key, value)?;
    key::read_document_key(key)
}

/// Reads an entry of a table.
type ReadEntry<T> = fn(&[u8], &[u8]) -> Decoded<T>;

/// An open table of a snapshot.
#[derive(Debug)]
pub(super) struct TableView(Fenced<redb::ReadOnlyTable<Bytes, Bytes>>);

impl TableView {
    fn open(transaction: &ReadTransaction, table: Table) -> Result<Self, IndexError> {
        Ok(Self(Fenced::new(transaction.open_table(table.definition())?)))
    }

    /// The entry of a key.
    pub(super) fn find<T>(&self, key: &[u8], read: ReadEntry<T>) -> Result<Option<T>, IndexError> {
        self.0.call(|table| match table.get(key)? {
            Some(value) => Ok(Some(read(key, value.value())?)),
            None => Ok(None),
        })
    }

    /// How many entries the table has, according to redb.
    pub(super) fn len(&self) -> Result<u64, IndexError> {
        self.0.call(|table| Ok(table.len()?))
    }

    /// Calls `visit` for each entry, ascending, without copies. It checks that keys ascend, since
    /// damaged branch pages can lead in circles.
    pub(super) fn each(
        &self,
        mut visit: impl FnMut(&[u8], &[u8]) -> Decoded<()>,
    ) -> Result<(), IndexError> {
        self.0.call(|table| {
            let mut last: Option<Vec<u8>> = None;
            for entry in table.iter()? {
                let (key, value) = entry?;
                let key = key.value();
                if last.as_deref().is_some_and(|last| last >= key) {
                    return Err(Damage::Misplaced.into());
                }
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(key);
                visit(key, value.value())?;
            }
            Ok(())
        })
    }

    /// The entries between two keys.
    pub(super) fn rows<T>(
        &self,
        start: Bound<Vec<u8>>,
        end: Bound<Vec<u8>>,
        order: Order,
        read: ReadEntry<T>,
    ) -> Result<Rows<T>, IndexError> {
        let bounds = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
        let range = self.0.call(|table| Ok(Fenced::new(table.range::<&[u8]>(bounds)?)))?;
        Ok(Rows { range: Some(range), order, start, end, last: None, read })
    }
}

/// Walks entries of a table. After an error it ends.
///
/// Damaged branch pages can lead to unrelated entries, or in circles. So each key must be within
/// the bounds and behind the previous key.
pub(crate) struct Rows<T> {
    range: Option<Fenced<Range<'static, Bytes, Bytes>>>,
    order: Order,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    last: Option<Vec<u8>>,
    read: ReadEntry<T>,
}

impl<T> Rows<T> {
    fn step(&mut self) -> Result<Option<T>, IndexError> {
        let Self { range, order, start, end, last, read } = self;
        let Some(range) = range.as_mut() else {
            return Ok(None);
        };
        range.call_mut(|range| {
            let next = match *order {
                Order::Ascending => range.next(),
                Order::Descending => range.next_back(),
            };
            let Some(entry) = next else {
                return Ok(None);
            };
            let (key, value) = entry?;
            let key = key.value();
            let is_next = last.as_deref().is_none_or(|last| match *order {
                Order::Ascending => last < key,
                Order::Descending => last > key,
            });
            let (start, end) = (&*start, &*end);
            let bounds = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
            if !is_next || !RangeBounds::<[u8]>::contains(&bounds, key) {
                return Err(Damage::Misplaced.into());
            }
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            Ok(Some(read(key, value.value())?))
        })
    }
}

impl<T> Iterator for Rows<T> {
    type Item = Result<T, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if !matches!(step, Some(Ok(_))) {
            self.range = None;
        }
        step
    }
}

/// Walks several ranges of runs as one. It reads one entry more of each than it gives.
struct Merged {
    /// Each range that is not at its end, with its next run.
    ranges: Vec<(RunKey, Rows<RunKey>)>,
    order: Order,
    last: Option<RunKey>,
}

impl Merged {
    fn new(order: Order) -> Self {
        Self { ranges: Vec::new(), order, last: None }
    }

    fn add(&mut self, mut rows: Rows<RunKey>) -> Result<(), IndexError> {
        if let Some(first) = rows.next().transpose()? {
            self.ranges.push((first, rows));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<Option<RunKey>, IndexError> {
        let nexts = self.ranges.iter().map(|(next, _)| *next).enumerate();
        let first = match self.order {
            Order::Ascending => nexts.min_by_key(|(_, next)| *next),
            Order::Descending => nexts.max_by_key(|(_, next)| *next),
        };
        let Some((at, key)) = first else { return Ok(None) };
        // A run is in one state, and so in one range.
        if self.last.replace(key) == Some(key) {
            return Err(Damage::Misplaced.into());
        }
        if let Some((next, rows)) = self.ranges.get_mut(at) {
            match rows.next().transpose()? {
                Some(key) => *next = key,
                None => drop(self.ranges.swap_remove(at)),
            }
        }
        Ok(Some(key))
    }
}

impl Iterator for Merged {
    type Item = Result<RunKey, IndexError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step().transpose();
        if !matches!(step, Some(Ok(_))) {
            self.ranges.clear();
        }
        step
    }
}

impl<T> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("order", &self.order).finish_non_exhaustive()
    }
}
