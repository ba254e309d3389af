//! The runs that the engine keeps in memory: all that changed since the catalog's position, and
//! all that are in progress and were touched since the store was opened. Where an id is marked as
//! complete, all living runs with that id are here.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::error::Error;
use crate::format::segments::run_map::RunMap;
use crate::format::{DirectoryBuilder, RunEntry};
use crate::index::{RunRow, Span};
use crate::types::{AgentId, LogPosition, RunId, RunNo, RunStatus, SegmentId, Seq, Timestamp};

/// A checkpoint is due, and soon late, when this many runs are in memory, about a kilobyte each.
pub(crate) const RUNS_DUE: usize = 8 << 10;

/// A run in memory.
#[derive(Debug, Clone)]
pub(crate) struct ActiveRun {
    pub(crate) run_no: RunNo,
    pub(crate) agent: AgentId,
    pub(crate) run: RunId,
    /// It is no run but a version of a document.
    pub(crate) document: bool,
    /// Everything that sealed segments say of the run.
    row: Option<RunRow>,
    /// Where the run is in sealed segments that the catalog does not cover.
    pub(crate) spans: Vec<Span>,
    /// The sequence of the next record.
    pub(crate) next_seq: Seq,
    /// Its place in lists, which stays while it is in memory: what is said of a lost beginning
    /// changes as the run goes on.
    pub(crate) created_at: Timestamp,
    /// The frame that it began with is lost.
    pub(crate) lost_beginning: bool,
    /// It has an explicit start.
    pub(crate) started: bool,
    pub(crate) status: RunStatus,
    /// It was started or appended to since the store was opened.
    pub(crate) touched: bool,
    /// A version of a document of which chunks are being written.
    pub(crate) pending: bool,
    /// A caller has a writer of it.
    pub(crate) has_writer: bool,
}

impl ActiveRun {
    /// What refuses who would go on with it.
    pub(crate) fn has_ended(&self) -> Error {
        let (agent, run) = (self.agent.clone(), self.run.clone());
        Error::RunEnded { agent, run, status: self.status }
    }

    /// A run that comes into being.
    pub(crate) fn new(run_no: RunNo, agent: AgentId, run: RunId, at: Timestamp) -> Self {
        Self {
            run_no,
            agent,
            run,
            document: false,
            row: None,
            spans: Vec::new(),
            next_seq: Seq(0),
            created_at: at,
            lost_beginning: false,
            started: false,
            status: RunStatus::InProgress,
            touched: false,
            pending: false,
            has_writer: false,
        }
    }

    /// A run that the catalog knows.
    pub(crate) fn from_row(row: RunRow) -> Self {
        let mut run = Self::new(row.run_no, row.agent.clone(), row.run.clone(), row.created_at);
        (run.document, run.next_seq, run.status) = (row.document, row.next_seq, row.status);
        run.started = row.started_at.is_some();
        run.lost_beginning = !row.created_said;
        run.row = Some(row);
        run
    }

    /// Folds what a segment says of the run.
    fn fold(&mut self, segment: SegmentId, entry: &RunEntry) {
        match &mut self.row {
            Some(row) => row.apply(segment, entry),
            None => self.row = Some(RunRow::first(segment, entry)),
        }
    }

    /// The row as of now: what sealed segments say and what the active one adds.
    pub(crate) fn row(&self, active: SegmentId, builder: &DirectoryBuilder) -> Option<RunRow> {
        let entry = builder.run(self.run_no).map(|built| &built.entry);
        let mut row = match (&self.row, entry) {
            (Some(row), Some(entry)) => {
                let mut row = row.clone();
                row.apply(active, entry);
                row
            }
            (Some(row), None) => row.clone(),
            (None, Some(entry)) => RunRow::first(active, entry),
            (None, None) => return None,
        };
        if self.lost_beginning && !row.created_said {
            row.created_at = self.created_at;
        }
        Some(row)
    }
}

/// The runs with one id.
#[derive(Debug, Default)]
struct SameId {
    numbers: Vec<RunNo>,
    complete: bool,
}

