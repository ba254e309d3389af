//! How a store is opened.

use core::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::setup::environment::{Environment, Scheduler};
use crate::engine::setup::observer::Observer;
use crate::engine::values::setters;
use crate::error::{Error, Result};
use crate::format::frames::compression::{Compressor, ZSTD_FEATURE, ZSTD_LEVELS, has_zstd};

/// How frames reach the file when no call waits for a sync. The bytes are the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum TailWriter {
    /// What suits the file: [`TailWriter::Mapped`] where that is possible.
    #[default]
    Auto,
    /// With a system call for each append.
    Pwrite,
    /// By stores into a map of the file, which is several times faster for small records. Only on
    /// 64-bit Linux, and only where allocated space is sure to be had, on ext4 and tmpfs;
    /// everywhere else the store is opened all the same, and uses [`TailWriter::Pwrite`].
    /// [`crate::Stats::tail_writer`] tells which.
    ///
    /// A device that fails, or a file that another program cuts off despite the lock, can end the
    /// process with SIGBUS here, where a system call would have given an error.
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
    pub(crate) lookup_cache: usize,
    pub(crate) max_record_len: u64,
    pub(crate) compaction: Compaction,
    pub(crate) compression: Compression,
    pub(crate) receipts: ReceiptLimits,
    pub(crate) tail_writer: TailWriter,
    pub(crate) environment: Environment,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) scheduler: Option<Arc<dyn Scheduler>>,
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
            index_cache: 48 << 20,
            lookup_cache: 64 << 10,
            max_record_len: 64 << 20,
            compaction: Compaction::new(),
            compression: Compression::None,
            receipts: ReceiptLimits::default(),
            tail_writer: TailWriter::Auto,
            environment: Environment::system(),
            observer: None,
            scheduler: None,
        }
    }

    setters! {
        /// The size of the extents of a new store: a power of two from 64 KiB to 64 MiB. It is
        /// fixed for the life of the file. Smaller extents suit small stores.
        extent_size(bytes: u64) => extent_size = bytes;
        /// How often what was appended at Process level is synced in the background; `None` means
        /// never.
        sync_interval(interval: Option<Duration>) => sync_interval = interval;
        /// Whether three background threads sync, set space aside, keep the index and give space
        /// back. Without them each call does what is due before it returns, and nothing is synced
        /// unless asked for.
        background(threads: bool) => background = threads;
        /// Whether the file has an index. Without one all answers are the same, but slower.
        index(index: bool) => index = index;
        /// The memory for pages of the index, in bytes.
        index_cache(bytes: usize) => index_cache = bytes;
        /// The most runs that were looked up and stay in memory, about 700 bytes each; 65,536 by
        /// default. Looking up another one asks the index.
        lookup_cache(runs: usize) => lookup_cache = runs;
        /// The longest record that is accepted, in bytes; at most 256 MiB.
        max_record_len(bytes: u64) => max_record_len = bytes;
        /// How the space of deleted runs comes back.
        compaction(compaction: Compaction) => compaction = compaction;
        /// Whether runs that have ended are compressed; not unless this says so. Compressed ones
        /// stay so when the store is opened without it, and can be read as long as the program has
        /// the codec.
        compression(compression: Compression) => compression = compression;
        /// How many receipts of deleted runs are kept at most, and for how long after the deletion;
        /// 10,000 and 90 days by default. Older ones go with the next compaction.
        receipts(count: u64, age: Duration) => receipts = ReceiptLimits { count, age };
        /// How frames reach the file: by stores into a map of it, where that is possible, or by
        /// system calls.
        tail_writer(writer: TailWriter) => tail_writer = writer;
        /// The clock, the randomness and the boot id, for tests and for hosts that know better.
        environment(environment: Environment) => environment = environment;
        /// Who is told what the engine does.
        observer(observer: Arc<dyn Observer>) => observer = Some(observer);
    }

    /// Who does the background work in the place of the threads, for tests: see [`Scheduler`].
    /// Calls then behave as in a store with threads.
    #[must_use]
    pub fn scheduler(mut self, scheduler: Arc<dyn Scheduler>) -> Self {
        (self.background, self.scheduler) = (true, Some(scheduler));
        self
    }
}

