//! `RunStore`: the traces of agent runs, in place of a folder of JSON Lines files.
//!
//! It replaces the `RunStore` of `car-server-core`: calls, records and results are the same, and
//! `docs/migrate/run-store.md` lists the differences. It uses one file, `runs.runlog`, instead of
//! one file a run. So finding and listing runs reads no other runs, written records survive a
//! crash, and damage is reported.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let name = format!("runlog-doc-run-store-{}", std::process::id());
//! # let folder = std::env::temp_dir().join(name);
//! # let root = folder.clone();
//! use runlog_stores::run_store::*;
//! let store = RunStore::new(folder, RetentionConfig::default());
//! let started = RunStarted {
//!     run_id: "run-1".to_owned(),
//!     agent_id: "planner".to_owned(),
//!     intent: "make tea".to_owned(),
//!     ..RunStarted::default()
//! };
//! store.write_started(&started)?;
//! let turn = RunRecord::Turn(RunTurn { tool: Some("kettle".to_owned()), ..RunTurn::default() });
//! store.append_turns("planner", "run-1", &[turn])?;
//! store.write_ended(&RunEnded {
//!     run_id: "run-1".to_owned(),
//!     agent_id: "planner".to_owned(),
//!     ..RunEnded::default()
//! })?;
//! let [run] = &store.list_runs("planner")[..] else { panic!("one run") };
//! assert_eq!((run.intent.as_str(), run.turn_count), ("make tea", 1));
//! # drop(store); let _ = std::fs::remove_dir_all(root);
//! # Ok(()) }
//! ```
//!
//! # Overview
//!
//! - [`RunStore`]: the store. [`RetentionConfig`]: what it keeps.
//! - [`RunRecord`] and the types in it: a line of a run. [`RunLine`]: its bytes.
//! - [`RunSummary`], [`RunStatus`], [`RunSummaryPage`]: lists.
//! - [`RunTrace`], [`RunTracePage`], [`RunTurnPage`], [`RunLines`]: reading a run.
//! - [`RunStoreError`], [`Damage`], [`LineFault`]: errors and damage.
//! - [`Imported`], [`Exported`]: the import and export of whole trees of files.
//!
//! **Invariant:** each line is one record of the engine, with the bytes of the line as payload and
//! its `record` as kind. The state of a run follows from these records alone; see `fold`.

mod append;
mod below;
mod config;
mod error;
mod fold;
mod folder;
mod gc;
mod line;
mod list;
mod names;
mod open;
mod outcome;
mod records;
mod report;
mod trace;
mod tree;

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::open::{Opened, Source};
use runlog::{Options, RunLog};

pub use self::config::{ConfigError, RetentionConfig};
pub use self::error::RunStoreError;
pub use self::gc::Adoption;
pub use self::line::{LineFault, RunLine};
pub use self::list::{RunCursor, RunStatus, RunSummary, RunSummaryPage};
pub use self::outcome::{AgentOutcome, Evidence, EvidenceKind, OutcomeMetrics, OutcomeStatus};
pub use self::records::{
    ActionStatus, CliOutcome, OtherRecord, PolicyRejection, RunCancelResponse,
    RunCancellationIdentity, RunCancellationRequested, RunCancellationStatus, RunEnded,
    RunModelCallRefused, RunModelTokenUsage, RunModelToolCall, RunModelTurn, RunRecord, RunStarted,
    RunTermination, RunTurn, VerifierVerdict,
};
pub use self::report::{Exported, Imported, Refusal, TreeProblem};
pub use self::trace::{Damage, DamageKind, RunLines, RunTrace, RunTracePage, RunTurnPage};

/// The traces of agent runs. Cheap to clone; all stores of one folder in a process are the same
/// store.
///
/// The first call that needs the file opens it, and the first write creates it. It is closed with
/// the last of the stores and of the logs that [`RunStore::log`] returned. Another process cannot
/// open it meanwhile: it gets an error of the kind `ResourceBusy`.
#[derive(Clone)]
pub struct RunStore {
    shared: Arc<Shared>,
}

struct Shared {
    root: PathBuf,
    retention: RetentionConfig,
    source: Source,
}

impl RunStore {
    /// The store in this folder. Nothing is opened or created yet.
    pub fn new(runs_root: PathBuf, retention: RetentionConfig) -> Self {
        Self::with_options(runs_root, retention, Options::new())
    }

    /// The store in this folder, whose engine is opened with these options, unless it is open
    /// already.
    pub fn with_options(runs_root: PathBuf, retention: RetentionConfig, options: Options) -> Self {
        let (options, opened) = (Box::new(options), Mutex::new(None));
        let source = Source::Folder { options, opened };
        Self { shared: Arc::new(Shared { root: runs_root, retention, source }) }
    }

    /// The store in an open log, beside other data of it. Its root is empty.
    ///
    /// Several stores on one log behave like clones of one store.
    pub fn on(log: RunLog, retention: RetentionConfig) -> Self {
        let (root, source) = (PathBuf::new(), Source::Log(Opened::on(log)));
        Self { shared: Arc::new(Shared { root, retention, source }) }
    }

    /// The store that belongs to a folder of journals: `runs` beside it, with the
    /// [`RetentionConfig`] of `config.toml` beside it. If the configuration cannot be read, it uses
    /// the defaults; [`RunStore::try_from_journal_dir`] returns the error.
    ///
    /// The parent of a bare name is the current folder.
    pub fn from_journal_dir(journal_dir: &Path) -> Self {
        let base = base_of(journal_dir);
        Self::new(base.join("runs"), configured(base).unwrap_or_default())
    }

    /// As [`RunStore::from_journal_dir`].
    ///
    /// # Errors
    /// Why an existing `config.toml` could not be read.
    pub fn try_from_journal_dir(journal_dir: &Path) -> io::Result<Self> {
        let base = base_of(journal_dir);
        Ok(Self::new(base.join("runs"), configured(base)?))
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Its retention.
    pub fn retention(&self) -> RetentionConfig {
        self.shared.retention
    }

    /// The log of the engine, which is created if it does not exist: for calls beyond this store.
    /// The file stays open as long as the caller keeps it, and new stores of the folder use it.
    ///
    /// # Errors
    /// Why it could not be opened or created.
    pub fn log(&self) -> io::Result<RunLog> {
        Ok(self.create()?.log().clone())
    }

    /// The engine, to write.
    fn create(&self) -> io::Result<Arc<Opened>> {
        let opened = self.shared.source.opened(&self.shared.root, true)?;
        opened.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The engine, to read; `None` if nothing was ever written.
    fn look(&self) -> io::Result<Option<Arc<Opened>>> {
        self.shared.source.opened(&self.shared.root, false)
    }
}

impl fmt::Debug for RunStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStore")
            .field("root", &self.shared.root)
            .field("retention", &self.shared.retention)
            .finish_non_exhaustive()
    }
}

/// The folder that a folder of journals is in.
fn base_of(journal_dir: &Path) -> &Path {
    journal_dir.parent().unwrap_or(Path::new("."))
}

/// The configuration in that folder.
fn configured(base: &Path) -> io::Result<RetentionConfig> {
    match folder::read_text(&base.join("config.toml")) {
        Ok(text) => Ok(RetentionConfig::parse(&text).map_err(RunStoreError::Config)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RetentionConfig::default()),
        Err(error) => Err(error),
    }
}
