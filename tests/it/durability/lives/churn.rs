//! Runs come and go for a long time: compaction writes in proportion to what it gains.
//!
//! Goal: no history makes compaction write more than four extents for each that it gains (three by
//! `gc::choose::is_worth`, one to shorten the file), and so more than four times what was appended.
//!
//! Method: enough runs are kept to fill some segments. Again and again one is deleted, any or one
//! of the oldest, and another one replaces it, so that compaction repeatedly meets the smallest
//! gain that it accepts. Dead segments are freed without a copy.

use std::sync::atomic::Ordering;

use runlog::env::Step;
use runlog::{Compression, SpaceReturn};
use runlog_sim::{SimDisk, SplitMix64, settings};

use super::{LIVES, SEED};
use crate::support::background::Background;
use crate::support::world::{EXTENT, Machine, World};

/// One history for this many lives.
const LIVES_PER_HISTORY: u64 = 150;
/// The runs that come to be in one.
const RUNS: usize = 700;
/// The most extents that are written for each one gained.
const MOST: u64 = 4;
/// What a step writes besides frames, in bytes: changes of the manifest, and headers.
const BESIDES: u64 = 32 << 10;

/// What compaction did in a history.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    steps: u64,
    written: u64,
    gained: u64,
}

#[test]
fn compaction_writes_no_more_than_four_extents_for_each_that_it_gains() {
    let seed = settings::seed(SEED);
    let histories = settings::scale(LIVES[0], LIVES[1]).div_ceil(LIVES_PER_HISTORY);
    println!("RUNLOG_SEED={seed}");
    for history in 0..histories {
        let done = live(SplitMix64::for_case(seed, history).next_u64());
        println!("round {history}: {done:?}");
        assert!(done.written <= MOST * done.gained + done.steps * BESIDES, "{done:?}");
    }
}

/// A history.
fn live(seed: u64) -> Done {
    let mut random = SplitMix64::new(seed);
    let background = Background::default();
    let mut machine = Machine::new(seed);
    machine.compression = Compression::None;
    machine.receipts = 0;
    machine.background = Some(background.clone());
    let spaces = [SpaceReturn::Shrink, SpaceReturn::Punch, SpaceReturn::Keep];
    machine.space = spaces[random.index(spaces.len())];
    let mut world = World::create_on(seed, SimDisk::untracked(Vec::new()), machine, false);
    let (alive, len) = (60 + random.index(300), 300 + random.index(3000));
    let among = if random.coin() { alive / 4 } else { alive };
    let (mut there, mut done) = (Vec::new(), Done::default());
    for _ in 0..RUNS {
        world.start_run();
        let run = world.running()[0];
        for _ in 0..1 + random.index(3) {
            world.append(run, len, false);
        }
        world.end(run, false);
        there.push(run);
        if there.len() > alive {
            world.delete(there.remove(random.index(among)));
            for step in [Step::Reserve, Step::Sync, Step::Checkpoint] {
                background.run(step);
            }
            compact(&world, &background, &mut done);
        }
    }
    done
}

fn compact(world: &World, background: &Background, done: &mut Done) {
    let counts = || {
        let activities = &world.machine.activities;
        let extents = world.log().stats().expect("it is open").log_extents;
        let written = activities.compacted.load(Ordering::Relaxed);
        (extents, written, activities.compactions.load(Ordering::Relaxed) as u64)
    };
    let before = counts();
    background.run(Step::Reclaim);
    background.run(Step::Compact);
    let after = counts();
    done.gained += before.0.saturating_sub(after.0) * EXTENT;
    done.written += after.1 - before.1;
    done.steps += after.2 - before.2;
}
