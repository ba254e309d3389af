//! C4: the catalog, the index and the runs in memory learn where the records are now.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::job::Job;
use crate::engine::catalog::Catalog;
use crate::engine::index_slot::IndexSlot;
use crate::engine::recovery::rebuild_directory;
use crate::engine::segment::Segment;
use crate::engine::shared::Engine;
use crate::engine::upkeep::Wanted;
use crate::error::{Error, Place, Result};
use crate::format::RunEntry;
use crate::index::{IndexSnapshot, Relocation, RunRow, Span, fold_spans};
use crate::types::{RunNo, SegmentId};

impl Engine {
    /// Puts the outputs in the place of the victims.
    pub(super) fn relocate(&self, job: &Job, outputs: &[Arc<Segment>]) -> Result<()> {
        let mut slot = self.index.lock();
        // It may cover more segments by now; nobody replaces it while the index is locked.
        let catalog = Arc::clone(&self.core.lock().catalog);
        let victims: BTreeSet<SegmentId> =
            job.gathered.victims.iter().map(|victim| victim.segment.id()).collect();
        let stay = catalog.segments().iter().filter(|segment| !victims.contains(&segment.id()));
        let mut segments: Vec<Arc<Segment>> = stay.chain(outputs).cloned().collect();
        segments.sort_by_key(|segment| segment.id());
        let next = Catalog::new(segments.clone(), catalog.through(), None);
        let Moved { runs, gone } = moved_runs(job, outputs, &victims, &catalog, &next)?;
        let index = self.relocate_index(&mut slot, &catalog, outputs, &runs, &gone);
        if index.is_none() && matches!(*slot, IndexSlot::Open { .. }) {
            self.drop_index(&mut slot)?;
            self.upkeep.want(Wanted::CHECKPOINT);
        }
        let numbers = runs.iter().map(|(row, _)| row.run_no).chain(gone.iter().copied());
        let numbers: Vec<RunNo> = numbers.collect();
        let (mut core, entries) = loop {
            let (seen, entries) = self.unapplied_entries(&numbers)?;
            let core = self.core.lock();
            // None can become covered while the index is locked, but more may have been sealed.
            if core.unapplied.len() == seen {
                break (core, entries);
            }
        };
        let core = &mut *core;
        core.catalog = Arc::new(Catalog::new(segments, catalog.through(), index));
        for (row, _) in runs {
            core.hot.rebase(row.run_no, Some(row), &entries);
        }
        for run_no in gone {
            core.hot.rebase(run_no, None, &entries);
        }
        core.suspects.extend(outputs.iter().map(|segment| segment.id()));
        core.suspects.retain(|id| !victims.contains(id));
        let victims = job.gathered.victims.iter().map(|victim| Arc::clone(&victim.segment));
        core.retired.extend(victims);
        for segment in &core.retired {
            segment.note_retired();
        }
        self.upkeep.want(Wanted::RECLAIM);
        Ok(())
    }

    /// Tells the index, if there is one that covers what the catalog does.
    fn relocate_index(
        &self,
        slot: &mut IndexSlot,
        catalog: &Catalog,
        outputs: &[Arc<Segment>],
        runs: &[(RunRow, Vec<Span>)],
        gone: &[RunNo],
    ) -> Option<IndexSnapshot> {
        let IndexSlot::Open { store, .. } = slot else { return None };
        if catalog.index().is_none() || catalog.index_failed() {
            return None;
        }
        let compacted = outputs.iter().map(|segment| segment.id()).max().unwrap_or_default();
        let (runs, gone) = (runs.to_vec(), gone.to_vec());
        store.relocate(&Relocation { compacted, runs, gone }).ok()?;
        store.snapshot().ok()
    }

    /// What segments that the catalog does not cover say of these runs, and how many these are.
    fn unapplied_entries(&self, runs: &[RunNo]) -> Result<(usize, Vec<(SegmentId, RunEntry)>)> {
        let (segments, hot) = {
            let core = self.core.lock();
            let is_hot = |run_no: &RunNo| core.hot.get(*run_no).is_some();
            let hot: Vec<RunNo> = runs.iter().copied().filter(is_hot).collect();
            (core.unapplied.iter().cloned().collect::<Vec<_>>(), hot)
        };
        let mut entries = Vec::new();
        let seen = segments.len();
        for segment in segments {
            let directory = segment.directory(rebuild_directory)?;
            let place = Place::Directory { segment: segment.id() };
            let wrong = |damage| Error::corrupt(place, damage);
            for &run_no in &hot {
                if let Some(slot) = directory.find_no(run_no).map_err(wrong)? {
                    entries.push((segment.id(), directory.run(slot).map_err(wrong)?));
                }
            }
        }
        Ok((seen, entries))
    }
}

/// What the directories say of the runs that a step moved.
struct Moved {
    /// The rows and spans, as they are now.
    runs: Vec<(RunRow, Vec<Span>)>,
    /// Of these nothing was worth a copy, and nothing is left: versions of documents that were
    /// never written to their end.
    gone: Vec<RunNo>,
}

fn moved_runs(
    job: &Job,
    outputs: &[Arc<Segment>],
    victims: &BTreeSet<SegmentId>,
    before: &Catalog,
    after: &Catalog,
) -> Result<Moved> {
    let mut moved = Moved { runs: Vec::with_capacity(job.spans.len()), gone: Vec::new() };
    for &run_no in job.spans.keys() {
        // As of now: segments may have been applied since the step was planned.
        let all = if before.through() == job.catalog.through() {
            job.spans.get(&run_no).cloned().unwrap_or_default()
        } else {
            before.run_state(run_no)?.spans
        };
        let mut spans: Vec<Span> =
            all.into_iter().filter(|span| !victims.contains(&span.segment)).collect();
        for segment in outputs {
            let directory = segment.directory(rebuild_directory)?;
            let place = Place::Directory { segment: segment.id() };
            let wrong = |damage| Error::corrupt(place, damage);
            if let Some(slot) = directory.find_no(run_no).map_err(wrong)? {
                let entry = directory.run(slot).map_err(wrong)?;
                spans.push(Span::new(segment.id(), slot, &entry));
            }
        }
        let state = fold_spans(after, run_no, &spans)
            .map_err(|damage| Error::corrupt(Place::Index, damage))?;
        match state.row {
            Some(row) => moved.runs.push((row, state.spans)),
            None => moved.gone.push(run_no),
        }
    }
    Ok(moved)
}
