//! Where runs are that were looked up, in 16 bytes each.
//!
//! A table of sets of four, found by the hash of the run's id. Hashes may collide and places may
//! be forgotten: whoever asks compares what stands at the place with what was asked for.

use std::hash::{BuildHasher, RandomState};

use crate::index::Span;
use crate::types::{Lsn, SegmentId, Seq};

/// The most runs that there is room for, 32 MiB.
const MOST: u64 = 2 << 20;

/// Places in one set, which is a line of the processor's cache.
const WAYS: usize = 4;

/// Where runs are that were looked up.
#[derive(Debug)]
pub(crate) struct Places {
    hasher: RandomState,
    sets: Vec<[Entry; WAYS]>,
}

/// Tag of the id (0 for none), first segment, last segment, and both slots in 16 bits each.
type Entry = [u32; 4];

/// The one or two places of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spots {
    spans: [Span; 2],
    len: usize,
}

impl Spots {
    /// The places as spans without counts.
    pub(crate) fn as_slice(&self) -> &[Span] {
        self.spans.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn first(&self) -> Option<Span> {
        self.as_slice().first().copied()
    }
}

impl Places {
    /// Room for so many runs, up to a limit. Memory is taken as it is used.
    pub(crate) fn for_runs(runs: u64) -> Self {
        let room = runs.clamp(1 << 10, MOST).next_power_of_two();
        let sets = usize::try_from(room).unwrap_or(WAYS) / WAYS;
        Self { hasher: RandomState::new(), sets: vec![[[0; 4]; WAYS]; sets] }
    }

    /// The number of the set of an id, and its tag.
    fn hash(&self, run: &str) -> (usize, u32) {
        let hash = self.hasher.hash_one(run);
        let set = usize::try_from(hash % self.sets.len() as u64).unwrap_or_default();
        (set, ((hash >> 32) as u32).max(1))
    }

    /// Where a run with this id, or one with the same hash, is.
    pub(crate) fn get(&self, run: &str) -> Option<Spots> {
        let (set, tag) = self.hash(run);
        let &[_, first, last, slots] = self.sets.get(set)?.iter().find(|entry| entry[0] == tag)?;
        let spans = [span(first, slots & 0xffff), span(last, slots >> 16)];
        Some(Spots { spans, len: if spans[0] == spans[1] { 1 } else { 2 } })
    }

    /// Keeps where a run is, perhaps in the place of another. Runs that are in more than two
    /// segments, or among too many others, are left out.
    pub(crate) fn keep(&mut self, run: &str, spans: &[Span]) {
        let (first, last) = match spans {
            [only] => (only, only),
            [first, last] => (first, last),
            _ => return,
        };
        let [Ok(low), Ok(high)] = [first.slot, last.slot].map(u16::try_from) else { return };
        let slots = u32::from(low) | u32::from(high) << 16;
        let (set, tag) = self.hash(run);
        let Some(set) = self.sets.get_mut(set) else { return };
        let same = set.iter().position(|entry| entry[0] == tag);
        let way = same.or_else(|| set.iter().position(|entry| entry[0] == 0));
        let way = way.unwrap_or(tag as usize % WAYS);
        set[way] = [tag, first.segment.0, last.segment.0, slots];
    }
}

fn span(segment: u32, slot: u32) -> Span {
    Span {
        segment: SegmentId(segment),
        slot,
        first_seq: None,
        next_seq: Seq(0),
        records: 0,
        pieces: 0,
        stored: 0,
        first_lsn: Lsn(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, slot: u32) -> Span {
        Span { records: 3, ..span(segment, slot) }
    }

    #[test]
    fn the_places_of_runs_come_back_without_their_counts() {
        let mut places = Places::for_runs(0);
        places.keep("one", &[at(7, 65_535)]);
        places.keep("two", &[at(8, 1), at(9, 0)]);
        assert_eq!(places.get("one").unwrap().as_slice(), [span(7, 65_535)]);
        assert_eq!(places.get("two").unwrap().as_slice(), [span(8, 1), span(9, 0)]);
        assert_eq!(places.get("three"), None);
    }

    #[test]
    fn a_run_in_many_segments_or_far_behind_in_a_directory_is_left_out() {
        let mut places = Places::for_runs(0);
        places.keep("many", &[at(1, 1), at(2, 1), at(3, 1)]);
        places.keep("far", &[at(1, 65_536)]);
        places.keep("none", &[]);
        for run in ["many", "far", "none"] {
            assert_eq!(places.get(run), None, "{run}");
        }
    }

    #[test]
    fn more_runs_than_there_is_room_for_take_the_place_of_others_only() {
        let mut places = Places::for_runs(0);
        let name = |run: u32| format!("run-{run}");
        (0..10_000).for_each(|run| places.keep(&name(run), &[at(run, 0)]));
        let kept = (0..10_000).filter(|&run| places.get(&name(run)).is_some()).count();
        assert!((900..=1_024).contains(&kept), "{kept}");
    }
}
