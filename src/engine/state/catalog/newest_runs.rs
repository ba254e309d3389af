//! The newest runs of agents, the most common list: a cache of answers of one catalog. A catalog
//! never changes, so they stay valid; the next one starts with an empty cache.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::engine::state::catalog::Catalog;
use crate::engine::values::summary::RunSummary;
use crate::error::{Damage, Error, Place, Result};
use crate::index::{RunKey, RunList, RunRow};
use crate::types::{AgentId, RunNo};

/// The most agents whose newest runs are kept, up to 8 KiB each.
const AGENTS: usize = 256;

/// The cached answers.
#[derive(Debug, Default)]
pub(crate) struct NewestRuns(Mutex<HashMap<AgentId, Arc<Newest>>>);

impl NewestRuns {
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
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

impl Catalog {
    /// The newest runs of an agent: at least `count` if it has that many. Evicted ones are included
    /// if the catalog does not cover their eviction.
    pub(crate) fn newest(&self, agent: &str, count: usize) -> Result<Arc<Newest>> {
        if let Some(newest) = self.newest_runs.0.lock().get(agent)
            && (newest.all || newest.runs.len() >= count)
        {
            return Ok(Arc::clone(newest));
        }
        let (list, had_failed) = (RunList::of_agent(agent), self.index_failure());
        let rows = self.ask(|catalog| catalog.rows_page(&list, count, &|_| true))?;
        let all = rows.len() < count;
        let runs = rows.into_iter().filter_map(|(_, row)| row.map(RunSummary::from_row)).collect();
        let newest = Arc::new(Newest { runs, all });
        let mut kept = self.newest_runs.0.lock();
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
        let kept = self.newest_runs.0.lock();
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
}
