//! The index of an open store: whether there is one, and keeping it up to the log.
//!
//! - A checkpoint applies sealed segments that the manifest says are durable, so the applied
//!   position never passes the durable one (O7): the index may lag, it never leads.
//! - An index that fails is dropped: the directories answer, and the next checkpoint builds it.
//! - A durable flag in the superblock says that the index is about to be opened. Found set after
//!   a crash, opening it may have been the crash, so the index is dropped unseen.

use std::collections::HashSet;
use std::sync::Arc;

use super::catalog::Catalog;
use super::core::Core;
use super::index_host::IndexHost;
use super::observer::Activity;
use super::options::Compression;
use super::reclaim::evictions;
use super::segment::{Mark, Segment};
use super::shared::Engine;
use super::upkeep::Wanted;
use crate::error::Result;
use crate::format::manifest::{Change, Use};
use crate::format::superblock::FLAG_INDEX_OPENING;
use crate::index::{IndexIdentity, IndexSnapshot, IndexStore, SegmentChange};
use crate::types::{ExtentNo, RunNo};

/// Segments that are applied in one transaction of the index.
const BATCH: usize = 32;
/// Runs that are applied in one transaction, about: each takes a kilobyte of memory meanwhile.
const BATCH_RUNS: usize = 8 << 10;
/// A checkpoint is due when this many segments are waiting for one.
pub(crate) const CHECKPOINT_DUE: usize = 4;
/// A checkpoint is due when so many bytes of segments are waiting of which something is dead: only
/// what the catalog covers can be freed.
const DEAD_DUE: u64 = 4 << 20;
/// Appends help with the checkpoint when this many segments are waiting, so that memory stays
/// bounded.
pub(crate) const CHECKPOINT_LATE: usize = 24;
/// A checkpoint is due, and soon late, when this many runs are in memory, about a kilobyte each.
pub(crate) const RUNS_DUE: usize = 8 << 10;
/// See [`RUNS_DUE`].
pub(crate) const RUNS_LATE: usize = 32 << 10;

/// Whether there is an index.
#[derive(Debug)]
pub(crate) enum IndexSlot {
    /// The options say that there shall be none.
    Off,
    /// None was built yet, or it was dropped.
    Absent,
    /// It was dropped because the disk is full; see [`Engine::make_way`].
    GaveWay,
    /// The file holds one that was not opened yet.
    Stored,
    /// It is open.
    Open {
        /// The tables.
        store: IndexStore,
        /// Where their pages are.
        host: IndexHost,
    },
}

impl IndexSlot {
    /// Where the pages of an open index are.
    pub(crate) fn host(&self) -> Option<&IndexHost> {
        match self {
            Self::Open { host, .. } => Some(host),
            _ => None,
        }
    }
}

impl Engine {
    /// Opens the index that the file holds. One that cannot be trusted is dropped.
    fn open_index(&self, slot: &mut IndexSlot) -> Result<()> {
        match self.try_open_index() {
            Some((store, host)) => *slot = IndexSlot::Open { store, host },
            None => self.drop_index(slot)?,
        }
        self.keeper.lock().write_superblock(|block| block.flags &= !FLAG_INDEX_OPENING)
    }

    fn try_open_index(&self) -> Option<(IndexStore, IndexHost)> {
        let (map, len) = {
            let keeper = self.keeper.lock();
            let extents = keeper.manifest.extents();
            (extents.index_map()?, extents.index_len)
        };
        let host = self.index_host(map, len);
        let identity = IndexIdentity { uuid: self.uuid };
        let store = IndexStore::open(host.clone(), self.options.index_cache, identity).ok()?;
        let applied = store.applied().ok()?;
        let core = self.core.lock();
        // An index that leads the log was not built from it.
        let leads = applied.log.is_some_and(|applied| applied >= core.tail.segment.id());
        // One that does not know an output has the records where they were before.
        let mut outputs = core.catalog.segments().iter().filter(|segment| segment.is_output());
        let is_known = outputs.all(|segment| segment.is_covered_by(applied));
        (!leads && is_known).then_some((store, host))
    }

