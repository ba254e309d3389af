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
//! Any segments may move: the parts of directories say what follows what in a run. A run that is
//! evicted while it moves is dead in the output, which is checked again.

pub(crate) mod drive;
mod find;
mod gather;
mod job;
mod output;
mod pack;
mod relocate;
mod slice;
pub(crate) mod uses;

use std::sync::Arc;

use crate::engine::checkpoint::Checkpoints;
pub(super) use crate::engine::compact::drive::Compacted;
use crate::engine::compact::gather::Obstacle;
use crate::engine::compact::job::Job;
use crate::engine::reclaim::{Compacting, Reclaimer};
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Compression;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::gc::choose::{
    Bound, SegmentUse, for_order, for_packing, for_shrinking, for_space, is_worth,
};
use crate::types::{ExtentNo, SegmentId};

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

/// The most segments of one step.
const STEP_SEGMENTS: usize = 32;
/// The most extents that one step fills.
const STEP_EXTENTS: u64 = 8;
/// The most bytes of one step that compresses, unless two extents are larger.
const STEP_PACKED: u64 = 64 << 20;
/// By how many times a step that compresses grows if all of it fits in a segment, and is less than
/// this part of what it was; and up to how many bytes, and records.
const GROWS: u32 = 4;
const SMALL_PART: u64 = 8;
const MOST_PACKED: u64 = 4 << 30;
const MOST_RECORDS: u64 = 256 << 10;
/// The most bytes of a step that has grown which wait in memory until they are written.
const MOST_WAITING: usize = 32 << 20;
/// How many segments must have something to compress before background compression begins.
const PACK_SEGMENTS: usize = 4;
/// The part of a segment that must be compressible for that.
const COLD_PART: u64 = 4;

