//! The index of an open store: whether there is one, and keeping it up to date with the log.
//!
//! - A checkpoint applies sealed segments that the manifest has as durable, so the applied position
//!   never passes the durable one (O7): the index may lag, but never leads.
//! - An index that fails is dropped: the directories answer, and the next checkpoint rebuilds it.
//! - A quarantined segment stops a checkpoint and leaves the index, since no other could be built.
//! - A durable flag in the superblock is set before redb opens the index (O21), and while an index
//!   is built. If it is found set, the process ended meanwhile, so the index is dropped unopened.

pub(crate) mod redb_backend;

use core::time::Duration;
use std::sync::Arc;

use crate::engine::checkpoint::redb_backend::RedbBackend;
use crate::engine::setup::due::Wanted;
use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::setup::memory;
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Compression;
use crate::engine::state::catalog::{Catalog, stamp_of};
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::state::segment_directory::evictions;
use crate::engine::write::Log;
use crate::error::{Damage, Error, Result};
use crate::format::map::manifest::{Change, Use};
use crate::format::map::superblock::FLAG_INDEX_OPENING;
use crate::format::segments::run_set::RunSet;
use crate::index::{IndexError, IndexIdentity, IndexSnapshot, IndexStore, SegmentChange};
use crate::types::{ExtentNo, SegmentId};

/// How many segments are applied in one transaction of the index.
const BATCH: usize = 32;
/// About how many runs are applied in one transaction: each takes a kilobyte of memory meanwhile.
const BATCH_RUNS: usize = 8 << 10;
/// After so many transactions freed memory goes back to the system.
const MANY_TRANSACTIONS: u32 = 4;
/// The state of the index.
#[derive(Debug)]
pub(crate) enum IndexSlot {
    /// The options forbid an index.
    Off,
    /// It was not built yet, or was dropped.
    Absent,
    /// It was dropped because the disk is full; see [`Checkpoints::make_way`].
    GaveWay,
    /// The file has an index that was not opened yet.
    Stored,
    /// It is open.
    Open {
        /// The tables.
        store: IndexStore,
        /// The storage of their pages.
        host: RedbBackend,
    },
}

impl IndexSlot {
    /// The storage of an open index.
    pub(crate) fn host(&self) -> Option<&RedbBackend> {
        match self {
            Self::Open { host, .. } => Some(host),
            _ => None,
        }
    }
}

/// Keeps the index up to date with the log.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub(crate) log: Arc<Log>,
    pub(crate) index: Ranked<IndexSlot>,
}

impl Checkpoints {
    pub(crate) fn new(log: &Arc<Log>, slot: IndexSlot) -> Self {
        Self { log: Arc::clone(log), index: Ranked::of(&log.disk, Rank::Index, slot) }
    }

    /// Opens the index of the file. If it cannot be trusted, it is dropped.
    fn open_index(&self, slot: &mut IndexSlot) -> Result<()> {
        let allocator = &self.log.space.allocator;
        // Durable before redb reads a byte, which may end the process (O21).
        allocator.lock().write_superblock(|block| block.flags |= FLAG_INDEX_OPENING)?;
        match self.try_open_index() {
            Some((store, host)) => *slot = IndexSlot::Open { store, host },
            None => self.drop_index(slot)?,
        }
        allocator.lock().write_superblock(|block| block.flags &= !FLAG_INDEX_OPENING)
    }

    fn try_open_index(&self) -> Option<(IndexStore, RedbBackend)> {
        let (map, len) = {
            let allocator = self.log.space.allocator.lock();
            let extents = allocator.manifest.extents();
            (extents.index_map(self.log.setup.extent_size)?, extents.index_len)
        };
        let host = self.index_host(map, len);
        let identity = IndexIdentity { uuid: self.log.setup.uuid };
        let open = || {
            let cache = self.log.setup.options.index_cache;
            let store = IndexStore::open(host.clone(), cache, identity)?;
            let keeps_up = self.keeps_up(&store.snapshot()?)?;
            Ok(keeps_up.then_some(store))
        };
        let opened = self.log.setup.watch_failure(Activity::IndexCheckpoint, open);
        opened.ok().flatten().map(|store| (store, host))
    }

