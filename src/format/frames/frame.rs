//! The frames of the log: a 72-byte header, a payload, zeros up to a multiple of 8. The layout is
//! in section 10 of FORMAT.md.
//!
//! - A frame is valid in one place only: its header holds the position (segment, offset), and its
//!   check is keyed by the segment's random salt. A frame left in a recycled extent, a copy, or a
//!   frame written to the wrong place never passes the check (I5).
//! - The header's check covers the payload's checksum, not the payload. So a damaged payload costs
//!   only its own record: the length in the header can still be trusted.
//! - The payload's checksum does not depend on the place, so it can be computed before locks are
//!   taken.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, Writer, at_most, check_crc, check_flags, check_zeros};
use crate::types::{
    AgentId, ContentType, LogPosition, Lsn, MAX_KIND_LEN, RunId, RunNo, SegmentId, Seq, Timestamp,
};

/// The length of a frame's header.
pub const FRAME_HEADER_LEN: usize = 72;
/// Frames start at multiples of this.
pub const FRAME_ALIGN: usize = 8;
/// The length of the chunk row in a large record's payload.
pub const CHUNKS_LEN: usize = 16;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum FrameKind {
    /// Gives the agent and run id of a run number. It is the first frame of the run in each
    /// segment.
    Bind = 1,
    /// A run is created.
    Start = 2,
    /// A record of a run.
    Record = 3,
    /// A run ends.
    End = 4,
    /// A part of a large record. It counts only if the RECORD behind it does.
    Chunk = 5,
    /// Makes the frames of its batch count; they lie directly in front of it.
    Commit = 6,
    /// Deletes runs.
    Evict = 7,
    /// The directory of the segment; the last frame.
    Seal = 9,
    /// Holds a run, or releases it.
    Hold = 11,
    /// Records of one run that has ended, compressed together.
    Block = 12,
}

impl FrameKind {
    /// The kind with this code, if there is one.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Bind,
            2 => Self::Start,
            3 => Self::Record,
            4 => Self::End,
            5 => Self::Chunk,
            6 => Self::Commit,
            7 => Self::Evict,
            9 => Self::Seal,
            11 => Self::Hold,
            12 => Self::Block,
            _ => return None,
        })
    }
}

/// The frame belongs to a batch and counts only if the batch's COMMIT is there.
pub const FLAG_BATCH: u8 = 1;
/// The record was appended after the end of its run.
pub const FLAG_LATE: u8 = 1 << 1;
/// The bytes of the record are in CHUNK frames in front of it; the payload says how many.
pub const FLAG_CHUNKS: u8 = 1 << 2;
/// A START that no caller requested: the run began with a record.
pub const FLAG_IMPLICIT: u8 = 1 << 3;
/// The frame belongs to a version of a document, not to a run.
pub const FLAG_DOCUMENT: u8 = 1 << 4;
/// The payload of a CHUNK is compressed.
pub const FLAG_COMPRESSED: u8 = 1 << 5;
/// A RECORD or CHUNK of an ended run that a compressing compaction left uncompressed.
pub const FLAG_PLAIN: u8 = 1 << 6;
/// All bits up to the last.
const KNOWN_FLAGS: u8 = FLAG_PLAIN | (FLAG_PLAIN - 1);

/// The identity of a segment, which keys the checks of its frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SegmentKey {
    /// The number; never reused once a frame with it was acknowledged.
    pub id: SegmentId,
    /// Random, so that old frames stay invalid if a power cut makes the store reuse the number.
    pub salt: u64,
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The `FLAG_` bits.
    pub flags: u8,
    /// The length of the record kind, which stands in front of the payload.
    pub name_len: u8,
    /// The type of the payload; in an END the status code of the run.
    pub content: ContentType,
    /// The crc32 of the record kind and the payload.
    pub payload_crc: u32,
    /// The length of the record kind and the payload.
    pub payload_len: u32,
    /// Where the frame is.
    pub position: LogPosition,
    /// Its order in the whole log.
    pub lsn: Lsn,
    /// The run it belongs to; 0 for none.
    pub run_no: RunNo,
    /// RECORD, BLOCK: the sequence of the first record in its run. CHUNK: the order of the first
    /// chunk of its record, if it is not that chunk. Else zero.
    pub seq: Seq,
    /// When it was appended.
    pub at: Timestamp,
    /// When the frame was written, all of the log in front of this position was durable.
    pub durable: LogPosition,
    /// Depends on the kind of the frame (section 11 of FORMAT.md).
    pub extra: u32,
}

