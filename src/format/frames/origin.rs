//! The payload of ORIGIN: the segments that a compaction output was copied from. Only salvage reads
//! it, to decide which outputs count (sections 11 and 20 of FORMAT.md).

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, Writer, len_u32};
use crate::types::SegmentId;

/// Where the frames of a compaction output came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The first output of the group.
    pub group: SegmentId,
    /// The place of this output in the group, from 0.
    pub ordinal: u16,
    /// Whether it is the last output of the group.
    pub last: bool,
    /// The segments that the group replaces, ascending; each output of the group lists the same.
    pub victims: Vec<SegmentId>,
}

impl Origin {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer
            .u32(self.group.0)
            .u16(self.ordinal)
            .u8(u8::from(self.last))
            .zeros(1)
            .u32(len_u32(self.victims.len()))
            .zeros(4);
        for victim in &self.victims {
            writer.u32(victim.0);
        }
    }

    /// Reads the payload.
    pub fn decode(payload: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(payload);
        let (group, ordinal) = (SegmentId(reader.u32()?), reader.u16()?);
        let last = reader.code(|code| (code <= 1).then_some(code == 1))?;
        let count = reader.zeros(1)?.u32()? as usize;
        if Some(reader.zeros(4)?.rest().len()) != count.checked_mul(4) {
            return Err(Damage::Truncated);
        }
        let victims: Vec<_> =
            (0..count).map(|_| reader.u32().map(SegmentId)).collect::<Decoded<_>>()?;
        if !victims.is_sorted_by(|left, right| left < right) {
            return Err(Damage::Mismatch);
        }
        Ok(Self { group, ordinal, last, victims })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_comes_back_and_a_cut_one_does_not() {
        let origin = Origin {
            group: SegmentId(9),
            ordinal: 2,
            last: true,
            victims: vec![SegmentId(3), SegmentId(4), SegmentId(8)],
        };
        let mut bytes = Vec::new();
        origin.encode(&mut bytes);
        assert_eq!(Origin::decode(&bytes), Ok(origin));
        for len in 0..bytes.len() {
            assert!(Origin::decode(&bytes[..len]).is_err(), "{len}");
        }
        bytes.swap(16, 20);
        assert_eq!(Origin::decode(&bytes), Err(Damage::Mismatch));
    }
}
