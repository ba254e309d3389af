//! The only code that touches the file.
//!
//! - [`storage`], `disk`: bytes in and out, through one trait.
//! - `manifest_log`, `shared`: who owns which extent, and the superblock.
//! - `core`, `draft`, `hot`: the tail of the log and the runs in memory, behind one lock.
//! - `ops`, `pieces`, `commit`: appending, and waiting for durability.
//! - `batch`, `documents`: the key-value face.
//! - `segment`, `part`, `block`, `catalog`, `lookup`, `query`, `trace`: reading.
//! - `index_host`, `index_slot`: the index within the file.
//! - `retain`, `hold`, `receipts`: what goes by a policy, what stays, and telling of it.
//! - `upkeep`, `compact`, `reclaim`: what happens now and then.
//! - `recovery`, `verify`: opening, and checking.
//! - `handle`, `options`, `pages`, `values`: the public face.

mod batch;
mod block;
mod catalog;
mod commit;
mod compact;
mod core;
mod create;
mod disk;
mod documents;
mod draft;
pub(crate) mod env;
mod erase;
mod handle;
mod hold;
mod host;
mod hot;
mod index_host;
mod index_slot;
mod lookup;
mod manifest_log;
mod newest;
mod observer;
mod open_trace;
mod ops;
mod options;
mod pages;
mod part;
mod payload;
mod pieces;
mod places;
mod query;
mod receipts;
mod reclaim;
mod recovery;
mod report;
mod retain;
mod segment;
mod shared;
mod short;
mod spare;
mod stats;
pub(crate) mod storage;
mod stores;
mod trace;
mod trim;
mod turns;
mod upkeep;
mod values;
mod verify;
mod walk;
mod writer;

pub use self::batch::{Batch, Committed, Expected};
pub use self::commit::Ticket;
pub use self::compact::Compacted;
pub use self::disk::IoCounters;
pub use self::documents::{Document, DocumentPage, DocumentSummary};
pub use self::draft::NewRecord;
pub use self::handle::RunLog;
pub use self::hold::HeldRun;
pub use self::observer::{Activity, Observer, Phase};
pub use self::options::{Compaction, Compression, Options, SpaceReturn, TailWriter};
pub use self::pages::{Adopted, Cursor, Deleted, Erased, RunPage};
pub use self::payload::Payload;
pub use self::receipts::Receipt;
pub use self::report::{IndexRecovery, RecoveryReport, TornTail};
pub use self::retain::{Collected, GcPlan, PlannedEviction, ProtectedRun};
pub use self::stats::{Pinned, Stats};
pub use self::trace::Trace;
pub use self::values::{Allow, Appended, Metadata, Outcome, Record, RecordView, RunSummary};
pub use self::verify::VerifyReport;
pub use self::writer::RunWriter;
