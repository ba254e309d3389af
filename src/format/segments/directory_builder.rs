//! Builds a directory: entries are collected while frames are appended or scanned, and encoded when
//! the segment is sealed. [`directory`](super::directory) has the layout.

use std::collections::BTreeMap;

use crate::format::codec::{Writer, len_u32};
use crate::format::segments::directory::{
    DIRECTORY_HEADER_LEN, DIRECTORY_MAGIC, EVICTION_LEN, EvictionAt, HASH_LEN, OFFSET_LEN,
    RUN_ENTRY_LEN, RunEntry, hash_id,
};
use crate::format::segments::run_map::RunMap;
use crate::types::{AgentId, Lsn, RunId, RunNo};

/// Collects the contents of a segment's directory.
#[derive(Debug, Default, Clone)]
pub struct DirectoryBuilder {
    runs: Vec<BuiltRun>,
    by_no: RunMap<usize>,
    evictions: BTreeMap<RunNo, EvictionAt>,
    offsets: usize,
    id_bytes: usize,
    first_lsn: Option<Lsn>,
    last_lsn: Lsn,
}

/// One run of a directory that is being built.
#[derive(Debug, Clone)]
pub struct BuiltRun {
    /// The entry of the run in the directory.
    pub entry: RunEntry,
    /// The offsets of the run's records, ascending.
    pub offsets: Vec<u32>,
    /// The offsets of chunks of its records, ascending.
    pub chunks: Vec<u32>,
}

impl DirectoryBuilder {
    /// The length of the directory if it were encoded now.
    pub fn encoded_len(&self) -> usize {
        DIRECTORY_HEADER_LEN
            + self.runs.len() * (RUN_ENTRY_LEN + HASH_LEN)
            + self.evictions.len() * EVICTION_LEN
            + self.offsets * OFFSET_LEN
            + self.id_bytes
    }

    /// Whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.evictions.is_empty()
    }

    /// The run, if it has an entry.
    pub fn run(&self, run_no: RunNo) -> Option<&BuiltRun> {
        self.runs.get(self.slot(run_no)?)
    }

    /// The entry of a run that has one.
    pub fn run_mut(&mut self, run_no: RunNo) -> Option<&mut RunEntry> {
        let slot = self.slot(run_no)?;
        self.runs.get_mut(slot).map(|built| &mut built.entry)
    }

    /// All runs, in the order of their first frames here.
    pub fn runs(&self) -> &[BuiltRun] {
        &self.runs
    }

    /// The evictions that this segment records, by run number.
    pub fn evictions(&self) -> impl Iterator<Item = EvictionAt> + '_ {
        self.evictions.values().copied()
    }

    /// Adds a run that has no entry yet.
    pub fn bind(&mut self, run_no: RunNo, agent: AgentId, run: RunId) {
        if self.by_no.contains_key(&run_no) {
            return;
        }
        self.id_bytes += agent.as_str().len() + run.as_str().len();
        self.by_no.insert(run_no, self.runs.len());
        let entry = RunEntry::new(run_no, agent, run);
        self.runs.push(BuiltRun { entry, offsets: Vec::new(), chunks: Vec::new() });
    }

    /// Adds the offset of a record of a run that has an entry.
    pub fn push_record(&mut self, run_no: RunNo, offset: u32) {
        if let Some(slot) = self.slot(run_no) {
            self.push_record_at(slot, offset);
        }
    }

    /// Adds the offset of a chunk of a record of a run that has an entry.
    pub fn push_chunk(&mut self, run_no: RunNo, offset: u32) {
        if let Some(built) = self.slot(run_no).and_then(|slot| self.runs.get_mut(slot)) {
            built.chunks.push(offset);
            built.entry.chunks += 1;
            self.offsets += 1;
        }
    }

    /// The slot of a run's entry, for [`DirectoryBuilder::push_record_at`].
    #[inline]
    pub fn slot(&self, run_no: RunNo) -> Option<usize> {
        self.by_no.get(&run_no).copied()
    }

    /// Adds the offset of a record of the run in `slot` and returns the run's entry.
    #[inline]
    pub fn push_record_at(&mut self, slot: usize, offset: u32) -> Option<&mut RunEntry> {
        let built = self.runs.get_mut(slot)?;
        built.offsets.push(offset);
        self.offsets += 1;
        Some(&mut built.entry)
    }

    /// Adds an eviction.
    pub fn push_eviction(&mut self, eviction: EvictionAt) {
        self.evictions.insert(eviction.run_no, eviction);
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
    pub fn encode(&self, next_run_no: RunNo) -> Vec<u8> {
        let mut order: Vec<&BuiltRun> = self.runs.iter().collect();
        order.sort_by_key(|built| built.entry.run_no);
        let mut out = Vec::with_capacity(self.encoded_len());
        let mut writer = Writer::new(&mut out);
        writer
            .bytes(&DIRECTORY_MAGIC)
            .u32(len_u32(order.len()))
            .u32(len_u32(self.evictions.len()))
            .u32(len_u32(self.offsets))
            .u32(len_u32(self.id_bytes))
            .u64(self.first_lsn.unwrap_or_default().0)
            .u64(self.last_lsn.0)
            .u64(next_run_no.0)
            .zeros(16);
        let (mut offset_at, mut id_at) = (0, 0);
        for built in &order {
            built.entry.encode(&mut writer, offset_at, id_at);
            offset_at += len_u32(built.offsets.len() + built.chunks.len());
            id_at += len_u32(built.entry.run.as_str().len() + built.entry.agent.as_str().len());
        }
        let hash = |(slot, built): (u32, &&BuiltRun)| (hash_id(built.entry.run.as_str()), slot);
        let mut hashes: Vec<(u32, u32)> = (0..).zip(&order).map(hash).collect();
        hashes.sort_unstable();
        for (hash, slot) in hashes {
            writer.u32(hash).u32(slot);
        }
        for eviction in self.evictions.values() {
            eviction.encode(&mut writer);
        }
        for offset in order.iter().flat_map(|run| run.offsets.iter().chain(&run.chunks)) {
            writer.u32(*offset);
        }
        for RunEntry { run, agent, .. } in order.iter().map(|built| &built.entry) {
            writer.bytes(run.as_str().as_bytes()).bytes(agent.as_str().as_bytes());
        }
        assert_eq!(out.len(), self.encoded_len(), "room was kept for exactly this many bytes");
        out
    }
}
