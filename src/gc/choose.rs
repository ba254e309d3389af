//! Which segments a compaction should take. No I/O: it decides by the living bytes of each segment.

use crate::types::{ExtentNo, SegmentId};

/// The use of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentUse {
    pub(crate) id: SegmentId,
    pub(crate) extent: ExtentNo,
    /// Whether compaction made it.
    pub(crate) is_output: bool,
    /// The bytes of frames of living runs.
    pub(crate) live: u64,
    /// How many of these bytes belong to ended runs and are not compressed yet; zero if no
    /// compression is requested.
    pub(crate) cold: u64,
}

/// How much one compaction may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The bytes of an extent.
    pub(crate) extent: u64,
    /// The most bytes that it copies.
    pub(crate) bytes: u64,
    /// The most segments that it takes.
    pub(crate) segments: usize,
}

/// The most extents that a step may write for each one that it gains. Making the file shorter may
/// write one more for each extent that becomes free. So compaction never writes more than four
/// times what was appended, small segments that crashes left apart: nothing fills their extents.
const WRITTEN_PER_GAINED: u64 = 3;

/// Whether a step gains enough: it gives up `victims` segments and writes `outputs`.
pub(crate) fn is_worth(outputs: u64, victims: u64) -> bool {
    let gained = victims.saturating_sub(outputs);
    gained > 0 && outputs <= gained.saturating_mul(WRITTEN_PER_GAINED)
}

/// Segments that waste at least `waste` bytes and that together fit fewer outputs, the emptiest
/// first. Empty if nothing can be gained.
pub(crate) fn for_space(segments: &[SegmentUse], waste: u64, bound: Bound) -> Vec<SegmentUse> {
    let mut wasteful: Vec<SegmentUse> = segments
        .iter()
        .filter(|segment| bound.extent.saturating_sub(segment.live) >= waste.max(1))
        .copied()
        .collect();
    wasteful.sort_by_key(|segment| (segment.live, segment.id));
    let (mut taken, mut bytes, mut gains) = (0, 0_u64, 0);
    for segment in wasteful.iter().take(bound.segments) {
        bytes = bytes.saturating_add(segment.live);
        if bytes > bound.bytes && taken > 0 {
            break;
        }
        taken += 1;
        if is_worth(outputs(bytes, bound.extent), taken as u64) {
            gains = taken;
        }
    }
    wasteful.truncate(gains);
    wasteful
}

/// How many outputs these bytes of frames need, with room for their directories.
pub(crate) fn outputs(bytes: u64, extent: u64) -> u64 {
    bytes.div_ceil((extent - extent / 16).max(1))
}

/// The next segments with this many bytes to compress, the oldest first; empty if fewer segments
/// than `worth` have bytes to compress.
pub(crate) fn for_packing(
    segments: &[SegmentUse],
    least: u64,
    worth: usize,
    bound: Bound,
) -> Vec<SegmentUse> {
    let is_cold = |segment: &&SegmentUse| segment.cold >= least.max(1);
    let mut cold: Vec<SegmentUse> = segments.iter().filter(is_cold).copied().collect();
    if cold.len() < worth {
        return Vec::new();
    }
    cold.sort_by_key(|segment| segment.id);
    within(cold.into_iter(), bound)
}

/// The next segments, in the order of the log, that no compaction has ordered yet.
pub(crate) fn for_order(
    segments: &[SegmentUse],
    carried: &[SegmentId],
    bound: Bound,
) -> Vec<SegmentUse> {
    let mut fresh: Vec<SegmentUse> =
        segments.iter().filter(|segment| !segment.is_output).copied().collect();
    if fresh.is_empty() {
        return Vec::new();
    }
    fresh.sort_by_key(|segment| segment.id);
    // At most half of a step carries on from the last one. Otherwise no fresh segment would ever be
    // ordered where more runs are interleaved than one step takes.
    let carried = segments.iter().filter(|segment| carried.contains(&segment.id)).copied();
    let half = Bound { bytes: bound.bytes / 2, segments: bound.segments / 2, ..bound };
    let mut taken = within(carried, half);
    let rest = bound.bytes.saturating_sub(taken.iter().map(|segment| segment.live).sum());
    let segments = bound.segments.saturating_sub(taken.len());
    taken.extend(within(fresh.into_iter(), Bound { bytes: rest, segments, ..bound }));
    taken
}

/// The first segments within the bound, at least one.
fn within(segments: impl Iterator<Item = SegmentUse>, bound: Bound) -> Vec<SegmentUse> {
    let mut bytes = 0_u64;
    let mut taken: Vec<SegmentUse> = Vec::new();
    for segment in segments.take(bound.segments) {
        bytes = bytes.saturating_add(segment.live);
        if bytes > bound.bytes && !taken.is_empty() {
            break;
        }
        taken.push(segment);
    }
    taken
}

