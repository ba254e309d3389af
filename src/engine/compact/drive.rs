//! When to compact, how fast, and until when.

use core::time::Duration;

use super::{Compacting, Goal, Step};
use crate::engine::index_slot::IndexSlot;
use crate::engine::observer::Activity;
use crate::engine::options::SpaceReturn;
use crate::engine::shared::Engine;
use crate::engine::upkeep::Wanted;
use crate::error::{Error, Result};
use crate::format::manifest::Use;
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

impl Compacted {
    fn add(&mut self, step: Step) {
        self.segments += step.victims;
        self.outputs += step.outputs;
        self.bytes += step.bytes;
    }
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
/// How often the tail moves on at most to get away from the end of the file: over what was set
/// aside there, and once more.
const ROLLS: usize = 4;

impl Engine {
    /// Compacts until nothing is gained by it, or until `stop`.
    pub(crate) fn compact_for_space(
        &self,
        rate: Option<u64>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Compacted> {
        let mut done = Compacted::default();
        self.compacting.lock().begin(rate);
        while !stop() {
            let mut compacting = self.compacting.lock();
            let Some(made) = self.compact_for_space_once(&mut compacting)? else { break };
            done.add(made);
            self.free_dead()?;
            self.keep_spare()?;
        }
        if self.options.compaction.space == SpaceReturn::Shrink {
            self.shrink(stop, &mut done)?;
        }
        Ok(done)
    }

    /// Compacts everything there is, also where only order is gained: afterwards the records of
    /// each run that has ended are next to one another.
    pub(crate) fn compact_all(&self) -> Result<Compacted> {
        self.disk.check()?;
        self.sync_all()?;
        self.note_seals()?;
        self.checkpoint()?;
        let mut done = Compacted::default();
        let end = self.core.lock().next_segment;
        let is_full = match self.compact_for_order(end, &mut done) {
            Err(Error::DiskFull { .. }) => true,
            ordered => ordered.map(|()| false)?,
        };
        let freed = self.compact_for_space(None, &|| false)?;
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
        self.compacting.lock().begin(None);
        loop {
            let mut compacting = self.compacting.lock();
            let Some(made) = self.compact_step(&mut compacting, Goal::Order(end))? else {
                return Ok(());
            };
            done.add(made);
            self.free_dead()?;
        }
    }

    /// Moves what is at the end of the file to free extents in front, as far as that is worth it.
    fn shrink(&self, stop: &dyn Fn() -> bool, done: &mut Compacted) -> Result<()> {
        let mut rolls = 0;
        let mut shortest = u32::MAX;
        while !stop() && self.is_worth_shrinking() {
            let mut compacting = self.compacting.lock();
            let moved = match self.compact_step(&mut compacting, Goal::Shrink)? {
                Some(made) => {
                    done.add(made);
                    true
                }
                None => rolls < ROLLS && self.move_last(&mut compacting)?,
            };
            rolls += 1;
            self.free_dead()?;
            self.cut_off()?;
            let last = self.keeper.lock().manifest.last_in_use().map_or(0, |extent| extent.0);
            if !moved || (last >= shortest && rolls > ROLLS) {
                break;
            }
            shortest = shortest.min(last);
        }
        Ok(())
    }

    fn is_worth_shrinking(&self) -> bool {
        let keeper = self.keeper.lock();
        let owned = &keeper.manifest.extents().uses;
        let count = owned.len() as u64;
        let end = owned.last_key_value().map_or(0, |(extent, _)| u64::from(extent.0) + 1);
        end.saturating_sub(count) >= SHRINK_FREE.max(count / SHRINK_PART)
    }

    /// Moves what is at the very end of the file and is no sealed segment; answers whether
    /// anything may be gained by looking again.
    fn move_last(&self, _: &mut Compacting) -> Result<bool> {
        let _watch = self.watch(Activity::Compaction);
        let last = {
            let keeper = self.keeper.lock();
            keeper.manifest.extents().uses.last_key_value().map(|(_, used)| *used)
        };
        match last {
            Some(Use::Log { sealed: None, .. }) => {
                let mut core = self.core.lock();
                self.check_open(&core)?;
                core.roll(self)?;
                drop(core);
                self.sync_all()?;
                self.note_seals()?;
                self.checkpoint()?;
                let mut core = self.core.lock();
                let fresh: Vec<_> = core.catalog.segments().iter().map(|one| one.id()).collect();
                core.suspect(fresh);
                Ok(true)
            }
            Some(Use::Index { .. }) => {
                let mut slot = self.index.lock();
                if !matches!(*slot, IndexSlot::Open { .. }) {
                    return Ok(false);
                }
                self.drop_index(&mut slot)?;
                drop(slot);
                self.upkeep.want(Wanted::CHECKPOINT);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Holds the thread up, so that it writes no faster than it may.
    pub(super) fn pace(&self, compacting: &Compacting, bytes: usize) {
        if let Some(rate) = compacting.paced {
            let nanos = (bytes as u64).saturating_mul(1_000_000_000) / rate.max(1);
            self.upkeep.pause(Duration::from_nanos(nanos));
        }
    }
}
