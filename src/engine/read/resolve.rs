//! Bringing runs into memory: what the catalog knows of them is asked without the lock, and counts
//! if the catalog is still the same when the lock is taken again.

use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::setup::locks::Held;
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::{Lent, Payload};
use crate::engine::state::segment::Segment;
use crate::error::{Error, Result};
use crate::format::FrameHeader;
use crate::index::RunRow;
use crate::types::{RunNo, SegmentId};

/// How often the catalog is asked without the lock.
const ATTEMPTS: usize = 4;

/// What the catalog knows of the runs with one id, those included that are deleted by now: of these
/// the row may be gone.
pub(crate) type StoredRuns = Vec<(RunNo, Result<RunRow>)>;

impl Reader {
    /// The state of a store that is open, and what `ask` finds in the catalog that it has. The
    /// catalog is asked without the lock, and again if it was replaced meanwhile; if that happens
    /// again and again it is asked under the lock, so that this ends however fast the log grows.
    pub(crate) fn asked<K>(
        &self,
        ask: impl Fn(&Arc<Catalog>) -> Result<K>,
    ) -> Result<(Held<'_, LogState>, K)> {
        for _ in 0..ATTEMPTS {
            let catalog = Arc::clone(&self.open()?.catalog);
            let answer = ask(&catalog)?;
            let state = self.open()?;
            if Arc::ptr_eq(&state.catalog, &catalog) {
                return Ok((state, answer));
            }
        }
        let state = self.open()?;
        let answer = ask(&state.catalog)?;
        Ok((state, answer))
    }

    /// The state, with all living runs with this id in memory.
    pub(crate) fn loaded(&self, run: &str) -> Result<Held<'_, LogState>> {
        let state = self.open()?;
        if state.active.by_id(run).1 {
            return Ok(state);
        }
        drop(state);
        let (mut state, stored) = self.asked(|catalog| self.stored_runs(catalog, run))?;
        make_room(&mut state);
        bring_in(&mut state, run, stored)?;
        Ok(state)
    }

    /// The state, with this run in memory.
    ///
    /// # Errors
    /// [`Error::Evicted`] if it was deleted: a number that was given out once and is not known any
    /// more.
    pub(crate) fn loaded_number(&self, run_no: RunNo) -> Result<Held<'_, LogState>> {
        let state = self.open()?;
        if state.active.get(run_no).is_some() {
            return Ok(state);
        }
        drop(state);
        let row = self.row_of(run_no)?;
        let Some(run) = row.map(|row| row.run) else { return Err(Error::Evicted { run: None }) };
        let state = self.loaded(run.as_str())?;
        match state.active.get(run_no) {
            Some(_) => Ok(state),
            None => Err(Error::Evicted { run: Some(run) }),
        }
    }

    /// What the catalog knows of the runs with this id.
    pub(crate) fn stored_runs(&self, catalog: &Catalog, run: &str) -> Result<StoredRuns> {
        let numbers = self.find(catalog, run, false)?;
        Ok(numbers.numbers.iter().map(|number| (*number, catalog.row(*number))).collect())
    }
}

/// Lets runs that have ended go from memory if others would make it too many.
pub(crate) fn make_room(state: &mut LogState) {
    if state.active.is_full()
        && let Some(through) = state.catalog.through()
    {
        state.active.settle(through, &state.tail.builder);
    }
}

/// Brings all living runs with this id into memory, of which the catalog of this state knows these.
pub(crate) fn bring_in(state: &mut LogState, run: &str, stored: StoredRuns) -> Result<()> {
    if state.active.by_id(run).1 {
        return Ok(());
    }
    for (number, row) in stored {
        if !state.deleted.contains(&number) && state.active.get(number).is_none() {
            state.active.insert(ActiveRun::from_row(row?));
        }
    }
    state.active.complete(run);
    Ok(())
}

/// The segments in which the catalog knows frames of a run.
pub(crate) fn stored_in(catalog: &Catalog, run_no: RunNo) -> Result<Vec<SegmentId>> {
    let spans = catalog.ask(|catalog| catalog.spans(run_no))?;
    Ok(spans.iter().map(|span| span.segment).collect())
}

/// The frame at an offset of a segment, checked, with its payload to keep.
pub(crate) fn frame_in(segment: &Arc<Segment>, offset: u32) -> Result<(FrameHeader, Payload)> {
    let frame = segment.check_frame(offset, |_, error| error)?;
    let (header, payload) = (frame.header, Lent::of(segment).keep(frame));
    segment.count_mapped(u64::from(payload.is_view()));
    Ok((header, payload))
}
