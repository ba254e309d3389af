//! Freeing space on a full disk, where something must be written before anything is free.
//!
//! - The end of each segment is reserved for ends and evictions (`write/place.rs`).
//! - Large stores set one extent aside for compaction, for segments that are only partly dead
//!   (`space/reserve.rs`).
//! - The index gives way: the directories answer in its place, and it is rebuilt once there is
//!   space for the log to continue. So small stores need no such extent.

use crate::engine::retain::Retainer;
use crate::engine::setup::options::Rate;
use crate::engine::write::batch::{Batch, Committed};
use crate::error::{Error, Result};
use crate::gc::Rule;
use crate::types::{AgentId, Durability, RunRef};

impl Retainer {
    /// Does all writes of a batch, or none.
    pub(crate) fn commit(&self, batch: &Batch<'_>) -> Result<Committed> {
        let commit = || self.log.commit_batch(batch);
        if batch.gives_back(self.log.extent_size) { self.making_room(commit) } else { commit() }
    }

    /// Deletes an ended run; returns its agent and its payload bytes.
    pub(crate) fn delete(&self, run: RunRef<'_>, rule: Rule) -> Result<(AgentId, u64)> {
        self.making_room(|| self.log.delete(run, rule, Durability::Disk))
    }

    /// Holds a run for a reason, or releases it; returns whether that changed anything. A held run
    /// cannot be deleted before it is released, so this too makes room.
    pub(crate) fn hold(&self, run: RunRef<'_>, reason: Option<&str>) -> Result<bool> {
        self.making_room(|| self.log.hold(run, reason, Durability::Disk))
    }

    /// Calls `write`. If the disk is full, it tries again after freeing dead segments, and once
    /// more after dropping the index.
    fn making_room<T>(&self, mut write: impl FnMut() -> Result<T>) -> Result<T> {
        let mut done = write();
        for gives_way in [false, true] {
            let is_full = matches!(done, Err(Error::DiskFull { .. }));
            if !is_full || gives_way && !self.checkpoints.make_way()? {
                break;
            }
            self.free_on_full_disk()?;
            done = write();
        }
        done
    }

    /// Frees segments that are dead or partly dead, as far as there is space for that.
    pub(super) fn free_on_full_disk(&self) -> Result<()> {
        self.checkpoints.put_off();
        self.checkpoints.cover_seals()?;
        self.reclaimer.reclaim()?;
        // The observer is told if this fails, and moving does not depend on it.
        let _ = self.log.space.give_back_freed();
        if self.log.setup.options.compaction.automatic {
            match self.compactor.compact_for_space(Rate::Unlimited) {
                Err(Error::DiskFull { .. }) => {}
                compacted => drop(compacted?),
            }
        }
        Ok(())
    }

    /// Frees the space of deleted runs, as far as possible.
    pub(crate) fn reclaim(&self) -> Result<()> {
        // Only segments that the catalog covers can be freed.
        self.checkpoints.cover_seals()?;
        self.reclaimer.reclaim()?;
        let _ = self.log.space.give_back_freed();
        let compacted = if self.log.setup.options.compaction.automatic {
            self.compactor.compact_for_space(Rate::Unlimited).map(drop)
        } else {
            Ok(())
        };
        self.let_log_go_on()?;
        compacted
    }

    /// Prepares the next segment if the tail is half full and has dead runs, which can be freed
    /// only once the log has left the segment.
    fn let_log_go_on(&self) -> Result<()> {
        for gives_way in [false, true] {
            let is_due = {
                let mut state = self.log.state.lock();
                // A failed attempt leaves the flag set; an attempt under way holds the lock.
                let waiting = self.log.reserved.try_lock();
                state.has_next &= waiting.is_none_or(|waiting| !waiting.is_empty());
                let is_half_full = state.tail.offset > self.log.extent_size.bytes_u32() / 2;
                is_half_full && state.suspects.contains(&state.tail.segment.id())
            };
            if !is_due || gives_way && !self.checkpoints.make_way()? {
                break;
            }
            match self.log.reserve_ahead() {
                Err(Error::DiskFull { .. }) => {}
                reserved => return reserved,
            }
        }
        Ok(())
    }
}
