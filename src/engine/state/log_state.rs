//! The state of an open store that appends change: the tail of the log and the runs in memory.
//!
//! One lock guards all of it. Under that lock order, sequence and place are assigned, the bytes are
//! written, and the frame is noted.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::engine::setup::options::TailWriter;
use crate::engine::state::active_runs::{ActiveRun, ActiveRuns, RUNS_DUE};
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::engine::state::stored_run::{Name, StoredRun};
use crate::engine::state::tail::Tail;
use crate::error::{Damage, Error, Place, Result};
use crate::format::frames::frame;
use crate::format::segments::run_set::RunSet;
use crate::format::segments::segment::LAST_SEGMENT;
use crate::format::{DirectoryBuilder, ExtentSize, RunEntry};
use crate::index::RunRow;
use crate::types::{LogPosition, Lsn, RunNo, SegmentId};

/// Who may use the reserve at the end of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Records and starts may not use the reserve.
    Normal,
    /// Ends, evictions, holds and urgent batches may use it, also on a full disk.
    Reserve,
}

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct LogState {
    pub(crate) tail: Tail,
    /// A segment is set aside, or is being prepared.
    pub(crate) has_next: bool,
    /// Sealed segments, oldest first, that the catalog does not cover. The first ones may be sealed
    /// in the manifest too ([`Mark::Durable`](crate::engine::state::segment::Mark)).
    pub(crate) unapplied: VecDeque<Arc<Segment>>,
    /// Answers for everything older.
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) active: ActiveRuns,
    /// Deleted runs that still have frames in some segment.
    pub(crate) deleted: Arc<RunSet>,
    /// Segments in which runs may have died since they were last checked.
    pub(crate) suspects: BTreeSet<SegmentId>,
    /// How many bytes were deleted since a compaction found nothing more to gain, roughly. All if
    /// the store was not closed properly.
    pub(crate) dead: u64,
    /// Segments that do not count, but may still have readers.
    pub(crate) retired: Vec<Arc<Segment>>,
    pub(crate) next_segment: SegmentId,
    pub(crate) next_run_no: RunNo,
    pub(crate) next_lsn: Lsn,
    /// The durable position that the last WATERMARK, or the opening, has stated.
    pub(crate) stated: LogPosition,
    /// The superblock says that no number from these on was given out.
    pub(crate) promised: (RunNo, Lsn),
    pub(crate) closed: bool,
    pub(crate) buffer: Vec<u8>,
}

/// The length of the reserve, the space at the end of a segment that only urgent frames may use.
pub(crate) fn reserve_len(extent_size: ExtentSize) -> u32 {
    (extent_size.bytes_u32() / 16).min(32 << 10)
}

/// How much of the reserve such a frame must leave free.
pub(crate) fn reserve_for(extent_size: ExtentSize, urgency: Urgency) -> u32 {
    match urgency {
        Urgency::Normal => reserve_len(extent_size),
        Urgency::Reserve => 0,
    }
}

/// How many numbers the superblock promises at once. Half of them is more than the frames of one
/// segment can take, so it suffices to check the promise when a segment begins.
pub(crate) const NUMBERS_AHEAD: u64 = 1 << 24;
const _: () = assert!(NUMBERS_AHEAD / 2 > (64 << 20) / frame::FRAME_HEADER_LEN as u64);

/// How many numbers a store leaves out that has less than was once acknowledged: a copy, or what a
/// salvage found. At least so many, and a random multiple of more than any store gives out between
/// two such openings: the same copy may be restored twice.
const NUMBERS_LEFT_OUT: u64 = 1 << 40;

fn left_out(random: u64) -> u64 {
    NUMBERS_LEFT_OUT + ((random & 0xffff) << 34)
}

/// A checkpoint is due when this many segments are waiting for one.
const CHECKPOINT_DUE: usize = 4;
/// A checkpoint is due when segments of this many bytes are waiting, some with dead runs: only
/// segments that the catalog covers can be freed.
const DEAD_DUE: u64 = 4 << 20;
/// Appends help when this many segments wait for a checkpoint, to bound memory.
const CHECKPOINT_LATE: usize = 24;
/// Appends also help when this many runs are in memory. See [`RUNS_DUE`].
const RUNS_LATE: usize = 32 << 10;
/// A checkpoint is overdue at this many times the limits for a late one.
const OVERDUE: usize = 4;

