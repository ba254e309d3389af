//! Freeing the extents of dead segments, for new segments and for the file system.
//!
//! Ordering, and what breaks otherwise:
//!
//! 1. The evictions, and the numbers in use, are durable *before* RETIRED (O8). Otherwise a power
//!    cut would bring back parts of runs, or let a run number be given out again.
//! 2. The stored index has applied the evictions of a segment, or is dropped, *before* RETIRED
//!    (O17). Nothing else would ever tell the index that these runs are deleted.
//! 3. RETIRED is durable *before* anything of the segment is touched (O6). Otherwise a power cut
//!    would bring back a segment whose bytes already belong to another owner.
//! 4. No reader holds the segment *before* its extent counts as free. Otherwise a reader would see
//!    the bytes change. The header, which no reader looks at, is zeroed even while the segment is
//!    held.
//! 5. The zeroed header is durable *before* the extent counts as free, and before the next
//!    compaction. Otherwise salvage, without a manifest, would take the old segment for a living
//!    one.
//! 6. A segment with evictions is retired together with or after all others with frames of those
//!    runs. Otherwise a rebuild would bring the runs back. Its header is zeroed *after* those of
//!    segments without evictions. Otherwise salvage, without a manifest, would bring the runs back.
//! 7. FREE is durable *before* the file is cut off or the extent gets another owner.
//!
//! A quarantined segment, or one that cannot be read, stays. It may have frames of any run, so all
//! dead segments with evictions stay too; the others are freed.

mod prefault;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use self::prefault::Prefault;
use crate::engine::checkpoint::{Checkpoints, IndexSlot};
use crate::engine::setup::locks::{Rank, Ranked};
use crate::engine::setup::observer::Activity;
use crate::engine::setup::options::Rate;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::state::segment_directory::{evictions, has_evictions, runs_among};
use crate::engine::write::Log;
use crate::error::{Damage, Error, Place, Result};
use crate::format::map::manifest::{Change, Use};
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::gc;
use crate::index::IndexSnapshot;
use crate::types::{ExtentNo, LogPosition, RunNo, SegmentId};

/// What is remembered between steps. Only the holder of its lock compacts.
#[derive(Debug, Default)]
pub(crate) struct Compacting {
    /// Outputs with runs that continue behind the victims: the next step orders them.
    pub(crate) carried: Vec<SegmentId>,
    /// Segments that cannot move in their present state.
    pub(crate) unmovable: HashSet<SegmentId>,
    /// Segments that stay in this pass because they are damaged, or because of this failed read.
    pub(crate) damaged: BTreeMap<SegmentId, Option<Error>>,
    /// Why the first of them could not be read, until that is reported.
    pub(crate) unread: Option<Error>,
    /// Segments that gained nothing, with their living bytes at that time. They are left alone
    /// until fewer of their bytes live.
    pub(crate) settled: HashMap<SegmentId, u64>,
    /// Segments that compression did not make fewer, with their compressible bytes at that time.
    /// They are left alone until they have more.
    pub(crate) incompressible: HashMap<SegmentId, u64>,
    /// The living bytes of segments and how many of them can still be compressed, if counted.
    pub(crate) live: HashMap<SegmentId, (u64, u64)>,
    /// Whether segments were freed for which evictions may have been kept since.
    pub(crate) has_freed: bool,
    /// The most bytes a second that the holder of the lock writes.
    pub(crate) rate: Rate,
    /// Whether the step could take more segments than its bound allows.
    pub(crate) may_grow: bool,
    /// Whether it has taken more than its first bound allows.
    pub(crate) has_grown: bool,
    /// The bytes that a step read without gaining anything.
    pub(crate) read_in_vain: u64,
    /// The end of the log at the last write of compaction.
    pub(crate) seen: LogPosition,
}

impl Compacting {
    /// Begins a pass, in which all segments may be tried again.
    pub(crate) fn begin(&mut self) {
        self.unmovable.clear();
        self.carried.clear();
        self.damaged.clear();
    }

    /// Leaves a segment where it is, which is damaged or was not read for this error.
    pub(crate) fn leave(&mut self, id: SegmentId, error: Option<&Error>) {
        self.damaged.insert(id, error.cloned());
        self.unmovable.insert(id);
    }

