//! All runs in the order of lists, for a process without an index.

use std::collections::{HashMap, HashSet};

use crate::error::Damage;
use crate::format::codec::Decoded;
use crate::index::catalog::{Order, RunKey, RunList};
use crate::index::merge::{Directories, Said, fold, said_beside};
use crate::index::row::RunRow;
use crate::types::{AgentId, RunNo, RunStatus};

/// All runs of some directories in the order of lists, for a process without an index, which would
/// otherwise walk all directories for each page.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    runs: Vec<Listed>,
    agents: Agents,
}

/// What lists ask of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed {
    pub(crate) key: RunKey,
    agent: u32,
    /// One of its entries, and whether it has others.
    directory: u32,
    slot: u32,
    has_others: bool,
    status: RunStatus,
    held: bool,
}

impl Listed {
    /// The row of the run.
    pub(crate) fn row<D: Directories>(&self, directories: &D) -> Decoded<Option<RunRow>> {
        let said = Said { directory: self.directory as usize, slot: self.slot };
        let all = if self.has_others { said_beside(directories, said)? } else { vec![said] };
        fold(directories, &all)
    }
}

/// The agents of runs, by number.
#[derive(Debug, Default)]
struct Agents {
    numbers: HashMap<AgentId, u32>,
}

impl Agents {
    fn number(&mut self, agent: &str) -> Decoded<u32> {
        if let Some(number) = self.numbers.get(agent) {
            return Ok(*number);
        }
        let number = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        self.numbers.insert(AgentId::new(agent).map_err(|_| Damage::Truncated)?, number);
        Ok(number)
    }
}

impl Listing {
    /// The bytes of one run.
    const ENTRY: usize = size_of::<Listed>();

    /// The runs of these directories; `None` if they do not fit `most` bytes.
    pub(crate) fn of<D: Directories>(directories: &D, most: usize) -> Decoded<Option<Self>> {
        let (mut evicted, mut count) = (HashSet::new(), 0);
        for index in 0..directories.segments().len() {
            directories.with(index, |view| {
                count += view.run_count() as usize + view.eviction_count() as usize;
                if count.saturating_mul(Self::ENTRY) <= most {
                    let numbers = view.evictions().map(|found| found.map(|found| found.run_no));
                    numbers.into_iter().try_for_each(|run_no| {
                        evicted.insert(run_no?);
                        Ok(())
                    })?;
                }
                Ok(())
            })?;
        }
        if count.saturating_mul(Self::ENTRY) > most {
            return Ok(None);
        }
        let (mut agents, mut versions) = (Agents::default(), HashSet::new());
        let mut entries = Vec::with_capacity(count);
        for (directory, index) in (0_u32..).zip(0..directories.segments().len()) {
            directories.with(index, |view| {
                for slot in 0..view.run_count() {
                    let brief = view.brief(slot)?;
                    if evicted.contains(&brief.run_no) {
                        continue;
                    }
                    if brief.is_document {
                        versions.insert(brief.run_no);
                        continue;
                    }
                    let (key, agent) =
                        ((brief.at, brief.run_no), agents.number(view.ids(slot)?.1)?);
                    let (status, held) = (brief.status, brief.held);
                    let has_others = false;
                    entries.push(Listed { key, agent, directory, slot, has_others, status, held });
                }
                Ok(())
            })?;
        }
        // Fast, since each directory is sorted by number.
        entries.sort_by_key(|entry| entry.key.1);
        let mut listing = Self { runs: Vec::with_capacity(entries.len()), agents };
        for same in entries.chunk_by(|left, right| left.key.1 == right.key.1) {
            match same {
                [first, ..] if versions.contains(&first.key.1) => {}
                [only] => listing.runs.push(*only),
                several => listing.runs.extend(joined(directories, several)?),
            }
        }
        listing.runs.sort_unstable_by_key(|run| run.key);
        let with_runs: HashSet<u32> = listing.runs.iter().map(|run| run.agent).collect();
        listing.agents.numbers.retain(|_, number| with_runs.contains(number));
        Ok(Some(listing))
    }

    /// Agents above `after`, ascending, up to `limit`.
    pub(crate) fn agents_page(&self, after: Option<&str>, limit: usize) -> Vec<AgentId> {
        let is_above = |agent: &&AgentId| after.is_none_or(|after| agent.as_str() > after);
        let mut agents: Vec<AgentId> =
            self.agents.numbers.keys().filter(is_above).cloned().collect();
        agents.sort_unstable();
        agents.truncate(limit);
        agents
    }

    /// Whether an agent has a run that is wanted.
    pub(crate) fn has_run_of(&self, agent: &str, is_wanted: &dyn Fn(RunNo) -> bool) -> bool {
        let Some(agent) = self.agents.numbers.get(agent) else { return false };
        self.runs.iter().rev().any(|run| run.agent == *agent && is_wanted(run.key.1))
    }

    /// The first runs of a list, up to `limit`.
    pub(crate) fn page(&self, list: &RunList<'_>, limit: usize) -> Vec<Listed> {
        let agent = list.agent.map(|wanted| self.agents.numbers.get(wanted));
        if list.is_empty() || agent == Some(None) {
            return Vec::new();
        }
        let agent = agent.flatten();
        let start = self.runs.partition_point(|run| run.key < list.keys.0);
        let end = self.runs.partition_point(|run| run.key <= list.keys.1);
        let range = self.runs.get(start..end).unwrap_or_default().iter();
        let has = |run: &&Listed| {
            agent.is_none_or(|agent| *agent == run.agent)
                && list.statuses.has(run.status)
                && list.held.is_none_or(|held| held == run.held)
        };
        match list.order {
            Order::Ascending => range.filter(has).copied().take(limit).collect(),
            Order::Descending => range.rev().filter(has).copied().take(limit).collect(),
        }
    }
}

/// A run with several entries, in the order of the segments.
fn joined<D: Directories>(directories: &D, entries: &[Listed]) -> Decoded<Option<Listed>> {
    let said =
        entries.iter().map(|entry| Said { directory: entry.directory as usize, slot: entry.slot });
    let row = fold(directories, &said.collect::<Vec<_>>())?;
    Ok(entries.first().zip(row).map(|(first, row)| Listed {
        key: row.time_key(),
        status: row.status,
        held: row.is_held(),
        has_others: true,
        ..*first
    }))
}