    /// Whether an index can go on: it is not in front of the log, and knows what compactions moved.
    /// An error if the segments that it was built from have other directories now.
    fn keeps_up(&self, index: &IndexSnapshot) -> Result<bool> {
        let applied = index.applied();
        let (catalog, unapplied, tail) = {
            let state = self.log.state.lock();
            (Arc::clone(&state.catalog), state.unapplied.clone(), state.tail.segment.id())
        };
        // An index that leads the log was not built from it.
        if applied.log.is_some_and(|applied| applied >= tail) {
            return Ok(false);
        }
        // Recovery may have sealed segments that the index covers.
        let all = catalog.segments().iter().chain(&unapplied);
        let covered = all.filter(|segment| segment.is_covered_by(applied));
        let mut stamps: Vec<_> = covered.map(|segment| (segment.id(), stamp_of(segment))).collect();
        stamps.sort_unstable();
        // An index that lacks an output has the old places of its records.
        let mut outputs = catalog.segments().iter().filter(|segment| segment.is_output());
        if !outputs.all(|segment| segment.is_covered_by(applied)) {
            return Ok(false);
        }
        if !index.has_applied(stamps.into_iter())? {
            return Err(IndexError::Damaged(Damage::Mismatch).into());
        }
        Ok(true)
    }

    fn index_host(&self, map: Vec<ExtentNo>, len: u64) -> RedbBackend {
        RedbBackend::new(&self.log.space, map, len)
    }

    /// Takes the index out, if it is open; from now on the directories answer.
    fn take_index(&self, slot: &mut IndexSlot) -> Option<(IndexStore, RedbBackend)> {
        let old = core::mem::replace(slot, IndexSlot::Absent);
        let mut state = self.log.state.lock();
        state.catalog = Arc::new(state.catalog.without_index());
        match old {
            IndexSlot::Open { store, host } => Some((store, host)),
            _ => None,
        }
    }

    /// Drops the index.
    pub(crate) fn drop_index(&self, slot: &mut IndexSlot) -> Result<()> {
        if let Some((store, host)) = self.take_index(slot) {
            host.detach();
            drop(store);
        }
        let mut allocator = self.log.space.allocator.lock();
        let extents = allocator.manifest.extents();
        let of_index = extents.uses.iter().filter(|(_, used)| matches!(used, Use::Index { .. }));
        let mut changes: Vec<_> = of_index.map(|(&extent, _)| Change::Free { extent }).collect();
        if changes.is_empty() && extents.index_len == 0 {
            return Ok(());
        }
        changes.push(Change::IndexLen { len: 0 });
        allocator.commit_durably(&changes)
    }

    /// Whether a checkpoint takes little time: it builds no index, nor a large part of one. False
    /// if another thread does that for longer than a caller waits.
    pub(crate) fn is_nearly_covered(&self, waits: Duration) -> bool {
        match self.index.lock_within(waits).as_deref() {
            Some(IndexSlot::Off | IndexSlot::Stored) => true,
            Some(IndexSlot::Open { .. }) => {
                let catalog = Arc::clone(&self.log.state.lock().catalog);
                catalog.index().is_some_and(|index| catalog.is_covered_by(index.applied()))
            }
            _ => false,
        }
    }

    /// Makes everything durable, and brings the catalog up to the last full segment. The caller may
    /// hold the lock on compaction.
    pub(crate) fn cover_seals(&self) -> Result<()> {
        self.log.sync_all()?;
        self.log.note_seals()?;
        self.checkpoint()
    }

