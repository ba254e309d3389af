//! How a store is opened.

use core::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::setup::environment::{Environment, Scheduler};
use crate::engine::setup::observer::Observer;
use crate::engine::values::setters;
use crate::error::{Error, Result};
use crate::format::frames::compression::{Compressor, ZSTD_FEATURE, ZSTD_LEVELS, has_level};

/// How frames reach the file when no call waits for a sync. The bytes are the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum TailWriter {
    /// The fastest way that the file permits: [`TailWriter::Mapped`] where possible.
    #[default]
    Auto,
    /// With a system call for each append.
    Pwrite,
    /// By stores into a map of the file, which is several times faster for small records. It works
    /// only on 64-bit Linux, and only on file systems where allocated space is guaranteed: ext4 and
    /// tmpfs. Elsewhere the store opens nevertheless and uses [`TailWriter::Pwrite`].
    /// [`crate::Stats::tail_writer`] tells which one it uses.
    ///
    /// If the device fails, or another program ignores the lock and truncates the file, this can
    /// end the process with SIGBUS, where a system call would return an error.
    Mapped,
}

/// How a store is opened: a builder whose defaults suit a daemon.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-options-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use std::time::Duration;
/// let log = runlog::Options::new()
///     .sync_interval(Some(Duration::from_millis(100)))
///     .index_cache(32 << 20)
///     .open(&path)?;
/// log.close()?;
/// # let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) extent_size: u64,
    pub(crate) sync_interval: Option<Duration>,
    pub(crate) background: bool,
    pub(crate) index: bool,
    pub(crate) index_cache: usize,
    pub(crate) max_record_len: u64,
    pub(crate) prefault: u64,
    pub(crate) compaction: Compaction,
    pub(crate) compression: Compression,
    pub(crate) receipts: ReceiptLimits,
    pub(crate) tail_writer: TailWriter,
    pub(crate) network_file_systems: bool,
    pub(crate) environment: Environment,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) scheduler: Option<Arc<dyn Scheduler>>,
    /// Closing does not release the file, which a salvage names afterwards.
    pub(crate) keeps_file: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The defaults: extents of 4 MiB, a background sync every 250 ms, an index with a cache of
    /// 48 MiB, records of at most 64 MiB.
    pub fn new() -> Self {
        Self {
            extent_size: 4 << 20,
            sync_interval: Some(Duration::from_millis(250)),
            background: true,
            index: true,
            index_cache: 16 << 20,
            max_record_len: 64 << 20,
            prefault: 1 << 30,
            compaction: Compaction::new(),
            compression: Compression::None,
            receipts: ReceiptLimits::default(),
            tail_writer: TailWriter::Auto,
            network_file_systems: false,
            environment: Environment::system(),
            observer: None,
            scheduler: None,
            keeps_file: false,
        }
    }

    setters! {
        /// The size of the extents of a new store, in bytes: a power of two from 64 KiB to 64 MiB;
        /// 4 MiB by default. It is fixed for the life of the file. Smaller extents suit small
        /// stores.
        extent_size(bytes: u64) => extent_size = bytes;
        /// How often a background thread syncs what was appended at Process level; 250 ms by
        /// default. `None` means never.
        sync_interval(interval: Option<Duration>) => sync_interval = interval;
        /// Whether three background threads write zeros ahead of the log, map segments, sync, set
        /// space aside, keep the index and give space back. Without them each call does the due
        /// work before it returns, and the store syncs only when a call asks for it.
        background(threads: bool) => background = threads;
        /// Whether the file has an index. Without one all answers are the same, but lists are
        /// slower.
        index(index: bool) => index = index;
        /// The memory for pages of the index, in bytes; 16 MiB by default.
        index_cache(bytes: usize) => index_cache = bytes;
        /// The longest accepted record, in bytes; 64 MiB by default, at most 256 MiB.
        max_record_len(bytes: u64) => max_record_len = bytes;
        /// How many bytes of the file a background thread maps after the opening, the newest
        /// first, as far as they are in the page cache; 1 GiB by default. It also maps each
        /// segment that is full. Then the first read of a run causes no page faults. Page tables
        /// take 2 MiB for a GiB. 0 means that nothing is mapped before it is read.
        prefault(bytes: u64) => prefault = bytes;
        /// How the store frees the space of deleted runs.
        compaction(compaction: Compaction) => compaction = compaction;
        /// Whether and how ended runs are compressed; no compression by default. Compressed records
        /// stay compressed when the store is opened without this option, and can be read as long as
        /// the program has the codec.
        compression(compression: Compression) => compression = compression;
        /// How many receipts of deleted runs are kept at most, and for how long after the deletion;
        /// 10,000 and 90 days by default. The next compaction drops older ones.
        receipts(count: u64, age: Duration) => receipts = ReceiptLimits { count, age };
        /// How frames reach the file: by stores into a map of it where possible, or by calls.
        tail_writer(writer: TailWriter) => tail_writer = writer;
        /// The clock and the randomness, for tests and for hosts that know them better.
        environment(environment: Environment) => environment = environment;
        /// Whether a store on a network file system is opened for writing. By default it is refused
        /// where the system tells (NFS, SMB, AFS, Ceph, Lustre, Coda). Allow it only where locks of
        /// whole files (`flock`) exclude the writers of other machines.
        network_file_systems(allow: bool) => network_file_systems = allow;
        /// The observer of the engine's activities.
        observer(observer: Arc<dyn Observer>) => observer = Some(observer);
    }

    /// Runs the background work instead of the threads, for tests; see [`Scheduler`]. Calls behave
    /// as in a store with threads.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Arc<dyn Scheduler>) -> Self {
        (self.background, self.scheduler) = (true, Some(scheduler));
        self
    }
}