/// The result of a step.
pub(crate) enum Attempt {
    /// It was done.
    Done(Compacted),
    /// None of the segments can be moved in their present state.
    Nothing,
    /// The outputs would not be few enough to gain space; so many bytes were read to see that.
    NoGain { read: u64 },
    /// The file would not become shorter. Fewer segments may do.
    NoRoom,
    /// The output would be so small that many more segments fit in it.
    Small,
    /// The step has grown, and its outputs would be large. What it was before will do.
    Large,
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
        self.tell(compacting.unread.take());
        let (mut bound, mut full) = (self.bound(goal), None);
        // The last bound with which the output was small.
        let (mut small, mut may_grow) = (None, true);
        loop {
            let may_move = |segment: &&SegmentUse| may_move(segment, compacting, goal);
            let movable: Vec<SegmentUse> = uses.iter().filter(may_move).copied().collect();
            let extent = self.log.extent_size.bytes();
            let chosen = self.choose(&movable, compacting, goal, bound);
            let wanted: Vec<SegmentId> = chosen.iter().map(|segment| segment.id).collect();
            let left_alone = compacting.unmovable.len();
            let wider = grown(bound);
            compacting.has_grown = small.is_some();
            compacting.may_grow = may_grow
                && matches!(goal, Goal::Pack(_))
                && self.choose(&movable, compacting, goal, wider).len() > chosen.len();
            let tried = match self.compact_segments(compacting, &wanted, goal) {
                Err(error @ Error::DiskFull { .. })
                    if goal == Goal::Space && bound.bytes > extent =>
                {
                    // Fewer segments need fewer outputs.
                    bound.bytes /= 2;
                    full = Some(error);
                    continue;
                }
                Err(Error::DiskFull { .. }) if small.is_some() => Attempt::Large,
                tried => tried?,
            };
            match tried {
                Attempt::Done(step) => return Ok(Some(step)),
                Attempt::Nothing if compacting.unmovable.len() == left_alone => {
                    return full.map_or(Ok(None), Err);
                }
                // Other segments may do; those that cannot move are excluded from now on.
                Attempt::Nothing => {}
                Attempt::NoGain { read } if matches!(goal, Goal::Pack(None) | Goal::Space) => {
                    if goal != Goal::Space {
                        let tried = chosen.iter().map(|segment| (segment.id, segment.cold));
                        compacting.incompressible.extend(tried);
                    }
                    // There may be many of these: the caller pauses, and checks for closing.
                    compacting.read_in_vain = read;
                    return Ok(Some(Compacted::default()));
                }
                Attempt::NoGain { .. } => {}
                Attempt::Small => (small, bound) = (Some(bound), wider),
                Attempt::Large => {
                    bound = small.take().unwrap_or(bound);
                    may_grow = false;
                }
                Attempt::NoRoom if wanted.len() > 1 => bound.segments = wanted.len() / 2,
                Attempt::NoRoom => compacting.unmovable.extend(&wanted),
            }
        }
    }

    /// The segments for a step, of those that may move.
    fn choose(
        &self,
        movable: &[SegmentUse],
        compacting: &Compacting,
        goal: Goal,
        bound: Bound,
    ) -> Vec<SegmentUse> {
        let extent = bound.extent;
        match goal {
            Goal::Space | Goal::SpaceOnFullDisk => for_space(movable, extent / WASTE_PART, bound),
            Goal::Order(_) => for_order(movable, &compacting.carried, bound),
            Goal::Pack(None) => for_packing(movable, extent / COLD_PART, PACK_SEGMENTS, bound),
            Goal::Pack(Some(_)) => for_packing(movable, 1, 1, bound),
            Goal::Shrink => self.last_segments(movable, bound),
            Goal::Erase => Vec::new(),
        }
    }

    /// Moves living runs out of these segments.
    pub(crate) fn compact_segments(
        &self,
        compacting: &mut Compacting,
        wanted: &[SegmentId],
        goal: Goal,
    ) -> Result<Attempt> {
        if wanted.is_empty() {
            return Ok(Attempt::Nothing);
        }
        self.log.setup.watch(Activity::Compaction, || self.try_to_move(compacting, wanted, goal))
    }

    fn try_to_move(
        &self,
        compacting: &mut Compacting,
        wanted: &[SegmentId],
        goal: Goal,
    ) -> Result<Attempt> {
        // Retired segments are freed first, for salvage and for evictions.
        self.reclaimer.free_retired(compacting)?;
        if self.log.due.is_stopping() {
            return Ok(Attempt::Nothing);
        }
        match self.plan_job(wanted) {
            Ok(job) => self.carry_out(compacting, job, wanted, goal),
            Err(Obstacle::Failed(error)) => Err(error),
            Err(Obstacle::Unmovable(id, error)) => {
                compacting.leave(id, error.as_ref());
                self.tell(error);
                Ok(Attempt::Nothing)
            }
        }
    }

    /// Tells the observer why a segment could not be read.
    fn tell(&self, error: Option<Error>) {
        let fail = || error.map_or(Ok(()), Err);
        let _ = self.log.setup.watch_failure(Activity::Compaction, fail);
    }

    /// Does a planned step for these segments, if it gains enough.
    fn carry_out(
        &self,
        compacting: &mut Compacting,
        mut job: Job,
        wanted: &[SegmentId],
        goal: Goal,
    ) -> Result<Attempt> {
        let most = if compacting.has_grown { MOST_WAITING } else { usize::MAX };
        if !self.pack(&mut job, most) {
            return Ok(Attempt::Large);
        }
        if self.log.due.is_stopping() {
            // Not all of it was packed.
            return Ok(Attempt::Nothing);
        }
        let layouts = self.lay_out(&job);
        if layouts.is_some() && compacting.may_grow && self.is_small(&job) {
            return Ok(Attempt::Small);
        }
        let outputs = layouts.as_ref().map_or(0, |(_, outputs)| outputs.len());
        let gains = is_worth(outputs as u64, job.gathered.victims.len() as u64);
        let fits = goal != Goal::SpaceOnFullDisk || outputs == 1;
        if layouts.is_some() && goal.must_gain() && !(gains && fits) {
            if goal.is_for_space() {
                // Otherwise they would be read again and again, with others.
                compacting.settle_fuller(wanted);
            }
            // Others wait for the pause, so it is bounded.
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
        // A frame fits in no output, or the copies are not what the index says.
        compacting.unmovable.extend(wanted);
        compacting.damaged.extend(wanted.iter().map(|id| (*id, None)));
        Ok(Attempt::Nothing)
    }

    /// Whether the output of a step has room for what many more segments would become. What a step
    /// reads is in maps, and what it remembers of each frame limits it, too.
    fn is_small(&self, job: &Job) -> bool {
        let frames = job.gathered.runs.iter().flat_map(|run| &run.frames);
        let bytes: usize = frames.map(|found| found.header.frame_len()).sum();
        let living = job.gathered.living.values().map(|run| &run.row);
        let (records, stored) = living
            .fold((0, 0), |(records, stored), row| (records + row.records, stored + row.stored));
        let most = self.log.extent_size.bytes().min(stored / SMALL_PART);
        self.log.disk.has_views() && bytes as u64 <= most && records <= MOST_RECORDS
    }

    /// Whether a step for [`Goal::Shrink`] leaves the last extent of its victims for one in front,
    /// and writes no more than it may. So no sequence of such steps is endless.
    fn is_shorter(&self, job: &Job, outputs: usize) -> bool {
        let last = job.gathered.victims.iter().map(|victim| victim.segment.extent()).max();
        let allocator = self.log.space.allocator.lock();
        let target = outputs.checked_sub(1).map(|number| allocator.manifest.free().nth(number));
        let is_in_front = target.is_none_or(|extent| extent.is_some() && extent < last);
        is_in_front && outputs as u64 <= allocator.may_move
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

/// The bound of a step whose output is small. At [`MOST_PACKED`] it does not grow.
fn grown(bound: Bound) -> Bound {
    let bytes = bound.bytes.saturating_mul(GROWS.into()).min(MOST_PACKED);
    if bytes <= bound.bytes {
        return bound;
    }
    Bound { bytes, segments: bound.segments.saturating_mul(GROWS as usize), ..bound }
}

/// Whether a segment may be chosen for a step: it can move, and it is not known to gain nothing.
fn may_move(segment: &SegmentUse, compacting: &Compacting, goal: Goal) -> bool {
    if compacting.unmovable.contains(&segment.id) {
        return false;
    }
    match goal {
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
    }
}

/// The part of an extent that a segment must waste to be compacted.
const WASTE_PART: u64 = 6;
