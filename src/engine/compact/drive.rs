//! When to compact, how fast, and until when.

use core::cell::Cell;
use core::time::Duration;

use super::Goal;
use crate::engine::checkpoint::IndexSlot;
use crate::engine::compact::Compactor;
use crate::engine::reclaim::Compacting;
use crate::engine::setup::due::Wanted;
use crate::engine::setup::memory;
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

/// How far the file is shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shorten {
    /// Only while enough extents are free: in the background a move must be worth its writes.
    WhereWorthwhile,
    /// While any extent is free in front of the last one: a caller asked for it and waits.
    AsFarAsPossible,
}

/// In the background the file is shortened when at least this many extents are free, and at least
/// After a pass over so many segments freed memory goes back to the system.
const MANY_SEGMENTS: u64 = 64;
/// one for each [`SHRINK_PART`] in use.
const SHRINK_FREE: u64 = 4;
/// See [`SHRINK_FREE`].
const SHRINK_PART: u64 = 10;
/// The most passes of one call that shortens the file as far as possible.
const SHRINK_PASSES: u32 = 4;
/// How many times the bytes of the log ordering may write before it stops taking along runs that
/// continue from one step to the next: a run in progress would be copied completely in each step.
const CARRIED_PART: u64 = 2;
/// A process that closes the store compacts if at least this many extents of bytes were deleted
/// since the last pass.
const DEAD_EXTENTS: u64 = 4;
/// And at least one byte for so many of the log: a step looks at all segments.
const DEAD_PART: u64 = 8;
/// It stops when it has written this many bytes, or read them in vain: who closes a store waits.
const MOST_AT_CLOSE: u64 = 32 << 20;
/// What a step counts at least.
const LOOK: u64 = 1 << 20;

impl Compactor {
    /// Compacts until nothing can be gained, or until the store is being closed.
    pub(crate) fn compact_for_space(&self, rate: Rate) -> Result<Compacted> {
        let mut done = Compacted::default();
        self.noted_pass(rate, Shorten::WhereWorthwhile, &mut done)?;
        Ok(done)
    }

    fn noted_pass(&self, rate: Rate, shorten: Shorten, done: &mut Compacted) -> Result<()> {
        let before = done.segments;
        let passed = self.pass_for_space(rate, shorten, done);
        if done.segments - before >= MANY_SEGMENTS {
            memory::give_back();
        }
        self.note_pass(&passed);
        passed
    }

    /// Notes the result of a pass, for `RunLog::health`.
    fn note_pass<T>(&self, passed: &Result<T>) {
        let damaged = self.reclaimer.compacting.lock().damaged.keys().copied().collect();
        self.log.setup.monitor.note_compaction(passed, &damaged);
    }

    /// A pass for space. `done` has what it did, also if it fails.
    fn pass_for_space(&self, rate: Rate, shorten: Shorten, done: &mut Compacted) -> Result<()> {
        let dead = self.log.state.lock().dead;
        // An index that lacks what is in a victim would be dropped.
        self.checkpoints.checkpoint()?;
        self.reclaimer.compacting.lock().begin();
        let before = done.segments;
        self.repeat(rate, done, |compacting, done| {
            if done.segments > before {
                self.log.space.keep_reserve()?;
            }
            self.compact_for_space_once(compacting)
        })?;
        self.compress(rate, None, done)?;
        if !self.log.due.is_stopping() {
            let mut state = self.log.state.lock();
            state.dead = state.dead.saturating_sub(dead);
        }
        if self.log.setup.options.compaction.space == SpaceReturn::Shrink {
            self.shrink(rate, shorten, done)?;
        }
        Ok(())
    }

    /// Before a store is closed: some steps for space, if much was deleted since the last pass that
    /// came to its end. So processes that are too short for a pass do one together.
    pub(crate) fn compact_before_close(&self) -> Result<()> {
        let is_owed = {
            let state = self.log.state.lock();
            let segments = state.catalog.segments().len() + state.unapplied.len();
            let least = DEAD_EXTENTS.max(segments as u64 / DEAD_PART);
            state.dead >= self.log.extent_size.bytes() * least
        };
        let waits = Duration::from_millis(500);
        if !is_owed || !self.checkpoints.is_nearly_covered(waits) {
            return Ok(());
        }
        self.checkpoints.cover_seals()?;
        // The background may be within a step, which is worth more than one that is broken off.
        let Some(mut compacting) = self.reclaimer.compacting.lock_within(waits) else {
            return Ok(());
        };
        compacting.begin();
        compacting.rate = Rate::Unlimited;
        let (mut moved, mut is_over) = (0, false);
        let worked = loop {
            let freed = self.reclaimer.free_dead(&mut compacting);
            // The observer is told if this fails, and moving does not depend on it.
            let _ = self.log.space.give_back_freed();
            if moved >= MOST_AT_CLOSE || is_over || self.log.due.is_stopping() {
                break freed;
            }
            match freed.and_then(|()| self.compact_for_space_once(&mut compacting)) {
                Ok(Some(made)) => {
                    // A step in vain costs at least a look at each segment.
                    let read = core::mem::take(&mut compacting.read_in_vain);
                    moved += made.bytes.max(read).max(LOOK);
                }
                Ok(None) => is_over = !self.log.due.is_stopping(),
                Err(error) => break Err(error),
            }
        };
        drop(compacting);
        let mut state = self.log.state.lock();
        // What was in vain or failed would be so in the next process, too: that is for later.
        if is_over {
            state.dead = 0;
        } else if moved > 0 || worked.is_err() {
            state.dead /= 2;
        }
        worked
    }

