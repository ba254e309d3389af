//! Compaction: living runs move out of segments that are mostly dead, each run in one piece, and
//! the segments become free. Appends and reads continue meanwhile.
//!
//! One step, and what a crash in between means:
//!
//! 1. C2: the outputs are reserved, written and synced. They do not count: recovery frees them.
//! 2. C3: one batch of the manifest seals the outputs and retires the victims, synced. Recovery
//!    sees all of it or nothing. Everything that may fail comes before it.
//! 3. C4: the index learns the new places. Recovery drops an index that does not know all outputs.
//! 4. C5 to C7: [`reclaim`](crate::engine::reclaim) frees the victims once they have no readers.
//!
//! The frames of a run never change their order: if several victims have frames of a run, no
//! segment between them keeps some. A run that is evicted while it moves is dead in the output,
//! which is checked again.

pub(crate) mod drive;
mod gather;
mod job;
mod output;
mod pack;
mod relocate;

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::checkpoint::Checkpoints;
pub(super) use crate::engine::compact::drive::Compacted;
use crate::engine::compact::gather::Obstacle;
use crate::engine::compact::job::Job;
use crate::engine::reclaim::{Compacting, Reclaimer};
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Compression;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::frames::frame::frame_len;
use crate::format::segments::directory::{HASH_LEN, RECORD_COST, RUN_ENTRY_LEN};
use crate::gc::choose::{
    Bound, SegmentUse, for_neighbours, for_order, for_packing, for_shrinking, for_space, is_worth,
    outputs,
};
use crate::index::{RunList, Statuses};
use crate::types::{ExtentNo, RunNo, RunStatus, SegmentId};

/// The goal of a step of compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Gain extents.
    Space,
    /// Gain extents with space for one output only.
    SpaceOnFullDisk,
    /// Put the records of each run next to one another, in segments before this one. Segments that
    /// become full meanwhile are left to the next call, so that each call ends.
    Order(SegmentId),
    /// Compress ended runs: everything in segments before this one or, without one, only where that
    /// makes fewer segments.
    Pack(Option<SegmentId>),
    /// Shorten the file.
    Shrink,
    /// Remove bytes that must not stay in the file.
    Erase,
}

impl Goal {
    fn is_for_space(self) -> bool {
        matches!(self, Self::Space | Self::SpaceOnFullDisk)
    }

    /// Whether there must be fewer outputs than victims.
    fn must_gain(self) -> bool {
        self.is_for_space() || self == Self::Pack(None)
    }
}

/// The most segments of one step, unless the order of runs requires more.
const STEP_SEGMENTS: usize = 32;
/// The most extents that one step fills.
const STEP_EXTENTS: u64 = 8;
/// The most bytes of one step that compresses, unless two extents are larger.
const STEP_PACKED: u64 = 64 << 20;
/// How many runs are looked up in memory under one lock.
const LOOKED_UP: usize = 512;
/// How many segments must have something to compress before background compression begins.
const PACK_SEGMENTS: usize = 4;
/// The part of a segment that must be compressible for that.
const COLD_PART: u64 = 4;
/// The most segments of one step, including those that the order of runs requires.
const MOST_SEGMENTS: usize = 96;

/// The result of a step.
pub(crate) enum Attempt {
    /// It was done.
    Done(Compacted),
    /// None of the segments can be moved in their present state.
    Nothing,
    /// The outputs would not be few enough to gain space; so many bytes were read to see that.
    NoGain { read: u64 },
    /// The file would not become shorter. Fewer segments, which need fewer others, may do.
    NoRoom,
}

/// Moves living runs out of segments that are mostly dead.
#[derive(Debug)]
pub(crate) struct Compactor {
    pub(crate) log: Arc<Log>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) reclaimer: Arc<Reclaimer>,
}

impl Compactor {
    pub(crate) fn new(reclaimer: &Arc<Reclaimer>) -> Self {
        let Reclaimer { log, checkpoints, .. } = &**reclaimer;
        let (log, checkpoints) = (Arc::clone(log), Arc::clone(checkpoints));
        Self { log, checkpoints, reclaimer: Arc::clone(reclaimer) }
    }

