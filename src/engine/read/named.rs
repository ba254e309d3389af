//! From the id of a run to what is asked: what memory and the catalog know about the runs with one
//! id, as of one moment. It is copied under the lock on the log's state and queried without it,
//! since the catalog and frames may have to be read.

use core::cell::OnceCell;
use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::read::resolve::frame_in;
use crate::engine::read::trace::{Pin, Trace};
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::location_cache::Found;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::Payload;
use crate::engine::state::run_slice::{Opened, RunSlice};
use crate::engine::state::segment::Segment;
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
    /// The runs in memory, and their agents.
    in_memory: Vec<(RunNo, AgentId)>,
    /// Whether all living runs with the id are in memory.
    complete: bool,
    /// The run in memory that the name can refer to.
    candidate: Option<Candidate>,
    /// What the catalog knows about the id, once it was asked.
    found: OnceCell<Arc<Found>>,
    /// The most ids whose answers the catalog keeps.
    kept: usize,
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
        let spans = state.active.get(run_no).map_or(&[][..], |active| &active.spans);
        let sealed =
            spans.iter().filter_map(|span| Some((state.segment(span.segment)?, span.slot)));
        Self { sealed: sealed.collect(), tail: RunSlice::in_tail(&state.tail, run_no) }
    }

    /// Reads the slices from the directories.
    pub(crate) fn read(&self, run_no: RunNo) -> Result<Vec<RunSlice>> {
        let mut slices = Vec::with_capacity(self.sealed.len() + self.tail.len());
        for (segment, slot) in &self.sealed {
            RunSlice::add_sealed(&mut slices, segment, *slot, run_no)?;
        }
        slices.extend(self.tail.iter().cloned());
        Ok(slices)
    }

    /// All slices of the run: those of the catalog, and these after them.
    pub(crate) fn behind(&self, sealed: &[RunSlice], run_no: RunNo) -> Result<Arc<[RunSlice]>> {
        let mut slices: Vec<_> = sealed.iter().cloned().chain(self.read(run_no)?).collect();
        RunSlice::sort(&mut slices);
        Ok(slices.into())
    }
}

impl<'r> Named<'r> {
    /// What is known about the runs with this name.
    fn of(state: &LogState, run: RunRef<'r>, detail: Detail, kept: usize) -> Result<Self> {
        RunId::check(run.run())?;
        let agent = run.agent().map(AgentId::new).transpose()?;
        let (numbers, complete) = state.active.by_id(run.run());
        let agents =
            numbers.iter().filter_map(|&no| Some((no, state.active.get(no)?.agent.clone())));
        let in_memory: Vec<_> = agents.collect();
        let may_be = |(number, of): &&(RunNo, AgentId)| {
            run.number().is_none_or(|wanted| wanted == *number)
                && agent.as_ref().is_none_or(|wanted| wanted == of)
        };
        let candidate = in_memory.iter().filter(may_be).map(|&(run_no, _)| run_no).max();
        let candidate = candidate.map(|run_no| Candidate::of(state, run_no, detail));
        let candidate = candidate.transpose()?.flatten();
        let (catalog, deleted) = (Arc::clone(&state.catalog), Arc::clone(&state.deleted));
        let found = OnceCell::new();
        Ok(Self { run, agent, catalog, deleted, in_memory, complete, candidate, found, kept })
    }

    fn find(&self) -> Result<&Arc<Found>> {
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let is_in_memory = !self.in_memory.is_empty();
        let found = self.catalog.find(self.run.run(), is_in_memory, self.kept)?;
        Ok(self.found.get_or_init(|| found))
    }

