//! Listing runs and agents, without a scan of the log or of the whole index.
//!
//! The catalog answers for everything up to its position, memory for what changed since. A row that
//! both know comes from memory, which has the later part of the story.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::read::named::Detail;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::values::pages::{HeldRun, RunPage};
use crate::engine::values::summary::RunSummary;
use crate::error::Result;
use crate::gc::{Candidate, Inventory};
use crate::index::{self, IndexError, RowSummary, RunFilter};
use crate::types::{AgentId, RunId, RunNo, RunRef, RunStatus, Timestamp};

/// Rows fetched from the catalog at once.
const PAGE: usize = 64;

/// The longest list of the newest runs of an agent that is kept: a page of 20, and more. Those of
/// one run are asked for when agents are listed, once for each, so they are not worth keeping.
const NEWEST: usize = 32;

/// The place of a run in lists by time.
type RunKey = (Timestamp, RunNo);

/// What lists are made of, besides runs in memory: taken in one hold of the lock together with
/// those, since all of it changes when the lock is let go.
pub(crate) struct Moment {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) deleted: Arc<HashSet<RunNo>>,
    /// Runs that memory lists, at places of its own.
    only_in_memory: Arc<HashSet<RunNo>>,
}

impl Moment {
    pub(crate) fn of(state: &LogState) -> Self {
        Self {
            catalog: Arc::clone(&state.catalog),
            deleted: Arc::clone(&state.deleted),
            only_in_memory: state.active.lost_beginnings(),
        }
    }

    /// So many of what the catalog lists behind `from`: `ask` asks for so many keys behind one, and
    /// `show` says what is shown of a key, if anything is.
    pub(crate) fn listed<K: Clone, T>(
        &self,
        (mut from, limit): (Option<K>, usize),
        ask: impl Fn(&dyn index::Catalog, Option<&K>, usize) -> Result<Vec<K>, IndexError>,
        show: impl Fn(&K) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let (mut found, mut wanted) = (Vec::new(), limit.min(PAGE));
        while found.len() < limit {
            let page = self.catalog.ask(|index| ask(index, from.as_ref(), wanted))?;
            for key in &page {
                found.extend(show(key)?);
                if found.len() == limit {
                    return Ok(found);
                }
            }
            if page.len() < wanted {
                break;
            }
            // Some are not shown, and perhaps very many.
            (from, wanted) = (page.last().cloned(), PAGE);
        }
        Ok(found)
    }

    /// Whether lists show a run that the catalog lists, and for which memory does not answer.
    fn shows(&self, run_no: RunNo) -> bool {
        !self.deleted.contains(&run_no) && !self.only_in_memory.contains(&run_no)
    }

    /// What lists show of a run that the catalog lists, if the run lives.
    fn summary(&self, run_no: RunNo) -> Result<Option<RunSummary>> {
        if !self.shows(run_no) {
            return Ok(None);
        }
        Ok(Some(RunSummary::from_row(self.catalog.row(run_no)?)))
    }

    /// So many living runs that the catalog lists, newest first, strictly older than `before` and
    /// newer than `after`.
    fn runs(
        &self,
        filter: RunFilter<'_>,
        (before, after): (Option<RunKey>, Option<RunKey>),
        limit: usize,
    ) -> Result<Vec<RunSummary>> {
        let is_newer = |key: &RunKey| after.is_none_or(|after| *key > after);
        if let (RunFilter::Agent(agent), None, 2..=NEWEST) = (filter, before, limit) {
            let newest = self.catalog.newest(agent, limit)?;
            let lives = |run: &&RunSummary| self.shows(run.number());
            let newer = newest.runs.iter().take_while(|run| is_newer(&run.key));
            let living: Vec<_> = newer.filter(lives).take(limit).cloned().collect();
            let has_older = newest.runs.last().is_some_and(|oldest| !is_newer(&oldest.key));
            if newest.all || has_older || living.len() == limit {
                return Ok(living);
            }
        }
        self.listed(
            (before, limit),
            |index, from, wanted| {
                let mut page = index.runs_page(filter, from.copied(), wanted)?;
                page.retain(is_newer);
                Ok(page)
            },
            |key| self.summary(key.1),
        )
    }
}

/// All runs as of one moment.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) inventory: Inventory,
    agents: HashMap<String, AgentId>,
    pub(crate) runs: Vec<ListedRun>,
    /// The run ids, one behind the other.
    ids: String,
}

pub(crate) struct ListedRun {
    pub(crate) agent: AgentId,
    id: core::ops::Range<usize>,
    pub(crate) status: RunStatus,
    pub(crate) ended_at: Timestamp,
    pub(crate) held: bool,
}

impl Listed {
    fn add(&mut self, row: &RowSummary<'_>) {
        if row.document {
            return;
        }
        let agent = match self.agents.get(row.agent) {
            Some(agent) => agent.clone(),
            None => {
                // Ids in rows were checked when they were read.
                let Ok(agent) = AgentId::new(row.agent) else { return };
                self.agents.insert(row.agent.to_owned(), agent.clone());
                agent
            }
        };
        let start = self.ids.len();
        self.ids.push_str(row.run);
        let ended_at = row.ended_at.unwrap_or(row.last_at);
        self.inventory.push(
            &agent,
            Candidate {
                run_no: row.run_no,
                status: row.status,
                created_at: row.created_at,
                ended_at,
                bytes: row.stored,
                held: row.held,
            },
        );
        let id = start..self.ids.len();
        let (status, held) = (row.status, row.held);
        self.runs.push(ListedRun { agent, id, status, ended_at, held });
    }

