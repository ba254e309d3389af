//! The answers of the index without the index: straight from the directories.
//!
//! Slower, but with bounded memory: a lookup probes each directory, a list walks all of them
//! once. So a store whose index is missing, damaged or still being rebuilt gives the same answers.

use core::cmp::Reverse;
use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::catalog::{Catalog, RunFilter};
use super::fence::IndexError;
use super::merge::{Applied, Directories, Merge, Reach, Said, fold, said_of};
use super::row::{RowSummary, RunRow, RunState, Span};
use crate::error::Damage;
use crate::format::codec::Decoded;
use crate::types::{AgentId, RunNo, RunRef, Timestamp};

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

    /// The row and the spans of a run.
    pub(super) fn state(&self, run_no: RunNo) -> Decoded<RunState> {
        fold(self.directories, &said_of(self.directories, self.reach, run_no)?)
    }

    /// Calls `visit` for what is said of each run above `after` that was not evicted, by number,
    /// until it answers false.
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

    /// Whether what is said is said of a version of a document.
    fn is_document(&self, said: &[Said]) -> Decoded<bool> {
        for said in said {
            if self.directories.with(said.directory, |view| view.is_document(said.slot))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The agent of a run of which something is said.
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
        for directory in self.reach.places(self.directories) {
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

    fn runs_page(
        &self,
        filter: RunFilter<'_>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Vec<(Timestamp, RunNo)>, IndexError> {
        let mut newest: BinaryHeap<Reverse<(Timestamp, RunNo)>> = BinaryHeap::new();
        self.walk(None, |said| {
            if let RunFilter::Agent(wanted) = filter
                && self.with_agent(said, |agent| agent == wanted)? != Some(true)
            {
                return Ok(true);
            }
            let row = fold(self.directories, said)?.row.filter(|row| !row.document);
            if let Some(key) = row.map(|row| row.time_key())
                && before.is_none_or(|before| key < before)
            {
                newest.push(Reverse(key));
                if newest.len() > limit {
                    newest.pop();
                }
            }
            Ok(true)
        })?;
        Ok(newest.into_sorted_vec().into_iter().map(|Reverse(key)| key).collect())
    }

    fn in_progress_page(
        &self,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunNo>, IndexError> {
        let mut page = Vec::new();
        self.walk(after, |said| {
            if page.len() >= limit {
                return Ok(false);
            }
            let row = fold(self.directories, said)?.row.filter(|row| !row.document);
            page.extend(row.filter(|row| !row.status.is_ended()).map(|row| row.run_no));
            Ok(true)
        })?;
        Ok(page)
    }

    fn agents_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<AgentId>, IndexError> {
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
        for directory in self.reach.places(self.directories) {
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

/// Whether a key is not in front of where a list begins.
pub(super) fn is_behind(from: Bound<&str>, key: &str) -> bool {
    match from {
        Bound::Unbounded => true,
        Bound::Included(first) => str::cmp(key, first).is_ge(),
        Bound::Excluded(last) => str::cmp(key, last).is_gt(),
    }
}
