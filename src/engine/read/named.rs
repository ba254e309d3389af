//! From the id of a run to what is asked: what memory and the catalog know about the runs with one
//! id, as of one moment. It is copied under the lock on the log's state and queried without it,
//! since the catalog and frames may have to be read.

use core::cell::OnceCell;
use core::cmp::Reverse;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::read::Reader;
use crate::engine::read::resolve::frame_in;
use crate::engine::read::trace::{Pin, Trace};
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::Payload;
use crate::engine::state::run_slice::{Opened, RunSlice};
use crate::engine::state::segment::Segment;
use crate::engine::state::stored_run::{Name, StoredRun, StoredRuns};
use crate::engine::values::summary::RunSummary;
use crate::engine::values::{RunMetadata, RunOutcome};
use crate::error::{Damage, Error, Place, Result};
use crate::format::FrameHeader;
use crate::format::frames::ids::decode_ids;
use crate::format::segments::run_set::RunSet;
use crate::index::RunRow;
use crate::types::{AgentId, ContentType, LogPosition, RunId, RunNo, RunRef, RunStatus};

/// The runs that a name may refer to.
pub(crate) struct Named<'r> {
    run: RunRef<'r>,
    agent: Option<AgentId>,
    pub(crate) catalog: Arc<Catalog>,
    deleted: Arc<RunSet>,
    /// The runs in memory that the name can refer to.
    in_memory: Vec<(AgentId, RunNo)>,
    /// Whether there are no others.
    complete: bool,
    /// The newest of them.
    candidate: Option<Candidate>,
    /// The living runs in the catalog that the name can refer to, once it was asked.
    stored: OnceCell<StoredRuns>,
}

/// How much to copy about a run in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Its number and its agent.
    Name,
    /// Its row, and the frames that the row names.
    Row,
    /// The places of its records.
    Records,
}

/// A run in memory.
struct Candidate {
    run_no: RunNo,
    row: Option<Box<RunRow>>,
    /// The segments with the frames that the row names, of those that the catalog does not cover.
    segments: Vec<Arc<Segment>>,
    slices: Slices,
}

/// The slices of a run in segments that the catalog does not cover.
#[derive(Default)]
pub(crate) struct Slices {
    /// Sealed segments, and the slot of the run in each.
    sealed: Vec<(Arc<Segment>, u32)>,
    /// The slices in the tail.
    tail: Vec<RunSlice>,
}

impl Slices {
    /// The slices of a run.
    pub(crate) fn of(state: &LogState, run_no: RunNo) -> Self {
        let fresh = state.active.get(run_no).map_or(&[][..], |active| &active.fresh);
        let sealed = fresh.iter().filter_map(|(id, slot)| Some((state.segment(*id)?, *slot)));
        Self { sealed: sealed.collect(), tail: RunSlice::in_tail(&state.tail, run_no) }
    }

    /// Reads the slices from the directories.
    pub(crate) fn read(&self, run_no: RunNo) -> Result<Vec<RunSlice>> {
        let mut slices = Vec::with_capacity(self.sealed.len() + self.tail.len());
        for (segment, slot) in &self.sealed {
            let at = segment.in_directory(|directory| directory.place(*slot))?;
            RunSlice::add_sealed(&mut slices, segment, at, run_no)?;
        }
        slices.extend(self.tail.iter().cloned());
        Ok(slices)
    }

    /// All slices of the run: those of the catalog, and these after them.
    pub(crate) fn behind(
        &self,
        stored: Option<&StoredRun>,
        run_no: RunNo,
    ) -> Result<Arc<[RunSlice]>> {
        let mut slices = self.read(run_no)?;
        if let Some(stored) = stored {
            stored.add_parts(&mut slices)?;
        }
        RunSlice::sort(&mut slices);
        Ok(slices.into())
    }
}

impl<'r> Named<'r> {
    /// What is known about the runs with this name.
    fn of(state: &LogState, run: RunRef<'r>, detail: Detail) -> Result<Self> {
        RunId::check(run.run())?;
        let agent = run.agent().map(AgentId::new).transpose()?;
        let may_be = |found: &&(_, RunNo)| run.number().is_none_or(|wanted| wanted == found.1);
        let in_memory = state.active.with_id(run.run(), agent.as_ref()).filter(may_be);
        let in_memory: Vec<_> = in_memory.cloned().collect();
        let is_there = run.number().is_none() || !in_memory.is_empty();
        let complete = is_there && state.active.is_complete(run.run(), agent.as_ref());
        let candidate = in_memory.iter().map(|found| found.1).max();
        let candidate = candidate.map(|run_no| Candidate::of(state, run_no, detail));
        let candidate = candidate.transpose()?.flatten();
        let (catalog, deleted) = (Arc::clone(&state.catalog), Arc::clone(&state.deleted));
        let stored = OnceCell::new();
        Ok(Self { run, agent, catalog, deleted, in_memory, complete, candidate, stored })
    }

