//! `runlog` is an embedded, single-file, append-only engine for the run logs of AI agents.
//!
//! A daemon drives many runs at once. Each run belongs to an agent, starts, gets records, and ends.
//! The engine keeps all of that in one file: a segmented log with checksummed frames, an index
//! that leads from a run's id to its records without any scan, and the map of both.
//!
//! ```
//! # fn main() -> runlog::Result<()> {
//! # let path = std::env::temp_dir().join(format!("runlog-doc-lib-{}", std::process::id()));
//! # let _ = std::fs::remove_file(&path);
//! use runlog::{Durability, NewRecord, Options, Outcome};
//!
//! let log = Options::new().open(&path)?;
//! let run = log.start_run("planner", "run-1", b"{\"goal\":\"tea\"}")?;
//! run.append_json(&serde_json::json!({ "tool": "kettle" }))?; // survives a kill
//! let paid = NewRecord::json(b"{\"paid\":3}").kind("payment").durability(Durability::Disk);
//! run.append_record(&paid)?; // survives a power loss
//! run.end(&Outcome::completed())?;
//!
//! assert_eq!(log.agent_of("run-1")?, "planner");
//! for record in log.trace("run-1")? {
//!     let record = record?;
//!     println!("{} {:?} {} bytes", record.seq(), record.kind(), record.payload().len());
//! }
//! # drop(run);
//! log.close()?;
//! # let _ = std::fs::remove_file(&path);
//! # Ok(()) }
//! ```
//!
//! # What survives what
//!
//! | level | survives | cost | default for |
//! |---|---|---|---|
//! | [`Durability::Process`] | the death of the process, SIGKILL included | a copy | records |
//! | [`Durability::Disk`] | power loss | a share of one sync | starts, ends, deletions |
//!
//! A background sync makes everything survive power loss within 250 ms by default. After a crash,
//! what comes back of a run is always a prefix of what was appended to it, with every
//! acknowledged record of the level that the crash left whole.
//!
//! Where no call waits for a sync, records are stored through a map of the file on Linux with ext4
//! or tmpfs, and written with a system call elsewhere; see [`TailWriter`]. Space is allocated, and
//! filled with zeros, in front of that: a full disk is an error of a call.
//!
//! Sealed parts of the file are read through a map: a program that ignores the writer lock and cuts
//! the file off while it is open can end this process with SIGBUS, and so can a device that fails.
//!
//! # Forks
//!
//! A child that is forked while a store is open, and goes on without `exec`, must leave the store
//! alone: file and lock are its parent's, and so are bytes that were handed out before the fork,
//! once the parent closes the store. What writes, closes or gives space back answers
//! [`Error::Closed`] there, and dropping the store does nothing. Reading may wait for ever, since a
//! lock that another thread of the parent held at that moment stays locked in the child. (Forks are
//! noticed through `pthread_atfork`, so that a bare `clone` of the system is not.)
//!
//! # Layers
//!
//! `error <- format <- index <- gc <- engine`. [`format`](mod@format) says what the bytes
//! mean and is pure; it is public for tools that read the file, and follows the specification in
//! `docs/FORMAT.md`.

#![deny(unsafe_code)]

#[cfg(not(unix))]
compile_error!(
    "runlog runs on Unix only: it needs positioned writes, file locks and file identity"
);

mod damage;
mod engine;
mod error;
pub mod format;
mod gc;
mod index;
mod types;

pub use engine::api::run_log::RunLog;
pub use engine::api::run_writer::RunWriter;
pub use engine::api::stats::{Pinned, Stats};
pub use engine::compact::drive::Compacted;
pub use engine::read::documents::{Document, DocumentPage, DocumentSummary};
pub use engine::read::receipts::Receipt;
pub use engine::read::record::{Record, RecordView};
pub use engine::read::trace::Trace;
pub use engine::retain::{Collected, GcPlan, PlannedEviction, ProtectedRun};
pub use engine::setup::observer::{Activity, Observer, Phase};
pub use engine::setup::options::{Compaction, Compression, Options, SpaceReturn, TailWriter};
pub use engine::state::payload::Payload;
pub use engine::storage::disk::IoCounters;
pub use engine::values::new_record::NewRecord;
pub use engine::values::pages::{Adopted, Cursor, Deleted, Erased, HeldRun, RunPage};
pub use engine::values::report::{IndexRecovery, RecoveryReport, TornTail};
pub use engine::values::summary::RunSummary;
pub use engine::values::{Allow, Metadata, Outcome};
pub use engine::verify::VerifyReport;
pub use engine::write::batch::{Batch, Committed, Expected};
pub use engine::write::ticket::{Appended, Ticket};
pub use error::{Corruption, Damage, Error, IoAction, Owner, Place, Result, Sized as SizedThing};
pub use gc::{Limits, Protection, Retention, Rule};
pub use types::{
    AgentId, ContentType, Durability, Epoch, ExtentNo, IdKind, InvalidId, LogPosition, Lsn,
    MAX_ID_LEN, MAX_KIND_LEN, RunId, RunNo, RunRef, RunStatus, SegmentId, Seq, Timestamp,
    UnknownWord, Version,
};

/// What the engine takes from its surroundings: time, randomness, the boot id, and who does its
/// background work.
pub mod env {
    pub use crate::engine::setup::environment::{
        BootId, Clock, Entropy, Environment, Scheduler, Step, Steps, SystemClock, SystemEntropy,
    };
}

/// Planning what goes, by itself: a [`Retention`] can be tried on any runs, without a store.
pub mod retention {
    pub use crate::gc::{Candidate, Going, Inventory, Plan, Protected, Totals, plan};
}

/// The door to the file, for simulated disks and other storages.
pub mod storage {
    pub use crate::engine::storage::{FileStorage, MemoryStorage, Region, Storage, TailWindow};
}
