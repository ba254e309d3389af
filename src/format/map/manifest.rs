//! The manifest: the owner of each extent, as a snapshot followed by changes.
//!
//! Section 7 of FORMAT.md has the layout and defines a hole. [`Extents`] is the state that results
//! from all records.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, check_crc, check_flags, open_checked, put_checked};
pub use crate::format::map::extents::{Area, Extents, SealedAt, Use};
use crate::format::segments::segment::{Purpose, check_id};
use crate::types::{ExtentNo, RunNo, SegmentId};

const MAGIC: [u8; 8] = *b"RLOGMAN1";
/// The length of an area's header.
pub const AREA_HEADER_LEN: usize = 64;
const AREA_CHECKED_LEN: usize = 60;
/// The length of one record.
pub const RECORD_LEN: usize = 40;
/// Devices write this many bytes whole or not at all. Areas start at multiples of it.
const SECTOR_LEN: usize = 512;
/// The longest area.
pub const MAX_AREA_LEN: u64 = 1 << 32;
/// The record is the last of its batch.
pub const LAST_OF_BATCH: u8 = 1;

/// The start of a manifest area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct AreaHeader {
    /// The store it belongs to.
    pub uuid: [u8; 16],
    /// Counts the snapshots of this store.
    pub generation: u64,
    /// The length of the area in bytes.
    pub area_len: u64,
    /// How many records the snapshot has.
    pub snapshot: u32,
}

impl AreaHeader {
    /// The header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        put_checked(&MAGIC, (AREA_CHECKED_LEN, AREA_HEADER_LEN), |out| {
            out.bytes(&self.uuid).u64(self.generation).u64(self.area_len).u32(self.snapshot);
        })
    }

    /// Reads the first bytes of an area.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = open_checked(bytes, &MAGIC, AREA_CHECKED_LEN)?;
        let header = Self {
            uuid: reader.array()?,
            generation: reader.u64()?,
            area_len: reader.u64()?,
            snapshot: reader.u32()?,
        };
        reader.zeros(16)?;
        Ok(header)
    }
}

/// A change of one extent's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The extent becomes this segment of the log.
    Reserve {
        /// The extent.
        extent: ExtentNo,
        /// The segment's number.
        segment: SegmentId,
        /// The segment's salt.
        salt: u64,
        /// The purpose of the segment.
        purpose: Purpose,
    },
    /// The segment in the extent is sealed and durable. A compaction output counts from this change
    /// on; the same batch retires the segments that it replaces.
    Seal {
        /// The extent.
        extent: ExtentNo,
        /// The segment's number.
        segment: SegmentId,
        /// Its end and directory.
        at: SealedAt,
    },
    /// The segment in the extent is no longer used.
    Retire {
        /// The extent.
        extent: ExtentNo,
    },
    /// The extent becomes free.
    Free {
        /// The extent.
        extent: ExtentNo,
    },
    /// The extent becomes piece `slot` of the index.
    Map {
        /// The extent.
        extent: ExtentNo,
        /// Its place in the index.
        slot: u32,
    },
    /// The index has this length.
    IndexLen {
        /// The length in bytes.
        len: u64,
    },
    /// The extent holds a manifest area, or a part of one.
    Meta {
        /// The extent.
        extent: ExtentNo,
        /// The length of the area.
        area_len: u64,
    },
}

const RESERVE: u8 = 1;
const SEAL: u8 = 2;
const RETIRE: u8 = 3;
const FREE: u8 = 4;
const MAP: u8 = 5;
const INDEX_LEN: u8 = 6;
const META: u8 = 7;
const HAS_EVICTIONS: u8 = 1;

/// The place of a record, which keys its check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordKey {
    /// The generation of the area.
    pub generation: u64,
    /// The number of the record in the area, from 0.
    pub index: u64,
}

/// The bytes of a batch whose first record has this key.
pub fn encode_batch(changes: &[Change], first: RecordKey) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(changes.len() * RECORD_LEN);
    for (place, change) in (0..).zip(changes) {
        let key = RecordKey { index: first.index + u64::from(place), ..first };
        bytes.extend(change.encode(key, place, place as usize + 1 == changes.len()));
    }
    bytes
}

/// A record that passed its check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The change that it records.
    pub change: Change,
    /// How many records of its batch precede it.
    pub place: u32,
    /// Whether it is the last of its batch.
    pub last: bool,
}

