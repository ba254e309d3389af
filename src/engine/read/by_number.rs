//! Runs by their number, of one moment.

use crate::engine::read::named::Slices;
use crate::engine::read::{Moment, Reader};
use crate::engine::state::run_slice::Opened;
use crate::engine::state::stored_run::Name;
use crate::error::Result;
use crate::index::RunRow;
use crate::types::RunNo;

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
        let ids = match ids {
            Some(ids) => Some(ids),
            None => {
                let row = moment.catalog.ask(|catalog| catalog.row(run_no))?;
                row.map(|row| (row.agent, row.run))
            }
        };
        let Some((agent, run)) = ids else { return Ok(None) };
        let stored = moment.stored_run(Name::Run(run.as_str(), Some(agent.as_str())), run_no)?;
        let parts = slices.behind(stored.as_ref(), run_no)?;
        Ok(Some(Opened::new(agent, run, parts)))
    }
}
