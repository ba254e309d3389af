//! What the index said at one moment: lookups and lists without a transaction of their own.
//!
//! A snapshot holds the tables of one read transaction, opened, so that a lookup is a descent of
//! a B-tree and nothing else. It holds back the pages of its moment, no more; the engine replaces
//! its snapshot after each apply.
//!
//! Every answer is verified by the checksum of its value. What this cannot see is an entry that
//! is missing, or an old page in the place of a newer one. A lookup that reads the row and the
//! spans compares them ([`RunRow::is_covered_by`]); for the rest there is `check`.

use core::fmt;
use core::ops::{Bound, RangeBounds};
use std::sync::Arc;

use redb::{Range, ReadTransaction, ReadableTable, ReadableTableMetadata};

use super::catalog::{Catalog, RunFilter};
use super::fence::{Fenced, IndexError};
use super::key;
use super::key::{Bytes, Table};
use super::merge::Applied;
use super::row::{RowSummary, RunRow, RunState, Span};
use super::store::META_KEY;
use super::value::{self, Meta};
use crate::error::Damage;
use crate::format::codec::Decoded;
use crate::types::{AgentId, RunNo, RunRef, SegmentId, Timestamp};

/// What the index said at one moment. Clones share it.
#[derive(Clone)]
pub(crate) struct IndexSnapshot {
    tables: Arc<Tables>,
}

struct Tables {
    meta: Meta,
    run_ids: TableView,
    runs: TableView,
    by_agent: TableView,
    by_time: TableView,
    in_progress: TableView,
    agents: TableView,
    spans: TableView,
    documents: TableView,
}

impl IndexSnapshot {
    pub(super) fn new(transaction: &ReadTransaction) -> Result<Self, IndexError> {
        let meta = TableView::open(transaction, Table::Meta)?
            .find(META_KEY, value::read_meta)?
            .ok_or(Damage::Missing)?;
        let tables = Tables {
            meta,
            run_ids: TableView::open(transaction, Table::RunIds)?,
            runs: TableView::open(transaction, Table::Runs)?,
            by_agent: TableView::open(transaction, Table::ByAgent)?,
            by_time: TableView::open(transaction, Table::ByTime)?,
            in_progress: TableView::open(transaction, Table::InProgress)?,
            agents: TableView::open(transaction, Table::Agents)?,
            spans: TableView::open(transaction, Table::Spans)?,
            documents: TableView::open(transaction, Table::Documents)?,
        };
        Ok(Self { tables: Arc::new(tables) })
    }

    pub(super) fn meta(&self) -> Meta {
        self.tables.meta
    }

