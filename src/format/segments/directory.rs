//! The directory of a sealed segment: which runs have frames in it, and where.
//!
//! It is the payload of the SEAL frame, in a layout that can be searched in place: entries, one for
//! each run, then tables, then a trailer. The directories of all segments together contain
//! everything that the index contains, so the index can be dropped and rebuilt from them at any
//! time.
//!
//! - The tables have one check, which is verified when the directory is opened. Each entry has a
//!   check of its own, which is verified each time the entry is read. So a lookup reads the tables
//!   and one entry, and damage of an entry costs only its run.
//! - The checks are keyed by the salt and the end of the segment and by the place, so bytes of an
//!   older directory never pass.
//!
//! The layout is in section 15 of FORMAT.md.

use std::borrow::Cow;

use crate::error::Damage;
use crate::format::codec::{
    Decoded, Reader, Writer, at_most, check_crc, first_of, len_u32, u32_at,
};
use crate::format::frames::slice::PieceAt;
use crate::format::segments::directory_key::check_at;
pub use crate::format::segments::directory_key::{DirectoryKey, IdHash};
pub use crate::format::segments::directory_tables::Tables;
use crate::format::segments::directory_tables::{PIECE_LEN, PIECES, SECTION_HEAD_LEN, pieces_len};
use crate::format::segments::run_entry::{
    self, ENTRY_ALIGN, EntryHead, GROUP, MAX_ENTRY, offset_at,
};
pub use crate::format::segments::run_entry::{EndAt, HoldAt, RunEntry, RunPart, StartAt};
use crate::types::{Lsn, MAX_ID_LEN, RunNo, RunStatus, Timestamp};

/// The first bytes of the trailer.
pub const DIRECTORY_MAGIC: [u8; 8] = *b"RLOGDIR2";
/// The size of the trailer, with which a directory ends.
pub const TRAILER_LEN: usize = 64;
/// The size of what the tables have of one run: its place, and the hash of its ids.
pub(super) const TABLE_LEN: usize = PLACE_LEN + HASH_LEN;
pub(super) const PLACE_LEN: usize = 4;
pub(super) const HASH_LEN: usize = 8;
/// The size of one eviction.
pub(super) const EVICTION_LEN: usize = 16;

/// The most bytes that a run's first frame in the segment adds to its directory, without its ids.
pub const RUN_COST: usize = MAX_ENTRY + TABLE_LEN;
/// The same with ids.
pub const MAX_RUN_COST: usize = RUN_COST + 2 * MAX_ID_LEN;
/// The least bytes that each record or chunk takes.
pub const OFFSET_LEN: usize = run_entry::OFFSET_LEN;
/// The most bytes that a PIECE adds.
pub const PIECE_COST: usize = PIECE_LEN + SECTION_HEAD_LEN;
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

