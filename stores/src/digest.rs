//! A hash of bytes that is stored, so that it never changes. It tells bytes apart that differ by
//! chance, and does not withstand callers that look for collisions.

/// Each bit of the result depends on all bits of a number.
pub(super) const fn mixed(number: u64) -> u64 {
    let once = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ once >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ twice >> 31
}

/// A hash of bytes.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut digest = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        digest ^= digest >> 32;
    }
    mixed(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_bytes_apart_and_never_change() {
        let all: std::collections::HashSet<u64> =
            (0..10_000_usize).map(|len| digest(&vec![0; len])).collect();
        assert_eq!(all.len(), 10_000);
        assert_ne!(digest(b"ab"), digest(b"ba"));
        assert_ne!(digest(b"a"), digest(b"a\0"));
    }
}
