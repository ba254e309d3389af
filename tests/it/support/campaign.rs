//! Very many crashes, distributed over threads, from one seed.
//!
//! A *round* is a store that lives through several epochs: a workload from its creation on, then,
//! after a power loss, more of it, and so on. Each epoch is recorded, and cut at its boundaries.
//!
//! `RUNLOG_REPLAY=round:epoch:boundary:loss` repeats only this cut, to investigate a failure.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use runlog::format::FrameKind;
use runlog::{Compression, TailWriter};
use runlog_sim::{CrashImages, Op, SplitMix64, settings};

use super::cuts::{Cut, Epoch, LOSSES, Tally, check_cut};
use crate::compaction::compressed::of_kind;

use super::harm::room_in_manifest;
use super::world::{Abandoned, EXTENT, Machine, World};

/// Steps of the workload in each epoch.
const STEPS: usize = 330;
const EPOCHS: usize = 3;
/// After one cut of this many, damage is added.
const HARMED: u64 = 16;
/// The segments that are filled and deleted together where the manifest is to move.
const TOGETHER: u64 = 12;
/// Boundaries that a thread takes at a time.
const SHARE: usize = 16;

/// The totals of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) rounds: u64,
    pub(crate) boundaries: u64,
    pub(crate) tally: Tally,
}

/// Makes about `cuts` cuts. Panics at the first failure, and says how to repeat it.
pub(crate) fn run(seed: u64, cuts: u64) -> Summary {
    let mut summary = Summary::default();
    let replay = settings::replay().map(|text| parse_replay(&text));
    let mut round = replay.map_or(0, |replay| replay.0);
    // Not another round for the last few.
    while summary.tally.cuts < cuts - cuts / 16 {
        let epochs = round_of(seed, round);
        let only = replay.map(|replay| replay.1);
        let left = cuts - summary.tally.cuts;
        cut_round(seed, round, &epochs, left, only, &mut summary);
        if replay.is_some() {
            break;
        }
        round += 1;
    }
    summary
}

fn parse_replay(text: &str) -> (u64, [usize; 3]) {
    let parts: Vec<usize> = text.split(':').map(|part| part.parse().expect("a number")).collect();
    let [round, epoch, boundary, loss] = parts[..] else { panic!("round:epoch:boundary:loss") };
    (round as u64, [epoch, boundary, loss])
}

/// The seed of a cut: the same whether it is one of many or replayed.
fn seed_of(seed: u64, round: u64, epoch: usize, boundary: usize, loss: usize) -> u64 {
    let place = (epoch as u64) << 48 | (boundary as u64) << 8 | loss as u64;
    SplitMix64::for_case(SplitMix64::for_case(seed, round).next_u64(), place).next_u64()
}

