//! Looking runs up, without a scan of the log or of the whole index.
//!
//! The catalog answers for everything up to its position, memory for what changed since. A row that
//! both know comes from memory, which has the later part of the story.

use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::read::named::{Detail, metadata_in};
use crate::engine::state::active_runs::HotRun;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::Payload;
use crate::engine::state::segment::Segment;
use crate::error::{Error, Result};
use crate::format::FrameHeader;
use crate::index::RunRow;
use crate::types::{ContentType, LogPosition, RunNo, RunRef};

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
        self.named_in(state, run, Detail::Name)?.resolve()
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
        if let Some(row) = state.row_in_memory(run_no) {
            return Ok(row);
        }
        // A number that was given out once and is not known any more was evicted.
        match state.catalog.ask(|catalog| catalog.row(run_no))? {
            Some(row) if !state.deleted.contains(&run_no) => Ok(row),
            row => Err(Error::Evicted { run: row.map(|row| row.run) }),
        }
    }

    /// What the START of a run says, if it has one: the content type, and the metadata.
    pub(crate) fn start_frame(
        &self,
        state: &LogState,
        run_no: RunNo,
    ) -> Result<Option<(ContentType, Vec<u8>)>> {
        let start = self.frame_at(state, self.row(state, run_no)?.start)?;
        start.map(|(header, payload)| metadata_in(&header, &payload)).transpose()
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
        let Some(segment) = state.segment(at.segment) else { return Ok(None) };
        frame_in(&segment, at.offset).map(Some)
    }
}

/// The frame at an offset of a segment, checked, with its payload to keep.
pub(crate) fn frame_in(segment: &Arc<Segment>, offset: u32) -> Result<(FrameHeader, Payload)> {
    let frame = segment.check_frame(offset, |_, error| error)?;
    let (header, payload) = (frame.header, segment.keep(frame));
    segment.count_mapped(u64::from(payload.is_view()));
    Ok((header, payload))
}
