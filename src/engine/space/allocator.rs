//! The manifest and the superblock that points to it: which extents are free, and which one is kept
//! for compaction on a full disk.

use std::collections::BTreeSet;

use crate::engine::space::manifest_log::ManifestLog;
use crate::engine::storage::disk::Disk;
use crate::error::Result;
use crate::format::map::manifest::Change;
use crate::format::map::superblock::Superblock;
use crate::format::{PAGE, SUPERBLOCK_AT};
use crate::types::{Epoch, ExtentNo};

/// The manifest and the superblock that points to it.
#[derive(Debug)]
pub(crate) struct Allocator {
    pub(crate) manifest: ManifestLog,
    /// The superblock as it was last written.
    pub(crate) superblock: Superblock,
    pub(crate) disk: Disk,
    /// The extent that is set aside for compaction; it is claimed, and allocated.
    pub(crate) compaction_reserve: Option<ExtentNo>,
    /// Extents that were freed and have blocks of the file system still.
    pub(crate) freed: BTreeSet<ExtentNo>,
    /// So many segments may move to make the file shorter: as many as became free.
    pub(crate) may_move: u64,
}

impl Allocator {
    /// Writes changes of extents; a manifest that moved is made current at once.
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<()> {
        let has_moved = self.manifest.commit(changes)?;
        self.freed.extend(changes.iter().filter_map(|change| match change {
            Change::Free { extent } => Some(*extent),
            _ => None,
        }));
        if has_moved { self.write_superblock(|_| ()) } else { Ok(()) }
    }

    /// Chooses a free extent. That it is free is durable from then on, so that its bytes may be
    /// touched: a power loss would bring back a retired segment that has no blocks any more.
    pub(crate) fn claim(&mut self) -> Result<ExtentNo> {
        self.sync()?;
        Ok(self.manifest.claim())
    }

    /// Gives a claimed extent back, and in time its space.
    pub(crate) fn let_go(&mut self, extent: ExtentNo) {
        self.manifest.unclaim(extent);
        self.freed.insert(extent);
    }

    /// Writes changes and syncs them.
    pub(crate) fn commit_durably(&mut self, changes: &[Change]) -> Result<()> {
        self.commit(changes)?;
        self.sync()
    }

    /// Syncs what was committed.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.manifest.sync()
    }

    /// Writes the superblock, and what of the manifest it does not count yet, again as they were
    /// found: a failed sync may have dropped them.
    pub(crate) fn write_again(&mut self) -> Result<()> {
        let block = self.superblock;
        if block.epoch > Epoch(0) {
            self.disk.write(SUPERBLOCK_AT + block.epoch.0 % 2 * PAGE, &block.encode())?;
        }
        self.manifest.write_again(block.manifest.records)
    }

    /// Has a superblock know of all that was committed, durably.
    pub(crate) fn cover(&mut self) -> Result<()> {
        if self.superblock.manifest == self.manifest.at() {
            return Ok(());
        }
        self.write_superblock(|_| ())
    }

    /// Writes the next superblock into the slot of the older one, and syncs it (O9). If the
    /// manifest has moved, the other slot follows before anything is added to the new area: either
    /// of them may be lost, and the one that is left names the manifest that counts.
    pub(crate) fn write_superblock(&mut self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        self.sync()?;
        let mut next = self.superblock;
        change(&mut next);
        next.manifest = self.manifest.at();
        let has_moved = next.manifest.generation != self.superblock.manifest.generation;
        for _ in 0..=u8::from(has_moved) {
            next.epoch = Epoch(self.superblock.epoch.0.wrapping_add(1));
            let slot = next.epoch.0 % 2;
            self.disk.write(SUPERBLOCK_AT + slot * PAGE, &next.encode())?;
            self.disk.sync()?;
            self.superblock = next;
        }
        Ok(())
    }
}
