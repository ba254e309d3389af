//! A cache of answers of one catalog. A catalog never changes, so entries stay valid; the next
//! catalog starts with an empty cache.
//!
//! Of an id it keeps all that is known ([`Found`]), of an agent the newest runs ([`Newest`]).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::engine::state::catalog::Catalog;
use crate::engine::state::run_slice::{Opened, RunSlice};
use crate::engine::values::summary::RunSummary;
use crate::error::{Damage, Error, Place, Result};
use crate::index::{RunKey, RunList, RunRow, RunState, Span};
use crate::types::{AgentId, RunNo, RunRef};

/// A full cache is emptied after this many times its capacity of other ids were asked for.
const REFUSED: usize = 8;

/// The most agents whose newest runs are kept, up to 8 KiB each.
const AGENTS: usize = 256;

/// The cached answers.
#[derive(Debug, Default)]
pub(crate) struct LocationCache {
    found: Mutex<Kept>,
    newest: Mutex<HashMap<AgentId, Arc<Newest>>>,
}

/// The cached ids.
#[derive(Debug, Default)]
struct Kept {
    found: HashMap<Box<str>, Arc<Found>>,
    /// How many ids were not kept because the cache was full.
    refused: usize,
}

impl Kept {
    /// Keeps an answer, for at most `most` ids. A full cache first refuses new ids for a while and
    /// is then emptied: replacing entries at once would be useless work if too many ids are in use.
    fn insert(&mut self, run: &str, found: &Arc<Found>, most: usize) {
        if self.found.len() >= most {
            self.refused += 1;
            if self.refused < REFUSED * most || most == 0 {
                return;
            }
            *self = Self::default();
        }
        self.found.insert(run.into(), Arc::clone(found));
    }
}

/// The newest runs of an agent, the most common question.
#[derive(Debug)]
pub(crate) struct Newest {
    /// Newest first.
    pub(crate) runs: Vec<RunSummary>,
    /// Whether the agent has no other runs.
    pub(crate) all: bool,
}

/// What the catalog knows about one run id.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The runs with this id, evicted ones included if the catalog does not cover that.
    pub(crate) numbers: Vec<RunNo>,
    row: OnceLock<Arc<RunRow>>,
    opened: OnceLock<Arc<Opened>>,
}

impl LocationCache {
    pub(crate) fn clear(&self) {
        *self.found.lock() = Kept::default();
        self.newest.lock().clear();
    }
}

impl Catalog {
    /// The cached answer for a run id. Reads nothing.
    pub(crate) fn known(&self, run: &str) -> Option<Arc<Found>> {
        self.location_cache().found.lock().found.get(run).cloned()
    }

    /// What the catalog knows about a run id; at most `most` answers are kept. An answer without
    /// runs is kept only for a run in memory: otherwise ids that never existed would fill the
    /// cache.
    pub(crate) fn find(&self, run: &str, is_in_memory: bool, most: usize) -> Result<Arc<Found>> {
        if let Some(found) = self.known(run) {
            return Ok(found);
        }
        let had_failed = self.index_failure();
        let numbers = self.ask(|catalog| catalog.run_numbers(RunRef::from(run)))?;
        let found = Arc::new(Found { numbers, ..Found::default() });
        if is_in_memory || !found.numbers.is_empty() {
            let mut kept = self.location_cache().found.lock();
            // What an index said that failed meanwhile is not kept: the cache is emptied behind
            // the failure, and perhaps was.
            if self.index_failure() == had_failed {
                kept.insert(run, &found, most);
            }
        }
        Ok(found)
    }

    /// The newest runs of an agent: at least `count` if it has that many. Evicted ones are included
    /// if the catalog does not cover their eviction.
    pub(crate) fn newest(&self, agent: &str, count: usize) -> Result<Arc<Newest>> {
        if let Some(newest) = self.location_cache().newest.lock().get(agent)
            && (newest.all || newest.runs.len() >= count)
        {
            return Ok(Arc::clone(newest));
        }
        let (list, had_failed) = (RunList::of_agent(agent), self.index_failure());
        let rows = self.ask(|catalog| catalog.rows_page(&list, count, &|_| true))?;
        let all = rows.len() < count;
        let runs = rows.into_iter().filter_map(|(_, row)| row.map(RunSummary::from_row)).collect();
        let newest = Arc::new(Newest { runs, all });
        let mut kept = self.location_cache().newest.lock();
        if kept.len() >= AGENTS {
            kept.clear();
        }
        if self.index_failure() == had_failed {
            kept.insert(AgentId::new(agent)?, Arc::clone(&newest));
        }
        Ok(newest)
    }