/// How the store frees the space of deleted runs: whether it moves living runs out of segments that
/// are mostly dead, how fast, and what it does with free extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    pub(crate) automatic: bool,
    pub(crate) rate: Rate,
    pub(crate) space: SpaceReturn,
    pub(crate) pin_age: Option<Duration>,
}

/// Whether and how ended runs are compressed.
///
/// Records of a run in progress are never compressed. After the run has ended, a compaction, in the
/// background or by `RunLog::compact`, compresses its records. Reading returns the same bytes.
///
/// - The records of a short run, up to about 128 KiB, become one block. Reading a record
///   decompresses the block; a trace does that once for all records of the block.
/// - A longer run is stored without what its records repeat: bytes that were in an earlier record,
///   at least 512 of them or behind others that were, are stored once. So damage of a sector may
///   cost several records. If nearly all of a run is repeated, what is left is stored twice.
///   Reading a record decompresses each part of 128 KiB that it needs. A trace keeps these parts,
///   at most 16 MiB.
///
/// Summaries report the size of runs as appended. Plans, receipts and limits of policies in bytes
/// count the size in the file, which compression reduces. Versions of documents are not compressed.
///
/// ```
/// # fn main() -> runlog::Result<()> {
/// # let path = std::env::temp_dir().join(format!("runlog-doc-zstd-{}", std::process::id()));
/// # let _ = std::fs::remove_file(&path);
/// use runlog::{Compression, Options, Outcome};
/// let log = Options::new().compression(Compression::Zstd { level: 3 }).open(&path)?;
/// let run = log.start_run("agent", "run", ())?;
/// for _ in 0..1000 {
///     let _ = run.append(b"what agents say has been said before")?;
/// }
/// let _ = run.end(&Outcome::completed())?;
/// log.compact()?;
/// let first = log.trace("run")?.next().expect("there are records")?;
/// assert_eq!(first.payload(), b"what agents say has been said before");
/// # drop((first, run)); log.close()?; let _ = std::fs::remove_file(&path);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// Compression with zstd.
    Zstd {
        /// 1 to 19: from fast to small. The default of zstd is 3. Levels from 5 on need a program
        /// that was built with the feature `zstd`; any program reads what they wrote.
        level: i32,
    },
}

impl Compression {
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Zstd { level } if !ZSTD_LEVELS.contains(&level) => {
                Err(Error::InvalidArgument { what: "the level of zstd must be 1 to 19" })
            }
            Self::Zstd { level } if has_level(level) => Ok(()),
            Self::Zstd { .. } => Err(Error::NeedsFeature { feature: ZSTD_FEATURE }),
        }
    }

    /// The compressor for this setting, if any.
    pub(crate) fn compressor(self) -> Option<Compressor> {
        match self {
            Self::None => None,
            Self::Zstd { level } => Compressor::new(level),
        }
    }
}

/// How many bytes a second compaction writes at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rate {
    #[default]
    Unlimited,
    /// This many while something is appended, and any number otherwise.
    WhileAppending(u64),
    AtMost(u64),
}

/// What happens to free extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum SpaceReturn {
    /// They stay in the file and are reused, without the bytes that an erasure left to readers, or
    /// that a crash left of one. The file never shrinks.
    Keep,
    /// Their blocks return to the file system; the length of the file stays.
    Punch,
    /// Their blocks return to the file system, and the file shrinks: segments at its end move to
    /// free extents in front of them.
    #[default]
    Shrink,
}

/// How many receipts are kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiptLimits {
    pub(crate) count: u64,
    pub(crate) age: Duration,
}

impl Default for ReceiptLimits {
    fn default() -> Self {
        Self { count: 10_000, age: Duration::from_hours(90 * 24) }
    }
}

impl Default for Compaction {
    fn default() -> Self {
        Self::new()
    }
}

impl Compaction {
    /// The defaults: automatic, at most 64 MiB a second during appends, and the file shrinks.
    pub fn new() -> Self {
        let rate = Rate::WhileAppending(64 << 20);
        Self { automatic: true, rate, space: SpaceReturn::default(), pin_age: None }
    }

    setters! {
        /// Whether the store compacts segments whenever that frees space: in a background thread
        /// or, in a store without threads, in the calls that change it. Otherwise only
        /// `RunLog::compact` compacts. Segments whose runs are all deleted are freed in any case.
        automatic(automatic: bool) => automatic = automatic;
    }

    /// How many bytes a second background compaction writes at most, whether something is appended
    /// or not; `None` means no limit. It does not slow down `RunLog::compact`.
    #[must_use]
    pub fn bytes_per_second(mut self, rate: impl Into<Option<u64>>) -> Self {
        let rate = rate.into().filter(|rate| *rate > 0);
        self.rate = rate.map_or(Rate::Unlimited, Rate::AtMost);
        self
    }

    setters! {
        /// What happens to free extents.
        space_return(space: SpaceReturn) => space = space;
        /// How long a trace may keep extents from being reused. The next step of an older trace is
        /// an error if its records have moved or were deleted meanwhile. `None`, the default, means
        /// any time. Records that the program holds keep their extents as long as they live.
        max_pin_age(age: impl Into<Option<Duration>>) => pin_age = age.into();
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("extent_size", &self.extent_size)
            .field("sync_interval", &self.sync_interval)
            .field("background", &self.background)
            .field("index", &self.index)
            .field("index_cache", &self.index_cache)
            .field("max_record_len", &self.max_record_len)
            .field("compression", &self.compression)
            .field("tail_writer", &self.tail_writer)
            .finish_non_exhaustive()
    }
}
