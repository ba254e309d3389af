//! The only code that touches the file. ARCHITECTURE.md has its map and its walk.

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

pub(crate) use self::setup::environment as env;

pub use self::api::documents::{Document, DocumentPage, DocumentSummary};
pub use self::api::holds::HeldRun;
pub use self::api::run_log::RunLog;
pub use self::api::run_writer::RunWriter;
pub use self::api::stats::{Pinned, Stats};
pub use self::compact::Compacted;
pub use self::read::receipts::Receipt;
pub use self::read::trace::Trace;
pub use self::retain::{Collected, GcPlan, PlannedEviction, ProtectedRun};
pub use self::setup::observer::{Activity, Observer, Phase};
pub use self::setup::options::{Compaction, Compression, Options, SpaceReturn, TailWriter};
pub use self::state::payload::Payload;
pub use self::storage::disk::IoCounters;
pub use self::values::pages::{Adopted, Cursor, Deleted, Erased, RunPage};
pub use self::values::report::{IndexRecovery, RecoveryReport, TornTail};
pub use self::values::{Allow, Appended, Metadata, Outcome, Record, RecordView, RunSummary};
pub use self::verify::VerifyReport;
pub use self::write::batch::{Batch, Committed, Expected};
pub use self::write::group_commit::Ticket;
pub use self::write::pending_frame::NewRecord;
