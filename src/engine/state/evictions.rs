//! Which runs a segment evicts, and which of them have frames in it.

use std::collections::HashMap;

use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::format::segments::run_set::RunSet;
use crate::types::RunNo;

/// Whether a sealed segment evicts runs.
pub(crate) fn has_evictions(segment: &Segment) -> bool {
    segment.sealed().is_some_and(|sealed| sealed.has_evictions)
}

/// The runs that a sealed segment evicts.
pub(crate) fn evictions(segment: &Segment) -> Result<Vec<RunNo>> {
    if !has_evictions(segment) {
        return Ok(Vec::new());
    }
    segment.in_directory(|directory| {
        directory.evictions().map(|found| found.map(|found| found.run_no)).collect()
    })
}

/// The asked runs that have frames in a segment, except those that the segment itself evicts.
pub(crate) fn runs_among<T>(segment: &Segment, asked: &HashMap<RunNo, T>) -> Result<Vec<RunNo>> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let own: RunSet = evictions(segment)?.into_iter().collect();
    let found: Vec<RunNo> = segment.in_directory(|directory| {
        if asked.len() >= directory.run_count() as usize {
            return (0..directory.run_count()).map(|slot| directory.run_no(slot)).collect();
        }
        let find = |run_no: &RunNo| Ok(directory.find_no(*run_no)?.map(|_| *run_no));
        asked.keys().filter_map(|run_no| find(run_no).transpose()).collect()
    })?;
    let is_asked = |run_no: &RunNo| asked.contains_key(run_no) && !own.contains(*run_no);
    Ok(found.into_iter().filter(is_asked).collect())
}
