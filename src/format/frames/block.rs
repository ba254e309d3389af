//! Blocks: records of one run that has ended, compressed together behind one frame; and chunks of
//! large records that are compressed one by one.
//!
//! - The compressed bytes follow the block's head. The head and the frame's header have everything
//!   that a directory says of the records, so moving a block and listing its run need no codec.
//! - The sequences of the records in a block have no gaps.
//! - Each record keeps the checksum that its frame had: it is checked end to end.
//!
//! The layouts are in section 14 of FORMAT.md.

use core::ops::Range;

use crate::error::Damage;
use crate::format::codec::{
    Decoded, Reader, Writer, at_most, check_crc, check_flags, len_u32, open_checked, put_checked,
};
use crate::format::frames::compression::{self, Compressor};
use crate::format::frames::frame::{FLAG_LATE, FrameHeader, FrameKind};
use crate::format::frames::slice::{Op, RecipeAt};
use crate::types::{ContentType, Lsn, MAX_KIND_LEN, Seq, Timestamp};

/// The length of a block's head, which is in front of the compressed bytes.
pub const BLOCK_HEAD_LEN: usize = 40;
/// The same of a block of a slice.
pub const SLICED_HEAD_LEN: usize = BLOCK_HEAD_LEN + 12;
/// In the head: the records are in a slice.
const SLICED: u8 = 1;
/// The length of a chunk's head.
pub const CHUNK_HEAD_LEN: usize = 12;
/// Blocks are filled up to this many raw bytes, if the extents are large enough.
pub const BLOCK_RAW: usize = 128 << 10;
/// The most raw bytes of a block: the longest payload of a frame, and its row.
pub const MAX_BLOCK_RAW: u32 = (8 << 20) + (4 << 10);
/// The most records in a block.
pub const MAX_BLOCK_RECORDS: u32 = 16 << 10;
/// The most raw bytes of a chunk.
pub const MAX_CHUNK_RAW: u32 = 8 << 20;
/// The longest record in any store.
pub const MAX_RECORD: u32 = 256 << 20;
/// The longest row of a record.
const MAX_ROW: usize = 10 + 10 + 3 + 5 + 4 + 5;

/// The head of a block, in front of the compressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BlockHead {
    /// The codec.
    pub codec: u8,
    /// The length of rows and payloads together.
    pub raw_len: u32,
    /// The length of the rows.
    pub rows_len: u32,
    /// The crc32 of the rows.
    pub rows_crc: u32,
    /// The order of the last record.
    pub last_lsn: Lsn,
    /// The payload bytes of the records, without their kinds.
    pub bytes: u64,
    /// How many of the records were appended after the end of the run.
    pub late: u32,
    /// The slice of the records, if their bytes are in PIECEs.
    pub slice: Option<InSlice>,
}

/// The slice of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct InSlice {
    /// The order of the first record of the slice.
    pub slice: Lsn,
    /// Where the new bytes of the first record of the block are in the unique bytes.
    pub new: u32,
}

/// One record of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct BlockRow {
    /// The order of the record.
    pub lsn: Lsn,
    /// When it was appended.
    pub at: Timestamp,
    /// Whether it was appended after the end of its run.
    pub late: bool,
    /// The type of the payload.
    pub content: ContentType,
    /// The length of the kind, which stands in front of the payload.
    pub name_len: u8,
    /// Where kind and payload start in the raw bytes; in a slice the recipe.
    pub start: u32,
    /// The length of kind and payload.
    pub len: u32,
    /// Their crc32, the same as in the record's own frame.
    pub crc: u32,
    /// In a slice: the length of the recipe, and where its ranges begin.
    pub recipe: Option<(u32, RecipeAt)>,
}

impl BlockRow {
    /// In a slice: calls `visit` with each range of the unique bytes of the record. They were
    /// checked when the block was opened.
    pub fn each_range(&self, raw: &[u8], visit: impl FnMut(Range<u32>)) -> Decoded<()> {
        let (len, mut at) = self.recipe.ok_or(Damage::Mismatch)?;
        let recipe = Reader::at(raw, self.start as usize).bytes(len as usize)?;
        at.each_range(recipe, self.len, visit)
    }