    /// The numbers of all living runs with the id, ascending.
    fn numbers(&self) -> Result<Vec<RunNo>> {
        let in_memory = self.in_memory.iter().map(|(number, _)| *number);
        let mut numbers = if self.complete { Vec::new() } else { self.find()?.numbers.clone() };
        numbers.extend(in_memory);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| !self.deleted.contains(*number));
        Ok(numbers)
    }

    /// The one run that the name refers to.
    pub(crate) fn resolve(&self) -> Result<RunNo> {
        // Most ids have one run, which has ended and is not in memory.
        if self.in_memory.is_empty()
            && self.agent.is_none()
            && self.run.number().is_none()
            && let Some(only) = self.find()?.only().filter(|only| !self.deleted.contains(*only))
        {
            return Ok(only);
        }
        let (agent, numbers) = (self.agent.clone(), self.numbers()?);
        if let Some(number) = self.run.number() {
            let is_there = numbers.contains(&number)
                && match &agent {
                    Some(agent) => *agent == self.agent_of(number)?,
                    None => true,
                };
            let id = RunId::new(self.run.run())?;
            return is_there.then_some(number).ok_or(Error::RunNotFound { run: id, agent });
        }
        if let (None, [only]) = (&agent, numbers.as_slice()) {
            return Ok(*only);
        }
        let mut agents = Vec::with_capacity(numbers.len());
        for number in numbers {
            let found = self.agent_of(number)?;
            if agent.as_ref() == Some(&found) {
                return Ok(number);
            }
            agents.push(found);
        }
        agents.sort_unstable();
        let run = RunId::new(self.run.run())?;
        match agent {
            None if !agents.is_empty() => Err(Error::Ambiguous { run, agents }),
            agent => Err(Error::RunNotFound { run, agent }),
        }
    }

    /// The agent of one of the runs.
    pub(crate) fn agent_of(&self, run_no: RunNo) -> Result<AgentId> {
        match self.in_memory.iter().find(|(number, _)| *number == run_no) {
            Some((_, agent)) => Ok(agent.clone()),
            None => Ok(self.find()?.row(&self.catalog, run_no)?.agent.clone()),
        }
    }

    /// The row of one of the runs, which was resolved before.
    pub(crate) fn row(&self, run_no: RunNo) -> Result<Arc<RunRow>> {
        let candidate = self.candidate.as_ref().filter(|run| run.run_no == run_no);
        match candidate.and_then(|run| run.row.clone()) {
            Some(row) => Ok(Arc::new(*row)),
            None => self.find()?.row(&self.catalog, run_no),
        }
    }

    /// The frame at a position in the row of one of the runs.
    pub(crate) fn frame(&self, at: Option<LogPosition>) -> Result<Option<(FrameHeader, Payload)>> {
        let Some(at) = at else { return Ok(None) };
        let fresh = self.candidate.iter().flat_map(|run| &run.segments);
        let segment = fresh.chain(self.catalog.segment(at.segment));
        let Some(segment) = segment.into_iter().find(|one| one.id() == at.segment) else {
            return Ok(None);
        };
        frame_in(segment, at.offset).map(Some)
    }

    /// Opens one of the runs, which was resolved before, for reading.
    pub(crate) fn open(&self, run_no: RunNo) -> Result<Arc<Opened>> {
        let candidate = self.candidate.as_ref().filter(|run| run.run_no == run_no);
        let fresh = candidate.map_or(Ok(Vec::new()), |run| run.slices.read(run_no))?;
        let sealed = self.find()?.open(&self.catalog, run_no)?;
        match sealed {
            Some(opened) if fresh.is_empty() => Ok(opened),
            sealed => {
                let of = self.in_memory.iter().find(|(number, _)| *number == run_no);
                let agent = of.map(|(_, agent)| agent.clone());
                let agent = agent.or_else(|| Some(sealed.as_ref()?.agent.clone()));
                let agent = agent.ok_or_else(unlisted)?;
                let sealed = sealed.iter().flat_map(|opened| opened.parts.iter().cloned());
                let mut parts: Vec<_> = sealed.chain(fresh).collect();
                RunSlice::sort(&mut parts);
                let run = RunId::new(self.run.run())?;
                Ok(Arc::new(Opened { agent, run, parts: parts.into() }))
            }
        }
    }
}

/// The only run with an id, where memory says which one it is: the fast path of lookups.
enum Known<'s> {
    /// A run in memory.
    InMemory(&'s ActiveRun),
    /// A run that ended, and whose id was looked up before.
    InCatalog(Arc<Found>, RunNo),
}

