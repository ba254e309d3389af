//! The newest runs of an agent that the catalog knows, kept once they were asked for.
//!
//! They are what is asked for most, again and again. A catalog never changes, so neither do they;
//! the next catalog starts without. What happened since is added by whoever asks.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::catalog::Catalog;
use super::values::RunSummary;
use crate::error::{Damage, Error, Place, Result};
use crate::index::RunFilter;
use crate::types::AgentId;

/// The longest pages that are kept: one of 20, and the run that tells that there is another page.
pub(crate) const LONGEST: usize = 32;

/// The most agents whose runs are kept, up to 8 KiB each.
const MOST: usize = 256;

/// The pages that were asked for, by agent.
#[derive(Debug, Default)]
pub(crate) struct NewestPages {
    pages: Mutex<HashMap<AgentId, Arc<Newest>>>,
}

/// The newest runs of one agent.
#[derive(Debug)]
pub(crate) struct Newest {
    /// Newest first.
    pub(crate) runs: Vec<RunSummary>,
    /// The agent has no others.
    pub(crate) all: bool,
}

impl Catalog {
    /// The newest runs of an agent, at least so many if there are, evicted ones included if their
    /// eviction is younger than the catalog.
    pub(crate) fn newest(&self, agent: &str, count: usize) -> Result<Arc<Newest>> {
        let pages = &self.newest_pages().pages;
        if let Some(newest) = pages.lock().get(agent)
            && (newest.all || newest.runs.len() >= count)
        {
            return Ok(Arc::clone(newest));
        }
        let filter = RunFilter::Agent(agent);
        let keys = self.ask(|catalog| catalog.runs_page(filter, None, count))?;
        let mut runs = Vec::with_capacity(keys.len());
        for &(_, run_no) in &keys {
            let row = self.ask(|catalog| catalog.row(run_no))?;
            let row = row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))?;
            runs.push(RunSummary::from_row(row));
        }
        let newest = Arc::new(Newest { runs, all: keys.len() < count });
        let mut pages = pages.lock();
        if pages.len() >= MOST {
            pages.clear();
        }
        pages.insert(AgentId::new(agent)?, Arc::clone(&newest));
        Ok(newest)
    }
}
