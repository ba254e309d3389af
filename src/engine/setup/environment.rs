//! What the engine takes from its surroundings besides the file: time and randomness. Both are
//! injected, so that tests control them.

use core::fmt;
use core::time::Duration;
use std::io;
use std::sync::{Arc, Weak};

use crate::engine::values::setters;
use crate::error::{Error, IoAction, Result};
use crate::types::Timestamp;

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, in nanoseconds since the Unix epoch. May jump in both directions.
    fn now(&self) -> Timestamp;

    /// The time since a fixed moment in the past, for measuring durations. It never goes back and
    /// does not jump. The default is the monotonic clock of the machine.
    fn monotonic(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
        Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
    }
}

/// A source of random bytes.
pub trait Entropy: fmt::Debug + Send + Sync + 'static {
    /// Fills `out`.
    fn fill(&self, out: &mut [u8]) -> io::Result<()>;
}

/// One step of the work that the background threads do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Step {
    /// Prepares the next segment, and the compaction reserve.
    Reserve,
    /// Writes zeros ahead of the tail, and maps them.
    Zeros,
    /// Maps the next segment for reading.
    Prefault,
    /// Syncs what was appended at Process level.
    Sync,
    /// Opens the index, and brings it up to the last sealed segment.
    Checkpoint,
    /// Frees the segments whose runs are all deleted.
    Reclaim,
    /// Gives the blocks of free extents back to the file system.
    GiveBack,
    /// Moves living runs out of segments that are mostly dead, and shortens the file.
    Compact,
    /// Compresses ended runs.
    Compress,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 9] = [
        Self::Reserve,
        Self::Zeros,
        Self::Prefault,
        Self::Sync,
        Self::Checkpoint,
        Self::Reclaim,
        Self::GiveBack,
        Self::Compact,
        Self::Compress,
    ];
}

/// Does the background work instead of the threads, for tests that control what runs when. It may
/// run any step at any time, several at once on several threads, or none. The store answers
/// correctly and keeps what it acknowledged in every case.
pub trait Scheduler: fmt::Debug + Send + Sync + 'static {
    /// A store was opened; `steps` runs its background work. No step has run yet.
    fn begin(&self, steps: Steps);
}

/// Runs a step to its end; returns false if the store is closed.
pub(crate) trait RunStep: Send + Sync {
    /// Runs a step to its end; false if the store is closed.
    fn run_step(&self, step: Step) -> bool;
}

/// The steps of the background work of one open store, for a [`Scheduler`].
#[derive(Clone)]
pub struct Steps {
    store: Weak<dyn RunStep>,
}

impl Steps {
    pub(crate) fn new(store: Weak<dyn RunStep>) -> Self {
        Self { store }
    }

    /// Runs a step to its end on this thread, whether or not it is due. A step without work does
    /// nothing. Returns false, and does nothing, if the store is closed.
    ///
    /// A failure has the same effect as in a background thread: later calls report it.
    pub fn run(&self, step: Step) -> bool {
        self.store.upgrade().is_some_and(|store| store.run_step(step))
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

/// What the engine takes from its surroundings besides the file.
///
/// ```
/// use runlog::env::Environment;
/// let environment = Environment::system();
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Environment {
    /// The clock that stamps records.
    pub clock: Arc<dyn Clock>,
    /// The source of the store's id and the segments' salts.
    pub entropy: Arc<dyn Entropy>,
}

impl Environment {
    /// A random number that is not zero.
    pub(crate) fn random(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        let filled = self.entropy.fill(&mut bytes);
        filled.map_err(|source| Error::io(IoAction::Randomness, source))?;
        Ok(u64::from_le_bytes(bytes).max(1))
    }

    setters! {
        /// The clock that stamps records.
        clock(clock: Arc<dyn Clock>) => clock = clock;
        /// The source of the store's id and the segments' salts.
        entropy(entropy: Arc<dyn Entropy>) => entropy = entropy;
    }

    /// The real clock and the system's randomness.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
    }
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// Each append calls it, so it avoids the overhead of the standard library.
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
    }
}

/// The randomness of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, out: &mut [u8]) -> io::Result<()> {
        getrandom::fill(out).map_err(|error| io::Error::other(error.to_string()))
    }
}
