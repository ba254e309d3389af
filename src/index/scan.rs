//! The answers of the index without the index: read directly from the directories.
//!
//! It is slower, with bounded memory: a lookup probes each directory, a list walks all of them
//! once. So a store whose index is missing, damaged or being rebuilt gives the same answers.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

use super::catalog::{Catalog, RunKey, RunList, rows_of};
use super::listing::Listing;
use super::merge::{Applied, Directories, Merge, Reach, Said, fold, said_of};
use super::row::{RowSummary, RunRow};
use super::tables::fence::IndexError;
use crate::error::Damage;
use crate::format::codec::Decoded;
use crate::types::{AgentId, RunNo};

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

    /// The row of a run.
    pub(super) fn find(&self, run_no: RunNo) -> Decoded<Option<RunRow>> {
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
    pub(crate) fn each_row(
        &self,
        mut visit: impl FnMut(RunRow) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        let mut outcome = Ok(());
        self.walk(None, |said| {
            if let Some(row) = fold(self.directories, said)? {
                outcome = visit(row);
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
    fn row(&self, run_no: RunNo) -> Result<Option<RunRow>, IndexError> {
        Ok(self.find(run_no)?)
    }

    fn runs_page(&self, list: &RunList<'_>, limit: usize) -> Result<Vec<RunKey>, IndexError> {
        if let Some(listing) = self.listing()? {
            return Ok(listing.page(list, limit).iter().map(|run| run.key).collect());
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
            let row = fold(self.directories, said)?;
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

    fn rows_page(
        &self,
        list: &RunList<'_>,
        limit: usize,
        is_wanted: &dyn Fn(RunNo) -> bool,
    ) -> Result<Vec<(RunKey, Option<RunRow>)>, IndexError> {
        let Some(listing) = self.listing()? else {
            return rows_of(self, list, &self.runs_page(list, limit)?, is_wanted);
        };
        let mut rows = Vec::new();
        for run in listing.page(list, limit) {
            let row = is_wanted(run.key.1).then(|| run.row(self.directories));
            rows.push((run.key, row.transpose()?.flatten()));
        }
        Ok(rows)
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
            let row = fold(self.directories, said)?.filter(|row| row.document);
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
        self.each_row(|row| {
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
