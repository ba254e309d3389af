//! Which blocks of the file have space on the disk, and how many it may have.

/// The unit in which space is taken and given back.
pub(crate) const BLOCK_LEN: usize = 4096;

/// The blocks of one file.
#[derive(Debug)]
pub(crate) struct Space {
    taken: Vec<bool>,
    count: usize,
    limit: usize,
}

impl Space {
    /// All blocks of a file of `len` bytes, and no limit.
    pub(crate) fn full(len: usize) -> Self {
        let count = len.div_ceil(BLOCK_LEN);
        Self { taken: vec![true; count], count, limit: usize::MAX }
    }

    pub(crate) fn set_limit(&mut self, bytes: u64) {
        self.limit = usize::try_from(bytes / BLOCK_LEN as u64).unwrap_or(usize::MAX);
    }

    /// Allows no more blocks than are taken now.
    pub(crate) fn fill(&mut self) {
        self.limit = self.count;
    }

    /// The bytes of all blocks that are taken.
    pub(crate) fn taken(&self) -> u64 {
        (self.count * BLOCK_LEN) as u64
    }

    /// Takes the blocks of `start..end` one by one; returns the end of the range that has space
    /// now.
    pub(crate) fn take(&mut self, start: usize, end: usize) -> usize {
        if start >= end {
            return end;
        }
        let last = end.div_ceil(BLOCK_LEN);
        if self.taken.len() < last {
            self.taken.resize(last, false);
        }
        for block in start / BLOCK_LEN..last {
            if !self.taken[block] {
                if self.count >= self.limit {
                    return start.max(block * BLOCK_LEN);
                }
                self.taken[block] = true;
                self.count += 1;
            }
        }
        end
    }

    /// Whether all blocks of `start..end` are taken.
    pub(crate) fn has(&self, start: usize, end: usize) -> bool {
        let mut blocks = start / BLOCK_LEN..end.div_ceil(BLOCK_LEN);
        blocks.all(|block| self.taken.get(block).is_some_and(|taken| *taken))
    }

    /// Takes all blocks of `start..end`, or none and returns false.
    pub(crate) fn take_all(&mut self, start: usize, end: usize) -> bool {
        let blocks = start / BLOCK_LEN..end.div_ceil(BLOCK_LEN);
        let missing =
            blocks.filter(|block| !self.taken.get(*block).is_some_and(|taken| *taken)).count();
        if self.count.saturating_add(missing) > self.limit.max(self.count) {
            return false;
        }
        self.take(start, end) == end
    }

    /// Gives back the blocks that lie wholly within `start..end`.
    pub(crate) fn give_back(&mut self, start: usize, end: usize) {
        let first = start.div_ceil(BLOCK_LEN).min(self.taken.len());
        let last = (end / BLOCK_LEN).clamp(first, self.taken.len());
        for taken in &mut self.taken[first..last] {
            self.count -= usize::from(*taken);
            *taken = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_counted_once_and_given_back_whole() {
        let mut space = Space::full(BLOCK_LEN + 1);
        assert_eq!(space.taken(), 8192);
        assert_eq!(space.take(0, 3 * BLOCK_LEN), 3 * BLOCK_LEN);
        assert_eq!(space.taken(), 3 * 4096);
        assert!(space.has(5, 3 * BLOCK_LEN));
        assert!(!space.has(5, 3 * BLOCK_LEN + 1));
        space.give_back(1, 3 * BLOCK_LEN - 1);
        assert_eq!(space.taken(), 2 * 4096);
        space.give_back(0, usize::MAX);
        assert_eq!(space.taken(), 0);
    }

    #[test]
    fn the_limit_stops_takers() {
        let mut space = Space::full(0);
        space.set_limit(2 * 4096 + 100);
        assert!(!space.take_all(0, 2 * BLOCK_LEN + 1));
        assert_eq!(space.taken(), 0);
        assert_eq!(space.take(10, 5 * BLOCK_LEN), 2 * BLOCK_LEN);
        assert!(space.take_all(0, 2 * BLOCK_LEN), "it has these already");
        assert_eq!(space.take(3 * BLOCK_LEN + 5, 3 * BLOCK_LEN + 9), 3 * BLOCK_LEN + 5);
        space.set_limit(0);
        assert!(space.take_all(5, 10), "it has these already");
        assert!(!space.take_all(9 * BLOCK_LEN, 9 * BLOCK_LEN + 1));
    }
}
