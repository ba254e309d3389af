//! What one segment says about one run: the unit of a directory, and of the fold into rows.
//!
//! The layout is a part of the [`directory`](super::directory)'s.

use crate::error::Damage;
use crate::format::codec::{Decoded, Reader, Writer, at_most, check_crc, check_flags, len_u32};
use crate::format::layout::ExtentSize;
use crate::types::{AgentId, Lsn, MAX_ID_LEN, RunId, RunNo, RunStatus, Seq, Timestamp};

const CREATED: u16 = 1;
const STARTED: u16 = 1 << 1;
const ENDED: u16 = 1 << 2;
/// There is a HOLD frame. The latest one holds the run if [`HELD`] is set, else it releases it.
const HOLD: u16 = 1 << 3;
const HELD: u16 = 1 << 4;
/// The entry is a version of a document, not a run.
const DOCUMENT: u16 = 1 << 5;
/// Everything of the run here was compressed, or compression was found not worthwhile.
const COLD: u16 = 1 << 6;
const KNOWN_FLAGS: u16 = CREATED | STARTED | ENDED | HOLD | HELD | DOCUMENT | COLD;

/// The length of the fields that each entry has.
const FIXED: usize = 40;
/// The length of a part.
pub(crate) const PART_LEN: usize = 24;
/// The most bytes of the fields that an entry has only if its flags say so.
const OPTIONAL: usize = 8 + 8 + 12 + 20 + 12;
/// The length of an offset, and of the check of a group of them.
pub(crate) const OFFSET_LEN: usize = 4;
/// How many offsets have one check.
pub(crate) const GROUP: u32 = 64;
/// Entries start at multiples of this.
pub(crate) const ENTRY_ALIGN: usize = 8;

/// The most bytes of an entry with one part, without ids and offsets.
pub(crate) const MAX_ENTRY: usize = FIXED + OPTIONAL + PART_LEN + OFFSET_LEN + ENTRY_ALIGN;
/// What a START, an END or a HOLD adds to an entry at most.
pub(crate) const MAX_MARK: usize = 8 + 12 + ENTRY_ALIGN;

/// Where an explicit START is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StartAt {
    /// The offset of the START frame in its segment.
    pub offset: u32,
    /// Its timestamp.
    pub at: Timestamp,
}

/// Where an END is, and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct EndAt {
    /// The offset of the END frame in its segment.
    pub offset: u32,
    /// Its timestamp.
    pub at: Timestamp,
    /// How the run ended.
    pub status: RunStatus,
    /// Its order; of several ENDs of a run the latest wins.
    pub lsn: Lsn,
}

/// Where the latest HOLD of a run in a segment is, and its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct HoldAt {
    /// The offset of the HOLD frame in its segment.
    pub offset: u32,
    /// Its order; of several HOLDs of a run the latest wins.
    pub lsn: Lsn,
    /// Whether it holds the run or releases it.
    pub held: bool,
}

/// Records of a run in one segment that follow one another in the run, and chunks of one large
/// record that do. No other segment has records between these records, or chunks between these
/// chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RunPart {
    /// How many records it has; their sequences have no gaps.
    pub records: u32,
    /// How many chunks of large records it has.
    pub chunks: u32,
    /// The sequence of its first record; zero without records.
    pub first_seq: Seq,
    /// The order of its first frame, which is a chunk if it has chunks.
    pub first_lsn: Lsn,
}

impl RunPart {
    /// The sequence of the first record, if there is one.
    pub fn first(&self) -> Option<Seq> {
        (self.records > 0).then_some(self.first_seq)
    }

    /// The sequence of the last record plus one.
    pub fn next_seq(&self) -> Seq {
        Seq(self.first_seq.0.saturating_add(self.records.into()))
    }

    /// How many offsets its records and chunks take.
    pub fn listed(&self) -> u32 {
        self.records.saturating_add(self.chunks)
    }
}

