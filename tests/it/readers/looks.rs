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

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use runlog_sim::SplitMix64;
use runlog_sim::settings::{replayed, scale, seed};

use crate::support::background::Background;
use crate::support::campaign;
use crate::support::cuts::Epoch;
use crate::support::world::{Abandoned, Machine, World};
use watch::{Tally, watch};

/// Few enough for a plain `cargo test`, and those of CI.
const LOOKS: [u64; 2] = [20_000, 30_000];
const SEED: u64 = 2026;
/// Steps of a life of its own.
const STEPS: usize = 400;
/// The stories of several lives in which segments move.
const MOVING: u64 = 3;
const LIVES: u64 = 24;
/// Turns of such a life.
const MOVES: usize = 8;
/// The runs in each of these segments, with each of which it moves once.
const NEIGHBOURS: usize = 12;

#[test]
fn each_answer_of_a_reader_is_the_store_of_one_moment_since_its_last_refresh() {
    let (seed, looks, only) = (seed(SEED), scale(LOOKS[0], LOOKS[1]), replayed().is_some());
    println!("RUNLOG_SEED={seed}, {looks} looks");
    let next = AtomicU64::new(replayed().unwrap_or_default());
    let total = Mutex::new(Tally::default());
    let failure: Mutex<Option<String>> = Mutex::new(None);
    let work = || {
        loop {
            let done = total.lock().unwrap().looks;
            if done >= looks || failure.lock().unwrap().is_some() {
                return;
            }
            let story = next.fetch_add(1, Ordering::Relaxed);
            let mut tally = Tally::default();
            for (number, epoch) in life(seed, story).into_iter().enumerate() {
                let random = SplitMix64::for_case(seed ^ 0x6c6f_6f6b, story << 8 | number as u64);
                if let Err(error) = watch(&epoch, random, story % 8 == MOVING, &mut tally) {
                    let again = format!("RUNLOG_SEED={seed} RUNLOG_REPLAY={story}");
                    failure.lock().unwrap().get_or_insert(format!("{again}, {number}: {error}"));
                }
            }
            total.lock().unwrap().add(&tally);
            if only {
                return;
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().min(8));
    std::thread::scope(|scope| {
        for _ in 0..if only { 1 } else { threads } {
            scope.spawn(work);
        }
    });
    let total: Tally = total.into_inner().unwrap();
    println!("{total:?}");
    if let Some(failure) = failure.into_inner().unwrap() {
        panic!("{failure}");
    }
    assert!(only || total.met > 0 && total.torn > 0 && total.gone > 0 && total.cuts > 0);
}

/// A writer's life.
pub(crate) fn life(seed: u64, story: u64) -> Vec<Epoch> {
    let of_story = SplitMix64::for_case(seed, story).next_u64();
    match story % 8 {
        0 | 4 => campaign::round_of(seed, story / 4),
        1 | 5 => vec![campaign::collections(of_story).0],
        2 => vec![campaign::moving_manifest(of_story).0],
        MOVING => (0..LIVES).map(|life| moving(of_story ^ life)).collect(),
        _ => vec![wide(of_story)],
    }
}

/// A life with the whole public API in it.
fn wide(seed: u64) -> Epoch {
    let mut machine = Machine::new(seed, 1);
    machine.background = (seed >> 5 & 1 == 1).then(Background::default);
    let mut world = World::create(seed, machine, seed >> 6 & 1 == 1);
    let first = world.disk.op_count();
    world.is_queue = seed >> 7 & 3 == 0;
    world.is_moving = seed >> 9 & 3 == 0;
    for step in 0..STEPS {
        world.wide_step();
        match step {
            120 => world.reopen(),
            250 => world.kill(),
            _ if step % 50 == 49 => {
                world.end_oldest(4);
                (0..8).for_each(|_| world.delete_run());
                world.use_space();
            }
            _ => {}
        }
    }
    let Abandoned { disk, model, machine, ready } = world.abandon();
    Epoch { recording: disk.take_recording(), model, machine, first, ready, harmed: 16 }
}

/// A life in which segments with parts of large records, and with receipts, move again and again.
fn moving(seed: u64) -> Epoch {
    let mut machine = Machine::new(seed, 1);
    machine.receipts = u64::MAX;
    let mut world = World::create(seed, machine, seed >> 6 & 1 == 1);
    let first = world.disk.op_count();
    world.start_run();
    for _ in 0..MOVES {
        for _ in 0..NEIGHBOURS {
            world.start_run();
            let run = world.model.runs.len() - 1;
            world.append(run, 300, false);
            world.end(run, false);
        }
        // Its first chunks are beside these runs, and the others are in another segment.
        world.append(0, 60_000, false);
        world.delete_run();
        world.checkpoint();
        (1..NEIGHBOURS).for_each(|_| world.erase());
    }
    let Abandoned { disk, model, machine, ready } = world.abandon();
    Epoch { recording: disk.take_recording(), model, machine, first, ready, harmed: 16 }
}
