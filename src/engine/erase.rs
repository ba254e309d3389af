//! Deleting a run, or a document, so that no byte of its payloads is left in the file.

use std::sync::Arc;

use super::batch::{Batch, document_ids};
use super::compact::{Attempt, Compacting, Goal};
use super::options::Rate;
use super::recovery::rebuild_directory;
use super::shared::Engine;
use crate::error::{Damage, Error, Place, Result};
use crate::format::Directory;
use crate::format::codec::Decoded;
use crate::format::directory_builder::DirectoryBuilder;
use crate::gc::Rule;
use crate::types::{Durability, RunRef, SegmentId};

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
        let pinned = self.sweep(
            |tail| tail.run(run_no).is_some(),
            |directory| Ok(directory.find_no(run_no)?.is_some()),
        )?;
        Ok((bytes, pinned))
    }

    /// The same for a document: no byte of any of its versions is left, nor of a write of it that
    /// was given up half-way. Answers the payload bytes of the version that was there.
    pub(crate) fn erase_document(self: &Arc<Self>, name: &str, key: &str) -> Result<(u64, u64)> {
        let (space, id) = document_ids(name, key)?;
        let bytes = {
            let core = self.core.lock();
            self.check_open(&core)?;
            let numbers = self.version_numbers(&core, &space, &id)?;
            self.current_version(&core, &numbers)?.map_or(0, |row| row.bytes)
        };
        self.commit_batch(Batch::new().delete(name, key).durability(Durability::Disk))?;
        // Versions are evicted and forgotten one by one; the segments still know the names.
        let pinned = self.sweep(
            |tail| {
                let mut runs = tail.runs().iter().map(|built| &built.entry);
                runs.any(|entry| entry.document && entry.run == id && entry.agent == space)
            },
            |directory| {
                for slot in directory.find_id(id.as_str())? {
                    if directory.is_document(slot)? && directory.ids(slot)?.1 == space.as_str() {
                        return Ok(true);
                    }
                }
                Ok(false)
            },
        )?;
        Ok((bytes, pinned))
    }

    /// Moves what lives out of the segments that have something of what was deleted, and leaves
    /// nothing of their bytes; answers the extents that somebody reads.
    fn sweep(
        self: &Arc<Self>,
        tail_has: impl Fn(&DirectoryBuilder) -> bool,
        has: impl Fn(&Directory<'_>) -> Decoded<bool>,
    ) -> Result<u64> {
        let mut compacting = self.compacting.lock();
        compacting.begin(Rate::Unlimited);
        {
            let mut core = self.core.lock();
            if tail_has(&core.tail.builder) {
                core.roll(self)?;
            }
        }
        self.cover_seals()?;
        let catalog = Arc::clone(&self.core.lock().catalog);
        for segment in catalog.segments() {
            let directory = segment.directory(rebuild_directory)?;
            let place = Place::Directory { segment: segment.id() };
            let found = has(&directory).map_err(|damage| Error::corrupt(place, damage))?;
            let sealed = segment.sealed();
            let has_evidence = sealed.is_some_and(|sealed| sealed.seal > sealed.end);
            if found || has_evidence || segment.directory_damage().is_some() {
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
        Ok(self.core.lock().retired.len() as u64)
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