    /// Brings the catalog, and the index if there should be one, up to the last sealed segment that
    /// is known to be durable. It first opens the index of the file. While the store is being
    /// closed, it applies at most one batch.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Stored) {
            if self.log.due.is_stopping() {
                return Ok(());
            }
            let open = || self.open_index(&mut slot);
            self.log.setup.watch_failure(Activity::IndexCheckpoint, open)?;
        }
        let (catalog, mut fresh) = {
            let state = self.log.state.lock();
            if matches!(*slot, IndexSlot::GaveWay)
                && self.log.reserved.try_lock().is_some_and(|waiting| {
                    waiting.front().is_some_and(|next| next.is(Mark::Allocated))
                })
            {
                *slot = IndexSlot::Absent;
            }
            let durable = state.unapplied.iter().take_while(|segment| segment.is(Mark::Durable));
            (Arc::clone(&state.catalog), durable.cloned().collect::<Vec<_>>())
        };
        let behind = catalog.index().is_none_or(|index| !catalog.is_covered_by(index.applied()));
        let wanted = !matches!(*slot, IndexSlot::Off | IndexSlot::GaveWay);
        if fresh.is_empty() && !(wanted && (behind || catalog.index_failure().is_some())) {
            return Ok(());
        }
        let apply = || {
            // Without an index the catalog covers quarantined segments too.
            let stop = if catalog.index().is_some() { end_at_lost(&mut fresh) } else { Ok(()) };
            self.apply(&mut slot, &catalog, &fresh)?;
            stop
        };
        self.log.setup.watch(Activity::IndexCheckpoint, apply)
    }

    /// Brings the index, if there should be one, and then the catalog up to these sealed segments,
    /// which the catalog lacks.
    fn apply(&self, slot: &mut IndexSlot, catalog: &Catalog, fresh: &[Arc<Segment>]) -> Result<()> {
        let setup = &self.log.setup;
        let mut segments = catalog.segments().to_vec();
        let through = fresh.last().map(|segment| segment.id()).max(catalog.through());
        if !fresh.is_empty() && setup.options.compression != Compression::None {
            self.log.due.want(Wanted::PACK);
        }
        segments.extend(fresh.iter().cloned());
        segments.sort_by_key(|segment| segment.id());
        if let Some(failure) = catalog.index_failure() {
            // A call noticed the failure, and the directories answered it.
            let _ = setup.watch_failure(Activity::IndexCheckpoint, || Err::<(), _>(failure.into()));
            self.drop_index(slot)?;
        }
        let mut applied = self.apply_to_index(slot, &segments);
        if !is_lost(&applied) && applied.is_err() && matches!(*slot, IndexSlot::Open { .. }) {
            self.drop_index(slot)?;
            applied = self.apply_to_index(slot, &segments);
            if applied.is_err() {
                self.drop_index(slot)?;
                // Perhaps there was no space: try again once the log has some.
                *slot = IndexSlot::GaveWay;
            }
        }
        let lost = if is_lost(&applied) { applied.clone().map(drop) } else { Ok(()) };
        let next = catalog.of_others(segments, through, applied.ok().flatten());
        let next = next.without_stale_places();
        let deleted = Arc::clone(&self.log.state.lock().deleted);
        next.locate_all(&deleted);
        drop(deleted);
        if next.index().is_some_and(|index| !next.is_covered_by(index.applied())) {
            // The store is being closed: what was applied stays, the next opening applies the rest.
            return Ok(());
        }
        let mut guard = self.log.state.lock();
        let state = &mut *guard;
        state.unapplied.drain(..fresh.len());
        state.catalog = Arc::new(next);
        let settle = |through| state.active.settle(through, &state.tail.builder);
        let has_freed_much = through.is_some_and(settle);
        // Without a fresh segment nothing has changed for a compaction.
        if !fresh.is_empty() && state.has_many_suspects() {
            self.log.due.want(Wanted::COMPACT);
        }
        drop(guard);
        if has_freed_much {
            memory::give_back();
        }
        for segment in fresh {
            // A failure costs only some space.
            let _ = setup.watch_failure(Activity::GiveBack, || self.trim_sealed(segment));
        }
        lost
    }

    /// Applies the segments that the index lacks, and builds the index if it is absent. `None` if
    /// there is no index. A failure is reported.
    fn apply_to_index(
        &self,
        slot: &mut IndexSlot,
        segments: &[Arc<Segment>],
    ) -> Result<Option<IndexSnapshot>> {
        let setup = &self.log.setup;
        if matches!(slot, IndexSlot::Absent) && !segments.is_empty() {
            let built = setup.watch(Activity::IndexRebuild, || self.build(slot, segments));
            memory::give_back();
            return built;
        }
        let apply = || self.apply_lacking(slot, segments);
        setup.watch_failure(Activity::IndexCheckpoint, apply)
    }

    /// Builds the index. The next opening drops one that is not complete.
    fn build(
        &self,
        slot: &mut IndexSlot,
        segments: &[Arc<Segment>],
    ) -> Result<Option<IndexSnapshot>> {
        segments.iter().try_for_each(|segment| segment.directory().map(drop))?;
        let allocator = &self.log.space.allocator;
        allocator.lock().write_superblock(|block| block.flags |= FLAG_INDEX_OPENING)?;
        self.create_index(slot)?;
        let built = self.apply_lacking(slot, segments)?;
        let applied = built.as_ref().map(IndexSnapshot::applied).unwrap_or_default();
        if segments.iter().all(|segment| segment.is_covered_by(applied)) {
            allocator.lock().write_superblock(|block| block.flags &= !FLAG_INDEX_OPENING)?;
        }
        Ok(built)
    }

    /// Creates an empty index.
    fn create_index(&self, slot: &mut IndexSlot) -> Result<()> {
        let host = self.index_host(Vec::new(), 0);
        let identity = IndexIdentity { uuid: self.log.setup.uuid };
        match IndexStore::create(host.clone(), self.log.setup.options.index_cache, identity) {
            Ok(store) => *slot = IndexSlot::Open { store, host },
            Err(failure) => {
                host.detach();
                // The error of the creation says more than one of dropping.
                let _ = self.drop_index(slot);
                return Err(failure.into());
            }
        }
        Ok(())
    }

    /// Applies the segments that an open index lacks. `None` if no index is open.
    fn apply_lacking(
        &self,
        slot: &IndexSlot,
        segments: &[Arc<Segment>],
    ) -> Result<Option<IndexSnapshot>> {
        let IndexSlot::Open { store, .. } = slot else { return Ok(None) };
        let applied = store.applied()?;
        let mut lacking: Vec<&Arc<Segment>> =
            segments.iter().filter(|segment| !segment.is_covered_by(applied)).collect();
        // Ids of outputs are not in the order of the log's ids. Outputs come first, so that the ids
        // of the log stay in order.
        lacking.sort_by_key(|segment| (!segment.is_output(), segment.id()));
        let evicted = evicted_by(lacking.iter().copied())?;
        let ids: Vec<SegmentId> = segments.iter().map(|segment| segment.id()).collect();
        let (mut changes, mut runs, mut transactions) = (Vec::new(), 0, 0);
        for segment in lacking {
            let change = segment_change(segment, &evicted)?;
            runs += change.runs.len() + change.evicted.len();
            changes.push(change);
            if changes.len() >= BATCH || runs >= BATCH_RUNS {
                store.apply_among(&ids, &changes)?;
                changes.clear();
                (runs, transactions) = (0, transactions + 1);
                if self.log.due.is_stopping() {
                    break;
                }
            }
        }
        if !changes.is_empty() {
            store.apply_among(&ids, &changes)?;
        }
        if transactions >= MANY_TRANSACTIONS {
            memory::give_back();
        }
        Ok(Some(store.snapshot()?))
    }

    /// Releases the blocks behind the directory of a sealed segment.
    fn trim_sealed(&self, segment: &Segment) -> Result<()> {
        let Some(sealed) = segment.sealed() else { return Ok(()) };
        self.log.space.trim(segment.file_offset(), sealed.bytes_end())
    }

    /// Whether there is work for [`Checkpoints::checkpoint`].
    pub(crate) fn is_due(&self) -> bool {
        let state = self.log.state.lock();
        state.is_due()
            || state.catalog.index_failure().is_some()
            || (self.log.setup.options.index
                && state.catalog.index().is_none()
                && !state.catalog.segments().is_empty())
    }

    /// Drops the index on a full disk and releases its space for deletions. It is rebuilt once
    /// there is space for the log to continue. Returns whether there was an index.
    pub(crate) fn make_way(&self) -> Result<bool> {
        self.log.setup.watch_failure(Activity::IndexCheckpoint, || self.try_to_make_way())
    }

    fn try_to_make_way(&self) -> Result<bool> {
        let mut slot = self.index.lock();
        let gave_way = matches!(*slot, IndexSlot::Off | IndexSlot::GaveWay);
        // With a quarantined segment no index could be built again.
        if gave_way || self.log.check_directories().is_err() {
            return Ok(false);
        }
        let space = &self.log.space;
        let extents: Vec<ExtentNo> = {
            let allocator = space.allocator.lock();
            let uses = allocator.manifest.extents().uses.iter();
            let of_index = uses.filter(|(_, used)| matches!(used, Use::Index { .. }));
            of_index.map(|(&extent, _)| extent).collect()
        };
        self.drop_index(&mut slot)?;
        *slot = IndexSlot::GaveWay;
        let allocator = space.allocator.lock();
        for &extent in extents.iter().filter(|extent| allocator.manifest.is_free(**extent)) {
            // Space that cannot be released can still be used.
            let punch = || allocator.punch(extent, 1);
            let _ = self.log.setup.watch_failure(Activity::GiveBack, punch);
        }
        Ok(!extents.is_empty())
    }

    /// Prevents that an absent index is built, which would take the space that becomes free.
    pub(crate) fn put_off(&self) {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Absent) {
            *slot = IndexSlot::GaveWay;
        }
    }

    /// Closes the index cleanly.
    pub(crate) fn close_index(&self) {
        let mut slot = self.index.lock();
        if let Some((store, host)) = self.take_index(&mut slot) {
            // A failure does not affect what was applied.
            let close = || Ok(store.close()?);
            let _ = self.log.setup.watch_failure(Activity::IndexCheckpoint, close);
            host.detach();
        }
    }
}

