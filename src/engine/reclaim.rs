//! Giving the extents of dead segments back: to new segments, and to the file system.
//!
//! Ordering, with what breaks otherwise:
//!
//! 1. The evictions are durable *before* RETIRED (O8): a power cut would bring runs back of which
//!    some segments are gone.
//! 2. The numbers that are in use are durable *before* RETIRED: what said so may be in a segment
//!    that goes, and a run number would be given out again.
//! 3. RETIRED is durable *before* anything of the segment is touched (O6): a power cut would bring
//!    back a segment whose bytes are already somebody else's.
//! 4. Nobody holds the segment *before* its header is zeroed: a reader would see the bytes change.
//! 5. The zeroed header is durable *before* the extent counts as free: without a manifest, salvage
//!    would take the old segment for a living one.
//! 6. A segment with evictions is freed only *after* all others with frames of those runs: a
//!    rebuild would bring the runs back.
//! 7. FREE is durable *before* the file is cut off: the manifest would name extents that are gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::catalog::Catalog;
use super::observer::Activity;
use super::options::SpaceReturn;
use super::receipts::KeptReceipts;
use super::recovery::rebuild_directory;
use super::segment::Segment;
use super::shared::Engine;
use crate::error::{Error, Place, Result};
use crate::format::Directory;
use crate::format::manifest::Change;
use crate::format::segment::SEGMENT_HEADER_LEN;
use crate::gc;
use crate::types::{ExtentNo, RunNo, SegmentId};

/// Extents that are punched out with one call: it costs less than one for each, but appends may
/// wait for it.
const PUNCHED_AT_ONCE: usize = 4;

