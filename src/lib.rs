//! `runlog` is an embedded, single-file, append-only engine for the run logs of AI agents.
//!
//! A daemon drives many runs at once. Each run belongs to an agent, starts, gets records, and ends.
//! The engine stores all of that in one file: a segmented log with checksummed frames, an index
//! that finds the records of a run by its id without a scan, and a map of both.
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
//! | level | survives | costs | default for |
//! |---|---|---|---|
//! | [`Durability::Process`] | the death of the process, SIGKILL included | a copy | records |
//! | [`Durability::Disk`] | power loss | a share of one sync | starts, ends, deletions |
//!
//! A background sync makes everything survive power loss within 250 ms by default. After a crash,
//! each run has a prefix of what was appended to it. After a kill, the prefix includes every
//! acknowledged record; after a power loss, every record that was acknowledged at Disk level.
//!
//! On Linux with ext4 or tmpfs, an append that does not wait for a sync stores its record through a
//! map of the file; elsewhere it uses a system call; see [`TailWriter`]. The engine allocates space
//! and fills it with zeros before that, so a full disk is an error and never a signal.
//!
//! Sealed parts of the file are read through a map. A device that fails, or a program that ignores
//! the writer lock and truncates the open file, can end this process with SIGBUS.
//!
//! # Forks
//!
//! A child that was forked while a store was open, and that continues without `exec`, must not use
//! the store: the file and its lock belong to the parent. Records that the parent handed out before
//! the fork stay readable in the child. In the child, calls that would change the file return
//! [`Error::Closed`], and dropping the store does nothing. Calls may block for ever, since a lock
//! that another thread of the parent held at the fork stays locked in the child. (The engine
//! notices forks through `pthread_atfork`, so it does not notice a bare `clone` system call.)
//!
//! # Features
//!
//! | feature | what it adds | cost |
//! |---|---|---|
//! | `serde` | `Serialize` and `Deserialize` for the values of the API | the macros of serde |
//! | `tracing` | a span for each activity, an event for each failure | the crate `tracing` |
//! | `zstd` | levels of compression from 5 to 19 | C code |
//! | `unstable-internals` | `format`, `storage`, `Options::open_storage`: see below | no promise |
//!
//! `unstable-internals` is for tools that read the file, and for tests with simulated disks. It
//! makes the modules `format` and `storage` public, and lets [`Options`] open and create stores in
//! a storage of the caller's. Any release may change or remove what it shows.
//!
//! # What goes wrong in the background
//!
//! Three threads sync, set space aside, keep the index and give space back. No call answers how
//! that goes. Three things tell it:
//!
//! - [`RunLog::health`] says what is wrong now.
//! - An [`Observer`] is told when each [`Activity`] begins and how it ended, and how long it took.
//! - With the feature `tracing`, each activity is a span, and each failure an event within it. All
//!   of them have the target `runlog`. They carry no payload bytes.
//!
//! | span (`DEBUG`) | activity |
//! |---|---|
//! | `runlog.recovery`, `runlog.close` | opening and closing the store |
//! | `runlog.roll`, `runlog.seal`, `runlog.reserve` | going on in the next segment |
//! | `runlog.sync` | a sync of the log |
//! | `runlog.index_checkpoint`, `runlog.index_rebuild` | keeping the index up to the log |
//! | `runlog.reclaim`, `runlog.give_back`, `runlog.compaction` | giving space back |
//!
//! | event | level | fields | when |
//! |---|---|---|---|
//! | `failed` | `WARN` | `activity`, `took_us`, `error` | an activity failed |
//! | `panicked` | `ERROR` | `activity`, `took_us`, `error` | an activity panicked |
//! | `broken off` | `DEBUG` | `activity`, `took_us`, `error` | closing ended an activity early |
//! | `poisoned` | `ERROR` | `error` | the store accepts nothing more from now on |
//! | `disk full` | `WARN` | `len` | the file system refused so many bytes |
//! | `space again` | `INFO` | `len` | the file system gives such an amount again |
//!
//! `activity` is [`Activity::name`], `took_us` is in microseconds, and `error` has its sources in
//! it.
//!
//! # Serialised values
//!
//! With `serde`, ids, times, cursors and words are the texts that they print; other values have the
//! names of their fields, in `snake_case`. [`Record`], [`Document`], [`Outcome`] and what goes into
//! a call have bytes of yours, so that you choose how they are written. [`Error`] has sources of
//! the system and is not serialised; the damage in it, [`Corruption`], is.
//!
//! # Layers
//!
//! `error <- format <- index <- gc <- engine`. `format` defines what the bytes mean and does no
//! I/O. The feature `unstable-internals` makes it public, for tools that read the file.
//! `docs/FORMAT.md` is its specification.

#![deny(unsafe_code)]

#[cfg(not(unix))]
compile_error!(
    "runlog runs on Unix only: it needs positioned writes, file locks and file identity"
);

mod damage;
mod engine;
mod error;
#[cfg(not(feature = "unstable-internals"))]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "tools that read the file use the rest"
)]
mod format;
#[cfg(feature = "unstable-internals")]
pub mod format;
mod gc;
mod index;
mod types;

