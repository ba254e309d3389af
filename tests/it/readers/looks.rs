//! Readers beside a writer on a simulated disk, at each of its operations and in the middle of
//! them.
//!
//! Goal: each answer of a reader is the store of one moment: not before what was acknowledged when
//! it was refreshed last, not before its answers so far, not behind what was begun by now, with
//! whole batches. A run that is missing was deleted. What a reader that wants durable records shows
//! is there after any power cut.
//!
//! Method: the writer's life is recorded, as for the cuts of `power_cuts`, and played into a page
//! cache. At each operation one of several readers, opened some operations ago, is refreshed or
//! not, and is asked. In half of the looks the writer goes on while the reader reads, by a few
//! operations or by hundreds; a part of its next operation is visible then.
//!
//! `RUNLOG_REPLAY=story` repeats only this life of a writer, to investigate a failure.

mod images;
mod watch;

use runlog_sim::SplitMix64;
use runlog_sim::settings::scale;

use crate::support::campaign::Campaign;
use crate::support::stories::{Kind, tell_any};
use watch::watch;

/// Few enough for a plain `cargo test`, and those of CI.
const LOOKS: [u64; 2] = [20_000, 30_000];
const SEED: u64 = 2026;

#[test]
fn each_answer_of_a_reader_is_the_store_of_one_moment_since_its_last_refresh() {
    let campaign = Campaign::new("looks::", SEED);
    let (seed, looks) = (campaign.seed, scale(LOOKS[0], LOOKS[1]));
    let must_meet = ["met", "torn", "gone", "cuts", "copies"];
    campaign.run(
        |_, counts| counts.of("looks") >= looks,
        &must_meet,
        |story, counts| {
            let (kind, epochs) = tell_any(seed, story);
            for (number, epoch) in epochs.into_iter().enumerate() {
                let random = SplitMix64::for_case(seed ^ 0x6c6f_6f6b, story << 8 | number as u64);
                watch(&epoch, random, kind == Kind::MovingSegments, counts)
                    .map_err(|error| format!("epoch {number}: {error}"))?;
            }
            Ok(())
        },
    );
}
