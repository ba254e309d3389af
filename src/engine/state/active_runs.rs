//! The runs that the engine keeps in memory: all that changed since the catalog's position, and all
//! that are in progress and were touched since the store was opened. If an id is marked as
//! complete, all living runs with that id are here. If a run is marked as the newest, no living run
//! of its agent with its id is newer: of an id that each agent uses, only few are here.

mod places;

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::engine::state::active_runs::places::Places;
use crate::error::{Corruption, Error, Result};
use crate::format::segments::run_map::RunMap;
use crate::format::{DirectoryBuilder, RunEntry};
use crate::index::{Relocated, RunKey, RunList, RunRow};
use crate::types::{AgentId, LogPosition, RunId, RunNo, RunStatus, SegmentId, Seq, Timestamp};

/// A checkpoint is due when this many runs, of about a kilobyte each, are in memory.
pub(crate) const RUNS_DUE: usize = 8 << 10;

/// A run in memory.
#[derive(Debug, Clone)]
pub(crate) struct ActiveRun {
    pub(crate) run_no: RunNo,
    pub(crate) agent: AgentId,
    pub(crate) run: RunId,
    /// It is not a run but a version of a document.
    pub(crate) document: bool,
    /// What all sealed segments contain of the run.
    row: Option<RunRow>,
    /// The sealed segments that the catalog does not cover and that have entries of it, and where
    /// these are in the tables of their directories.
    pub(crate) fresh: Vec<(SegmentId, u32)>,
    /// The sequence of the next record.
    pub(crate) next_seq: Seq,
    /// Its place in lists, as its row as of now says.
    pub(crate) created_at: Timestamp,
    /// It has an explicit start.
    pub(crate) started: bool,
    pub(crate) status: RunStatus,
    /// It was started or appended to since the store was opened.
    pub(crate) touched: bool,
    /// It is a version of a document whose chunks are being written.
    pub(crate) pending: bool,
    /// A caller has a writer of it.
    pub(crate) has_writer: bool,
    /// It is known that no living run of its agent with its id is newer.
    is_newest: bool,
    /// Its row needs the directory of a quarantined segment, so it takes no call.
    unread: Option<Box<Corruption>>,
}

impl ActiveRun {
    /// The error for calls that would continue an ended run.
    pub(crate) fn has_ended(&self) -> Error {
        let (agent, run) = (self.agent.clone(), self.run.clone());
        Error::RunEnded { agent, run, status: self.status }
    }

    /// A new run.
    pub(crate) fn new(run_no: RunNo, agent: AgentId, run: RunId, at: Timestamp) -> Self {
        Self {
            run_no,
            agent,
            run,
            document: false,
            row: None,
            fresh: Vec::new(),
            next_seq: Seq(0),
            created_at: at,
            started: false,
            status: RunStatus::InProgress,
            touched: false,
            pending: false,
            has_writer: false,
            is_newest: false,
            unread: None,
        }
    }

    /// A run that the catalog knows.
    pub(crate) fn from_row(row: RunRow) -> Self {
        let mut run = Self::new(row.run_no, row.agent.clone(), row.run.clone(), row.created_at);
        (run.document, run.next_seq, run.status) = (row.document, row.next_seq, row.status);
        run.started = row.started_at.is_some();
        run.row = Some(row);
        run
    }

    /// A run of the unsealed log of which a quarantined segment may have more.
    pub(crate) fn unread(entry: &RunEntry, lost: Corruption) -> Self {
        let at = entry.created_at.unwrap_or(entry.last_at);
        let mut run = Self::new(entry.run_no, entry.agent.clone(), entry.run.clone(), at);
        (run.document, run.unread) = (entry.document, Some(Box::new(lost)));
        run
    }

    /// Whether all that is known of it is here.
    pub(crate) fn is_read(&self) -> bool {
        self.unread.is_none()
    }

    /// The error if it takes no call.
    pub(crate) fn check_read(&self) -> Result<()> {
        let Some(lost) = &self.unread else { return Ok(()) };
        Err(Error::Corrupt((**lost).clone()).naming(&self.agent, &self.run, None))
    }

