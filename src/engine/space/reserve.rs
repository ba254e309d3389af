//! One extent that is set aside for compaction, so that a full disk can be cleaned up where only
//! parts of segments are dead: something must be written before anything is free.
//!
//! The manifest does not know it, so that none of it has to be recovered; its space is allocated.

use crate::engine::setup::options::SpaceReturn;
use crate::engine::space::Space;
use crate::engine::space::allocator::Allocator;
use crate::error::{Error, Result};

/// Stores with fewer extents in use go without: they would grow too much by it.
const SPARE_FROM: usize = 8;

impl Space {
    /// Sets an extent aside if none is and the store is large enough for it. That there is no
    /// space is no failure: it is tried again with the next segment.
    pub(crate) fn keep_spare(&self) -> Result<()> {
        let mut allocator = self.allocator.lock();
        if allocator.spare.is_some() || allocator.manifest.extents().uses.len() < SPARE_FROM {
            return Ok(());
        }
        match self.prepare_extents(&mut allocator, 1) {
            Err(Error::DiskFull { .. }) => {}
            prepared => allocator.spare = prepared?.pop(),
        }
        Ok(())
    }

    /// Lets go of the extent that was set aside, to be given back with others that were freed. The
    /// store is being closed: space for evictions, which come before any compaction on a full
    /// disk, is given back too.
    pub(crate) fn release_spare(&self) {
        let mut allocator = self.allocator.lock();
        if self.setup.options.compaction.space != SpaceReturn::Keep
            && let Some(spare) = allocator.spare.take()
        {
            allocator.let_go(spare);
        }
    }
}

impl Allocator {
    /// Lets go of the extent that was set aside, if it keeps the file from getting shorter.
    pub(crate) fn release_last_spare(&mut self) {
        if let Some(spare) = self.spare.take_if(|spare| Some(*spare) == self.manifest.last_in_use())
        {
            self.let_go(spare);
        }
    }
}
