//! The frames of the log: a header of 48 or 56 bytes, a payload, zeros up to a multiple of 8. The
//! layout is in section 10 of FORMAT.md.
//!
//! - A frame is valid in one place only: the segment's random salt and the offset of the frame key
//!   the check of its header. A frame left in a recycled extent, a copy, or a frame written to the
//!   wrong place never passes the check (I5).
//! - The header's check covers the payload's checksum, not the payload. So a damaged payload costs
//!   only its own record: the length in the header can still be trusted.
//! - The payload's checksum does not depend on the place, so it can be computed before locks are
//!   taken.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, at_most, check_crc, check_flags, check_zeros};
use crate::types::{ContentType, LogPosition, Lsn, MAX_KIND_LEN, RunNo, SegmentId, Seq, Timestamp};

/// The length of a frame's header without an extra.
pub const FRAME_HEADER_LEN: usize = 48;
/// The length of a frame's header with its extra.
pub const LONG_HEADER_LEN: usize = FRAME_HEADER_LEN + 8;
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
    /// Gives the agent and run id of a run number. It, a START or a PUT is the first frame of a run
    /// in each segment.
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
    /// Bytes that records of a slice share.
    Piece = 8,
    /// The directory of the segment; the last frame.
    Seal = 9,
    /// Holds a run, or releases it.
    Hold = 11,
    /// Records of one run that has ended, compressed together.
    Block = 12,
    /// All frames in front of the position in its sequence field were durable.
    Watermark = 13,
    /// A version of a document: its ids, its record, and the version that it evicts.
    Put = 14,
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
            8 => Self::Piece,
            9 => Self::Seal,
            11 => Self::Hold,
            12 => Self::Block,
            13 => Self::Watermark,
            14 => Self::Put,
            _ => return None,
        })
    }

    /// The length of the header of such a frame.
    pub const fn header_len(self, flags: u8) -> usize {
        match self {
            Self::Chunk
            | Self::Commit
            | Self::Evict
            | Self::Piece
            | Self::Seal
            | Self::Hold
            | Self::Block
            | Self::Put => LONG_HEADER_LEN,
            Self::Record if flags & FLAG_CHUNKS != 0 => LONG_HEADER_LEN,
            Self::Record | Self::Bind | Self::Start | Self::End | Self::Watermark => {
                FRAME_HEADER_LEN
            }
        }
    }

    /// The length of such a frame with a payload of `len` bytes.
    pub const fn frame_len(self, flags: u8, len: usize) -> usize {
        (self.header_len(flags) + len).next_multiple_of(FRAME_ALIGN)
    }
}

