//! How a full disk is cleaned up: something must be written before anything is free.
//!
//! - The end of each segment is kept back for evictions and ends (`core.rs`).
//! - Large stores set one extent aside, for compaction where only parts of segments are dead. The
//!   manifest does not know it, so that none of it has to be recovered; its space is allocated.
//! - The index gives way: the directories answer in its place, and it is built anew once there is
//!   space for the log to go on. So small stores keep no extent for this, and need none.

use super::index_slot::IndexSlot;
use super::options::{Rate, SpaceReturn};
use super::shared::{Engine, Keeper};
use crate::error::{Error, Result};
use crate::format::manifest::Use;

/// Stores with fewer extents in use go without: they would grow too much by it.
const SPARE_FROM: usize = 8;

impl Engine {
    /// Sets an extent aside if none is and the store is large enough for it. That there is no
    /// space is no failure: it is tried again with the next segment.
    pub(crate) fn keep_spare(&self) -> Result<()> {
        let mut keeper = self.keeper.lock();
        if keeper.spare.is_some() || keeper.manifest.extents().uses.len() < SPARE_FROM {
            return Ok(());
        }
        match self.prepare_extents(&mut keeper, 1) {
            Err(Error::DiskFull { .. }) => {}
            prepared => keeper.spare = prepared?.pop(),
        }
        Ok(())
    }

    /// Does something that deletes. On a full disk once more after what is dead was freed, and once
    /// more after the index gave way.
    pub(crate) fn deleting<T>(&self, mut delete: impl FnMut() -> Result<T>) -> Result<T> {
        let mut done = delete();
        for gives_way in [false, true] {
            if !matches!(done, Err(Error::DiskFull { .. })) || gives_way && !self.make_way()? {
                break;
            }
            self.free_on_full_disk()?;
            done = delete();
        }
        done
    }

    /// Frees what is dead, or dead in part, as far as there is space for that.
    pub(super) fn free_on_full_disk(&self) -> Result<()> {
        {
            let mut slot = self.index.lock();
            if matches!(*slot, IndexSlot::Absent) {
                // Building it would take what becomes free.
                *slot = IndexSlot::GaveWay;
            }
        }
        self.cover_seals()?;
        self.reclaim()?;
        self.give_back_freed()?;
        if self.options.compaction.automatic {
            match self.compact_for_space(Rate::Unlimited) {
                Err(Error::DiskFull { .. }) => {}
                compacted => drop(compacted?),
            }
        }
        Ok(())
    }

    /// Sees to it that there is a segment for the log to go on in if the tail is half full and has
    /// something that is dead: that can only be freed behind the tail.
    pub(crate) fn let_log_go_on(&self) -> Result<()> {
        for gives_way in [false, true] {
            let is_due = {
                let mut core = self.core.lock();
                // An attempt that failed left it as it was; one on its way has the lock.
                let waiting = self.reserved.try_lock();
                core.has_next &= waiting.is_none_or(|waiting| !waiting.is_empty());
                let is_half_full = core.tail.offset > self.extent_size.bytes_u32() / 2;
                is_half_full && core.suspects.contains(&core.tail.segment.id())
            };
            if !is_due || gives_way && !self.make_way()? {
                break;
            }
            match self.reserve_ahead() {
                Err(Error::DiskFull { .. }) => {}
                reserved => return reserved,
            }
        }
        Ok(())
    }

    /// Drops the index, and gives its space back. Answers whether there was one.
    pub(crate) fn make_way(&self) -> Result<bool> {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Off | IndexSlot::GaveWay) {
            return Ok(false);
        }
        let of_index = |keeper: &Keeper| {
            let uses = keeper.manifest.extents().uses.iter();
            let of_index = uses.filter(|(_, used)| matches!(used, Use::Index { .. }));
            of_index.map(|(&extent, _)| extent).collect::<Vec<_>>()
        };
        let extents = of_index(&self.keeper.lock());
        self.drop_index(&mut slot)?;
        *slot = IndexSlot::GaveWay;
        let keeper = self.keeper.lock();
        for &extent in extents.iter().filter(|extent| keeper.manifest.is_free(**extent)) {
            self.punch_extents(extent, 1)?;
        }
        Ok(!extents.is_empty())
    }

    /// Lets go of the extent that was set aside, to be given back with others that were freed. The
    /// store is being closed: space for evictions, which come before any compaction on a full
    /// disk, is given back too.
    pub(crate) fn release_spare(&self) {
        let mut keeper = self.keeper.lock();
        if self.options.compaction.space != SpaceReturn::Keep
            && let Some(spare) = keeper.spare.take()
        {
            keeper.let_go(spare);
        }
    }
}

impl Keeper {
    /// Lets go of the extent that was set aside, if it keeps the file from getting shorter.
    pub(crate) fn release_last_spare(&mut self) {
        if let Some(spare) = self.spare.take_if(|spare| Some(*spare) == self.manifest.last_in_use())
        {
            self.let_go(spare);
        }
    }
}