/// The segments at the end of the file that fit free extents in front of them. `free` counts the
/// free extents in front of `end`.
pub(crate) fn for_shrinking(segments: &[SegmentUse], free: u64, bound: Bound) -> Vec<SegmentUse> {
    let mut last: Vec<SegmentUse> = segments.to_vec();
    last.sort_by_key(|segment| core::cmp::Reverse(segment.extent));
    let (mut bytes, mut taken) = (0_u64, Vec::new());
    for segment in last.into_iter().take(bound.segments) {
        bytes = bytes.saturating_add(segment.live);
        let too_much = bytes > bound.bytes && !taken.is_empty();
        if too_much || outputs(bytes, bound.extent) + 1 > free {
            break;
        }
        taken.push(segment);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound { extent: 1000, bytes: 4000, segments: 8 };

    fn used(id: u32, live: u64) -> SegmentUse {
        SegmentUse { id: SegmentId(id), extent: ExtentNo(id), is_output: false, live, cold: 0 }
    }

    fn ids(chosen: &[SegmentUse]) -> Vec<u32> {
        chosen.iter().map(|segment| segment.id.0).collect()
    }

    #[test]
    fn segments_are_taken_only_where_that_saves_an_extent() {
        assert_eq!(ids(&for_space(&[used(1, 600), used(2, 700)], 100, BOUND)), Vec::<u32>::new());
        assert_eq!(ids(&for_space(&[used(1, 400), used(2, 500)], 100, BOUND)), [1, 2]);
        assert_eq!(ids(&for_space(&[used(1, 900), used(2, 0)], 100, BOUND)), [2, 1]);
        assert_eq!(ids(&for_space(&[used(1, 950)], 100, BOUND)), Vec::<u32>::new());
    }

    #[test]
    fn a_step_writes_at_most_three_extents_for_each_that_it_gains() {
        assert!(is_worth(0, 1) && is_worth(3, 4) && is_worth(6, 8));
        assert!(!is_worth(0, 0) && !is_worth(1, 1) && !is_worth(4, 5) && !is_worth(7, 9));
        let many: Vec<SegmentUse> = (1..=8).map(|id| used(id, 800)).collect();
        assert_eq!(ids(&for_space(&many, 100, Bound { bytes: 8000, ..BOUND })), Vec::<u32>::new());
    }

    #[test]
    fn the_emptiest_come_first_and_the_bound_holds() {
        let many: Vec<SegmentUse> = (1..=20).map(|id| used(id, 600 - u64::from(id))).collect();
        let chosen = for_space(&many, 100, Bound { bytes: 4500, ..BOUND });
        assert!(chosen.len() <= 8 && !chosen.is_empty());
        assert_eq!(chosen[0].id, SegmentId(20));
        assert!(chosen.iter().map(|segment| segment.live).sum::<u64>() <= 4500);
    }

    #[test]
    fn what_was_put_in_order_is_not_taken_again_unless_it_was_carried() {
        let mut segments = vec![used(1, 500), used(2, 500), used(3, 500)];
        segments[0].is_output = true;
        assert_eq!(ids(&for_order(&segments, &[], BOUND)), [2, 3]);
        assert_eq!(ids(&for_order(&segments, &[SegmentId(1)], BOUND)), [1, 2, 3]);
        segments[1].is_output = true;
        segments[2].is_output = true;
        assert_eq!(ids(&for_order(&segments, &[SegmentId(1)], BOUND)), Vec::<u32>::new());
    }

    #[test]
    fn what_is_carried_leaves_room_for_what_was_not_put_in_order_yet() {
        let mut segments: Vec<SegmentUse> = (1..=12).map(|id| used(id, 500)).collect();
        for segment in &mut segments[..8] {
            segment.is_output = true;
        }
        let carried: Vec<SegmentId> = (1..=8).map(SegmentId).collect();
        assert_eq!(ids(&for_order(&segments, &carried, BOUND)), [1, 2, 3, 4, 9, 10, 11, 12]);
        let bound = Bound { bytes: 2000, ..BOUND };
        assert_eq!(ids(&for_order(&segments, &carried, bound)), [1, 2, 9, 10]);
    }

    #[test]
    fn cold_segments_are_taken_by_age_once_there_are_enough_of_them() {
        let mut segments = [used(3, 900), used(2, 900), used(1, 900), used(4, 900)];
        segments[0].cold = 800;
        segments[1].cold = 250;
        segments[2].cold = 249;
        assert_eq!(ids(&for_packing(&segments, 250, 2, BOUND)), [2, 3]);
        assert_eq!(ids(&for_packing(&segments, 250, 3, BOUND)), Vec::<u32>::new());
        assert_eq!(ids(&for_packing(&segments, 0, 1, BOUND)), [1, 2, 3]);
        let bound = Bound { bytes: 1000, ..BOUND };
        assert_eq!(ids(&for_packing(&segments, 0, 1, bound)), [1]);
    }

    #[test]
    fn the_end_of_the_file_moves_only_into_free_extents() {
        let segments = [used(1, 500), used(8, 900), used(9, 900)];
        assert_eq!(ids(&for_shrinking(&segments, 9, BOUND)), [9, 8, 1]);
        assert_eq!(ids(&for_shrinking(&segments, 2, BOUND)), [9]);
        assert_eq!(ids(&for_shrinking(&segments, 0, BOUND)), Vec::<u32>::new());
    }
}
