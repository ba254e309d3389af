//! C3 and C4: the outputs begin to count, and the catalog, the index and the runs in memory learn
//! the new places of records.

use std::sync::Arc;

use crate::engine::checkpoint::IndexSlot;
use crate::engine::compact::Compactor;
use crate::engine::compact::gather::{Folded, Living, Obstacle, living_runs};
use crate::engine::compact::job::Job;
use crate::engine::setup::due::Wanted;
use crate::engine::setup::observer::Activity;
use crate::engine::state::catalog::{Catalog, stamp_of};
use crate::engine::state::segment::{Mark, Segment};
use crate::error::{Error, Result};
use crate::format::segments::run_set::RunSet;
use crate::index::{IndexSnapshot, Relocated, Relocation};
use crate::types::SegmentId;

impl Compactor {
    /// Replaces the victims by the outputs. Returns false, and changes nothing, if the outputs say
    /// something else about a run than was known.
    pub(super) fn count_outputs(&self, job: &Job, outputs: &[Arc<Segment>]) -> Result<bool> {
        // Read now, so that no call that needs the index waits for it.
        for output in outputs {
            output.directory()?;
        }
        // No other thread replaces the catalog while the index is locked.
        let mut slot = self.checkpoints.index.lock();
        if self.log.due.is_stopping() {
            // The last checkpoint may have applied segments to the index that the catalog lacks.
            return Err(Error::Closed);
        }
        let catalog = Arc::clone(&self.log.state.lock().catalog);
        let victims: Vec<SegmentId> =
            job.gathered.victims.iter().map(|victim| victim.segment.id()).collect();
        let stay = catalog.segments().iter().filter(|segment| !victims.contains(&segment.id()));
        let mut segments: Vec<Arc<Segment>> = stay.chain(outputs).cloned().collect();
        segments.sort_by_key(|segment| segment.id());
        let next = catalog.of_others(segments.clone(), catalog.through(), None);
        let next = next.without_stale_places();
        let Some(moved) = moved_runs(&job.gathered.living, outputs)? else { return Ok(false) };
        // C3: from here on the outputs count and the victims do not.
        let sealed = outputs.iter().filter_map(|output| output.sealing());
        let gone: Vec<_> =
            job.gathered.victims.iter().map(|victim| Arc::clone(&victim.segment)).collect();
        self.reclaimer.retire(&mut slot, &gone, sealed.collect())?;
        for output in outputs {
            output.note(Mark::Durable);
        }
        {
            let deleted = Arc::clone(&self.log.state.lock().deleted);
            next.locate_all(&deleted);
        }
        let index = self.relocate_index(&mut slot, &catalog, (outputs, &victims), &moved);
        let is_lost = index.is_none() && matches!(*slot, IndexSlot::Open { .. });
        {
            let state = &mut *self.log.state.lock();
            state.catalog = Arc::new(next.of_others(segments, catalog.through(), index));
            for (moved, folded) in &moved {
                state.active.relocate(moved, &folded.row, &victims);
            }
            state.suspects.extend(outputs.iter().map(|segment| segment.id()));
            state.suspects.retain(|id| !victims.contains(id));
            state.retired.extend(gone);
            for segment in &state.retired {
                segment.note(Mark::Retired);
            }
        }
        self.log.due.want(Wanted::RECLAIM);
        if is_lost {
            self.log.due.want(Wanted::CHECKPOINT);
            // The outputs count in any case: an error here would free them.
            let drop_index = || self.checkpoints.drop_index(&mut slot);
            let _ = self.log.setup.watch_failure(Activity::IndexCheckpoint, drop_index);
        }
        Ok(true)
    }

    /// Updates the index, if there is one that covers what the catalog covers.
    fn relocate_index(
        &self,
        slot: &mut IndexSlot,
        catalog: &Catalog,
        (outputs, victims): (&[Arc<Segment>], &[SegmentId]),
        moved: &[(Relocated, Folded)],
    ) -> Option<IndexSnapshot> {
        let IndexSlot::Open { store, .. } = slot else { return None };
        let known = catalog.index().map(IndexSnapshot::applied);
        if known.is_none() || catalog.index_failure().is_some() {
            return None;
        }
        debug_assert!(store.applied().ok().is_none_or(|applied| Some(applied) == known));
        let outputs = outputs.iter().map(|segment| (segment.id(), stamp_of(segment))).collect();
        let relocated = self.log.setup.watch_failure(Activity::IndexCheckpoint, || {
            let runs = moved.iter().map(|(moved, _)| moved.clone()).collect();
            store.relocate(&Relocation { outputs, victims: victims.to_vec(), runs })?;
            Ok(store.snapshot()?)
        });
        relocated.ok()
    }
}

/// Each run that moved, and the fold of its entries in the outputs; `None` if the outputs say
/// something else of one of them than the victims.
fn moved_runs(
    before: &Living,
    outputs: &[Arc<Segment>],
) -> Result<Option<Vec<(Relocated, Folded)>>> {
    let mut after = match living_runs(outputs, &RunSet::default(), || false) {
        Ok(after) => after,
        Err(Obstacle::Failed(error)) => return Err(error),
        Err(_) => return Ok(None),
    };
    let mut moved = Vec::with_capacity(before.len());
    for (&run_no, before) in before {
        let after = after.remove(&run_no).filter(|after| after.says_the_same(before));
        let Some(after) = after else { return Ok(None) };
        let stored = [before.row.stored, after.row.stored];
        let segments = after.row.segments.clone();
        moved.push((Relocated { run_no, segments, stored }, after));
    }
    Ok(after.is_empty().then_some(moved))
}
