//! A model test of retention and compaction: random operations against a store, and the same
//! operations against plain collections.
//!
//! Goal: whatever is appended, held, deleted, evicted, moved, and lost in crashes, the store
//! answers like the model; runs in progress and held runs are never deleted, and each record keeps
//! its bytes.
//!
//! Method: rounds of a few thousand operations, each on a new store with the smallest extents on a
//! simulated disk. The answer of each operation is compared with the model's and, every few hundred
//! operations, everything visible in the store. An oracle in `model/policy.rs`, which does not use
//! the engine, decides what a policy should do.
//!
//! `RUNLOG_REPLAY=round` repeats only this round, to investigate a failure.

use runlog_sim::SplitMix64;

use self::session::{Session, Tally};
use runlog_sim::settings::{replayed, scale, seed};

mod policy;
mod session;
mod state;

/// Few enough for a plain `cargo test`; CI asks for 1,000,000.
const OPERATIONS: u64 = 30_000;
const SEED: u64 = 2026;
/// The operations of one store.
const ROUND: u64 = 5_000;

/// Prints where a failure was, and how to repeat it.
struct Place {
    seed: u64,
    round: u64,
    step: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, round, step } = self;
            println!("round {round}, operation {step}");
            println!("again: RUNLOG_SEED={seed} RUNLOG_REPLAY={round}");
        }
    }
}

#[test]
fn a_store_does_what_plain_collections_do() {
    let (seed, operations, only) = (seed(SEED), scale(OPERATIONS, 400_000), replayed());
    println!("RUNLOG_SEED={seed}, {operations} operations");
    let rounds = only.map_or(0..operations.div_ceil(ROUND), |round| round..round + 1);
    let mut tally = Tally::default();
    for round in rounds {
        let steps = ROUND.min(operations.saturating_sub(round * ROUND).max(1));
        let steps = if only.is_some() { ROUND } else { steps };
        let mut session = Session::new(SplitMix64::for_case(seed, round).next_u64(), tally);
        let mut place = Place { seed, round, step: 0 };
        for step in 0..steps {
            place.step = step;
            session.step();
        }
        tally = session.finish();
    }
    println!("{tally:#?}");
}