impl EvictionAt {
    fn encode(self, out: &mut Writer<'_>) {
        let flags = if self.with_receipt { WITH_RECEIPT } else { 0 };
        out.u64(self.run_no.0).u32(self.offset).u32(flags);
    }
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

/// Appends a directory: the entries, each with its parts and its offsets, then tables and trailer.
/// `entries` ascend by run number.
pub(super) fn encode<'e>(
    out: &mut Vec<u8>,
    entries: impl Iterator<Item = (&'e RunEntry, Vec<RunPart>, Vec<&'e u32>)>,
    (evictions, pieces): (impl ExactSizeIterator<Item = EvictionAt>, &[PieceAt]),
    key: &DirectoryKey,
    (first, last, next): (Lsn, Lsn, RunNo),
) {
    let salted = key.salted();
    let (mut places, mut hashes) = (Vec::new(), Vec::new());
    for (slot, (entry, parts, offsets)) in (0..).zip(entries) {
        places.push(u32::try_from(out.len() / ENTRY_ALIGN).unwrap_or(u32::MAX));
        hashes.push((key.ids.of_entry(entry), slot));
        let check = |at: usize, bytes: &[u8]| check_at(&salted, at, bytes);
        entry.encode(out, &parts, offsets.into_iter(), check);
    }
    hashes.sort_unstable();
    let tables = out.len();
    let (runs, count) = (places.len(), evictions.len());
    let len = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let mut writer = Writer::new(out);
    for place in places {
        writer.u32(place);
    }
    for (hash, slot) in hashes {
        let slot: u32 = slot;
        writer.u32(hash).u32(slot);
    }
    for eviction in evictions {
        eviction.encode(&mut writer);
    }
    if !pieces.is_empty() {
        writer.u32(PIECES).u32(len(pieces.len() * PIECE_LEN));
        for PieceAt { slice, start, offset } in pieces {
            writer.u64(slice.0).u32(*start).u32(*offset);
        }
    }
    writer
        .bytes(&DIRECTORY_MAGIC)
        .u32(len(tables))
        .u32(len(runs))
        .u32(len(count))
        .u32(len(pieces_len(pieces.len())))
        .u64(first.0)
        .u64(last.0)
        .u64(next.0)
        .zeros(12);
    let check = check_at(&salted, tables, out.get(tables..).unwrap_or_default());
    out.extend(check.to_le_bytes());
}

/// A view of an encoded directory. The check of its tables matched; each access to an entry checks
/// that entry.
#[derive(Debug, Clone)]
pub struct Directory<'a> {
    bytes: &'a [u8],
    tables: Cow<'a, Tables>,
}

impl<'a> Directory<'a> {
    /// A view of `bytes`, which must be exactly one directory.
    ///
    /// # Errors
    /// As [`Tables::read`].
    pub fn new(bytes: &'a [u8], key: &DirectoryKey) -> Decoded<Self> {
        Ok(Self { bytes, tables: Cow::Owned(Tables::read(bytes, key)?) })
    }

    /// A view of the bytes from which these tables were read.
    pub(crate) fn with(bytes: &'a [u8], tables: &'a Tables) -> Self {
        Self { bytes, tables: Cow::Borrowed(tables) }
    }

    /// Checks all entries, and that they are those of the tables.
    ///
    /// # Errors
    /// The first [`Damage`].
    pub fn check(&self) -> Decoded<()> {
        let (mut end, mut last_run) = (0, None);
        let mut hashes = Vec::with_capacity(self.tables.runs as usize);
        for slot in 0..self.tables.runs {
            let at = self.place(slot)? as usize;
            let head = self.head(slot)?;
            let entry = head.entry()?;
            if at != end || last_run >= Some(head.run_no) {
                return Err(Damage::Mismatch);
            }
            let list = self.list_of(slot)?;
            for group in 0..list.len.div_ceil(GROUP) {
                let _ = self.group(list, group)?;
            }
            hashes.push((self.tables.ids.of_entry(&entry), slot));
            (end, last_run) = (at + head.entry_len(), Some(head.run_no));
        }
        hashes.sort_unstable();
        for (index, expected) in (0..).zip(hashes) {
            let found = self.hash_at(index)?;
            if found != expected {
                return Err(Damage::Mismatch);
            }
        }
        if end != self.tables.places_at {
            return Err(Damage::Mismatch);
        }
        let mut last = None;
        for eviction in self.evictions() {
            let run_no = Some(eviction?.run_no);
            if last >= run_no {
                return Err(Damage::Mismatch);
            }
            last = run_no;
        }
        let pieces = self.pieces().collect::<Decoded<Vec<_>>>()?;
        if pieces.is_sorted_by(|one, next| one < next) { Ok(()) } else { Err(Damage::Mismatch) }
    }

    /// How many runs have frames in the segment.
    pub fn run_count(&self) -> u32 {
        self.tables.runs
    }

    /// How many evictions the segment records.
    pub fn eviction_count(&self) -> u32 {
        self.tables.evictions
    }

    /// The first order number in the segment.
    pub fn first_lsn(&self) -> Lsn {
        self.tables.first_lsn
    }