    /// Kind and payload of a record that is not in a slice; an error if they do not match their
    /// checksum.
    pub fn bytes<'a>(&self, raw: &'a [u8]) -> Decoded<&'a [u8]> {
        let (start, len) = (self.start as usize, self.len as usize);
        let bytes = raw.get(start..).and_then(|rest| rest.get(..len)).ok_or(Damage::Truncated)?;
        check_crc(self.crc, crc32fast::hash(bytes))?;
        Ok(bytes)
    }

    /// The header that the record's own frame had, except for its place. `rank` is the index of the
    /// record in the block.
    pub fn header(&self, block: &FrameHeader, rank: u32) -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Record,
            flags: if self.late { FLAG_LATE } else { 0 },
            name_len: self.name_len,
            content: self.content,
            payload_crc: self.crc,
            payload_len: self.len,
            lsn: self.lsn,
            seq: seq_in(block, rank),
            at: self.at,
            extra: 0,
            ..*block
        }
    }
}

/// The sequence of a record of a block.
pub fn seq_in(block: &FrameHeader, rank: u32) -> Seq {
    Seq(block.seq.0.saturating_add(u64::from(rank)))
}

impl BlockHead {
    fn encode(&self) -> Vec<u8> {
        let len = self.len();
        put_checked(b"", (len - 4, len), |out| {
            out.u8(self.codec)
                .u8(if self.slice.is_some() { SLICED } else { 0 })
                .zeros(2)
                .u32(self.raw_len)
                .u32(self.rows_len)
                .u32(self.rows_crc)
                .u64(self.last_lsn.0)
                .u64(self.bytes)
                .u32(self.late);
            if let Some(InSlice { slice, new }) = self.slice {
                out.u64(slice.0).u32(new);
            }
        })
    }

    fn len(&self) -> usize {
        if self.slice.is_some() { SLICED_HEAD_LEN } else { BLOCK_HEAD_LEN }
    }

    /// Reads the head and checks it against the frame's header. It also reads the head of a payload
    /// whose rest is damaged. The compressed bytes follow.
    pub fn decode<'a>(block: &FrameHeader, payload: &'a [u8]) -> Decoded<(Self, &'a [u8])> {
        let is_sliced = payload.get(1) == Some(&SLICED);
        let len = if is_sliced { SLICED_HEAD_LEN } else { BLOCK_HEAD_LEN };
        let mut fields = open_checked(payload, b"", len - 4)?;
        let head = Self {
            codec: fields.u8()?,
            raw_len: {
                check_flags(fields.u8()?, SLICED)?;
                fields.zeros(2)?.u32()?
            },
            rows_len: fields.u32()?,
            rows_crc: fields.u32()?,
            last_lsn: Lsn(fields.u64()?),
            bytes: fields.u64()?,
            late: fields.u32()?,
            slice: if is_sliced {
                Some(InSlice { slice: Lsn(fields.u64()?), new: fields.u32()? })
            } else {
                None
            },
        };
        at_most(head.raw_len, MAX_BLOCK_RAW)?;
        at_most(head.rows_len, head.raw_len)?;
        at_most(block.extra, MAX_BLOCK_RECORDS)?;
        at_most(head.late, block.extra)?;
        let payloads = match head.slice {
            Some(_) => u64::from(block.extra) * u64::from(MAX_RECORD),
            None => u64::from(head.raw_len - head.rows_len),
        };
        if block.extra == 0 || head.bytes > payloads || head.last_lsn < block.lsn {
            return Err(Damage::Mismatch);
        }
        Ok((head, Reader::at(payload, len).rest()))
    }

    /// Decompresses the block into `raw` and writes its rows to `rows`.
    pub fn open(
        &self,
        block: &FrameHeader,
        compressed: &[u8],
        raw: &mut Vec<u8>,
        rows: &mut Vec<BlockRow>,
    ) -> Decoded<()> {
        rows.clear();
        raw.clear();
        compression::decompress(self.codec, compressed, self.raw_len as usize, raw)?;
        self.read_rows(block, raw, rows)
    }

    /// Reads the rows, which must agree with the head and the frame's header.
    fn read_rows(&self, block: &FrameHeader, raw: &[u8], rows: &mut Vec<BlockRow>) -> Decoded<()> {
        let encoded = raw.get(..self.rows_len as usize).ok_or(Damage::Truncated)?;
        check_crc(self.rows_crc, crc32fast::hash(encoded))?;
        rows.reserve(block.extra as usize);
        let mut reader = Reader::new(encoded);
        let (mut lsn, mut at) = (block.lsn, block.at);
        let (mut start, mut bytes, mut late) = (self.rows_len, 0_u64, 0);
        let mut latest = Timestamp(i64::MIN);
        let mut recipe_at = self.slice.map(|slice| RecipeAt { new: slice.new, copied: 0 });
        for rank in 0..block.extra {
            let order = varint(&mut reader)?;
            if (order == 0) != (rank == 0) {
                return Err(Damage::Mismatch);
            }
            lsn = Lsn(lsn.0.checked_add(order).ok_or(Damage::Mismatch)?);
            at = Timestamp(at.0.wrapping_add(unzigzag(varint(&mut reader)?)));
            latest = latest.max(at);
            let (flags, content) = (reader.u8()?, ContentType::from_code(reader.u8()?));
            check_flags(flags, FLAG_LATE)?;
            let name_len = reader.u8()?;
            let len = u32::try_from(varint(&mut reader)?).map_err(|_| Damage::Truncated)?;
            at_most(u32::from(name_len), len.min(len_u32(MAX_KIND_LEN)))?;
            let crc = reader.u32()?;
            let is_late = flags == FLAG_LATE;
            late += u32::from(is_late);
            bytes += u64::from(len - u32::from(name_len));
            let mut own = len;
            let recipe = match &mut recipe_at {
                Some(at) => {
                    at_most(len, MAX_RECORD)?;
                    own = u32::try_from(varint(&mut reader)?).map_err(|_| Damage::Truncated)?;
                    let recipe = Reader::at(raw, start as usize).bytes(own as usize)?;
                    let here = *at;
                    at.each_range(recipe, len, |_| ())?;
                    Some((own, here))
                }
                None => None,
            };
            let late = is_late;
            rows.push(BlockRow { lsn, at, late, content, name_len, start, len, crc, recipe });
            start = start.checked_add(own).ok_or(Damage::Truncated)?;
        }
        let whole = reader.rest().is_empty() && start == self.raw_len;
        let told = (self.last_lsn, self.bytes, self.late, block.at);
        if whole && told == (lsn, bytes, late, latest) { Ok(()) } else { Err(Damage::Mismatch) }
    }
}