    fn bound(&self, goal: Goal) -> Bound {
        let (extent, segments) = (self.log.extent_size.bytes(), STEP_SEGMENTS);
        let bytes = match goal {
            Goal::SpaceOnFullDisk => extent - extent / 4,
            // Compressed data waits in memory until it is written.
            _ if self.log.setup.options.compression != Compression::None => {
                extent.saturating_mul(STEP_EXTENTS).min((2 * extent).max(STEP_PACKED))
            }
            _ => extent.saturating_mul(STEP_EXTENTS),
        };
        Bound { extent, bytes, segments }
    }

    /// Does one step for space. On a full disk a small step may use the compaction reserve; if
    /// there is none, the index gives way.
    fn compact_for_space_once(&self, compacting: &mut Compacting) -> Result<Option<Compacted>> {
        match self.compact_step(compacting, Goal::Space) {
            Err(error @ Error::DiskFull { .. }) => {
                let settled = compacting.settled.clone();
                let mut step = self.compact_step(compacting, Goal::SpaceOnFullDisk);
                if let Err(Error::DiskFull { .. }) = step
                    && self.checkpoints.make_way()?
                {
                    step = self.compact_step(compacting, Goal::SpaceOnFullDisk);
                }
                compacting.settled = settled;
                step?.map_or(Err(error), |step| Ok(Some(step)))
            }
            step => step,
        }
    }

    /// Does one step; `None` if there is nothing to gain.
    pub(crate) fn compact_step(
        &self,
        compacting: &mut Compacting,
        goal: Goal,
    ) -> Result<Option<Compacted>> {
        let look = || self.segment_uses(compacting, goal);
        let uses = self.log.setup.watch_failure(Activity::Compaction, look)?;
        let mut bound = self.bound(goal);
        loop {
            let movable: Vec<SegmentUse> = uses
                .iter()
                .filter(|segment| !compacting.unmovable.contains(&segment.id))
                .filter(|segment| match goal {
                    Goal::Space | Goal::SpaceOnFullDisk => {
                        let settled = compacting.settled.get(&segment.id);
                        settled.is_none_or(|live| segment.live < *live)
                    }
                    Goal::Order(end) => segment.is_output || segment.id < end,
                    Goal::Pack(None) => {
                        let known = compacting.incompressible.get(&segment.id);
                        known.is_none_or(|cold| segment.cold > *cold)
                    }
                    Goal::Pack(Some(end)) => segment.id < end,
                    Goal::Shrink | Goal::Erase => true,
                })
                .copied()
                .collect();
            let extent = self.log.extent_size.bytes();
            let chosen = match goal {
                Goal::Space | Goal::SpaceOnFullDisk => {
                    for_space(&movable, extent / WASTE_PART, bound)
                }
                Goal::Order(_) => for_order(&movable, &compacting.carried, bound),
                Goal::Pack(None) => for_packing(&movable, extent / COLD_PART, PACK_SEGMENTS, bound),
                Goal::Pack(Some(_)) => for_packing(&movable, 1, 1, bound),
                Goal::Shrink => self.last_segments(&movable, bound),
                Goal::Erase => Vec::new(),
            };
            let wanted: Vec<SegmentId> = chosen.iter().map(|segment| segment.id).collect();
            let left_alone = compacting.unmovable.len();
            match self.compact_segments(compacting, &wanted, goal)? {
                Attempt::Done(step) => return Ok(Some(step)),
                Attempt::Nothing if compacting.unmovable.len() == left_alone => return Ok(None),
                // Other segments may do; those that cannot move are excluded from now on.
                Attempt::Nothing => {}
                Attempt::NoGain { read } if matches!(goal, Goal::Pack(None) | Goal::Space) => {
                    if goal == Goal::Space {
                        compacting.settle(&wanted);
                    } else {
                        let tried = chosen.iter().map(|segment| (segment.id, segment.cold));
                        compacting.incompressible.extend(tried);
                    }
                    // There may be many of these; the caller's loop checks for closing in between.
                    self.pace(compacting, usize::try_from(read).unwrap_or(usize::MAX));
                    return Ok(Some(Compacted::default()));
                }
                Attempt::NoGain { .. } => compacting.settle(&wanted),
                Attempt::NoRoom if wanted.len() > 1 => bound.segments = wanted.len() / 2,
                Attempt::NoRoom => compacting.unmovable.extend(&wanted),
            }
        }
    }

