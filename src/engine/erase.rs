//! Deleting a run so that no byte of its payloads is left in the file.

use std::sync::Arc;

use super::compact::{Attempt, Compacting, Goal};
use super::options::Rate;
use super::recovery::rebuild_directory;
use super::shared::Engine;
use crate::error::{Damage, Error, Place, Result};
use crate::gc::Rule;
use crate::types::{RunRef, SegmentId};

/// How often moving a segment is tried. It fails while large records are being written, again and
/// again if there are always some.
const TRIES: usize = 4;

impl Engine {
    /// Deletes a run, and moves everything else out of the segments that have bytes of it, until
    /// none is left in the file; answers its payload bytes and the extents that somebody reads.
    pub(crate) fn erase(self: &Arc<Self>, run: RunRef<'_>) -> Result<(u64, u64)> {
        let run_no = {
            let core = self.core.lock();
            self.check_open(&core)?;
            self.resolve(&core, run)?
        };
        let bytes = self.delete(run, Rule::Erased)?;
        let mut compacting = self.compacting.lock();
        compacting.begin(Rate::Unlimited);
        {
            let mut core = self.core.lock();
            if core.tail.builder.run(run_no).is_some() {
                core.roll(self)?;
            }
        }
        self.cover_seals()?;
        let catalog = Arc::clone(&self.core.lock().catalog);
        for segment in catalog.segments() {
            let directory = segment.directory(rebuild_directory)?;
            let place = Place::Directory { segment: segment.id() };
            let found =
                directory.find_no(run_no).map_err(|damage| Error::corrupt(place, damage))?;
            let sealed = segment.sealed();
            let has_evidence = sealed.is_some_and(|sealed| sealed.seal > sealed.end);
            if found.is_some() || has_evidence || segment.directory_damage().is_some() {
                let moved = self.vacate(&mut compacting, segment.id())?;
                if !moved {
                    return Err(Error::corrupt(place, Damage::Mismatch));
                }
            }
        }
        drop(catalog);
        self.free_dead()?;
        self.give_back_freed()?;
        self.give_back_all()?;
        let pinned = self.core.lock().retired.len() as u64;
        Ok((bytes, pinned))
    }

    /// Moves everything that lives out of a segment; answers whether that could be done.
    fn vacate(&self, compacting: &mut Compacting, id: SegmentId) -> Result<bool> {
        for _ in 0..TRIES {
            if self.core.lock().catalog.segment(id).is_none() {
                return Ok(true);
            }
            let attempt = self.compact_segments(compacting, &[id], Goal::Erase)?;
            if matches!(attempt, Attempt::Done(_)) {
                return Ok(true);
            }
            // Pieces cannot move while a record that the catalog does not know refers to them.
            self.core.lock().roll(self)?;
            self.cover_seals()?;
            compacting.begin(Rate::Unlimited);
        }
        Ok(false)
    }

    /// Brings the catalog up to the last full segment.
    fn cover_seals(&self) -> Result<()> {
        self.sync_all()?;
        self.note_seals()?;
        self.checkpoint()
    }
}
