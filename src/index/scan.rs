//! The answers of the index without the index: read directly from the directories.
//!
//! It is slower, with bounded memory: a lookup probes each directory, a list walks all of them
//! once. So a store whose index is missing, damaged or being rebuilt gives the same answers.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::catalog::{Catalog, Order, RunKey, RunList};
use super::fence::IndexError;
use super::merge::{Applied, Directories, Merge, Reach, Said, fold, said_of};
use super::row::{RowSummary, RunRow, RunState, Span};
use crate::error::Damage;
use crate::format::codec::Decoded;
use crate::format::segments::directory::hash_id;
use crate::types::{AgentId, RunNo, RunRef, RunStatus, SegmentId};

/// Answers from directories.
#[derive(Debug)]
pub(crate) struct DirectoryScan<'a, D> {
    directories: &'a D,
    reach: Reach,
}

impl<'a, D: Directories> DirectoryScan<'a, D> {
    /// Answers from all directories.
    pub(crate) fn new(directories: &'a D) -> Self {
        Self { directories, reach: Reach::All }
    }

    /// Answers from the directories of the segments that an index covers.
    pub(crate) fn up_to(directories: &'a D, applied: Applied) -> Self {
        Self { directories, reach: Reach::UpTo(applied) }
    }

    /// All runs in the order of lists, if the directories keep that and all of them are asked.
    fn listing(&self) -> Decoded<Option<&Listing>> {
        if self.reach == Reach::All { self.directories.listing() } else { Ok(None) }
    }

    /// The indexes of the directories that can have a run with this id.
    fn places_of_id(&self, run: &str) -> impl Iterator<Item = usize> {
        self.reach.places_among(self.directories, self.directories.places_of_id(run))
    }

    /// The row and the spans of a run.
    pub(super) fn state(&self, run_no: RunNo) -> Decoded<RunState> {
        fold(self.directories, &said_of(self.directories, self.reach, run_no)?)
    }

    /// Calls `visit` with the entries of each run above `after` that was not evicted, by number,
    /// until it returns false.
    fn walk(
        &self,
        after: Option<RunNo>,
        mut visit: impl FnMut(&[Said]) -> Decoded<bool>,
    ) -> Decoded<()> {
        let mut merge = Merge::new(self.directories, self.reach, after)?;
        let mut said = Vec::new();
        while merge.next_run(&mut said)?.is_some() {
            if !visit(&said)? {
                break;
            }
        }
        Ok(())
    }

    /// Calls `visit` for each run in the order of the numbers.
    pub(crate) fn each_state(
        &self,
        mut visit: impl FnMut(RunRow, Vec<Span>) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let mut outcome = Ok(());
        self.walk(None, |said| {
            let state = fold(self.directories, said)?;
            if let Some(row) = state.row {
                outcome = visit(row, state.spans);
            }
            Ok(outcome.is_ok())
        })?;
        outcome
    }

