//! The places of runs that a compaction moved, for the index.

use std::sync::Arc;

use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::error::{Error, Place, Result};
use crate::index::{RunRow, RunState, Span, fold_spans};
use crate::types::RunNo;

/// The rows and spans of runs that moved.
pub(crate) type MovedRuns = Vec<(RunRow, Vec<Span>)>;

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
