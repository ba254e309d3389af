//! From the id of a run to its trace, by memory, the catalog, or both.

use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::read::list::Moment;
use crate::engine::read::named::{Detail, Slices, unlisted};
use crate::engine::read::trace::{Pin, Trace};
use crate::engine::state::log_state::LogState;
use crate::engine::state::run_slice::{Opened, RunSlice};
use crate::error::Result;
use crate::index::{RunRow, RunState};
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
        RunId::check(run.run())?;
        let named = {
            let state = self.open()?;
            if run.agent().is_none() && run.number().is_none() {
                match state.active.by_id(run.run()) {
                    ([], false) => {
                        // A run that was found before needs only one reference.
                        let lives = |run_no: &RunNo| !state.deleted.contains(run_no);
                        let found = state.catalog.known(run.run());
                        let only = found.as_ref().and_then(|found| found.only());
                        if let (Some(found), Some(run_no)) = (found, only.filter(lives)) {
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
            self.named_in(&state, run, Detail::Records)?
        };
        let run_no = named.resolve()?;
        Ok((named.open(run_no)?, run_no))
    }

    /// The row of a run as of now, by its number; `None` if it was deleted.
    pub(crate) fn row_of(&self, run_no: RunNo) -> Result<Option<RunRow>> {
        let moment = {
            let state = self.state.lock();
            if let Some(row) = state.row_in_memory(run_no) {
                return Ok(Some(row));
            }
            Moment::of(&state)
        };
        let row = moment.catalog.ask(|catalog| catalog.row(run_no))?;
        Ok(row.filter(|_| !moment.deleted.contains(&run_no)))
    }

    /// Opens a run for reading by its number; `None` if it was deleted.
    pub(crate) fn open_number(&self, run_no: RunNo) -> Result<Option<Opened>> {
        let (moment, ids, slices) = {
            let state = self.state.lock();
            let ids = state.active.get(run_no).map(|run| (run.agent.clone(), run.run.clone()));
            (Moment::of(&state), ids, Slices::of(&state, run_no))
        };
        if moment.deleted.contains(&run_no) {
            return Ok(None);
        }
        let RunState { row, spans } = moment.catalog.run_state(run_no)?;
        let Some((agent, run)) = ids.or_else(|| row.map(|row| (row.agent, row.run))) else {
            return Ok(None);
        };
        let parts = slices.behind(&moment.catalog, run_no, &spans)?;
        Ok(Some(Opened { agent, run, parts }))
    }
}

/// A run that begins in the tail's segment, so that no other segment has frames of it: the fast
/// path for the newest runs.
fn open_new(state: &LogState, run_no: RunNo) -> Option<Arc<Opened>> {
    let entry = &state.tail.builder.run(run_no)?.entry;
    entry.created_at?;
    let parts = Arc::new([RunSlice::in_tail(&state.tail, run_no)?]);
    Some(Arc::new(Opened { agent: entry.agent.clone(), run: entry.run.clone(), parts }))
}