    /// Moves living runs out of these segments, and of others if the order of runs requires it.
    pub(crate) fn compact_segments(
        &self,
        compacting: &mut Compacting,
        seeds: &[SegmentId],
        goal: Goal,
    ) -> Result<Attempt> {
        let Some(&seed) = seeds.first() else { return Ok(Attempt::Nothing) };
        self.log
            .setup
            .watch(Activity::Compaction, || self.try_to_move(compacting, seed, seeds, goal))
    }

    fn try_to_move(
        &self,
        compacting: &mut Compacting,
        seed: SegmentId,
        seeds: &[SegmentId],
        goal: Goal,
    ) -> Result<Attempt> {
        // Outputs that never counted are freed first: a missing segment must mean that the outputs
        // that replace it count. Retired segments are freed too, for salvage and for evictions.
        self.reclaimer.free_retired(compacting)?;
        if self.log.due.is_stopping() {
            return Ok(Attempt::Nothing);
        }
        let mut wanted: Vec<SegmentId> = seeds.to_vec();
        let mut near_to = None;
        // Each turn takes more segments, or those that are next to one another, or is the last.
        loop {
            match self.plan_job(&wanted) {
                Ok(job) if matches!(goal, Goal::Order(_)) && job.is_in_order() => {
                    return Ok(Attempt::Nothing);
                }
                Ok(job) => return self.carry_out(compacting, job, (&wanted, near_to), goal),
                Err(Obstacle::Failed(error)) => return Err(error),
                Err(Obstacle::Missing { stay, run }) => {
                    let is_new = |id| !compacting.unmovable.contains(id) && !wanted.contains(id);
                    let is_free = stay.iter().all(is_new);
                    let all: Vec<_> = wanted.iter().copied().chain(stay).collect();
                    let fits = is_free && all.len() <= MOST_SEGMENTS;
                    if goal == Goal::Shrink && !fits {
                        return Ok(Attempt::NoRoom);
                    }
                    let gains = !goal.is_for_space() || self.may_gain(compacting, &all);
                    let takes_all = fits && gains && all.len() <= STEP_SEGMENTS;
                    let of_run = seeds.iter().copied().find(|id| run.contains(id));
                    if goal.is_for_space() && near_to.is_none() && !takes_all {
                        near_to = of_run;
                        let near = near_to.map(|id| near(id, &run, compacting, self.bound(goal)));
                        if let Some(near) = near.filter(|near| !near.is_empty()) {
                            wanted = near;
                            continue;
                        }
                    }
                    if !fits {
                        compacting.unmovable.insert(of_run.unwrap_or(seed));
                        return Ok(Attempt::Nothing);
                    }
                    if !gains {
                        compacting.settle(near_to.as_slice());
                        return Ok(Attempt::NoGain { read: 0 });
                    }
                    wanted = all;
                }
                Err(Obstacle::Unmovable(id, error)) => {
                    self.tell(error);
                    // A segment that needs it cannot move, but fewer of the last ones may.
                    if !seeds.contains(&id) && goal != Goal::Shrink {
                        compacting.unmovable.insert(seed);
                    }
                    compacting.unmovable.insert(id);
                    compacting.damaged.insert(id);
                    return Ok(Attempt::Nothing);
                }
            }
        }
    }

    /// Tells the observer why a segment could not be read.
    fn tell(&self, error: Option<Error>) {
        let fail = || error.map_or(Ok(()), Err);
        let _ = self.log.setup.watch_failure(Activity::Compaction, fail);
    }

    /// Whether these segments may fit few enough outputs, as far as that is known without their
    /// frames.
    fn may_gain(&self, compacting: &Compacting, wanted: &[SegmentId]) -> bool {
        let live = |id| compacting.live.get(id).map_or(0, |(live, _)| *live);
        let bytes = wanted.iter().map(live).fold(0, u64::saturating_add);
        let outputs = outputs(bytes, self.log.extent_size.bytes());
        let packs = self.log.setup.options.compression != Compression::None;
        packs || is_worth(outputs, wanted.len() as u64)
    }

