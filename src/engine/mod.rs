//! The only code that touches the file. ARCHITECTURE.md has its map and its walk.
//!
//! An engine is the sum of a few components, each with a state and a lock of its own. They stand in
//! floors: a component uses those below it, and what is below never calls up. `tests/it/tidy.rs`
//! holds the table of the floors.

mod api;
mod background;
mod checkpoint;
mod compact;
mod open;
mod read;
mod reclaim;
mod retain;
mod setup;
mod space;
mod state;
pub(crate) mod storage;
mod values;
mod verify;
mod write;

use std::path::PathBuf;
use std::sync::Arc;

pub use self::api::run_log::RunLog;
pub use self::api::run_writer::RunWriter;
pub use self::api::stats::{Pinned, Stats};
use self::checkpoint::{Checkpoints, IndexSlot};
use self::compact::Compactor;
pub use self::compact::drive::Compacted;
pub use self::read::documents::{Document, DocumentPage, DocumentSummary};
pub use self::read::receipts::Receipt;
pub use self::read::record::{Record, RecordView};
pub use self::read::trace::Trace;
use self::reclaim::Reclaimer;
use self::retain::Retainer;
pub use self::retain::{Collected, GcPlan, PlannedEviction, ProtectedRun};
pub(crate) use self::setup::environment as env;
pub use self::setup::observer::{Activity, Observer, Phase};
pub use self::setup::options::{Compaction, Compression, Options, SpaceReturn, TailWriter};
pub use self::state::payload::Payload;
pub use self::storage::disk::IoCounters;
pub use self::values::new_record::NewRecord;
pub use self::values::pages::{Adopted, Cursor, Deleted, Erased, HeldRun, RunPage};
pub use self::values::report::{IndexRecovery, RecoveryReport, TornTail};
pub use self::values::summary::RunSummary;
pub use self::values::{Allow, Metadata, Outcome};
pub use self::verify::VerifyReport;
use self::write::Log;
pub use self::write::batch::{Batch, Committed, Expected};
pub use self::write::ticket::{Appended, Ticket};

/// An open store: its components, from the lowest floor to the highest.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Extents, segments, runs and records.
    pub(crate) log: Arc<Log>,
    /// The index.
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// What gives dead segments back.
    pub(crate) reclaimer: Arc<Reclaimer>,
    /// What moves living runs.
    pub(crate) compactor: Arc<Compactor>,
    /// What deletes runs.
    pub(crate) retainer: Retainer,
    pub(crate) path: Option<PathBuf>,
    /// What opening the store found.
    pub(crate) report: RecoveryReport,
}

impl Engine {
    /// The components, wired.
    fn new(log: Log, slot: IndexSlot, path: Option<PathBuf>) -> Self {
        let log = Arc::new(log);
        let checkpoints = Arc::new(Checkpoints::new(&log, slot));
        let reclaimer = Arc::new(Reclaimer::new(&checkpoints));
        let compactor = Arc::new(Compactor::new(&reclaimer));
        let retainer = Retainer::new(&compactor);
        let report = RecoveryReport::default();
        Self { log, checkpoints, reclaimer, compactor, retainer, path, report }
    }
}