    fn index_host(&self, map: Vec<ExtentNo>, len: u64) -> IndexHost {
        IndexHost::new(self.disk.clone(), Arc::clone(&self.keeper), self.extent_size, map, len)
    }

    /// The index, if it is open; the directories answer from now on.
    fn take_index(&self, slot: &mut IndexSlot) -> Option<(IndexStore, IndexHost)> {
        let old = core::mem::replace(slot, IndexSlot::Absent);
        let mut core = self.core.lock();
        core.catalog = Arc::new(core.catalog.without_index());
        match old {
            IndexSlot::Open { store, host } => Some((store, host)),
            _ => None,
        }
    }

    /// Gives up the index.
    pub(crate) fn drop_index(&self, slot: &mut IndexSlot) -> Result<()> {
        if let Some((store, host)) = self.take_index(slot) {
            host.detach();
            drop(store);
        }
        let mut keeper = self.keeper.lock();
        let extents = keeper.manifest.extents();
        let of_index = extents.uses.iter().filter(|(_, used)| matches!(used, Use::Index { .. }));
        let mut changes: Vec<_> = of_index.map(|(&extent, _)| Change::Free { extent }).collect();
        if changes.is_empty() && extents.index_len == 0 {
            return Ok(());
        }
        changes.push(Change::IndexLen { len: 0 });
        keeper.commit_durably(&changes)
    }

    /// Brings the catalog up to the last full segment, whatever was durable of it.
    pub(crate) fn cover_seals(&self) -> Result<()> {
        self.sync_all()?;
        self.note_seals()?;
        self.checkpoint()
    }

