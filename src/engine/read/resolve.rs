//! Looking runs up, without a scan of the log or of the whole index.
//!
//! The catalog answers for everything up to its position, memory for what changed since. A row that
//! both know comes from memory, which has the later part of the story.

use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::state::active_runs::HotRun;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::Payload;
use crate::engine::state::segment::Segment;
use crate::error::{Error, Place, Result};
use crate::format::FrameHeader;
use crate::format::frames::frame::decode_ids;
use crate::index::RunRow;
use crate::types::{AgentId, LogPosition, RunId, RunNo, RunRef, SegmentId};

impl Reader {
    /// The numbers of all living runs with this id.
    fn numbers(&self, state: &LogState, run: &str) -> Result<Vec<RunNo>> {
        let (hot, complete) = state.hot.by_id(run);
        if complete {
            return Ok(hot.to_vec());
        }
        let mut numbers = self.find(&state.catalog, run, false)?.numbers.clone();
        numbers.extend_from_slice(hot);
        numbers.sort_unstable();
        numbers.dedup();
        numbers.retain(|number| !state.deleted.contains(number));
        Ok(numbers)
    }

    /// The one run that is meant.
    pub(crate) fn resolve(&self, state: &LogState, run: RunRef<'_>) -> Result<RunNo> {
        RunId::check(run.run())?;
        let agent = run.agent().map(AgentId::new).transpose()?;
        let numbers = self.numbers(state, run.run())?;
        if let Some(number) = run.number() {
            let is_there = numbers.contains(&number)
                && match &agent {
                    Some(agent) => *agent == self.agent_of_number(state, number, run.run())?,
                    None => true,
                };
            let id = RunId::new(run.run())?;
            return is_there.then_some(number).ok_or(Error::RunNotFound { run: id, agent });
        }
        if agent.is_none()
            && let [only] = numbers.as_slice()
        {
            return Ok(*only);
        }
        let mut agents = Vec::with_capacity(numbers.len());
        for number in numbers {
            let found = self.agent_of_number(state, number, run.run())?;
            if agent.as_ref() == Some(&found) {
                return Ok(number);
            }
            agents.push(found);
        }
        let id = RunId::new(run.run())?;
        if agent.is_some() || agents.is_empty() {
            return Err(Error::RunNotFound { run: id, agent });
        }
        agents.sort_unstable();
        Err(Error::Ambiguous { run: id, agents })
    }

    pub(crate) fn agent_of_number(
        &self,
        state: &LogState,
        run_no: RunNo,
        run: &str,
    ) -> Result<AgentId> {
        match state.hot.get(run_no) {
            Some(run) => Ok(run.agent.clone()),
            None => Ok(self.named_row(state, run_no, run)?.agent.clone()),
        }
    }

    /// What is known as of now of a run of which the id is known too.
    pub(crate) fn named_row(
        &self,
        state: &LogState,
        run_no: RunNo,
        run: &str,
    ) -> Result<Arc<RunRow>> {
        match state.hot.get(run_no) {
            Some(_) => self.row(state, run_no).map(Arc::new),
            None => self.find(&state.catalog, run, false)?.row(&state.catalog, run_no),
        }
    }

    /// Brings all living runs with this id into memory. Others that have ended may go from it.
    pub(crate) fn load_id(&self, state: &mut LogState, run: &str) -> Result<()> {
        if state.hot.by_id(run).1 {
            return Ok(());
        }
        if state.hot.is_full()
            && let Some(through) = state.catalog.through()
        {
            state.hot.settle(through, &state.tail.builder);
        }
        for number in self.numbers(state, run)? {
            if state.hot.get(number).is_none() {
                state.hot.insert(HotRun::from_row(state.catalog.row(number)?));
            }
        }
        state.hot.complete(run);
        Ok(())
    }

    /// Brings a run into memory.
    pub(crate) fn load(&self, state: &mut LogState, run_no: RunNo) -> Result<()> {
        if state.hot.get(run_no).is_some() {
            return Ok(());
        }
        let row = self.row(state, run_no)?;
        self.load_id(state, row.run.as_str())
    }

    /// What is known of a run as of now.
    pub(crate) fn row(&self, state: &LogState, run_no: RunNo) -> Result<RunRow> {
        if let Some(run) = state.hot.get(run_no)
            && let Some(row) = run.row(state.tail.segment.id(), &state.tail.builder)
        {
            return Ok(row);
        }
        // A number that was given out once and is not known any more was evicted.
        match state.catalog.ask(|catalog| catalog.row(run_no))? {
            Some(row) if !state.deleted.contains(&run_no) => Ok(row),
            row => Err(Error::Evicted { run: row.map(|row| row.run) }),
        }
    }

    /// What the START of a run says, if it has one: its header, and the metadata.
    pub(crate) fn start_frame(
        &self,
        state: &LogState,
        run_no: RunNo,
    ) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let start = self.frame_at(state, self.row(state, run_no)?.start)?;
        let metadata = |(header, payload): (FrameHeader, Payload)| {
            let (_, _, metadata) = decode_ids(&payload)
                .map_err(|damage| Error::corrupt(Place::Frame(header.position), damage))?;
            Ok((header, metadata.to_vec()))
        };
        start.map(metadata).transpose()
    }

    /// The END frame of a run, if it has one.
    pub(crate) fn end_frame(
        &self,
        state: &LogState,
        run_no: RunNo,
    ) -> Result<Option<(FrameHeader, Payload)>> {
        self.frame_at(state, self.row(state, run_no)?.end)
    }

    pub(crate) fn frame_at(
        &self,
        state: &LogState,
        at: Option<LogPosition>,
    ) -> Result<Option<(FrameHeader, Payload)>> {
        let Some(at) = at else { return Ok(None) };
        let Some(segment) = segment(state, at.segment) else { return Ok(None) };
        let frame = segment.check_frame(at.offset, |_, error| error)?;
        let (header, payload) = (frame.header, segment.keep(frame));
        segment.count_mapped(u64::from(payload.is_view()));
        Ok(Some((header, payload)))
    }
}

/// The segment with this number, if it still counts.
pub(crate) fn segment(state: &LogState, id: SegmentId) -> Option<Arc<Segment>> {
    if state.tail.segment.id() == id {
        return Some(Arc::clone(&state.tail.segment));
    }
    if let Some(segment) = state.catalog.segment(id) {
        return Some(Arc::clone(segment));
    }
    state.unapplied.iter().find(|segment| segment.id() == id).cloned()
}
