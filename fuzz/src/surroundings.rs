//! Time and randomness that depend only on the order of the calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog::env::{Clock, Entropy, Environment};
use runlog::{Options, ReaderOptions, Timestamp};

#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl Clock for Counter {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.fetch_add(1_000, Ordering::Relaxed) as i64)
    }
}

impl Entropy for Counter {
    fn fill(&self, out: &mut [u8]) -> std::io::Result<()> {
        for byte in out {
            let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            *byte = (count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
        }
        Ok(())
    }
}

fn environment() -> Environment {
    Environment::system().clock(Arc::new(Counter::default())).entropy(Arc::new(Counter::default()))
}

/// The same for a process that only reads.
pub fn reader_options() -> ReaderOptions {
    ReaderOptions::new().environment(environment())
}

/// Small extents, no threads, and nothing that differs between two executions.
pub fn options() -> Options {
    Options::new()
        .extent_size(64 << 10)
        .index_cache(1 << 20)
        .background(false)
        .environment(environment())
}
