//! In which order the headers of retired segments are zeroed: those with evictions after those with
//! frames of the evicted runs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::engine::reclaim::Compacting;
use crate::engine::setup::due::Due;
use crate::engine::state::evictions::{evictions, runs_among};
use crate::engine::state::segment::Segment;
use crate::error::Result;
use crate::types::{RunNo, SegmentId};

/// What decides in which order the headers of retired segments are zeroed.
#[derive(Default)]
pub(super) struct Turns {
    /// The runs that each segment evicts.
    pub(super) evicted: BTreeMap<SegmentId, Vec<RunNo>>,
    /// Those of these runs that each segment has frames of.
    pub(super) held: BTreeMap<SegmentId, Vec<RunNo>>,
    /// In how many segments such a run has frames.
    pub(super) holders: HashMap<RunNo, usize>,
    /// All in one turn: it is not known which of them must be the last.
    pub(super) at_once: bool,
}

impl Turns {
    /// Reads the segments, until the work must stop. One that cannot be read may have frames and
    /// evictions of any run.
    pub(super) fn read(
        compacting: &mut Compacting,
        left: &[&Arc<Segment>],
        due: &Due,
    ) -> Result<Self> {
        let (mut turns, mut is_unread) = (Self::default(), false);
        for segment in left.iter().take_while(|_| !due.is_stopping()) {
            let id = segment.id();
            match compacting.unless_unread(id, evictions(segment))? {
                Some(runs) => drop(turns.evicted.insert(id, runs)),
                None => is_unread = true,
            }
        }
        turns.holders = turns.evicted.values().flatten().map(|run_no| (*run_no, 0)).collect();
        let read = left.iter().filter(|segment| turns.evicted.contains_key(&segment.id()));
        for segment in read.take_while(|_| !due.is_stopping()) {
            let (id, runs) = (segment.id(), runs_among(segment, &turns.holders));
            let Some(runs) = compacting.unless_unread(id, runs)? else {
                is_unread = true;
                continue;
            };
            for run_no in &runs {
                turns.holders.entry(*run_no).and_modify(|count| *count += 1);
            }
            turns.held.insert(id, runs);
        }
        turns.at_once = is_unread;
        Ok(turns)
    }
}
