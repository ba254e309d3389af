//! The index of an open store: whether there is one, and keeping it up to the log.
//!
//! - A checkpoint applies sealed segments that the manifest says are durable, so the applied
//!   position never passes the durable one (O7): the index may lag, it never leads.
//! - An index that fails is dropped: the directories answer, and the next checkpoint builds it.
//! - A durable flag in the superblock says that the index is about to be opened. Found set after
//!   a crash, opening it may have been the crash, so the index is dropped unseen.

pub(crate) mod redb_backend;

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::checkpoint::redb_backend::RedbBackend;
use crate::engine::setup::due::Wanted;
use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Compression;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::evictions::evictions;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::write::Log;
use crate::error::Result;
use crate::format::map::manifest::{Change, Use};
use crate::format::map::superblock::FLAG_INDEX_OPENING;
use crate::index::{IndexIdentity, IndexSnapshot, IndexStore, SegmentChange};
use crate::types::{ExtentNo, RunNo};

/// Segments that are applied in one transaction of the index.
const BATCH: usize = 32;
/// Runs that are applied in one transaction, about: each takes a kilobyte of memory meanwhile.
const BATCH_RUNS: usize = 8 << 10;
/// Whether there is an index.
#[derive(Debug)]
pub(crate) enum IndexSlot {
    /// The options say that there shall be none.
    Off,
    /// None was built yet, or it was dropped.
    Absent,
    /// It was dropped because the disk is full; see [`Checkpoints::make_way`].
    GaveWay,
    /// The file holds one that was not opened yet.
    Stored,
    /// It is open.
    Open {
        /// The tables.
        store: IndexStore,
        /// Where their pages are.
        host: RedbBackend,
    },
}

impl IndexSlot {
    /// Where the pages of an open index are.
    pub(crate) fn host(&self) -> Option<&RedbBackend> {
        match self {
            Self::Open { host, .. } => Some(host),
            _ => None,
        }
    }
}

/// Keeps the index up to the log.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    pub(crate) log: Arc<Log>,
    pub(crate) index: Ranked<IndexSlot>,
}

impl Checkpoints {
    pub(crate) fn new(log: &Arc<Log>, slot: IndexSlot) -> Self {
        Self { log: Arc::clone(log), index: Ranked::new(Rank::Index, slot) }
    }

    /// Opens the index that the file holds. One that cannot be trusted is dropped.
    fn open_index(&self, slot: &mut IndexSlot) -> Result<()> {
        match self.try_open_index() {
            Some((store, host)) => *slot = IndexSlot::Open { store, host },
            None => self.drop_index(slot)?,
        }
        self.log.space.allocator.lock().write_superblock(|block| block.flags &= !FLAG_INDEX_OPENING)
    }

    fn try_open_index(&self) -> Option<(IndexStore, RedbBackend)> {
        let (map, len) = {
            let allocator = self.log.space.allocator.lock();
            let extents = allocator.manifest.extents();
            (extents.index_map()?, extents.index_len)
        };
        let host = self.index_host(map, len);
        let identity = IndexIdentity { uuid: self.log.setup.uuid };
        let store =
            IndexStore::open(host.clone(), self.log.setup.options.index_cache, identity).ok()?;
        let applied = store.applied().ok()?;
        let state = self.log.state.lock();
        // An index that leads the log was not built from it.
        let leads = applied.log.is_some_and(|applied| applied >= state.tail.segment.id());
        // One that does not know an output has the records where they were before.
        let mut outputs = state.catalog.segments().iter().filter(|segment| segment.is_output());
        let is_known = outputs.all(|segment| segment.is_covered_by(applied));
        (!leads && is_known).then_some((store, host))
    }

    fn index_host(&self, map: Vec<ExtentNo>, len: u64) -> RedbBackend {
        RedbBackend::new(&self.log.space, map, len)
    }

