//! Deleting a run or a document so that the file contains no byte of its payloads.

use std::sync::Arc;

use crate::engine::compact::{Attempt, Goal};
use crate::engine::read::documents::document_ids;
use crate::engine::reclaim::Compacting;
use crate::engine::retain::Retainer;
use crate::engine::setup::options::Rate;
use crate::engine::state::segment::Segment;
use crate::engine::write::batch::{Batch, Expected};
use crate::error::{Damage, Error, Place, Result};
use crate::format::codec::Decoded;
use crate::format::segments::directory_builder::DirectoryBuilder;
use crate::gc::Rule;
use crate::types::{AgentId, Durability, RunId, RunRef, SegmentId, Version};

/// How often an erase looks again at a document that changes meanwhile, so that it reports the
/// bytes of the version that it deleted. After that it deletes any version: each failed attempt
/// costs a sync.
const TRIES: u32 = 4;

/// What to erase: a run, or all versions of a document. Segments know the names of deleted runs
/// too, so an interrupted erase can be repeated.
struct Erasing {
    /// The agent or the namespace. For a run that does not exist, `None` stands for any agent.
    space: Option<AgentId>,
    id: RunId,
    document: bool,
}

impl Erasing {
    fn is_named(&self, space: &str) -> bool {
        self.space.as_ref().is_none_or(|named| named.as_str() == space)
    }

    fn is_in_tail(&self, tail: &DirectoryBuilder) -> bool {
        let mut same_id =
            tail.runs().iter().map(|run| &run.entry).filter(|entry| entry.run == self.id);
        same_id.any(|run| run.document == self.document && self.is_named(run.agent.as_str()))
    }

    fn is_in(&self, segment: &Segment) -> Result<bool> {
        let id = self.id.as_str();
        segment.in_directory(|directory| match &self.space {
            Some(space) if self.document => {
                Ok(!directory.find_document(space.as_str(), id)?.is_empty())
            }
            _ => {
                let slots = directory.find_run(id)?.into_iter();
                let agents = slots.map(|slot| Ok(directory.ids(slot)?.1));
                Ok(agents.collect::<Decoded<Vec<_>>>()?.iter().any(|agent| self.is_named(agent)))
            }
        })
    }
}

impl Retainer {
    /// Deletes a run, and moves everything else out of the segments with bytes of it, until the
    /// file has none. Returns its payload bytes, and the number of extents with readers. For a run
    /// that was deleted before, it removes the remaining bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] before anything is deleted if a segment is quarantined: it may have bytes
    /// of any run.
    pub(crate) fn erase(&self, run: RunRef<'_>) -> Result<(u64, u64)> {
        self.log.check_directories()?;
        let (space, deleted) = match self.delete(run, Rule::Erased) {
            Ok((agent, bytes)) => (Some(agent), Ok(bytes)),
            Err(Error::RunNotFound { run, agent }) => {
                (agent.clone(), Err(Error::RunNotFound { run, agent }))
            }
            Err(error) => return Err(error),
        };
        let erasing = Erasing { space, id: RunId::new(run.run())?, document: false };
        let (found, pinned) = self.sweep(&erasing)?;
        let bytes = if found { deleted.unwrap_or(0) } else { deleted? };
        Ok((bytes, pinned))
    }

    /// The same for a document: no byte remains of any of its versions, or of an abandoned write.
    /// Returns the payload bytes of the current version; if other calls write the document at the
    /// same time, those of a version that was current just before.
    pub(crate) fn erase_document(&self, name: &str, key: &str) -> Result<(u64, u64)> {
        self.log.check_directories()?;
        let (space, id) = document_ids(name, key)?;
        let mut left = TRIES;
        let bytes = loop {
            let versions = self.log.reader.versions(&space, &id)?;
            let found = versions.current().map(|found| (Version(found.run_no.0), found.bytes));
            let expected = match found {
                _ if left == 0 => Expected::Anything,
                Some((version, _)) => Expected::Version(version),
                None => Expected::Absent,
            };
            let mut batch = Batch::new();
            batch.delete_if(name, key, expected).durability(Durability::Disk);
            match self.commit(&batch) {
                // Another call wrote it meanwhile, and its version must be deleted.
                Err(Error::Conflict { .. }) => left -= 1,
                done => break done.map(|_| found.map_or(0, |(_, bytes)| bytes))?,
            }
        };
        let pinned = self.sweep(&Erasing { space: Some(space), id, document: true })?.1;
        Ok((bytes, pinned))
    }

