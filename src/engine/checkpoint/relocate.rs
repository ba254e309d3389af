//! The places of runs that a compaction moved, for the index: at once, or at its next opening if
//! the process died between the manifest and the index.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::engine::checkpoint::{BATCH, Checkpoints};
use crate::engine::state::catalog::{Catalog, stamp_of};
use crate::engine::state::segment::Segment;
use crate::error::{Error, Place, Result, unless_damaged};
use crate::index::{Catalog as _, IndexStore, Relocation, RunRow, RunState, Span, fold_spans};
use crate::types::RunNo;

/// The rows and spans of runs that moved.
pub(crate) type MovedRuns = Vec<(RunRow, Vec<Span>)>;

impl Checkpoints {
    /// Moves in the index what a compaction moved whose process died before it could. An index that
    /// lacks more than that stays as it is.
    pub(super) fn follow_compaction(&self, store: &IndexStore) -> Result<()> {
        let index = store.snapshot()?;
        let (catalog, unapplied, deleted) = {
            let state = self.log.state.lock();
            (Arc::clone(&state.catalog), state.unapplied.clone(), Arc::clone(&state.deleted))
        };
        let all = catalog.segments().iter();
        let lacks = |segment: &&Arc<Segment>| !segment.is_covered_by(index.applied());
        let outputs = all.clone().filter(|segment| segment.is_output()).filter(lacks);
        let outputs: Vec<_> = outputs.cloned().collect();
        // For more of them a build takes about as long.
        if outputs.is_empty() || outputs.len() > BATCH {
            return Ok(());
        }
        let Some(runs) = unless_damaged(runs_in(&outputs))? else { return Ok(()) };
        let mut states = Vec::with_capacity(runs.len());
        for run_no in runs {
            let state = index.run_state(run_no)?;
            // It has yet to apply a segment from which the run moved.
            if state.row.is_none() && !deleted.contains(&run_no) {
                return Ok(());
            }
            states.push(state);
        }
        let moved = moved_runs(states.into_iter().map(Ok), &outputs, &catalog);
        let Some(runs) = unless_damaged(moved)?.flatten() else { return Ok(()) };
        let living: BTreeSet<_> = all.chain(&unapplied).map(|segment| segment.id()).collect();
        let mut victims = index.stamped()?;
        victims.retain(|id| !living.contains(id));
        let outputs = outputs.iter().map(|segment| (segment.id(), stamp_of(segment))).collect();
        Ok(store.relocate(&Relocation { outputs, victims, runs })?)
    }
}

/// The runs that have frames in these segments.
fn runs_in(segments: &[Arc<Segment>]) -> Result<BTreeSet<RunNo>> {
    let mut runs = BTreeSet::new();
    for segment in segments {
        segment.in_directory(|directory| {
            for slot in 0..directory.run_count() {
                runs.insert(directory.run_no(slot)?);
            }
            Ok(())
        })?;
    }
    Ok(runs)
}

/// The rows and spans of runs that moved to `outputs`, from the directories of the catalog `after`
/// that. `None` if one of them differs from before.
pub(crate) fn moved_runs(
    before: impl Iterator<Item = Result<RunState>>,
    outputs: &[Arc<Segment>],
    after: &Catalog,
) -> Result<Option<MovedRuns>> {
    let mut moved = Vec::new();
    for state in before {
        let RunState { row: Some(row), mut spans } = state? else { continue };
        spans.retain(|span| after.segment(span.segment).is_some());
        spans.extend(spans_in(outputs, row.run_no)?);
        let found = fold_spans(after, row.run_no, &spans)
            .map_err(|damage| Error::corrupt(Place::Index, damage))?;
        match found.row {
            Some(now) if now.says_the_same(&row) => moved.push((now, found.spans)),
            _ => return Ok(None),
        }
    }
    Ok(Some(moved))
}

fn spans_in(outputs: &[Arc<Segment>], run_no: RunNo) -> Result<Vec<Span>> {
    let mut spans = Vec::new();
    for segment in outputs {
        spans.extend(segment.in_directory(|directory| match directory.find_no(run_no)? {
            Some(slot) => Ok(Some(Span::new(segment.id(), slot, &directory.run(slot)?))),
            None => Ok(None),
        })?);
    }
    Ok(spans)
}