    pub(super) fn table(&self, table: Table) -> Option<&TableView> {
        Some(match table {
            Table::RunIds => &self.tables.run_ids,
            Table::Runs => &self.tables.runs,
            Table::ByAgent => &self.tables.by_agent,
            Table::ByTime => &self.tables.by_time,
            Table::InProgress => &self.tables.in_progress,
            Table::Agents => &self.tables.agents,
            Table::Spans => &self.tables.spans,
            Table::Documents => &self.tables.documents,
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

    /// The spans in the segments with the start and the end of a run: most runs have no other,
    /// and an entry costs one descent where a range costs two.
    fn spans_at_ends(&self, row: &RunRow) -> Result<Vec<Span>, IndexError> {
        let (Some(start), Some(end)) = (row.start, row.end) else { return Ok(Vec::new()) };
        let mut segments = vec![start.segment, end.segment];
        segments.dedup();
        let span =
            |segment| self.tables.spans.find(&key::span_key(row.run_no, segment), value::read_span);
        segments.into_iter().filter_map(|segment| span(segment).transpose()).collect()
    }

    /// The runs of an agent, newest first, strictly older than `before`.
    pub(crate) fn runs_by_agent(
        &self,
        agent: &str,
        before: Option<(Timestamp, RunNo)>,
    ) -> Result<Rows<(Timestamp, RunNo)>, IndexError> {
        let first = key::agent_key(agent, Timestamp(i64::MIN), RunNo(0));
        let end = match before {
            Some((at, run_no)) => Bound::Excluded(key::agent_key(agent, at, run_no)),
            None => Bound::Included(key::agent_key(agent, Timestamp(i64::MAX), RunNo(u64::MAX))),
        };
        self.tables.by_agent.rows(Bound::Included(first), end, Order::Descending, |key, value| {
            value::read_mark(Table::ByAgent, key, value)?;
            key::read_agent_key(key)
        })
    }

    /// All runs, newest first, strictly older than `before`.
    pub(crate) fn runs_by_time(
        &self,
        before: Option<(Timestamp, RunNo)>,
    ) -> Result<Rows<(Timestamp, RunNo)>, IndexError> {
        let end = match before {
            Some((at, run_no)) => Bound::Excluded(key::time_key(at, run_no).to_vec()),
            None => Bound::Unbounded,
        };
        self.tables.by_time.rows(Bound::Unbounded, end, Order::Descending, |key, value| {
            value::read_mark(Table::ByTime, key, value)?;
            key::read_time_key(key)
        })
    }

    /// The runs that have not ended, by number, strictly above `after`.
    pub(crate) fn in_progress(&self, after: Option<RunNo>) -> Result<Rows<RunNo>, IndexError> {
        let start = match after {
            Some(run_no) => Bound::Excluded(key::run_key(run_no).to_vec()),
            None => Bound::Unbounded,
        };
        let order = Order::Ascending;
        self.tables.in_progress.rows(start, Bound::Unbounded, order, |key, value| {
            value::read_mark(Table::InProgress, key, value)?;
            key::read_run_key(key)
        })
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
    fn run_numbers(&self, run: RunRef<'_>) -> Result<Vec<RunNo>, IndexError> {
        let (start, end) = key::id_range(run.run(), run.agent());
        let (start, end) = (Bound::Included(start), Bound::Excluded(end));
        let read = |key: &[u8], value: &[u8]| {
            value::read_mark(Table::RunIds, key, value)?;
            key::read_id_key(key)
        };
        self.tables.run_ids.rows(start, end, Order::Ascending, read)?.collect()
    }

    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError> {
        self.tables.runs.find(&key::run_key(run_no), value::read_row)
    }

    fn spans(&self, run_no: RunNo) -> Result<Vec<Span>, IndexError> {
        let start = Bound::Included(key::span_key(run_no, SegmentId(0)).to_vec());
        let end = Bound::Included(key::span_key(run_no, SegmentId(u32::MAX)).to_vec());
        let rows = self.tables.spans.rows(start, end, Order::Ascending, value::read_span)?;
        let mut spans = rows.collect::<Result<Vec<_>, _>>()?;
        spans.sort_by_key(Span::order);
        Ok(spans)
    }

    fn run_state(&self, run_no: RunNo) -> Result<RunState, IndexError> {
        let row = self.row(run_no)?;
        let mut spans = match &row {
            Some(row) => self.spans_at_ends(row)?,
            None => Vec::new(),
        };
        if !row.as_ref().is_some_and(|row| row.is_covered_by(&spans)) {
            spans = self.spans(run_no)?;
        }
        spans.sort_by_key(Span::order);
        Ok(RunState { row, spans })
    }

    fn runs_page(
        &self,
        filter: RunFilter<'_>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RunNo)>, IndexError> {
        let rows = match filter {
            RunFilter::All => self.runs_by_time(before)?,
            RunFilter::Agent(agent) => self.runs_by_agent(agent, before)?,
        };
        rows.take(limit).collect()
    }

    fn in_progress_page(
        &self,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunNo>, IndexError> {
        self.in_progress(after)?.take(limit).collect()
    }

    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError> {
        self.agents(after)?.take(limit).map(|row| Ok(row?.0)).collect()
    }

    fn document_numbers(&self, namespace: &str, key: &str) -> Result<Vec<RunNo>, IndexError> {
        let (start, end) = key::id_range(namespace, Some(key));
        let (start, end) = (Bound::Included(start), Bound::Excluded(end));
        let rows = self.tables.documents.rows(start, end, Order::Ascending, read_document)?;
        rows.map(|row| Ok(row?.1)).collect()
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

fn read_document(key: &[u8], value: &[u8]) -> Decoded<(String, RunNo)> {
    value::read_mark(Table::Documents, key, value)?;
    key::read_document_key(key)
}

/// Reads an entry of a table.
type ReadEntry<T> = fn(&[u8], &[u8]) -> Decoded<T>;

/// Which way a range is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

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

    /// How many entries the table has, as it says itself.
    pub(super) fn len(&self) -> Result<u64, IndexError> {
        self.0.call(|table| Ok(table.len()?))
    }

    /// Calls `visit` for each entry, ascending, without copies. Keys must ascend: damaged branch
    /// pages can lead in circles.
    fn each(&self, mut visit: impl FnMut(&[u8], &[u8]) -> Decoded<()>) -> Result<(), IndexError> {
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
/// Damaged branch pages can lead to entries of elsewhere, or in circles. So each key must be
/// within the bounds and behind the one before it.
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

impl<T> fmt::Debug for Rows<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("order", &self.order).finish_non_exhaustive()
    }
}
