//! Finding runs and documents, and reading their records.

pub(crate) mod block;
pub(crate) mod by_number;
pub(crate) mod cursor;
pub(crate) mod documents;
pub(crate) mod list;
pub(crate) mod named;
pub(crate) mod receipts;
pub(crate) mod record;
pub(crate) mod resolve;
pub(crate) mod trace;

use std::sync::Arc;

use crate::engine::setup::Setup;
use crate::engine::setup::locks::{Held, Ranked};
use crate::engine::state::catalog::Catalog;
use crate::engine::state::location_cache::Found;
use crate::engine::state::log_state::LogState;
use crate::error::Result;

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

    /// What the catalog knows about a run id.
    fn find(&self, catalog: &Catalog, run: &str, is_in_memory: bool) -> Result<Arc<Found>> {
        catalog.find(run, is_in_memory, self.setup.options.lookup_cache)
    }
}