    /// The index, if it is open; the directories answer from now on.
    fn take_index(&self, slot: &mut IndexSlot) -> Option<(IndexStore, RedbBackend)> {
        let old = core::mem::replace(slot, IndexSlot::Absent);
        let mut state = self.log.state.lock();
        state.catalog = Arc::new(state.catalog.without_index());
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

    /// Brings the catalog up to the last full segment, whatever was durable of it.
    pub(crate) fn cover_seals(&self) -> Result<()> {
        self.log.sync_all()?;
        self.log.note_seals()?;
        self.checkpoint()
    }

    /// Brings the catalog, and the index if there shall be one, up to the last sealed segment that
    /// is known to be durable. An index that the file holds is opened first. While the store is
    /// being closed, at most one batch is applied.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Stored) {
            if self.log.due.is_stopping() {
                return Ok(());
            }
            self.open_index(&mut slot)?;
        }
        let (catalog, fresh) = {
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
        if fresh.is_empty() && !(wanted && (behind || catalog.index_failed())) {
            return Ok(());
        }
        let _watch = self.log.setup.watch(Activity::IndexCheckpoint);
        let mut segments = catalog.segments().to_vec();
        let through = fresh.last().map(|segment| segment.id()).max(catalog.through());
        if !fresh.is_empty() && self.log.setup.options.compression != Compression::None {
            self.log.due.want(Wanted::PACK);
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
                // Perhaps it has no space: it is tried again once the log has some.
                *slot = IndexSlot::GaveWay;
            }
        }
        let next = Catalog::new(segments, through, index);
        if next.index().is_some_and(|index| !next.is_covered_by(index.applied())) {
            // The store is being closed: what was applied counts, the rest is for the next opening.
            return Ok(());
        }
        let mut guard = self.log.state.lock();
        let state = &mut *guard;
        state.unapplied.drain(..fresh.len());
        state.catalog = Arc::new(next);
        if let Some(through) = through {
            state.active.settle(through, &state.tail.builder);
        }
        if state.has_much_dead(fresh.iter()) {
            self.log.due.want(Wanted::COMPACT);
        }
        drop(guard);
        for segment in fresh {
            // A failure costs some space and nothing else.
            let _ = self.trim_sealed(&segment);
        }
        Ok(())
    }

    /// Applies what the index lacks of these segments. `None` if there is no index, or it failed.
    fn apply_to_index(
        &self,
        slot: &mut IndexSlot,
        segments: &[Arc<Segment>],
    ) -> Option<IndexSnapshot> {
        if matches!(slot, IndexSlot::Absent) && !segments.is_empty() {
            let _watch = self.log.setup.watch(Activity::IndexRebuild);
            let host = self.index_host(Vec::new(), 0);
            let identity = IndexIdentity { uuid: self.log.setup.uuid };
            let created =
                IndexStore::create(host.clone(), self.log.setup.options.index_cache, identity);
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
                if self.log.due.is_stopping() {
                    break;
                }
            }
        }
        if !changes.is_empty() {
            store.apply(&changes).ok()?;
        }
        store.snapshot().ok()
    }

    /// Gives back what is behind the directory of a sealed segment.
    fn trim_sealed(&self, segment: &Segment) -> Result<()> {
        let Some(sealed) = segment.sealed() else { return Ok(()) };
        let seal = segment.read_header(sealed.seal)?;
        let len = u32::try_from(seal.frame_len()).unwrap_or(u32::MAX);
        self.log.space.trim(segment.file_offset(), sealed.seal.saturating_add(len))
    }

    /// Whether there is work for [`Checkpoints::checkpoint`].
    pub(crate) fn is_due(&self) -> bool {
        let state = self.log.state.lock();
        state.is_due()
            || state.catalog.index_failed()
            || (self.log.setup.options.index
                && state.catalog.index().is_none()
                && !state.catalog.segments().is_empty())
    }

    /// Drops the index, and gives its space back: on a full disk it gives way to deletions. It is
    /// built anew once there is space for the log to go on. Answers whether there was one.
    pub(crate) fn make_way(&self) -> Result<bool> {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Off | IndexSlot::GaveWay) {
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
        let mut allocator = space.allocator.lock();
        if allocator.superblock.flags & FLAG_INDEX_OPENING != 0 {
            allocator.write_superblock(|block| block.flags &= !FLAG_INDEX_OPENING)?;
        }
        for &extent in extents.iter().filter(|extent| allocator.manifest.is_free(**extent)) {
            // What cannot be given back can be used all the same.
            let _ = space.punch_extents(extent, 1);
        }
        Ok(!extents.is_empty())
    }

    /// An index that is not there is not built: that would take what becomes free.
    pub(crate) fn put_off(&self) {
        let mut slot = self.index.lock();
        if matches!(*slot, IndexSlot::Absent) {
            *slot = IndexSlot::GaveWay;
        }
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
