//! Free extents, the manifest with the superblock that points to it, and the compaction reserve.

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
    /// The superblock as it was last written, or, until recovery writes it, is to be.
    pub(crate) superblock: Superblock,
    pub(crate) disk: Disk,
    /// The compaction reserve: an extent that is claimed and allocated.
    pub(crate) compaction_reserve: Option<ExtentNo>,
    /// Whether free extents stay as they are.
    pub(crate) keeps: bool,
    /// Free extents of which the bytes must go, and their blocks to the file system: all that may
    /// have some, or, if free extents stay as they are, those of which that is not enough.
    pub(crate) freed: BTreeSet<ExtentNo>,
    /// How many segments may move to shorten the file: one for each extent that became free.
    pub(crate) may_move: u64,
}

impl Allocator {
    /// Writes changes of extents. A manifest that moved is made current by a superblock.
    pub(crate) fn commit(&mut self, changes: &[Change]) -> Result<()> {
        let has_moved = self.manifest.commit(changes)?;
        self.freed.extend(changes.iter().filter_map(|change| match change {
            Change::Free { extent } if !self.keeps => Some(*extent),
            _ => None,
        }));
        if has_moved { self.write_superblock(|_| ()) } else { Ok(()) }
    }

    /// Chooses a free extent, and removes what an earlier owner left in it: that would not be
    /// valid, but would look like a torn tail. It is first made durable that the extent is free, so
    /// that its bytes may be touched: otherwise a power loss could bring back a retired segment
    /// whose blocks are gone.
    pub(crate) fn claim(&mut self) -> Result<ExtentNo> {
        self.sync()?;
        let extent = self.manifest.claim();
        let emptied = self.punch(extent, 1);
        if emptied.is_err() {
            self.let_go(extent);
        }
        emptied.map(|()| extent)
    }

    /// Punches out adjacent extents without an owner, as far as they lie within the file.
    pub(crate) fn punch(&self, first: ExtentNo, count: u64) -> Result<()> {
        let size = self.superblock.extent_size;
        let at = size.offset_of(first);
        let there = self.disk.len()?.saturating_sub(at).min(count * size.bytes());
        if there == 0 { Ok(()) } else { self.disk.punch(at, there) }
    }

    /// Gives a claimed extent back; its space follows later.
    pub(crate) fn let_go(&mut self, extent: ExtentNo) {
        self.manifest.unclaim(extent);
        self.freed.insert(extent);
    }

    /// Writes changes and syncs them.
    pub(crate) fn commit_durably(&mut self, changes: &[Change]) -> Result<()> {
        self.commit(changes)?;
        self.sync()
    }

    /// Syncs the commits.
    pub(crate) fn sync(&mut self) -> Result<()> {
        self.manifest.sync()
    }

    /// Writes the superblock, and the records of the manifest that it does not count, again as they
    /// were found: a failed sync may have dropped them (O19).
    pub(crate) fn write_again(&mut self, uncounted: &[u8]) -> Result<()> {
        let slot = self.superblock.epoch.0 % 2;
        self.disk.write(SUPERBLOCK_AT + slot * PAGE, &self.superblock.encode())?;
        self.manifest.write_again(uncounted)
    }

    /// Makes sure that a durable superblock covers all commits.
    pub(crate) fn cover(&mut self) -> Result<()> {
        if self.superblock.manifest == self.manifest.at() {
            return Ok(());
        }
        self.write_superblock(|_| ())
    }

    /// Writes the next superblock into the slot of the older one, and syncs it (O9). If the
    /// manifest has moved, it also writes the other slot before anything is added: either slot may
    /// be lost, and the remaining one names the current manifest.
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