impl LogState {
    /// The numbers that the superblock must promise next.
    pub(crate) fn numbers_ahead(&self) -> (RunNo, Lsn) {
        let ahead = |next: u64| next.saturating_add(NUMBERS_AHEAD);
        (RunNo(ahead(self.next_run_no.0)), Lsn(ahead(self.next_lsn.0)))
    }

    /// Goes on behind all numbers that the store may have given out for what is not here, such as
    /// the versions of documents that callers have, and the cursors of followers. `last` is the
    /// largest of a run that is known elsewhere.
    pub(crate) fn leave_numbers_out(&mut self, last: RunNo, random: u64) {
        self.next_run_no = self.next_run_no.max(RunNo(last.0.saturating_add(1)));
        for next in [&mut self.next_run_no.0, &mut self.next_lsn.0] {
            *next = next.saturating_add(left_out(random));
        }
        self.promised = (self.next_run_no, self.next_lsn);
    }

    /// The numbers for the next run and the next frame.
    pub(crate) fn next_numbers(&self) -> (RunNo, Lsn) {
        (self.next_run_no, self.next_lsn)
    }

    /// The number for a new run.
    pub(crate) fn take_run_no(&mut self) -> RunNo {
        let run_no = self.next_run_no;
        self.next_run_no = RunNo(run_no.0.saturating_add(1));
        run_no
    }

    /// The id for a new segment. It is used once a durable record of the manifest has it.
    pub(crate) fn take_segment_id(&mut self) -> Result<SegmentId> {
        let id = self.next_segment;
        if id > LAST_SEGMENT {
            return Err(Error::Exhausted { what: "segments" });
        }
        self.next_segment = SegmentId(id.0 + 1);
        Ok(id)
    }

    /// The earliest position of the next frame: everything in front of it was written.
    #[inline]
    pub(crate) fn end_of_log(&self) -> LogPosition {
        self.tail.end()
    }

    /// Moves the tail into a segment that has no frames yet.
    pub(crate) fn begin(&mut self, segment: Arc<Segment>, allocated: u32, writer: TailWriter) {
        self.tail.begin(segment, allocated, writer);
    }

    /// Whether a checkpoint is due: for segments or runs that wait for one, or to free dead runs.
    pub(crate) fn is_due(&self) -> bool {
        let waiting = self.unapplied.len();
        waiting >= CHECKPOINT_DUE
            || self.has_much_dead()
            || (waiting > 0 && self.active.len() >= RUNS_DUE)
    }

    /// Whether the segments that wait for a checkpoint have enough dead runs.
    fn has_much_dead(&self) -> bool {
        let mut waiting = self.unapplied.iter();
        waiting.len() as u64 * self.tail.segment.extent_size().bytes() >= DEAD_DUE
            && waiting.any(|segment| self.suspects.contains(&segment.id()))
    }

    /// Whether so much may be dead, since it was last looked for, that a compaction is worth it.
    pub(crate) fn has_many_suspects(&self) -> bool {
        // The tail stays one until it is full.
        let tail = self.tail.segment.id();
        let full = self.suspects.iter().filter(|id| **id != tail).count() as u64;
        full * self.tail.segment.extent_size().bytes() >= DEAD_DUE
    }

    /// Whether a retired segment has lost its last reader.
    pub(crate) fn has_free(&self) -> bool {
        self.retired.iter().any(|segment| Arc::strong_count(segment) == 1)
    }