/// What one segment says about one run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct RunEntry {
    /// The number of the run.
    pub run_no: RunNo,
    /// The agent's id.
    pub agent: AgentId,
    /// The run's id.
    pub run: RunId,
    /// Whether it is a version of a document, not a run. Then the agent's id is the namespace and
    /// the run's id the key.
    pub document: bool,
    /// Whether there are records or chunks here, and all of them are compressed or were found not
    /// worth it.
    pub cold: bool,
    /// When the run was created, if its first frame is in this segment.
    pub created_at: Option<Timestamp>,
    /// The explicit START, if it is in this segment.
    pub start: Option<StartAt>,
    /// The END, if it is in this segment.
    pub end: Option<EndAt>,
    /// The latest HOLD, if there is one in this segment.
    pub hold: Option<HoldAt>,
    /// The sequence of the last record here plus one.
    pub next_seq: Seq,
    /// How many records are here.
    pub records: u32,
    /// How many chunks of large records are here.
    pub chunks: u32,
    /// How many of the records here were appended after the end of the run.
    pub late: u32,
    /// The payload bytes of the records here.
    pub bytes: u64,
    /// The bytes of all frames of the run here, headers included.
    pub stored: u64,
    /// The latest timestamp of a frame of the run here.
    pub last_at: Timestamp,
}

impl RunEntry {
    /// An entry without any frames yet.
    pub fn new(run_no: RunNo, agent: AgentId, run: RunId) -> Self {
        Self {
            run_no,
            agent,
            run,
            document: false,
            cold: false,
            created_at: None,
            start: None,
            end: None,
            hold: None,
            next_seq: Seq(0),
            records: 0,
            chunks: 0,
            late: 0,
            bytes: 0,
            stored: 0,
            last_at: Timestamp(i64::MIN),
        }
    }

    /// Adds what a part says to the sums.
    pub(crate) fn add_part(&mut self, part: &RunPart) {
        if part.records > 0 {
            self.next_seq = self.next_seq.max(part.next_seq());
        }
        self.records = self.records.saturating_add(part.records);
        self.chunks = self.chunks.saturating_add(part.chunks);
    }

    /// The length of the entry with this many parts.
    pub(crate) fn encoded_len(&self, parts: usize) -> usize {
        let optional = [
            (parts > 0, 8),
            (self.created_at.is_some(), 8),
            (self.start.is_some(), 12),
            (self.end.is_some(), 20),
            (self.hold.is_some(), 12),
        ];
        let optional: usize = optional.iter().map(|(is, len)| if *is { *len } else { 0 }).sum();
        let ids = self.run.as_str().len() + self.agent.as_str().len();
        let head = (FIXED + optional + parts * PART_LEN + ids).next_multiple_of(OFFSET_LEN);
        let listed = self.records.saturating_add(self.chunks);
        (head + offsets_len(listed)).next_multiple_of(ENTRY_ALIGN)
    }

    /// Writes the entry, of which `check` computes the checks. `offsets` are those of the records
    /// of each part, and then of its chunks.
    pub(crate) fn encode<'o>(
        &self,
        out: &mut Vec<u8>,
        parts: &[RunPart],
        offsets: impl Iterator<Item = &'o u32>,
        check: impl Fn(usize, &[u8]) -> u32,
    ) {
        let start = out.len();
        let flags = [
            (CREATED, self.created_at.is_some()),
            (STARTED, self.start.is_some()),
            (ENDED, self.end.is_some()),
            (HOLD, self.hold.is_some()),
            (HELD, self.hold.is_some_and(|hold| hold.held)),
            (DOCUMENT, self.document),
            (COLD, self.cold),
        ];
        let flags = flags.into_iter().filter(|flag| flag.1).fold(0, |all, flag| all | flag.0);
        let mut writer = Writer::new(out);
        writer
            .u32(0)
            .u16(flags)
            .id_len(self.run.as_str())
            .id_len(self.agent.as_str())
            .u8(self.end.map_or(0, |end| end.status.code()))
            .u8(0)
            .u32(len_u32(parts.len()))
            .u64(self.run_no.0)
            .i64(self.last_at.0)
            .u32(u32::try_from(self.stored).unwrap_or(u32::MAX))
            .u32(self.late);
        if !parts.is_empty() {
            writer.u64(self.bytes);
        }
        if let Some(at) = self.created_at {
            writer.i64(at.0);
        }
        if let Some(start) = self.start {
            writer.u32(start.offset).i64(start.at.0);
        }
        if let Some(end) = self.end {
            writer.u32(end.offset).i64(end.at.0).u64(end.lsn.0);
        }
        if let Some(hold) = self.hold {
            writer.u32(hold.offset).u64(hold.lsn.0);
        }
        for part in parts {
            let RunPart { records, chunks, first_seq, first_lsn } = part;
            writer.u32(*records).u32(*chunks).u64(first_seq.0).u64(first_lsn.0);
        }
        writer.bytes(self.run.as_str().as_bytes()).bytes(self.agent.as_str().as_bytes());
        seal(out, start, &check);
        out.resize(out.len().next_multiple_of(OFFSET_LEN), 0);
        let mut offsets = offsets.peekable();
        while offsets.peek().is_some() {
            let group = out.len();
            out.extend([0; OFFSET_LEN]);
            for offset in offsets.by_ref().take(GROUP as usize) {
                out.extend(offset.to_le_bytes());
            }
            seal(out, group, &check);
        }
        out.resize(out.len().next_multiple_of(ENTRY_ALIGN), 0);
    }
}

