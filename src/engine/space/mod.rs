//! The owners of the file's extents, and the release of free ones.
//!
//! An extent is claimed, then allocated, and only then written, so a full disk is noticed before a
//! write. The manifest durably knows an extent as free before its bytes are touched (O6).

pub(crate) mod allocator;
pub(crate) mod manifest_log;
pub(crate) mod release;
pub(crate) mod reserve;

use std::sync::Arc;

use crate::engine::setup::Setup;
use crate::engine::setup::due::Due;
use crate::engine::setup::locks::Ranked;
use crate::engine::space::allocator::Allocator;
use crate::engine::storage::disk::Disk;
use crate::error::Result;
use crate::types::ExtentNo;

/// The extents of the file.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) setup: Arc<Setup>,
    pub(crate) due: Arc<Due>,
    pub(crate) disk: Disk,
    pub(crate) allocator: Ranked<Allocator>,
}

impl Space {
    /// Claims and prepares `count` free extents for segments; on an error, none.
    pub(crate) fn prepare_extents(
        &self,
        allocator: &mut Allocator,
        count: usize,
    ) -> Result<Vec<ExtentNo>> {
        allocator.sync()?;
        let extents: Vec<_> = (0..count).map(|_| allocator.manifest.claim()).collect();
        let prepared = extents.iter().try_for_each(|extent| self.prepare_extent(*extent));
        if prepared.is_err() {
            for extent in &extents {
                allocator.let_go(*extent);
            }
        }
        prepared.map(|()| extents)
    }

    /// Prepares an extent: removes what an earlier owner left in it, and allocates its space.
    fn prepare_extent(&self, extent: ExtentNo) -> Result<()> {
        let (at, len) = (self.setup.extent_size.offset_of(extent), self.setup.extent_size.bytes());
        let there = self.disk.len()?.saturating_sub(at).min(len);
        if there > 0 {
            // Remains of an earlier owner would not be valid, but would look like a torn tail.
            self.disk.punch(at, there)?;
        }
        self.disk.allocate(at, len)
    }
}
