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

/// The result of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Compacted {
    /// How many segments were replaced.
    pub segments: u64,
    /// How many segments replace them.
    pub outputs: u64,
    /// How many bytes were written.
    pub bytes: u64,
}

impl core::ops::AddAssign for Compacted {
    fn add_assign(&mut self, other: Self) {
        self.segments += other.segments;
        self.outputs += other.outputs;
        self.bytes += other.bytes;
    }
}

/// The file is shortened when at least this many extents are free, and at least one for each
/// [`SHRINK_PART`] in use.
const SHRINK_FREE: u64 = 4;
/// See [`SHRINK_FREE`].
const SHRINK_PART: u64 = 10;
/// How many times the bytes of the log ordering may write before it stops taking along runs that
/// continue from one step to the next: a run in progress would be copied completely in each step.
const CARRIED_PART: u64 = 2;

impl Compactor {
    /// Compacts until nothing can be gained, or until the store is being closed.
    pub(crate) fn compact_for_space(&self, rate: Rate) -> Result<Compacted> {
        let passed = self.pass_for_space(rate);
        self.note_pass(&passed);
        passed
    }

    /// Notes the result of a pass, for `RunLog::health`.
    fn note_pass<T>(&self, passed: &Result<T>) {
        let damaged = self.reclaimer.compacting.lock().damaged.clone();
        self.log.setup.monitor.note_compaction(passed, &damaged);
    }

    fn pass_for_space(&self, rate: Rate) -> Result<Compacted> {
        let mut done = Compacted::default();
        // An index that lacks what is in a victim would be dropped.
        self.checkpoints.checkpoint()?;
        let mut compacting = self.reclaimer.compacting.lock();
        compacting.begin(rate);
        compacting.damaged.clear();
        drop(compacting);
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

    /// Repeats `step` until it has nothing to do, or until the store is being closed. Before each
    /// step it frees dead segments and releases their blocks.
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

    /// Compresses ended runs where that makes fewer segments. A later compaction uses the space.
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

    /// Compresses ended runs, if the options say so: all in segments before `end`, or only where
    /// that makes fewer segments. Runs that do not fit on a full disk stay uncompressed.
    fn compress(&self, end: Option<SegmentId>, done: &mut Compacted) -> Result<()> {
        if self.log.setup.options.compression == Compression::None {
            return Ok(());
        }
        self.repeat(done, |compacting, _| match self.compact_step(compacting, Goal::Pack(end)) {
            Err(Error::DiskFull { .. }) => Ok(None),
            step => step,
        })
    }

    /// Compacts all full segments, even where it gains only order: afterwards the records of each
    /// ended run are next to one another.
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
            // This call may also move one segment for each extent that was free before.
            let mut allocator = self.log.space.allocator.lock();
            allocator.may_move = allocator.may_move.max(allocator.manifest.free_in_front());
        }
        let freed = self.compact_for_space(Rate::Unlimited)?;
        done += freed;
        if is_full && freed.segments > 0 {
            // There may be room now. Runs that stay unordered for lack of room are complete.
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
                // The last output has room left; leaving it in each step would waste space.
                let full = compacting.carried.len().saturating_sub(1);
                drop(compacting.carried.drain(..full));
            }
            self.compact_step(compacting, Goal::Order(end))
        })
    }

    /// Moves the segments at the end of the file to free extents before them, as far as that is
    /// worthwhile: at most one for each extent that became free.
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

    /// Moves the last extent of the file if it is not a sealed segment. Returns whether trying
    /// again may gain something.
    fn move_last(&self) -> Result<bool> {
        self.log.setup.watch(Activity::Compaction, || self.try_to_move_last())
    }

    fn try_to_move_last(&self) -> Result<bool> {
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

    /// Pauses the thread to limit its rate, for bytes written and for bytes read in vain.
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