/// Whether a quarantined segment caused a failure.
fn is_lost<T>(result: &Result<T>) -> bool {
    result.as_ref().is_err_and(Error::is_quarantine)
}

/// Ends a row of segments in front of the first one that is quarantined, and returns its error.
fn end_at_lost(segments: &mut Vec<Arc<Segment>>) -> Result<()> {
    let directories = segments.iter().map(|segment| segment.directory().map(drop));
    let Some((number, stop)) = directories.enumerate().find(|(_, read)| is_lost(read)) else {
        return Ok(());
    };
    segments.truncate(number);
    stop
}

/// The runs that these segments evict.
fn evicted_by<'a>(segments: impl Iterator<Item = &'a Arc<Segment>>) -> Result<RunSet> {
    let mut evicted = RunSet::default();
    for segment in segments {
        evicted.extend(evictions(segment)?);
    }
    Ok(evicted)
}

/// The change to the index for the directory of a sealed segment.
fn segment_change(segment: &Arc<Segment>, evicted: &RunSet) -> Result<SegmentChange> {
    let is_evicted = |run_no| evicted.contains(run_no);
    segment.in_directory(|directory| {
        let key = (segment.id(), segment.purpose(), stamp_of(segment));
        SegmentChange::read(key, &directory, &is_evicted)
    })
}

#[cfg(test)]
mod tests;