    /// Whether these entries belong to a version of a document.
    fn is_document(&self, said: &[Said]) -> Decoded<bool> {
        for said in said {
            if self.directories.with(said.directory, |view| view.is_document(said.slot))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `read` with the agent of a run that has entries.
    fn with_agent<R>(&self, said: &[Said], read: impl FnOnce(&str) -> R) -> Decoded<Option<R>> {
        let Some(last) = said.last() else {
            return Ok(None);
        };
        let read = |view: crate::format::Directory<'_>| Ok(read(view.ids(last.slot)?.1));
        self.directories.with(last.directory, read).map(Some)
    }
}

impl<D: Directories> Catalog for DirectoryScan<'_, D> {
    fn run_numbers(&self, run: RunRef<'_>) -> Result<Vec<RunNo>, IndexError> {
        let mut candidates = BTreeSet::new();
        for directory in self.places_of_id(run.run()) {
            self.directories.with(directory, |view| {
                for slot in view.find_id(run.run())? {
                    let (_, agent) = view.ids(slot)?;
                    if run.agent().is_none_or(|wanted| wanted == agent) {
                        candidates.insert((agent.to_owned(), view.run_no(slot)?));
                    }
                }
                Ok(())
            })?;
        }
        let mut numbers = Vec::new();
        for (_, run_no) in candidates {
            if self.state(run_no)?.row.is_some_and(|row| !row.document) {
                numbers.push(run_no);
            }
        }
        Ok(numbers)
    }

    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError> {
        Ok(self.state(run_no)?.row)
    }

    fn spans(&self, run_no: RunNo) -> Result<Vec<Span>, IndexError> {
        Ok(self.state(run_no)?.spans)
    }

    fn run_state(&self, run_no: RunNo) -> Result<RunState, IndexError> {
        Ok(self.state(run_no)?)
    }

    fn runs_page(&self, list: &RunList<'_>, limit: usize) -> Result<Vec<RunKey>, IndexError> {
        if let Some(listing) = self.listing()? {
            return Ok(listing.page(list, limit));
        }
        let mut page = Vec::new();
        // Of twice as many, what is not among the first goes, so that memory stays bounded.
        let most = limit.saturating_mul(2).max(64);
        self.walk(None, |said| {
            if let Some(wanted) = list.agent
                && self.with_agent(said, |agent| agent == wanted)? != Some(true)
            {
                return Ok(true);
            }
            let row = fold(self.directories, said)?.row;
            page.extend(row.filter(|row| list.has(row)).map(|row| row.time_key()));
            if page.len() >= most {
                list.sort(&mut page, |key| *key);
                page.truncate(limit);
            }
            Ok(true)
        })?;
        list.sort(&mut page, |key| *key);
        page.truncate(limit);
        Ok(page)
    }

    fn has_run_of(
        &self,
        agent: &str,
        is_wanted: &dyn Fn(RunNo) -> bool,
    ) -> Result<bool, IndexError> {
        if let Some(listing) = self.listing()? {
            return Ok(listing.has_run_of(agent, is_wanted));
        }
        let mut found = false;
        self.walk(None, |said| {
            let run_no = match said.first() {
                Some(said) => {
                    self.directories.with(said.directory, |view| view.run_no(said.slot))?
                }
                None => return Ok(true),
            };
            found = is_wanted(run_no)
                && self.with_agent(said, |found| found == agent)? == Some(true)
                && !self.is_document(said)?;
            Ok(!found)
        })?;
        Ok(found)
    }

    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError> {
        if let Some(listing) = self.listing()? {
            return Ok(listing.agents_page(after, limit));
        }
        let mut page: BTreeSet<String> = BTreeSet::new();
        self.walk(None, |said| {
            if self.is_document(said)? {
                return Ok(true);
            }
            self.with_agent(said, |agent| {
                let is_above = after.is_none_or(|after| agent > after);
                let has_room =
                    page.len() < limit || page.last().is_some_and(|last| agent < last.as_str());
                if is_above && has_room && !page.contains(agent) {
                    page.insert(agent.to_owned());
                    if page.len() > limit {
                        page.pop_last();
                    }
                }
            })?;
            Ok(true)
        })?;
        let agent = |id: String| AgentId::new(&id).map_err(|_| Damage::Truncated.into());
        page.into_iter().map(agent).collect()
    }

    fn document_numbers(&self, namespace: &str, key: &str) -> Result<Vec<RunNo>, IndexError> {
        let mut candidates = BTreeSet::new();
        for directory in self.places_of_id(key) {
            self.directories.with(directory, |view| {
                for slot in view.find_id(key)? {
                    if view.ids(slot)?.1 == namespace {
                        candidates.insert(view.run_no(slot)?);
                    }
                }
                Ok(())
            })?;
        }
        let mut numbers = Vec::new();
        for run_no in candidates {
            if self.state(run_no)?.row.is_some_and(|row| row.document) {
                numbers.push(run_no);
            }
        }
        Ok(numbers)
    }

    fn documents_page(
        &self,
        namespace: &str,
        from: Bound<&str>,
        limit: usize,
    ) -> Result<Vec<(String, RunNo)>, IndexError> {
        let mut page: BTreeMap<String, Vec<RunNo>> = BTreeMap::new();
        self.walk(None, |said| {
            if self.with_agent(said, |agent| agent == namespace)? != Some(true) {
                return Ok(true);
            }
            let row = fold(self.directories, said)?.row.filter(|row| row.document);
            if let Some(row) = row
                && is_behind(from, row.run.as_str())
            {
                page.entry(row.run.as_str().to_owned()).or_default().push(row.run_no);
                if page.len() > limit {
                    page.pop_last();
                }
            }
            Ok(true)
        })?;
        let versions = page.into_iter();
        Ok(versions
            .flat_map(|(key, nos)| nos.into_iter().map(move |no| (key.clone(), no)))
            .collect())
    }

    fn count_runs(&self) -> Result<u64, IndexError> {
        let mut count = 0;
        self.walk(None, |said| {
            count += u64::from(!self.is_document(said)?);
            Ok(true)
        })?;
        Ok(count)
    }

    fn each_summary(&self, visit: &mut dyn FnMut(RowSummary<'_>)) -> Result<(), IndexError> {
        self.each_state(|row, _| {
            visit(row.summary());
            Ok(())
        })
    }
}

/// Whether a key is at or behind the start of a list.
pub(super) fn is_behind(from: Bound<&str>, key: &str) -> bool {
    match from {
        Bound::Unbounded => true,
        Bound::Included(first) => str::cmp(key, first).is_ge(),
        Bound::Excluded(last) => str::cmp(key, last).is_gt(),
    }
}

/// All runs of some directories in the order of lists, for a process without an index, which would
/// otherwise walk all directories for each page.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    runs: Vec<Listed>,
    agents: Vec<AgentId>,
}

/// What lists ask of a run.
#[derive(Debug, Clone, Copy)]
struct Listed {
    key: RunKey,
    agent: u32,
    status: RunStatus,
    held: bool,
}

impl Listing {
    /// The runs of these directories.
    pub(crate) fn of<D: Directories>(directories: &D) -> Decoded<Self> {
        let (mut listing, mut agents) = (Self::default(), BTreeMap::new());
        DirectoryScan::new(directories).walk(None, |said| {
            let Some(row) = fold(directories, said)?.row.filter(|row| !row.document) else {
                return Ok(true);
            };
            let (key, status, held) = (row.time_key(), row.status, row.is_held());
            let agent = *agents.entry(row.agent).or_insert_with_key(|agent| {
                listing.agents.push(agent.clone());
                u32::try_from(listing.agents.len() - 1).unwrap_or(u32::MAX)
            });
            listing.runs.push(Listed { key, agent, status, held });
            Ok(true)
        })?;
        listing.runs.sort_unstable_by_key(|run| run.key);
        Ok(listing)
    }