    /// The living runs in the catalog with the id, of the agent if it is named, by number.
    fn stored(&self) -> Result<&[StoredRun]> {
        if self.stored.get().is_none() {
            let name = Name::Run(self.run.run(), self.run.agent());
            let stored = self.catalog.stored(name, &self.deleted)?;
            let _ = self.stored.set(stored);
        }
        Ok(self.stored.get().map(|stored| &stored[..]).unwrap_or_default())
    }

    fn stored_run(&self, run_no: RunNo) -> Result<Option<&StoredRun>> {
        Ok(self.stored()?.iter().find(|run| run.run_no == run_no))
    }

    /// The one run that the name refers to, and its agent: of several runs of one agent, which only
    /// a lost deletion leaves, the newest.
    pub(crate) fn resolve(&self) -> Result<(RunNo, AgentId)> {
        let stored = if self.complete { &[][..] } else { self.stored()? };
        let stored = stored.iter().map(|run| (&run.agent, run.run_no));
        let all = self.in_memory.iter().map(|(agent, run_no)| (agent, *run_no)).chain(stored);
        let may_be = |run_no| {
            !self.deleted.contains(run_no) && self.run.number().is_none_or(|no| no == run_no)
        };
        let mut all: SmallVec<[_; 2]> = all.filter(|found| may_be(found.1)).collect();
        all.sort_unstable_by_key(|&(agent, run_no)| (agent, Reverse(run_no)));
        all.dedup_by_key(|found| found.0);
        let run = || RunId::new(self.run.run());
        match &all[..] {
            [] => Err(Error::RunNotFound { run: run()?, agent: self.agent.clone() }),
            [(agent, run_no)] => Ok((*run_no, (*agent).clone())),
            all => {
                let agents = all.iter().map(|(agent, _)| (*agent).clone()).collect();
                Err(Error::Ambiguous { run: run()?, agents })
            }
        }
    }

    /// The row of one of the runs, which was resolved before.
    pub(crate) fn row(&self, run_no: RunNo) -> Result<RunRow> {
        let candidate = self.candidate.as_ref().filter(|run| run.run_no == run_no);
        match candidate.and_then(|run| run.row.clone()) {
            Some(row) => Ok(*row),
            None => self.stored_run(run_no)?.ok_or_else(unlisted)?.row(),
        }
    }

    /// The frame at a position in the row of one of the runs.
    pub(crate) fn frame(&self, at: Option<LogPosition>) -> Result<Option<(FrameHeader, Payload)>> {
        let Some(at) = at else { return Ok(None) };
        let fresh = self.candidate.iter().flat_map(|run| &run.segments);
        let mut all = fresh.chain(self.catalog.segment(at.segment));
        let segment = all.find(|one| one.id() == at.segment).ok_or_else(unlisted)?;
        frame_in(segment, at.offset).map(Some)
    }

    /// Opens one of the runs, which was resolved before, for reading.
    pub(crate) fn open(&self, (run_no, agent): (RunNo, AgentId)) -> Result<Opened> {
        let nothing = Slices::default();
        let candidate = self.candidate.as_ref().filter(|run| run.run_no == run_no);
        let fresh = candidate.map_or(&nothing, |run| &run.slices);
        let parts = fresh.behind(self.stored_run(run_no)?, run_no)?;
        Ok(Opened::new(agent, RunId::new(self.run.run())?, parts))
    }
}

impl Candidate {
    fn of(state: &LogState, run_no: RunNo, detail: Detail) -> Result<Option<Self>> {
        let (mut row, mut segments, mut slices) = (None, Vec::new(), Slices::default());
        match detail {
            Detail::Name => return Ok(None),
            Detail::Row => {
                row = state.row_in_memory(run_no)?.map(Box::new);
                let at =
                    row.iter().flat_map(|row| [row.start, row.end, row.hold.map(|hold| hold.at)]);
                let fresh = at.flatten().filter(|at| state.catalog.segment(at.segment).is_none());
                segments.extend(fresh.filter_map(|at| state.segment(at.segment)));
            }
            Detail::Records => slices = Slices::of(state, run_no),
        }
        Ok(Some(Self { run_no, row, segments, slices }))
    }
}

impl Reader {
    /// The trace of a run as of now.
    pub(crate) fn trace(&self, run: RunRef<'_>) -> Result<Trace> {
        let (opened, run_no) = self.open_run(run)?;
        let pin = self.setup.options.compaction.pin_age.map(|most| Pin {
            clock: Arc::clone(&self.setup.options.environment.clock),
            since: self.setup.now(),
            most,
        });
        Ok(Trace::new(opened, run_no, pin))
    }

