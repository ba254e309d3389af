//! What all handles of one open store share, and the steps that touch several parts of it.
//!
//! Locks are taken in this order: compacting, index, noting, rows, core, reserved, keeper; then
//! those within the disk, the commit queue and the turns.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::commit::CommitQueue;
use super::compact::Compacting;
use super::core::Core;
use super::disk::{Disk, OnPoison};
use super::index_slot::IndexSlot;
use super::manifest_log::ManifestLog;
use super::observer::{Activity, Watch};
use super::options::Options;
use super::report::RecoveryReport;
use super::segment::{Mark, Segment};
use super::turns::Turns;
use super::upkeep::{Upkeep, Wanted};
use crate::error::{Error, IoAction, Result};
use crate::format::frame::SegmentKey;
use crate::format::manifest::Change;
use crate::format::segment::{Purpose, SegmentHeader};
use crate::format::superblock::{FLAG_CLEAN, Superblock};
use crate::format::{ExtentSize, PAGE, SUPERBLOCK_AT};
use crate::types::{Durability, Epoch, ExtentNo, Lsn, RunNo, SegmentId, Timestamp};

/// An open store.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) disk: Disk,
    pub(crate) options: Options,
    pub(crate) path: Option<PathBuf>,
    pub(crate) uuid: [u8; 16],
    pub(crate) extent_size: ExtentSize,
    /// Held by the one who moves, retires or frees segments.
    pub(crate) compacting: Mutex<Compacting>,
    pub(crate) index: Mutex<IndexSlot>,
    /// Held by the one who tells the manifest of sealed segments.
    pub(crate) noting: Mutex<()>,
    /// Held by the one who writes a large record in pieces.
    pub(crate) rows: Mutex<()>,
    pub(crate) core: Mutex<Core>,
    /// Threads that wait for the core to append to it.
    pub(crate) turns: Turns,
    /// Segments that are set aside for when the tail's is full, in the order of their numbers;
    /// locked while another one is in the background.
    pub(crate) reserved: Mutex<VecDeque<Arc<Segment>>>,
    pub(crate) keeper: Arc<Mutex<Keeper>>,
    pub(crate) commit: CommitQueue,
    pub(crate) upkeep: Upkeep,
    pub(crate) report: RecoveryReport,
    /// A sealed segment waits for the sync that covers it.
    pub(crate) sealing: AtomicBool,
}

/// The manifest and the superblock that points to it.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) manifest: ManifestLog,
    /// The superblock as it was last written.
    pub(crate) superblock: Superblock,
    pub(crate) disk: Disk,
    /// The extent that is set aside for compaction; it is claimed, and allocated.
    pub(crate) spare: Option<ExtentNo>,
    /// Extents that were freed and have blocks of the file system still.
    pub(crate) freed: BTreeSet<ExtentNo>,
    /// So many segments may move to make the file shorter: as many as became free.
    pub(crate) may_move: u64,
}

impl Keeper {
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

impl OnPoison for Engine {
    fn poisoned(&self) {
        self.commit.fail();
    }
}

impl Engine {
    pub(crate) fn watch(&self, activity: Activity) -> Watch {
        Watch::begin(self.options.observer.as_ref(), activity)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.options.environment.clock.now()
    }

    /// Returns once everything that was written so far is durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.commit.sync_through(self, self.commit.written())
    }

    /// What a call at this level tells: a refusal that rests on what others wrote is told once that
    /// is durable, so that no power loss makes it untrue.
    pub(crate) fn told<T>(&self, result: Result<T>, level: Durability) -> Result<T> {
        let rests_on_writes = |error: &Error| {
            matches!(
                error,
                Error::Conflict { .. }
                    | Error::Evicted { .. }
                    | Error::RunEnded { .. }
                    | Error::RunExists { .. }
                    | Error::RunHeld { .. }
                    | Error::RunInProgress { .. }
                    | Error::RunNotFound { .. }
            )
        };
        if level == Durability::Disk && result.as_ref().is_err_and(rests_on_writes) {
            self.sync_all()?;
        }
        result
    }