    /// Repeats `step` until it has nothing to do, or until the store is being closed. Before each
    /// step it frees dead segments and releases their blocks, and also while it pauses: that writes
    /// nothing that the rate is for, and a full disk may wait for it. Other calls may compact
    /// between two steps, at their own rate.
    fn repeat(
        &self,
        rate: Rate,
        done: &mut Compacted,
        step: impl Fn(&mut Compacting, &Compacted) -> Result<Option<Compacted>>,
    ) -> Result<()> {
        while !self.log.due.is_stopping() {
            self.let_checkpoint();
            let mut compacting = self.reclaimer.compacting.lock();
            compacting.rate = rate;
            self.reclaimer.free_dead(&mut compacting)?;
            // The observer is told if this fails, and moving does not depend on it.
            let _ = self.log.space.give_back_freed();
            let Some(made) = step(&mut compacting, done)? else { break };
            *done += made;
            let read = core::mem::take(&mut compacting.read_in_vain);
            let pause = self.pause_for(&mut compacting, read);
            drop(compacting);
            let mut left = Some(pause);
            while let Some(pause) = left {
                left = self.log.due.pause_or_free(pause);
                if left.is_some() {
                    self.reclaimer.reclaim()?;
                    let _ = self.log.space.give_back_freed();
                }
            }
        }
        Ok(())
    }

    /// Compresses ended runs where that makes fewer segments. A later compaction uses the space.
    pub(crate) fn compress_cold(&self, rate: Rate) -> Result<()> {
        let mut done = Compacted::default();
        self.checkpoints.checkpoint()?;
        self.reclaimer.compacting.lock().begin();
        self.compress(rate, None, &mut done)?;
        if done.segments > 0 {
            self.log.due.want(Wanted::COMPACT);
        }
        Ok(())
    }

    /// Compresses ended runs, if the options say so: all in segments before `end`, or only where
    /// that makes fewer segments. Runs that do not fit on a full disk stay uncompressed.
    fn compress(&self, rate: Rate, end: Option<SegmentId>, done: &mut Compacted) -> Result<()> {
        if self.log.setup.options.compression == Compression::None {
            return Ok(());
        }
        self.repeat(rate, done, |compacting, _| {
            let step = self.compact_step(compacting, Goal::Pack(end));
            (compacting.may_grow, compacting.has_grown) = (false, false);
            match step {
                Err(Error::DiskFull { .. }) => Ok(None),
                step => step,
            }
        })
    }

    /// Compacts all full segments, even where it gains only order: afterwards the records of each
    /// ended run are next to one another. A full disk is an error only if nothing could be done.
    pub(crate) fn compact_all(&self) -> Result<Compacted> {
        self.log.disk.check()?;
        self.checkpoints.cover_seals()?;
        let (mut done, mut full) = (Compacted::default(), None);
        let mut note = |step: Result<()>| match step {
            Err(error @ Error::DiskFull { .. }) => {
                full = Some(error);
                Ok(false)
            }
            step => step.map(|()| true),
        };
        let end = self.log.state.lock().next_segment;
        // First, so that what runs repeat is not written to bring it into order.
        self.compress(Rate::Unlimited, Some(end), &mut done)?;
        let is_ordered = note(self.compact_for_order(end, &mut done))?;
        let before = done.segments;
        note(self.compact_to_the_end(&mut done))?;
        if !is_ordered && done.segments > before {
            // There may be room now. Runs that stay unordered for lack of room are complete.
            note(self.compact_for_order(end, &mut done))?;
        }
        full.filter(|_| done == Compacted::default()).map_or(Ok(done), Err)
    }

    /// Repeats a pass that shortens the file as far as possible while it gains something: the open
    /// segment, which moves too, may free more once it is sealed, and the segment that was set
    /// aside behind it is only then in use. Then an index that gave way to the moves is built anew.
    fn compact_to_the_end(&self, done: &mut Compacted) -> Result<()> {
        for _ in 0..SHRINK_PASSES {
            {
                // Each pass may also move one segment for each extent that was free before.
                let mut allocator = self.log.space.allocator.lock();
                allocator.may_move = allocator.may_move.max(allocator.manifest.room_in_front());
            }
            let before = *done;
            self.noted_pass(Rate::Unlimited, Shorten::AsFarAsPossible, done)?;
            if *done == before || self.room_in_front() == 0 {
                break;
            }
        }
        self.checkpoints.checkpoint()
    }

