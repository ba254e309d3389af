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
use crate::engine::setup::observer::Activity;
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
    /// Claims `count` free extents for segments, and allocates their space; on an error, none.
    pub(crate) fn prepare_extents(
        &self,
        allocator: &mut Allocator,
        count: usize,
    ) -> Result<Vec<ExtentNo>> {
        let (size, mut extents) = (self.setup.extent_size, Vec::with_capacity(count));
        let prepared = (0..count).try_for_each(|_| {
            let extent = allocator.claim()?;
            extents.push(extent);
            self.disk.allocate(size.offset_of(extent), size.bytes())
        });
        if prepared.is_err() {
            for extent in &extents {
                allocator.let_go(*extent);
            }
            // A file system may keep the part that it had allocated within the file.
            if let Some(last) = extents.last() {
                let _ = self.setup.watch_failure(Activity::GiveBack, || allocator.punch(*last, 1));
            }
        }
        prepared.map(|()| extents)
    }
}
