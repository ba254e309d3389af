//! What the engine takes from its surroundings besides the file: time, randomness, the boot id.
//! All of it is injected, so that a test decides what happens.

use core::fmt;
use std::io;
use std::sync::Arc;

use super::host;
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

/// The identity of one boot of the machine. Equal ids mean that what the kernel had cached is
/// still there.
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
    /// Asked for each append, so without the detours of the standard library where that goes.
    #[cfg(unix)]
    fn now(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec))
    }

    #[cfg(not(unix))]
    #[expect(clippy::disallowed_methods, reason = "the one place that asks for the time")]
    fn now(&self) -> Timestamp {
        let now = std::time::SystemTime::now();
        let nanos = match now.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => {
                i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos)
            }
        };
        Timestamp(nanos)
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
