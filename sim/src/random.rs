//! A small generator of pseudo-random numbers: the same seed gives the same numbers for ever.

/// The generator `SplitMix64`: 64 bits of state, good enough to choose among faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// A generator that starts from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator for one of many cases of a test, from the seed of the test and the numbers of
    /// the case.
    #[must_use]
    pub fn for_case(seed: u64, case: u64) -> Self {
        let mut mixed = Self::new(case);
        Self::new(seed ^ mixed.next_u64())
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let scaled = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(scaled >> 64).unwrap_or_default()
    }

    /// A number below `bound`, or 0 if that is 0.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or_default()
    }

    /// True in half of the cases.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Fills `out`.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        let mut random = SplitMix64::new(1_234_567);
        let numbers = [0; 3].map(|_: u64| random.next_u64());
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(numbers, published);
    }

    #[test]
    fn bounds_hold_and_all_values_come() {
        let mut random = SplitMix64::new(7);
        let mut seen = [0_u32; 5];
        for _ in 0..5_000 {
            seen[random.index(5)] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.below(1), 0);
        let heads = (0..1_000).filter(|_| random.coin()).count();
        assert!((400..600).contains(&heads), "{heads}");
    }

    #[test]
    fn filling_takes_any_length() {
        for len in 0..20 {
            let mut bytes = vec![0; len];
            SplitMix64::new(3).fill(&mut bytes);
            let mut longer = vec![0; len + 9];
            SplitMix64::new(3).fill(&mut longer);
            assert_eq!(bytes, longer[..len]);
        }
    }
}
