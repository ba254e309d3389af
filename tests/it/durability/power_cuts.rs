//! Power cuts and kills at every operation of a long workload, on a simulated disk.
//!
//! The engine and redb run unmodified. A workload of several agents is recorded operation by
//! operation: small and large records, batches, ends, deletions, recycled extents, checkpoints of
//! the index, closing, reopening, kills, adoption. Then the store is opened as a crash at each
//! boundary would have left it, with many choices of what survives, and everything is read back
//! and compared with what was acknowledged. See `support/cuts.rs` for the list of what must hold.

use runlog_sim::settings::{replay, scale};

use crate::support::campaign::{Campaign, Counts};
use crate::support::cuts::{cut_story, is_wanted};
use crate::support::stories::{Kind, tell};

/// Few enough for a plain `cargo test`, and those of CI.
const CUTS: [u64; 2] = [3000, 20_000];
const SEED: u64 = 2026;

/// Cuts stories of this kind, whose numbers are these, about `1 / share` of all times.
fn cut_stories(kind: Kind, stories: core::ops::Range<u64>, share: u64) {
    let campaign = Campaign::new("power_cuts::", SEED);
    let cuts = scale(CUTS[0], CUTS[1]) / share / (stories.end - stories.start);
    for story in stories.filter(|story| is_wanted(*story)) {
        let counts = cut_story(&campaign, story, &tell(kind, campaign.seed, story), cuts);
        println!("{kind:?} {story}: {counts:?}");
    }
}

#[test]
fn whatever_a_crash_leaves_is_a_prefix_with_everything_that_was_acknowledged() {
    let campaign = Campaign::new("power_cuts::", SEED);
    let cuts = scale(CUTS[0], CUTS[1]);
    let mut counts = Counts::default();
    for round in (0..1000).filter(|round| is_wanted(*round)) {
        let left = cuts - counts.of("cuts");
        let epochs = tell(Kind::Round, campaign.seed, round);
        counts.merge(cut_story(&campaign, round, &epochs, left));
        // Not another round for the last few.
        if replay().is_some() || counts.of("cuts") >= cuts - cuts / 16 {
            break;
        }
    }
    println!("{counts:?}");
}

#[test]
fn an_index_that_grows_is_kept_whatever_a_crash_leaves() {
    cut_stories(Kind::GrowingIndex, 1001..1002, 40);
}

#[test]
fn what_is_collected_and_compacted_is_whole_or_gone_whatever_a_crash_leaves() {
    cut_stories(Kind::Collections, 1010..1016, 8);
}

#[test]
fn a_manifest_that_moves_is_found_whatever_a_crash_leaves_and_whichever_superblock_is_lost() {
    cut_stories(Kind::MovingManifest, 1020..1022, 40);
}

#[test]
fn documents_are_as_after_some_batch_whatever_a_crash_leaves() {
    cut_stories(Kind::Documents, 1030..1034, 16);
}
