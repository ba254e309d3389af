//! From the id of a run to its trace: what memory knows, what the catalog knows, or both.

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::engine::read::Reader;
use crate::engine::read::resolve::segment;
use crate::engine::read::trace::{Pin, Trace};
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::run_slice::{Offsets, Opened, Part};
use crate::error::{Damage, Error, Place, Result};
use crate::types::{RunId, RunNo, RunRef};

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
        let state = self.open()?;
        RunId::check(run.run())?;
        if run.agent().is_none() && run.number().is_none() {
            match state.hot.by_id(run.run()) {
                ([], false) => {
                    let found = self.find(&state.catalog, run.run(), false)?;
                    let lives = |run_no: &RunNo| !state.deleted.contains(run_no);
                    if let Some(run_no) = found.only().filter(lives) {
                        let catalog = Arc::clone(&state.catalog);
                        drop(state);
                        let opened = found.open(&catalog, run_no)?;
                        return Ok((opened.ok_or_else(unlisted)?, run_no));
                    }
                }
                (&[only], true) => {
                    if let Some(opened) = open_new(&state, only) {
                        return Ok((opened, only));
                    }
                }
                _ => {}
            }
        }
        let id = RunId::new(run.run())?;
        let run_no = self.resolve(&state, run)?;
        let agent = state.hot.get(run_no).map(|hot| hot.agent.clone());
        let (catalog, fresh) = parts_in_memory(state, run_no)?;
        let sealed = self.find(&catalog, run.run(), true)?.open(&catalog, run_no)?;
        if fresh.is_empty()
            && let Some(opened) = sealed
        {
            return Ok((opened, run_no));
        }
        let agent = agent.or_else(|| Some(sealed.as_ref()?.agent.clone())).ok_or_else(unlisted)?;
        let sealed = sealed.iter().flat_map(|opened| opened.parts.iter().cloned());
        let parts = sealed.chain(fresh).collect();
        Ok((Arc::new(Opened { agent, run: id, parts }), run_no))
    }
}

/// The error of a run that the catalog lists and says no more of.
fn unlisted() -> Error {
    Error::corrupt(Place::Index, Damage::Missing)
}

/// A run that begins in the segment that takes frames, so that no other has anything of it: the
/// fast path for the newest runs.
fn open_new(state: &LogState, run_no: RunNo) -> Option<Arc<Opened>> {
    let entry = &state.tail.builder.run(run_no)?.entry;
    entry.created_at?;
    let parts = Arc::new([part_in_tail(state, run_no)?]);
    Some(Arc::new(Opened { agent: entry.agent.clone(), run: entry.run.clone(), parts }))
}

/// What all segments have of a run as of now; lets the lock go.
pub(crate) fn parts_now(state: MutexGuard<'_, LogState>, run_no: RunNo) -> Result<Arc<[Part]>> {
    let (catalog, fresh) = parts_in_memory(state, run_no)?;
    let spans = catalog.run_state(run_no)?.spans;
    let sealed = catalog.parts_of(run_no, &spans)?;
    Ok(sealed.iter().cloned().chain(fresh).collect())
}

/// The catalog, and what segments that it does not cover have of a run; lets the lock go before
/// it reads them.
fn parts_in_memory(
    state: MutexGuard<'_, LogState>,
    run_no: RunNo,
) -> Result<(Arc<Catalog>, Vec<Part>)> {
    let spans = state.hot.get(run_no).map_or(&[][..], |hot| &hot.spans);
    let sealed: Vec<_> =
        spans.iter().filter_map(|span| Some((segment(&state, span.segment)?, span.slot))).collect();
    let (tail, catalog) = (part_in_tail(&state, run_no), Arc::clone(&state.catalog));
    drop(state);
    let sealed = sealed.iter().map(|(segment, slot)| Part::sealed(segment, *slot, run_no));
    Ok((catalog, sealed.chain(tail.map(Ok)).collect::<Result<_>>()?))
}

/// What the segment that takes frames has of a run.
fn part_in_tail(state: &LogState, run_no: RunNo) -> Option<Part> {
    let built = state.tail.builder.run(run_no)?;
    Some(Part {
        segment: Arc::clone(&state.tail.segment),
        records: built.entry.records,
        pieces: built.entry.pieces,
        first_lsn: built.entry.first_lsn,
        first_seq: built.entry.first_seq,
        next_seq: built.entry.next_seq,
        offsets: Offsets::Listed(built.offsets.iter().chain(&built.pieces).copied().collect()),
    })
}
