//! One extent that is set aside for compaction, so that a full disk can be cleaned up where only
//! parts of segments are dead: something must be written before anything is free.
//!
//! The manifest does not know it, so that none of it has to be recovered; its space is allocated.

use crate::engine::setup::options::SpaceReturn;
use crate::engine::space::Space;
use crate::engine::space::allocator::Allocator;
use crate::error::{Error, Result};

/// Stores with fewer extents in use go without: they would grow too much by it.
const RESERVE_FROM: usize = 8;

impl Space {
    /// Sets an extent aside if none is and the store is large enough for it. That there is no
    /// space is no failure: it is tried again with the next segment.
    pub(crate) fn keep_reserve(&self) -> Result<()> {
        let mut allocator = self.allocator.lock();
        if allocator.compaction_reserve.is_some()
            || allocator.manifest.extents().uses.len() < RESERVE_FROM
        {
            return Ok(());
        }
        match self.prepare_extents(&mut allocator, 1) {
            Err(Error::DiskFull { .. }) => {}
            prepared => allocator.compaction_reserve = prepared?.pop(),
        }
        Ok(())
    }

    /// Lets go of the extent that was set aside, to be given back with others that were freed. The
    /// store is being closed: space for evictions, which come before any compaction on a full
    /// disk, is given back too.
    pub(crate) fn release_reserve(&self) {
        let mut allocator = self.allocator.lock();
        if self.setup.options.compaction.space != SpaceReturn::Keep
            && let Some(extent) = allocator.compaction_reserve.take()
        {
            allocator.let_go(extent);
        }
    }
}

impl Allocator {
    /// Lets go of the extent that was set aside, if it keeps the file from getting shorter.
    pub(crate) fn release_last_reserve(&mut self) {
        let last = self.manifest.last_in_use();
        if let Some(extent) = self.compaction_reserve.take_if(|extent| Some(*extent) == last) {
            self.let_go(extent);
        }
    }
}
