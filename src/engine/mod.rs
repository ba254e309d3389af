//! The only code that touches the file. ARCHITECTURE.md has its map, the table of its locks, and
//! the path of a record through it.
//!
//! An engine is the sum of a few components, each with its own state and lock. The components form
//! floors: each uses those below it and never calls up. `tests/tidy.rs` holds the table of the
//! floors.

pub(crate) mod api;
pub(crate) mod background;
pub(crate) mod checkpoint;
pub(crate) mod compact;
pub(crate) mod open;
pub(crate) mod read;
pub(crate) mod reader;
pub(crate) mod reclaim;
pub(crate) mod retain;
pub(crate) mod salvage;
pub(crate) mod setup;
pub(crate) mod space;
pub(crate) mod state;
#[cfg_attr(
    not(feature = "unstable-internals"),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "programs with storages use the rest"
    )
)]
pub(crate) mod storage;
pub(crate) mod values;
pub(crate) mod verify;
pub(crate) mod write;

use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::checkpoint::{Checkpoints, IndexSlot};
use crate::engine::compact::Compactor;
use crate::engine::reclaim::Reclaimer;
use crate::engine::retain::Retainer;
use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::values::report::{Closed, RecoveryReport};
use crate::engine::write::Log;
use crate::error::Result;

/// An open store: its components, from the lowest floor to the highest.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Extents, segments, runs and records.
    pub(crate) log: Arc<Log>,
    /// The index.
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// Retires dead segments and frees their extents.
    pub(crate) reclaimer: Arc<Reclaimer>,
    /// Moves living runs.
    pub(crate) compactor: Arc<Compactor>,
    /// Deletes runs.
    pub(crate) retainer: Retainer,
    pub(crate) path: Option<PathBuf>,
    /// What opening the store found.
    pub(crate) report: RecoveryReport,
    /// The result of closing the store, once it was closed. The closing thread holds the lock.
    pub(crate) closing: Ranked<Option<Result<Closed>>>,
}

impl Engine {
    /// Connects the components.
    fn new(log: Log, slot: IndexSlot, path: Option<PathBuf>) -> Self {
        let log = Arc::new(log);
        let checkpoints = Arc::new(Checkpoints::new(&log, slot));
        let reclaimer = Arc::new(Reclaimer::new(&checkpoints));
        let compactor = Arc::new(Compactor::new(&reclaimer));
        let retainer = Retainer::new(&compactor);
        let report = RecoveryReport::default();
        let closing = Ranked::of(&log.disk, Rank::Closing, None);
        Self { log, checkpoints, reclaimer, compactor, retainer, path, report, closing }
    }
}