    fn compact_for_order(&self, end: SegmentId, done: &mut Compacted) -> Result<()> {
        self.reclaimer.compacting.lock().begin();
        let sealed = self.log.state.lock().catalog.segments().len() as u64;
        let most = done.bytes + CARRIED_PART * sealed * self.log.extent_size.bytes();
        self.repeat(Rate::Unlimited, done, |compacting, done| {
            if done.bytes >= most {
                // The last output has room left; leaving it in each step would waste space.
                let full = compacting.carried.len().saturating_sub(1);
                drop(compacting.carried.drain(..full));
            }
            self.compact_step(compacting, Goal::Order(end))
        })
    }

    /// Moves the segments at the end of the file to free extents before them, at most one for each
    /// extent that became free.
    fn shrink(&self, rate: Rate, shorten: Shorten, done: &mut Compacted) -> Result<()> {
        // What is freed meanwhile allows no more moves in this call, so that it ends.
        let left = Cell::new(match shorten {
            Shorten::WhereWorthwhile => u64::MAX,
            Shorten::AsFarAsPossible => self.room_in_front(),
        });
        self.repeat(rate, done, |compacting, _| {
            if left.get() == 0 || !self.may_shrink(shorten) {
                return Ok(None);
            }
            let made = self.compact_step(compacting, Goal::Shrink)?;
            let moved = match made {
                Some(made) => made.segments.max(made.outputs),
                None if self.move_last(shorten)? => 1,
                None => return Ok(None),
            };
            left.set(left.get().saturating_sub(moved));
            let mut allocator = self.log.space.allocator.lock();
            allocator.may_move = allocator.may_move.saturating_sub(moved);
            Ok(Some(made.unwrap_or_default()))
        })
    }

    fn may_shrink(&self, shorten: Shorten) -> bool {
        let allocator = self.log.space.allocator.lock();
        let manifest = &allocator.manifest;
        let is_room = match shorten {
            Shorten::WhereWorthwhile => {
                let count = manifest.extents().uses.len() as u64;
                manifest.free_in_front() >= SHRINK_FREE.max(count / SHRINK_PART)
            }
            Shorten::AsFarAsPossible => manifest.room_in_front() > 0,
        };
        allocator.may_move > 0 && is_room
    }

    /// Moves the last extent of the file if it is not a sealed segment. Returns whether trying
    /// again may gain something.
    fn move_last(&self, shorten: Shorten) -> Result<bool> {
        self.log.setup.watch(Activity::Compaction, || self.try_to_move_last(shorten))
    }

    fn try_to_move_last(&self, shorten: Shorten) -> Result<bool> {
        let last = {
            let allocator = self.log.space.allocator.lock();
            allocator.manifest.extents().uses.last_key_value().map(|(_, used)| *used)
        };
        match last {
            Some(Use::Log { sealed: None, .. }) => {
                self.log.roll(&mut self.log.state.lock())?;
                self.checkpoints.cover_seals()?;
                Ok(true)
            }
            Some(Use::Index { .. }) => {
                if !self.is_index_worth_moving(shorten) {
                    return Ok(false);
                }
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

    /// Whether the file loses at least as much as the index takes, which is built anew. Where the
    /// background would shorten the file, it always is.
    fn is_index_worth_moving(&self, shorten: Shorten) -> bool {
        let allocator = self.log.space.allocator.lock();
        let is_index = |used: &&Use| matches!(used, Use::Index { .. });
        let index = allocator.manifest.extents().uses.values().filter(is_index).count() as u64;
        let is_gain = allocator.manifest.room_in_front() >= index;
        drop(allocator);
        self.may_shrink(Shorten::WhereWorthwhile)
            || (shorten == Shorten::AsFarAsPossible && is_gain)
    }

    fn room_in_front(&self) -> u64 {
        self.log.space.allocator.lock().manifest.room_in_front()
    }

    /// Pauses the thread to limit its rate, after so many bytes were written.
    pub(super) fn pace(&self, compacting: &mut Compacting, bytes: usize) {
        self.let_checkpoint();
        let pause = self.pause_for(compacting, bytes as u64);
        self.log.due.pause(pause);
    }

    /// Does a checkpoint that is due, so that it does not wait for the end of a compaction.
    fn let_checkpoint(&self) {
        if self.log.due.forget(Wanted::CHECKPOINT) && self.checkpoints.is_due() {
            // The observer is told of a failure, and the checkpoint stays due.
            let _ = self.checkpoints.checkpoint();
        }
    }

    /// How long the thread must pause for bytes that it wrote, or read in vain.
    fn pause_for(&self, compacting: &mut Compacting, bytes: u64) -> Duration {
        let end = self.log.commit.written();
        let appended = core::mem::replace(&mut compacting.seen, end) != end;
        let rate = match compacting.rate {
            Rate::AtMost(rate) => rate,
            Rate::WhileAppending(rate) if appended => rate,
            Rate::WhileAppending(_) | Rate::Unlimited => return Duration::ZERO,
        };
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate.max(1))
    }
}
