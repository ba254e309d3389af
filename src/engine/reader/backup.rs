//! A copy of a store as of one moment, while it is written: segment by segment, each checked. What
//! an earlier copy in the same file has stays where it is.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::engine::reader::Replica;
use crate::engine::reader::copied::{Copied, segments};
use crate::engine::reader::target::{Has, Target};
#[cfg(any(test, feature = "unstable-internals"))]
use crate::engine::storage::Storage;
#[cfg(any(test, feature = "unstable-internals"))]
use crate::engine::storage::disk::Disk;
use crate::engine::storage::{Creation, FileStorage, OpenedFile};
use crate::error::{Corruption, Error, Result};
use crate::format::map::manifest::{Change, SealedAt};
use crate::format::map::superblock::{FLAG_CLEAN, FLAG_COPY};
use crate::types::{ExtentNo, LogPosition};

/// How often the copy goes on from a later moment, because the writer has moved what was to be
/// copied.
const MOMENTS: usize = 64;

/// Where the log ends. The ids of outputs say nothing about its order.
fn end_of(wanted: &[Copied]) -> LogPosition {
    let last = wanted.iter().rfind(|one| !one.segment.is_output());
    last.map_or(LogPosition::default(), |one| {
        let whole = one.segment.extent_size().bytes_u32();
        one.segment.position(one.sealed.map_or(one.end, |_| whole))
    })
}

/// What a backup copied.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "what could not be read whole is in the report"]
pub struct Backup {
    /// Segments that were copied.
    pub copied_segments: u64,
    /// The bytes of these.
    pub copied_bytes: u64,
    /// Segments that the file had already.
    pub kept_segments: u64,
    /// Everything in front of this position is in the copy, and survives power loss there.
    pub end: LogPosition,
    /// Damage of the store: of what was copied, which the copy has as it is, and what
    /// [`Reader::recovery_report`](crate::Reader::recovery_report) names.
    pub damaged: Vec<Corruption>,
}

/// Copies the store to `path`.
pub(crate) fn backup(source: &Replica, path: &Path) -> Result<Backup> {
    match FileStorage::open_locked(path) {
        Err(Error::NotFound { .. }) => {
            let creation = Creation::begin(path)?;
            let storage = Arc::<FileStorage>::clone(creation.storage());
            let mut report = Backup::default();
            let mut target = Target::new(source, storage)?;
            target.fill(source, &mut report)?;
            drop(target);
            drop(creation.finish()?);
            Ok(report)
        }
        Ok(OpenedFile::Locked(storage)) => {
            let taken = || Error::AlreadyExists { path: path.to_owned() };
            let mut target = Target::open(source, Arc::new(storage))?.ok_or_else(taken)?;
            let mut report = Backup::default();
            target.fill(source, &mut report)?;
            Ok(report)
        }
        Ok(OpenedFile::Busy(_)) => Err(Error::Busy { path: path.to_owned(), owner: None }),
        Err(error) => Err(error),
    }
}

/// The same into a storage: an empty one, or one that has an earlier copy.
#[cfg(any(test, feature = "unstable-internals"))]
pub(crate) fn backup_to_storage(source: &Replica, storage: Arc<dyn Storage>) -> Result<Backup> {
    let is_empty = Disk::new(Arc::clone(&storage)).len()? == 0;
    let mut target = if is_empty {
        Target::new(source, storage)?
    } else {
        let what = "the storage must be empty or have an earlier copy of this store";
        Target::open(source, storage)?.ok_or(Error::InvalidArgument { what })?
    };
    let mut report = Backup::default();
    target.fill(source, &mut report)?;
    Ok(report)
}

impl Target {
    /// Copies what the file does not have, until all of one moment is there, and makes it count.
    fn fill(&mut self, source: &Replica, report: &mut Backup) -> Result<()> {
        source.refresh()?;
        for _ in 0..MOMENTS {
            let wanted = segments(source)?;
            if !self.is_new {
                // The earlier copy may have what the store has lost.
                if let Some(damage) = source.lost_end() {
                    return Err(Error::Damaged(damage));
                }
                self.state_less(source, end_of(&wanted))?;
            }
            if self.copy_all(source, &wanted, report)? {
                return self.make_it_count(source, &wanted, report);
            }
        }
        Err(Error::Overtaken { attempts: MOMENTS as u64 })
    }

    /// Prepares both superblocks of an earlier copy before anything is copied. They state no
    /// durable position behind the end of the new copy, and know the numbers of all segments to be
    /// copied: frames of a segment that they do not know, in a free extent, would tell of a lost
    /// manifest.
    fn state_less(&mut self, source: &Replica, end: LogPosition) -> Result<()> {
        let next = source.superblock()?.next_segment;
        for _ in 0..2 {
            self.allocator.write_superblock(|block| {
                block.durable = block.durable.min(end);
                block.next_segment = block.next_segment.max(next);
            })?;
        }
        Ok(())
    }