/// Writes the check of the bytes from `start` on into their first four.
fn seal(out: &mut [u8], start: usize, check: impl Fn(usize, &[u8]) -> u32) {
    let Some((field, covered)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut::<4>)
    else {
        return;
    };
    *field = check(start, covered).to_le_bytes();
}

/// The most bytes that the records of one frame add to an entry: they may begin its first part, and
/// a group of offsets.
pub(crate) const fn records_cost(count: u32) -> usize {
    8 + PART_LEN + offsets_len(count) + OFFSET_LEN + ENTRY_ALIGN
}

/// The length of a list of offsets, with its checks.
pub(crate) const fn offsets_len(listed: u32) -> usize {
    (listed as usize + listed.div_ceil(GROUP) as usize) * OFFSET_LEN
}

/// Where item `index` of the list of offsets at `list` is.
pub(crate) fn offset_at(list: u32, index: u32) -> usize {
    list as usize + (index as usize + (index / GROUP) as usize + 1) * OFFSET_LEN
}

/// The head of an entry, of which the check matched.
#[derive(Debug, Clone)]
pub(crate) struct EntryHead<'a> {
    pub(crate) run_no: RunNo,
    flags: u16,
    status: RunStatus,
    pub(crate) last_at: Timestamp,
    pub(crate) stored: u64,
    late: u32,
    fields: Reader<'a>,
    parts: &'a [u8],
    pub(crate) run: &'a str,
    pub(crate) agent: &'a str,
    /// Where the list of offsets starts, counted from the start of the entry.
    pub(crate) list: usize,
    /// How many offsets are listed.
    pub(crate) listed: u32,
}

impl<'a> EntryHead<'a> {
    /// Reads the head of the entry at the start of `bytes`, of which `check` computes the check.
    pub(crate) fn read(bytes: &'a [u8], check: impl Fn(&[u8]) -> u32) -> Decoded<Self> {
        let mut reader = Reader::new(bytes);
        let (stored_check, flags) = (reader.u32()?, reader.u16()?);
        let (run_len, agent_len) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        let status = reader.u8()?;
        let parts = reader.zeros(1)?.u32()? as usize;
        let optional = [(CREATED, 8), (STARTED, 12), (ENDED, 20), (HOLD, 12)];
        let optional = optional.iter().map(|(flag, len)| if flags & flag != 0 { *len } else { 0 });
        let fields = optional.sum::<usize>() + if parts > 0 { 8 } else { 0 };
        let parts_len = parts.checked_mul(PART_LEN).ok_or(Damage::Truncated)?;
        let ids_at = parts_len.checked_add(FIXED + fields).ok_or(Damage::Truncated)?;
        let end = ids_at.checked_add(run_len + agent_len).ok_or(Damage::Truncated)?;
        let covered = bytes.get(4..end).ok_or(Damage::Truncated)?;
        check_crc(stored_check, check(covered))?;
        check_flags(flags, KNOWN_FLAGS)?;
        let is_len = |len: usize| (1..=MAX_ID_LEN).contains(&len);
        if !is_len(run_len) || !is_len(agent_len) {
            return Err(Damage::Truncated);
        }
        let status =
            RunStatus::from_code(status).ok_or(Damage::UnknownCode { found: u32::from(status) })?;
        let (run_no, last_at) = (RunNo(reader.u64()?), Timestamp(reader.i64()?));
        let (stored, late) = (u64::from(reader.u32()?), reader.u32()?);
        let fields = Reader::new(reader.bytes(fields)?);
        let parts = reader.bytes(parts_len)?;
        let (run, agent) = (reader.text(run_len)?, reader.text(agent_len)?);
        let list = end.next_multiple_of(OFFSET_LEN);
        let mut head = Self {
            run_no,
            flags,
            status,
            last_at,
            stored,
            late,
            fields,
            parts,
            run,
            agent,
            list,
            listed: 0,
        };
        let sum = |sum: u32, part: RunPart| sum.checked_add(part.records)?.checked_add(part.chunks);
        head.listed = head.parts().try_fold(0, sum).ok_or(Damage::Truncated)?;
        Ok(head)
    }

