//! Where runs are in the directories, for a process without an index.

use std::sync::Arc;

use crate::index::merge::Directories;
use crate::types::{RunNo, SegmentId};

/// So many segments that were added since are probed one by one.
const FEW: usize = 16;

/// Where runs are, for a process without an index, which would otherwise probe each directory for
/// each run. For each run and each eviction it has the segments that name it, out of the
/// directories of some moment. Segments that are gone since stay listed, which does no harm.
#[derive(Debug, Default)]
pub(crate) struct Places {
    /// The segments that were looked at, ascending, and what tells one from another with its id.
    looked_at: Vec<(SegmentId, u64)>,
    /// Those of them that are listed.
    segments: Vec<SegmentId>,
    by_id: Vec<(u32, SegmentId)>,
    by_run: Vec<(RunNo, SegmentId)>,
}

impl Places {
    /// The bytes of one run in one segment.
    pub(crate) const ENTRY: usize = size_of::<(u32, SegmentId)>() + size_of::<(RunNo, SegmentId)>();

    /// The places in these segments, which are ascending: those that are known already if they say
    /// enough. Segments that do not fit `most` bytes are left out, and are probed.
    pub(crate) fn of<D: Directories>(
        directories: &D,
        known: Option<&Arc<Self>>,
        most: usize,
    ) -> Arc<Self> {
        let segments = directories.segments();
        if let Some(known) = known {
            let seen = (0..).zip(segments).map(|(index, segment)| {
                let found = known.looked_at.binary_search_by_key(segment, |(id, _)| *id);
                let found = found.ok().and_then(|at| known.looked_at.get(at));
                found.map(|(_, stamp)| *stamp == directories.stamp(index))
            });
            let seen: Vec<Option<bool>> = seen.collect();
            let others = seen.iter().filter(|seen| seen.is_none()).count();
            // What another segment with the same id said is not to be believed.
            let is_true = !seen.contains(&Some(false));
            if is_true && others <= FEW.max(known.looked_at.len() / 8) {
                return Arc::clone(known);
            }
        }
        let mut places = Self::default();
        for (index, &segment) in segments.iter().enumerate() {
            places.looked_at.push((segment, directories.stamp(index)));
            if places.by_run.len() * Self::ENTRY >= most {
                continue;
            }
            let listed = directories.with(index, |view| {
                for slot in 0..view.run_count() {
                    places.by_id.push((view.hash_at(slot)?.0, segment));
                    places.by_run.push((view.run_no(slot)?, segment));
                }
                for eviction in view.evictions() {
                    places.by_run.push((eviction?.run_no, segment));
                }
                Ok(())
            });
            // One that cannot be read is asked each time, and says why.
            if listed.is_ok() {
                places.segments.push(segment);
            }
        }
        places.by_id.sort_unstable();
        places.by_run.sort_unstable();
        Arc::new(places)
    }

    /// The indexes in `ids`, which is ascending, of the segments that are not listed: each of them
    /// can have any run.
    pub(crate) fn unlisted(&self, ids: &[SegmentId]) -> Vec<usize> {
        // Both are ascending, and most of the ids are listed.
        let (mut unlisted, mut listed) = (Vec::new(), self.segments.iter().copied().peekable());
        for (index, id) in ids.iter().enumerate() {
            while listed.next_if(|listed| listed < id).is_some() {}
            if listed.peek() != Some(id) {
                unlisted.push(index);
            }
        }
        unlisted
    }

    /// The indexes in `ids` of the listed segments that have a run or evict it, and the `unlisted`.
    pub(crate) fn of_run(
        &self,
        run_no: RunNo,
        ids: &[SegmentId],
        unlisted: &[usize],
    ) -> Vec<usize> {
        among(listed(&self.by_run, run_no), ids, unlisted)
    }

    /// The indexes in `ids` of the listed segments that can have a run with this hash, and the
    /// `unlisted`.
    pub(crate) fn of_hash(&self, hash: u32, ids: &[SegmentId], unlisted: &[usize]) -> Vec<usize> {
        among(listed(&self.by_id, hash), ids, unlisted)
    }
}

fn among(
    found: impl Iterator<Item = SegmentId>,
    ids: &[SegmentId],
    unlisted: &[usize],
) -> Vec<usize> {
    let mut places: Vec<usize> = found.filter_map(|id| ids.binary_search(&id).ok()).collect();
    places.extend(unlisted);
    places.sort_unstable();
    places.dedup();
    places
}

/// The segments that a list has under a key.
fn listed<K: Ord + Copy>(
    list: &[(K, SegmentId)],
    key: K,
) -> impl Iterator<Item = SegmentId> + use<'_, K> {
    let start = list.partition_point(|(found, _)| *found < key);
    let behind = list.get(start..).unwrap_or_default().iter();
    behind.take_while(move |(found, _)| *found == key).map(|(_, segment)| *segment)
}
