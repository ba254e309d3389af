//! Numbers about an open store.

use core::cmp::Ordering;
use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::checkpoint::redb_backend::RedbBackend;
use crate::engine::compact::uses::live_bytes;
use crate::engine::read::Reader;
use crate::engine::read::list::count_living;
use crate::engine::setup::options::TailWriter;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::{Disk, IoCounters};
use crate::error::Result;
use crate::format::layout::{EXTENTS_AT, ExtentSize};
use crate::format::map::manifest::{Extents, Use};
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN};
use crate::types::{LogPosition, SegmentId};

/// Numbers about an open store, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// The length of the file in bytes.
    pub file_len: u64,
    /// The size of an extent in bytes.
    pub extent_len: u64,
    /// Extents that hold segments of the log.
    pub log_extents: u64,
    /// Those set aside for future segments: usually one, more while a large record is written.
    pub reserved_extents: u64,
    /// Extents that hold pages of the index.
    pub index_extents: u64,
    /// Extents that hold manifests.
    pub meta_extents: u64,
    /// Extents of dead segments that may still have readers.
    pub retired_extents: u64,
    /// Free extents within the file.
    pub free_extents: u64,
    /// The bytes of living runs in segments of the log: their frames with headers, and their
    /// entries in the directories. The tail segment counts as living up to the end of the log.
    pub live_bytes: u64,
    /// The other bytes of full segments of the log: those of deleted runs, of receipts, and the
    /// unused ends of segments. Compaction frees most of them once enough of a segment is dead.
    pub dead_bytes: u64,
    /// The room behind the end of the log: the rest of the tail segment, and segments that are set
    /// aside. The file may end within it.
    pub open_bytes: u64,
    /// The bytes of free extents within the file.
    pub free_bytes: u64,
    /// The bytes in front of the extents: what the store is, and its first map.
    pub front_bytes: u64,
    /// Dead segments that cannot be freed: the program holds a trace, record or payload of them.
    pub pinned: Vec<Pinned>,
    /// Why the last background attempt to free space failed. The next deletion or opening tries
    /// again.
    pub space_failure: Option<String>,
    /// The number of sealed segments.
    pub sealed_segments: u64,
    /// The number of living runs.
    pub runs: u64,
    /// The number of runs whose state is in memory.
    pub active_runs: u64,
    /// The number of deleted runs that still have frames in some segment, or a receipt. So it does
    /// not go to 0 while receipts are kept.
    pub deleted_runs: u64,
    /// Whether the index is open.
    pub index_open: bool,
    /// The last segment that the index covers.
    pub index_applied: Option<SegmentId>,
    /// How many pages of the index were read from the file since the store was opened.
    pub index_page_reads: u64,
    /// The bytes of memory of the table that says where runs are, about 20 for each run in each
    /// segment.
    pub lookup_bytes: u64,
    /// Everything in front of this position survives power loss.
    pub durable: LogPosition,
    /// The end of the log, never in front of `durable`.
    pub end: LogPosition,
    /// The bytes of frames from `durable` to `end`, headers included, which a power loss may take.
    pub undurable_bytes: u64,
    /// How frames reach the file: [`TailWriter::Mapped`] or [`TailWriter::Pwrite`].
    pub tail_writer: TailWriter,
    /// The calls on the storage since the store was opened.
    pub io: IoCounters,
}

/// A dead segment that the program still holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Pinned {
    /// The segment.
    pub segment: SegmentId,
    /// The bytes of its extent, which stay in use.
    pub bytes: u64,
    /// How many traces hold it, and records or payloads; those of one trace count as one.
    pub holders: u64,
}

/// How far the log goes, and how far it is durable, as of one moment.
struct LogEnds {
    durable: LogPosition,
    end: LogPosition,
    undurable_bytes: u64,
}

impl LogEnds {
    /// The caller read `durable` while it held this state. A sync never covers more than what was
    /// written, so the end is not in front of it.
    fn of(state: &LogState, durable: LogPosition) -> Self {
        let (end, tail) = (state.end_of_log(), &state.tail);
        let sealed = state.catalog.segments().iter().filter(|segment| !segment.is_output());
        let sealed = sealed.rev().take_while(|segment| segment.id() >= durable.segment);
        let sealed = sealed
            .chain(&state.unapplied)
            .filter_map(|segment| Some((segment.id(), segment.sealed()?.end)));
        let behind = |(id, end): (SegmentId, u32)| match id.cmp(&durable.segment) {
            Ordering::Less => 0,
            Ordering::Equal => end.saturating_sub(durable.offset),
            Ordering::Greater => end.saturating_sub(SEGMENT_HEADER_LEN),
        };
        let all = sealed.chain([(tail.segment.id(), tail.offset)]);
        let undurable_bytes = all.map(|ends| u64::from(behind(ends))).sum();
        Self { durable: durable.min(end), end, undurable_bytes }
    }
}

