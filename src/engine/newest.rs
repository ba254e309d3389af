//! The newest runs of an agent, which are asked for most: what memory has, and what the catalog
//! has, which is kept once it was asked for. A catalog never changes; the next one starts without.

use std::sync::Arc;

use super::catalog::Catalog;
use super::core::Core;
use super::pages::RunPage;
use super::shared::Engine;
use super::values::RunSummary;
use crate::error::Result;
use crate::index::RunFilter;
use crate::types::{AgentId, RunNo};

/// The longest pages that are kept: one of 20, and the run that tells that there is another page.
const LONGEST: usize = 32;

/// The most agents whose runs are kept, up to 8 KiB each.
const MOST: usize = 256;

/// The newest runs of one agent.
#[derive(Debug)]
pub(crate) struct Newest {
    /// Newest first.
    runs: Vec<RunSummary>,
    /// The agent has no others.
    all: bool,
}

impl Catalog {
    /// The newest runs of an agent, at least so many if there are, evicted ones included if their
    /// eviction is younger than the catalog; if they were asked for before.
    fn newest_kept(&self, agent: &str, count: usize) -> Option<Arc<Newest>> {
        let pages = self.lookups().newest.lock();
        let newest = pages.get(agent)?;
        (newest.all || newest.runs.len() >= count).then(|| Arc::clone(newest))
    }

    /// The same, and keeps them.
    fn newest(&self, agent: &str, count: usize) -> Result<Arc<Newest>> {
        let filter = RunFilter::Agent(agent);
        let keys = self.ask(|catalog| catalog.runs_page(filter, None, count))?;
        let summary = |key: &(_, RunNo)| Ok(RunSummary::from_row(self.row(key.1)?));
        let runs = keys.iter().map(summary).collect::<Result<_>>()?;
        let newest = Arc::new(Newest { runs, all: keys.len() < count });
        let mut pages = self.lookups().newest.lock();
        if pages.len() >= MOST {
            pages.clear();
        }
        pages.insert(AgentId::new(agent)?, Arc::clone(&newest));
        Ok(newest)
    }
}

impl Engine {
    /// The first page of an agent's runs, if there is a short way to it. Pages of one run are asked
    /// for when agents are listed, once for each of them, so they are not worth keeping.
    pub(crate) fn newest_page(&self, agent: &str, limit: usize) -> Result<Option<RunPage>> {
        if !(1..LONGEST).contains(&limit) {
            return Ok(None);
        }
        let mut core = self.open_core()?;
        let newest = match core.catalog.newest_kept(agent, limit + 1) {
            Some(newest) => newest,
            None => {
                let catalog = Arc::clone(&core.catalog);
                drop(core);
                let newest = catalog.newest(agent, limit + 1)?;
                core = self.core.lock();
                if !Arc::ptr_eq(&catalog, &core.catalog) {
                    return Ok(None);
                }
                newest
            }
        };
        self.merge_newest(&core, agent, &newest, limit)
    }

    /// Merges the runs of an agent that are in memory and those that the catalog knows, if that
    /// goes without asking it for more. What both know comes from memory.
    fn merge_newest(
        &self,
        core: &Core,
        agent: &str,
        newest: &Newest,
        limit: usize,
    ) -> Result<Option<RunPage>> {
        let mut fresh = core.hot.newest_of(agent);
        let is_fresh = |run: &RunSummary| core.hot.get(run.number()).is_some();
        let (none_fresh, none_gone) = (fresh.is_none(), core.deleted.is_empty());
        let lives = |run: &&RunSummary| none_gone || !core.deleted.contains(&run.number());
        let mut settled = newest.runs.iter().filter(lives);
        let mut next_fresh = || fresh.as_mut().and_then(Iterator::next);
        let (mut in_memory, mut in_catalog) = (next_fresh(), settled.next());
        let mut runs = Vec::with_capacity(limit);
        loop {
            let from_memory = match (in_memory, in_catalog) {
                (Some(key), Some(run)) => *key >= run.key,
                (None, Some(_)) => false,
                (_, None) if !newest.all => return Ok(None),
                (Some(_), None) => true,
                (None, None) => return Ok(Some(RunPage::of(runs, false))),
            };
            if runs.len() == limit {
                return Ok(Some(RunPage::of(runs, true)));
            }
            match (in_memory, in_catalog) {
                (Some(key), _) if from_memory => {
                    self.push_summary(core, key.1, &mut runs)?;
                    // A run has the same place in both lists, or else there is no merging them.
                    if runs.last().is_none_or(|run| run.key != *key) {
                        return Ok(None);
                    }
                    if in_catalog.is_some_and(|run| run.key == *key) {
                        in_catalog = settled.next();
                    }
                    in_memory = next_fresh();
                }
                (_, Some(run)) if none_fresh || !is_fresh(run) => {
                    runs.push(run.clone());
                    in_catalog = settled.next();
                }
                _ => return Ok(None),
            }
        }
    }
}