    /// Tells the manifest of segments whose seal is durable now.
    pub(crate) fn note_synced(&self) {
        if self.sealing.swap(false, Ordering::AcqRel) {
            // A failure poisons the disk, so that it is told by whatever is tried next; what was
            // synced is durable all the same.
            let _ = self.note_seals();
        }
    }

    /// See [`Engine::note_synced`].
    pub(crate) fn note_seals(&self) -> Result<()> {
        // A second one would overtake: the manifest must know the older segments first, since
        // recovery takes what it knows as sealed for older than everything else.
        let _one_at_a_time = self.noting.lock();
        let (durable, size) = (self.commit.durable(), self.extent_size.bytes_u32());
        let unknown = |segment: &&Arc<Segment>| !segment.is(Mark::Durable);
        let waiting: Vec<Arc<Segment>> =
            self.core.lock().unapplied.iter().filter(unknown).cloned().collect();
        let is_covered = |segment: &&Arc<Segment>| segment.position(size) <= durable;
        let covered: Vec<_> = waiting.iter().take_while(is_covered).collect();
        let changes: Vec<Change> = covered.iter().filter_map(|segment| segment.sealing()).collect();
        let noted = if changes.is_empty() { Ok(()) } else { self.keeper.lock().commit(&changes) };
        if waiting.len() > covered.len() || noted.is_err() {
            // The next sync comes back to them.
            self.sealing.store(true, Ordering::Release);
        }
        noted?;
        if !covered.is_empty() {
            for segment in covered {
                segment.note(Mark::Durable);
            }
            self.upkeep.want(Wanted::CHECKPOINT);
        }
        Ok(())
    }

    /// The segment that the log goes on in: the next of those that are set aside, or else one that
    /// is made while the core is locked.
    pub(crate) fn next_segment(&self, core: &mut Core) -> Result<Arc<Segment>> {
        // One may be on its way. It must be used first: the order of the log is the order of the
        // numbers, and an unused segment in front of a used one would look like a lost one.
        let mut reserved = self.reserved.lock();
        let next = reserved.pop_front();
        core.has_next = !reserved.is_empty();
        drop(reserved);
        if let Some(next) = next {
            return Ok(next);
        }
        let id = core.take_segment_id()?;
        self.reserve(id, core.next_numbers()).inspect_err(|error| {
            // Nothing refers to the number yet.
            core.next_segment = id;
            let tail = core.tail.segment.id();
            if error.is_disk_full() && core.suspects.iter().any(|suspect| *suspect != tail) {
                // What is dead there is the space for the next try.
                self.upkeep.want(Wanted::COMPACT);
            }
        })
    }

    /// Prepares an extent as a segment of the log: allocates it, writes its header, and makes both
    /// and the manifest's record durable (O4).
    pub(crate) fn reserve(&self, id: SegmentId, next: (RunNo, Lsn)) -> Result<Arc<Segment>> {
        let _watch = self.watch(Activity::Reserve);
        let written = self.commit.written();
        let reserved = self.set_aside(&[id], Purpose::Log, next)?.pop().ok_or(Error::Poisoned)?;
        // The sync of the record covers the log too: so the seals of earlier segments become known
        // soon, and an open after a crash reads few segments however fast appends are.
        self.commit.cover(written);
        Ok(reserved)
    }

