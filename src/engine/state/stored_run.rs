//! From ids to the entries of runs in the directories of sealed segments: the one way of lookups.
//!
//! A catalog asks its [`Locator`](crate::index::Locator) for places, and the directories of the
//! segments that are not in it yet. The entries at the places say which runs they are of. So
//! directories decide what there is; the index answers only beside a segment that cannot be read.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::engine::state::catalog::Catalog;
use crate::engine::state::run_slice::RunSlice;
use crate::engine::state::segment::Segment;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::segments::run_set::RunSet;
use crate::index::RunRow;
use crate::types::{AgentId, RunId, RunNo, SegmentId};

/// What runs are looked up by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name<'a> {
    /// A run id: there can be a run of each agent.
    Run(&'a str),
    /// A namespace and a key: there can be several versions.
    Document(&'a str, &'a str),
}

impl<'a> Name<'a> {
    /// The name of a run, or of a version of a document.
    pub(crate) fn new(document: bool, agent: &'a AgentId, run: &'a RunId) -> Self {
        let (agent, run) = (agent.as_str(), run.as_str());
        if document { Self::Document(agent, run) } else { Self::Run(run) }
    }

    fn is_of(self, document: bool, agent: &str, run: &str) -> bool {
        match self {
            Self::Run(wanted) => !document && run == wanted,
            Self::Document(space, key) => document && agent == space && run == key,
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

/// The runs or versions with one name: mostly one.
pub(crate) type StoredRuns = SmallVec<[StoredRun; 1]>;

/// A run, or a version of a document, in the sealed segments of a catalog. It may be deleted.
#[derive(Debug, Clone)]
pub(crate) struct StoredRun {
    pub(crate) run_no: RunNo,
    pub(crate) agent: AgentId,
    entries: SmallVec<[StoredEntry; 1]>,
    /// The row that the index has, and which of its segments cannot be read, for what reason.
    unread: Option<Box<(RunRow, SegmentId, Error)>>,
}

impl StoredRun {
    /// Its row: the fold of its entries.
    pub(crate) fn row(&self) -> Result<RunRow> {
        if let Some(unread) = &self.unread {
            return Ok(unread.0.clone());
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
        if let Some(unread) = &self.unread {
            return Err(unread.2.clone());
        }
        for StoredEntry { segment, at } in &self.entries {
            RunSlice::add_sealed(parts, segment, *at, self.run_no)?;
        }
        Ok(())
    }

    /// The segments that have frames of it. One may be named twice.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentId> + '_ {
        let unread = self.unread.iter();
        let unread = unread.flat_map(|unread| unread.0.segments.iter().copied().chain([unread.1]));
        unread.chain(self.entries.iter().map(|entry| entry.segment.id()))
    }
}

impl Catalog {
    /// The runs or versions with this name that are not `deleted`, by number.
    pub(crate) fn stored(&self, name: Name<'_>, deleted: &RunSet) -> Result<StoredRuns> {
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

    fn find(&self, name: Name<'_>, only: Option<RunNo>, deleted: &RunSet) -> Result<StoredRuns> {
        let mut unread = Vec::new();
        let mut found = self.find_in_directories(name, only, deleted, &mut unread)?;
        for (segment, why) in unread {
            self.add_unread(&mut found, name, deleted, (segment, why))?;
        }
        found.sort_unstable_by_key(|run| run.run_no);
        Ok(found)
    }

    /// Adds what an open index says of the runs with this name in a segment that cannot be read.
    #[cold]
    fn add_unread(
        &self,
        found: &mut StoredRuns,
        name: Name<'_>,
        deleted: &RunSet,
        (segment, why): (SegmentId, Error),
    ) -> Result<()> {
        let Some(rows) = self.rows_in(segment) else { return Err(why) };
        let is_it = |row: &&RunRow| name.is_of(row.document, row.agent.as_str(), row.run.as_str());
        let living = rows.iter().filter(|row| !deleted.contains(row.run_no));
        for row in living.filter(is_it) {
            let (run_no, agent) = (row.run_no, row.agent.clone());
            let unread = Some(Box::new((row.clone(), segment, why.clone())));
            match found.iter_mut().find(|run| run.run_no == run_no) {
                Some(run) => run.unread = unread,
                None => {
                    let entries = SmallVec::new();
                    found.push(StoredRun { run_no, agent, entries, unread });
                }
            }
        }
        Ok(())
    }

    fn find_in_directories(
        &self,
        name: Name<'_>,
        only: Option<RunNo>,
        deleted: &RunSet,
        unread: &mut Vec<(SegmentId, Error)>,
    ) -> Result<StoredRuns> {
        let Some(first) = self.segments().first() else { return Ok(StoredRuns::new()) };
        let hash = match name {
            Name::Run(run) => first.ids().of_run(run),
            Name::Document(space, key) => first.ids().of_document(space, key),
        };
        let mut found = StoredRuns::new();
        let mut look_at = |segment: &Arc<Segment>, at| {
            let Some((run_no, agent)) = read_entry(segment, at, name, deleted)? else {
                return Ok(());
            };
            let entry = StoredEntry { segment: Arc::clone(segment), at };
            match found.iter_mut().find(|run| run.run_no == run_no) {
                Some(run) => run.entries.push(entry),
                None => {
                    found.push(StoredRun {
                        run_no,
                        agent,
                        entries: smallvec![entry],
                        unread: None,
                    });
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
            let looked = segment
                .in_directory::<Vec<u32>>(places)
                .and_then(|places| places.into_iter().try_for_each(|at| look_at(segment, at)));
            or_unread(segment, looked, unread)?;
        }
        for place in self.locator().places(hash) {
            if let Some((segment, at)) = self.in_directory_at(place)
                && !waiting.iter().any(|one| Arc::ptr_eq(one, segment))
            {
                or_unread(segment, look_at(segment, at), unread)?;
            }
        }
        Ok(found)
    }
}

/// Notes a segment that cannot be read.
fn or_unread(
    segment: &Segment,
    looked: Result<()>,
    unread: &mut Vec<(SegmentId, Error)>,
) -> Result<()> {
    match looked {
        Err(why @ (Error::Corrupt(_) | Error::Io { .. })) => unread.push((segment.id(), why)),
        looked => looked?,
    }
    Ok(())
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
        if !name.is_of(head.is_document(), head.agent, head.run) || deleted.contains(head.run_no) {
            return Ok(None);
        }
        let agent = AgentId::new(head.agent).map_err(|_| Damage::Truncated)?;
        Ok(Some((head.run_no, agent)))
    })
}