    /// Does a planned step for these segments, if it gains enough.
    fn carry_out(
        &self,
        compacting: &mut Compacting,
        mut job: Job,
        (wanted, near_to): (&[SegmentId], Option<SegmentId>),
        goal: Goal,
    ) -> Result<Attempt> {
        self.pack(&mut job);
        if self.log.due.is_stopping() {
            // Not all of it was packed.
            return Ok(Attempt::Nothing);
        }
        let layouts = self.lay_out(&job);
        let outputs = layouts.as_ref().map_or(0, |(_, outputs)| outputs.len());
        let gains = is_worth(outputs as u64, job.gathered.victims.len() as u64);
        let fits = goal != Goal::SpaceOnFullDisk || outputs == 1;
        if layouts.is_some() && goal.must_gain() && !(gains && fits) {
            // Otherwise its neighbours would be tried again and again.
            compacting.settle(near_to.as_slice());
            // Others wait for the pause, so there is none for those that only the order requires.
            let read = (job.gathered.victims.len() as u64).min(STEP_EXTENTS);
            let read = read * self.log.extent_size.bytes();
            return Ok(Attempt::NoGain { read });
        }
        if layouts.is_some() && goal == Goal::Shrink && !self.is_shorter(&job, outputs) {
            return Ok(Attempt::NoRoom);
        }
        let run = |layouts| self.run_job(compacting, &job, goal, layouts);
        if let Some(step) = layouts.map_or(Ok(None), run)? {
            return Ok(Attempt::Done(step));
        }
        compacting.unmovable.extend(wanted);
        Ok(Attempt::Nothing)
    }

    /// Whether a step for [`Goal::Shrink`] leaves the last extent of its victims for one in front,
    /// and writes no more than it may. Victims that only the order of runs requires may even move
    /// back. No sequence of such steps is endless.
    fn is_shorter(&self, job: &Job, outputs: usize) -> bool {
        let last = job.gathered.victims.iter().map(|victim| victim.segment.extent()).max();
        let allocator = self.log.space.allocator.lock();
        let target = outputs.checked_sub(1).map(|number| allocator.manifest.free().nth(number));
        let is_in_front = target.is_none_or(|extent| extent.is_some() && extent < last);
        is_in_front && outputs as u64 <= allocator.may_move
    }

    /// The living bytes of each sealed segment of the catalog, and how many of them are
    /// compressible if that is the goal.
    fn segment_uses(&self, compacting: &mut Compacting, goal: Goal) -> Result<Vec<SegmentUse>> {
        let (catalog, deleted) = {
            let state = self.log.reader.open()?;
            (Arc::clone(&state.catalog), Arc::clone(&state.deleted))
        };
        compacting.settled.retain(|id, _| catalog.segment(*id).is_some());
        compacting.incompressible.retain(|id, _| catalog.segment(*id).is_some());
        let wanted = matches!(goal, Goal::Pack(_));
        let open = if wanted { self.in_progress(&catalog)? } else { HashSet::new() };
        let receipts = self.log.reader.kept_receipts();
        let mut uses = Vec::with_capacity(catalog.segments().len());
        for segment in catalog.segments() {
            let id = segment.id();
            let (live, loose) = match compacting.live.get(&id).copied() {
                Some(known) => known,
                None => {
                    let is_deleted = |run_no| deleted.contains(&run_no);
                    let live = live_bytes(segment, is_deleted)? + receipts.bytes_in(segment)?;
                    let packs = self.log.setup.options.compression != Compression::None;
                    (live, if packs { loose_bytes(segment, is_deleted)? } else { 0 })
                }
            };
            compacting.live.insert(id, (live, loose));
            let (extent, is_output) = (segment.extent(), segment.is_output());
            let stays = |run_no| deleted.contains(&run_no) || open.contains(&run_no);
            let cold = if wanted && loose > 0 { loose_bytes(segment, stays)? } else { 0 };
            uses.push(SegmentUse { id, extent, is_output, live, cold });
        }
        compacting.live.retain(|id, _| catalog.segment(*id).is_some());
        Ok(uses)
    }

    /// The runs of the catalog that are in progress. The step itself uses the same rule a moment
    /// later, and an ended run never continues, so no compressible frame is left behind.
    fn in_progress(&self, catalog: &Catalog) -> Result<HashSet<RunNo>> {
        let statuses = Statuses::NONE.with(RunStatus::InProgress);
        let list = RunList { statuses, ..RunList::ALL };
        let open = catalog.ask(|catalog| catalog.runs_page(&list, usize::MAX))?;
        let mut open: Vec<RunNo> = open.into_iter().map(|key| key.1).collect();
        let ended = self.ended_since(&open);
        open.retain(|run_no| !ended.contains(run_no));
        Ok(open.into_iter().collect())
    }

