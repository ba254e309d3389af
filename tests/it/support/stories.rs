//! Recorded lives of stores, which campaigns cut, read beside the writer, and back up.
//!
//! A *story* is the life of one store, or of several. Those of a round live through several epochs:
//! a workload from the creation of a store on, then, after a power loss, more of it, and so on.

use std::sync::atomic::{AtomicUsize, Ordering};

use runlog::format::FrameKind;
use runlog::{Compression, TailWriter};
use runlog_sim::{CrashImages, Op, SplitMix64};

use super::background::Background;
use super::campaign::Counts;
use super::cuts::{Cut, Epoch, check_cut};
use super::frames::of_kind;
use super::manifest::room_in_manifest;
use super::model::Model;
use super::world::{Machine, World};

/// Steps of the workload in each epoch of a round.
const STEPS: usize = 330;
const EPOCHS: usize = 3;
/// The segments that are filled and deleted together where the manifest is to move.
const TOGETHER: u64 = 12;
/// Steps of a life with the whole public API, and of one that has documents above all.
const WIDE_STEPS: usize = 400;
/// The stores of a story in which segments move.
const LIVES: u64 = 24;
/// Turns of such a life.
const MOVES: usize = 8;
/// The runs in each of these segments, with each of which it moves once.
const NEIGHBOURS: usize = 12;

/// What happens in a story above all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Round,
    Collections,
    MovingManifest,
    MovingSegments,
    GrowingIndex,
    Documents,
    Wide,
}

/// A story of any kind.
pub(crate) fn tell_any(seed: u64, number: u64) -> (Kind, Vec<Epoch>) {
    let (kind, story) = match number % 8 {
        0 | 4 => (Kind::Round, number / 4),
        1 | 5 => (Kind::Collections, number),
        2 => (Kind::MovingManifest, number),
        3 => (Kind::MovingSegments, number),
        _ => (Kind::Wide, number),
    };
    (kind, tell(kind, seed, story))
}

/// A story of this kind.
pub(crate) fn tell(kind: Kind, seed: u64, story: u64) -> Vec<Epoch> {
    let of_story = SplitMix64::for_case(seed, story).next_u64();
    match kind {
        Kind::Round => round_of(seed, story),
        Kind::Collections => vec![collections(of_story)],
        Kind::MovingManifest => vec![moving_manifest(of_story)],
        Kind::MovingSegments => (0..LIVES).map(|life| moving(of_story ^ life)).collect(),
        Kind::GrowingIndex => vec![growing_index(of_story)],
        Kind::Documents => vec![documents(of_story)],
        Kind::Wide => vec![wide(of_story)],
    }
}

/// Lives through the epochs of a round.
fn round_of(seed: u64, round: u64) -> Vec<Epoch> {
    let mut random = SplitMix64::for_case(seed, round ^ 0x726f_756e_6400);
    let mut epochs: Vec<Epoch> = Vec::new();
    for number in 0..EPOCHS {
        let mut machine = Machine::new(random.next_u64());
        // Each round uses both ways to write the file; each continues what the other has left.
        machine.tail_writer = match (round + number as u64) % 2 {
            0 => TailWriter::Mapped,
            _ => TailWriter::Pwrite,
        };
        // So is what was compressed by one.
        machine.compression = match (round / 2 + number as u64) % 2 {
            0 => Compression::Zstd { level: 1 },
            _ => Compression::None,
        };
        // In half of the epochs the background work runs in any order.
        machine.background = ((round / 4 + number as u64) % 2 == 1).then(Background::default);
        let world = match epochs.last() {
            None => World::create(random.next_u64(), machine, round % 4 != 3),
            Some(before) => {
                let (model, image) = survive(before, number - 1, &mut random);
                machine.clock.set(runlog::Timestamp(1_000_000_000 * (1 + 1000 * number as i64)));
                World::resume(random.next_u64(), machine, model, image)
            }
        };
        epochs.push(live(world, number == 0));
    }
    epochs
}

