//! Power cuts and kills at every operation of a long workload, on a simulated disk.
//!
//! The engine and redb run unmodified. A workload of several agents is recorded operation by
//! operation: small and large records, batches, ends, deletions, recycled extents, checkpoints of
//! the index, closing, reopening, kills, adoption. Then the store is opened as a crash at each
//! boundary would have left it, with many choices of what survives, and everything is read back
//! and compared with what was acknowledged. See `support/cuts.rs` for the list of what must hold.

use runlog_sim::settings;

use crate::support::campaign;

mod documents;

/// Few enough for a plain `cargo test`, and those of CI.
const CUTS: [u64; 2] = [3000, 20_000];
const SEED: u64 = 2026;

#[test]
fn whatever_a_crash_leaves_is_a_prefix_with_everything_that_was_acknowledged() {
    let seed = settings::seed(SEED);
    let cuts = settings::scale(CUTS[0], CUTS[1]);
    println!("RUNLOG_SEED={seed}, {cuts} cuts");
    let summary = campaign::run(seed, cuts);
    println!("{summary:?}");
}

#[test]
fn an_index_that_grows_is_kept_whatever_a_crash_leaves() {
    let seed = settings::seed(SEED);
    let cuts = settings::scale(CUTS[0], CUTS[1]) / 40;
    println!("RUNLOG_SEED={seed}");
    let (epoch, boundaries) = campaign::growing_index(seed);
    let tally = campaign::cut_at(seed, &epoch, &boundaries, cuts);
    println!("{} boundaries, {} runs, {tally:?}", boundaries.len(), epoch.model.runs.len());
}

#[test]
fn what_is_collected_and_compacted_is_whole_or_gone_whatever_a_crash_leaves() {
    let seed = settings::seed(SEED);
    let cuts = settings::scale(CUTS[0], CUTS[1]) / 8;
    println!("RUNLOG_SEED={seed}");
    for turn in 0..6 {
        let seed = seed.wrapping_add(turn);
        let (epoch, boundaries) = campaign::collections(seed);
        let tally = campaign::cut_at(seed, &epoch, &boundaries, cuts / 6);
        println!("{} boundaries, {} runs, {tally:?}", boundaries.len(), epoch.model.runs.len());
    }
}

#[test]
fn a_manifest_that_moves_is_found_whatever_a_crash_leaves_and_whichever_superblock_is_lost() {
    let seed = settings::seed(SEED);
    let cuts = settings::scale(CUTS[0], CUTS[1]) / 40;
    println!("RUNLOG_SEED={seed}");
    for turn in 0..2 {
        let (epoch, boundaries) = campaign::moving_manifest(seed.wrapping_add(turn));
        let tally = campaign::cut_at(seed, &epoch, &boundaries, cuts / 2);
        println!("{} boundaries, {} runs, {tally:?}", boundaries.len(), epoch.model.runs.len());
    }
}
