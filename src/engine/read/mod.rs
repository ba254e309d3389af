//! Finding runs and documents, and reading their records.

pub(crate) mod block;
pub(crate) mod by_number;
pub(crate) mod cursor;
pub(crate) mod documents;
pub(crate) mod list;
pub(crate) mod listed;
pub(crate) mod named;
pub(crate) mod receipts;
pub(crate) mod record;
pub(crate) mod resolve;
pub(crate) mod trace;

use std::sync::Arc;

use crate::engine::setup::Setup;
use crate::engine::setup::locks::{Held, Ranked};
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::stored_run::{Name, StoredRows, StoredRun, StoredRuns};
use crate::error::Result;
use crate::format::segments::run_set::RunSet;
use crate::types::{AgentId, RunId, RunNo, SegmentId};

/// Answers questions about a store.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) setup: Arc<Setup>,
    pub(crate) state: Arc<Ranked<LogState>>,
}

impl Reader {
    /// The state of an open store; an error if it is closed.
    pub(crate) fn open(&self) -> Result<Held<'_, LogState>> {
        let state = self.state.lock();
        state.check_open()?;
        Ok(state)
    }
}

/// What answers besides the runs in memory. It is copied together with these under the lock, since
/// all of them change without it.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) deleted: Arc<RunSet>,
}

impl Moment {
    pub(crate) fn of(state: &LogState) -> Self {
        Self { catalog: Arc::clone(&state.catalog), deleted: Arc::clone(&state.deleted) }
    }

    /// The living runs or versions with this name in the catalog, by number.
    pub(crate) fn stored(&self, name: Name<'_>) -> Result<StoredRuns> {
        self.catalog.stored(name, &self.deleted)
    }

    /// The rows of the living runs with these ids in the catalog.
    pub(crate) fn stored_rows(&self, (agent, run): (&AgentId, &RunId)) -> Result<StoredRows> {
        self.catalog.rows(agent.as_str(), run.as_str(), &self.deleted)
    }

    /// One of them.
    pub(crate) fn stored_run(&self, name: Name<'_>, run_no: RunNo) -> Result<Option<StoredRun>> {
        self.catalog.stored_run(name, run_no, &self.deleted)
    }

    /// The segments in which the catalog knows frames of one of them.
    pub(crate) fn stored_in(&self, name: Name<'_>, run_no: RunNo) -> Result<Vec<SegmentId>> {
        let found = self.stored_run(name, run_no)?;
        Ok(found.iter().flat_map(StoredRun::segments).collect())
    }
}
