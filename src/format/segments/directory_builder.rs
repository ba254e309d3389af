//! Builds a directory: entries are collected while frames are appended or scanned, and encoded when
//! the segment is sealed. [`directory`](super::directory) has the layout.

use std::collections::BTreeMap;

use crate::format::frames::slice::PieceAt;
use crate::format::segments::directory::{
    DirectoryKey, EVICTION_COST, EvictionAt, RunEntry, RunPart, TABLE_LEN, TRAILER_LEN, encode,
};
use crate::format::segments::directory_tables::pieces_len;
use crate::format::segments::run_map::RunMap;
use crate::types::{AgentId, Lsn, RunId, RunNo, Seq};

/// Collects the contents of a segment's directory.
#[derive(Debug, Default, Clone)]
pub struct DirectoryBuilder {
    runs: Vec<BuiltRun>,
    by_no: RunMap<usize>,
    evictions: BTreeMap<RunNo, EvictionAt>,
    /// Where the pieces of slices are.
    pieces: Vec<PieceAt>,
    /// The bytes of all entries.
    entries: usize,
    first_lsn: Option<Lsn>,
    last_lsn: Lsn,
}

/// One run of a directory that is being built.
#[derive(Debug, Clone)]
pub struct BuiltRun {
    /// The entry of the run in the directory.
    pub entry: RunEntry,
    /// Its parts, in the order of the log.
    parts: Vec<BuiltPart>,
    /// What continues the chunks of the last part: the first order of their row, and a number.
    next_chunk: Option<(Lsn, u32)>,
    /// The length of the encoded entry.
    len: usize,
}

/// A part of a run: records that follow one another, and chunks of one large record that do.
#[derive(Debug, Clone, Default)]
pub struct BuiltPart {
    first_seq: Seq,
    first_lsn: Lsn,
    /// The offsets of its records, ascending. That of a block is there once for each record.
    pub offsets: Vec<u32>,
    /// The offsets of its chunks, ascending.
    pub chunks: Vec<u32>,
}

/// A frame with records.
#[derive(Debug, Clone, Copy)]
pub struct RecordsAt {
    /// The offset of the frame.
    pub offset: u32,
    /// The order of its first record.
    pub lsn: Lsn,
    /// The sequence of its first record.
    pub seq: Seq,
    /// How many records it has.
    pub count: u32,
}

/// A chunk of a large record.
#[derive(Debug, Clone, Copy)]
pub struct ChunkAt {
    /// The offset of the frame.
    pub offset: u32,
    /// Its order.
    pub lsn: Lsn,
    /// The order of the first chunk of its row.
    pub row: Lsn,
    /// Its number in the row.
    pub number: u32,
}

impl BuiltPart {
    /// What the directory says of it.
    pub fn part(&self) -> RunPart {
        let len = |list: &Vec<u32>| u32::try_from(list.len()).unwrap_or(u32::MAX);
        RunPart {
            records: len(&self.offsets),
            chunks: len(&self.chunks),
            first_seq: self.first_seq,
            first_lsn: self.first_lsn,
        }
    }

    /// The offsets of its records, and then of its chunks.
    pub fn listed(&self) -> impl Iterator<Item = &u32> {
        self.offsets.iter().chain(&self.chunks)
    }
}

impl BuiltRun {
    /// Its parts, in the order of the log.
    pub fn parts(&self) -> &[BuiltPart] {
        &self.parts
    }

    fn begin_part(&mut self, first_lsn: Lsn) {
        self.parts.push(BuiltPart { first_lsn, ..BuiltPart::default() });
        self.next_chunk = None;
    }

    /// Adds the records of one frame, in a part of their own if other records may lie between.
    fn push_records(&mut self, at: RecordsAt) {
        let follows = self
            .parts
            .last()
            .is_some_and(|last| last.offsets.is_empty() || at.seq == last.part().next_seq());
        if !follows {
            self.begin_part(at.lsn);
        }
        let Some(last) = self.parts.last_mut() else { return };
        if last.offsets.is_empty() {
            last.first_seq = at.seq;
        }
        last.offsets.extend((0..at.count).map(|_| at.offset));
        let entry = &mut self.entry;
        let next = Seq(at.seq.0.saturating_add(at.count.into()));
        entry.next_seq = entry.next_seq.max(next);
        entry.records = entry.records.saturating_add(at.count);
    }

    fn push_chunk(&mut self, at: ChunkAt) {
        // So a part with chunks begins with the first of them, and has those of one record.
        if self.next_chunk != Some((at.row, at.number)) {
            self.begin_part(at.lsn);
        }
        self.next_chunk = Some((at.row, at.number.saturating_add(1)));
        let Some(last) = self.parts.last_mut() else { return };
        last.chunks.push(at.offset);
        self.entry.chunks = self.entry.chunks.saturating_add(1);
    }
}

