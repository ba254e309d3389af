//! The handle of a process that only reads: [`Reader`].

use core::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::engine::api::documents::Documents;
use crate::engine::api::run_log::RunLog;
use crate::engine::api::stats::{Stats, stats_of};
use crate::engine::read::Reader as Answers;
use crate::engine::read::receipts::Receipt;
use crate::engine::read::trace::Trace;
use crate::engine::reader::Replica;
use crate::engine::reader::backup::{Backup, backup};
use crate::engine::reader::only_reading::OnlyReading;
use crate::engine::retain::{GcPlan, gc_plan_of};
use crate::engine::setup::environment::Environment;
use crate::engine::setup::options::Options;
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{FileStorage, Storage};
use crate::engine::values::report::RecoveryReport;
use crate::engine::values::setters;
use crate::engine::values::usage::Usage;
use crate::engine::verify::VerifyReport;
use crate::error::{Owner, Result};
use crate::gc::Retention;
use crate::types::RunRef;

/// How a store is opened to be read: a builder.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-reading-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// # let log = runlog::Options::new().open(&path)?;
/// # log.start_run("agent", "run", ())?;
/// # log.close()?;
/// let reader = runlog::ReaderOptions::new().durable_only(true).open(&path)?;
/// assert_eq!(reader.run("run")?.records, 0);
/// # let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    durable_only: bool,
    list_bytes: usize,
    shared_bytes: usize,
    environment: Environment,
}

impl Default for ReaderOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ReaderOptions {
    /// The defaults: all that was written, and an order of lists of at most 64 MiB.
    pub fn new() -> Self {
        Self {
            durable_only: false,
            list_bytes: 64 << 20,
            shared_bytes: 0,
            environment: Environment::system(),
        }
    }

    setters! {
        /// Whether the reader shows only what is known to survive a power loss. By default it shows
        /// all that was written. What the last sync of the writer covered shows as durable with the
        /// next append, the next full segment, or the end of the writer.
        durable_only(durable: bool) => durable_only = durable;
        /// The most bytes that all runs in the order of lists may take, 32 for each; 64 MiB by
        /// default. They are put in order when a list is asked for. With more runs each page of a
        /// list walks all directories. The directories of all segments are in
        /// memory besides, and after many lookups some 20 bytes for each run.
        list_bytes(bytes: usize) => list_bytes = bytes;
        /// The most bytes of the file that stay in memory because other runs may have records
        /// there, for a program that reads most records of most runs: 32 MiB, say, if some runs
        /// were written at the same time. By default 0, and a trace reads its own records only.
        shared_bytes(bytes: usize) => shared_bytes = bytes;
        /// The clock, for tests and for hosts that know it better.
        environment(environment: Environment) => environment = environment;
    }

    /// Opens the store at `path`, which must exist. Read permission is enough.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound),
    /// [`Error::NotRegularFile`](crate::Error::NotRegularFile),
    /// [`Error::NotAStore`](crate::Error::NotAStore),
    /// [`Error::Damaged`](crate::Error::Damaged),
    /// [`Error::UnsupportedVersion`](crate::Error::UnsupportedVersion) and the like if the file is
    /// not a usable store; [`Error::Overtaken`](crate::Error::Overtaken) if the writer changed it
    /// again and again meanwhile.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Reader> {
        let path = path.as_ref();
        let file = Arc::new(FileStorage::open_to_read(path)?);
        self.start(Arc::<FileStorage>::clone(&file), Some((file, path)))
    }

    /// Opens the store in a storage of the caller, of which only `len`, `read_at` and `data_end`
    /// are called.
    ///
    /// # Errors
    /// Those of [`ReaderOptions::open`].
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn open_storage(&self, storage: Arc<dyn Storage>) -> Result<Reader> {
        self.start(storage, None)
    }

    pub(crate) fn start(
        &self,
        storage: Arc<dyn Storage>,
        file: Option<(Arc<FileStorage>, &Path)>,
    ) -> Result<Reader> {
        let disk = Disk::without_views(Arc::new(OnlyReading(storage))).sharing(self.shared_bytes);
        let options = Options::new()
            .background(false)
            .index(false)
            // All that the file has.
            .receipts(u64::MAX, core::time::Duration::MAX)
            .environment(self.environment.clone());
        let file = file.map(|(file, path)| (file, path.to_owned()));
        let replica = Replica::open(disk, options, file, (self.durable_only, self.list_bytes))?;
        Ok(Reader { replica: Arc::new(replica) })
    }
}