    /// Folds the entry of a segment into the row.
    fn fold(&mut self, segment: SegmentId, entry: &RunEntry) {
        match &mut self.row {
            Some(row) => row.apply(segment, entry),
            None => self.row = Some(RunRow::first(segment, entry)),
        }
    }

    /// Its place in lists: among the runs with its status, and in their order.
    fn place(&self) -> (RunStatus, RunKey) {
        (self.status, (self.created_at, self.run_no))
    }

    /// Whether it is held, as its row as of now says.
    fn is_held(&self, builder: &DirectoryBuilder) -> bool {
        let sealed = self.row.as_ref().and_then(|row| row.hold);
        let entry = builder.run(self.run_no).and_then(|built| built.entry.hold);
        match (sealed, entry) {
            (Some(sealed), Some(entry)) if sealed.lsn > entry.lsn => sealed.held,
            (_, Some(entry)) => entry.held,
            (sealed, None) => sealed.is_some_and(|hold| hold.held),
        }
    }

    /// The row as of now: sealed segments and the tail.
    pub(crate) fn row(
        &self,
        active: SegmentId,
        builder: &DirectoryBuilder,
    ) -> Result<Option<RunRow>> {
        self.check_read()?;
        let entry = builder.run(self.run_no).map(|built| &built.entry);
        Ok(match (&self.row, entry) {
            (Some(row), Some(entry)) => {
                let mut row = row.clone();
                row.apply(active, entry);
                Some(row)
            }
            (Some(row), None) => Some(row.clone()),
            (None, Some(entry)) => Some(RunRow::first(active, entry)),
            (None, None) => None,
        })
    }
}

/// The runs with one id.
#[derive(Debug, Default)]
struct SameId {
    runs: BTreeSet<(AgentId, RunNo)>,
    complete: bool,
}

/// All runs in memory.
#[derive(Debug, Default)]
pub(crate) struct ActiveRuns {
    runs: RunMap<ActiveRun>,
    by_id: HashMap<RunId, SameId>,
    /// The versions of documents, by namespace and key.
    documents: BTreeMap<AgentId, BTreeMap<RunId, Vec<RunNo>>>,
    by_agent: BTreeMap<AgentId, Places>,
    /// Those of all runs.
    places: Places,
    /// Runs and documents of which a quarantined segment may say more.
    unread: Vec<RunNo>,
    /// How many runs were left by the last `settle`.
    kept: usize,
}

impl ActiveRuns {
    /// Whether so many runs were added that some should be forgotten before another one is loaded.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= RUNS_DUE.max(2 * self.kept)
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// The numbers of all runs in memory, without versions of documents.
    pub(crate) fn run_numbers(&self) -> Vec<RunNo> {
        self.places.all().map(|key| key.1).collect()
    }

    pub(crate) fn get(&self, run_no: RunNo) -> Option<&ActiveRun> {
        self.runs.get(&run_no)
    }

    /// A run to change. Its identity and creation time must stay; use [`ActiveRuns::set_status`] to
    /// change its status.
    pub(crate) fn get_mut(&mut self, run_no: RunNo) -> Option<&mut ActiveRun> {
        self.runs.get_mut(&run_no)
    }

    /// Notes that writing a version of a document was abandoned.
    pub(crate) fn give_up(&mut self, run_no: RunNo) {
        if let Some(version) = self.runs.get_mut(&run_no) {
            version.pending = false;
        }
    }

    /// # Errors
    /// [`Error::Corrupt`] if a quarantined segment may say more of some run or document.
    pub(crate) fn check_read(&self) -> Result<()> {
        self.unread
            .iter()
            .filter_map(|run_no| self.get(*run_no))
            .try_for_each(ActiveRun::check_read)
    }

    /// The runs in memory with this id, of all agents or of one, by agent and number.
    pub(crate) fn with_id(
        &self,
        run: &str,
        agent: Option<&AgentId>,
    ) -> impl DoubleEndedIterator<Item = &(AgentId, RunNo)> {
        let bound =
            |number| agent.map_or(Bound::Unbounded, |of| Bound::Included((of.clone(), number)));
        let range = (bound(RunNo(0)), bound(RunNo(u64::MAX)));
        self.by_id.get(run).into_iter().flat_map(move |same| same.runs.range(range.clone()))
    }