    /// Whether a checkpoint is late, so that appends must help to keep memory bounded.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        let waiting = self.unapplied.len();
        waiting >= CHECKPOINT_LATE || (waiting > 1 && self.active.len() >= RUNS_LATE)
    }

    /// Whether a checkpoint is overdue, so that even deferred calls help.
    pub(crate) fn is_overdue(&self) -> bool {
        let waiting = self.unapplied.len();
        waiting >= OVERDUE * CHECKPOINT_LATE
            || (waiting > 1 && self.active.len() >= OVERDUE * RUNS_LATE)
    }

    /// The tail's segment is sealed. Folds what its directory says into the runs in memory, slot by
    /// slot, and puts it behind the segments that the catalog does not cover.
    pub(crate) fn take_sealed(&mut self, segment: Arc<Segment>) {
        let builder = core::mem::take(&mut self.tail.builder);
        let mut built: Vec<_> = builder.runs().iter().map(|run| &run.entry).collect();
        if built.iter().all(|entry| self.deleted.contains(entry.run_no)) {
            // No later deletion makes it a suspect.
            self.suspects.insert(segment.id());
        }
        built.sort_by_key(|entry| entry.run_no);
        for (slot, entry) in (0..).zip(built) {
            self.active.seal(segment.id(), slot, entry);
        }
        self.unapplied.push_back(segment);
    }

    /// Brings these runs of a segment of the log, which `builder` lists, into memory. A run of
    /// which a quarantined segment may say more takes no call.
    pub(crate) fn remember(
        &mut self,
        segment: SegmentId,
        builder: &DirectoryBuilder,
        runs: impl Iterator<Item = RunNo>,
    ) -> Result<()> {
        for entry in runs.filter_map(|run_no| builder.run(run_no)).map(|built| &built.entry) {
            if self.deleted.contains(entry.run_no) {
                continue;
            }
            if self.active.get(entry.run_no).is_none() {
                let run = match self.stored_row(entry) {
                    Ok(Some(row)) => ActiveRun::from_row(row),
                    Ok(None) => {
                        let (agent, run) = (entry.agent.clone(), entry.run.clone());
                        let at = entry.created_at.unwrap_or(entry.last_at);
                        let mut new = ActiveRun::new(entry.run_no, agent, run, at);
                        new.document = entry.document;
                        new
                    }
                    Err(Error::Corrupt(lost)) => ActiveRun::unread(entry, lost),
                    Err(error) => return Err(error),
                };
                self.active.insert(run);
            }
            if let Some(run) = self.active.get_mut(entry.run_no) {
                run.next_seq = run.next_seq.max(entry.next_seq);
                run.started |= entry.start.is_some();
            }
            if entry.end.is_some()
                && let Some(run) = self.active.get(entry.run_no).filter(|run| run.is_read())
                && let Some(row) = run.row(segment, builder)?
            {
                self.active.set_status(entry.run_no, row.status);
            }
        }
        Ok(())
    }

    /// What the catalog says of a run with an entry in a segment of the log.
    fn stored_row(&self, entry: &RunEntry) -> Result<Option<RunRow>> {
        // Nothing of a run is older than its beginning.
        if entry.created_at.is_some() {
            return Ok(None);
        }
        let name = Name::new(entry.document, &entry.agent, &entry.run);
        let found = self.catalog.stored_run(name, entry.run_no, &self.deleted)?;
        found.as_ref().map(StoredRun::row).transpose()
    }

    /// Drops all views of the file. The store is closed.
    pub(crate) fn drop_views(&mut self) {
        self.tail.close();
        self.unapplied.clear();
        self.retired.clear();
        self.catalog = Arc::default();
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// The segment with this id, if it still counts.
    pub(crate) fn segment(&self, id: SegmentId) -> Option<Arc<Segment>> {
        if self.tail.segment.id() == id {
            return Some(Arc::clone(&self.tail.segment));
        }
        if let Some(segment) = self.catalog.segment(id) {
            return Some(Arc::clone(segment));
        }
        self.unapplied.iter().find(|segment| segment.id() == id).cloned()
    }

    /// The row as of now of a run in memory.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a quarantined segment may say more of the run.
    pub(crate) fn row_in_memory(&self, run_no: RunNo) -> Result<Option<RunRow>> {
        let Some(run) = self.active.get(run_no) else { return Ok(None) };
        run.row(self.tail.segment.id(), &self.tail.builder)
    }

    /// The segment and offset to read a frame at a position. They stay valid without the lock.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if only the index says that there is one: its segment cannot be read.
    pub(crate) fn frame_at(&self, at: Option<LogPosition>) -> Result<Option<(Arc<Segment>, u32)>> {
        let Some(at) = at else { return Ok(None) };
        match self.segment(at.segment) {
            Some(segment) => Ok(Some((segment, at.offset))),
            None => Err(Error::corrupt(Place::Index, Damage::Missing)),
        }
    }

    /// The segments that the catalog does not cover and that have frames of a run.
    pub(crate) fn fresh_segments(&self, run_no: RunNo) -> impl Iterator<Item = SegmentId> + '_ {
        let fresh = self.active.get(run_no).map(|run| run.fresh.as_slice()).unwrap_or_default();
        let in_tail = self.tail.builder.run(run_no).map(|_| self.tail.segment.id());
        fresh.iter().map(|(segment, _)| *segment).chain(in_tail)
    }
}
