//! Giving the extents of dead segments back, so that new segments use them again.
//!
//! Ordering, with what breaks otherwise:
//!
//! 1. The evictions are durable *before* RETIRED (O8): a power cut would bring runs back of which
//!    some segments are gone.
//! 2. RETIRED is durable *before* anything of the segment is touched (O6): a power cut would bring
//!    back a segment whose bytes are already somebody else's.
//! 3. Nobody holds the segment *before* its header is zeroed: a reader would see the bytes change.
//! 4. The zeroed header is durable *before* the extent counts as free: without a manifest, salvage
//!    would take the old segment for a living one.
//! 5. A segment with evictions is freed only *after* all older ones with frames of those runs: a
//!    rebuild would bring the runs back.

use std::sync::Arc;

use super::catalog::Catalog;
use super::observer::Activity;
use super::recovery::rebuild_directory;
use super::segment::Segment;
use super::shared::Engine;
use crate::error::{Error, Place, Result};
use crate::format::Directory;
use crate::format::manifest::Change;
use crate::format::segment::SEGMENT_HEADER_LEN;
use crate::gc;
use crate::types::RunNo;

impl Engine {
    /// Frees every segment that is dead and not needed, as far as nobody reads it.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let _one_at_a_time = self.index.lock();
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
        for segment in catalog.segments() {
            if suspects.contains(&segment.id())
                && is_dead(segment, |run_no| deleted.contains(&run_no))?
                && !is_needed(segment, catalog.segments(), &waiting)?
            {
                dead.push(Arc::clone(segment));
            }
        }
        drop(waiting);
        let mut core = self.core.lock();
        for id in &suspects {
            if Some(*id) <= catalog.through() {
                core.suspects.remove(id);
            }
        }
        if dead.is_empty() {
            return Ok(0);
        }
        drop(core);
        self.sync_all()?;
        let changes: Vec<Change> =
            dead.iter().map(|segment| Change::Retire { extent: segment.extent() }).collect();
        self.keeper.lock().commit_durably(&changes)?;
        let mut core = self.core.lock();
        // The index lock is held, so that nobody else replaced the catalog.
        let living = catalog.segments().iter();
        let living = living.filter(|segment| dead.iter().all(|other| other.id() != segment.id()));
        let living: Vec<Arc<Segment>> = living.cloned().collect();
        let index = catalog.index().cloned();
        core.catalog = Arc::new(Catalog::new(living, catalog.through(), index));
        let count = dead.len();
        core.retired.append(&mut dead);
        Ok(count)
    }

    /// Frees retired segments that nobody holds; answers how many.
    fn free_retired(&self) -> Result<usize> {
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
            if segment.sealed().is_none() {
                // Retired before the store was opened: what it said is not known any more.
                continue;
            }
            let directory = open_directory(segment)?;
            for index in 0..directory.eviction_count() {
                let run_no = directory.eviction(index);
                forgotten.push(run_no.map_err(|damage| directory_damage(segment, damage))?);
            }
        }
        self.disk.sync()?;
        let changes: Vec<Change> =
            free.iter().map(|segment| Change::Free { extent: segment.extent() }).collect();
        self.keeper.lock().commit(&changes)?;
        let mut core = self.core.lock();
        let deleted = Arc::make_mut(&mut core.deleted);
        for run_no in forgotten {
            deleted.remove(&run_no);
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

/// Whether a segment lists an eviction of a run that an older segment still has frames of.
fn is_needed(
    segment: &Arc<Segment>,
    living: &[Arc<Segment>],
    retired: &[Arc<Segment>],
) -> Result<bool> {
    if segment.sealed().is_none_or(|sealed| !sealed.has_evictions) {
        return Ok(false);
    }
    let younger = open_directory(segment)?;
    for older in living.iter().chain(retired).filter(|other| other.id() < segment.id()) {
        if older.sealed().is_none() {
            return Ok(true);
        }
        let needed = gc::evicts_from(&younger, &open_directory(older)?);
        if needed.map_err(|damage| directory_damage(segment, damage))? {
            return Ok(true);
        }
    }
    Ok(false)
}