    /// The newest run in memory with these ids.
    pub(crate) fn find(&self, agent: &AgentId, run: &RunId) -> Option<RunNo> {
        self.with_id(run.as_str(), Some(agent)).next_back().map(|run| run.1)
    }

    /// Whether all living runs with this id are in memory, or the newest one of this agent.
    pub(crate) fn is_complete(&self, run: &str, agent: Option<&AgentId>) -> bool {
        let newest = || self.with_id(run, Some(agent?)).next_back();
        let is_newest =
            |found: &(AgentId, RunNo)| self.get(found.1).is_some_and(|run| run.is_newest);
        self.by_id.get(run).is_some_and(|same| same.complete) || newest().is_some_and(is_newest)
    }

    /// Notes that the newest living run with these ids, if there is one, is in memory. With
    /// `are_all` all living runs with this id are.
    pub(crate) fn complete(&mut self, (agent, run): (&AgentId, &RunId), are_all: bool) {
        let newest = self.find(agent, run);
        if let Some(newest) = newest.and_then(|newest| self.runs.get_mut(&newest)) {
            newest.is_newest = true;
        }
        if are_all && let Some(same) = self.by_id.get_mut(run) {
            same.complete = true;
        }
    }

    pub(crate) fn insert(&mut self, run: ActiveRun) {
        if self.runs.contains_key(&run.run_no) {
            return;
        }
        if !run.is_read() {
            self.unread.push(run.run_no);
        }
        if run.document {
            let keys = self.documents.entry(run.agent.clone()).or_default();
            keys.entry(run.run.clone()).or_default().push(run.run_no);
            self.runs.insert(run.run_no, run);
            return;
        }
        let same = self.by_id.entry(run.run.clone()).or_default();
        same.runs.insert((run.agent.clone(), run.run_no));
        self.by_agent.entry(run.agent.clone()).or_default().insert(run.place());
        self.places.insert(run.place());
        self.runs.insert(run.run_no, run);
    }

    pub(crate) fn remove(&mut self, run_no: RunNo) {
        let Some(run) = self.runs.remove(&run_no) else { return };
        if run.document {
            let Some(keys) = self.documents.get_mut(&run.agent) else { return };
            if let Some(versions) = keys.get_mut(&run.run) {
                versions.retain(|&number| number != run_no);
                if versions.is_empty() {
                    keys.remove(&run.run);
                }
            }
            if keys.is_empty() {
                self.documents.remove(&run.agent);
            }
            return;
        }
        if let Some(same) = self.by_id.get_mut(&run.run) {
            same.runs.remove(&(run.agent.clone(), run_no));
            // It may be in the catalog.
            same.complete = false;
            if same.runs.is_empty() {
                self.by_id.remove(&run.run);
            }
        }
        if let Some(of_agent) = self.by_agent.get_mut(&run.agent) {
            of_agent.remove(run.place());
            if of_agent.is_empty() {
                self.by_agent.remove(&run.agent);
            }
        }
        self.places.remove(run.place());
    }

    pub(crate) fn set_status(&mut self, run_no: RunNo, status: RunStatus) {
        self.change_place(run_no, |run| run.status = status);
    }

    /// Changes the status or the creation time of a run, and so its place in lists.
    fn change_place(&mut self, run_no: RunNo, change: impl FnOnce(&mut ActiveRun)) {
        let Some(run) = self.runs.get_mut(&run_no) else { return };
        let old = run.place();
        change(run);
        let new = run.place();
        if old == new || run.document {
            return;
        }
        self.places.remove(old);
        self.places.insert(new);
        if let Some(of_agent) = self.by_agent.get_mut(&run.agent) {
            of_agent.remove(old);
            of_agent.insert(new);
        }
    }

    /// Folds the entry of a segment that was just sealed; `slot` is its place in the directory.
    pub(crate) fn seal(&mut self, segment: SegmentId, slot: u32, entry: &RunEntry) {
        if let Some(run) = self.runs.get_mut(&entry.run_no) {
            run.fold(segment, entry);
            run.fresh.push((segment, slot));
        }
    }