impl Change {
    /// The record's bytes.
    fn encode(&self, key: RecordKey, place: u32, last: bool) -> [u8; RECORD_LEN] {
        let (op, detail, extent, number, wide, [a, b, c]) = match *self {
            Self::Reserve { extent, segment, salt, purpose } => {
                (RESERVE, purpose as u8, extent.0, segment.0, salt, [0, 0, 0])
            }
            Self::Seal { extent, segment, at } => {
                let detail = if at.has_evictions { HAS_EVICTIONS } else { 0 };
                (SEAL, detail, extent.0, segment.0, at.next_run_no.0, [at.end, at.len, at.digest])
            }
            Self::Retire { extent } => (RETIRE, 0, extent.0, 0, 0, [0, 0, 0]),
            Self::Free { extent } => (FREE, 0, extent.0, 0, 0, [0, 0, 0]),
            Self::Map { extent, slot } => (MAP, 0, extent.0, slot, 0, [0, 0, 0]),
            Self::IndexLen { len } => (INDEX_LEN, 0, 0, 0, len, [0, 0, 0]),
            Self::Meta { extent, area_len } => (META, 0, extent.0, 0, area_len, [0, 0, 0]),
        };
        let mut out = [0; RECORD_LEN];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(4, &[op, if last { LAST_OF_BATCH } else { 0 }, detail, 0]);
        put(8, &extent.to_le_bytes());
        put(12, &number.to_le_bytes());
        put(16, &wide.to_le_bytes());
        put(24, &a.to_le_bytes());
        put(28, &b.to_le_bytes());
        put(32, &c.to_le_bytes());
        put(36, &place.to_le_bytes());
        let check = record_check(&out, key);
        out[..4].copy_from_slice(&check.to_le_bytes());
        out
    }

    /// Reads a record.
    pub fn decode(bytes: &[u8], key: RecordKey) -> Decoded<Record> {
        let record = bytes.first_chunk::<RECORD_LEN>().ok_or(Damage::Truncated)?;
        let mut reader = Reader::new(record);
        check_crc(reader.u32()?, record_check(record, key))?;
        let (op, flags, detail) = (reader.u8()?, reader.u8()?, reader.u8()?);
        reader.zeros(1)?;
        let (extent, number, wide) = (ExtentNo(reader.u32()?), reader.u32()?, reader.u64()?);
        let (end, len, digest, place) =
            (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        check_flags(flags, LAST_OF_BATCH)?;
        check_flags(detail, HAS_EVICTIONS)?;
        let segment = SegmentId(number);
        let unknown = |code: u8| Damage::UnknownCode { found: code.into() };
        let change = match op {
            RESERVE => {
                check_id(segment)?;
                let purpose = Purpose::from_code(detail).ok_or_else(|| unknown(detail))?;
                Self::Reserve { extent, segment, salt: wide, purpose }
            }
            SEAL => {
                let (has_evictions, next_run_no) = (detail & HAS_EVICTIONS != 0, RunNo(wide));
                let at = SealedAt { end, len, digest, has_evictions, next_run_no };
                Self::Seal { extent, segment, at }
            }
            RETIRE => Self::Retire { extent },
            FREE => Self::Free { extent },
            MAP => Self::Map { extent, slot: number },
            INDEX_LEN => Self::IndexLen { len: wide },
            META => Self::Meta { extent, area_len: wide },
            _ => return Err(unknown(op)),
        };
        Ok(Record { change, place, last: flags & LAST_OF_BATCH != 0 })
    }
}

fn record_check(record: &[u8; RECORD_LEN], key: RecordKey) -> u32 {
    let mut keyed = [0; RECORD_LEN + 12];
    keyed[..8].copy_from_slice(&key.generation.to_le_bytes());
    keyed[8..16].copy_from_slice(&key.index.to_le_bytes());
    keyed[16..].copy_from_slice(&record[4..]);
    crc32fast::hash(&keyed)
}

/// The contents of an area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AreaContents {
    /// The header.
    pub header: AreaHeader,
    /// The state after the last complete batch.
    pub extents: Extents,
    /// How many records are in complete batches.
    pub records: u64,
    /// The last of these batches; empty if that is the snapshot.
    pub last_batch: Vec<Change>,
    /// Whether damage follows the last complete batch, as opposed to a batch that was being
    /// written: a later batch follows, or bytes that no torn write leaves.
    pub hole: bool,
}

