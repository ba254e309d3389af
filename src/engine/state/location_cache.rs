//! What the catalog was asked for, kept: a catalog never changes, and the next one starts without.
//!
//! Of ids everything is kept ([`Found`]), of agents the newest runs ([`Newest`]).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::engine::state::catalog::Catalog;
use crate::engine::state::run_slice::{Opened, RunSlice};
use crate::engine::values::summary::RunSummary;
use crate::error::{Damage, Error, Place, Result};
use crate::index::{RunFilter, RunRow, RunState, Span};
use crate::types::{AgentId, RunNo, RunRef};

/// How many times as many more ids are asked for before others take their place.
const REFUSED: usize = 8;

/// The most agents of which the newest runs are kept, up to 8 KiB each.
const AGENTS: usize = 256;

/// What was looked up.
#[derive(Debug, Default)]
pub(crate) struct LocationCache {
    found: Mutex<Kept>,
    newest: Mutex<HashMap<AgentId, Arc<Newest>>>,
}

/// The ids of which everything is kept.
#[derive(Debug, Default)]
struct Kept {
    found: HashMap<Box<str>, Arc<Found>>,
    /// How many were not kept since there was no room.
    refused: usize,
}

impl Kept {
    /// Keeps what was found of so many ids. While it is full it takes nothing for a while, and then
    /// begins anew: keeping each of too many ids for a moment would be work for nothing.
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

/// The newest runs of an agent, which are asked for most.
#[derive(Debug)]
pub(crate) struct Newest {
    /// Newest first.
    pub(crate) runs: Vec<RunSummary>,
    /// The agent has no others.
    pub(crate) all: bool,
}

/// What the catalog knows of one run id.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The runs with this id, evicted ones included if their eviction is younger than the catalog.
    pub(crate) numbers: Vec<RunNo>,
    row: OnceLock<Arc<RunRow>>,
    opened: OnceLock<Arc<Opened>>,
}

impl Catalog {
    /// What is kept of a run id. Reads nothing.
    pub(crate) fn known(&self, run: &str) -> Option<Arc<Found>> {
        self.location_cache().found.lock().found.get(run).cloned()
    }

    /// What the catalog knows of a run id; at most so many are kept. That it knows nothing is kept
    /// only of a run that memory has: ids that never were would take the place of others.
    pub(crate) fn find(&self, run: &str, is_in_memory: bool, most: usize) -> Result<Arc<Found>> {
        if let Some(found) = self.known(run) {
            return Ok(found);
        }
        let numbers = self.ask(|catalog| catalog.run_numbers(RunRef::from(run)))?;
        let found = Arc::new(Found { numbers, ..Found::default() });
        if is_in_memory || !found.numbers.is_empty() {
            self.location_cache().found.lock().insert(run, &found, most);
        }
        Ok(found)
    }

    /// The newest runs of an agent, at least so many if there are, evicted ones included if their
    /// eviction is younger than the catalog.
    pub(crate) fn newest(&self, agent: &str, count: usize) -> Result<Arc<Newest>> {
        if let Some(newest) = self.location_cache().newest.lock().get(agent)
            && (newest.all || newest.runs.len() >= count)
        {
            return Ok(Arc::clone(newest));
        }
        let filter = RunFilter::Agent(agent);
        let keys = self.ask(|catalog| catalog.runs_page(filter, None, count))?;
        let summary = |key: &(_, RunNo)| Ok(RunSummary::from_row(self.row(key.1)?));
        let runs = keys.iter().map(summary).collect::<Result<_>>()?;
        let newest = Arc::new(Newest { runs, all: keys.len() < count });
        let mut kept = self.location_cache().newest.lock();
        if kept.len() >= AGENTS {
            kept.clear();
        }
        kept.insert(AgentId::new(agent)?, Arc::clone(&newest));
        Ok(newest)
    }

    /// The row of a run that the catalog listed.
    pub(crate) fn row(&self, run_no: RunNo) -> Result<RunRow> {
        let row = self.ask(|catalog| catalog.row(run_no))?;
        row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
    }

    /// What sealed segments have of a run, opened.
    pub(crate) fn parts_of(&self, run_no: RunNo, spans: &[Span]) -> Result<Arc<[RunSlice]>> {
        let open = |span: &Span| {
            let place = Place::Directory { segment: span.segment };
            let segment = self.segment(span.segment);
            let segment = segment.ok_or_else(|| Error::corrupt(place, Damage::Missing))?;
            let mut part = RunSlice::sealed(segment, span.slot, run_no)?;
            part.list();
            Ok(part)
        };
        spans.iter().map(open).collect()
    }
}

impl Found {
    /// The one run with the id, if it is one.
    pub(crate) fn only(&self) -> Option<RunNo> {
        match self.numbers.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
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

    /// What sealed segments have of a run with this id, if the catalog knows it.
    pub(crate) fn open(&self, catalog: &Catalog, run_no: RunNo) -> Result<Option<Arc<Opened>>> {
        let is_only = self.only() == Some(run_no);
        match self.opened.get() {
            Some(opened) if is_only => return Ok(Some(Arc::clone(opened))),
            _ if !self.numbers.contains(&run_no) => return Ok(None),
            _ => {}
        }
        let RunState { row, spans } = catalog.run_state(run_no)?;
        let Some(row) = row else { return Ok(None) };
        let parts = catalog.parts_of(run_no, &spans)?;
        let opened = Arc::new(Opened { agent: row.agent.clone(), run: row.run.clone(), parts });
        if is_only {
            self.row.get_or_init(|| Arc::new(row));
            return Ok(Some(Arc::clone(self.opened.get_or_init(|| opened))));
        }
        Ok(Some(opened))
    }
}
