//! Where runs are that were looked up, in 16 bytes each: a table of sets of four, found by the hash
//! of the run's id. Hashes may collide and places may be forgotten, so the caller compares what
//! stands at the place with what was asked for.

use std::hash::{BuildHasher, RandomState};

use crate::types::SegmentId;

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

/// A place of a run: a segment, and the slot in its directory.
pub(crate) type SpanAt = (SegmentId, u32);

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

    /// The first and the last place of a run with this id, or of one with the same hash.
    pub(crate) fn get(&self, run: &str) -> Option<[SpanAt; 2]> {
        let (set, tag) = self.hash(run);
        let &[_, first, last, slots] = self.sets.get(set)?.iter().find(|entry| entry[0] == tag)?;
        Some([(SegmentId(first), slots & 0xffff), (SegmentId(last), slots >> 16)])
    }

    /// Keeps where a run is, perhaps in the place of another. Runs that are in more than two
    /// segments, or among too many others, are left out.
    pub(crate) fn keep(&mut self, run: &str, spans: &[SpanAt]) {
        let [first, last] = match spans {
            [only] => [only, only],
            [first, last] => [first, last],
            _ => return,
        };
        let [Ok(low), Ok(high)] = [first.1, last.1].map(u16::try_from) else { return };
        let slots = u32::from(low) | u32::from(high) << 16;
        let (set, tag) = self.hash(run);
        let Some(set) = self.sets.get_mut(set) else { return };
        let same = set.iter().position(|entry| entry[0] == tag);
        let way = same.or_else(|| set.iter().position(|entry| entry[0] == 0));
        let way = way.unwrap_or(tag as usize % WAYS);
        set[way] = [tag, first.0.0, last.0.0, slots];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u32, slot: u32) -> SpanAt {
        (SegmentId(segment), slot)
    }

    #[test]
    fn runs_in_one_or_two_segments_and_not_far_behind_in_a_directory_come_back() {
        let mut places = Places::for_runs(0);
        let (one, two) = (at(7, 65_535), at(8, 1));
        for (run, spans, kept) in [
            ("one", &[one][..], Some([one, one])),
            ("two", &[one, two], Some([one, two])),
            ("many", &[one, two, at(9, 1)], None),
            ("far", &[at(1, 65_536)], None),
            ("none", &[], None),
        ] {
            places.keep(run, spans);
            assert_eq!(places.get(run), kept, "{run}");
        }
        assert_eq!(places.get("another"), None);
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
