//! From ids to the entries of runs in the directories of sealed segments: the one way of lookups.
//!
//! A catalog asks its [`Locator`](crate::index::Locator) for places, and the directories of the segments that are not in
//! it yet. The entries at the places say which runs they are of. Directories decide what there is;
//! the index answers only beside a segment that cannot be read.

use std::sync::Arc;

use crate::engine::state::catalog::Catalog;
use crate::engine::state::run_slice::RunSlice;
use crate::engine::state::segment::Segment;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::segments::run_entry::EntryHead;
use crate::format::segments::run_set::RunSet;
use crate::index::{Catalog as _, IndexError, IndexSnapshot, RunRow, RunState};
use crate::types::{AgentId, RunNo, RunRef, SegmentId};

/// What runs are looked up by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name<'a> {
    /// A run id: there can be a run of each agent.
    Run(&'a str),
    /// A namespace and a key: there can be several versions.
    Document(&'a str, &'a str),
}

impl Name<'_> {
    fn is_of(self, head: &EntryHead<'_>) -> bool {
        match self {
            Self::Run(run) => !head.is_document() && head.run == run,
            Self::Document(space, key) => {
                head.is_document() && head.run == key && head.agent == space
            }
        }
    }
}

/// An entry of a run in the directory of a segment.
#[derive(Debug, Clone)]
struct StoredEntry {
    segment: Arc<Segment>,
    /// Where it starts in the directory.
    at: u32,
}

/// A run, or a version of a document, in the sealed segments of a catalog. It may be deleted.
#[derive(Debug, Clone)]
pub(crate) struct StoredRun {
    pub(crate) run_no: RunNo,
    pub(crate) agent: AgentId,
    entries: Vec<StoredEntry>,
    beside: Option<Box<Beside>>,
}

/// What the index says of a run, if a directory cannot be read.
#[derive(Debug, Clone)]
struct Beside {
    row: RunRow,
    segments: Vec<SegmentId>,
    /// Why one of its entries cannot be read.
    lost: Option<Error>,
}

impl StoredRun {
    /// Its row: the fold of its entries.
    pub(crate) fn row(&self) -> Result<RunRow> {
        if let Some(beside) = &self.beside {
            return Ok(beside.row.clone());
        }
        let mut row: Option<RunRow> = None;
        for StoredEntry { segment, at } in &self.entries {
            let entry = segment.in_directory(|directory| directory.head_at(*at)?.entry())?;
            match &mut row {
                Some(row) => row.apply(segment.id(), &entry),
                none => *none = Some(RunRow::first(segment.id(), &entry)),
            }
        }
        row.ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
    }

    /// Adds its slices.
    pub(crate) fn add_parts(&self, parts: &mut Vec<RunSlice>) -> Result<()> {
        if let Some(lost) = self.beside.as_ref().and_then(|beside| beside.lost.clone()) {
            return Err(lost);
        }
        for StoredEntry { segment, at } in &self.entries {
            RunSlice::add_sealed(parts, segment, *at, self.run_no)?;
        }
        Ok(())
    }

    /// The segments that have frames of it.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let beside = self.beside.iter().flat_map(|beside| beside.segments.iter().copied());
        let here = self.entries.iter().map(|entry| entry.segment.id());
        let is_beside = self.beside.is_some();
        beside.chain(here.filter(move |_| !is_beside))
    }
}

impl Catalog {
    /// The runs or versions with this name that are not `deleted`, by number.
    pub(crate) fn stored(&self, name: Name<'_>, deleted: &RunSet) -> Result<Vec<StoredRun>> {
        self.find(name, None, deleted)
    }

    /// One of them.
    pub(crate) fn stored_run(
        &self,
        name: Name<'_>,
        run_no: RunNo,
        deleted: &RunSet,
    ) -> Result<Option<StoredRun>> {
        Ok(self.find(name, Some(run_no), deleted)?.into_iter().find(|run| run.run_no == run_no))
    }

    fn find(
        &self,
        name: Name<'_>,
        only: Option<RunNo>,
        deleted: &RunSet,
    ) -> Result<Vec<StoredRun>> {
        match self.find_in_directories(name, only, deleted) {
            Err(error @ (Error::Corrupt(_) | Error::Io { .. })) => {
                self.stored_beside(name, deleted, error)
            }
            found => found,
        }
    }