/// Lives through the epochs of a round.
pub(crate) fn round_of(seed: u64, round: u64) -> Vec<Epoch> {
    let mut random = SplitMix64::for_case(seed, round ^ 0x726f_756e_6400);
    let mut epochs: Vec<Epoch> = Vec::new();
    for number in 0..EPOCHS {
        let mut machine = Machine::new(random.next_u64(), number as u64 * 10_000);
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
        machine.background =
            ((round / 4 + number as u64) % 2 == 1).then(super::background::Background::default);
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
fn survive(
    epoch: &Epoch,
    number: usize,
    random: &mut SplitMix64,
) -> (super::model::Model, Vec<u8>) {
    let ops = epoch.recording.ops.len();
    let boundary = ops - random.index(ops / 4);
    let mut images = CrashImages::new(&epoch.recording);
    images.seek(boundary);
    let cut = Cut { epoch: number, boundary, loss: random.index(7), seed: random.next_u64() };
    let mut image = Vec::new();
    let found = check_cut(epoch, &mut images, cut, &mut image, &mut Tally::default());
    let found = found.unwrap_or_else(|error| panic!("between two epochs, at {cut}: {error}"));
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
    let Abandoned { disk, model, machine, ready } = world.abandon();
    let recording = disk.take_recording();
    // The workload is worth its cuts only if it makes the engine do everything.
    let done = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (rolls, checkpoints) = (&machine.activities.rolls, &machine.activities.checkpoints);
    let recycled = recording.ops.iter().filter(|op| matches!(op, Op::Punch { .. })).count();
    let counts = (done(rolls), done(checkpoints), recycled);
    assert!(counts.0 >= 6 && counts.1 >= 3 && counts.2 >= 3, "too little to do: {counts:?}");
    let stores = recording.ops.iter().filter(|op| matches!(op, Op::Store { .. })).count();
    let mapped = machine.tail_writer == TailWriter::Mapped;
    assert!(if mapped { stores > 30 } else { stores == 0 }, "{stores} stores");
    Epoch { recording, model, machine, first: created, ready, harmed: HARMED }
}

/// A store of which much is deleted, and the operations during which that was done and space was
/// freed: collections, compactions, and deletions with their consequences; readers pin some
/// segments.
pub(crate) fn collections(seed: u64) -> (Epoch, Vec<usize>) {
    let mut world = World::create(seed, Machine::new(seed, 1), seed % 2 == 0);
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
    let Abandoned { disk, model, machine, ready } = world.abandon();
    let blocks = of_kind(&disk.image(), FrameKind::Block).len();
    assert_eq!(blocks > 0, machine.compression != Compression::None, "{blocks} blocks");
    let recording = disk.take_recording();
    (Epoch { recording, model, machine, first, ready, harmed: HARMED }, boundaries)
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
pub(crate) fn growing_index(seed: u64) -> (Epoch, Vec<usize>) {
    let mut world = World::create(seed, Machine::new(seed, 1), true);
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
    let Abandoned { disk, model, machine, ready } = world.abandon();
    let recording = disk.take_recording();
    // Nothing is decided between two pages of a row.
    let page = |at: usize| match recording.ops.get(at) {
        Some(Op::Write { data, .. }) => [1, 4096].contains(&data.len()),
        _ => false,
    };
    boundaries.retain(|&at| !page(at) || !page(at.saturating_sub(1)));
    (Epoch { recording, model, machine, first, ready, harmed: HARMED }, boundaries)
}

/// A store whose manifest moves with the record that retires segments, and the operations from
/// there on: as long as only one superblock names the new area, the other one must not be trusted.
pub(crate) fn moving_manifest(seed: u64) -> (Epoch, Vec<usize>) {
    let mut world = World::create(seed, Machine::new(seed, 1), seed % 2 == 0);
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
        world.delete_together(&filled);
        world.reclaim();
        boundaries.extend(begin..=world.disk.op_count());
    }
    let Abandoned { disk, model, machine, ready } = world.abandon();
    let recording = disk.take_recording();
    (Epoch { recording, model, machine, first, ready, harmed: 1 }, boundaries)
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

/// Makes about `cuts` cuts at these boundaries.
pub(crate) fn cut_at(seed: u64, epoch: &Epoch, boundaries: &[usize], cuts: u64) -> Tally {
    let all = (boundaries.len() * LOSSES.len()) as u64;
    let (mut buffer, mut tally) = (Vec::new(), Tally::default());
    let mut images = CrashImages::new(&epoch.recording);
    for &boundary in boundaries {
        images.seek(boundary);
        for loss in 0..LOSSES.len() {
            let seed = seed_of(seed, u64::MAX, 0, boundary, loss);
            if SplitMix64::for_case(seed, 1).below(all) >= cuts {
                continue;
            }
            let cut = Cut { epoch: 0, boundary, loss, seed };
            let result = check_cut(epoch, &mut images, cut, &mut buffer, &mut tally);
            if let Err(error) = result {
                let around = describe(epoch, boundary);
                panic!("round -, epoch -, at {cut}, {:?}: {error}{around}", LOSSES[loss]);
            }
        }
    }
    tally
}

/// Cuts a round at every boundary in every way, or as often as there is time for.
fn cut_round(
    seed: u64,
    round: u64,
    epochs: &[Epoch],
    left: u64,
    only: Option<[usize; 3]>,
    summary: &mut Summary,
) {
    let all: u64 = epochs.iter().map(|epoch| boundaries(epoch) * LOSSES.len() as u64).sum();
    summary.rounds += 1;
    summary.boundaries += epochs.iter().map(boundaries).sum::<u64>();
    let next: Vec<AtomicUsize> = epochs.iter().map(|_| AtomicUsize::new(0)).collect();
    let failure: Mutex<Option<String>> = Mutex::new(None);
    let tallies = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(2, |count| count.get().min(8));
    let work = || {
        let mut worker =
            Worker { seed, round, epochs, tally: Tally::default(), buffer: Vec::new() };
        for epoch in 0..epochs.len() {
            let mut images = CrashImages::new(&epochs[epoch].recording);
            let (first, last) = (epochs[epoch].first, epochs[epoch].recording.ops.len());
            loop {
                let start = first + next[epoch].fetch_add(1, Ordering::SeqCst) * SHARE;
                if start > last || failure.lock().unwrap().is_some() {
                    break;
                }
                for boundary in start..(start + SHARE).min(last + 1) {
                    images.seek(boundary);
                    let result = worker.boundary(&mut images, epoch, boundary, (left, all), only);
                    if let Err(error) = result {
                        failure.lock().unwrap().get_or_insert(error);
                    }
                }
            }
        }
        tallies.lock().unwrap().push(worker.tally);
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    if let Some(error) = failure.into_inner().unwrap() {
        panic!("{error}");
    }
    for tally in tallies.into_inner().unwrap() {
        summary.tally.cuts += tally.cuts;
        summary.tally.nested += tally.nested;
        summary.tally.continued += tally.continued;
    }
}

fn boundaries(epoch: &Epoch) -> u64 {
    (epoch.recording.ops.len() + 1 - epoch.first) as u64
}

struct Worker<'a> {
    seed: u64,
    round: u64,
    epochs: &'a [Epoch],
    tally: Tally,
    buffer: Vec<u8>,
}

impl Worker<'_> {
    /// Makes the cuts at one boundary: all, or a share of `left` out of `all`.
    fn boundary(
        &mut self,
        images: &mut CrashImages<'_>,
        epoch: usize,
        boundary: usize,
        (left, all): (u64, u64),
        only: Option<[usize; 3]>,
    ) -> Result<(), String> {
        for loss in 0..LOSSES.len() {
            let seed = seed_of(self.seed, self.round, epoch, boundary, loss);
            let wanted = match only {
                Some(only) => only == [epoch, boundary, loss],
                None => left >= all || SplitMix64::for_case(seed, 1).below(all) < left,
            };
            if !wanted {
                continue;
            }
            let cut = Cut { epoch, boundary, loss, seed };
            let (found, tally) = (&self.epochs[epoch], &mut self.tally);
            if let Err(error) = check_cut(found, images, cut, &mut self.buffer, tally) {
                let (seed, round) = (self.seed, self.round);
                return Err(format!(
                    "round {round}, epoch {epoch}, boundary {boundary} of {}, {:?}: {error}\n\
                     again: RUNLOG_SEED={seed} RUNLOG_REPLAY={round}:{cut}{}",
                    found.recording.ops.len(),
                    LOSSES[loss],
                    describe(found, boundary),
                ));
            }
        }
        Ok(())
    }
}

/// The operations around a cut, in a few words.
fn describe(epoch: &Epoch, boundary: usize) -> String {
    let mut text = String::new();
    let from = boundary.saturating_sub(12);
    for (place, op) in epoch.recording.ops.iter().enumerate().skip(from).take(16) {
        let cut = if place == boundary { " <- not done" } else { "" };
        let _ = match op {
            Op::Write { offset, data } => {
                let len = data.len();
                let extent = (*offset as u64).checked_sub(64 << 10).map(|at| at / EXTENT);
                write!(text, "\n  {place}: write {len} at {offset:#x}, extent {extent:?}{cut}")
            }
            Op::Store { offset, data } => {
                let len = data.len();
                write!(text, "\n  {place}: store {len} at {offset:#x}{cut}")
            }
            other => write!(text, "\n  {place}: {other:?}{cut}"),
        };
    }
    text
}
