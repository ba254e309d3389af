//! When to compact, how fast, and until when.

use core::time::Duration;

use super::Goal;
use crate::engine::checkpoint::IndexSlot;
use crate::engine::compact::Compactor;
use crate::engine::reclaim::Compacting;
use crate::engine::setup::due::Wanted;
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::{Compression, Rate, SpaceReturn};
use crate::error::{Error, Result};
use crate::format::map::manifest::Use;
use crate::types::SegmentId;

/// What a compaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Compacted {
    /// Segments that gave up their place.
    pub segments: u64,
    /// Segments that were written in their place.
    pub outputs: u64,
    /// The bytes that were written.
    pub bytes: u64,
}

impl core::ops::AddAssign for Compacted {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.outputs += other.outputs;
        self.bytes += other.bytes;
    }
}

/// The file is made shorter when at least this many extents are free, and at least one in
/// [`SHRINK_PART`] of those in use.
const SHRINK_FREE: u64 = 4;
/// See [`SHRINK_FREE`].
const SHRINK_PART: u64 = 10;
/// What putting all in order writes, in the bytes of the log, until runs that go on from one step
/// to the next are not taken along any more: of a run in progress that is everything, each time.
const CARRIED_PART: u64 = 2;

impl Compactor {
    /// Compacts until nothing is gained by it, or until the store is being closed.
    pub(crate) fn compact_for_space(&self, rate: Rate) -> Result<Compacted> {
        let mut done = Compacted::default();
        // An index that lacks what is in a victim would be dropped.
        self.checkpoints.checkpoint()?;
        self.reclaimer.compacting.lock().begin(rate);
        self.repeat(&mut done, |compacting, done| {
            if done.segments > 0 {
                self.log.space.keep_reserve()?;
            }
            self.compact_for_space_once(compacting)
        })?;
        self.compress(None, &mut done)?;
        if self.log.setup.options.compaction.space == SpaceReturn::Shrink {
            self.shrink(&mut done)?;
        }
        Ok(done)
    }

    /// Does steps until there is nothing to do, or the store is being closed. What is dead is freed
    /// before each, and given back.
    fn repeat(
        &self,
        done: &mut Compacted,
        step: impl Fn(&mut Compacting, &Compacted) -> Result<Option<Compacted>>,
    ) -> Result<()> {
        while !self.log.due.is_stopping() {
            let mut compacting = self.reclaimer.compacting.lock();
            self.reclaimer.free_dead(&mut compacting)?;
            self.log.space.give_back_freed()?;
            let Some(made) = step(&mut compacting, done)? else { break };
            *done += made;
        }
        Ok(())
    }

    /// Compresses what has become cold, if that makes fewer segments. What is gained by that for
    /// the file is another time's.
    pub(crate) fn compress_cold(&self, rate: Rate) -> Result<()> {
        let mut done = Compacted::default();
        self.checkpoints.checkpoint()?;
        self.reclaimer.compacting.lock().begin(rate);
        self.compress(None, &mut done)?;
        if done.segments > 0 {
            self.log.due.want(Wanted::COMPACT);
        }
        Ok(())
    }

    /// Compresses what is cold, if that is asked for: all in segments in front of `end`, or what
    /// makes fewer segments. What there is no room for on a full disk stays as it is.
    fn compress(&self, end: Option<SegmentId>, done: &mut Compacted) -> Result<()> {
        if self.log.setup.options.compression == Compression::None {
            return Ok(());
        }
        self.repeat(done, |compacting, _| match self.compact_step(compacting, Goal::Pack(end)) {
            Err(Error::DiskFull { .. }) => Ok(None),
            step => step,
        })
    }

    /// Compacts everything there is, also where only order is gained: afterwards the records of
    /// each run that has ended are next to one another.
    pub(crate) fn compact_all(&self) -> Result<Compacted> {
        self.log.disk.check()?;
        self.checkpoints.cover_seals()?;
        let mut done = Compacted::default();
        let end = self.log.state.lock().next_segment;
        let is_full = match self.compact_for_order(end, &mut done) {
            Err(Error::DiskFull { .. }) => true,
            ordered => ordered.map(|()| false)?,
        };
        self.compress(Some(end), &mut done)?;
        {
            // Who calls this pays for what was free before, too.
            let mut allocator = self.log.space.allocator.lock();
            allocator.may_move = allocator.may_move.max(allocator.manifest.free_in_front());
        }
        let freed = self.compact_for_space(Rate::Unlimited)?;
        done += freed;
        if is_full && freed.segments > 0 {
            // There may be room for it now; what stays in disorder for want of room is complete.
            match self.compact_for_order(end, &mut done) {
                Err(Error::DiskFull { .. }) => {}
                again => again?,
            }
        }
        Ok(done)
    }

