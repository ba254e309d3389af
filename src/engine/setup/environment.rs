//! What the engine takes from its surroundings besides the file: time, randomness, the boot id.
//! All of it is injected, so that a test decides what happens.

use core::fmt;
use std::io;
use std::sync::{Arc, Weak};

use crate::engine::setup::host;
use crate::types::Timestamp;

/// Tells the time.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, in nanoseconds since the Unix epoch. May jump in both directions.
    fn now(&self) -> Timestamp;
}

/// Gives random bytes.
pub trait Entropy: fmt::Debug + Send + Sync + 'static {
    /// Fills `out`.
    fn fill(&self, out: &mut [u8]) -> io::Result<()>;
}

/// One step of the work that three background threads do otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Prepares the next segment, and the extent that compaction needs on a full disk.
    Reserve,
    /// Syncs what was appended at Process level.
    Sync,
    /// Opens the index, and brings it up to the last sealed segment.
    Checkpoint,
    /// Frees the segments of which all runs are deleted.
    Reclaim,
    /// Gives the blocks of free extents back to the file system.
    GiveBack,
    /// Moves living runs out of segments that are mostly dead, and makes the file shorter.
    Compact,
    /// Compresses runs that have ended.
    Compress,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Reserve,
        Self::Sync,
        Self::Checkpoint,
        Self::Reclaim,
        Self::GiveBack,
        Self::Compact,
        Self::Compress,
    ];
}

/// Does the background work in the place of the threads: for tests that decide what runs when. It
/// may run any step at any time, several at once on several threads, or none; the store answers
/// and keeps what it acknowledged in any case.
pub trait Scheduler: fmt::Debug + Send + Sync + 'static {
    /// A store was opened, and these are the steps of its background work. None was run yet.
    fn begin(&self, steps: Steps);
}

/// Runs the steps of the background work of a store.
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

    /// Runs a step to its end, on this thread, whether anything asked for it or not; a step that
    /// has nothing to do does nothing. False if the store is closed: nothing was done then.
    ///
    /// A step that fails is like one that a thread runs: what the failure means for the store is
    /// told by the calls that follow.
    pub fn run(&self, step: Step) -> bool {
        self.store.upgrade().is_some_and(|store| store.run_step(step))
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

/// The identity of one boot of the machine. Equal ids mean that what the kernel had cached is
/// still there. Where that is not so, since a virtual machine was resumed from a snapshot or a
/// volume was set back, opening a store notices the holes in it, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BootId(pub [u8; 16]);

/// What the engine takes from its surroundings.
///
/// ```
/// use runlog::env::Environment;
/// let mut environment = Environment::system();
/// environment.boot_id = None; // as in a container whose host may have been restarted
/// ```
#[derive(Debug, Clone)]
pub struct Environment {
    /// The clock that stamps records.
    pub clock: Arc<dyn Clock>,
    /// The source of the store's id and the segments' salts.
    pub entropy: Arc<dyn Entropy>,
    /// The boot of the machine; `None` if unknown, which counts as another boot.
    pub boot_id: Option<BootId>,
}

impl Environment {
    /// The boot as it is stored: zeros if it is unknown.
    pub(crate) fn boot(&self) -> [u8; 16] {
        self.boot_id.map_or([0; 16], |boot| boot.0)
    }

    /// The real clock, the system's randomness, the boot id of the kernel.
    pub fn system() -> Self {
        Self {
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            boot_id: host::boot_id().map(BootId),
        }
    }
}

/// The clock of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    /// Asked for each append, so without the detours of the standard library.
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