    fn find_in_directories(
        &self,
        name: Name<'_>,
        only: Option<RunNo>,
        deleted: &RunSet,
    ) -> Result<Vec<StoredRun>> {
        let Some(first) = self.segments().first() else { return Ok(Vec::new()) };
        let hash = match name {
            Name::Run(run) => first.ids().of_run(run),
            Name::Document(space, key) => first.ids().of_document(space, key),
        };
        let mut found: Vec<StoredRun> = Vec::new();
        let mut look_at = |segment: &Arc<Segment>, at| {
            let Some((run_no, agent)) = read_entry(segment, at, name, deleted)? else {
                return Ok(());
            };
            let entry = StoredEntry { segment: Arc::clone(segment), at };
            match found.iter_mut().find(|run| run.run_no == run_no) {
                Some(run) => run.entries.push(entry),
                None => {
                    found.push(StoredRun { run_no, agent, entries: vec![entry], beside: None });
                }
            }
            Ok::<_, Error>(())
        };
        // First: a segment that is added meanwhile is among these.
        let waiting = self.waiting(deleted);
        let can_have = |segment: &&&Arc<Segment>| match (only, segment.sealed()) {
            // One that was sealed before the run began has nothing of it.
            (Some(run_no), Some(sealed)) => sealed.next_run_no > run_no,
            _ => true,
        };
        for segment in waiting.iter().filter(can_have) {
            let places = |directory: Directory<'_>| directory.places_of(hash).collect();
            for at in segment.in_directory::<Vec<u32>>(places)? {
                look_at(segment, at)?;
            }
        }
        for place in self.locator().places(hash) {
            if let Some((segment, at)) = self.in_directory_at(place)
                && !waiting.iter().any(|one| Arc::ptr_eq(one, segment))
            {
                look_at(segment, at)?;
            }
        }
        found.sort_unstable_by_key(|run| run.run_no);
        Ok(found)
    }

    /// What an open index says, if a directory cannot be read, for the reason `why`.
    #[cold]
    fn stored_beside(
        &self,
        name: Name<'_>,
        deleted: &RunSet,
        why: Error,
    ) -> Result<Vec<StoredRun>> {
        let Some(index) = self.index().filter(|_| self.index_failure().is_none()) else {
            return Err(why);
        };
        let found = states_in(index, name, deleted).and_then(|found| {
            let whole = found.iter().all(|(row, state)| row.is_covered_by(&state.spans));
            if whole { Ok(found) } else { Err(Damage::IndexPages.into()) }
        });
        let found = match found {
            Ok(found) => found,
            Err(failure) => {
                self.blame_index(failure);
                return Err(why);
            }
        };
        let run = |(row, state): (RunRow, RunState)| {
            let (mut entries, mut lost) = (Vec::new(), None);
            let segments = state.spans.iter().map(|span| span.segment).collect();
            for span in state.spans {
                let Some(segment) = self.segment(span.segment) else { continue };
                let place = |directory: Directory<'_>| {
                    let at = directory.place(span.slot)?;
                    directory.head_at(at).map(|_| at)
                };
                match segment.in_directory(place) {
                    Ok(at) => entries.push(StoredEntry { segment: Arc::clone(segment), at }),
                    Err(error) => lost = Some(error),
                }
            }
            let (run_no, agent) = (row.run_no, row.agent.clone());
            let beside = Some(Box::new(Beside { row, segments, lost }));
            StoredRun { run_no, agent, entries, beside }
        };
        Ok(found.into_iter().map(run).collect())
    }
}

/// The number and the agent of the entry that starts at `at`, if it has this name.
fn read_entry(
    segment: &Segment,
    at: u32,
    name: Name<'_>,
    deleted: &RunSet,
) -> Result<Option<(RunNo, AgentId)>> {
    segment.in_directory(|directory| {
        let head = match directory.head_at(at) {
            // It is the place of an entry that another segment had.
            Err(_) if !directory.has_place(at) => return Ok(None),
            head => head?,
        };
        if !name.is_of(&head) || deleted.contains(head.run_no) {
            return Ok(None);
        }
        let agent = AgentId::new(head.agent).map_err(|_| Damage::Truncated)?;
        Ok(Some((head.run_no, agent)))
    })
}

/// The rows and the spans that the index has under a name.
fn states_in(
    index: &IndexSnapshot,
    name: Name<'_>,
    deleted: &RunSet,
) -> Result<Vec<(RunRow, RunState)>, IndexError> {
    let mut numbers = match name {
        Name::Run(run) => index.run_numbers(RunRef::from(run))?,
        Name::Document(space, key) => index.document_numbers(space, key)?,
    };
    numbers.retain(|run_no| !deleted.contains(*run_no));
    let state = |run_no| {
        let mut state = index.run_state(run_no)?;
        let row = state.row.take().ok_or(Damage::Missing)?;
        Ok((row, state))
    };
    numbers.into_iter().map(state).collect()
}