/// Reads a whole area: the snapshot, then the changes up to the first that fails its check.
pub fn read_area(bytes: &[u8], uuid: [u8; 16], generation: u64) -> Decoded<AreaContents> {
    let header = AreaHeader::decode(bytes)?;
    if header.uuid != uuid || header.generation != generation {
        return Err(Damage::Misplaced);
    }
    // Most of an area is zeros, which are not records.
    let used = used_len(bytes).saturating_sub(AREA_HEADER_LEN).next_multiple_of(RECORD_LEN);
    let bytes = bytes.get(..AREA_HEADER_LEN + used).unwrap_or(bytes);
    let records = bytes.get(AREA_HEADER_LEN..).unwrap_or_default().chunks_exact(RECORD_LEN);
    // The records, each with the number of the first record of its batch.
    let mut decoded = (0_usize..).zip(records).map(|(index, record)| {
        let key = RecordKey { generation, index: index as u64 };
        Change::decode(record, key).map(|record| (index.checked_sub(record.place as usize), record))
    });
    let (mut extents, mut batch, mut last_batch) = (Extents::default(), Vec::new(), Vec::new());
    let (mut whole, mut good) = (0_usize, 0_usize);
    for found in decoded.by_ref() {
        let (first, record) = match found {
            Ok(found) => found,
            Err(Damage::Checksum { .. }) => break,
            // It passed the check and makes no sense, so it was written like that.
            Err(damage) => return Err(damage),
        };
        if first != Some(whole) {
            return Err(Damage::Mismatch);
        }
        good += 1;
        batch.push(record.change);
        if record.last {
            batch.iter().try_for_each(|change| extents.apply(*change))?;
            last_batch = if whole == 0 { Vec::new() } else { core::mem::take(&mut batch) };
            batch.clear();
            whole = good;
        }
    }
    if whole < header.snapshot as usize {
        return Err(Damage::Truncated);
    }
    if !extents.is_consistent() {
        return Err(Damage::Mismatch);
    }
    // At most one batch is not synced. A power cut may leave any sectors of it.
    let later = decoded.filter_map(Result::ok).any(|(first, _)| first != Some(whole));
    let hole = later || !is_torn(bytes, AREA_HEADER_LEN + good * RECORD_LEN);
    Ok(AreaContents { header, extents, records: whole as u64, last_batch, hole })
}

/// The length without the zeros at the end.
pub fn used_len(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4096] = [0; 4096];
    let is_zero = |block: &&[u8]| Some(*block) == ZEROS.get(..block.len());
    let zeros: usize = bytes.rchunks(ZEROS.len()).take_while(is_zero).map(<[u8]>::len).sum();
    let rest = bytes.get(..bytes.len() - zeros).unwrap_or_default();
    rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
}