    /// The number of an agent.
    fn agent(&self, wanted: &str) -> Option<u32> {
        let found = self.agents.iter().position(|agent| agent.as_str() == wanted);
        found.and_then(|found| u32::try_from(found).ok())
    }

    /// Agents above `after`, ascending, up to `limit`.
    fn agents_page(&self, after: Option<&str>, limit: usize) -> Vec<AgentId> {
        let is_above = |agent: &&AgentId| after.is_none_or(|after| agent.as_str() > after);
        let mut agents: Vec<AgentId> = self.agents.iter().filter(is_above).cloned().collect();
        agents.sort_unstable();
        agents.truncate(limit);
        agents
    }

    /// Whether an agent has a run that is wanted.
    fn has_run_of(&self, agent: &str, is_wanted: &dyn Fn(RunNo) -> bool) -> bool {
        let Some(agent) = self.agent(agent) else { return false };
        self.runs.iter().rev().any(|run| run.agent == agent && is_wanted(run.key.1))
    }

    /// The first runs of a list, up to `limit`.
    fn page(&self, list: &RunList<'_>, limit: usize) -> Vec<RunKey> {
        let agent = list.agent.map(|wanted| self.agent(wanted));
        if list.is_empty() || agent == Some(None) {
            return Vec::new();
        }
        let agent = agent.flatten();
        let start = self.runs.partition_point(|run| run.key < list.keys.0);
        let end = self.runs.partition_point(|run| run.key <= list.keys.1);
        let range = self.runs.get(start..end).unwrap_or_default().iter();
        let has = |run: &&Listed| {
            agent.is_none_or(|agent| agent == run.agent)
                && list.statuses.has(run.status)
                && list.held.is_none_or(|held| held == run.held)
        };
        let key = |run: &Listed| run.key;
        match list.order {
            Order::Ascending => range.filter(has).map(key).take(limit).collect(),
            Order::Descending => range.rev().filter(has).map(key).take(limit).collect(),
        }
    }
}

/// So many segments that were added since are probed one by one.
const FEW: usize = 16;

/// Where runs are, for a process without an index, which would otherwise probe each directory for
/// each run. For each run and each eviction it has the segments that name it, out of the
/// directories of some moment. Segments that are gone since stay listed, which does no harm.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The segments that were looked at, ascending, and what tells one from another with its id.
    looked_at: Vec<(SegmentId, u64)>,
    /// Those of them that are listed.
    segments: Vec<SegmentId>,
    /// The most bytes that this may take, and the order of lists too.
    most: usize,
    by_id: Vec<(u32, SegmentId)>,
    by_run: Vec<(RunNo, SegmentId)>,
}