/// Puts records together until they fill a block.
#[derive(Debug, Default)]
pub struct BlockBuilder {
    /// The header of each record.
    rows: Vec<FrameHeader>,
    /// The kinds and payloads, or recipes.
    payloads: Vec<u8>,
    slice: Option<InSlice>,
    /// Where the next recipe begins.
    at: RecipeAt,
    /// In a slice: the length of each recipe.
    recipes: Vec<u32>,
}

impl BlockBuilder {
    /// A block of records in a slice.
    pub(crate) fn in_slice(slice: InSlice) -> Self {
        let at = RecipeAt { new: slice.new, copied: 0 };
        Self { slice: Some(slice), at, ..Self::default() }
    }

    /// The bytes of the block before they are compressed, at most.
    pub(crate) fn raw_len(&self) -> usize {
        self.payloads.len() + self.rows.len() * MAX_ROW
    }

    /// The records and their kinds and payloads, of a block that is not in a slice.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&FrameHeader, &[u8])> {
        let mut rest = &self.payloads[..];
        self.rows
            .iter()
            .map(move |header| {
                let (bytes, behind) = rest.split_at_checked(header.payload_len as usize)?;
                rest = behind;
                Some((header, bytes))
            })
            .map_while(|record| record)
    }

    /// How many records were added.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether a record with this header can be the next one of a block of about `most` raw bytes.
    pub fn takes(&self, record: &FrameHeader, most: usize) -> bool {
        if self.rows.is_empty() {
            return true;
        }
        let raw = self.raw_len() + record.payload_len as usize + MAX_ROW;
        raw <= most && self.is_next(record)
    }

    /// Whether a record follows the last one.
    pub(crate) fn is_next(&self, record: &FrameHeader) -> bool {
        let Some(last) = self.rows.last() else { return true };
        self.rows.len() < MAX_BLOCK_RECORDS as usize
            && record.run_no == last.run_no
            && record.lsn > last.lsn
            && last.seq.0.checked_add(1) == Some(record.seq.0)
    }

    /// Adds a record that [`BlockBuilder::takes`]: the header of its frame, and its kind and
    /// payload.
    pub fn push(&mut self, record: &FrameHeader, payload: &[u8]) {
        self.rows.push(*record);
        self.payloads.extend_from_slice(payload);
    }

    /// Adds a record of a slice, as what it is made of.
    pub(crate) fn push_in_slice(&mut self, record: &FrameHeader, ops: &[Op]) {
        self.rows.push(*record);
        let before = self.payloads.len();
        self.at.encode(ops, &mut self.payloads);
        self.recipes.push(len_u32(self.payloads.len() - before));
    }

    /// The frame of the block, without a place, and its payload; `None` if that would be longer
    /// than `most` bytes. The builder is empty afterwards.
    pub(crate) fn finish(
        &mut self,
        compressor: &mut Compressor,
        most: usize,
    ) -> Option<(FrameHeader, Vec<u8>)> {
        let Self { rows, payloads, slice, recipes, .. } = core::mem::take(self);
        let (first, last) = (rows.first()?, rows.last()?);
        let latest = rows.iter().map(|row| row.at).max()?;
        let mut raw = encode_rows(&rows, &recipes, first.lsn, latest);
        let rows_len = len_u32(raw.len());
        let rows_crc = crc32fast::hash(&raw);
        raw.extend_from_slice(&payloads);
        let bytes =
            |row: &FrameHeader| u64::from(row.payload_len.saturating_sub(row.name_len.into()));
        let head = BlockHead {
            codec: compression::ZSTD,
            raw_len: len_u32(raw.len()),
            rows_len,
            rows_crc,
            last_lsn: last.lsn,
            bytes: rows.iter().map(bytes).sum(),
            late: len_u32(rows.iter().filter(|row| row.flags & FLAG_LATE != 0).count()),
            slice,
        };
        let most = most.checked_sub(head.len())?;
        let mut payload = head.encode();
        if head.raw_len > MAX_BLOCK_RAW || !compressor.compress(&raw, most, &mut payload) {
            return None;
        }
        let mut header = FrameHeader::new(FrameKind::Block, first.run_no, latest);
        (header.lsn, header.seq, header.extra) = (first.lsn, first.seq, len_u32(rows.len()));
        header.set_payload(b"", &payload);
        payload.shrink_to_fit();
        Some((header, payload))
    }
}