    /// The last order number in the segment.
    pub fn last_lsn(&self) -> Lsn {
        self.tables.last_lsn
    }

    /// The number that the next new run would get when the segment was sealed.
    pub fn next_run_no(&self) -> RunNo {
        self.tables.next_run_no
    }

    /// The number of the run in `slot`.
    pub fn run_no(&self, slot: u32) -> Decoded<RunNo> {
        Ok(self.head(slot)?.run_no)
    }

    /// The bytes of the frames of the run in `slot`.
    pub fn stored(&self, slot: u32) -> Decoded<u64> {
        Ok(self.head(slot)?.stored)
    }

    /// The bytes of the entry of the run in `slot` and of what the tables have of it.
    pub(crate) fn entry_cost(&self, slot: u32) -> Decoded<usize> {
        Ok(self.head(slot)?.entry_len() + TABLE_LEN)
    }

    /// Whether `slot` holds a version of a document.
    pub fn is_document(&self, slot: u32) -> Decoded<bool> {
        Ok(self.head(slot)?.is_document())
    }

    /// The bytes of the frames of the run in `slot` if it has records or chunks here that can still
    /// be compressed, else zero. Versions of documents are never compressed.
    pub fn loose(&self, slot: u32) -> Decoded<u64> {
        let head = self.head(slot)?;
        let has_records = head.listed > 0;
        let settled = head.is_document() || head.is_cold();
        Ok(if has_records && !settled { head.stored } else { 0 })
    }

    /// What lists ask of the run in `slot`.
    pub(crate) fn brief(&self, slot: u32) -> Decoded<Brief> {
        let head = self.head(slot)?;
        Ok(Brief {
            run_no: head.run_no,
            at: head.created_at()?.unwrap_or(head.last_at),
            status: head.status(),
            held: head.is_held(),
            is_document: head.is_document(),
        })
    }

    /// The entry of the run in `slot`.
    pub fn run(&self, slot: u32) -> Decoded<RunEntry> {
        self.head(slot)?.entry()
    }

