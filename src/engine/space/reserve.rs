//! The compaction reserve: one extent that is set aside, so that compaction can free space on a
//! full disk where segments are only partly dead. Compaction must write before it frees.
//!
//! The extent is allocated. The manifest does not know it, so recovery has nothing to do for it.

use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::SpaceReturn;
use crate::engine::space::Space;
use crate::error::{Error, Result};

/// Stores that use fewer extents have no reserve, since it would enlarge them too much.
const RESERVE_FROM: usize = 8;

impl Space {
    /// Sets the reserve aside if there is none and the store is large enough. No space is not an
    /// error; the next segment tries again.
    pub(crate) fn keep_reserve(&self) -> Result<()> {
        let mut allocator = self.allocator.lock();
        if allocator.compaction_reserve.is_some()
            || allocator.manifest.extents().uses.len() < RESERVE_FROM
        {
            return Ok(());
        }
        self.setup.watch_failure(Activity::Reserve, || {
            match self.prepare_extents(&mut allocator, 1) {
                Err(Error::DiskFull { .. }) => {}
                prepared => allocator.compaction_reserve = prepared?.pop(),
            }
            Ok(())
        })
    }

    /// Gives the reserve back when the store is closed; it is released like other freed extents.
    /// Closing also releases the space for evictions, which on a full disk come before any
    /// compaction.
    pub(crate) fn release_reserve(&self) {
        let mut allocator = self.allocator.lock();
        if self.setup.options.compaction.space != SpaceReturn::Keep
            && let Some(extent) = allocator.compaction_reserve.take()
        {
            allocator.let_go(extent);
        }
    }
}
