//! Bringing runs into memory. The catalog is asked without the lock; the answer counts if the
//! catalog is still the same when the lock is taken again.

use std::sync::Arc;

use crate::engine::read::{Moment, Reader};
use crate::engine::setup::locks::Held;
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::log_state::LogState;
use crate::engine::state::payload::{Payload, Source};
use crate::engine::state::segment::Segment;
use crate::engine::state::stored_run::Name;
use crate::error::{Error, Result};
use crate::format::FrameHeader;
use crate::index::RunRow;
use crate::types::{RunId, RunNo};

/// How often the catalog is asked without the lock.
const ATTEMPTS: usize = 4;

/// The runs with one id in the catalog. Some may be deleted by now.
pub(crate) type StoredRows = Vec<(RunNo, Result<RunRow>)>;

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

    /// The state, with all living runs with this id in memory.
    pub(crate) fn loaded(&self, run: &str) -> Result<Held<'_, LogState>> {
        let state = self.open()?;
        if state.active.by_id(run).1 {
            return Ok(state);
        }
        drop(state);
        let (mut state, stored) = self.asked(|moment| stored_rows(moment, run))?;
        make_room(&mut state);
        bring_in(&mut state, run, stored)?;
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
        let Some(run) = row.map(|row| row.run) else { return Err(Error::Evicted { run: None }) };
        self.loaded_run(run.as_str(), run_no)
    }

    /// The same of a run whose id is known.
    pub(crate) fn loaded_run(&self, run: &str, run_no: RunNo) -> Result<Held<'_, LogState>> {
        let state = self.loaded(run)?;
        match state.active.get(run_no) {
            Some(run) => run.check_read().map(|()| state),
            None => Err(Error::Evicted { run: Some(RunId::new(run)?) }),
        }
    }
}

/// What the catalog knows about the runs with this id.
pub(crate) fn stored_rows(moment: &Moment, run: &str) -> Result<StoredRows> {
    let found = moment.stored(Name::Run(run))?;
    Ok(found.iter().map(|run| (run.run_no, run.row())).collect())
}

/// Removes ended runs from memory if there are too many.
pub(crate) fn make_room(state: &mut LogState) {
    if state.active.is_full()
        && let Some(through) = state.catalog.through()
    {
        state.active.settle(through, &state.tail.builder);
    }
}

/// Brings all living runs with this id into memory. `stored` are those in the catalog.
///
/// # Errors
/// [`Error::Corrupt`] if a quarantined segment may say more of one of them.
pub(crate) fn bring_in(state: &mut LogState, run: &str, stored: StoredRows) -> Result<()> {
    if state.active.by_id(run).1 {
        return Ok(());
    }
    for (number, row) in stored {
        if !state.deleted.contains(number) && state.active.get(number).is_none() {
            state.active.insert(ActiveRun::from_row(row?));
        }
    }
    state.active.check_read_with_id(run)?;
    state.active.complete(run);
    Ok(())
}

/// The frame at an offset of a segment, checked, with its payload to keep.
pub(crate) fn frame_in(segment: &Arc<Segment>, offset: u32) -> Result<(FrameHeader, Payload)> {
    let frame = segment.check_frame(offset, |_, error| error)?;
    let (header, payload) = (frame.header, Source::new(segment).keep(frame));
    segment.count_mapped(u64::from(payload.is_view()));
    Ok((header, payload))
}