/// A store that this process only reads, while another one writes it, or none does. Clones are
/// cheap, and share what was read.
///
/// A reader writes nothing: no byte, no length, no time of the file, and no lock. So it needs no
/// more than read permission, delays no other process, and may be killed at any moment. It sees
/// whole records only, at once when they are appended at any level.
///
/// It answers as of its last [`Reader::refresh`]: a prefix of the log with whole batches. Where the
/// writer has meanwhile moved or deleted what an answer needs, the reader refreshes by itself, and
/// the answer is of that later moment; no answer is older than one before. A run that was deleted
/// is [`Error::RunNotFound`](crate::Error::RunNotFound), or
/// [`Error::Evicted`](crate::Error::Evicted) in the middle of a trace. Calls that a [`RunLog`] has
/// too have its errors.
///
/// A store that crashed shows what opening it would recover, and [`Reader::recovery_report`] tells
/// it. Nothing is repaired. A reader uses no index: runs of which all frames and directories are
/// lost it does not list, which the index of the writer may still know. The report and
/// [`Reader::verify`] name the directory of each such segment.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-reader-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// let log = runlog::Options::new().open(&path)?;
/// let run = log.start_run("planner", "run-1", ())?;
/// run.append(b"first")?;
///
/// // In any process:
/// let reader = runlog::Reader::open(&path)?;
/// assert_eq!(reader.trace("run-1")?.count(), 1);
/// run.append(b"second")?;
/// assert!(reader.refresh()?);
/// assert_eq!(reader.trace("run-1")?.count(), 2);
/// # log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Reader {
    pub(crate) replica: Arc<Replica>,
}

