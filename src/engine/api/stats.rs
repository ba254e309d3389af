//! Numbers about an open store.

use std::collections::HashSet;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::checkpoint::redb_backend::RedbBackend;
use crate::engine::compact::live_bytes;
use crate::engine::setup::options::TailWriter;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::IoCounters;
use crate::error::Result;
use crate::format::map::manifest::Use;
use crate::types::{LogPosition, RunNo, SegmentId};

/// Numbers about an open store, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The length of the file in bytes.
    pub file_len: u64,
    /// The size of an extent in bytes.
    pub extent_len: u64,
    /// Extents that hold segments of the log.
    pub log_extents: u64,
    /// Extents among them that are set aside for segments to come: one as a rule, as many as it
    /// takes while a large record is written.
    pub reserved_extents: u64,
    /// Extents that hold pages of the index.
    pub index_extents: u64,
    /// Extents that hold manifests.
    pub meta_extents: u64,
    /// Extents of dead segments that may still have readers.
    pub retired_extents: u64,
    /// Extents within the file that are free.
    pub free_extents: u64,
    /// The bytes of living runs in segments of the log: their frames, headers included, and what
    /// the directories say of them. All of the segment that is being written counts as living.
    pub live_bytes: u64,
    /// The bytes of segments of the log that are not living: those of deleted runs, of receipts,
    /// and what is left over at the ends of segments. Compaction gives most of it back once enough
    /// of a segment is dead.
    pub dead_bytes: u64,
    /// The bytes of free extents within the file.
    pub free_bytes: u64,
    /// Dead segments that cannot be freed, since the program holds a trace, a record or a payload
    /// of them.
    pub pinned: Vec<Pinned>,
    /// Why giving space back failed when it was tried last without being asked for, if it did. It
    /// is tried again when more is deleted.
    pub space_failure: Option<String>,
    /// Sealed segments.
    pub sealed_segments: u64,
    /// Runs, living ones.
    pub runs: u64,
    /// Runs whose state is in memory.
    pub active_runs: u64,
    /// Deleted runs of which frames are left somewhere.
    pub deleted_runs: u64,
    /// Whether an index is open.
    pub index_open: bool,
    /// The last segment that the index covers.
    pub index_applied: Option<SegmentId>,
    /// Pages of the index that were read from the file since the store was opened.
    pub index_page_reads: u64,
    /// Everything in front of this position survives power loss.
    pub durable: LogPosition,
    /// The end of the log.
    pub end: LogPosition,
    /// How frames reach the file: [`TailWriter::Mapped`] or [`TailWriter::Pwrite`].
    pub tail_writer: TailWriter,
    /// What the storage was asked for since the store was opened.
    pub io: IoCounters,
}

/// A dead segment that the program still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// The segment.
    pub segment: SegmentId,
    /// The bytes of its extent, which cannot be used again.
    pub bytes: u64,
    /// How many hold it: traces, and records and payloads, of which those that one trace gave count
    /// as one.
    pub holders: u64,
}

impl Engine {
    /// The bytes of living runs in the segments of the log.
    fn live_bytes(&self) -> Result<u64> {
        let (segments, deleted, tail) = {
            let state = self.log.state.lock();
            let fresh =
                state.unapplied.iter().filter(|one| state.catalog.segment(one.id()).is_none());
            let segments: Vec<Arc<Segment>> =
                state.catalog.segments().iter().chain(fresh).cloned().collect();
            (segments, Arc::clone(&state.deleted), u64::from(state.tail.offset))
        };
        let mut live = tail;
        for segment in &segments {
            let extent = self.log.extent_size.bytes();
            live += match live_bytes(segment, |run_no| deleted.contains(&run_no)) {
                // What cannot be told is not given back.
                Err(error) if error.is_corruption() => extent,
                // A directory may say anything.
                known => known?.min(extent),
            };
        }
        Ok(live)
    }

    /// Dead segments with holders.
    fn pinned(&self) -> Vec<Pinned> {
        let state = self.log.state.lock();
        let pin = |segment: &Arc<Segment>| Pinned {
            segment: segment.id(),
            bytes: self.log.extent_size.bytes(),
            holders: Arc::strong_count(segment) as u64 - 1,
        };
        state.retired.iter().map(pin).filter(|pinned| pinned.holders > 0).collect()
    }

    pub(crate) fn stats(&self) -> Result<Stats> {
        let index = self.checkpoints.index.lock();
        let index_reads = index.host().map(RedbBackend::reads);
        drop(index);
        let (catalog, active_only, active_runs, deleted_runs, unsealed, end, writer) = {
            let mut state = self.log.reader.open()?;
            (
                state.catalog.clone(),
                state.active.run_numbers(),
                state.active.len() as u64,
                state.deleted.clone(),
                state.unapplied.len(),
                state.end_of_log(),
                state.tail.writer(),
            )
        };
        // One that is on its way is not there yet.
        let reserved = self.log.reserved.try_lock().map_or(0, |reserved| reserved.len() as u64);
        let runs = count_runs(&catalog, &active_only, &deleted_runs)?;
        let index_applied = catalog.index().and_then(|index| index.applied().log);
        let sealed_segments = (catalog.segments().len() + unsealed) as u64;
        // It may hold segments that are dead by now.
        drop(catalog);
        let (live_bytes, pinned) = (self.live_bytes()?, self.pinned());
        let allocator = self.log.space.allocator.lock();
        let count = |wanted: fn(&Use) -> bool| {
            allocator.manifest.extents().uses.values().filter(|used| wanted(used)).count() as u64
        };
        let file_len = self.log.disk.len()?;
        let used = allocator.manifest.extents().uses.keys();
        let in_file = self.log.extent_size.extents_in(file_len);
        let used_in_file = used.filter(|extent| u64::from(extent.0) < in_file).count() as u64;
        let log_extents = count(|used| matches!(used, Use::Log { .. }));
        let free_extents = in_file.saturating_sub(used_in_file);
        Ok(Stats {
            file_len,
            extent_len: self.log.extent_size.bytes(),
            log_extents,
            reserved_extents: reserved,
            index_extents: count(|used| matches!(used, Use::Index { .. })),
            meta_extents: count(|used| matches!(used, Use::Meta { .. })),
            retired_extents: count(|used| matches!(used, Use::Retired { .. })),
            free_extents,
            live_bytes,
            dead_bytes: (log_extents * self.log.extent_size.bytes()).saturating_sub(live_bytes),
            free_bytes: free_extents * self.log.extent_size.bytes(),
            pinned,
            space_failure: self.log.due.failure(),
            sealed_segments,
            runs,
            active_runs,
            deleted_runs: deleted_runs.len() as u64,
            index_open: index_reads.is_some(),
            index_applied,
            index_page_reads: index_reads.unwrap_or(0),
            durable: self.log.commit.durable(),
            end,
            tail_writer: writer,
            io: self.log.disk.counters(),
        })
    }
}

/// How many runs live: those of the catalog, and of memory those that it does not have.
fn count_runs(catalog: &Catalog, active: &[RunNo], deleted: &HashSet<RunNo>) -> Result<u64> {
    let mut runs = catalog.ask(|catalog| catalog.count_runs())?;
    for number in active {
        if catalog.ask(|catalog| catalog.row(*number))?.is_none() {
            runs += 1;
        }
    }
    for number in deleted {
        if catalog.ask(|catalog| catalog.row(*number))?.is_some_and(|row| !row.document) {
            runs = runs.saturating_sub(1);
        }
    }
    Ok(runs)
}