    /// Sets segments aside: in free extents that are allocated, with headers, and with records of
    /// the manifest, all of it durable (O4). A single output may take the spare extent on a full
    /// disk.
    pub(crate) fn set_aside(
        &self,
        ids: &[SegmentId],
        purpose: Purpose,
        next: (RunNo, Lsn),
    ) -> Result<Vec<Arc<Segment>>> {
        let mut keeper = self.keeper.lock();
        let extents = match (self.prepare_extents(&mut keeper, ids.len()), purpose, ids) {
            (Err(full @ Error::DiskFull { .. }), Purpose::Output, [_]) => {
                keeper.spare.take().map(|spare| vec![spare]).ok_or(full)
            }
            (prepared, ..) => prepared,
        }?;
        let new =
            |(id, extent): (&SegmentId, &ExtentNo)| self.new_segment(*extent, (*id, purpose), next);
        let segments: Result<Vec<_>> = ids.iter().zip(&extents).map(new).collect();
        let reserved = segments.and_then(|segments| {
            let changes = segments.iter().map(|segment| segment.reservation());
            keeper.commit_durably(&changes.collect::<Vec<_>>())?;
            for segment in &segments {
                segment.note(Mark::Allocated);
            }
            Ok(segments)
        });
        if reserved.is_err() {
            for extent in extents {
                keeper.let_go(extent);
            }
        }
        reserved
    }

    /// Claims so many free extents and makes them ready for segments, or gives all of them back.
    pub(crate) fn prepare_extents(
        &self,
        keeper: &mut Keeper,
        count: usize,
    ) -> Result<Vec<ExtentNo>> {
        keeper.sync()?;
        let extents: Vec<_> = (0..count).map(|_| keeper.manifest.claim()).collect();
        let prepared = extents.iter().try_for_each(|extent| self.prepare_extent(*extent));
        if prepared.is_err() {
            for extent in &extents {
                keeper.let_go(*extent);
            }
        }
        prepared.map(|()| extents)
    }

    /// Makes an extent ready for a segment: nothing of an earlier owner is left in it, and its
    /// space is had.
    fn prepare_extent(&self, extent: ExtentNo) -> Result<()> {
        let (at, len) = (self.extent_size.offset_of(extent), self.extent_size.bytes());
        let there = self.disk.len()?.saturating_sub(at).min(len);
        if there > 0 {
            // What an earlier owner left would not check, but it would look like a torn tail.
            self.disk.punch(at, there)?;
        }
        self.disk.allocate(at, len)
    }

    /// A segment in an extent that is ready for it, with its header in the file.
    fn new_segment(
        &self,
        extent: ExtentNo,
        (id, purpose): (SegmentId, Purpose),
        next: (RunNo, Lsn),
    ) -> Result<Arc<Segment>> {
        let mut salt = [0; 8];
        let entropy = &self.options.environment.entropy;
        entropy.fill(&mut salt).map_err(|source| Error::io(IoAction::Randomness, source))?;
        let key = SegmentKey { id, salt: u64::from_le_bytes(salt) };
        let segment = Segment::new(self.disk.clone(), self.extent_size, extent, key, purpose);
        self.write_segment_header(&segment, next)?;
        Ok(Arc::new(segment))
    }

    pub(crate) fn write_segment_header(
        &self,
        segment: &Segment,
        (next_run_no, next_lsn): (RunNo, Lsn),
    ) -> Result<()> {
        let (uuid, key, purpose) = (self.uuid, segment.key(), segment.purpose());
        let header = SegmentHeader { uuid, key, purpose, next_run_no, next_lsn };
        self.disk.write(segment.file_offset(), &header.encode())
    }

    /// Makes everything durable and marks the file as closed in order. Closing again does what is
    /// left to do, if anything is.
    pub(crate) fn close(&self) -> Result<()> {
        if self.disk.is_inherited() {
            return Err(Error::Closed);
        }
        self.upkeep.stop();
        self.core.lock().closed = true;
        if self.keeper.lock().superblock.flags & FLAG_CLEAN != 0 {
            return Ok(());
        }
        self.disk.check()?;
        self.cover_seals()?;
        self.release_spare();
        self.give_back_at_close()?;
        // A failure costs some space and nothing else.
        let _ = self.trim_unused();
        self.close_index();
        self.disk.sync()?;
        let (end, next) = {
            let core = self.core.lock();
            (core.end_of_log(), (core.next_segment, core.next_run_no, core.next_lsn))
        };
        self.keeper.lock().write_superblock(|block| {
            block.durable = end;
            block.flags = FLAG_CLEAN;
            (block.next_segment, block.next_run_no, block.next_lsn) = next;
        })
    }
}
