//! Runs by their number, of one moment.

use crate::engine::read::Reader;
use crate::engine::read::list::Moment;
use crate::engine::read::named::Slices;
use crate::engine::state::run_slice::Opened;
use crate::error::Result;
use crate::index::{RunRow, RunState};
use crate::types::RunNo;

impl Reader {
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