    fn open_run(&self, run: RunRef<'_>) -> Result<(Arc<Opened>, RunNo)> {
        let named = {
            let state = self.open()?;
            if let Some(known) = only_in_memory(&state, run)
                && let Some(opened) = open_new(&state, known.run_no)
            {
                return Ok((opened, known.run_no));
            }
            Named::of(&state, run, Detail::Records)?
        };
        let found = named.resolve()?;
        let run_no = found.0;
        Ok((Arc::new(named.open(found)?), run_no))
    }

    /// What is known about the runs with this name.
    pub(crate) fn named<'r>(&self, run: RunRef<'r>, detail: Detail) -> Result<Named<'r>> {
        let state = self.open()?;
        Named::of(&state, run, detail)
    }

    /// The agent that has this run.
    pub(crate) fn agent_of(&self, run: &str) -> Result<AgentId> {
        let named = {
            let (state, run) = (self.open()?, RunRef::from(run));
            if let Some(known) = only_in_memory(&state, run) {
                return Ok(known.agent.clone());
            }
            Named::of(&state, run, Detail::Name)?
        };
        Ok(named.resolve()?.1)
    }

    /// The summary of a run.
    pub(crate) fn summary(&self, run: RunRef<'_>) -> Result<RunSummary> {
        let named = self.named(run, Detail::Row)?;
        let row = named.row(named.resolve()?.0)?;
        Ok(RunSummary::from_row(row))
    }

    /// The metadata of a run's START, if it has one.
    pub(crate) fn metadata(&self, run: RunRef<'_>) -> Result<Option<RunMetadata>> {
        let named = self.named(run, Detail::Row)?;
        let row = named.row(named.resolve()?.0)?;
        let start = named.frame(row.start).and_then(|start| {
            start.map(|(header, payload)| metadata_in(&header, &payload)).transpose()
        });
        start.map_err(|error| error.naming(&row.agent, &row.run, None))
    }

    /// How a run ended, if it has ended.
    pub(crate) fn outcome(&self, run: RunRef<'_>) -> Result<Option<RunOutcome>> {
        let named = self.named(run, Detail::Row)?;
        let row = named.row(named.resolve()?.0)?;
        let end = named.frame(row.end).map_err(|error| error.naming(&row.agent, &row.run, None));
        let Some((header, payload)) = end? else { return Ok(None) };
        Ok(Some(outcome_in(&header, &payload)))
    }
}

/// The only run with an id, if memory says which one it is: the fast path of lookups.
fn only_in_memory<'s>(state: &'s LogState, run: RunRef<'_>) -> Option<&'s ActiveRun> {
    if run.agent().is_some() || run.number().is_some() {
        return None;
    }
    let mut runs = state.active.with_id(run.run(), None);
    let only = runs.next().filter(|_| runs.next().is_none())?;
    state.active.get(only.1).filter(|_| state.active.is_complete(run.run(), None))
}

/// A run that begins in the tail's segment, so that no other segment has frames of it: the fast
/// path for the newest runs.
fn open_new(state: &LogState, run_no: RunNo) -> Option<Arc<Opened>> {
    let entry = &state.tail.builder.run(run_no)?.entry;
    entry.created_at?;
    let mut parts = RunSlice::in_tail(&state.tail, run_no);
    RunSlice::sort(&mut parts);
    let parts = parts.into();
    Some(Arc::new(Opened::new(entry.agent.clone(), entry.run.clone(), parts)))
}

/// The outcome in the frame of an END.
pub(crate) fn outcome_in(header: &FrameHeader, payload: &[u8]) -> RunOutcome {
    let status = RunStatus::from_code(header.content.code()).unwrap_or(RunStatus::Interrupted);
    let (content, bytes) = payload.split_first().unwrap_or((&0, &[]));
    let content = ContentType::from_code(*content);
    RunOutcome { status, at: header.at, content, payload: bytes.to_vec() }
}

/// The metadata in the frame of a START.
pub(crate) fn metadata_in(header: &FrameHeader, payload: &[u8]) -> Result<RunMetadata> {
    let (_, _, metadata) = decode_ids(payload)
        .map_err(|damage| Error::corrupt(Place::Frame(header.position), damage))?;
    Ok(RunMetadata { content: header.content, payload: metadata.to_vec() })
}

/// The error for a run that the catalog lists but has no data of.
pub(crate) fn unlisted() -> Error {
    Error::corrupt(Place::Index, Damage::Missing)
}