impl Places {
    /// The bytes of one run in one segment.
    const ENTRY: usize = size_of::<(u32, SegmentId)>() + size_of::<(RunNo, SegmentId)>();

    /// The places in these segments, which are ascending: those that are known already if they say
    /// enough. Segments that do not fit `most` bytes are left out, and are probed.
    pub(crate) fn of<D: Directories>(
        directories: &D,
        known: Option<&Arc<Self>>,
        most: usize,
    ) -> Arc<Self> {
        let segments = directories.segments();
        if let Some(known) = known {
            let seen = (0..).zip(segments).map(|(index, segment)| {
                let found = known.looked_at.binary_search_by_key(segment, |(id, _)| *id);
                let found = found.ok().and_then(|at| known.looked_at.get(at));
                found.map(|(_, stamp)| *stamp == directories.stamp(index))
            });
            let seen: Vec<Option<bool>> = seen.collect();
            let others = seen.iter().filter(|seen| seen.is_none()).count();
            // What another segment with the same id said is not to be believed.
            let is_true = !seen.contains(&Some(false));
            if is_true && others <= FEW.max(known.looked_at.len() / 8) {
                return Arc::clone(known);
            }
        }
        let mut places = Self { most, ..Self::default() };
        for (index, &segment) in segments.iter().enumerate() {
            places.looked_at.push((segment, directories.stamp(index)));
            if places.by_run.len() * Self::ENTRY >= most {
                continue;
            }
            let listed = directories.with(index, |view| {
                for slot in 0..view.run_count() {
                    places.by_id.push((hash_id(view.ids(slot)?.0), segment));
                    places.by_run.push((view.run_no(slot)?, segment));
                }
                for eviction in view.evictions() {
                    places.by_run.push((eviction?.run_no, segment));
                }
                Ok(())
            });
            // One that cannot be read is asked each time, and says why.
            if listed.is_ok() {
                places.segments.push(segment);
            }
        }
        places.by_id.sort_unstable();
        places.by_run.sort_unstable();
        Arc::new(places)
    }

    /// Whether there is room for the order of lists.
    pub(crate) fn has_room_for_listing(&self) -> bool {
        let entry = Self::ENTRY + size_of::<Listed>();
        self.segments.len() == self.looked_at.len() && self.by_run.len() * entry <= self.most
    }

    /// The indexes in `ids` of the segments that can have a run or evict it.
    pub(crate) fn of_run(&self, run_no: RunNo, ids: &[SegmentId]) -> Vec<usize> {
        self.among(listed(&self.by_run, run_no), ids)
    }

    /// The indexes in `ids` of the segments that can have a run with this id.
    pub(crate) fn of_id(&self, run: &str, ids: &[SegmentId]) -> Vec<usize> {
        self.among(listed(&self.by_id, hash_id(run)), ids)
    }

    /// The indexes of these segments, and of all that are not listed.
    fn among(&self, found: impl Iterator<Item = SegmentId>, ids: &[SegmentId]) -> Vec<usize> {
        let mut places: Vec<usize> = found.filter_map(|id| ids.binary_search(&id).ok()).collect();
        // Both are ascending, and most of the ids are listed.
        let mut listed = self.segments.iter().copied().peekable();
        for (index, id) in ids.iter().enumerate() {
            while listed.next_if(|listed| listed < id).is_some() {}
            if listed.peek() != Some(id) {
                places.push(index);
            }
        }
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// The segments that a list has under a key.
fn listed<K: Ord + Copy>(
    list: &[(K, SegmentId)],
    key: K,
) -> impl Iterator<Item = SegmentId> + use<'_, K> {
    let start = list.partition_point(|(found, _)| *found < key);
    let behind = list.get(start..).unwrap_or_default().iter();
    behind.take_while(move |(found, _)| *found == key).map(|(_, segment)| *segment)
}