    fn compact_for_order(&self, end: SegmentId, done: &mut Compacted) -> Result<()> {
        self.reclaimer.compacting.lock().begin(Rate::Unlimited);
        let sealed = self.log.state.lock().catalog.segments().len() as u64;
        let most = done.bytes + CARRIED_PART * sealed * self.log.extent_size.bytes();
        self.repeat(done, |compacting, done| {
            if done.bytes >= most {
                // The last output has room left; what is never filled would be waste of each step.
                let full = compacting.carried.len().saturating_sub(1);
                drop(compacting.carried.drain(..full));
            }
            self.compact_step(compacting, Goal::Order(end))
        })
    }

    /// Moves what is at the end of the file to free extents in front, as far as that is worth it:
    /// at most as many segments as became free since.
    fn shrink(&self, done: &mut Compacted) -> Result<()> {
        self.repeat(done, |compacting, _| {
            if !self.is_worth_shrinking() {
                return Ok(None);
            }
            let made = self.compact_step(compacting, Goal::Shrink)?;
            let moved = match made {
                Some(made) => made.segments.max(made.outputs),
                None if self.move_last()? => 1,
                None => return Ok(None),
            };
            let mut allocator = self.log.space.allocator.lock();
            allocator.may_move = allocator.may_move.saturating_sub(moved);
            Ok(Some(made.unwrap_or_default()))
        })
    }

    fn is_worth_shrinking(&self) -> bool {
        let allocator = self.log.space.allocator.lock();
        let count = allocator.manifest.extents().uses.len() as u64;
        allocator.may_move > 0
            && allocator.manifest.free_in_front() >= SHRINK_FREE.max(count / SHRINK_PART)
    }

    /// Moves what is at the very end of the file and is no sealed segment; answers whether
    /// anything may be gained by looking again.
    fn move_last(&self) -> Result<bool> {
        let _watch = self.log.setup.watch(Activity::Compaction);
        let last = {
            let allocator = self.log.space.allocator.lock();
            allocator.manifest.extents().uses.last_key_value().map(|(_, used)| *used)
        };
        match last {
            Some(Use::Log { sealed: None, .. }) => {
                self.log.roll(&mut self.log.state.lock())?;
                self.checkpoints.cover_seals()?;
                let mut state = self.log.state.lock();
                let fresh: Vec<_> = state.catalog.segments().iter().map(|one| one.id()).collect();
                state.suspects.extend(fresh);
                Ok(true)
            }
            Some(Use::Index { .. }) => {
                let mut slot = self.checkpoints.index.lock();
                if !matches!(*slot, IndexSlot::Open { .. }) {
                    return Ok(false);
                }
                self.checkpoints.drop_index(&mut slot)?;
                drop(slot);
                self.log.due.want(Wanted::CHECKPOINT);
                Ok(true)
            }
            Some(Use::Meta { .. }) => {
                let mut allocator = self.log.space.allocator.lock();
                let before = allocator.manifest.last_in_use();
                allocator.manifest.move_to_front();
                allocator.commit(&[])?;
                Ok(allocator.manifest.last_in_use() < before)
            }
            _ => Ok(false),
        }
    }

    /// Holds the thread up, so that it writes no faster than it may, and reads in vain no faster.
    pub(super) fn pace(&self, compacting: &mut Compacting, bytes: usize) {
        let end = self.log.commit.written();
        let appended = core::mem::replace(&mut compacting.seen, end) != end;
        let rate = match compacting.rate {
            Rate::AtMost(rate) => rate,
            Rate::WhileAppending(rate) if appended => rate,
            Rate::WhileAppending(_) | Rate::Unlimited => return,
        };
        let nanos = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
        self.log.due.pause(Duration::from_nanos(nanos));
    }
}