    /// Which of these runs, in progress in the catalog, have ended since. Their ends survive power
    /// loss, so no crash makes them continue.
    fn ended_since(&self, runs: &[RunNo]) -> HashSet<RunNo> {
        let mut ended = HashSet::new();
        let durable = self.log.commit.durable();
        for some in runs.chunks(LOOKED_UP) {
            let state = self.log.state.lock();
            let active = some.iter().filter_map(|run_no| state.active.get(*run_no));
            for run in active.filter(|run| run.status.is_ended()) {
                let row = run.row(state.tail.segment.id(), &state.tail.builder);
                if row.and_then(|row| row.end).is_some_and(|end| end < durable) {
                    ended.insert(run.run_no);
                }
            }
        }
        ended
    }

    /// The segments at the end of the file that have room before them.
    fn last_segments(&self, segments: &[SegmentUse], bound: Bound) -> Vec<SegmentUse> {
        let allocator = self.log.space.allocator.lock();
        let free: Vec<ExtentNo> = allocator.manifest.free().take(2 * STEP_SEGMENTS).collect();
        let most = usize::try_from(allocator.may_move).unwrap_or(bound.segments);
        let bound = Bound { segments: bound.segments.min(most), ..bound };
        drop(allocator);
        let mut chosen = for_shrinking(segments, free.len() as u64, bound);
        let in_front = |chosen: &[SegmentUse]| {
            let lowest = chosen.iter().map(|segment| segment.extent).min();
            let last = free.get(chosen.len().saturating_sub(1));
            last.is_some_and(|extent| Some(*extent) < lowest)
        };
        while !chosen.is_empty() && !in_front(&chosen) {
            chosen.pop();
        }
        chosen
    }
}

/// The segments around one of them that gain most together, of those that have the records of a
/// run in this order. So no record of that run stays between them.
fn near(id: SegmentId, run: &[SegmentId], compacting: &Compacting, bound: Bound) -> Vec<SegmentId> {
    let use_of = |at: usize| {
        let id = run.get(at).filter(|id| !compacting.unmovable.contains(id))?;
        compacting.live.get(id).map(|(live, _)| *live)
    };
    let Some(at) = run.iter().position(|other| *other == id) else { return Vec::new() };
    let taken = for_neighbours(at, use_of, bound);
    run.get(taken).unwrap_or_default().to_vec()
}

/// The part of an extent that a segment must waste to be compacted.
const WASTE_PART: u64 = 6;
/// The bytes of a run in a segment: its frames, its BIND, and its directory entry.
fn cost(directory: &Directory<'_>, slot: u32) -> Decoded<u64> {
    let (agent, run) = directory.ids(slot)?;
    let ids = agent.len() + run.len();
    let entry =
        RUN_ENTRY_LEN + HASH_LEN + ids + RECORD_COST * directory.record_list(slot)?.1 as usize;
    Ok(directory.stored(slot)?.saturating_add((entry + frame_len(4 + ids)) as u64))
}

/// The sum of `of_run` over all runs of a segment that are not deleted.
fn sum_living(
    segment: &Segment,
    is_deleted: impl Fn(RunNo) -> bool,
    of_run: impl Fn(&Directory<'_>, u32) -> Decoded<u64>,
) -> Result<u64> {
    segment.in_directory(|directory| {
        let mut sum = 0_u64;
        for slot in 0..directory.run_count() {
            if !is_deleted(directory.run_no(slot)?) {
                sum = sum.saturating_add(of_run(&directory, slot)?);
            }
        }
        Ok(sum)
    })
}

/// The bytes of living runs in a segment that can still be compressed once the runs have ended.
fn loose_bytes(segment: &Segment, is_deleted: impl Fn(RunNo) -> bool) -> Result<u64> {
    fn loose(directory: &Directory<'_>, slot: u32) -> Decoded<u64> {
        directory.loose(slot)
    }
    sum_living(segment, is_deleted, loose)
}

/// The bytes that living runs take in a segment.
pub(crate) fn live_bytes(segment: &Segment, is_deleted: impl Fn(RunNo) -> bool) -> Result<u64> {
    sum_living(segment, is_deleted, cost)
}