pub use engine::api::deferred::{Deferred, DeferredWriter};
pub use engine::api::documents::Documents;
pub use engine::api::follow::Follower;
pub use engine::api::open::WeakRunLog;
pub use engine::api::read_log::ReadLog;
pub use engine::api::reader::{Reader, ReaderOptions};
pub use engine::api::run_log::RunLog;
pub use engine::api::run_writer::RunWriter;
pub use engine::api::runs::Runs;
pub use engine::api::stats::{Pinned, Stats};
pub use engine::compact::drive::Compacted;
pub use engine::read::documents::{Document, DocumentPage, DocumentSummary};
pub use engine::read::receipts::Receipt;
pub use engine::read::record::{Record, RecordView};
pub use engine::read::trace::Trace;
pub use engine::reader::backup::Backup;
pub use engine::reader::events::{Follow, LogCursor, LogEvent, LogEventKind};
pub use engine::retain::planned::{PlannedEviction, PlannedEvictions};
pub use engine::retain::{Collected, GcPlan, ProtectedRun};
pub use engine::salvage::replace::{Replaced, salvage_in_place};
pub use engine::salvage::report::SalvageReport;
pub use engine::salvage::salvage;
#[cfg(feature = "unstable-internals")]
pub use engine::salvage::salvage_storage;
pub use engine::setup::health::Health;
pub use engine::setup::observer::{Activity, Finished, Observer, Phase};
pub use engine::setup::options::{Compaction, Compression, Options, SpaceReturn, TailWriter};
pub use engine::state::payload::Payload;
pub use engine::storage::disk::IoCounters;
pub use engine::values::new_record::NewRecord;
pub use engine::values::pages::{Adopted, Cursor, Deleted, Erased, HeldRun, RunPage};
pub use engine::values::query::RunQuery;
pub use engine::values::report::{Closed, IndexRecovery, RecoveryReport};
pub use engine::values::summary::RunSummary;
pub use engine::values::usage::{AgentUsage, Taken, Usage};
pub use engine::values::{Allow, Metadata, Outcome, RunMetadata, RunOutcome};
pub use engine::verify::VerifyReport;
pub use engine::write::batch::{Batch, Committed, Expected};
pub use engine::write::ticket::{Appended, Pending, Ticket};
pub use error::{Corruption, Damage, Error, IoAction, Owner, Place, Result, Sized as SizedThing};
pub use gc::{Limits, Protection, Retention, Rule};
pub use types::{
    AgentId, ContentType, Durability, Epoch, ExtentNo, IdKind, InvalidId, InvalidTimestamp,
    LogPosition, Lsn, MAX_ID_LEN, MAX_KIND_LEN, RunId, RunNo, RunRef, RunStatus, SegmentId, Seq,
    Timestamp, UnknownWord, Version,
};

/// What the engine takes from its surroundings: time, randomness, and the scheduler of its
/// background work.
pub mod env {
    pub use crate::engine::setup::environment::{
        Clock, Entropy, Environment, Scheduler, Step, Steps, SystemClock, SystemEntropy,
    };
}

/// The parts of [`Health`].
pub mod health {
    pub use crate::engine::setup::health::{Failing, LastDone, Poison, Stalled};
}

/// Retention planning without a store: tries a [`Retention`] on any list of runs.
pub mod retention {
    pub use crate::gc::{Candidate, Going, Inventory, Plan, Protected, Totals, plan};
}

/// The parts of [`SalvageReport`].
pub mod salvaged {
    pub use crate::engine::salvage::report::{Caveat, Missing};
}

#[cfg(feature = "unstable-internals")]
/// The interface to the file, for simulated disks and other storages.
pub mod storage {
    pub use crate::engine::storage::{
        FileStorage, FileSystem, MemoryStorage, Region, Storage, TailWindow,
    };
}

/// What is handed from thread to thread, and shared by threads.
const _: () = {
    const fn shared<T: Send + Sync + 'static>() {}

    shared::<RunLog>();
    shared::<WeakRunLog>();
    shared::<RunWriter>();
    shared::<Trace>();
    shared::<Record>();
    shared::<RecordView<'static>>();
    shared::<Payload>();
    shared::<Document>();
    shared::<Ticket>();
    shared::<Appended>();
    shared::<Batch<'static>>();
    shared::<Committed>();
    shared::<NewRecord<'static>>();
    shared::<Metadata<'static>>();
    shared::<Outcome>();
    shared::<RunRef<'static>>();
    shared::<RunPage>();
    shared::<DocumentPage>();
    shared::<Stats>();
    shared::<RecoveryReport>();
    shared::<VerifyReport>();
    shared::<SalvageReport>();
    shared::<GcPlan>();
    shared::<Collected>();
    shared::<Receipt>();
    shared::<HeldRun>();
    shared::<Retention>();
    shared::<Options>();
    shared::<env::Environment>();
    shared::<env::Steps>();
    shared::<Error>();
};

/// Values that it is a mistake to drop, which the compiler tells.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # fn check(log: &runlog::RunLog) -> runlog::Result<()> {
/// log.verify()?; // the problems are in the report
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # fn check(log: &runlog::RunLog) -> runlog::Result<()> {
/// log.gc_plan(&runlog::Retention::new())?; // deletes nothing
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// # fn check(log: &runlog::RunLog) -> runlog::Result<()> {
/// log.erase_run("run")?; // bytes may be left
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// let options = runlog::Options::new();
/// options.index(false); // changes nothing
/// ```
///
/// What has happened by the time the call returns may be dropped:
///
/// ```no_run
/// #![deny(unused_must_use)]
/// # fn check(log: &runlog::RunLog, run: &runlog::RunWriter) -> runlog::Result<()> {
/// run.append(b"step")?;
/// log.delete_run("run")?;
/// log.gc(&runlog::Retention::new().keep_newest(9))?;
/// log.compact()?;
/// # Ok(()) }
/// ```
#[cfg(doctest)]
mod must_use {}