impl Reader {
    /// Opens the store at `path` with the defaults; see [`ReaderOptions::open`].
    ///
    /// # Errors
    /// Those of [`ReaderOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        ReaderOptions::new().open(path)
    }

    /// The answer to a question; see [`Replica::ask`].
    pub(crate) fn ask<T>(&self, question: impl Fn(&Answers) -> Result<T>) -> Result<T> {
        self.replica.ask(question)
    }

    /// Brings the reader up to what was written by now; answers whether anything was new. Four
    /// reads of 64 KiB together if nothing was. After new frames it reads these, after a change of
    /// the manifest (a full segment, a compaction) also the segments that are not sealed.
    ///
    /// # Errors
    /// [`Error::Replaced`](crate::Error::Replaced) if the path names another file by now;
    /// [`Error::Overtaken`](crate::Error::Overtaken); damage. The reader then still answers as
    /// before.
    pub fn refresh(&self) -> Result<bool> {
        self.replica.refresh()
    }

    /// Copies the store to `path`, as of one moment behind this call, while it may be written: all
    /// that was durable when the call began is in the copy, and what came later up to that moment.
    /// The copy survives power loss when the call returns. It is a store like any other: to restore
    /// it, open it, or copy it to where it is wanted.
    ///
    /// Each frame is checked on its way; damage is in the report, and its bytes are copied as they
    /// are. The copy has no index, which is built when it is opened, and holes where the store has
    /// free space. A file that is not there gets its name when it is complete. An earlier copy of
    /// the same store, which no process has opened for writing since, is brought up to date: it
    /// keeps the segments that it has. A call that breaks off leaves it as it was, or as of a
    /// moment between the earlier copy and this one.
    ///
    /// A backup heals neither the store nor the copy. After it the copy has what the store has at
    /// that moment, and no more: runs that were deleted or erased leave the copy, too. It does not
    /// check the segments that the copy keeps: [`Reader::verify`] of the copy finds what its disk
    /// has damaged.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-backup-{}", std::process::id()));
    /// # let copy = path.with_extension("copy");
    /// # for file in [&path, &copy] { let _ = std::fs::remove_file(file); }
    /// let log = runlog::Options::new().open(&path)?;
    /// let run = log.start_run("agent", "run", ())?;
    /// run.append(b"first")?;
    ///
    /// let reader = runlog::Reader::open(&path)?; // in any process
    /// assert!(reader.backup_to(&copy)?.damaged.is_empty());
    /// run.append(b"second")?;
    /// // Copies the full segments that the copy lacks, and the one that takes records.
    /// assert!(reader.backup_to(&copy)?.damaged.is_empty());
    /// assert_eq!(runlog::Reader::open(&copy)?.trace("run")?.count(), 2);
    /// # drop(run); log.close()?;
    /// # for file in [&path, &copy] { let _ = std::fs::remove_file(file); }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::AlreadyExists`](crate::Error::AlreadyExists) if there is anything at `path` but
    /// such a copy; [`Error::CopyDamaged`](crate::Error::CopyDamaged) if the earlier copy does not
    /// check; [`Error::Damaged`](crate::Error::Damaged) if the store has lost its end, because the
    /// earlier copy may have it; [`Error::Busy`](crate::Error::Busy) if a process has it open for
    /// writing;
    /// [`Error::DiskFull`](crate::Error::DiskFull);
    /// [`Error::Overtaken`](crate::Error::Overtaken). Then there is no new file.
    pub fn backup_to(&self, path: impl AsRef<Path>) -> Result<Backup> {
        backup(&self.replica.again()?, path.as_ref())
    }

    /// The same into a storage, which is empty or has an earlier copy of the store.
    ///
    /// # Errors
    /// Those of [`Reader::backup_to`].
    #[cfg(any(test, feature = "unstable-internals"))]
    pub fn backup_to_storage(&self, storage: Arc<dyn Storage>) -> Result<Backup> {
        crate::engine::reader::backup::backup_to_storage(&self.replica.again()?, storage)
    }

    /// Who has the store open for writing now; `None` if no process does, or the system does not
    /// tell: only Linux does, of processes that this one may see.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the page of the owner cannot be read.
    pub fn writer(&self) -> Result<Option<Owner>> {
        self.replica.writer()
    }

    /// What opening the store would find and repair, as of the last time that the manifest had
    /// changed.
    pub fn recovery_report(&self) -> Arc<RecoveryReport> {
        self.replica.report()
    }

    /// The records of a run as of the last refresh; see [`RunLog::trace`]. Those that lie together
    /// in the file are read together, up to 256 KiB of them, for which the trace has a buffer.
    ///
    /// # Errors
    /// Those of [`RunLog::trace`]. [`Error::Evicted`](crate::Error::Evicted), as the last item, if
    /// the run is deleted while it is read. [`Error::Corrupt`](crate::Error::Corrupt), as the last
    /// item, if the log ends at damage: then a writer refuses the store, and records of any run may
    /// be missing.
    pub fn trace<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Trace> {
        let run = run.into();
        let view = self.replica.number();
        let trace = self.replica.ask(|answers| answers.trace(run))?;
        let lost_end = self.replica.lost_end();
        Ok(trace.moving(Arc::<Replica>::clone(&self.replica), view).ending_at(lost_end))
    }

    /// Receipts of deleted runs, the latest first: all that the file has. The writer drops old
    /// ones; see [`Options::receipts`].
    pub fn receipts(&self, limit: usize) -> Result<Vec<Receipt>> {
        self.replica.ask_leaving_out(|answers| answers.list_receipts(limit))
    }

    /// What a policy would evict now; see [`RunLog::gc_plan`].
    pub fn gc_plan(&self, policy: &Retention) -> Result<GcPlan> {
        self.replica.ask(|answers| Ok(gc_plan_of(answers, policy)?.0))
    }

    /// The documents of the store.
    pub fn docs(&self) -> Documents<'_, Self> {
        Documents { log: self }
    }

    /// Numbers about the store. What only the writer knows is 0 or `None`: reserved extents, runs
    /// in its memory, its index, what it asked the storage for. The counters are those of this
    /// reader.
    pub fn stats(&self) -> Result<Stats> {
        self.replica.ask(|answers| {
            let (extents, floor) = self.replica.extents();
            stats_of(&self.replica.disk, answers, || extents, || floor)
        })
    }

    /// What the living runs and documents take. It looks at every run, and reads none.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-usage-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// let log = runlog::Options::new().open(&path)?;
    /// log.start_run("planner", "run-1", ())?.append(b"a step")?;
    /// let usage = runlog::Reader::open(&path)?.usage()?;
    /// assert_eq!((usage.agents[0].runs.count, usage.agents[0].runs.bytes), (1, 6));
    /// assert_eq!(usage.documents.count, 0);
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn usage(&self) -> Result<Usage> {
        self.ask(Answers::usage)
    }

    /// Checks everything that the reader sees; see [`RunLog::verify`]. The index is not compared.
    /// A segment that the writer moves meanwhile is left out.
    pub fn verify(&self) -> Result<VerifyReport> {
        crate::engine::verify::verify_replica(&self.replica)
    }
}

impl RunLog {
    /// A reader of this store, which sees what any other process would see.
    ///
    /// # Errors
    /// Those of [`ReaderOptions::open`].
    pub fn reader(&self) -> Result<Reader> {
        let (log, engine) = (self.log(), self.engine());
        let options = ReaderOptions::new().environment(log.setup.options.environment.clone());
        match &engine.path {
            Some(path) => options.open(path),
            None => options.start(log.disk.storage(), None),
        }
    }

    /// Copies the store to `path`, while it is written; see [`Reader::backup_to`].
    ///
    /// # Errors
    /// Those of [`Reader::backup_to`].
    pub fn backup_to(&self, path: impl AsRef<Path>) -> Result<Backup> {
        self.reader()?.backup_to(path)
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("path", &self.replica.path()).finish_non_exhaustive()
    }
}