    /// The parts of the run in `slot`, in the order of the run.
    pub fn parts(&self, slot: u32) -> Decoded<impl Iterator<Item = RunPart> + use<'a>> {
        Ok(self.head(slot)?.parts())
    }

    /// The run id and the agent id in `slot`.
    pub fn ids(&self, slot: u32) -> Decoded<(&'a str, &'a str)> {
        let head = self.head(slot)?;
        Ok((head.run, head.agent))
    }

    /// The hash by which the entry in `slot` is found, and that of both its ids.
    pub(crate) fn hashes_of(&self, slot: u32) -> Decoded<(u32, u32)> {
        let (head, ids) = (self.head(slot)?, self.tables.ids);
        let hash = ids.of_ids(head.run, head.agent, head.is_document());
        Ok((hash, ids.of_both(head.agent, head.run)))
    }

    /// The number of the run whose entry starts at `at`, and the hash of both its ids.
    pub(crate) fn ids_at(&self, at: u32) -> Decoded<(RunNo, u32)> {
        let head = self.head_at(at)?;
        Ok((head.run_no, self.tables.ids.of_both(head.agent, head.run)))
    }

    /// The slot of the run with this number.
    ///
    /// # Errors
    /// [`Damage`] of an entry that may be the one of the run.
    pub fn find_no(&self, run_no: RunNo) -> Decoded<Option<u32>> {
        let runs = self.tables.runs;
        if let Ok(slot) = first_of(runs, |slot| Ok::<_, Damage>(self.run_no(slot)? < run_no)) {
            return Ok((slot < runs && self.run_no(slot)? == run_no).then_some(slot));
        }
        // A damaged entry has no number. The whole ones beside it say which numbers it may have.
        let mut damaged = Ok(None);
        for slot in 0..runs {
            match self.run_no(slot) {
                Ok(found) if found == run_no => return Ok(Some(slot)),
                Ok(found) if found > run_no => break,
                Ok(_) => damaged = Ok(None),
                Err(damage) => damaged = Err(damage),
            }
        }
        damaged
    }

    /// The slots of all runs with this id.
    pub fn find_run(&self, run: &str) -> Decoded<Vec<u32>> {
        self.find(self.tables.ids.of_run(run), |head| !head.is_document() && head.run == run)
    }

    /// The slots of all versions of a document.
    pub fn find_document(&self, namespace: &str, key: &str) -> Decoded<Vec<u32>> {
        self.find(self.tables.ids.of_document(namespace, key), |head| {
            head.is_document() && head.run == key && head.agent == namespace
        })
    }

    fn find(&self, hash: u32, is_it: impl Fn(&EntryHead<'_>) -> bool) -> Decoded<Vec<u32>> {
        let mut found = Vec::new();
        for slot in self.slots_of(hash) {
            let slot = slot?;
            if is_it(&self.head(slot)?) {
                found.push(slot);
            }
        }
        Ok(found)
    }

    /// The slots of the entries whose ids have this hash.
    fn slots_of(&self, hash: u32) -> impl Iterator<Item = Decoded<u32>> + '_ {
        let runs = self.tables.runs;
        let first = first_of(runs, |index| Ok::<_, Damage>(self.hash_at(index)?.0 < hash));
        let same = (first.unwrap_or(0)..runs).map(|index| self.hash_at(index));
        same.take_while(move |found| !found.as_ref().is_ok_and(|found| found.0 != hash))
            .map(|found| Ok(found?.1))
    }

    /// Where the entries start whose ids have this hash.
    pub(crate) fn places_of(&self, hash: u32) -> impl Iterator<Item = Decoded<u32>> + '_ {
        self.slots_of(hash).map(|slot| self.place(slot?))
    }

    /// Calls `visit` with the hash of each entry, and where it starts, in the order of the hashes.
    pub(crate) fn each_place(&self, mut visit: impl FnMut(u32, u32)) -> Decoded<()> {
        for index in 0..self.tables.runs {
            let (hash, slot) = self.hash_at(index)?;
            visit(hash, self.place(slot)?);
        }
        Ok(())
    }

    /// Whether an entry starts at `at`.
    pub(crate) fn has_place(&self, at: u32) -> bool {
        let runs = self.tables.runs;
        let slot = first_of(runs, |slot| Ok::<_, Damage>(self.place(slot)? < at));
        slot.is_ok_and(|slot| self.place(slot).is_ok_and(|found| found == at))
    }

    /// The hash of the ids of a run, and its slot, in the order of the hashes.
    pub fn hash_at(&self, index: u32) -> Decoded<(u32, u32)> {
        below(index, self.tables.runs)?;
        let at = self.tables.hashes_at + index as usize * HASH_LEN;
        let mut reader = Reader::at(self.bytes, at);
        Ok((reader.u32()?, reader.u32()?))
    }

    /// The eviction at `index`, in the order of the run numbers.
    pub fn eviction(&self, index: u32) -> Decoded<EvictionAt> {
        below(index, self.tables.evictions)?;
        let at = self.tables.evictions_at + index as usize * EVICTION_LEN;
        let mut reader = Reader::at(self.bytes, at);
        let (run_no, offset, flags) = (RunNo(reader.u64()?), reader.u32()?, reader.u32()?);
        if flags & !WITH_RECEIPT != 0 {
            return Err(Damage::UnknownCode { found: flags });
        }
        Ok(EvictionAt { run_no, offset, with_receipt: flags == WITH_RECEIPT })
    }

    /// The PIECEs of the segment, by slice and place in it. Two at one place have the same bytes.
    pub fn pieces(&self) -> impl Iterator<Item = Decoded<PieceAt>> + '_ {
        let (at, count) = self.tables.pieces;
        (0..count).map(move |index| {
            let mut reader = Reader::at(self.bytes, at + index * PIECE_LEN);
            let slice = Lsn(reader.u64()?);
            Ok(PieceAt { slice, start: reader.u32()?, offset: reader.u32()? })
        })
    }

    /// All evictions that the segment records, in the order of the run numbers.
    pub fn evictions(&self) -> impl Iterator<Item = Decoded<EvictionAt>> + '_ {
        (0..self.tables.evictions).map(|index| self.eviction(index))
    }

    /// The list of offsets of the run in `slot`: for each part, those of its records and then those
    /// of its chunks.
    pub(crate) fn list_of(&self, slot: u32) -> Decoded<OffsetList> {
        let at = self.place(slot)?;
        Ok(self.parts_at(at, self.head_at(at)?.run_no)?.1)
    }

    /// The parts of a run, whose entry must start at `at`, and its list of offsets.
    pub(crate) fn parts_at(
        &self,
        at: u32,
        run_no: RunNo,
    ) -> Decoded<(impl Iterator<Item = RunPart> + use<'a>, OffsetList)> {
        let head = self.head_at(at)?;
        if head.run_no != run_no {
            return Err(Damage::Mismatch);
        }
        let start = at as usize;
        let end = start.checked_add(head.entry_len()).ok_or(Damage::Truncated)?;
        at_most(end as u64, self.tables.places_at as u64)?;
        let at = u32::try_from(start + head.list).map_err(|_| Damage::Truncated)?;
        Ok((head.parts(), OffsetList { at, len: head.listed }))
    }

    /// The offsets of one group of a list, of which the check matched.
    pub(crate) fn group(
        &self,
        list: OffsetList,
        group: u32,
    ) -> Decoded<impl Iterator<Item = u32> + use<'a>> {
        let (first, len) = (group.saturating_mul(GROUP), list.len);
        let count = len.checked_sub(first).filter(|left| *left > 0).ok_or(Damage::Truncated)?;
        let at = offset_at(list.at, first) - 4;
        let mut reader = Reader::at(self.bytes, at);
        let stored = reader.u32()?;
        let bytes = reader.bytes(count.min(GROUP) as usize * OFFSET_LEN)?;
        check_crc(stored, check_at(&self.tables.salted, at, bytes))?;
        Ok(bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)))
    }

    /// Item `index` of a list of offsets.
    pub(crate) fn offset(&self, list: OffsetList, index: u32) -> Decoded<u32> {
        below(index, list.len)?;
        self.group(list, index / GROUP)?.nth((index % GROUP) as usize).ok_or(Damage::Truncated)
    }

    /// The offset of record `index` of the run in `slot`. Records count from 0 in each part; behind
    /// them are the chunks of the part, and then the next part.
    pub fn listed_offset(&self, slot: u32, index: u32) -> Decoded<u32> {
        self.offset(self.list_of(slot)?, index)
    }

    /// Where the entry in `slot` starts.
    pub(crate) fn place(&self, slot: u32) -> Decoded<u32> {
        below(slot, self.tables.runs)?;
        let place = u32_at(self.bytes, self.tables.places_at + slot as usize * PLACE_LEN)?;
        place.checked_mul(len_u32(ENTRY_ALIGN)).ok_or(Damage::Truncated)
    }

    fn head(&self, slot: u32) -> Decoded<EntryHead<'a>> {
        self.head_at(self.place(slot)?)
    }

    /// The head of the entry that starts at `at`.
    pub(crate) fn head_at(&self, at: u32) -> Decoded<EntryHead<'a>> {
        let at = at as usize;
        let entries = self.bytes.get(..self.tables.places_at).unwrap_or_default();
        let bytes = entries.get(at..).ok_or(Damage::Truncated)?;
        EntryHead::read(bytes, |covered| check_at(&self.tables.salted, at, covered))
    }
}

/// Where the offsets of a run are in a directory, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffsetList {
    at: u32,
    pub(crate) len: u32,
}

fn below(found: u32, end: u32) -> Decoded<()> {
    let (found, max) = (found.into(), end.into());
    if found < max { Ok(()) } else { Err(Damage::OutOfRange { found, max }) }
}