impl<'s> Known<'s> {
    fn of(state: &'s LogState, run: RunRef<'_>) -> Option<Self> {
        if run.agent().is_some() || run.number().is_some() {
            return None;
        }
        match state.active.by_id(run.run()) {
            (&[only], true) => state.active.get(only).map(Self::InMemory),
            ([], false) => {
                let found = state.catalog.known(run.run())?;
                let only = found.only().filter(|run_no| !state.deleted.contains(*run_no))?;
                Some(Self::InCatalog(found, only))
            }
            _ => None,
        }
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
        RunId::check(run.run())?;
        // What cannot be opened so is told by the longer way.
        if let Ok(Some((opened, run_no))) = self.open_numbered(run) {
            return Ok((Arc::new(opened), run_no));
        }
        let named = {
            let state = self.open()?;
            match Known::of(&state, run) {
                Some(Known::InCatalog(found, run_no)) => {
                    if let Some(opened) = found.known_opened() {
                        return Ok((Arc::clone(opened), run_no));
                    }
                    let catalog = Arc::clone(&state.catalog);
                    drop(state);
                    let opened = found.open(&catalog, run_no)?;
                    return Ok((opened.ok_or_else(unlisted)?, run_no));
                }
                Some(Known::InMemory(run)) => {
                    if let Some(opened) = open_new(&state, run.run_no) {
                        return Ok((opened, run.run_no));
                    }
                }
                None => {}
            }
            self.named_in(&state, run, Detail::Records)?
        };
        let run_no = named.resolve()?;
        Ok((named.open(run_no)?, run_no))
    }

    /// What is known about the runs with this name.
    pub(crate) fn named<'r>(&self, run: RunRef<'r>, detail: Detail) -> Result<Named<'r>> {
        let state = self.open()?;
        self.named_in(&state, run, detail)
    }

    /// The same in a locked state.
    pub(crate) fn named_in<'r>(
        &self,
        state: &LogState,
        run: RunRef<'r>,
        detail: Detail,
    ) -> Result<Named<'r>> {
        Named::of(state, run, detail, self.setup.options.lookup_cache)
    }

    /// The agent that has this run.
    pub(crate) fn agent_of(&self, run: &str) -> Result<AgentId> {
        let named = {
            let (state, run) = (self.open()?, RunRef::from(run));
            match Known::of(&state, run) {
                Some(Known::InMemory(run)) => return Ok(run.agent.clone()),
                Some(Known::InCatalog(found, _)) => {
                    if let Some(row) = found.known_row() {
                        return Ok(row.agent.clone());
                    }
                }
                None => {}
            }
            self.named_in(&state, run, Detail::Name)?
        };
        named.agent_of(named.resolve()?)
    }

    /// The summary of a run.
    pub(crate) fn summary(&self, run: RunRef<'_>) -> Result<RunSummary> {
        let named = self.named(run, Detail::Row)?;
        let row = named.row(named.resolve()?)?;
        Ok(RunSummary::from_row(Arc::unwrap_or_clone(row)))
    }

    /// The metadata of a run's START, if it has one.
    pub(crate) fn metadata(&self, run: RunRef<'_>) -> Result<Option<RunMetadata>> {
        let named = self.named(run, Detail::Row)?;
        let row = named.row(named.resolve()?)?;
        let start = named.frame(row.start).and_then(|start| {
            start.map(|(header, payload)| metadata_in(&header, &payload)).transpose()
        });
        start.map_err(|error| error.naming(&row.agent, &row.run, None))
    }

    /// How a run ended, if it has ended.
    pub(crate) fn outcome(&self, run: RunRef<'_>) -> Result<Option<RunOutcome>> {
        let named = self.named(run, Detail::Row)?;
        let row = named.row(named.resolve()?)?;
        let end = named.frame(row.end).map_err(|error| error.naming(&row.agent, &row.run, None));
        let Some((header, payload)) = end? else { return Ok(None) };
        Ok(Some(outcome_in(&header, &payload)))
    }
}

/// A run that begins in the tail's segment, so that no other segment has frames of it: the fast
/// path for the newest runs.
fn open_new(state: &LogState, run_no: RunNo) -> Option<Arc<Opened>> {
    let entry = &state.tail.builder.run(run_no)?.entry;
    entry.created_at?;
    let mut parts = RunSlice::in_tail(&state.tail, run_no);
    RunSlice::sort(&mut parts);
    let parts = parts.into();
    Some(Arc::new(Opened { agent: entry.agent.clone(), run: entry.run.clone(), parts }))
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