    /// Updates a run whose frames moved out of `victims`. `folded` is the fold of its entries in
    /// the outputs.
    pub(crate) fn relocate(&mut self, moved: &Relocated, folded: &RunRow, victims: &[SegmentId]) {
        let Some(run) = self.runs.get_mut(&moved.run_no) else { return };
        let Some(row) = &mut run.row else { return };
        let is_gone = |at: Option<LogPosition>| at.is_some_and(|at| victims.contains(&at.segment));
        if is_gone(row.start) {
            row.start = folded.start;
        }
        if is_gone(row.end) {
            row.end = folded.end;
        }
        if is_gone(row.hold.map(|hold| hold.at)) {
            row.hold = folded.hold;
        }
        // A compaction drops COMMITs and compresses. What is behind the catalog has not moved.
        moved.apply(row, victims);
    }

    /// Notes that the catalog covers everything through `through`: forgets what is up to there, and
    /// runs without anything left to remember. Returns whether these were many.
    pub(crate) fn settle(&mut self, through: SegmentId, builder: &DirectoryBuilder) -> bool {
        let before = self.len();
        for run in self.runs.values_mut() {
            run.fresh.retain(|(segment, _)| *segment > through);
        }
        let settled = |run: &ActiveRun| {
            let done = if run.document { !run.pending } else { run.status.is_ended() };
            let is_known = run.row.is_some() && run.fresh.is_empty();
            done && is_known && builder.run(run.run_no).is_none()
        };
        let done = self.runs.values().filter(|run| settled(run)).map(|run| run.run_no);
        for run_no in done.collect::<Vec<_>>() {
            self.remove(run_no);
        }
        let is_much = before - self.len() >= RUNS_DUE;
        self.kept = self.len();
        if is_much {
            self.runs.shrink_to(self.kept + RUNS_DUE);
            self.by_id.shrink_to(self.kept + RUNS_DUE);
        }
        is_much
    }

    /// The versions of all documents in memory, without those that are not written yet.
    pub(crate) fn versions_all(&self) -> impl Iterator<Item = RunNo> + '_ {
        let versions = self.documents.values().flat_map(BTreeMap::values).flatten().copied();
        versions.filter(|number| self.runs.get(number).is_some_and(|run| !run.pending))
    }

    /// The versions of a document in memory, unordered.
    pub(crate) fn versions(&self, namespace: &str, key: &str) -> &[RunNo] {
        let versions = self.documents.get(namespace).and_then(|keys| keys.get(key));
        versions.map(Vec::as_slice).unwrap_or_default()
    }

    /// The documents of a namespace that have versions in memory, by key, from a key on.
    pub(crate) fn documents<'h>(
        &'h self,
        namespace: &str,
        from: Bound<&str>,
    ) -> impl Iterator<Item = (&'h str, &'h [RunNo])> {
        let keys = self.documents.get(namespace).into_iter();
        let behind = keys.flat_map(move |keys| keys.range::<str, _>((from, Bound::Unbounded)));
        behind.map(|(key, versions)| (key.as_str(), versions.as_slice()))
    }

    /// The first runs of a list that are in memory, in its order, up to `limit`.
    pub(crate) fn listed(
        &self,
        list: &RunList<'_>,
        limit: usize,
        builder: &DirectoryBuilder,
    ) -> Vec<RunKey> {
        let places = match list.agent {
            Some(agent) => self.by_agent.get(agent),
            None => Some(&self.places),
        };
        let is_held = |run_no| self.runs.get(&run_no).is_some_and(|run| run.is_held(builder));
        let is_wanted = |key: &RunKey| list.held.is_none_or(|held| is_held(key.1) == held);
        places.map(|places| places.listed(list, limit, is_wanted)).unwrap_or_default()
    }

    /// Agents with an id above `after`, ascending.
    pub(crate) fn agents(&self, after: Option<&AgentId>, limit: usize) -> Vec<AgentId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let agents = self.by_agent.range::<AgentId, _>((from, Bound::Unbounded));
        agents.take(limit).map(|(agent, _)| agent.clone()).collect()
    }
}