/// Loses power at some boundary of an epoch; returns the rest, as recovery sees it.
fn survive(epoch: &Epoch, number: usize, random: &mut SplitMix64) -> (Model, Vec<u8>) {
    let ops = epoch.recording.ops.len();
    let boundary = ops - random.index(ops / 4);
    let mut images = CrashImages::new(&epoch.recording);
    images.seek(boundary);
    let cut = Cut { loss: random.index(7), seed: random.next_u64() };
    let mut image = Vec::new();
    let found = check_cut(epoch, &mut images, cut, &mut image, &mut Counts::default());
    let found =
        found.unwrap_or_else(|error| panic!("between two epochs, at {number}:{boundary}: {error}"));
    (epoch.model.recovered(found.prefix), image)
}

/// The workload of one epoch.
fn live(mut world: World, first: bool) -> Epoch {
    let created = if first { world.disk.op_count() } else { 0 };
    if !first {
        world.adopt();
    }
    for step in 0..STEPS {
        world.background_steps();
        world.step();
        match step {
            90 => world.reopen(),
            110 => world.adopt(),
            200 => world.kill(),
            280 if !first => world.reopen(),
            _ if step % 60 == 59 => {
                world.end_oldest(4);
                for _ in 0..8 {
                    world.delete_run();
                }
                world.checkpoint();
                world.reclaim();
            }
            _ => {}
        }
    }
    let epoch = Epoch::of(world, created);
    let Epoch { recording, machine, .. } = &epoch;
    // The workload is worth its cuts only if it makes the engine do everything.
    let done = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (rolls, checkpoints) = (&machine.activities.rolls, &machine.activities.checkpoints);
    let recycled = recording.ops.iter().filter(|op| matches!(op, Op::Punch { .. })).count();
    let counts = (done(rolls), done(checkpoints), recycled);
    assert!(counts.0 >= 6 && counts.1 >= 3 && counts.2 >= 3, "too little to do: {counts:?}");
    let stores = recording.ops.iter().filter(|op| matches!(op, Op::Store { .. })).count();
    let mapped = machine.tail_writer == TailWriter::Mapped;
    assert!(if mapped { stores > 30 } else { stores == 0 }, "{stores} stores");
    epoch
}

/// A store of which much is deleted, and the operations during which that was done and space was
/// freed: collections, compactions, and deletions with their consequences; readers pin some
/// segments.
fn collections(seed: u64) -> Epoch {
    let mut world = World::create(seed, Machine::new(seed), seed % 2 == 0);
    let first = world.disk.op_count();
    let mut boundaries = Vec::new();
    let mut pin = None;
    for turn in 0..12 {
        fill(&mut world, turn);
        let begin = world.disk.op_count();
        match turn % 4 {
            0 | 2 => world.collect(),
            1 => world.compact(),
            _ => {
                (0..6).for_each(|_| world.delete_run());
                world.reclaim();
            }
        }
        // Segments pinned in one turn are released in the next.
        pin = if turn % 3 == 0 { world.pin() } else { None };
        world.reclaim();
        boundaries.extend(begin..=world.disk.op_count());
    }
    drop(pin);
    let blocks = of_kind(&world.disk.image(), FrameKind::Block).len();
    assert_eq!(blocks > 0, world.machine.compression != Compression::None, "{blocks} blocks");
    Epoch { boundaries, ..Epoch::of(world, first) }
}

/// Some runs side by side that fill several segments; most of them end.
fn fill(world: &mut World, turn: usize) {
    for _ in 0..5 {
        world.start_run();
    }
    for record in 0..60 {
        for run in world.running() {
            world.append(run, 40 + record * 13 % 700, false);
        }
    }
    world.end_oldest(2);
    if turn % 2 == 0 {
        world.checkpoint();
    }
    if turn % 5 == 0 {
        world.hold();
    }
}

