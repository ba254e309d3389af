//! Maps by run number, which each append looks up several times.
//!
//! Run numbers are assigned one after the other, so a cheap hash suffices. But a file from
//! elsewhere can hold any numbers, so each map mixes in its own random key: no file can make
//! numbers collide.

use core::hash::{BuildHasher, Hasher};
use std::collections::HashMap;
use std::hash::RandomState;

use crate::types::RunNo;

/// A map by run number.
pub(crate) type RunMap<V> = HashMap<RunNo, V, RunHash>;

/// Hashes run numbers; the initial state is the key of the map.
#[derive(Debug, Clone)]
pub(crate) struct RunHash {
    state: u64,
}

impl Default for RunHash {
    fn default() -> Self {
        Self { state: RandomState::new().hash_one(0_u64) }
    }
}

impl BuildHasher for RunHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        self.clone()
    }
}

impl Hasher for RunHash {
    /// Two rounds of multiplication and shift, so that each bit of the number affects each bit of
    /// the hash.
    fn write_u64(&mut self, number: u64) {
        let mut mixed = (self.state ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^= mixed >> 32;
        mixed = mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        self.state = mixed ^ mixed >> 29;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_in_steps_of_any_power_of_two_spread_over_the_low_and_the_high_bits() {
        let hash = RunHash { state: 0x0123_4567_89ab_cdef };
        for step in 0..54 {
            let hashes: Vec<u64> = (0..1024).map(|no| hash.hash_one(RunNo(no << step))).collect();
            let low: BTreeSet<u64> = hashes.iter().map(|hash| hash & 0x3ff).collect();
            let high: BTreeSet<u64> = hashes.iter().map(|hash| hash >> 54).collect();
            // 1024 random numbers fill about 647 of 1024 slots.
            assert!(low.len() > 500 && high.len() > 500, "{step}: {} {}", low.len(), high.len());
        }
    }

    #[test]
    fn each_map_has_a_key_of_its_own() {
        assert_ne!(RunHash::default().state, RunHash::default().state);
    }
}
