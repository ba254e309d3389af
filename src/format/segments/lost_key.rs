//! The key of a segment whose header is lost, from one of its frames.
//!
//! The check of a frame is the crc32 of the segment's salt and of the frame's header. A crc32 can
//! be computed backwards: from the check to the state that the salt left. One of the salts that
//! leave this state is as good as the lost one, since nothing but the state depends on the salt.

use crate::format::frames::frame::{FrameHeader, SegmentKey};
use crate::format::segments::segment::check_id;
use crate::types::SegmentId;

/// The polynomial of crc32, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The state that a byte leaves, by its lowest byte.
const TABLE: [u32; 256] = table();

/// The place in [`TABLE`] of the state with this highest byte.
const PLACES: [u8; 256] = places();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        #[allow(clippy::cast_possible_truncation, reason = "it is below 256")]
        let mut state = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            state = if state & 1 == 1 { (state >> 1) ^ POLYNOMIAL } else { state >> 1 };
            bit += 1;
        }
        table[byte] = state;
        byte += 1;
    }
    table
}

const fn places() -> [u8; 256] {
    let mut places = [0; 256];
    let mut byte = 0_u8;
    loop {
        places[(TABLE[byte as usize] >> 24) as usize] = byte;
        if byte == u8::MAX {
            return places;
        }
        byte += 1;
    }
}

/// The state in front of `byte`, which left `state`.
fn back(state: u32, byte: u8) -> u32 {
    let [_, _, _, highest] = state.to_le_bytes();
    let place = PLACES.get(usize::from(highest)).copied().unwrap_or_default();
    let left = TABLE.get(usize::from(place)).copied().unwrap_or_default();
    ((state ^ left) << 8) | u32::from(place ^ byte)
}

/// A key with which the header at the beginning of `bytes` checks, if it claims to be at `offset`
/// of a segment and has no other flaw.
pub(crate) fn key_of_frame(bytes: &[u8], offset: u32) -> Option<(SegmentKey, FrameHeader)> {
    if bytes.get(16..20)? != offset.to_le_bytes() {
        return None;
    }
    let id = SegmentId(u32::from_le_bytes(bytes.get(20..24)?.try_into().ok()?));
    check_id(id).ok()?;
    let (check, checked) = bytes.get(..72)?.split_first_chunk::<4>()?;
    let state = checked.iter().rev().fold(!u32::from_le_bytes(*check), |at, byte| back(at, *byte));
    let key = SegmentKey { id, salt: salt_for(state) };
    Some((key, FrameHeader::decode(bytes, key, offset).ok()?))
}

/// A salt that leaves this state: four zeros, and the four bytes that lead on to the state.
fn salt_for(state: u32) -> u64 {
    let zeros = !crc32fast::hash(&[0; 4]);
    let four = (0..4).fold(state, |at, _| back(at, 0)) ^ zeros;
    u64::from(four) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frames::frame::{FrameCheck, FrameKind};
    use crate::types::{LogPosition, Lsn, RunNo, Timestamp};

    fn frame(key: SegmentKey, offset: u32, payload: &[u8]) -> [u8; 72] {
        let mut header = FrameHeader::new(FrameKind::Record, RunNo(3), Timestamp(1_000));
        header.set_payload(b"", payload);
        header.position = LogPosition { segment: key.id, offset };
        header.lsn = Lsn(u64::from(offset));
        header.encode(key.salt)
    }

    #[test]
    fn the_key_of_one_frame_checks_all_frames_of_its_segment_and_no_others() {
        for salt in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX, 0xfeed_beef_0000_0000] {
            let lost = SegmentKey { id: SegmentId(7), salt };
            let (found, header) = key_of_frame(&frame(lost, 64, b"first"), 64).unwrap();
            assert_eq!((found.id, header.lsn), (lost.id, Lsn(64)));
            for offset in (64..8_000).step_by(8) {
                let bytes = frame(lost, offset, b"another");
                assert!(FrameHeader::decode(&bytes, found, offset).is_ok(), "{offset}");
            }
            let other = frame(SegmentKey { salt: salt ^ 1, ..lost }, 64, b"first");
            assert!(FrameHeader::decode_with(&other, &FrameCheck::new(found), 64).is_err());
        }
    }

    #[test]
    fn bytes_that_claim_another_place_have_no_key() {
        let bytes = frame(SegmentKey { id: SegmentId(7), salt: 9 }, 64, b"first");
        assert!(key_of_frame(&bytes, 72).is_none());
        assert!(key_of_frame(&bytes[..71], 64).is_none());
        assert!(key_of_frame(&[0; 72], 0).is_none());
    }
}