    /// Whether it is known, without reading, that all runs of an agent have smaller keys.
    pub(crate) fn is_known_to_have_older(&self, agent: &str, key: RunKey) -> bool {
        let kept = self.location_cache().newest.lock();
        kept.get(agent).is_some_and(|newest| match newest.runs.first() {
            Some(first) => first.key() < key,
            None => newest.all,
        })
    }

    /// The row of a run that the catalog listed. An index that has none is not asked again.
    pub(crate) fn row(&self, run_no: RunNo) -> Result<RunRow> {
        let mut row = self.ask(|catalog| catalog.row(run_no))?;
        if row.is_none() && self.doubt_index() {
            row = self.ask(|catalog| catalog.row(run_no))?;
        }
        row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
    }

    /// The row of a run and its slices in sealed segments.
    pub(crate) fn row_and_parts(&self, run_no: RunNo) -> Result<(Option<RunRow>, Arc<[RunSlice]>)> {
        let RunState { row, spans } = self.run_state(run_no)?;
        match self.parts_of(run_no, &spans) {
            Err(_) if self.doubts_places(run_no, &spans) => self.row_and_parts(run_no),
            parts => Ok((row, parts?)),
        }
    }

    /// Stops asking an index that has a run where no directory lists it: another program changed
    /// one of the two. Answers whether it did.
    pub(crate) fn doubts_places(&self, run_no: RunNo, spans: &[Span]) -> bool {
        let is_there = |span: &Span| {
            let Some(segment) = self.segment(span.segment) else { return false };
            let Ok(directory) = segment.directory() else { return true };
            // A damaged entry is no other run.
            let found = directory.run_no(span.slot);
            found.map_or(span.slot < directory.run_count(), |found| found == run_no)
        };
        !spans.iter().all(is_there) && self.doubt_index()
    }

    /// The run slices of a run in sealed segments.
    pub(crate) fn parts_of(&self, run_no: RunNo, spans: &[Span]) -> Result<Arc<[RunSlice]>> {
        let mut parts = Vec::with_capacity(spans.len());
        for span in spans {
            let place = Place::Directory { segment: span.segment };
            let segment = self.segment(span.segment);
            let segment = segment.ok_or_else(|| Error::corrupt(place, Damage::Missing))?;
            RunSlice::add_sealed(&mut parts, segment, span.slot, run_no)?;
        }
        RunSlice::sort(&mut parts);
        Ok(parts.into())
    }
}

impl Found {
    /// The run with the id, if there is exactly one.
    pub(crate) fn only(&self) -> Option<RunNo> {
        match self.numbers.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// The only run with this id, if it was opened before.
    pub(crate) fn known_opened(&self) -> Option<&Arc<Opened>> {
        self.opened.get()
    }

    /// The row of the only run with this id, if it was read before.
    pub(crate) fn known_row(&self) -> Option<&RunRow> {
        self.row.get().map(Arc::as_ref)
    }

    /// The row of a run with this id.
    pub(crate) fn row(&self, catalog: &Catalog, run_no: RunNo) -> Result<Arc<RunRow>> {
        if self.only() != Some(run_no) {
            return catalog.row(run_no).map(Arc::new);
        }
        if let Some(row) = self.row.get() {
            return Ok(Arc::clone(row));
        }
        let row = Arc::new(catalog.row(run_no)?);
        Ok(Arc::clone(self.row.get_or_init(|| row)))
    }

    /// The run slices of a run with this id, if the catalog knows it.
    pub(crate) fn open(&self, catalog: &Catalog, run_no: RunNo) -> Result<Option<Arc<Opened>>> {
        let is_only = self.only() == Some(run_no);
        match self.opened.get() {
            Some(opened) if is_only => return Ok(Some(Arc::clone(opened))),
            _ if !self.numbers.contains(&run_no) => return Ok(None),
            _ => {}
        }
        let (row, parts) = catalog.row_and_parts(run_no)?;
        let Some(row) = row else { return Ok(None) };
        let opened = Arc::new(Opened { agent: row.agent.clone(), run: row.run.clone(), parts });
        if is_only {
            self.row.get_or_init(|| Arc::new(row));
            return Ok(Some(Arc::clone(self.opened.get_or_init(|| opened))));
        }
        Ok(Some(opened))
    }
}