/// Checks the frames of one segment: its number, and a checksum state that already contains the
/// salt.
///
/// It is kept with the segment, so that checking a frame costs only two checksum computations.
#[derive(Debug, Clone)]
pub struct FrameCheck {
    id: SegmentId,
    salted: crc32fast::Hasher,
}

impl FrameCheck {
    /// The check of the segment with this key.
    pub fn new(key: SegmentKey) -> Self {
        let mut salted = crc32fast::Hasher::new();
        salted.update(&key.salt.to_le_bytes());
        Self { id: key.id, salted }
    }

    /// The number of the segment.
    pub fn segment(&self) -> SegmentId {
        self.id
    }

    /// The keyed check of a header: the crc32 of the salt and of everything behind the check field.
    #[inline]
    pub(crate) fn of_header(&self, header: &[u8; FRAME_HEADER_LEN]) -> u32 {
        let mut crc = self.salted.clone();
        crc.update(header.get(4..).unwrap_or_default());
        crc.finalize()
    }

    /// The crc32 of a payload; it is not keyed.
    #[inline]
    pub(crate) fn of_payload(&self, payload: &[u8]) -> u32 {
        let mut crc = self.salted.clone();
        crc.reset();
        crc.update(payload);
        crc.finalize()
    }
}

/// The length of a frame with a payload of `len` bytes.
pub const fn frame_len(len: usize) -> usize {
    (FRAME_HEADER_LEN + len).next_multiple_of(FRAME_ALIGN)
}

impl FrameHeader {
    /// A header whose place is not known yet.
    pub fn new(kind: FrameKind, run_no: RunNo, at: Timestamp) -> Self {
        Self {
            kind,
            flags: 0,
            name_len: 0,
            content: ContentType::BYTES,
            payload_crc: 0,
            payload_len: 0,
            position: LogPosition::default(),
            lsn: Lsn(0),
            run_no,
            seq: Seq(0),
            at,
            durable: LogPosition::default(),
            extra: 0,
        }
    }

    /// Sets the lengths and the checksum of a payload, which is the record kind and then the body.
    pub fn set_payload(&mut self, name: &[u8], body: &[u8]) {
        let mut crc = crc32fast::Hasher::new();
        if !name.is_empty() {
            crc.update(name);
        }
        crc.update(body);
        self.payload_crc = crc.finalize();
        self.name_len = u8::try_from(name.len()).expect("kinds are at most 64 bytes");
        self.payload_len = crate::format::codec::len_u32(name.len() + body.len());
    }

    /// The bytes of the header, keyed by the segment's salt.
    pub fn encode(&self, salt: u64) -> [u8; FRAME_HEADER_LEN] {
        self.encode_with(&FrameCheck::new(SegmentKey { id: self.position.segment, salt }))
    }

