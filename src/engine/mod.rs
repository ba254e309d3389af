//! The only code that touches the file.
//!
//! - [`storage`], `disk`: bytes in and out, through one trait.
//! - `manifest_log`, `shared`: who owns which extent, and the superblock.
//! - `core`, `draft`, `hot`: the tail of the log and the runs in memory, behind one lock.
//! - `ops`, `commit`: appending, and waiting for durability.
//! - `segment`, `part`, `catalog`, `lookup`, `query`, `trace`: reading.
//! - `index_host`, `index_slot`: the index within the file.
//! - `upkeep`, `reclaim`: what happens now and then.
//! - `recovery`, `verify`: opening, and checking.
//! - `handle`, `options`, `pages`, `values`: the public face.

mod catalog;
mod commit;
mod core;
mod create;
mod disk;
mod draft;
pub(crate) mod env;
mod handle;
mod host;
mod hot;
mod index_host;
mod index_slot;
mod lookup;
mod manifest_log;
mod observer;
mod ops;
mod options;
mod pages;
mod part;
mod query;
mod reclaim;
mod recovery;
mod report;
mod segment;
mod shared;
mod stats;
pub(crate) mod storage;
mod stores;
mod trace;
mod upkeep;
mod values;
mod verify;

pub use self::commit::Ticket;
pub use self::disk::IoCounters;
pub use self::draft::NewRecord;
pub use self::handle::{RunLog, RunWriter};
pub use self::observer::{Activity, Observer, Phase};
pub use self::options::{Options, TailWriter};
pub use self::pages::{Adopted, Cursor, Deleted, RunPage};
pub use self::report::{IndexRecovery, RecoveryReport, TornTail};
pub use self::segment::Payload;
pub use self::stats::Stats;
pub use self::trace::Trace;
pub use self::values::{Allow, Appended, Metadata, Outcome, Record, RunSummary};
pub use self::verify::VerifyReport;