/// How the space of deleted runs comes back: whether living runs are moved out of segments that are
/// mostly dead, how fast, and what becomes of the extents that this frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compaction {
    pub(crate) automatic: bool,
    pub(crate) rate: Rate,
    pub(crate) space: SpaceReturn,
    pub(crate) pin_age: Option<Duration>,
}

/// Whether runs that have ended are compressed, and how.
///
/// Records are appended as they are, and read so, as long as their run goes on. When it has ended,
/// a compaction puts them into blocks of some 128 KiB, by itself in the background or by
/// `RunLog::compact`. Reading gives the same bytes as before; a record costs the decompression of
/// its block, which a trace does once for all records in it.
///
/// The sizes of runs are told as they were appended. Limits of policies in bytes, plans and
/// receipts count what runs take in the file, which compression makes less. Versions of documents
/// are not compressed.
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
#[non_exhaustive]
pub enum Compression {
    /// No.
    #[default]
    None,
    /// By zstd, for which the program is built with the feature `zstd`.
    Zstd {
        /// 1 to 19: from fast to short. 3 is zstd's own default.
        level: i32,
    },
}

impl Compression {
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Zstd { .. } if !has_zstd() => Err(Error::NeedsFeature { feature: ZSTD_FEATURE }),
            Self::Zstd { level } if ZSTD_LEVELS.contains(&level) => Ok(()),
            Self::Zstd { .. } => Err(Error::InvalidArgument { what: "levels of zstd are 1 to 19" }),
        }
    }

    /// What compresses so, if anything is to be compressed.
    pub(crate) fn compressor(self) -> Option<Compressor> {
        match self {
            Self::None => None,
            Self::Zstd { level } => Compressor::new(level),
        }
    }
}

/// How many bytes a second are written at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rate {
    #[default]
    Unlimited,
    /// So many while something is appended, and any number otherwise.
    WhileAppending(u64),
    AtMost(u64),
}

/// What becomes of extents that are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SpaceReturn {
    /// They stay in the file, to be used again. The file never shrinks.
    Keep,
    /// Their blocks go back to the file system; the length of the file stays.
    Punch,
    /// Their blocks go back, and the file is made shorter, for which segments at its end move to
    /// free extents in front of them.
    #[default]
    Shrink,
}

/// How long receipts are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiptLimits {
    pub(crate) count: u64,
    pub(crate) age: Duration,
}

impl Default for ReceiptLimits {
    fn default() -> Self {
        Self { count: 10_000, age: Duration::from_secs(90 * 24 * 3600) }
    }
}

impl Default for Compaction {
    fn default() -> Self {
        Self::new()
    }
}

impl Compaction {
    /// The defaults: automatic, at most 64 MiB a second while something is appended, and the file
    /// shrinks.
    pub fn new() -> Self {
        let rate = Rate::WhileAppending(64 << 20);
        Self { automatic: true, rate, space: SpaceReturn::default(), pin_age: None }
    }

    setters! {
        /// Whether segments are compacted whenever that frees space, by a thread of its own or, in
        /// a store without threads, by the calls that delete. Otherwise only `RunLog::compact` does
        /// it. Segments of which all runs are deleted are freed in any case.
        automatic(automatic: bool) => automatic = automatic;
    }

    /// How many bytes a second the thread writes at most, whether something is appended or not;
    /// `None` means as fast as it can. Calls of `RunLog::compact` are not held up.
    #[must_use]
    pub fn bytes_per_second(mut self, rate: impl Into<Option<u64>>) -> Self {
        let rate = rate.into().filter(|rate| *rate > 0);
        self.rate = rate.map_or(Rate::Unlimited, Rate::AtMost);
        self
    }

    setters! {
        /// What becomes of free extents.
        space_return(space: SpaceReturn) => space = space;
        /// How long a trace may hold up that extents are used again. The next step of an older one
        /// is an error if its records have moved or were deleted meanwhile. `None`, the default,
        /// means as long as it likes. Records that were handed out hold their extents as long as
        /// they live.
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
            .field("lookup_cache", &self.lookup_cache)
            .field("max_record_len", &self.max_record_len)
            .field("compression", &self.compression)
            .field("tail_writer", &self.tail_writer)
            .finish_non_exhaustive()
    }
}