impl Engine {
    /// Dead segments with holders.
    fn pinned(&self) -> Vec<Pinned> {
        self.reclaimer.await_prefault();
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
        let log = &self.log;
        let extents = || log.space.allocator.lock().manifest.extents().clone();
        let known = stats_of(&log.disk, &log.reader, extents, || log.commit.durable())?;
        let (active_runs, index_applied, tail_writer) = {
            let mut state = log.reader.open()?;
            let applied = state.catalog.index().and_then(|index| index.applied().log);
            (state.active.len() as u64, applied, state.tail.writer())
        };
        Ok(Stats {
            // A segment that is being set aside does not count yet.
            reserved_extents: log.reserved.try_lock().map_or(0, |reserved| reserved.len() as u64),
            pinned: self.pinned(),
            space_failure: log.due.failure(),
            active_runs,
            index_open: index_reads.is_some(),
            index_applied,
            index_page_reads: index_reads.unwrap_or(0),
            tail_writer,
            ..known
        })
    }
}

/// What also a process that only reads knows; the rest is 0 or `None`. `extents` says who owns
/// which extent, and everything in front of `durable` is durable.
pub(crate) fn stats_of(
    disk: &Disk,
    answers: &Reader,
    extents: impl FnOnce() -> Extents,
    durable: impl FnOnce() -> LogPosition,
) -> Result<Stats> {
    let (catalog, in_memory, deleted, sealed, log, tail) = {
        let state = answers.open()?;
        let fresh = state.unapplied.iter().filter(|one| state.catalog.segment(one.id()).is_none());
        let sealed = state.catalog.segments().iter().chain(fresh).cloned();
        let sealed: Vec<Arc<Segment>> = sealed.collect();
        let (catalog, deleted) = (Arc::clone(&state.catalog), Arc::clone(&state.deleted));
        let numbers = state.active.run_numbers();
        let log = LogEnds::of(&state, durable());
        (catalog, numbers, deleted, sealed, log, u64::from(state.tail.offset))
    };
    let extents = &extents();
    let size = answers.setup.extent_size;
    let mut live_bytes = tail;
    for segment in &sealed {
        live_bytes += live_bytes_in(segment, &deleted)?;
    }
    let count =
        |wanted: fn(&Use) -> bool| extents.uses.values().filter(|used| wanted(used)).count() as u64;
    let file_len = disk.len()?;
    let open_bytes = open_bytes(extents, size, log.end);
    let in_file = size.extents_in(file_len);
    let used = extents.uses.keys().filter(|extent| u64::from(extent.0) < in_file).count() as u64;
    let log_extents = count(|used| matches!(used, Use::Log { .. }));
    let free_extents = in_file.saturating_sub(used);
    Ok(Stats {
        file_len,
        extent_len: size.bytes(),
        log_extents,
        reserved_extents: 0,
        index_extents: count(|used| matches!(used, Use::Index { .. })),
        meta_extents: count(|used| matches!(used, Use::Meta { .. })),
        retired_extents: count(|used| matches!(used, Use::Retired { .. })),
        free_extents,
        live_bytes,
        dead_bytes: (log_extents * size.bytes())
            .saturating_sub(live_bytes.saturating_add(open_bytes)),
        open_bytes,
        free_bytes: free_extents * size.bytes(),
        front_bytes: EXTENTS_AT,
        pinned: Vec::new(),
        space_failure: None,
        sealed_segments: sealed.len() as u64,
        runs: count_living(&catalog, &in_memory, &deleted)?,
        active_runs: 0,
        deleted_runs: deleted.len(),
        index_open: false,
        index_applied: None,
        index_page_reads: 0,
        lookup_bytes: catalog.locator().bytes() as u64,
        durable: log.durable,
        end: log.end,
        undurable_bytes: log.undurable_bytes,
        tail_writer: TailWriter::Auto,
        io: disk.counters(),
    })
}

/// The room behind the end of the log, in its segment and in those behind it.
fn open_bytes(extents: &Extents, size: ExtentSize, end: LogPosition) -> u64 {
    let room = |used: &Use| match used {
        Use::Log { segment, .. } if *segment == end.segment => {
            size.bytes().saturating_sub(end.offset.into())
        }
        Use::Log { segment, purpose: Purpose::Log, sealed: None, .. } if *segment > end.segment => {
            size.bytes()
        }
        _ => 0,
    };
    extents.uses.values().map(room).sum()
}

/// The bytes of living runs in a segment.
fn live_bytes_in(segment: &Segment, deleted: &RunSet) -> Result<u64> {
    let extent = segment.extent_size().bytes();
    match live_bytes(segment, |run_no| deleted.contains(run_no)) {
        // Space that cannot be counted is not free.
        Err(error) if error.is_corruption() => Ok(extent),
        // A directory may claim any number.
        known => Ok(known?.min(extent)),
    }
}