    /// Copies what the file does not have into free extents. Returns false if the writer has moved
    /// a segment before it was read.
    fn copy_all(
        &mut self,
        source: &Replica,
        wanted: &[Copied],
        report: &mut Backup,
    ) -> Result<bool> {
        report.kept_segments = 0;
        for one in wanted {
            if self.has_same(one).is_some() {
                report.kept_segments += u64::from(!self.copied.contains_key(&one.key()));
                continue;
            }
            let mut damaged = Vec::new();
            let bytes = one.read(&mut damaged)?;
            if !damaged.is_empty() && !source.holds(&one.segment)? {
                return Ok(false);
            }
            if let Some(before) = self.copied.remove(&one.key()) {
                self.allocator.let_go(before.extent);
            }
            let extent = self.allocator.claim()?;
            let has = Has { extent, sealed: one.sealed, damaged };
            self.copied.insert(one.key(), has);
            self.disk.write(one.segment.extent_size().offset_of(extent), &bytes)?;
            report.copied_segments += 1;
            report.copied_bytes += bytes.len() as u64;
        }
        Ok(true)
    }

    /// What the file has of a segment, if that is the same as in the store: a segment that is
    /// sealed there, with the same end and directory. Before its SEAL record is durable, a power
    /// loss may leave another segment with the same id and salt.
    fn has_same(&self, one: &Copied) -> Option<&Has> {
        let at = one.sealed.filter(|_| one.is_final)?;
        let is_same = |has: &&Has| has.sealed.is_some_and(|sealed: SealedAt| sealed.is_same(&at));
        let key = one.key();
        self.copied.get(&key).or_else(|| self.earlier.get(&key)).filter(is_same)
    }

    /// Makes what was copied the state of the file, durably, and frees what it does not need.
    fn make_it_count(
        &mut self,
        source: &Replica,
        wanted: &[Copied],
        report: &mut Backup,
    ) -> Result<()> {
        let is_kept = |one: &&Copied| !self.copied.contains_key(&one.key());
        let kept: BTreeSet<_> = wanted.iter().filter(is_kept).map(Copied::key).collect();
        let gone = self.earlier.iter().filter(|(key, _)| !kept.contains(*key));
        let mut changes: Vec<Change> =
            gone.map(|(_, has)| Change::Free { extent: has.extent }).collect();
        report.damaged.clone_from(&source.report().damaged);
        for one in wanted {
            let Some(has) = self.copied.remove(&one.key()) else { continue };
            let (extent, segment) = (has.extent, one.segment.id());
            let (salt, purpose) = (one.segment.key().salt, one.segment.purpose());
            changes.push(Change::Reserve { extent, segment, salt, purpose });
            changes.extend(has.sealed.map(|at| Change::Seal { extent, segment, at }));
            let known = core::mem::take(&mut report.damaged);
            let is_new = |found: &Corruption| known.iter().all(|known| known.place != found.place);
            let new: Vec<_> = has.damaged.into_iter().filter(is_new).collect();
            report.damaged = known.into_iter().chain(new).collect();
        }
        for has in core::mem::take(&mut self.copied).into_values() {
            self.allocator.let_go(has.extent);
        }
        self.disk.sync()?;
        self.allocator.commit_durably(&changes)?;
        let (now, end) = (source.superblock()?, end_of(wanted));
        self.allocator.write_superblock(|block| {
            block.flags = FLAG_CLEAN | FLAG_COPY;
            block.durable = end;
            (block.next_run_no, block.next_lsn) = (now.next_run_no, now.next_lsn);
            (block.next_segment, block.dead) = (now.next_segment, now.dead);
        })?;
        self.clear_free()?;
        report.end = end;
        Ok(())
    }

    /// Removes the bytes of all free extents: also of runs that were erased, and what an update
    /// that broke off has left.
    fn clear_free(&mut self) -> Result<()> {
        let end = self.allocator.manifest.end_in_use();
        if self.disk.len()? > end {
            self.disk.set_len(end)?;
        }
        let size = self.allocator.superblock.extent_size;
        let free = self.allocator.manifest.extents().free_within(size, end);
        let free: Vec<ExtentNo> = free.into_iter().collect();
        for row in free.chunk_by(|one, next| one.0 + 1 == next.0) {
            let first = row.first().copied().unwrap_or_default();
            self.allocator.punch(first, row.len() as u64)?;
        }
        self.disk.sync()
    }
}