    /// Brings the catalog, and the index if there shall be one, up to the last sealed segment that
    /// is known to be durable. An index that the file holds is opened first. While the store is
    /// being closed, at most one batch is applied.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Stored) {
            if self.upkeep.is_stopping() {
                return Ok(());
            }
            self.open_index(&mut slot)?;
        }
        let (catalog, fresh) = {
            let core = self.core.lock();
            if matches!(*slot, IndexSlot::GaveWay)
                && self.reserved.try_lock().is_some_and(|waiting| !waiting.is_empty())
            {
                *slot = IndexSlot::Absent;
            }
            let durable = core.unapplied.iter().take_while(|segment| segment.is(Mark::Durable));
            (Arc::clone(&core.catalog), durable.cloned().collect::<Vec<_>>())
        };
        let behind = catalog.index().is_none_or(|index| !catalog.is_covered_by(index.applied()));
        let wanted = !matches!(*slot, IndexSlot::Off | IndexSlot::GaveWay);
        if fresh.is_empty() && !(wanted && (behind || catalog.index_failed())) {
            return Ok(());
        }
        let _watch = self.watch(Activity::IndexCheckpoint);
        let mut segments = catalog.segments().to_vec();
        let through = fresh.last().map(|segment| segment.id()).max(catalog.through());
        if !fresh.is_empty() && self.options.compression != Compression::None {
            self.upkeep.want(Wanted::PACK);
        }
        segments.extend(fresh.iter().cloned());
        segments.sort_by_key(|segment| segment.id());
        if catalog.index_failed() {
            self.drop_index(&mut slot)?;
        }
        let mut index = self.apply_to_index(&mut slot, &segments);
        if index.is_none() && matches!(*slot, IndexSlot::Open { .. }) {
            self.drop_index(&mut slot)?;
            index = self.apply_to_index(&mut slot, &segments);
            if index.is_none() {
                self.drop_index(&mut slot)?;
            }
        }
        let next = Catalog::new(segments, through, index);
        if next.index().is_some_and(|index| !next.is_covered_by(index.applied())) {
            // The store is being closed: what was applied counts, the rest is for the next opening.
            return Ok(());
        }
        let mut guard = self.core.lock();
        let core = &mut *guard;
        core.unapplied.drain(..fresh.len());
        core.catalog = Arc::new(next);
        if let Some(through) = through {
            core.hot.settle(through, &core.tail.builder);
        }
        if self.has_much_dead(core, fresh.iter()) {
            self.upkeep.want(Wanted::COMPACT);
        }
        drop(guard);
        for segment in fresh {
            // A failure costs some space and nothing else.
            let _ = self.trim_sealed(&segment);
        }
        Ok(())
    }

    /// Whether these segments, which wait for a checkpoint or waited for it, are worth a look for
    /// what is dead in them.
    pub(super) fn has_much_dead<'a>(
        &self,
        core: &Core,
        mut waiting: impl ExactSizeIterator<Item = &'a Arc<Segment>>,
    ) -> bool {
        waiting.len() as u64 * self.extent_size.bytes() >= DEAD_DUE
            && waiting.any(|segment| core.suspects.contains(&segment.id()))
    }

    /// Applies what the index lacks of these segments. `None` if there is no index, or it failed.
    fn apply_to_index(
        &self,
        slot: &mut IndexSlot,
        segments: &[Arc<Segment>],
    ) -> Option<IndexSnapshot> {
        if matches!(slot, IndexSlot::Absent) && !segments.is_empty() {
            let _watch = self.watch(Activity::IndexRebuild);
            let host = self.index_host(Vec::new(), 0);
            let identity = IndexIdentity { uuid: self.uuid };
            let created = IndexStore::create(host.clone(), self.options.index_cache, identity);
            match created {
                Ok(store) => *slot = IndexSlot::Open { store, host },
                Err(_) => {
                    host.detach();
                    let _ = self.drop_index(slot);
                    return None;
                }
            }
        }
        let IndexSlot::Open { store, .. } = slot else { return None };
        let applied = store.applied().ok()?;
        let mut lacking: Vec<&Arc<Segment>> =
            segments.iter().filter(|segment| !segment.is_covered_by(applied)).collect();
        // Outputs have numbers of their own kind: they come first, so that the numbers of the log
        // stay in order.
        lacking.sort_by_key(|segment| (!segment.is_output(), segment.id()));
        let outputs = segments.iter().filter(|segment| segment.is_output());
        let evicted = evicted_by(outputs.chain(lacking.iter().copied())).ok()?;
        let (mut changes, mut runs) = (Vec::new(), 0);
        for segment in lacking {
            let change = segment_change(segment, &evicted).ok()?;
            runs += change.runs.len();
            changes.push(change);
            if changes.len() >= BATCH || runs >= BATCH_RUNS {
                store.apply(&changes).ok()?;
                changes.clear();
                runs = 0;
                if self.upkeep.is_stopping() {
                    break;
                }
            }
        }
        if !changes.is_empty() {
            store.apply(&changes).ok()?;
        }
        store.snapshot().ok()
    }

    /// Closes the index in order.
    pub(crate) fn close_index(&self) {
        let mut slot = self.index.lock();
        if let Some((store, host)) = self.take_index(&mut slot) {
            // What was applied does not depend on it.
            let _ = store.close();
            host.detach();
        }
    }
}

/// The runs that these segments evict.
fn evicted_by<'a>(segments: impl Iterator<Item = &'a Arc<Segment>>) -> Result<HashSet<RunNo>> {
    let mut evicted = HashSet::new();
    for segment in segments {
        evicted.extend(evictions(segment)?);
    }
    Ok(evicted)
}

/// What the directory of a sealed segment says, for the index.
fn segment_change(segment: &Arc<Segment>, evicted: &HashSet<RunNo>) -> Result<SegmentChange> {
    let is_evicted = |run_no| evicted.contains(&run_no);
    segment.in_directory(|directory| {
        SegmentChange::read(segment.id(), segment.purpose(), &directory, &is_evicted)
    })
}