    /// Moves living runs out of the segments with remains of the erased run or document, and leaves
    /// none of their bytes. Returns whether there were any, and the number of extents that may
    /// still have some, since they have readers. A segment that cannot move, and is not dead, is an
    /// error in the end.
    fn sweep(&self, erasing: &Erasing) -> Result<(bool, u64)> {
        let mut compacting = self.reclaimer.compacting.lock();
        compacting.begin();
        compacting.rate = Rate::Unlimited;
        {
            let mut state = self.log.state.lock();
            if erasing.is_in_tail(&state.tail.builder) {
                self.log.roll(&mut state)?;
            }
        }
        self.checkpoints.cover_seals()?;
        let remains = self.remains(erasing)?;
        let pass = |compacting: &mut Compacting| -> Result<Vec<_>> {
            let left = self.vacate_all(compacting, &remains)?;
            // One in which nothing lives was not vacated.
            self.log.state.lock().suspects.extend(&remains);
            self.reclaimer.free_dead(compacting)?;
            // What closing breaks off says nothing: each of these steps may have done less.
            if self.log.due.is_stopping() { Err(Error::Closed) } else { Ok(left) }
        };
        let mut left = pass(&mut compacting)?;
        if left.iter().any(|(_, why)| why.is_disk_full()) {
            // There may be room now.
            left = pass(&mut compacting)?;
        }
        self.log.space.give_back_freed()?;
        self.log.space.give_back_all()?;
        let (catalog, retired) = {
            let state = self.log.state.lock();
            (Arc::clone(&state.catalog), state.retired.clone())
        };
        if let Some((_, why)) = left.into_iter().find(|(id, _)| catalog.segment(*id).is_some()) {
            return Err(why);
        }
        let mut pinned = 0;
        // Also those of an earlier erasure.
        for segment in &retired {
            // One that was retired before the opening may have bytes of any run.
            pinned += u64::from(segment.sealed().is_none() || erasing.is_in(segment)?);
        }
        Ok((!remains.is_empty() || pinned > 0, pinned))
    }

    /// Moves everything that lives out of these segments. Returns those that stay because they are
    /// damaged or cannot be read, or because there is no room for what lives in them.
    fn vacate_all(
        &self,
        compacting: &mut Compacting,
        ids: &[SegmentId],
    ) -> Result<Vec<(SegmentId, Error)>> {
        let mut left = Vec::new();
        for &id in ids {
            match self.vacate(compacting, id) {
                Err(why @ (Error::Corrupt(_) | Error::DiskFull { .. } | Error::Io { .. })) => {
                    match self.log.disk.check() {
                        // A write that failed ends all.
                        Err(Error::Poisoned) if why.is_io() || why.is_disk_full() => {
                            return Err(why);
                        }
                        checked => checked?,
                    }
                    left.push((id, why));
                }
                done => left.extend(done?.map(|why| (id, why))),
            }
        }
        Ok(left)
    }

    /// The segments with bytes of the erased run or document.
    fn remains(&self, erasing: &Erasing) -> Result<Vec<SegmentId>> {
        let catalog = Arc::clone(&self.log.state.lock().catalog);
        let mut remains = Vec::new();
        for segment in catalog.segments() {
            if self.log.due.is_stopping() {
                return Err(Error::Closed);
            }
            if erasing.is_in(segment)? {
                remains.push(segment.id());
            }
        }
        Ok(remains)
    }

    /// Moves everything that lives out of a segment. Returns why it stays: it is damaged, or the
    /// disk could not read what must move.
    fn vacate(&self, compacting: &mut Compacting, id: SegmentId) -> Result<Option<Error>> {
        if self.log.state.lock().catalog.segment(id).is_none() {
            return Ok(None);
        }
        match self.compactor.compact_segments(compacting, &[id], Goal::Erase)? {
            Attempt::Done(_) => {
                compacting.damaged.remove(&id);
                Ok(None)
            }
            _ if self.log.due.is_stopping() => Err(Error::Closed),
            _ => {
                let damaged = Error::corrupt(Place::Directory { segment: id }, Damage::Mismatch);
                let why = compacting.damaged.get(&id).cloned().flatten().filter(Error::is_io);
                Ok(Some(why.unwrap_or(damaged)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, OnceLock};

    use crate::engine::setup::due::Due;
    use crate::storage::MemoryStorage;
    use crate::{Activity, Durability, Error, Observer, Options, Outcome, Phase};

    /// Closes a store, as another thread would, when a compaction has ended.
    #[derive(Debug, Default)]
    struct Closing(OnceLock<Arc<Due>>);

    impl Observer for Closing {
        fn observe(&self, activity: Activity, phase: Phase<'_>) {
            if activity == Activity::Compaction && matches!(phase, Phase::End(_)) {
                self.0.get().into_iter().for_each(|due| due.stop());
            }
        }
    }

    const SECRET: &[u8] = b"a secret of some length";

    #[test]
    fn an_erase_that_closing_breaks_off_behind_the_move_says_so() {
        let closing = Arc::new(Closing::default());
        let options = Options::new().extent_size(64 << 10).background(false);
        let storage = Arc::new(MemoryStorage::new());
        let log =
            options.clone().observer(closing.clone()).create_storage(storage.clone()).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let _ = run.append(SECRET).unwrap();
        let _ = run.end(&Outcome::completed().durability(Durability::Disk)).unwrap();
        drop(run);
        let other = log.start_run("agent", "other", ()).unwrap();
        (0..20).for_each(|_| drop(other.append(&[7; 8000]).unwrap()));
        closing.0.set(Arc::clone(&log.engine().log.due)).unwrap();
        let broken_off = log.erase_run("run");
        assert!(matches!(broken_off, Err(Error::Closed)), "{broken_off:?}");
        drop(other);
        log.close().unwrap();
        let log = options.open_storage(storage.clone()).unwrap();
        assert!(matches!(log.erase_run("run"), Err(Error::RunNotFound { .. })));
        assert!(storage.to_bytes().windows(SECRET.len()).all(|part| part != SECRET));
    }
}
