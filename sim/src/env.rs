//! Time and randomness under the control of a test.

use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use core::time::Duration;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use runlog::Timestamp;
use runlog::env::{Clock, Entropy};

use crate::random::SplitMix64;

/// A clock that stands still until it is set, in either direction. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    nanos: Arc<AtomicI64>,
    /// How much time has passed.
    passed: Arc<AtomicU64>,
}

impl SimClock {
    /// A clock that shows `time`.
    #[must_use]
    pub fn new(time: Timestamp) -> Self {
        Self { nanos: Arc::new(AtomicI64::new(time.0)), passed: Arc::default() }
    }

    /// Sets the clock, forwards or back. No time passes.
    pub fn set(&self, time: Timestamp) {
        self.nanos.store(time.0, Ordering::SeqCst);
    }

    /// Lets `nanos` pass; a negative value sets the clock back by that much.
    pub fn advance(&self, nanos: i64) {
        self.nanos.fetch_add(nanos, Ordering::SeqCst);
        self.passed.fetch_add(u64::try_from(nanos).unwrap_or(0), Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.nanos.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.passed.load(Ordering::SeqCst))
    }
}

/// Random bytes from a seed. Clones draw from the same sequence.
#[derive(Debug, Clone)]
pub struct SimEntropy {
    random: Arc<Mutex<SplitMix64>>,
}

impl SimEntropy {
    /// The bytes that follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { random: Arc::new(Mutex::new(SplitMix64::new(seed))) }
    }
}

impl Entropy for SimEntropy {
    fn fill(&self, out: &mut [u8]) -> io::Result<()> {
        self.random.lock().fill(out);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_goes_both_ways_for_all_clones() {
        let clock = SimClock::new(Timestamp(100));
        let other = clock.clone();
        clock.advance(5);
        assert_eq!(other.now(), Timestamp(105));
        other.advance(-200);
        assert_eq!(clock.now(), Timestamp(-95));
        clock.set(Timestamp(7));
        assert_eq!(other.now(), Timestamp(7));
    }

    #[test]
    fn a_seed_decides_all_bytes() {
        let draw = |entropy: &SimEntropy| {
            let mut bytes = [0; 16];
            entropy.fill(&mut bytes).unwrap();
            bytes
        };
        let (first, second) = (SimEntropy::new(1), SimEntropy::new(1));
        let bytes = draw(&first);
        assert_eq!(bytes, draw(&second));
        assert_ne!(bytes, draw(&first.clone()));
        assert_ne!(bytes, draw(&SimEntropy::new(2)));
    }
}