    /// Its parts, in the order of the log.
    pub(crate) fn parts(&self) -> impl Iterator<Item = RunPart> + use<'a> {
        self.parts.as_chunks::<PART_LEN>().0.iter().map(|bytes| {
            let mut reader = Reader::new(bytes);
            let [records, chunks] = [(); 2].map(|()| reader.u32().unwrap_or_default());
            let [first_seq, first_lsn] = [(); 2].map(|()| reader.u64().unwrap_or_default());
            RunPart { records, chunks, first_seq: Seq(first_seq), first_lsn: Lsn(first_lsn) }
        })
    }

    pub(crate) fn is_document(&self) -> bool {
        self.flags & DOCUMENT != 0
    }

    pub(crate) fn is_cold(&self) -> bool {
        self.flags & COLD != 0
    }

    pub(crate) fn is_held(&self) -> bool {
        self.flags & HOLD != 0 && self.flags & HELD != 0
    }

    pub(crate) fn status(&self) -> RunStatus {
        if self.flags & ENDED != 0 { self.status } else { RunStatus::InProgress }
    }

    /// When the run was created, if the entry says it.
    pub(crate) fn created_at(&self) -> Decoded<Option<Timestamp>> {
        let mut fields = self.fields.clone();
        if !self.parts.is_empty() {
            fields.u64()?;
        }
        self.optional(CREATED, || Ok(Timestamp(fields.i64()?)))
    }

    fn optional<T>(&self, flag: u16, read: impl FnOnce() -> Decoded<T>) -> Decoded<Option<T>> {
        if self.flags & flag != 0 { read().map(Some) } else { Ok(None) }
    }

    /// The length of the whole entry.
    pub(crate) fn entry_len(&self) -> usize {
        (self.list + offsets_len(self.listed)).next_multiple_of(ENTRY_ALIGN)
    }

    /// The entry.
    pub(crate) fn entry(&self) -> Decoded<RunEntry> {
        let agent = AgentId::new(self.agent).map_err(|_| Damage::Truncated)?;
        let run = RunId::new(self.run).map_err(|_| Damage::Truncated)?;
        self.entry_of(agent, run)
    }

    /// The entry, with ids that are known already.
    pub(crate) fn entry_of(&self, agent: AgentId, run: RunId) -> Decoded<RunEntry> {
        at_most(self.stored, ExtentSize::MAX.bytes())?;
        let mut entry = RunEntry::new(self.run_no, agent, run);
        (entry.document, entry.cold) = (self.is_document(), self.is_cold());
        (entry.late, entry.stored, entry.last_at) = (self.late, self.stored, self.last_at);
        let mut fields = self.fields.clone();
        if !self.parts.is_empty() {
            entry.bytes = fields.u64()?;
        }
        entry.created_at = self.optional(CREATED, || Ok(Timestamp(fields.i64()?)))?;
        entry.start = self.optional(STARTED, || {
            Ok(StartAt { offset: fields.u32()?, at: Timestamp(fields.i64()?) })
        })?;
        entry.end = self.optional(ENDED, || {
            let (offset, at) = (fields.u32()?, Timestamp(fields.i64()?));
            Ok(EndAt { offset, at, status: self.status, lsn: Lsn(fields.u64()?) })
        })?;
        entry.hold = self.optional(HOLD, || {
            let held = self.flags & HELD != 0;
            Ok(HoldAt { offset: fields.u32()?, lsn: Lsn(fields.u64()?), held })
        })?;
        self.parts().for_each(|part| entry.add_part(&part));
        Ok(entry)
    }
}
