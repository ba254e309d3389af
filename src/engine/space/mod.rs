//! Who owns which extent of the file, and what becomes of those that are free.
//!
//! An extent is claimed, allocated, and only then written to, so that a full disk is met in front
//! of a write. What is free is told to the manifest durably before its bytes are touched (O6).

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
    /// Claims so many free extents and makes them ready for segments, or gives all of them back.
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

    /// Makes an extent ready for a segment: nothing of an earlier owner is left in it, and its
    /// space is allocated.
    fn prepare_extent(&self, extent: ExtentNo) -> Result<()> {
        let (at, len) = (self.setup.extent_size.offset_of(extent), self.setup.extent_size.bytes());
        let there = self.disk.len()?.saturating_sub(at).min(len);
        if there > 0 {
            // What an earlier owner left would not check, but it would look like a torn tail.
            self.disk.punch(at, there)?;
        }
        self.disk.allocate(at, len)
    }
}
