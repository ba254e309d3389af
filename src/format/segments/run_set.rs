//! Sets of run numbers.

use roaring::RoaringTreemap;

use crate::types::RunNo;

/// A set of run numbers, in compressed bitmaps: numbers are given out in order, with gaps after
/// crashes. A million runs next to one another take 128 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunSet(RoaringTreemap);

impl RunSet {
    #[inline]
    pub(crate) fn contains(&self, run_no: RunNo) -> bool {
        self.0.contains(run_no.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// In ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = RunNo> {
        self.0.iter().map(RunNo)
    }

    pub(crate) fn remove(&mut self, run_no: RunNo) {
        self.0.remove(run_no.0);
    }

    /// Removes all numbers of `other`.
    pub(crate) fn remove_all(&mut self, other: &Self) {
        self.0 -= &other.0;
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Extend<RunNo> for RunSet {
    fn extend<I: IntoIterator<Item = RunNo>>(&mut self, numbers: I) {
        self.0.extend(numbers.into_iter().map(|run_no| run_no.0));
    }
}

impl FromIterator<RunNo> for RunSet {
    fn from_iter<I: IntoIterator<Item = RunNo>>(numbers: I) -> Self {
        Self(numbers.into_iter().map(|run_no| run_no.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each unclean opening may leave 2^24 numbers out, and a copy 2^40.
    #[test]
    fn sets_of_numbers_with_large_gaps_stay_small() {
        let starts = (0..100_u64).map(|kill| kill << 24).chain([1 << 40, (1 << 49) + (3 << 24)]);
        let numbers = starts.flat_map(|start| (start..start + 20_000).step_by(2)).map(RunNo);
        let set: RunSet = numbers.clone().collect();
        assert_eq!(set.len(), 102 * 10_000);
        assert!(set.0.serialized_size() < 2 << 20, "{} bytes", set.0.serialized_size());
        assert!(numbers.clone().all(|run_no| set.contains(run_no)));
        let mut rest = set.clone();
        rest.remove_all(&numbers.skip(1).collect());
        assert_eq!(rest.iter().collect::<Vec<_>>(), [RunNo(0)]);
    }
}
