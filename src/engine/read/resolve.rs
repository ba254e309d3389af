//! Bringing runs into memory. The catalog is asked without the lock; the answer counts if the
//! catalog is still the same when the lock is taken again.

use std::sync::Arc;

use crate::engine::read::{Moment, Reader};
use crate::engine::setup::locks::Held;
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::{Payload, Source};
use crate::engine::state::segment::Segment;
use crate::engine::state::stored_run::StoredRows;
use crate::error::{Error, Result};
use crate::format::FrameHeader;
use crate::types::{AgentId, RunId, RunNo};

/// How often the catalog is asked without the lock.
const ATTEMPTS: usize = 4;

impl Reader {
    /// The state of an open store, and the answer of `ask` from its catalog. It asks without the
    /// lock, and again if the catalog was replaced meanwhile. After several such replacements it
    /// asks under the lock, so that this ends however fast the log grows.
    pub(crate) fn asked<K>(
        &self,
        ask: impl Fn(&Moment) -> Result<K>,
    ) -> Result<(Held<'_, LogState>, K)> {
        for _ in 0..ATTEMPTS {
            let moment = Moment::of(&*self.open()?);
            let answer = ask(&moment)?;
            let state = self.open()?;
            if Arc::ptr_eq(&state.catalog, &moment.catalog) {
                return Ok((state, answer));
            }
        }
        let state = self.open()?;
        let answer = ask(&Moment::of(&state))?;
        Ok((state, answer))
    }

    /// The state, with the living run with these ids in memory, if there is one.
    pub(crate) fn loaded(&self, ids: (&AgentId, &RunId)) -> Result<Held<'_, LogState>> {
        let state = self.open()?;
        if state.active.is_complete(ids.1.as_str(), Some(ids.0)) {
            return Ok(state);
        }
        drop(state);
        let (mut state, stored) = self.asked(|moment| moment.stored_rows(ids))?;
        make_room(&mut state);
        bring_in(&mut state, ids, stored)?;
        Ok(state)
    }

    /// The state, with this run in memory.
    ///
    /// # Errors
    /// [`Error::Evicted`] if it was deleted: the number was given out but is not known.
    /// [`Error::Corrupt`] if a quarantined segment may say more of it.
    pub(crate) fn loaded_number(&self, run_no: RunNo) -> Result<Held<'_, LogState>> {
        let state = self.open()?;
        if let Some(run) = state.active.get(run_no) {
            run.check_read()?;
            return Ok(state);
        }
        drop(state);
        let row = self.row_of(run_no)?;
        let Some(row) = row else { return Err(Error::Evicted { run: None }) };
        self.loaded_run((&row.agent, &row.run), run_no)
    }

    /// The same of a run whose ids are known.
    pub(crate) fn loaded_run(
        &self,
        ids: (&AgentId, &RunId),
        run_no: RunNo,
    ) -> Result<Held<'_, LogState>> {
        let state = self.loaded(ids)?;
        match state.active.get(run_no) {
            Some(run) => run.check_read().map(|()| state),
            None => Err(Error::Evicted { run: Some(ids.1.clone()) }),
        }
    }
}

/// Removes ended runs from memory if there are too many.
pub(crate) fn make_room(state: &mut LogState) {
    if state.active.is_full()
        && let Some(through) = state.catalog.through()
    {
        state.active.settle(through, &state.tail.builder);
    }
}

/// Brings the living runs with these ids into memory: one, unless damage took a deletion. `stored`
/// are those in the catalog. Some may be deleted by now.
///
/// # Errors
/// [`Error::Corrupt`] if a quarantined segment may say more of one of them.
pub(crate) fn bring_in(
    state: &mut LogState,
    ids: (&AgentId, &RunId),
    stored: StoredRows,
) -> Result<()> {
    let active = &mut state.active;
    if active.is_complete(ids.1.as_str(), Some(ids.0)) {
        return Ok(());
    }
    for row in stored.rows {
        if !state.deleted.contains(row.run_no) && active.get(row.run_no).is_none() {
            active.insert(ActiveRun::from_row(row));
        }
    }
    let known = |run: &(AgentId, RunNo)| active.get(run.1).map_or(Ok(()), ActiveRun::check_read);
    active.with_id(ids.1.as_str(), Some(ids.0)).try_for_each(known)?;
    active.complete(ids, stored.are_all);
    Ok(())
}

/// The frame at an offset of a segment, checked, with its payload to keep.
pub(crate) fn frame_in(segment: &Arc<Segment>, offset: u32) -> Result<(FrameHeader, Payload)> {
    let frame = segment.check_frame(offset, |_, error| error)?;
    let (header, payload) = (frame.header, Source::new(segment).keep(frame));
    segment.count_mapped(u64::from(payload.is_view()));
    Ok((header, payload))
}