/// The frame belongs to a batch and counts only if the batch's COMMIT is there.
pub const FLAG_BATCH: u8 = 1;
/// The record was appended after the end of its run.
pub const FLAG_LATE: u8 = 1 << 1;
/// In a START: it creates its run, as opposed to a START after the first records. RECORDs have the
/// same bit for [`FLAG_LATE`].
pub const FLAG_CREATES: u8 = FLAG_LATE;
/// The bytes of the record are in CHUNK frames in front of it; the payload says how many.
pub const FLAG_CHUNKS: u8 = 1 << 2;
/// A START that no caller requested: the run began with a record.
pub const FLAG_IMPLICIT: u8 = 1 << 3;
/// The frame belongs to a version of a document, not to a run. CHUNKs and PUTs have it.
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
    /// Where the frame is: the place that keys the check, not a field.
    pub position: LogPosition,
    /// Its order in the whole log.
    pub lsn: Lsn,
    /// The run it belongs to; 0 for none.
    pub run_no: RunNo,
    /// RECORD, BLOCK: the sequence of the first record in its run. CHUNK: the order of the first
    /// chunk of its record, if it is not that chunk. PIECE: the place of its first byte in the
    /// slice. WATERMARK: a position. Else zero.
    pub seq: Seq,
    /// When it was appended.
    pub at: Timestamp,
    /// Depends on the kind of the frame (section 11 of FORMAT.md). Zero if the kind has no extra.
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

    /// The keyed check of the header at `offset`: the crc32 of the salt, the offset and everything
    /// behind the check field. The offset takes the place of that field, so that one run of the
    /// checksum covers whole words.
    #[inline]
    pub(crate) fn of_header<const N: usize>(&self, offset: u32, header: &[u8; N]) -> u32 {
        let mut keyed = *header;
        if let Some(check) = keyed.first_chunk_mut() {
            *check = offset.to_le_bytes();
        }
        let mut crc = self.salted.clone();
        crc.update(&keyed);
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
            extra: 0,
        }
    }

    /// A WATERMARK: all frames in front of `durable` were durable at this time.
    pub fn watermark(durable: LogPosition, at: Timestamp) -> Self {
        Self { seq: Seq(durable.to_u64()), ..Self::new(FrameKind::Watermark, RunNo(0), at) }
    }

    /// The durable position that the frame states, if it is a WATERMARK.
    pub fn durable(&self) -> Option<LogPosition> {
        (self.kind == FrameKind::Watermark).then(|| LogPosition::from_u64(self.seq.0))
    }

    /// Sets the lengths and the checksum of a payload, which is the record kind and then the body.
    /// Of a PUT the ids are in front of the kind, and the length of the kind stays as it is.
    pub fn set_payload(&mut self, name: &[u8], body: &[u8]) {
        let mut crc = crc32fast::Hasher::new();
        if !name.is_empty() {
            crc.update(name);
        }
        crc.update(body);
        self.payload_crc = crc.finalize();
        if self.kind != FrameKind::Put {
            self.name_len = u8::try_from(name.len()).expect("kinds are at most 64 bytes");
        }
        self.payload_len = crate::format::codec::len_u32(name.len() + body.len());
    }

    /// The bytes of the header, keyed by its place and the segment's salt.
    pub fn encode(&self, salt: u64) -> Vec<u8> {
        let check = FrameCheck::new(SegmentKey { id: self.position.segment, salt });
        let mut out = [0; LONG_HEADER_LEN];
        self.encode_with(&check, &mut out).to_vec()
    }

    /// Writes the bytes of the header to the beginning of `out`, with the check of its segment.
    #[inline]
    pub fn encode_with<'o>(
        &self,
        check: &FrameCheck,
        out: &'o mut [u8; LONG_HEADER_LEN],
    ) -> &'o [u8] {
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &self.payload_crc.to_le_bytes());
        put(8, &self.payload_len.to_le_bytes());
        put(12, &[self.kind as u8, self.flags, self.name_len, self.content.code()]);
        put(16, &self.lsn.0.to_le_bytes());
        put(24, &self.run_no.0.to_le_bytes());
        put(32, &self.seq.0.to_le_bytes());
        put(40, &self.at.0.to_le_bytes());
        put(48, &u64::from(self.extra).to_le_bytes());
        let len = self.header_len();
        let short = out.first_chunk::<FRAME_HEADER_LEN>().filter(|_| len == FRAME_HEADER_LEN);
        let check = match short {
            Some(short) => check.of_header(self.position.offset, short),
            None => check.of_header(self.position.offset, out),
        };
        out[..4].copy_from_slice(&check.to_le_bytes());
        &out[..len]
    }

    /// Reads the header of the frame at `offset`.
    pub fn decode(bytes: &[u8], key: SegmentKey, offset: u32) -> Decoded<Self> {
        Self::decode_with(bytes, &FrameCheck::new(key), offset)
    }

    /// Reads the header of the frame at `offset`, with the check of its segment.
    #[allow(clippy::inline_always, reason = "a trace spends a tenth of its time on the call")]
    #[inline(always)]
    pub fn decode_with(bytes: &[u8], check: &FrameCheck, offset: u32) -> Decoded<Self> {
        let short = bytes.first_chunk::<FRAME_HEADER_LEN>().ok_or(Damage::Truncated)?;
        let is_long = kind_of(short).is_some_and(|kind| kind.header_len(short[13]) > short.len());
        let (found, mut extra) = if is_long {
            let long = bytes.first_chunk::<LONG_HEADER_LEN>().ok_or(Damage::Truncated)?;
            (check.of_header(offset, long), Reader::at(long, FRAME_HEADER_LEN))
        } else {
            (check.of_header(offset, short), Reader::new(&[0; 8]))
        };
        let mut reader = Reader::new(short);
        check_crc(reader.u32()?, found)?;
        let header = Self {
            payload_crc: reader.u32()?,
            payload_len: reader.u32()?,
            kind: reader.code(FrameKind::from_code)?,
            flags: reader.u8()?,
            name_len: reader.u8()?,
            content: ContentType::from_code(reader.u8()?),
            position: LogPosition { segment: check.id, offset },
            lsn: Lsn(reader.u64()?),
            run_no: RunNo(reader.u64()?),
            seq: Seq(reader.u64()?),
            at: Timestamp(reader.i64()?),
            extra: extra.u32()?,
        };
        check_zeros(extra.rest())?;
        check_flags(header.flags, KNOWN_FLAGS)?;
        at_most(header.name_len, u64::from(header.payload_len).min(MAX_KIND_LEN as u64))?;
        Ok(header)
    }

    /// The length of the header.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.kind.header_len(self.flags)
    }

    /// The length of the whole frame.
    pub const fn frame_len(&self) -> usize {
        self.kind.frame_len(self.flags, self.payload_len as usize)
    }

    /// The length of what the payload has in front of a record: the ids of a PUT.
    #[expect(clippy::cast_possible_truncation, reason = "the length of a constant")]
    pub const fn front_len(&self) -> u32 {
        if !matches!(self.kind, FrameKind::Put) {
            return 0;
        }
        let body = if self.flags & FLAG_CHUNKS == 0 { self.extra } else { CHUNKS_LEN as u32 };
        self.payload_len.saturating_sub(body).saturating_sub(self.name_len as u32)
    }

    /// The length of the record in the frame, with its kind.
    pub const fn record_len(&self) -> u32 {
        self.payload_len.saturating_sub(self.front_len())
    }

    /// The payload without what it has in front of a record.
    pub fn record_in<'p>(&self, payload: &'p [u8]) -> &'p [u8] {
        payload.get(self.front_len() as usize..).unwrap_or_default()
    }

    /// The offset of the payload in the segment.
    #[expect(clippy::cast_possible_truncation, reason = "a header is 56 bytes long at most")]
    pub const fn payload_at(&self) -> u32 {
        self.position.offset.saturating_add(self.header_len() as u32)
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

/// Whether a header may begin at `bytes`: a cheap test for the search for the next frame behind
/// damage. It computes no check in zeros, since no kind of frame has the code 0.
pub fn may_be_header(bytes: &[u8]) -> bool {
    bytes.first_chunk().is_some_and(|head| kind_of(head).is_some())
}

fn kind_of(head: &[u8; FRAME_HEADER_LEN]) -> Option<FrameKind> {
    FrameKind::from_code(head[12])
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
        assert_eq!(FrameHeader::decode(&bytes, KEY, 64), Ok(sample()));
        assert!(FrameHeader::decode(&bytes, KEY, 72).is_err());
        let reused = SegmentKey { salt: 1, ..KEY };
        assert!(FrameHeader::decode(&bytes, reused, 64).is_err());
    }

    #[test]
    fn the_check_of_the_header_covers_the_extra() {
        let mut header = FrameHeader::new(FrameKind::Hold, RunNo(3), Timestamp(1_000));
        header.position = sample().position;
        header.extra = 1;
        header.set_payload(b"", b"why");
        let bytes = header.encode(KEY.salt);
        assert_eq!(bytes.len(), LONG_HEADER_LEN);
        assert_eq!(FrameHeader::decode(&bytes, KEY, 64), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&flipped, KEY, 64).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_search_for_a_frame_skips_zeros_and_no_header() {
        assert!(!may_be_header(&[0; LONG_HEADER_LEN]));
        assert!(may_be_header(&sample().encode(KEY.salt)));
        let mark = FrameHeader::watermark(sample().position, Timestamp(0));
        assert!(may_be_header(&mark.encode(KEY.salt)));
    }
}
