//! From ids to the entries of runs in the directories of sealed segments: the one way of lookups.
//!
//! A catalog asks its [`Locator`](crate::index::Locator) for places, and the directories of the
//! segments that are not in it yet. The entries at the places say which runs they are of. So
//! directories decide what there is; the index answers only beside a segment that cannot be read.

use core::cmp::Reverse;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use crate::engine::state::catalog::Catalog;
use crate::engine::state::run_slice::RunSlice;
use crate::engine::state::segment::Segment;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::segments::directory::IdHash;
use crate::format::segments::run_entry::EntryHead;
use crate::format::segments::run_set::RunSet;
use crate::index::RunRow;
use crate::types::{AgentId, RunId, RunNo, SegmentId};

/// What runs are looked up by.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Name<'a> {
    /// A run id, and the agent if the caller names one. Else there can be a run of each agent.
    Run(&'a str, Option<&'a str>),
    /// A namespace and a key: there can be several versions.
    Document(&'a str, &'a str),
}

impl<'a> Name<'a> {
    /// The name of a run, or of a version of a document.
    pub(crate) fn new(document: bool, agent: &'a AgentId, run: &'a RunId) -> Self {
        let (agent, run) = (agent.as_str(), run.as_str());
        if document { Self::Document(agent, run) } else { Self::Run(run, Some(agent)) }
    }

    fn is_of(self, document: bool, agent: &str, run: &str) -> bool {
        self.has_id_of(document, agent, run) && self.has_agent(agent)
    }

    /// Whether the ids match this name. The agent of a run does not count.
    fn has_id_of(self, document: bool, agent: &str, run: &str) -> bool {
        match self {
            Self::Run(wanted, _) => !document && run == wanted,
            Self::Document(space, key) => document && agent == space && run == key,
        }
    }

    fn has_agent(self, agent: &str) -> bool {
        !matches!(self, Self::Run(_, Some(wanted)) if agent != wanted)
    }

    /// The hash of its entries in directories, and that of both ids.
    fn hashes(self, ids: IdHash) -> (u32, Option<u32>) {
        match self {
            Self::Run(run, agent) => (ids.of_run(run), agent.map(|agent| ids.of_both(agent, run))),
            Self::Document(space, key) => (ids.of_document(space, key), None),
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

/// The rows of the runs of one agent with one id: mostly one.
#[derive(Debug, Default)]
pub(crate) struct StoredRows {
    pub(crate) rows: Vec<RunRow>,
    /// Whether no other agent has a run with this id in the sealed segments.
    pub(crate) are_all: bool,
}

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
        let mut rows = Vec::new();
        for StoredEntry { segment, at } in &self.entries {
            segment.in_directory(|directory| fold(&mut rows, segment, &directory.head_at(*at)?))?;
        }
        rows.pop().ok_or_else(|| Error::corrupt(Place::Index, Damage::Missing))
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

    /// The rows of the runs of an agent with this id that are not `deleted`. Each entry is read
    /// once: a run can be in thousands of segments.
    pub(crate) fn rows(&self, agent: &str, run: &str, deleted: &RunSet) -> Result<StoredRows> {
        let (name, mut unread) = (Name::Run(run, Some(agent)), Vec::new());
        let mut found = StoredRows { rows: Vec::new(), are_all: true };
        let is_part = self.each_entry(name, None, deleted, &mut unread, |segment, _, head| {
            if !name.has_agent(head.agent) {
                found.are_all = false;
                return Ok(());
            }
            fold(&mut found.rows, segment, head)
        })?;
        found.are_all &= !is_part;
        if !unread.is_empty() {
            let stored = self.find(name, None, deleted)?;
            let rows = stored.iter().map(StoredRun::row).collect::<Result<_>>()?;
            return Ok(StoredRows { rows, are_all: false });
        }
        Ok(found)
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
        let (mut unread, mut found) = (Vec::new(), StoredRuns::new());
        self.each_entry(name, only, deleted, &mut unread, |segment, at, head| {
            if !name.has_agent(head.agent) {
                return Ok(());
            }
            let entry = StoredEntry { segment: Arc::clone(segment), at };
            match found.last_mut().filter(|run| run.run_no == head.run_no) {
                Some(run) => run.entries.push(entry),
                None => {
                    let agent = AgentId::new(head.agent).map_err(|_| Damage::Truncated)?;
                    let (run_no, entries) = (head.run_no, smallvec![entry]);
                    found.push(StoredRun { run_no, agent, entries, unread: None });
                }
            }
            Ok(())
        })?;
        found.sort_by_key(|run| run.run_no);
        found.dedup_by(|next, run| {
            let is_same = next.run_no == run.run_no;
            if is_same {
                run.entries.append(&mut next.entries);
            }
            is_same
        });
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

    /// Calls `visit` with the entries that have this name, and perhaps with those of other agents.
    /// Returns whether some of other agents were left out.
    fn each_entry(
        &self,
        name: Name<'_>,
        only: Option<RunNo>,
        deleted: &RunSet,
        unread: &mut Vec<(SegmentId, Error)>,
        mut visit: impl FnMut(&Arc<Segment>, u32, &EntryHead<'_>) -> Decoded<()>,
    ) -> Result<bool> {
        let Some(first) = self.segments().first() else { return Ok(false) };
        let hashes = name.hashes(first.ids());
        let mut look_at = |segment: &Arc<Segment>, at| {
            segment.in_directory(|directory| {
                let head = match directory.head_at(at) {
                    // It is the place of an entry that another segment had.
                    Err(_) if !directory.has_place(at) => return Ok(()),
                    head => head?,
                };
                let is_it = name.has_id_of(head.is_document(), head.agent, head.run)
                    && !deleted.contains(head.run_no);
                if is_it { visit(segment, at, &head) } else { Ok(()) }
            })
        };
        // First: a segment that is added meanwhile is among these.
        let waiting = self.waiting(deleted);
        let can_have = |segment: &&&Arc<Segment>| match (only, segment.sealed()) {
            // One that was sealed before the run began has nothing of it.
            (Some(run_no), Some(sealed)) => sealed.next_run_no > run_no,
            _ => true,
        };
        for segment in waiting.iter().filter(can_have) {
            let places = |directory: Directory<'_>| directory.places_of(hashes.0).collect();
            let looked = segment.in_directory::<Vec<u32>>(places).and_then(|places| {
                self.count_probes(places.len());
                places.into_iter().try_for_each(|at| look_at(segment, at))
            });
            or_unread(segment, looked, unread)?;
        }
        let key = |segment: &Arc<Segment>| Reverse(segment.id());
        let (places, is_part) = self.locator().places(hashes);
        for place in places {
            if let Some((segment, at)) = self.in_directory_at(place)
                && waiting.binary_search_by_key(&key(segment), |one| key(one)).is_err()
            {
                or_unread(segment, look_at(segment, at), unread)?;
            }
        }
        Ok(is_part)
    }
}

/// Adds the entry of a segment to the rows of its name.
fn fold(rows: &mut Vec<RunRow>, segment: &Segment, head: &EntryHead<'_>) -> Decoded<()> {
    match rows.iter_mut().find(|row| row.run_no == head.run_no) {
        Some(row) => {
            let entry = head.entry_of(row.agent.clone(), row.run.clone())?;
            row.apply(segment.id(), &entry);
        }
        None => rows.push(RunRow::first(segment.id(), &head.entry()?)),
    }
    Ok(())
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