impl Engine {
    /// Frees every segment that is dead and not needed, as far as nobody reads it.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let _one_at_a_time = self.compacting.lock();
        self.free_dead()
    }

    /// See [`Engine::reclaim`]; for whoever compacts.
    pub(crate) fn free_dead(&self) -> Result<()> {
        let _watch = self.watch(Activity::Reclaim);
        loop {
            let freed = self.free_retired()?;
            let retired = self.retire_dead()?;
            if retired == 0 && freed == 0 {
                return Ok(());
            }
        }
    }

    /// Makes dead segments retired; answers how many.
    fn retire_dead(&self) -> Result<usize> {
        let (catalog, deleted, suspects, waiting) = {
            let core = self.core.lock();
            let waiting: Vec<Arc<Segment>> = core.retired.clone();
            (Arc::clone(&core.catalog), Arc::clone(&core.deleted), core.suspects.clone(), waiting)
        };
        let mut dead = Vec::new();
        let receipts = self.kept_receipts();
        for segment in catalog.segments() {
            if suspects.contains(&segment.id())
                && is_dead(segment, |run_no| deleted.contains(&run_no))?
                && !self.is_needed(segment, catalog.segments(), &waiting, &receipts)?
            {
                dead.push(Arc::clone(segment));
            }
        }
        drop(waiting);
        let mut core = self.core.lock();
        for id in &suspects {
            if catalog.segment(*id).is_some() || Some(*id) <= catalog.through() {
                core.suspects.remove(id);
            }
        }
        if dead.is_empty() {
            return Ok(0);
        }
        drop(core);
        drop(catalog);
        self.sync_all()?;
        self.secure_numbers()?;
        let changes: Vec<Change> =
            dead.iter().map(|segment| Change::Retire { extent: segment.extent() }).collect();
        self.keeper.lock().commit_durably(&changes)?;
        Ok(self.forget(&mut dead))
    }

    /// Takes segments that are retired out of the catalog; answers how many.
    fn forget(&self, dead: &mut Vec<Arc<Segment>>) -> usize {
        let gone: BTreeSet<SegmentId> = dead.iter().map(|segment| segment.id()).collect();
        // Nobody else replaces the catalog while the index is locked.
        let _index = self.index.lock();
        let mut core = self.core.lock();
        let living = core.catalog.segments().iter();
        let living = living.filter(|segment| !gone.contains(&segment.id()));
        let living: Vec<Arc<Segment>> = living.cloned().collect();
        let (through, index) = (core.catalog.through(), core.catalog.index().cloned());
        core.catalog = Arc::new(Catalog::new(living, through, index));
        for segment in dead.iter() {
            segment.note_retired();
        }
        core.retired.append(dead);
        gone.len()
    }

    /// Frees retired segments that nobody holds; answers how many.
    pub(crate) fn free_retired(&self) -> Result<usize> {
        let free: Vec<Arc<Segment>> = {
            let mut core = self.core.lock();
            let (free, held) =
                core.retired.drain(..).partition(|segment| Arc::strong_count(segment) == 1);
            core.retired = held;
            free
        };
        if free.is_empty() {
            return Ok(0);
        }
        let mut forgotten = Vec::new();
        for segment in &free {
            self.disk.write(segment.file_offset(), &[0; SEGMENT_HEADER_LEN as usize])?;
            // What was retired before the store was opened says nothing any more.
            if segment.sealed().is_some_and(|sealed| sealed.has_evictions) {
                let directory = open_directory(segment)?;
                for found in directory.evictions() {
                    let found = found.map_err(|damage| directory_damage(segment, damage))?;
                    forgotten.push(found.run_no);
                }
            }
        }
        self.disk.sync()?;
        let changes: Vec<Change> =
            free.iter().map(|segment| Change::Free { extent: segment.extent() }).collect();
        {
            let mut keeper = self.keeper.lock();
            keeper.commit(&changes)?;
            keeper.freed.extend(free.iter().map(|segment| segment.extent()));
        }
        let still = self.still_evicted(&forgotten)?;
        let mut core = self.core.lock();
        let deleted = Arc::make_mut(&mut core.deleted);
        for run_no in forgotten {
            if !still.contains(&run_no) {
                deleted.remove(&run_no);
            }
        }
        // An eviction in one of these may have been needed for what was just freed.
        let catalog = Arc::clone(&core.catalog);
        let with_evictions = catalog
            .segments()
            .iter()
            .filter(|segment| segment.sealed().is_some_and(|sealed| sealed.has_evictions));
        core.suspects.extend(with_evictions.map(|segment| segment.id()));
        Ok(free.len())
    }

    /// Which of these runs are evicted by a segment that is left: evictions are copied.
    fn still_evicted(&self, runs: &[RunNo]) -> Result<BTreeSet<RunNo>> {
        let mut still = BTreeSet::new();
        if runs.is_empty() {
            return Ok(still);
        }
        let catalog = Arc::clone(&self.core.lock().catalog);
        for segment in catalog.segments() {
            if segment.sealed().is_some_and(|sealed| sealed.has_evictions) {
                let directory = open_directory(segment)?;
                for found in directory.evictions() {
                    still.insert(found.map_err(|damage| directory_damage(segment, damage))?.run_no);
                }
            }
        }
        Ok(still)
    }

    /// Gives the space of what was freed back to the file system, in small steps: it takes longer
    /// than all else that it takes to free them, and who begins a segment may wait for one step.
    pub(crate) fn give_back_freed(&self) -> Result<()> {
        let freed = core::mem::take(&mut self.keeper.lock().freed);
        if freed.is_empty() || self.options.compaction.space == SpaceReturn::Keep {
            return Ok(());
        }
        // What is cut off need not be punched out.
        self.cut_off()?;
        let extents: Vec<ExtentNo> = freed.into_iter().collect();
        for neighbours in extents.chunk_by(|left, right| left.0 + 1 == right.0) {
            for some in neighbours.chunks(PUNCHED_AT_ONCE) {
                self.give_back(some)?;
            }
        }
        Ok(())
    }

    /// Gives the space of extents next to one another back to the file system, without those that
    /// somebody owns by now.
    fn give_back(&self, extents: &[ExtentNo]) -> Result<()> {
        let mut keeper = self.keeper.lock();
        // Locked all the while: nobody may begin to use one in between.
        keeper.sync()?;
        let len = self.disk.len()?;
        let is_free = |extent: &ExtentNo| keeper.manifest.is_free(*extent);
        for some in extents.chunk_by(|left, right| is_free(left) == is_free(right)) {
            let (Some(first), Some(last)) = (some.first(), some.last()) else { continue };
            let at = self.extent_size.offset_of(*first);
            let end = self.extent_size.offset_of(ExtentNo(last.0 + 1)).min(len);
            if is_free(first) && at < end {
                self.disk.punch(at, end - at)?;
            }
        }
        Ok(())
    }

    /// Gives the blocks of all free extents back, whatever the options say.
    pub(crate) fn give_back_all(&self) -> Result<()> {
        let mut keeper = self.keeper.lock();
        keeper.sync()?;
        let len = self.disk.len()?;
        let count = u32::try_from(self.extent_size.extents_in(len)).unwrap_or(u32::MAX);
        for extent in (0..count).map(ExtentNo) {
            if keeper.manifest.is_free(extent) {
                let at = self.extent_size.offset_of(extent);
                let there = len.saturating_sub(at).min(self.extent_size.bytes());
                self.disk.punch(at, there)?;
            }
        }
        self.disk.sync()
    }

    /// Cuts off the free extents at the end of the file.
    pub(crate) fn cut_off(&self) -> Result<()> {
        if self.options.compaction.space != SpaceReturn::Shrink {
            return Ok(());
        }
        loop {
            let mut keeper = self.keeper.lock();
            keeper.release_last_spare();
            let end = keeper.manifest.last_in_use().map_or(0, |extent| extent.0 + 1);
            let end = self.extent_size.offset_of(ExtentNo(end));
            let len = self.disk.len()?;
            if len <= end {
                return Ok(());
            }
            keeper.sync()?;
            let step = PUNCHED_AT_ONCE as u64 * self.extent_size.bytes();
            self.disk.set_len(end.max(len.saturating_sub(step)))?;
        }
    }

    /// Whether a segment lists an eviction that is worth keeping: of a run that another segment
    /// has frames of, or with a receipt that is not too old.
    fn is_needed(
        &self,
        segment: &Arc<Segment>,
        living: &[Arc<Segment>],
        retired: &[Arc<Segment>],
        receipts: &KeptReceipts<'_>,
    ) -> Result<bool> {
        if segment.sealed().is_none_or(|sealed| !sealed.has_evictions) {
            return Ok(false);
        }
        if receipts.bytes_in(segment)? > 0 {
            return Ok(true);
        }
        let evicting = open_directory(segment)?;
        for other in living.iter().chain(retired).filter(|other| other.id() != segment.id()) {
            if other.sealed().is_none() {
                return Ok(true);
            }
            let needed = gc::evicts_from(&evicting, &open_directory(other)?);
            if needed.map_err(|damage| directory_damage(segment, damage))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn open_directory(segment: &Arc<Segment>) -> Result<Directory<'_>> {
    segment.directory(rebuild_directory)
}

fn directory_damage(segment: &Segment, damage: crate::error::Damage) -> Error {
    Error::corrupt(Place::Directory { segment: segment.id() }, damage)
}

fn is_dead(segment: &Arc<Segment>, is_deleted: impl Fn(RunNo) -> bool) -> Result<bool> {
    gc::is_dead(&open_directory(segment)?, is_deleted)
        .map_err(|damage| directory_damage(segment, damage))
}
