//! Listing runs and agents, without a scan of the log or of the whole index.
//!
//! The catalog answers for everything up to its position, memory for later changes. A run that both
//! know is listed from memory, which is newer.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::engine::read::listed::Listed;
use crate::engine::read::named::Detail;
use crate::engine::read::{Moment, Reader};
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::values::pages::{HeldRun, RunPage};
use crate::engine::values::summary::RunSummary;
use crate::engine::values::usage::{AgentUsage, Taken, Usage};
use crate::error::{Error, Result};
use crate::format::segments::run_set::RunSet;
use crate::index::{self, IndexError, RowSummary, RunKey, RunList, RunRow};
use crate::types::{AgentId, RunNo, RunRef, Timestamp};

/// How many rows are fetched from the catalog at once.
const PAGE: usize = 64;

/// The longest list of an agent's newest runs that is cached: a page of 20, and more. Lists of one
/// run serve to list agents and are needed once each, so they are not cached.
const NEWEST: usize = 32;

impl Moment {
    /// At most `limit` results for the keys that the catalog lists after `from`. `ask` returns a
    /// number of keys after a key; `show` returns the result for a key, or `None` to skip it.
    pub(crate) fn listed<K: Clone, T>(
        &self,
        (mut from, limit): (Option<K>, usize),
        ask: impl Fn(&dyn index::Catalog, Option<&K>, usize) -> Result<Vec<K>, IndexError>,
        show: impl Fn(K) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let (mut found, mut wanted) = (Vec::new(), limit.min(PAGE));
        while found.len() < limit {
            let page = self.catalog.ask(|index| ask(index, from.as_ref(), wanted))?;
            let is_last = page.len() < wanted;
            // Some are perhaps skipped, very many even.
            (from, wanted) = (page.last().cloned(), PAGE);
            for key in page {
                found.extend(show(key)?);
                if found.len() == limit {
                    return Ok(found);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    /// Whether lists show a run of the catalog.
    fn shows(&self, run_no: RunNo) -> bool {
        !self.deleted.contains(run_no)
    }

    /// Whether lists show any run of an agent from the catalog.
    fn has_run_of(&self, agent: &str) -> Result<bool> {
        self.catalog.ask(|index| index.has_run_of(agent, &|run_no| self.shows(run_no)))
    }

    /// At most `limit` living runs of the catalog's list that are not in `in_memory` (ascending).
    fn runs(
        &self,
        list: &RunList<'_>,
        in_memory: &[RunNo],
        limit: usize,
    ) -> Result<Vec<RunSummary>> {
        type Row = (RunKey, Option<RunRow>);
        if list.is_empty() {
            return Ok(Vec::new());
        }
        if let (Some(agent), 2..=NEWEST) = (list.is_newest_of(), limit) {
            let newest = self.catalog.newest(agent, limit)?;
            let is_newer = |run: &&RunSummary| run.key() >= list.keys.0;
            let lives = |run: &&RunSummary| self.shows(run.number());
            let newer = newest.runs.iter().take_while(is_newer);
            let living: Vec<_> = newer.filter(lives).take(limit).cloned().collect();
            let has_older = newest.runs.last().is_some_and(|oldest| !is_newer(&oldest));
            if newest.all || has_older || living.len() == limit {
                return Ok(living);
            }
        }
        let is_wanted = |number| in_memory.binary_search(&number).is_err() && self.shows(number);
        self.listed(
            (None, limit),
            |index, from, wanted| {
                let rest = from.map_or(*list, |(from, _): &Row| list.behind(*from));
                index.rows_page(&rest, wanted, &is_wanted)
            },
            |(_, row): Row| Ok(row.map(RunSummary::from_row)),
        )
    }
}

/// Sums over rows.
#[derive(Default)]
struct Sums {
    agents: BTreeMap<String, Taken>,
    documents: Taken,
}

impl Sums {
    fn add(&mut self, row: &RowSummary<'_>) {
        if row.document {
            self.documents.add(row.bytes, row.stored);
            return;
        }
        if let Some(taken) = self.agents.get_mut(row.agent) {
            taken.add(row.bytes, row.stored);
            return;
        }
        let mut taken = Taken::default();
        taken.add(row.bytes, row.stored);
        self.agents.insert(row.agent.to_owned(), taken);
    }
}

impl Reader {
    /// The first runs of a list, up to `limit`, and whether there are more.
    pub(crate) fn page(&self, list: &RunList<'_>, limit: usize) -> Result<RunPage> {
        let wanted = limit.saturating_add(1);
        let (moment, mut found, behind, mut in_memory) = {
            let state = self.open()?;
            let keys = state.active.listed(list, wanted, &state.tail.builder);
            state.active.check_read()?;
            let (found, behind) = Self::first_in_memory(&state, &keys, limit)?;
            if let (Some(agent), Some(key)) = (list.is_newest_of(), behind)
                && state.catalog.is_known_to_have_older(agent, key)
            {
                return Ok(RunPage::new(found, true));
            }
            // For these runs memory has the current state.
            let others = if list.is_of_states() { state.active.run_numbers() } else { Vec::new() };
            (Moment::of(&state), found, behind, others)
        };
        in_memory.sort_unstable();
        // If memory alone fills the page, the runs after it are not needed.
        let rest = behind.map_or(*list, |key| list.in_front_of(key));
        let mut runs = moment.runs(&rest, &in_memory, wanted)?;
        if runs.is_empty() {
            runs = found;
        } else if !found.is_empty() {
            // Runs in memory that it did not list are not among the first ones.
            let in_memory: HashSet<RunNo> = found.iter().map(RunSummary::number).collect();
            runs.retain(|run| !in_memory.contains(&run.number()));
            runs.append(&mut found);
            list.sort(&mut runs, RunSummary::key);
        }
        let more = behind.is_some() || runs.len() > limit;
        runs.truncate(limit);
        Ok(RunPage::new(runs, more))
    }

    /// The first runs of a list in memory: all of these keys, or `limit` of them and the key of the
    /// one behind.
    fn first_in_memory(
        state: &LogState,
        keys: &[RunKey],
        limit: usize,
    ) -> Result<(Vec<RunSummary>, Option<RunKey>)> {
        let (first, rest) = keys.split_at(limit.min(keys.len()));
        let mut found = Self::summaries(state, first)?;
        match rest.first() {
            Some(behind) if found.len() == limit => Ok((found, Some(*behind))),
            _ => {
                found.extend(Self::summaries(state, rest)?);
                Ok((found, None))
            }
        }
    }

    /// The list entries of runs in memory.
    fn summaries(state: &LogState, keys: &[RunKey]) -> Result<Vec<RunSummary>> {
        let mut found = Vec::with_capacity(keys.len());
        for &(_, run_no) in keys {
            match state.tail.builder.run(run_no) {
                // A run that begins in the tail has nothing in older segments.
                Some(built) if built.entry.created_at.is_some() => {
                    found.push(RunSummary::from_entry(&built.entry));
                }
                _ => found.extend(state.row_in_memory(run_no)?.map(RunSummary::from_row)),
            }
        }
        Ok(found)
    }

    /// At most `limit` agents after `after`, ascending.
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
            // An agent whose runs were all deleted since is skipped.
            |agent| Ok(moment.has_run_of(agent.as_str())?.then_some(agent)),
        )?);
        found.sort_unstable();
        found.dedup();
        found.truncate(limit);
        Ok(found)
    }

    /// All living runs as of now, and the catalog that knows most of them. Runs of which a
    /// quarantined segment may say more are left out, so policies keep them.
    pub(crate) fn list_all(&self) -> Result<(Listed, Arc<Catalog>)> {
        let mut in_memory = HashSet::new();
        let (catalog, deleted, active) = {
            let state = self.open()?;
            let mut numbers = state.active.run_numbers();
            numbers.sort_unstable();
            let is_read =
                |number: &&RunNo| state.active.get(**number).is_some_and(ActiveRun::is_read);
            let rows = numbers.iter().filter(is_read).map(|number| state.row_in_memory(*number));
            let rows: Vec<_> = rows.filter_map(Result::transpose).collect::<Result<_>>()?;
            in_memory.extend(numbers);
            (Arc::clone(&state.catalog), Arc::clone(&state.deleted), rows)
        };
        let listed = catalog.ask(|catalog| {
            let mut listed = Listed::default();
            catalog.each_summary(&mut |row| {
                if !in_memory.contains(&row.run_no) && !deleted.contains(row.run_no) {
                    listed.add_row(&row);
                }
            })?;
            Ok(listed)
        });
        let mut listed = listed?;
        for row in &active {
            listed.add_row(&row.summary());
        }
        Ok((listed, catalog))
    }

    /// What all living runs and documents take.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let (catalog, deleted, active) = {
            let state = self.open()?;
            let numbers = state.active.run_numbers().into_iter().chain(state.active.versions_all());
            let rows = numbers.map(|number| state.row_in_memory(number));
            let rows: Vec<_> = rows.filter_map(Result::transpose).collect::<Result<_>>()?;
            (Arc::clone(&state.catalog), Arc::clone(&state.deleted), rows)
        };
        let in_memory: HashSet<RunNo> = active.iter().map(|row| row.run_no).collect();
        let summed = catalog.ask(|catalog| {
            let mut sums = Sums::default();
            catalog.each_summary(&mut |row| {
                if !in_memory.contains(&row.run_no) && !deleted.contains(row.run_no) {
                    sums.add(&row);
                }
            })?;
            Ok(sums)
        });
        let mut sums = summed?;
        for row in &active {
            sums.add(&row.summary());
        }
        let agent = |(agent, runs): (String, Taken)| {
            // Ids in rows were checked when the rows were read.
            Some(AgentUsage { agent: AgentId::new(&agent).ok()?, runs })
        };
        let agents = sums.agents.into_iter().filter_map(agent).collect();
        Ok(Usage { agents, documents: sums.documents })
    }

    /// All held runs.
    pub(crate) fn held_runs(&self) -> Result<Vec<HeldRun>> {
        let list = RunList { held: Some(true), ..RunList::ALL };
        let mut held = Vec::new();
        for run in self.page(&list, usize::MAX)?.runs {
            let named = self.named(RunRef::from(&run), Detail::Row)?;
            let run_no = match named.resolve() {
                // It was deleted meanwhile.
                Err(Error::RunNotFound { .. }) => continue,
                resolved => resolved?.0,
            };
            let row = named.row(run_no)?;
            if row.is_held() {
                let frame = named.frame(row.hold.map(|hold| hold.at))?;
                let (since, reason) = frame
                    .map_or((Timestamp(0), String::new()), |(header, reason)| {
                        (header.at, String::from_utf8_lossy(&reason).into_owned())
                    });
                held.push(HeldRun { agent: run.agent, run: run.run, since, reason, run_no });
            }
        }
        held.sort_by(|one, two| (&one.agent, &one.run).cmp(&(&two.agent, &two.run)));
        Ok(held)
    }
}

/// How many runs live: those of the catalog, and those in memory that the catalog does not have.
pub(crate) fn count_living(catalog: &Catalog, active: &[RunNo], deleted: &RunSet) -> Result<u64> {
    let mut runs = catalog.ask(|catalog| catalog.count_runs())?;
    for number in active {
        if catalog.ask(|catalog| catalog.row(*number))?.is_none() {
            runs += 1;
        }
    }
    for number in deleted.iter() {
        if catalog.ask(|catalog| catalog.row(number))?.is_some_and(|row| !row.document) {
            runs = runs.saturating_sub(1);
        }
    }
    Ok(runs)
}

/// How many runs live as of now.
pub(crate) fn count_runs(reader: &Reader) -> Result<u64> {
    let (catalog, in_memory, deleted) = {
        let state = reader.open()?;
        (Arc::clone(&state.catalog), state.active.run_numbers(), Arc::clone(&state.deleted))
    };
    count_living(&catalog, &in_memory, &deleted)
}