/// Whether a torn write may have left the invalid record at this place of its area. A killed
/// process leaves the first bytes and zeros behind them. A power cut leaves a part in one sector
/// unwritten. Bytes that were never written are zero.
fn is_torn(area: &[u8], at: usize) -> bool {
    let unwritten = |part: &[u8]| part.iter().all(|&byte| byte == 0);
    let (record, behind) =
        area.get(at..).unwrap_or_default().split_at_checked(RECORD_LEN).unwrap_or_default();
    let (first, second) = record.split_at(record.len().min(SECTOR_LEN - at % SECTOR_LEN));
    unwritten(behind) || unwritten(first) || (!second.is_empty() && unwritten(second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::{ExtentSize, PAGE};

    fn area(generation: u64, batches: &[&[Change]]) -> Vec<u8> {
        let snapshot = u32::try_from(batches[0].len()).unwrap();
        let header = AreaHeader { uuid: [1; 16], generation, area_len: 4096, snapshot };
        let mut bytes = header.encode();
        for batch in batches {
            let index = ((bytes.len() - AREA_HEADER_LEN) / RECORD_LEN) as u64;
            bytes.extend(encode_batch(batch, RecordKey { generation, index }));
        }
        bytes.resize(4096, 0);
        bytes
    }

    fn reserve(extent: u32, segment: u32) -> Change {
        let (extent, segment) = (ExtentNo(extent), SegmentId(segment));
        Change::Reserve { extent, segment, salt: 8, purpose: Purpose::Log }
    }

    fn seal(extent: u32, segment: u32) -> Change {
        let next_run_no = RunNo(9);
        let at = SealedAt { end: 100, len: 104, digest: 7, has_evictions: true, next_run_no };
        Change::Seal { extent: ExtentNo(extent), segment: SegmentId(segment), at }
    }

    fn read(bytes: &[u8]) -> Decoded<AreaContents> {
        read_area(bytes, [1; 16], 1)
    }

    /// What can be read of an area and whether there is a hole, after `change` altered its bytes.
    fn changed(batches: &[&[Change]], change: impl FnOnce(&mut [u8])) -> (u64, bool) {
        let mut bytes = area(1, batches);
        change(&mut bytes);
        let read = read(&bytes).unwrap();
        assert_eq!(read.extents.uses.len() as u64, read.records);
        (read.records, read.hole)
    }

    #[test]
    fn half_a_batch_does_not_count_and_is_a_hole_where_no_torn_write_leaves_it() {
        let reserves = |numbers: core::ops::Range<u32>| -> Vec<Change> {
            numbers.map(|number| reserve(number, number + 1)).collect()
        };
        let record = |index: usize| AREA_HEADER_LEN + index * RECORD_LEN;
        let (one, two) = (reserves(0..1), reserves(1..3));
        let short: [&[Change]; 2] = [&one, &two];
        assert_eq!(changed(&short, |bytes| bytes[record(2)..record(3)].fill(0)), (1, false));
        assert_eq!(changed(&short, |bytes| bytes[record(1) + 9] ^= 1), (1, true));
        // A batch torn between its sectors.
        let (one, two) = (reserves(0..8), reserves(8..16));
        let long: [&[Change]; 2] = [&one, &two];
        assert_eq!(changed(&long, |bytes| bytes[record(8)..SECTOR_LEN].fill(0)), (8, false));
        assert_eq!(changed(&long, |bytes| bytes[SECTOR_LEN..].fill(0)), (8, false));
        // A valid record behind an invalid one.
        let each: Vec<_> = (0..24).map(|number| reserves(number..number + 1)).collect();
        let mut batches: Vec<&[Change]> = each.iter().map(Vec::as_slice).collect();
        assert_eq!(changed(&batches[..3], |bytes| bytes[record(1) + 9] ^= 1), (1, true));
        // A lost sector. Everything behind it belongs to one batch, which is not the batch that
        // lost its start.
        let last = reserves(24..30);
        batches.push(&last);
        assert!(changed(&batches, |bytes| bytes[SECTOR_LEN..2 * SECTOR_LEN].fill(0)).1);
    }

    #[test]
    fn a_segment_of_the_log_is_not_sealed_in_front_of_others_that_are_not() {
        let both = [reserve(0, 1), reserve(1, 2)];
        assert!(read(&area(1, &[&both, &[seal(0, 1)]])).is_ok());
        assert!(read(&area(1, &[&both, &[seal(1, 2)]])).is_err());
        assert!(read(&area(1, &[&both, &[seal(0, 1)], &[seal(1, 2)]])).is_ok());
        // The numbers of outputs do not matter.
        let (extent, segment) = (ExtentNo(1), SegmentId(2));
        let output = Change::Reserve { extent, segment, salt: 8, purpose: Purpose::Output };
        assert!(read(&area(1, &[&[both[0], output], &[seal(1, 2)]])).is_ok());
    }

    #[test]
    fn areas_are_rows_of_extents_that_say_how_long_they_are() {
        let size = ExtentSize::MIN;
        let extents = |metas: &[(u32, u64)]| {
            let mut extents = Extents::default();
            for &(extent, area_len) in metas {
                extents.apply(Change::Meta { extent: ExtentNo(extent), area_len }).unwrap();
            }
            extents.areas(size)
        };
        let two = size.bytes() + PAGE;
        let area = |extent, len| Area { offset: size.offset_of(ExtentNo(extent)), len };
        assert_eq!(extents(&[]), Ok(Vec::new()));
        assert_eq!(
            extents(&[(3, two), (4, two), (5, PAGE)]),
            Ok(vec![area(3, two), area(5, PAGE)])
        );
        assert_eq!(area(3, two).extents(size).collect::<Vec<_>>(), [ExtentNo(3), ExtentNo(4)]);
        assert_eq!(Area::FRONT[0].extents(size).count(), 0);
        for wrong in [&[(3, two)][..], &[(3, two), (5, two)], &[(3, two), (4, PAGE)], &[(3, 0)]] {
            assert!(extents(wrong).is_err(), "{wrong:?}");
        }
        for len in [1, PAGE + 1, MAX_AREA_LEN + PAGE, u64::MAX] {
            assert!(extents(&[(3, len)]).is_err(), "{len}");
        }
    }

    #[test]
    fn records_of_another_generation_do_not_check() {
        let bytes = area(1, &[&[reserve(0, 1)]]);
        let key = RecordKey { generation: 2, index: 0 };
        assert!(Change::decode(&bytes[AREA_HEADER_LEN..], key).is_err());
        assert_eq!(read_area(&bytes, [1; 16], 2), Err(Damage::Misplaced));
    }

    #[test]
    fn an_extent_never_gets_a_second_owner() {
        let mut extents = Extents::default();
        extents.apply(reserve(0, 1)).unwrap();
        let map = Change::Map { extent: ExtentNo(0), slot: 0 };
        for change in [reserve(0, 2), map] {
            assert_eq!(extents.clone().apply(change), Err(Damage::Mismatch));
        }
    }
}
