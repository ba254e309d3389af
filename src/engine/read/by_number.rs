//! Runs by their number, of one moment.

use std::sync::Arc;

use crate::engine::read::Reader;
use crate::engine::read::list::Moment;
use crate::engine::read::named::Slices;
use crate::engine::state::run_slice::Opened;
use crate::error::Result;
use crate::index::{RunRow, RunState};
use crate::types::{RunNo, RunRef};

impl Reader {
    /// The row of a run as of now, by its number; `None` if it was deleted.
    pub(crate) fn row_of(&self, run_no: RunNo) -> Result<Option<RunRow>> {
        let moment = {
            let state = self.state.lock();
            if let Some(row) = state.row_in_memory(run_no)? {
                return Ok(Some(row));
            }
            Moment::of(&state)
        };
        let row = moment.catalog.ask(|catalog| catalog.row(run_no))?;
        Ok(row.filter(|_| !moment.deleted.contains(run_no)))
    }

    /// Opens a run for reading by its number; `None` if it was deleted.
    pub(crate) fn open_number(&self, run_no: RunNo) -> Result<Option<Opened>> {
        let (moment, ids, slices) = {
            let state = self.state.lock();
            let ids = state.active.get(run_no).map(|run| (run.agent.clone(), run.run.clone()));
            (Moment::of(&state), ids, Slices::of(&state, run_no))
        };
        if moment.deleted.contains(run_no) {
            return Ok(None);
        }
        let (row, sealed) = moment.catalog.row_and_parts(run_no)?;
        let Some((agent, run)) = ids.or_else(|| row.map(|row| (row.agent, row.run))) else {
            return Ok(None);
        };
        let parts = slices.behind(&sealed, run_no)?;
        Ok(Some(Opened { agent, run, parts }))
    }

    /// The same for a name with a number, where that is the shortest way: in a process that only
    /// reads, of a run that is not in memory and was not looked up by its id. `None` says nothing.
    pub(crate) fn open_numbered(&self, run: RunRef<'_>) -> Result<Option<(Opened, RunNo)>> {
        let Some(run_no) = run.number() else { return Ok(None) };
        let catalog = {
            let state = self.open()?;
            let is_covered = state.active.get(run_no).is_none()
                && !state.deleted.contains(run_no)
                && state.catalog.has_maps()
                && state.catalog.known(run.run()).is_none();
            if !is_covered {
                return Ok(None);
            }
            Arc::clone(&state.catalog)
        };
        let RunState { row, spans } = catalog.run_state(run_no)?;
        // A number of another store is of no run with these ids here.
        let is_it = |row: &RunRow| {
            !row.document
                && row.run.as_str() == run.run()
                && run.agent().is_none_or(|agent| agent == row.agent.as_str())
        };
        let Some(row) = row.filter(is_it) else { return Ok(None) };
        let parts = catalog.parts_of(run_no, &spans)?;
        Ok(Some((Opened { agent: row.agent, run: row.run, parts }, run_no)))
    }
}