impl DirectoryBuilder {
    /// The length of the directory if it were encoded now.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        TRAILER_LEN
            + self.entries
            + self.runs.len() * TABLE_LEN
            + self.evictions.len() * EVICTION_COST
            + pieces_len(self.pieces.len())
    }

    /// Whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.evictions.is_empty()
    }

    /// The run, if it has an entry.
    pub fn run(&self, run_no: RunNo) -> Option<&BuiltRun> {
        self.runs.get(self.slot(run_no)?)
    }

    /// Changes the entry of a run, if it has one.
    pub fn update(&mut self, run_no: RunNo, change: impl FnOnce(&mut RunEntry)) {
        if let Some(slot) = self.slot(run_no) {
            self.change(slot, |built| change(&mut built.entry));
        }
    }

    /// All runs, in the order of their first frames here.
    pub fn runs(&self) -> &[BuiltRun] {
        &self.runs
    }

    /// The evictions that this segment records, by run number.
    pub fn evictions(&self) -> impl ExactSizeIterator<Item = EvictionAt> + '_ {
        self.evictions.values().copied()
    }

    /// Adds a run that has no entry yet.
    pub fn bind(&mut self, run_no: RunNo, agent: AgentId, run: RunId) {
        if self.by_no.contains_key(&run_no) {
            return;
        }
        self.by_no.insert(run_no, self.runs.len());
        let entry = RunEntry::new(run_no, agent, run);
        let len = entry.encoded_len(0);
        self.entries += len;
        self.runs.push(BuiltRun { entry, parts: Vec::new(), next_chunk: None, len });
    }

    /// The slot of a run's entry, for [`DirectoryBuilder::push_records_at`] and
    /// [`DirectoryBuilder::push_chunk_at`].
    #[inline]
    pub fn slot(&self, run_no: RunNo) -> Option<usize> {
        self.by_no.get(&run_no).copied()
    }

    /// Adds the records of a frame, of the run in `slot`, and changes its entry.
    #[inline]
    pub fn push_records_at(
        &mut self,
        slot: usize,
        at: RecordsAt,
        change: impl FnOnce(&mut RunEntry),
    ) {
        self.change(slot, |built| {
            built.push_records(at);
            change(&mut built.entry);
        });
    }

    /// Adds a chunk of a record of the run in `slot`, and changes its entry.
    pub fn push_chunk_at(&mut self, slot: usize, at: ChunkAt, change: impl FnOnce(&mut RunEntry)) {
        self.change(slot, |built| {
            built.push_chunk(at);
            change(&mut built.entry);
        });
    }

    /// Changes a run, and keeps the length of the directory exact.
    #[inline]
    fn change(&mut self, slot: usize, change: impl FnOnce(&mut BuiltRun)) {
        let Some(built) = self.runs.get_mut(slot) else { return };
        change(built);
        let len = built.entry.encoded_len(built.parts.len());
        self.entries = self.entries - built.len + len;
        built.len = len;
    }

    /// Adds an eviction.
    pub fn push_eviction(&mut self, eviction: EvictionAt) {
        self.evictions.insert(eviction.run_no, eviction);
    }

    /// Adds a piece of a slice.
    pub fn push_piece(&mut self, piece: PieceAt) {
        self.pieces.push(piece);
    }

    /// The smallest order that was noted.
    pub(crate) fn first_lsn(&self) -> Option<Lsn> {
        self.first_lsn
    }

    /// The largest order that was noted.
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Includes the order of a frame in the directory's range of orders.
    pub fn note_lsn(&mut self, lsn: Lsn) {
        self.first_lsn = Some(self.first_lsn.map_or(lsn, |first| first.min(lsn)));
        self.last_lsn = self.last_lsn.max(lsn);
    }

    /// The directory's bytes. They include `next_run_no`, so that run numbers are not reused even
    /// if every other trace of them is lost.
    pub fn encode(&self, key: &DirectoryKey, next_run_no: RunNo) -> Vec<u8> {
        let mut order: Vec<&BuiltRun> = self.runs.iter().collect();
        order.sort_by_key(|built| built.entry.run_no);
        let mut out = Vec::with_capacity(self.encoded_len());
        let entries = order.iter().map(|built| {
            let parts = built.parts.iter().map(BuiltPart::part).collect();
            (&built.entry, parts, built.parts.iter().flat_map(BuiltPart::listed).collect())
        });
        let orders = (self.first_lsn.unwrap_or_default(), self.last_lsn, next_run_no);
        let mut pieces = self.pieces.clone();
        pieces.sort_unstable();
        encode(&mut out, entries, (self.evictions(), &pieces), key, orders);
        assert_eq!(out.len(), self.encoded_len(), "room was kept for exactly this many bytes");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Directory;
    use crate::format::segments::directory::IdHash;

    const RUN: RunNo = RunNo(7);
    const KEY: DirectoryKey = DirectoryKey { salt: 5, end: 4096, ids: IdHash::new([9; 16]) };

    fn bound() -> DirectoryBuilder {
        let mut builder = DirectoryBuilder::default();
        builder.bind(RUN, AgentId::new("agent").unwrap(), RunId::new("run").unwrap());
        builder
    }

    fn record(builder: &mut DirectoryBuilder, seq: u64) {
        let lsn = Lsn(100 + builder.encoded_len() as u64);
        let at = RecordsAt { offset: 64, lsn, seq: Seq(seq), count: 1 };
        builder.push_records_at(builder.slot(RUN).unwrap(), at, |_| {});
    }

    fn chunk(builder: &mut DirectoryBuilder, row: u64, number: u32) {
        let lsn = Lsn(100 + builder.encoded_len() as u64);
        let at = ChunkAt { offset: 64, lsn, row: Lsn(row), number };
        builder.push_chunk_at(builder.slot(RUN).unwrap(), at, |_| {});
    }

    /// The records and the chunks of each part, as the encoded directory has them.
    fn parts(builder: &DirectoryBuilder) -> Vec<(u32, u32)> {
        let bytes = builder.encode(&KEY, RunNo(8));
        let directory = Directory::new(&bytes, &KEY).unwrap();
        directory.check().unwrap();
        directory.parts(0).unwrap().map(|part| (part.records, part.chunks)).collect()
    }

    #[test]
    fn a_part_ends_where_records_do_not_follow_and_before_other_chunks() {
        let mut builder = bound();
        for seq in [0, 1, 3] {
            record(&mut builder, seq);
        }
        assert_eq!(parts(&builder), [(2, 0), (1, 0)], "a sequence is left out");
        let mut builder = bound();
        record(&mut builder, 5);
        for number in [0, 1] {
            chunk(&mut builder, 50, number);
        }
        record(&mut builder, 6);
        record(&mut builder, 7);
        chunk(&mut builder, 60, 0);
        record(&mut builder, 8);
        assert_eq!(parts(&builder), [(1, 0), (2, 2), (1, 1)], "two large records");
        // Record 5, the first chunk of record 6; another segment has the second one.
        let mut builder = bound();
        record(&mut builder, 5);
        chunk(&mut builder, 50, 0);
        chunk(&mut builder, 50, 2);
        record(&mut builder, 6);
        assert_eq!(parts(&builder), [(1, 0), (0, 1), (1, 1)], "a chunk is left out");
        // A row that nothing ended, and a record that another call appended within a row.
        let mut builder = bound();
        chunk(&mut builder, 50, 0);
        chunk(&mut builder, 60, 0);
        record(&mut builder, 0);
        chunk(&mut builder, 60, 1);
        record(&mut builder, 1);
        assert_eq!(parts(&builder), [(0, 1), (2, 2)], "a row is broken off");
        record(&mut builder, 7);
        chunk(&mut builder, 60, 2);
        assert_eq!(parts(&builder), [(0, 1), (2, 2), (1, 0), (0, 1)], "chunks come first");
    }

    #[test]
    fn no_flipped_byte_and_no_other_end_is_overlooked() {
        let mut builder = bound();
        for seq in 0..130 {
            record(&mut builder, seq);
        }
        builder.push_eviction(EvictionAt { run_no: RunNo(3), offset: 64, with_receipt: false });
        let bytes = builder.encode(&KEY, RunNo(8));
        let is_whole = |bytes: &[u8], key| {
            Directory::new(bytes, key).and_then(|directory| directory.check()).is_ok()
        };
        assert!(is_whole(&bytes, &KEY));
        let others = [DirectoryKey { end: 4088, ..KEY }, DirectoryKey { salt: 6, ..KEY }];
        assert!(others.iter().all(|key| !is_whole(&bytes, key)));
        // The zeros behind ids and offsets have no check, and are not read.
        let unread = (0..bytes.len()).filter(|&at| {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            is_whole(&flipped, &KEY)
        });
        let unread: Vec<usize> = unread.collect();
        assert!(unread.len() < 8 && unread.iter().all(|&at| bytes[at] == 0), "{unread:?}");
    }

    #[test]
    fn more_records_than_two_bytes_count_are_listed() {
        let mut builder = bound();
        for seq in 0..90_000 {
            record(&mut builder, seq);
        }
        assert_eq!(parts(&builder), [(90_000, 0)]);
    }
}