    pub(crate) fn run_id(&self, run: &ListedRun) -> Result<RunId> {
        Ok(RunId::new(self.ids.get(run.id.clone()).unwrap_or_default())?)
    }
}

impl Reader {
    /// A page of runs, newest first, strictly older than `before`.
    pub(crate) fn page(
        &self,
        agent: Option<&str>,
        before: Option<RunKey>,
        limit: usize,
    ) -> Result<RunPage> {
        let wanted = limit.saturating_add(1);
        let (moment, mut found) = {
            let state = self.open()?;
            let numbers = state.active.newest(agent, before, wanted);
            (Moment::of(&state), Self::summaries(&state, numbers))
        };
        let filter = agent.map_or(RunFilter::All, RunFilter::Agent);
        // Where memory alone fills the page, older runs are not asked for.
        let oldest = found.iter().map(|run| run.key).min();
        let after = oldest.filter(|_| found.len() > limit);
        let mut runs = moment.runs(filter, (before, after), wanted)?;
        if runs.is_empty() {
            runs = found;
        } else if !found.is_empty() {
            // Of those that memory has and did not list, none is among the first.
            let in_memory: HashSet<RunNo> = found.iter().map(RunSummary::number).collect();
            runs.retain(|run| !in_memory.contains(&run.number()));
            runs.append(&mut found);
            runs.sort_unstable_by_key(|run| core::cmp::Reverse(run.key));
        }
        Ok(RunPage::new(runs, limit))
    }

    /// What lists show of runs that are in memory.
    fn summaries(state: &LogState, numbers: Vec<RunNo>) -> Vec<RunSummary> {
        let mut found = Vec::with_capacity(numbers.len());
        for run_no in numbers {
            match state.tail.builder.run(run_no) {
                // A run that begins here has nothing in older segments.
                Some(built) if built.entry.created_at.is_some() => {
                    found.push(RunSummary::from_entry(&built.entry));
                }
                _ => found.extend(state.row_in_memory(run_no).map(RunSummary::from_row)),
            }
        }
        found
    }

    /// Summaries of runs in progress above `after`, by number.
    pub(crate) fn in_progress_page(
        &self,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunSummary>> {
        let (moment, mut found, mut in_memory) = {
            let state = self.open()?;
            let summaries = Self::summaries(&state, state.active.in_progress(after, limit));
            (Moment::of(&state), summaries, state.active.run_numbers())
        };
        in_memory.sort_unstable();
        found.extend(moment.listed(
            (after, limit),
            |index, from, wanted| index.in_progress_page(from.copied(), wanted),
            // Memory knows of those that it has whether they have ended since.
            |&number| match in_memory.binary_search(&number) {
                Ok(_) => Ok(None),
                Err(_) => moment.summary(number),
            },
        )?);
        found.sort_unstable_by_key(RunSummary::number);
        found.truncate(limit);
        Ok(found)
    }

    /// Agents above `after`, ascending.
    pub(crate) fn agents_page(
        &self,
        after: Option<&AgentId>,
        limit: usize,
    ) -> Result<Vec<AgentId>> {
        let (moment, mut found) = {
            let state = self.open()?;
            (Moment::of(&state), state.active.agents(after, limit))
        };
        found.extend(moment.listed(
            (after.cloned(), limit),
            |index, from, wanted| index.agents_page(from.map(AgentId::as_str), wanted),
            // An agent whose runs were all deleted since has none left to show.
            |agent| {
                let runs = moment.runs(RunFilter::Agent(agent.as_str()), (None, None), 1)?;
                Ok((!runs.is_empty()).then(|| agent.clone()))
            },
        )?);
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }

    /// All living runs as of now, and the catalog that knows most of them.
    pub(crate) fn list_all(&self) -> Result<(Listed, Arc<Catalog>)> {
        let (catalog, deleted, active) = {
            let state = self.open()?;
            let mut numbers = state.active.run_numbers();
            numbers.sort_unstable();
            let rows = numbers.into_iter().filter_map(|number| state.row_in_memory(number));
            let rows: Vec<_> = rows.collect();
            (Arc::clone(&state.catalog), Arc::clone(&state.deleted), rows)
        };
        let in_memory: HashSet<RunNo> = active.iter().map(|row| row.run_no).collect();
        let listed = catalog.ask(|catalog| {
            let mut listed = Listed::default();
            catalog.each_summary(&mut |row| {
                if !in_memory.contains(&row.run_no) && !deleted.contains(&row.run_no) {
                    listed.add(&row);
                }
            })?;
            Ok(listed)
        });
        let mut listed = listed?;
        for row in &active {
            listed.add(&row.summary());
        }
        Ok((listed, catalog))
    }

    /// All runs that are held.
    pub(crate) fn held_runs(&self) -> Result<Vec<HeldRun>> {
        let (listed, _) = self.list_all()?;
        let mut held = Vec::new();
        for run in listed.runs.iter().filter(|run| run.held) {
            let id = listed.run_id(run)?;
            let named = self.named(RunRef::from((run.agent.as_str(), id.as_str())), Detail::Row)?;
            let Ok(run_no) = named.resolve() else { continue };
            let row = named.row(run_no)?;
            if row.is_held() {
                let frame = named.frame(row.hold.map(|hold| hold.at))?;
                let (since, reason) = frame
                    .map_or((Timestamp(0), String::new()), |(header, reason)| {
                        (header.at, String::from_utf8_lossy(&reason).into_owned())
                    });
                held.push(HeldRun { agent: run.agent.clone(), run: id, since, reason });
            }
        }
        // Memory and catalog, and the two kinds of catalog, have orders of their own.
        held.sort_by(|one, two| (&one.agent, &one.run).cmp(&(&two.agent, &two.run)));
        Ok(held)
    }
}
