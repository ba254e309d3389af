//! Deleting a run so that no byte of its payloads is left in the file.

use std::sync::Arc;

use super::compact::{Attempt, Goal};
use super::recovery::rebuild_directory;
use super::shared::Engine;
use crate::error::{Damage, Error, Place, Result};
use crate::gc::Rule;
use crate::types::RunRef;

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
        compacting.begin(None);
        {
            let mut core = self.core.lock();
            if core.tail.builder.run(run_no).is_some() {
                core.roll(self)?;
            }
        }
        self.sync_all()?;
        self.note_seals()?;
        self.checkpoint()?;
        let catalog = Arc::clone(&self.core.lock().catalog);
        for segment in catalog.segments() {
            let directory = segment.directory(rebuild_directory)?;
            let place = Place::Directory { segment: segment.id() };
            let found =
                directory.find_no(run_no).map_err(|damage| Error::corrupt(place, damage))?;
            let sealed = segment.sealed();
            let has_evidence = sealed.is_some_and(|sealed| sealed.seal > sealed.end);
            if found.is_some() || has_evidence || segment.directory_damage().is_some() {
                let goal = Goal::Erase;
                let still = self.core.lock().catalog.segment(segment.id()).is_some();
                let wanted = [segment.id()];
                let moved = !still
                    || matches!(
                        self.compact_segments(&mut compacting, &wanted, goal)?,
                        Attempt::Done(_)
                    );
                if !moved {
                    return Err(Error::corrupt(place, Damage::Mismatch));
                }
            }
        }
        drop(catalog);
        self.free_dead()?;
        self.give_back_all()?;
        let pinned = self.core.lock().retired.len() as u64;
        Ok((bytes, pinned))
    }
}