/// All runs in memory.
#[derive(Debug, Default)]
pub(crate) struct ActiveRuns {
    runs: RunMap<ActiveRun>,
    by_id: HashMap<RunId, SameId>,
    /// The versions of documents, by namespace and key.
    documents: BTreeMap<AgentId, BTreeMap<RunId, Vec<RunNo>>>,
    by_agent: BTreeMap<AgentId, BTreeSet<(Timestamp, RunNo)>>,
    by_time: BTreeSet<(Timestamp, RunNo)>,
    in_progress: BTreeSet<RunNo>,
    /// Runs of which the catalog may list another creation time than memory, so that memory alone
    /// lists them.
    lost_beginnings: Arc<HashSet<RunNo>>,
    /// How many were left when others were forgotten last.
    kept: usize,
}

impl ActiveRuns {
    /// So many came since that some should be forgotten before another one is brought in.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= RUNS_DUE.max(2 * self.kept)
    }

    pub(crate) fn len(&self) -> usize {
        self.runs.len()
    }

    /// The numbers of all runs in memory, without versions of documents.
    pub(crate) fn run_numbers(&self) -> Vec<RunNo> {
        self.by_time.iter().map(|key| key.1).collect()
    }

    pub(crate) fn get(&self, run_no: RunNo) -> Option<&ActiveRun> {
        self.runs.get(&run_no)
    }

    /// A run to be changed; its identity and creation time must stay, and a change of its status
    /// goes through [`ActiveRuns::set_status`].
    pub(crate) fn get_mut(&mut self, run_no: RunNo) -> Option<&mut ActiveRun> {
        self.runs.get_mut(&run_no)
    }

    /// A version of a document is not being written any more, and was not finished.
    pub(crate) fn give_up(&mut self, run_no: RunNo) {
        if let Some(version) = self.runs.get_mut(&run_no) {
            version.pending = false;
        }
    }

    /// The runs with this id in memory, and whether these are all.
    pub(crate) fn by_id(&self, run: &str) -> (&[RunNo], bool) {
        match self.by_id.get(run) {
            Some(same) => (&same.numbers, same.complete),
            None => (&[], false),
        }
    }

    /// All living runs with this id are in memory, and there is at least one.
    pub(crate) fn complete(&mut self, run: &str) {
        if let Some(same) = self.by_id.get_mut(run) {
            same.complete = true;
        }
    }

    pub(crate) fn insert(&mut self, run: ActiveRun) {
        if self.runs.contains_key(&run.run_no) {
            return;
        }
        if run.document {
            let keys = self.documents.entry(run.agent.clone()).or_default();
            keys.entry(run.run.clone()).or_default().push(run.run_no);
            self.runs.insert(run.run_no, run);
            return;
        }
        self.by_id.entry(run.run.clone()).or_default().numbers.push(run.run_no);
        let of_agent = self.by_agent.entry(run.agent.clone()).or_default();
        of_agent.insert((run.created_at, run.run_no));
        self.by_time.insert((run.created_at, run.run_no));
        if !run.status.is_ended() {
            self.in_progress.insert(run.run_no);
        }
        if run.lost_beginning {
            Arc::make_mut(&mut self.lost_beginnings).insert(run.run_no);
        }
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
            same.numbers.retain(|&number| number != run_no);
            if same.numbers.is_empty() {
                self.by_id.remove(&run.run);
            }
        }
        if let Some(of_agent) = self.by_agent.get_mut(&run.agent) {
            of_agent.remove(&(run.created_at, run_no));
            if of_agent.is_empty() {
                self.by_agent.remove(&run.agent);
            }
        }
        self.by_time.remove(&(run.created_at, run_no));
        self.in_progress.remove(&run_no);
        if run.lost_beginning {
            Arc::make_mut(&mut self.lost_beginnings).remove(&run_no);
        }
    }

    pub(crate) fn set_status(&mut self, run_no: RunNo, status: RunStatus) {
        if let Some(run) = self.runs.get_mut(&run_no) {
            run.status = status;
            if status.is_ended() {
                self.in_progress.remove(&run_no);
            } else {
                self.in_progress.insert(run_no);
            }
        }
    }

    /// Folds the entry of a segment that was just sealed; `slot` is its place in the directory.
    pub(crate) fn seal(&mut self, segment: SegmentId, slot: u32, entry: &RunEntry) {
        if let Some(run) = self.runs.get_mut(&entry.run_no) {
            run.fold(segment, entry);
            run.spans.push(Span::new(segment, slot, entry));
        }
    }

    /// Frames of a run moved out of `victims`; `moved` is what the catalog says of it since.
    pub(crate) fn relocate(&mut self, moved: &RunRow, victims: &BTreeSet<SegmentId>) {
        let run = self.runs.get_mut(&moved.run_no);
        let Some(row) = run.and_then(|run| run.row.as_mut()) else { return };
        let is_gone = |at: Option<LogPosition>| at.is_some_and(|at| victims.contains(&at.segment));
        // What counts of these, and lies in front of the catalog's position, counts there too.
        if is_gone(row.start) {
            row.start = moved.start;
        }
        if is_gone(row.end) {
            row.end = moved.end;
        }
        if is_gone(row.hold.map(|hold| hold.at)) {
            row.hold = moved.hold;
        }
    }

    /// The catalog covers everything through `through`: forgets spans up to there, and runs of
    /// which nothing is left to remember.
    pub(crate) fn settle(&mut self, through: SegmentId, builder: &DirectoryBuilder) {
        for run in self.runs.values_mut() {
            run.spans.retain(|span| span.segment > through);
        }
        let settled = |run: &ActiveRun| {
            let done = if run.document { !run.pending } else { run.status.is_ended() };
            let is_known = run.row.is_some() && run.spans.is_empty();
            done && is_known && builder.run(run.run_no).is_none()
        };
        let versions = self.documents.values().flat_map(BTreeMap::values).flatten().copied();
        let versions = versions.filter(|number| self.runs.get(number).is_some_and(settled));
        let done: Vec<RunNo> = self
            .by_id
            .values()
            .filter(|same| {
                same.numbers.iter().all(|number| self.runs.get(number).is_some_and(settled))
            })
            .flat_map(|same| same.numbers.iter().copied())
            .chain(versions)
            .collect();
        for run_no in done {
            self.remove(run_no);
        }
        self.kept = self.len();
    }

    /// The versions of a document in memory, in no order.
    pub(crate) fn versions(&self, namespace: &str, key: &str) -> &[RunNo] {
        let versions = self.documents.get(namespace).and_then(|keys| keys.get(key));
        versions.map(Vec::as_slice).unwrap_or_default()
    }

    /// The versions of documents of a namespace in memory, by key, from a key on.
    pub(crate) fn documents<'h>(
        &'h self,
        namespace: &str,
        from: Bound<&str>,
    ) -> impl Iterator<Item = (&'h str, &'h [RunNo])> {
        let keys = self.documents.get(namespace).into_iter();
        let behind = keys.flat_map(move |keys| keys.range::<str, _>((from, Bound::Unbounded)));
        behind.map(|(key, versions)| (key.as_str(), versions.as_slice()))
    }

    /// The runs that memory alone lists.
    pub(crate) fn lost_beginnings(&self) -> Arc<HashSet<RunNo>> {
        Arc::clone(&self.lost_beginnings)
    }

    /// The beginning of a run in memory was found behind other frames of it.
    pub(crate) fn begin(&mut self, run_no: RunNo, at: Timestamp) {
        if let Some(mut run) = self.runs.get(&run_no).filter(|run| run.lost_beginning).cloned() {
            self.remove(run_no);
            (run.created_at, run.lost_beginning) = (at, false);
            self.insert(run);
        }
    }

    /// The newest runs of an agent, or of all, that are older than `before`.
    pub(crate) fn newest(
        &self,
        agent: Option<&str>,
        before: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Vec<RunNo> {
        let before = before.unwrap_or((Timestamp(i64::MAX), RunNo(u64::MAX)));
        let runs = match agent {
            Some(agent) => self.by_agent.get(agent),
            None => Some(&self.by_time),
        };
        let mut numbers = Vec::with_capacity(limit.min(64));
        let older = runs.into_iter().flat_map(|runs| runs.range(..before).rev());
        numbers.extend(older.take(limit).map(|key| key.1));
        numbers
    }

    /// Runs in progress with a number above `after`, ascending.
    pub(crate) fn in_progress(&self, after: Option<RunNo>, limit: usize) -> Vec<RunNo> {
        let from = after.map_or(0, |after| after.0.saturating_add(1));
        self.in_progress.range(RunNo(from)..).take(limit).copied().collect()
    }

    /// Agents with an id above `after`, ascending.
    pub(crate) fn agents(&self, after: Option<&AgentId>, limit: usize) -> Vec<AgentId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let agents = self.by_agent.range::<AgentId, _>((from, Bound::Unbounded));
        agents.take(limit).map(|(agent, _)| agent.clone()).collect()
    }
}