/// The rows of records, each with the length of its recipe if it has one. Their times count back
/// from the latest one.
fn encode_rows(rows: &[FrameHeader], recipes: &[u32], first: Lsn, latest: Timestamp) -> Vec<u8> {
    let mut out = Vec::with_capacity(rows.len() * 16);
    let (mut lsn, mut at) = (first.0, latest.0);
    let mut recipes = recipes.iter();
    for row in rows {
        put_varint(row.lsn.0 - lsn, &mut out);
        put_varint(zigzag(row.at.0.wrapping_sub(at)), &mut out);
        (lsn, at) = (row.lsn.0, row.at.0);
        Writer::new(&mut out).u8(row.flags & FLAG_LATE).u8(row.content.code()).u8(row.name_len);
        put_varint(row.payload_len.into(), &mut out);
        Writer::new(&mut out).u32(row.payload_crc);
        if let Some(len) = recipes.next() {
            put_varint(u64::from(*len), &mut out);
        }
    }
    out
}

/// The compressed payload of a chunk; `None` if it would be longer than `most` bytes.
pub(crate) fn pack_chunk(
    compressor: &mut Compressor,
    raw: &[u8],
    raw_crc: u32,
    most: usize,
) -> Option<Vec<u8>> {
    let most = most.checked_sub(CHUNK_HEAD_LEN)?;
    let mut out = Vec::with_capacity(CHUNK_HEAD_LEN + most);
    Writer::new(&mut out).u8(compression::ZSTD).zeros(3).u32(len_u32(raw.len())).u32(raw_crc);
    let fits = raw.len() <= MAX_CHUNK_RAW as usize && compressor.compress(raw, most, &mut out);
    out.shrink_to_fit();
    fits.then_some(out)
}

/// Appends the raw bytes of a compressed chunk to `out`, which may grow by `most` bytes.
pub fn unpack_chunk(payload: &[u8], most: u64, out: &mut Vec<u8>) -> Decoded<()> {
    let mut reader = Reader::new(payload);
    let (codec, raw_len) = (reader.u8()?, reader.zeros(3)?.u32()?);
    let raw_crc = reader.u32()?;
    at_most(raw_len, MAX_CHUNK_RAW)?;
    if u64::from(raw_len) > most {
        return Err(Damage::Mismatch);
    }
    let start = out.len();
    compression::decompress(codec, reader.rest(), raw_len as usize, out)?;
    check_crc(raw_crc, crc32fast::hash(out.get(start..).unwrap_or_default()))
}

/// Seven bits a byte, the lowest first. The last byte has its highest bit clear, and is zero only
/// if it is the only byte.
pub(super) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        out.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return;
        }
    }
}

pub(super) fn varint(reader: &mut Reader<'_>) -> Decoded<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = reader.u8()?;
        let low = u64::from(byte & 0x7f);
        if shift == 63 && low > 1 {
            break;
        }
        value |= low << shift;
        if byte & 0x80 == 0 {
            let is_shortest = byte != 0 || shift == 0;
            return if is_shortest { Ok(value) } else { Err(Damage::Mismatch) };
        }
    }
    Err(Damage::Mismatch)
}

/// Maps small numbers of either sign to small unsigned numbers.
pub(super) fn zigzag(value: i64) -> u64 {
    (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned()
}

pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests;