    /// The bytes of the header, with the check of its segment.
    pub fn encode_with(&self, check: &FrameCheck) -> [u8; FRAME_HEADER_LEN] {
        let mut out = [0; FRAME_HEADER_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &self.payload_crc.to_le_bytes());
        put(8, &self.payload_len.to_le_bytes());
        put(12, &[self.kind as u8, self.flags, self.name_len, self.content.code()]);
        put(16, &self.position.to_u64().to_le_bytes());
        put(24, &self.lsn.0.to_le_bytes());
        put(32, &self.run_no.0.to_le_bytes());
        put(40, &self.seq.0.to_le_bytes());
        put(48, &self.at.0.to_le_bytes());
        put(56, &self.durable.to_u64().to_le_bytes());
        put(68, &self.extra.to_le_bytes());
        let check = check.of_header(&out);
        out[..4].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Reads the header of the frame at `offset`.
    pub fn decode(bytes: &[u8], key: SegmentKey, offset: u32) -> Decoded<Self> {
        Self::decode_with(bytes, &FrameCheck::new(key), offset)
    }

    /// Reads the header of the frame at `offset`, with the check of its segment.
    #[allow(clippy::inline_always, reason = "a trace spends a tenth of its time on the call")]
    #[inline(always)]
    pub fn decode_with(bytes: &[u8], check: &FrameCheck, offset: u32) -> Decoded<Self> {
        let expected = LogPosition { segment: check.id, offset };
        let head = bytes.first_chunk::<FRAME_HEADER_LEN>().ok_or(Damage::Truncated)?;
        let mut reader = Reader::new(head);
        check_crc(reader.u32()?, check.of_header(head))?;
        let header = Self {
            payload_crc: reader.u32()?,
            payload_len: reader.u32()?,
            kind: reader.code(FrameKind::from_code)?,
            flags: reader.u8()?,
            name_len: reader.u8()?,
            content: ContentType::from_code(reader.u8()?),
            position: LogPosition::from_u64(reader.u64()?),
            lsn: Lsn(reader.u64()?),
            run_no: RunNo(reader.u64()?),
            seq: Seq(reader.u64()?),
            at: Timestamp(reader.i64()?),
            durable: LogPosition::from_u64(reader.u64()?),
            extra: reader.zeros(4)?.u32()?,
        };
        if header.position != expected {
            return Err(Damage::Misplaced);
        }
        check_flags(header.flags, KNOWN_FLAGS)?;
        at_most(header.name_len, u64::from(header.payload_len).min(MAX_KIND_LEN as u64))?;
        Ok(header)
    }

    /// The length of the whole frame.
    pub fn frame_len(&self) -> usize {
        frame_len(self.payload_len as usize)
    }

    /// Compares the payload with its checksum and checks the zero padding. It does not depend on
    /// the segment.
    #[inline]
    pub fn check_payload(&self, check: &FrameCheck, payload_and_padding: &[u8]) -> Decoded<()> {
        let (payload, padding) = payload_and_padding
            .split_at_checked(self.payload_len as usize)
            .ok_or(Damage::Truncated)?;
        check_crc(self.payload_crc, check.of_payload(payload))?;
        check_zeros(padding)
    }
}

/// Whether a header at `bytes` has this position: a cheap test for the search for the next frame
/// behind damage.
pub fn claims_position(bytes: &[u8], position: LogPosition) -> bool {
    bytes.get(16..24) == Some(&position.to_u64().to_le_bytes())
}

/// The payload of BIND and, in front of the metadata, of START: the two ids.
pub fn encode_ids(agent: &AgentId, run: &RunId, out: &mut Vec<u8>) {
    Writer::new(out)
        .id_len(agent.as_str())
        .id_len(run.as_str())
        .bytes(agent.as_str().as_bytes())
        .bytes(run.as_str().as_bytes());
}

/// Reads the two ids and what follows them.
pub fn decode_ids(payload: &[u8]) -> Decoded<(AgentId, RunId, &[u8])> {
    let mut reader = Reader::new(payload);
    let (agent_len, run_len) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
    let agent = reader.id(agent_len, AgentId::new)?;
    Ok((agent, reader.id(run_len, RunId::new)?, reader.rest()))
}

/// The chunk row of a large record: CHUNK frames of the run, numbered from 0, without chunks of
/// another record in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Chunks {
    /// The order of the first chunk; all other chunks have it as their sequence.
    pub first: Lsn,
    /// The number of chunks.
    pub count: u32,
}

impl Chunks {
    /// The bytes behind the kind of the record.
    pub fn encode(self) -> [u8; CHUNKS_LEN] {
        let mut out = [0; CHUNKS_LEN];
        out[..8].copy_from_slice(&self.first.0.to_le_bytes());
        out[8..12].copy_from_slice(&self.count.to_le_bytes());
        out
    }

    /// Reads the bytes behind the kind of the record.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let chunks = Self { first: Lsn(reader.u64()?), count: reader.u32()? };
        reader.zeros(4)?;
        if reader.rest().is_empty() { Ok(chunks) } else { Err(Damage::Truncated) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: SegmentKey = SegmentKey { id: SegmentId(5), salt: 0xfeed_beef_0123_4567 };

    fn sample() -> FrameHeader {
        let mut header = FrameHeader::new(FrameKind::Record, RunNo(3), Timestamp(1_000));
        (header.flags, header.content) = (FLAG_BATCH, ContentType::JSON);
        header.set_payload(b"turn", b"{}");
        header.position = LogPosition { segment: KEY.id, offset: 64 };
        (header.lsn, header.seq) = (Lsn(77), Seq(2));
        header
    }

    #[test]
    fn a_frame_is_valid_at_its_own_place_only() {
        let bytes = sample().encode(KEY.salt);
        assert_eq!(FrameHeader::decode(&bytes, KEY, 72), Err(Damage::Misplaced));
        let recycled = SegmentKey { id: SegmentId(6), ..KEY };
        assert_eq!(FrameHeader::decode(&bytes, recycled, 64), Err(Damage::Misplaced));
        let reused = SegmentKey { salt: 1, ..KEY };
        assert!(FrameHeader::decode(&bytes, reused, 64).is_err());
    }
}