    /// What was read of a segment; `None` if it is damaged or the disk cannot read it. Then it
    /// stays, and the others need not wait for it.
    pub(crate) fn unless_unread<T>(&mut self, id: SegmentId, read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(error @ (Error::Io { .. } | Error::Corrupt(_))) => {
                self.leave(id, Some(&error));
                self.unread.get_or_insert(error);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Notes that these segments together gained nothing: the fuller ones are left alone in their
    /// present state. The emptier ones may gain without them.
    pub(crate) fn settle_fuller(&mut self, tried: &[SegmentId]) {
        let live = |id: &SegmentId| self.live.get(id).map_or(0, |(live, _)| *live);
        let all: Vec<_> = tried.iter().map(|id| (*id, live(id))).collect();
        let least = all.iter().map(|(_, live)| *live).min().unwrap_or(0);
        let most = all.iter().map(|(_, live)| *live).max().unwrap_or(0);
        let fuller = all.into_iter().filter(|(_, live)| *live >= least.midpoint(most));
        self.settled.extend(fuller);
    }
}

/// Retires dead segments and frees their extents.
#[derive(Debug)]
pub(crate) struct Reclaimer {
    pub(crate) log: Arc<Log>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    /// Held while moving, retiring or freeing segments.
    pub(crate) compacting: Ranked<Compacting>,
    /// Held while mapping a segment.
    prefault: Ranked<Prefault>,
}

impl Reclaimer {
    pub(crate) fn new(checkpoints: &Arc<Checkpoints>) -> Self {
        let (log, checkpoints) = (Arc::clone(&checkpoints.log), Arc::clone(checkpoints));
        let compacting = Ranked::of(&log.disk, Rank::Compacting, Compacting::default());
        let prefault = Ranked::of(&log.disk, Rank::Prefault, Prefault::default());
        Self { log, checkpoints, compacting, prefault }
    }

    /// Frees every segment that is dead, is not needed, and has no readers.
    pub(crate) fn reclaim(&self) -> Result<()> {
        self.free_dead(&mut self.compacting.lock())
    }

    /// Like [`Reclaimer::reclaim`], for a caller that holds the lock on compaction. A segment that
    /// cannot be read is no failure of the call: only the observer and `RunLog::health` are told.
    pub(crate) fn free_dead(&self, compacting: &mut Compacting) -> Result<()> {
        let mut freed = Ok(());
        let _ = self.log.setup.watch(Activity::Reclaim, || {
            freed = self.free_all_dead(compacting);
            let unread = compacting.unread.take().map_or(Ok(()), Err);
            freed.clone().and(unread)
        });
        freed
    }

    fn free_all_dead(&self, compacting: &mut Compacting) -> Result<()> {
        self.free_retired(compacting)?;
        if self.retire_dead(compacting)? { self.free_retired(compacting) } else { Ok(()) }
    }

    /// Retires dead segments; returns whether there were any.
    fn retire_dead(&self, compacting: &mut Compacting) -> Result<bool> {
        let (catalog, deleted, later, suspects) = {
            let mut guard = self.log.state.lock();
            let state = &mut *guard;
            let (catalog, through) = (Arc::clone(&state.catalog), state.catalog.through());
            let is_covered =
                |id: &SegmentId| catalog.segment(*id).is_some() || Some(*id) <= through;
            let (now, yet): (BTreeSet<_>, _) =
                core::mem::take(&mut state.suspects).into_iter().partition(is_covered);
            state.suspects = yet;
            (catalog, Arc::clone(&state.deleted), state.unapplied.clone(), now)
        };
        compacting.live.retain(|id, _| !suspects.contains(id));
        let has_freed = core::mem::take(&mut compacting.has_freed);
        let is_deleted = |run_no| deleted.contains(run_no);
        let mut again = BTreeSet::new();
        let found = (&suspects, has_freed);
        let dead = self.find_dead(compacting, &catalog, found, is_deleted, &mut again);
        let retired = dead.and_then(|dead| {
            let stays = |segment: &&Arc<Segment>| !dead.contains_key(&segment.id());
            let staying = catalog.segments().iter().filter(stays).chain(&later).cloned().collect();
            let gone = self.without_needed(compacting, dead, staying, &mut again)?;
            if gone.is_empty() {
                return Ok(false);
            }
            if !self.index_knows_evictions(&gone) {
                self.checkpoints.checkpoint()?;
            }
            let mut index = self.checkpoints.index.lock();
            self.retire(&mut index, &gone, Vec::new())?;
            self.forget(gone);
            Ok(true)
        });
        if retired.is_err() || self.log.due.is_stopping() {
            // Not all of them were checked.
            self.log.state.lock().suspects.extend(suspects);
            compacting.has_freed |= has_freed;
        } else {
            self.log.state.lock().suspects.extend(again);
        }
        retired
    }

    /// The dead ones among the suspects. If there are any, or something was freed, also all other
    /// dead segments with evictions, which may not be needed any more. Those that cannot be read
    /// are to be tried `again`.
    fn find_dead(
        &self,
        compacting: &mut Compacting,
        catalog: &Catalog,
        (suspects, has_freed): (&BTreeSet<SegmentId>, bool),
        is_deleted: impl Fn(RunNo) -> bool,
        again: &mut BTreeSet<SegmentId>,
    ) -> Result<BTreeMap<SegmentId, Arc<Segment>>> {
        let mut dead = BTreeMap::new();
        let all = catalog.segments().iter();
        let (suspected, rest): (Vec<_>, Vec<_>) =
            all.partition(|segment| suspects.contains(&segment.id()));
        let evicting = rest.into_iter().filter(|segment| has_evictions(segment)).collect();
        for some in [suspected, evicting] {
            for segment in some {
                if self.log.due.is_stopping() {
                    break;
                }
                let id = segment.id();
                let is_dead =
                    segment.in_directory(|directory| gc::is_dead(&directory, &is_deleted));
                match compacting.unless_unread(id, is_dead)? {
                    Some(true) => drop(dead.insert(id, Arc::clone(segment))),
                    Some(false) => {}
                    None => drop(again.insert(id)),
                }
            }
            if dead.is_empty() && !has_freed {
                break;
            }
        }
        Ok(dead)
    }

    /// Dead segments without those that are needed: for an eviction of a run that has frames in a
    /// segment that stays, or for a receipt that is kept. One that stays and cannot be read may
    /// have frames of any run. What is kept for that reason is to be tried `again`.
    fn without_needed(
        &self,
        compacting: &mut Compacting,
        mut dead: BTreeMap<SegmentId, Arc<Segment>>,
        mut staying: Vec<Arc<Segment>>,
        again: &mut BTreeSet<SegmentId>,
    ) -> Result<Vec<Arc<Segment>>> {
        let receipts = self.log.reader.kept_receipts();
        let mut evicting = RunSet::default();
        for segment in dead.values() {
            if self.log.due.is_stopping() {
                return Ok(Vec::new());
            }
            let id = segment.id();
            let read = receipts.bytes_in(segment).and_then(|kept| Ok((kept, evictions(segment)?)));
            let read = compacting.unless_unread(id, read)?;
            if read.as_ref().is_none_or(|(kept, _)| *kept > 0) {
                staying.push(Arc::clone(segment));
            }
            if read.is_none() {
                again.insert(id);
            }
            evicting.extend(read.into_iter().flat_map(|(_, evicted)| evicted));
        }
        // Segments that stay may need others in turn.
        while !staying.is_empty() {
            let mut found = RunSet::default();
            for segment in staying.drain(..) {
                if self.log.due.is_stopping() {
                    return Ok(Vec::new());
                }
                dead.remove(&segment.id());
                let some = runs_among(&segment, &evicting);
                match compacting.unless_unread(segment.id(), some)? {
                    Some(some) => found.extend(some),
                    None => {
                        let needed = dead.extract_if(.., |_, segment| has_evictions(segment));
                        again.extend(needed.map(|(id, _)| id));
                    }
                }
            }
            for (id, segment) in &dead {
                let evicted = compacting.unless_unread(*id, evictions(segment))?;
                if evicted.is_none_or(|some| some.iter().any(|no| found.contains(*no))) {
                    staying.push(Arc::clone(segment));
                }
            }
        }
        Ok(dead.into_values().collect())
    }

    /// Makes segments retired, durably, in the same batch of the manifest as `changes`. It first
    /// drops an index that lacks one of their evictions. The caller holds the lock on compaction
    /// and that of the index, so that no other thread builds an index or replaces the catalog.
    pub(crate) fn retire(
        &self,
        index: &mut IndexSlot,
        gone: &[Arc<Segment>],
        mut changes: Vec<Change>,
    ) -> Result<()> {
        self.log.sync_all()?;
        self.log.secure_numbers()?;
        if !self.index_knows_evictions(gone) {
            self.checkpoints.drop_index(index)?;
        }
        let freed = gone.len().saturating_sub(changes.len()) as u64;
        changes.extend(gone.iter().map(|segment| Change::Retire { extent: segment.extent() }));
        let mut allocator = self.log.space.allocator.lock();
        allocator.may_move += freed;
        allocator.commit_durably(&changes)
    }

    /// Whether the file has no index that lacks an eviction of these segments.
    fn index_knows_evictions(&self, segments: &[Arc<Segment>]) -> bool {
        if self.log.space.allocator.lock().manifest.extents().index_len == 0 {
            return true;
        }
        let catalog = Arc::clone(&self.log.state.lock().catalog);
        let applied = catalog.index().map(IndexSnapshot::applied).unwrap_or_default();
        segments.iter().all(|segment| !has_evictions(segment) || segment.is_covered_by(applied))
    }

    /// Removes retired segments from the catalog, while the index is locked.
    fn forget(&self, mut dead: Vec<Arc<Segment>>) {
        let gone: BTreeSet<SegmentId> = dead.iter().map(|segment| segment.id()).collect();
        let mut state = self.log.state.lock();
        let living = state.catalog.segments().iter();
        let living = living.filter(|segment| !gone.contains(&segment.id()));
        let living: Vec<Arc<Segment>> = living.cloned().collect();
        let (through, index) = (state.catalog.through(), state.catalog.index().cloned());
        state.catalog = Arc::new(state.catalog.of_others(living, through, index));
        state.suspects.retain(|id| !gone.contains(id));
        for segment in &dead {
            segment.note(Mark::Retired);
        }
        state.retired.append(&mut dead);
    }

    /// Frees retired segments without holders.
    pub(crate) fn free_retired(&self, compacting: &mut Compacting) -> Result<()> {
        let mut waiting = core::mem::take(&mut self.log.state.lock().retired);
        if waiting.is_empty() {
            return Ok(());
        }
        let mut forgotten = RunSet::default();
        let freed = self.zero_and_free(compacting, &mut waiting, &mut forgotten);
        let mut state = self.log.state.lock();
        state.retired.append(&mut waiting);
        // The last place that evicts a run may be one that the catalog does not cover.
        for eviction in state.tail.builder.evictions() {
            forgotten.remove(eviction.run_no);
        }
        let (catalog, later) = (Arc::clone(&state.catalog), state.unapplied.clone());
        drop(state);
        // An eviction elsewhere may have been kept for a freed segment, or be a copy.
        compacting.has_freed = true;
        for segment in catalog.segments().iter().chain(&later) {
            if self.log.due.is_stopping() {
                return freed;
            }
            match compacting.unless_unread(segment.id(), evictions(segment))? {
                Some(evicted) => {
                    for run_no in evicted {
                        forgotten.remove(run_no);
                    }
                }
                None => forgotten.clear(),
            }
        }
        if !forgotten.is_empty() {
            let mut state = self.log.state.lock();
            Arc::make_mut(&mut state.deleted).remove_all(&forgotten);
        }
        freed
    }

    /// Zeroes the headers of retired segments, frees those without holders, and collects the runs
    /// that they evicted.
    fn zero_and_free(
        &self,
        compacting: &mut Compacting,
        waiting: &mut Vec<Arc<Segment>>,
        forgotten: &mut RunSet,
    ) -> Result<()> {
        // A manifest from before RETIRED would still refer to what is overwritten now.
        self.log.space.allocator.lock().cover()?;
        let was_held = |one: &&Arc<Segment>| one.is(Mark::Erased) || one.sealed().is_none();
        let kept: Vec<ExtentNo> = waiting.iter().filter(was_held).map(|one| one.extent()).collect();
        let left = waiting.iter().filter(|segment| !segment.is(Mark::Erased));
        // One that was retired before the opening has no SEAL record, and may have evictions.
        let (last, first): (Vec<_>, Vec<_>) =
            left.partition(|one| one.sealed().is_none_or(|sealed| sealed.has_evictions));
        for pass in [first, last].into_iter().filter(|pass| !pass.is_empty()) {
            if self.log.due.is_stopping() {
                break;
            }
            self.erase_headers(&pass)?;
            for segment in pass {
                let evicted = compacting.unless_unread(segment.id(), evictions(segment))?;
                forgotten.extend(evicted.unwrap_or_default());
            }
        }
        self.await_prefault();
        // Checked once for each: a reader may drop a segment at any moment.
        let is_free =
            |segment: &Arc<Segment>| segment.is(Mark::Erased) && Arc::strong_count(segment) == 1;
        let (free, held): (Vec<_>, Vec<_>) = waiting.drain(..).partition(is_free);
        *waiting = held;
        let changes: Vec<Change> =
            free.iter().map(|segment| Change::Free { extent: segment.extent() }).collect();
        if changes.is_empty() {
            return Ok(());
        }
        let mut allocator = self.log.space.allocator.lock();
        let freed = allocator.commit(&changes);
        match freed {
            Ok(()) => allocator.freed.extend(kept),
            Err(_) => waiting.extend(free),
        }
        freed
    }

    /// Durably zeroes the headers of retired segments, and of outputs that do not count. If the
    /// manifest has one of them in another state, it returns an error and touches none.
    fn erase_headers(&self, segments: &[&Arc<Segment>]) -> Result<()> {
        for extent in segments.iter().map(|segment| segment.extent()) {
            match self.log.space.allocator.lock().manifest.extents().uses.get(&extent) {
                Some(
                    Use::Retired { .. } | Use::Log { purpose: Purpose::Output, sealed: None, .. },
                ) => {}
                _ => return Err(Error::corrupt(Place::Extent { extent }, Damage::Mismatch)),
            }
        }
        for segment in segments {
            self.log.disk.write(segment.file_offset(), &[0; SEGMENT_HEADER_LEN as usize])?;
        }
        let committed = self.log.space.allocator.lock().manifest.committed();
        self.log.disk.sync()?;
        self.log.space.allocator.lock().manifest.synced_up_to(committed);
        for segment in segments {
            segment.note(Mark::Erased);
        }
        Ok(())
    }
}
