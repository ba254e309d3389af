//! The directory of a sealed segment: which runs have frames in it, and where.
//!
//! It is the payload of the SEAL frame, in a fixed layout that can be searched in place. The
//! directories of all segments together contain everything that the index contains, so the index
//! can be dropped and rebuilt from them at any time.
//!
//! The layout is in section 15 of FORMAT.md.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, Writer, at_most, first_of, u32_at};
use crate::format::layout::ExtentSize;
use crate::format::segments::run_entry::{
    COLD, CREATED, DOCUMENT, ENDED, HELD, HOLD, KNOWN_FLAGS, RECORDS, STARTED,
};
pub use crate::format::segments::run_entry::{EndAt, HoldAt, RunEntry, StartAt};
use crate::types::{AgentId, Lsn, MAX_ID_LEN, RunId, RunNo, RunStatus, Seq, Timestamp};

/// The first bytes of a directory.
pub const DIRECTORY_MAGIC: [u8; 8] = *b"RLOGDIR1";
/// The size of the directory's header.
pub const DIRECTORY_HEADER_LEN: usize = 64;
/// The size of one run in the directory.
pub const RUN_ENTRY_LEN: usize = 136;
/// The size of one hash of a run id.
pub const HASH_LEN: usize = 8;
/// The size of one eviction.
pub(crate) const EVICTION_LEN: usize = 16;
pub(crate) const OFFSET_LEN: usize = 4;

/// The most bytes that a run's first frame in the segment adds to its directory.
pub const MAX_RUN_ENTRY_COST: usize = RUN_ENTRY_LEN + HASH_LEN + 2 * MAX_ID_LEN;
/// The bytes that each further record or chunk of a run adds.
pub const RECORD_COST: usize = OFFSET_LEN;
/// The bytes that an eviction adds.
pub const EVICTION_COST: usize = EVICTION_LEN;

/// The eviction has a receipt.
const WITH_RECEIPT: u32 = 1;

/// One eviction that a segment records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionAt {
    /// The run that is deleted.
    pub run_no: RunNo,
    /// The offset of the EVICT frame.
    pub offset: u32,
    /// Whether the frame has a receipt for it.
    pub with_receipt: bool,
}

/// What lists ask of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Brief {
    pub(crate) run_no: RunNo,
    /// When the run was created, if the entry says it; else the latest time of its frames here.
    pub(crate) at: Timestamp,
    pub(crate) status: RunStatus,
    pub(crate) held: bool,
    pub(crate) is_document: bool,
}

impl EvictionAt {
    pub(crate) fn encode(self, out: &mut Writer<'_>) {
        let flags = if self.with_receipt { WITH_RECEIPT } else { 0 };
        out.u64(self.run_no.0).u32(self.offset).u32(flags);
    }
}

/// The hash by which a directory finds a run id.
pub fn hash_id(run: &str) -> u32 {
    crc32fast::hash(run.as_bytes())
}

/// A view of an encoded directory. Its checksum was verified before; each access is bounds-checked
/// nevertheless.
#[derive(Debug, Clone, Copy)]
pub struct Directory<'a> {
    bytes: &'a [u8],
    runs: u32,
    evictions: u32,
    offsets: u32,
    hashes_at: usize,
    evictions_at: usize,
    offsets_at: usize,
    ids_at: usize,
    first_lsn: Lsn,
    last_lsn: Lsn,
    next_run_no: RunNo,
}

