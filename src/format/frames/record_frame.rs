//! The fast check of a record's frame: it checks the whole frame in place, without decoding its
//! header field by field.
//!
//! A trace spends most of its time here. The answer is yes or no. [`FrameHeader::decode_with`]
//! checks the same and says what is wrong.

use crate::format::frames::frame::{
    FLAG_BATCH, FLAG_LATE, FLAG_PLAIN, FRAME_ALIGN, FRAME_HEADER_LEN, FrameCheck, FrameHeader,
    FrameKind,
};
use crate::types::{ContentType, LogPosition, Lsn, MAX_KIND_LEN, RunNo, Seq, Timestamp};

impl FrameCheck {
    /// The record at `offset` of the segment's bytes with its kind and payload, if it is intact and
    /// in one frame.
    #[allow(clippy::inline_always, reason = "moving fields costs more than checking them")]
    #[inline(always)]
    pub fn record<'s>(&self, segment: &'s [u8], offset: u32) -> Option<(FrameHeader, &'s [u8])> {
        self.record_in(segment.get(offset as usize..)?, offset)
    }

    /// The same of the bytes from `offset` of the segment on.
    #[allow(clippy::inline_always, reason = "moving fields costs more than checking them")]
    #[inline(always)]
    pub(crate) fn record_in<'s>(
        &self,
        bytes: &'s [u8],
        offset: u32,
    ) -> Option<(FrameHeader, &'s [u8])> {
        let head = bytes.first_chunk::<FRAME_HEADER_LEN>()?;
        if self.of_header(offset, head) != word(head, 0) {
            return None;
        }
        let [kind, flags, name_len, content] = word(head, 12).to_le_bytes();
        let len = word(head, 8);
        let fits = usize::from(name_len) <= (len as usize).min(MAX_KIND_LEN);
        if kind != FrameKind::Record as u8
            || flags & !(FLAG_BATCH | FLAG_LATE | FLAG_PLAIN) != 0
            || !fits
        {
            return None;
        }
        let end = FRAME_HEADER_LEN + len as usize;
        let frame = bytes.get(..end.next_multiple_of(FRAME_ALIGN))?;
        let payload = frame.get(FRAME_HEADER_LEN..end)?;
        // The padding is the end of the frame's last word. Two half shifts remove the rest, since a
        // word cannot be shifted by all of its 64 bits.
        let half = (frame.len() - end) * 4;
        let padding = u64::from_le_bytes(*frame.last_chunk()?) >> (32 - half) >> (32 - half);
        if self.of_payload(payload) != word(head, 4) || padding != 0 {
            return None;
        }
        let header = FrameHeader {
            kind: FrameKind::Record,
            flags,
            name_len,
            content: ContentType::from_code(content),
            payload_crc: word(head, 4),
            payload_len: len,
            position: LogPosition { segment: self.segment(), offset },
            lsn: Lsn(long(head, 16)),
            run_no: RunNo(long(head, 24)),
            seq: Seq(long(head, 32)),
            at: Timestamp(long(head, 40).cast_signed()),
            extra: 0,
        };
        Some((header, payload))
    }
}

#[inline]
fn word(head: &[u8; FRAME_HEADER_LEN], at: usize) -> u32 {
    let bytes = head.get(at..).and_then(|rest| rest.first_chunk());
    u32::from_le_bytes(bytes.copied().unwrap_or_default())
}

#[inline]
fn long(head: &[u8; FRAME_HEADER_LEN], at: usize) -> u64 {
    let bytes = head.get(at..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(bytes.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frames::frame::{FLAG_CHUNKS, SegmentKey};
    use crate::types::SegmentId;

    const KEY: SegmentKey = SegmentKey { id: SegmentId(9), salt: 0x0123_4567_89ab_cdef };
    const AT: u32 = 64;

    /// A segment with one frame of this kind, with these flags and this body.
    fn segment(kind: FrameKind, flags: u8, body: &[u8]) -> (FrameHeader, Vec<u8>) {
        let mut header = FrameHeader::new(kind, RunNo(3), Timestamp(-5));
        header.flags = flags;
        header.content = ContentType::JSON;
        header.position = LogPosition { segment: KEY.id, offset: AT };
        (header.lsn, header.seq) = (Lsn(77), Seq(2));
        header.set_payload(b"turn", body);
        let mut bytes = vec![0; AT as usize];
        bytes.extend_from_slice(&header.encode(KEY.salt));
        bytes.extend_from_slice(&[b"turn", body].concat());
        bytes.resize(AT as usize + header.frame_len(), 0);
        (header, bytes)
    }

    #[test]
    fn no_flipped_bit_and_no_missing_byte_is_overlooked() {
        let check = FrameCheck::new(KEY);
        for body in (0..=8).map(|len| &b"{\"a\": 1}"[..len]) {
            let (header, bytes) = segment(FrameKind::Record, 0, body);
            let payload = [b"turn", body].concat();
            assert_eq!(check.record(&bytes, AT), Some((header, &payload[..])));
            for bit in AT as usize * 8..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(check.record(&flipped, AT), None, "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert_eq!(check.record(&bytes[..len], AT), None, "{len} bytes");
            }
        }
    }

    #[test]
    fn what_is_no_record_in_one_frame_is_left_to_others() {
        let check = FrameCheck::new(KEY);
        for (kind, flags) in [(FrameKind::End, 0), (FrameKind::Record, FLAG_CHUNKS)] {
            assert_eq!(check.record(&segment(kind, flags, b"{}").1, AT), None);
        }
        let other = FrameCheck::new(SegmentKey { salt: 1, ..KEY });
        let (_, bytes) = segment(FrameKind::Record, 0, b"{}");
        assert_eq!(other.record(&bytes, AT), None, "another segment's");
        let mut moved = bytes.clone();
        moved.splice(0..0, [0; 8]);
        assert_eq!(check.record(&moved, AT + 8), None, "at another place");
    }
}