/// A store whose index grows, and the operations during which it did.
fn growing_index(seed: u64) -> Epoch {
    let mut world = World::create(seed, Machine::new(seed), true);
    let first = world.disk.op_count();
    world.padding = 480;
    let mut boundaries = Vec::new();
    let mut growths = 0;
    let extents = |world: &World| world.log().stats().expect("stats").index_extents;
    while growths < 2 {
        for _ in 0..20 {
            world.start_run();
        }
        let (before, begin) = (extents(&world), world.disk.op_count());
        world.checkpoint();
        if before > 0 && extents(&world) > before {
            growths += 1;
            boundaries.extend(begin..=world.disk.op_count());
        }
        assert!(world.model.runs.len() < 5000, "the index never grew");
    }
    let epoch = Epoch::of(world, first);
    // Nothing is decided between two pages of a row.
    let page = |at: usize| match epoch.recording.ops.get(at) {
        Some(Op::Write { data, .. }) => [1, 4096].contains(&data.len()),
        _ => false,
    };
    boundaries.retain(|&at| !page(at) || !page(at.saturating_sub(1)));
    Epoch { boundaries, ..epoch }
}

/// A store whose manifest moves with the record that retires segments, and the operations from
/// there on: as long as only one superblock names the new area, the other one must not be trusted.
fn moving_manifest(seed: u64) -> Epoch {
    let mut world = World::create(seed, Machine::new(seed), seed % 2 == 0);
    let first = world.disk.op_count();
    let mut boundaries = Vec::new();
    for turn in 0..4 {
        fill(&mut world, turn);
        // Each segment that is filled takes two records, and two more when it is retired and freed.
        while room_in_manifest(&world.disk) > 8 * TOGETHER {
            let filled = fill_segments(&mut world, TOGETHER);
            filled.into_iter().for_each(|run| world.delete(run));
        }
        let mut filled = fill_segments(&mut world, TOGETHER);
        while room_in_manifest(&world.disk) > TOGETHER {
            filled.extend(fill_segments(&mut world, 1));
        }
        let begin = world.disk.op_count();
        world.delete_together(&filled, &[]);
        world.reclaim();
        boundaries.extend(begin..=world.disk.op_count());
    }
    Epoch { boundaries, harmed: 1, ..Epoch::of(world, first) }
}

/// Runs that fill a segment each, and have ended.
fn fill_segments(world: &mut World, count: u64) -> Vec<usize> {
    let fill = |_| {
        world.start_run();
        let run = world.model.runs.len() - 1;
        world.append(run, 58_000, false);
        world.end(run, false);
        run
    };
    (0..count).map(fill).collect()
}

/// A life with the whole public API in it.
fn wide(seed: u64) -> Epoch {
    let mut machine = Machine::new(seed);
    machine.background = (seed >> 5 & 1 == 1).then(Background::default);
    let mut world = World::create(seed, machine, seed >> 6 & 1 == 1);
    let first = world.disk.op_count();
    world.is_queue = seed >> 7 & 3 == 0;
    world.is_moving = seed >> 9 & 3 == 0;
    for step in 0..WIDE_STEPS {
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
    Epoch::of(world, first)
}

/// A life in which segments with parts of large records, and with receipts, move again and again.
fn moving(seed: u64) -> Epoch {
    let mut machine = Machine::new(seed);
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
    Epoch::of(world, first)
}

/// A life of documents, alone, in batches, and in batches with a record.
fn documents(seed: u64) -> Epoch {
    let mut machine = Machine::new(seed);
    machine.background = (seed >> 5 & 1 == 1).then(Background::default);
    let mut world = World::create(seed, machine, seed >> 6 & 1 == 1);
    let first = world.disk.op_count();
    world.start_run();
    for step in 0..WIDE_STEPS {
        // Sometimes nothing is done behind the calls for a while.
        world.is_lazy = step % 80 >= 40;
        world.background_steps();
        match step % 4 {
            0 => world.mixed_batch(),
            1 => world.write_documents_if(),
            _ => world.write_documents(),
        }
        match step % 50 {
            17 => world.checkpoint(),
            29 => world.compact(),
            41 => world.reclaim(),
            47 if step % 100 > 50 => world.kill(),
            47 => world.reopen(),
            _ => {}
        }
    }
    Epoch::of(world, first)
}