impl<'a> Directory<'a> {
    /// A view of `bytes`, which must be exactly one directory.
    pub fn new(bytes: &'a [u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        if reader.array::<8>()? != DIRECTORY_MAGIC {
            return Err(Damage::Magic);
        }
        let (runs, evictions) = (reader.u32()?, reader.u32()?);
        let (offsets, id_bytes) = (reader.u32()?, reader.u32()?);
        let (first_lsn, last_lsn) = (Lsn(reader.u64()?), Lsn(reader.u64()?));
        let next_run_no = RunNo(reader.u64()?);
        reader.zeros(16)?;
        let hashes_at = part(DIRECTORY_HEADER_LEN, runs, RUN_ENTRY_LEN)?;
        let evictions_at = part(hashes_at, runs, HASH_LEN)?;
        let offsets_at = part(evictions_at, evictions, EVICTION_LEN)?;
        let ids_at = part(offsets_at, offsets, OFFSET_LEN)?;
        let end = part(ids_at, id_bytes, 1)?;
        if end != bytes.len() {
            return Err(Damage::OutOfRange { found: end as u64, max: bytes.len() as u64 });
        }
        Ok(Self {
            bytes,
            runs,
            evictions,
            offsets,
            hashes_at,
            evictions_at,
            offsets_at,
            ids_at,
            first_lsn,
            last_lsn,
            next_run_no,
        })
    }

    /// Checks all parts. A directory with any invalid part must be rebuilt, since a list of many
    /// runs would otherwise end at the first invalid entry.
    pub fn check(&self) -> Decoded<()> {
        let (mut last_run, mut last_hash, mut listed) = (None, None, 0_u64);
        // Almost always all ids are text, which is seen faster than that each of them is.
        let ids = self.bytes.get(self.ids_at..).unwrap_or_default();
        let ids = core::str::from_utf8(ids).ok();
        for slot in 0..self.runs {
            self.check_fields(slot)?;
            self.check_ids(slot, ids)?;
            let (_, records) = self.record_list(slot)?;
            listed += u64::from(records) + u64::from(self.chunks(slot)?.0);
            let (run_no, (hash, of)) = (self.run_no(slot)?, self.hash_at(slot)?);
            let in_order = last_run < Some(run_no) && last_hash < Some((hash, of));
            let (id_at, run_len, _) = self.places_of_ids(of)?;
            let end = self.ids_at.saturating_add(id_at).saturating_add(run_len);
            let run = self.bytes.get(self.ids_at.saturating_add(id_at)..end);
            if !in_order || run.map(crc32fast::hash) != Some(hash) {
                return Err(Damage::Mismatch);
            }
            (last_run, last_hash) = (Some(run_no), Some((hash, of)));
        }
        // No two runs share a part of the list, so whatever goes through all runs ends.
        at_most(listed, self.offsets)?;
        let mut last = None;
        for eviction in self.evictions() {
            let run_no = Some(eviction?.run_no);
            if last >= run_no {
                return Err(Damage::Mismatch);
            }
            last = run_no;
        }
        Ok(())
    }

    fn check_entry(&self, slot: u32) -> Decoded<()> {
        self.check_fields(slot)?;
        self.check_ids(slot, None)
    }

    fn check_fields(&self, slot: u32) -> Decoded<()> {
        let mut reader = self.field(slot, 32)?;
        let flags = reader.u16()?;
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Damage::UnknownCode { found: u32::from(flags) });
        }
        reader.code(RunStatus::from_code)?;
        reader.zeros(1)?;
        at_most(self.stored(slot)?, ExtentSize::MAX.bytes())
    }

    /// Checks the ids of a slot, which are in `all` if all ids are text.
    fn check_ids(&self, slot: u32, all: Option<&str>) -> Decoded<()> {
        let (at, run, agent) = self.places_of_ids(slot)?;
        let is_len = |len: usize| (1..=MAX_ID_LEN).contains(&len);
        let middle = at.saturating_add(run);
        let end = middle.saturating_add(agent);
        let is_text = |all: &str| all.get(at..middle).is_some() && all.get(middle..end).is_some();
        if !all.is_some_and(is_text) {
            self.ids(slot)?;
        }
        if is_len(run) && is_len(agent) { Ok(()) } else { Err(Damage::Truncated) }
    }

    /// Where the ids of a slot start, and how long they are.
    fn places_of_ids(&self, slot: u32) -> Decoded<(usize, usize, usize)> {
        let mut reader = self.field(slot, 104)?;
        Ok((reader.u32()? as usize, usize::from(reader.u16()?), usize::from(reader.u16()?)))
    }

    /// How many runs have frames in the segment.
    pub fn run_count(&self) -> u32 {
        self.runs
    }

    /// How many evictions the segment records.
    pub fn eviction_count(&self) -> u32 {
        self.evictions
    }

    /// The first order number in the segment.
    pub fn first_lsn(&self) -> Lsn {
        self.first_lsn
    }

    /// The last order number in the segment.
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// The number that the next new run would get when the segment was sealed.
    pub fn next_run_no(&self) -> RunNo {
        self.next_run_no
    }

    /// The number of the run in `slot`, without decoding the rest.
    pub fn run_no(&self, slot: u32) -> Decoded<RunNo> {
        Ok(RunNo(self.field(slot, 0)?.u64()?))
    }

    /// The bytes of the frames of the run in `slot`, without decoding the rest.
    pub fn stored(&self, slot: u32) -> Decoded<u64> {
        self.field(slot, 88)?.u64()
    }

    /// Whether `slot` holds a version of a document.
    pub fn is_document(&self, slot: u32) -> Decoded<bool> {
        Ok(self.flags(slot)? & DOCUMENT != 0)
    }

    /// The bytes of the frames of the run in `slot` if it has records here that can still be
    /// compressed, else zero. Versions of documents are never compressed.
    pub fn loose(&self, slot: u32) -> Decoded<u64> {
        let has_records = self.field(slot, 24)?.u32()? > 0;
        let settled = self.flags(slot)? & (DOCUMENT | COLD) != 0;
        if has_records && !settled { self.stored(slot) } else { Ok(0) }
    }

    /// What lists ask of the run in `slot`, without decoding the rest.
    pub(crate) fn brief(&self, slot: u32) -> Decoded<Brief> {
        let mut reader = self.field(slot, 32)?;
        let (flags, status) = (reader.u16()?, reader.code(RunStatus::from_code)?);
        let at = if flags & CREATED != 0 { 40 } else { 96 };
        Ok(Brief {
            run_no: self.run_no(slot)?,
            at: Timestamp(self.field(slot, at)?.i64()?),
            status: if flags & ENDED != 0 { status } else { RunStatus::InProgress },
            held: flags & HOLD != 0 && flags & HELD != 0,
            is_document: flags & DOCUMENT != 0,
        })
    }

    /// The entry of the run in `slot`.
    pub fn run(&self, slot: u32) -> Decoded<RunEntry> {
        self.check_entry(slot)?;
        let mut reader = self.field(slot, 0)?;
        let run_no = RunNo(reader.u64()?);
        let (first_seq, next_seq) = (Seq(reader.u64()?), Seq(reader.u64()?));
        let (records, _first_offset) = (reader.u32()?, reader.u32()?);
        let (flags, status) = (reader.u16()?, reader.code(RunStatus::from_code)?);
        let late = reader.zeros(1)?.u32()?;
        let created_at = Timestamp(reader.i64()?);
        let (start_offset, end_offset) = (reader.u32()?, reader.u32()?);
        let (started_at, ended_at) = (Timestamp(reader.i64()?), Timestamp(reader.i64()?));
        let end_lsn = Lsn(reader.u64()?);
        let (bytes, stored) = (reader.u64()?, reader.u64()?);
        let last_at = Timestamp(reader.i64()?);
        reader.array::<8>()?;
        let (hold_offset, hold_lsn) = (reader.u32()?, Lsn(reader.u64()?));
        let (chunks, first_lsn) = (reader.u32()?, Lsn(reader.u64()?));
        let (run, agent) = self.ids(slot)?;
        Ok(RunEntry {
            run_no,
            agent: AgentId::new(agent).map_err(|_| Damage::Truncated)?,
            run: RunId::new(run).map_err(|_| Damage::Truncated)?,
            document: flags & DOCUMENT != 0,
            cold: flags & COLD != 0,
            created_at: (flags & CREATED != 0).then_some(created_at),
            start: (flags & STARTED != 0)
                .then_some(StartAt { offset: start_offset, at: started_at }),
            end: (flags & ENDED != 0).then_some(EndAt {
                offset: end_offset,
                at: ended_at,
                status,
                lsn: end_lsn,
            }),
            hold: (flags & HOLD != 0).then_some(HoldAt {
                offset: hold_offset,
                lsn: hold_lsn,
                held: flags & HELD != 0,
            }),
            first_seq: (flags & RECORDS != 0).then_some(first_seq),
            next_seq,
            records,
            chunks,
            late,
            bytes,
            stored,
            last_at,
            first_lsn,
        })
    }

    /// The run id and the agent id in `slot`.
    pub fn ids(&self, slot: u32) -> Decoded<(&'a str, &'a str)> {
        let (id_at, run_len, agent_len) = self.places_of_ids(slot)?;
        let ids = self.bytes.get(self.ids_at..).unwrap_or_default();
        let mut reader = Reader::new(ids.get(id_at..).ok_or(Damage::Truncated)?);
        Ok((reader.text(run_len)?, reader.text(agent_len)?))
    }

    /// The slot of the run with this number.
    pub fn find_no(&self, run_no: RunNo) -> Decoded<Option<u32>> {
        let slot = first_of(self.runs, |slot| Ok(self.run_no(slot)? < run_no))?;
        Ok((slot < self.runs && self.run_no(slot)? == run_no).then_some(slot))
    }

    /// The slots of all runs with this id.
    pub fn find_id(&self, run: &str) -> Decoded<Vec<u32>> {
        let hash = hash_id(run);
        let mut found = Vec::new();
        for index in first_of(self.runs, |index| Ok(self.hash_at(index)?.0 < hash))?..self.runs {
            let (other, slot) = self.hash_at(index)?;
            if other != hash {
                break;
            }
            if self.ids(slot)?.0 == run {
                found.push(slot);
            }
        }
        Ok(found)
    }

    /// The eviction at `index`, in the order of the run numbers.
    pub fn eviction(&self, index: u32) -> Decoded<EvictionAt> {
        below(index, self.evictions)?;
        let mut reader = Reader::at(self.bytes, self.evictions_at + index as usize * EVICTION_LEN);
        let (run_no, offset, flags) = (RunNo(reader.u64()?), reader.u32()?, reader.u32()?);
        if flags & !WITH_RECEIPT != 0 {
            return Err(Damage::UnknownCode { found: flags });
        }
        Ok(EvictionAt { run_no, offset, with_receipt: flags == WITH_RECEIPT })
    }

    /// All evictions that the segment records, in the order of the run numbers.
    pub fn evictions(&self) -> impl Iterator<Item = Decoded<EvictionAt>> + '_ {
        (0..self.evictions).map(|index| self.eviction(index))
    }

    /// How many chunks of large records the run in `slot` has here, and the smallest order of a
    /// frame of it.
    pub fn chunks(&self, slot: u32) -> Decoded<(u32, Lsn)> {
        let mut reader = self.field(slot, 124)?;
        Ok((reader.u32()?, Lsn(reader.u64()?)))
    }

    /// The start of the list of record offsets of the run in `slot`, in the directory's bytes, and
    /// its length. The chunk offsets follow it. All of them lie within the directory.
    pub fn record_list(&self, slot: u32) -> Decoded<(u32, u32)> {
        let mut reader = self.field(slot, 24)?;
        let (records, first) = (reader.u32()?, reader.u32()?);
        let listed = records.checked_add(self.chunks(slot)?.0).ok_or(Damage::Truncated)?;
        let end = first.checked_add(listed).ok_or(Damage::Truncated)?;
        at_most(end, self.offsets)?;
        let start = self.offsets_at + first as usize * OFFSET_LEN;
        Ok((u32::try_from(start).map_err(|_| Damage::Truncated)?, records))
    }

    /// The sequence of the first record of the run in `slot`, if it has records here, and the
    /// sequence of the last one plus one.
    pub fn sequences(&self, slot: u32) -> Decoded<(Option<Seq>, Seq)> {
        let mut reader = self.field(slot, 8)?;
        let (first, next) = (Seq(reader.u64()?), Seq(reader.u64()?));
        Ok(((self.flags(slot)? & RECORDS != 0).then_some(first), next))
    }

    /// The offset of record `index` of the run in `slot`. Records count from 0 in this segment; the
    /// chunks have the indexes behind the last record.
    pub fn record_offset(&self, slot: u32, index: u32) -> Decoded<u32> {
        let (start, records) = self.record_list(slot)?;
        let listed = records.saturating_add(self.chunks(slot)?.0);
        below(index, listed)?;
        offset_in_list(self.bytes, start, index)
    }

    fn flags(&self, slot: u32) -> Decoded<u16> {
        self.field(slot, 32)?.u16()
    }

    /// The bytes of the entry in `slot` from `from` on.
    fn field(&self, slot: u32, from: usize) -> Decoded<Reader<'a>> {
        below(slot, self.runs)?;
        let at = DIRECTORY_HEADER_LEN + slot as usize * RUN_ENTRY_LEN;
        Ok(Reader::at(self.bytes, at + from))
    }

    fn hash_at(&self, index: u32) -> Decoded<(u32, u32)> {
        let mut reader = Reader::at(self.bytes, self.hashes_at + index as usize * HASH_LEN);
        Ok((reader.u32()?, reader.u32()?))
    }
}

fn below(found: u32, end: u32) -> Decoded<()> {
    let (found, max) = (found.into(), end.into());
    if found < max { Ok(()) } else { Err(Damage::OutOfRange { found, max }) }
}

/// Item `index` of a list of offsets that starts at `start` of the directory's bytes.
pub fn offset_in_list(directory: &[u8], start: u32, index: u32) -> Decoded<u32> {
    u32_at(directory, start as usize + index as usize * OFFSET_LEN)
}

/// The end of `count` items of `size` bytes that start at `at`.
fn part(at: usize, count: u32, size: usize) -> Decoded<usize> {
    (count as usize).checked_mul(size).and_then(|len| at.checked_add(len)).ok_or(Damage::Truncated)
}
