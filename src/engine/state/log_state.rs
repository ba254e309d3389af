//! The state of an open store that appends change: the tail of the log and the runs in memory.
//!
//! One lock guards all of it: order, sequence and place are assigned, the bytes are written, and
//! the frame is noted under that lock.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use crate::engine::setup::options::TailWriter;
use crate::engine::state::active_runs::{ActiveRuns, RUNS_DUE};
use crate::engine::state::catalog::Catalog;
use crate::engine::state::segment::Segment;
use crate::engine::state::tail::Tail;
use crate::error::{Error, Result};
use crate::format::frames::frame;
use crate::format::segments::segment::{LAST_SEGMENT, SEGMENT_HEADER_LEN};
use crate::format::{DirectoryBuilder, ExtentSize, LAST_WRITTEN, NUMBERS_END};
use crate::index::RunRow;
use crate::types::{LogPosition, Lsn, RunNo, SegmentId};

/// Who may use the space that is kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Records and starts leave the reserve alone.
    Normal,
    /// Ends and evictions may use it, so that runs can be ended on a full disk.
    Reserve,
}

/// The state behind the lock.
#[derive(Debug)]
pub(crate) struct LogState {
    pub(crate) tail: Tail,
    /// A segment is set aside, or on its way there.
    pub(crate) has_next: bool,
    /// Sealed segments, oldest first, that the catalog does not cover. The manifest knows those in
    /// front as sealed ([`Mark::Durable`](crate::engine::state::segment::Mark)).
    pub(crate) unapplied: VecDeque<Arc<Segment>>,
    /// What answers for everything older.
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) active: ActiveRuns,
    /// Runs that are deleted but still have frames somewhere.
    pub(crate) deleted: Arc<HashSet<RunNo>>,
    /// Segments of which less may live than at the last look.
    pub(crate) suspects: BTreeSet<SegmentId>,
    /// Segments that do not count any more, but may still have readers.
    pub(crate) retired: Vec<Arc<Segment>>,
    pub(crate) next_segment: SegmentId,
    pub(crate) next_run_no: RunNo,
    pub(crate) next_lsn: Lsn,
    /// The superblock says that no run number and no order from these on was given out.
    pub(crate) promised: (RunNo, Lsn),
    pub(crate) closed: bool,
    pub(crate) buffer: Vec<u8>,
}

/// The space at the end of a segment that only ends and evictions may use.
pub(crate) fn reserve_len(extent_size: ExtentSize) -> u32 {
    (extent_size.bytes_u32() / 16).min(32 << 10)
}

/// The part of it that is left alone.
pub(crate) fn reserve_for(extent_size: ExtentSize, urgency: Urgency) -> u32 {
    match urgency {
        Urgency::Normal => reserve_len(extent_size),
        Urgency::Reserve => 0,
    }
}

/// How many numbers the superblock promises at once. Half of them is more than the frames of any
/// segment take, so that placing frames, which each segment begins with, is where to look.
pub(crate) const NUMBERS_AHEAD: u64 = 1 << 24;
const _: () = assert!(NUMBERS_AHEAD / 2 > (64 << 20) / frame::FRAME_HEADER_LEN as u64);

/// A checkpoint is due when this many segments are waiting for one.
const CHECKPOINT_DUE: usize = 4;
/// A checkpoint is due when so many bytes of segments are waiting of which something is dead: only
/// what the catalog covers can be freed.
const DEAD_DUE: u64 = 4 << 20;
/// Appends help with the checkpoint when this many segments are waiting, so that memory stays
/// bounded.
const CHECKPOINT_LATE: usize = 24;
/// See [`RUNS_DUE`].
const RUNS_LATE: usize = 32 << 10;

impl LogState {
    /// The numbers that the superblock is to promise next.
    pub(crate) fn numbers_ahead(&self) -> (RunNo, Lsn) {
        let ahead = |next: u64| next.saturating_add(NUMBERS_AHEAD).min(NUMBERS_END);
        (RunNo(ahead(self.next_run_no.0)), Lsn(ahead(self.next_lsn.0)))
    }

    /// The numbers that the next run and the next frame get.
    pub(crate) fn next_numbers(&self) -> (RunNo, Lsn) {
        (self.next_run_no, self.next_lsn)
    }

    /// The number of a run that comes into being.
    pub(crate) fn take_run_no(&mut self) -> Result<RunNo> {
        let run_no = self.next_run_no;
        if run_no.0 >= LAST_WRITTEN {
            return Err(Error::Exhausted { what: "runs" });
        }
        self.next_run_no = RunNo(run_no.0 + 1);
        Ok(run_no)
    }

    /// A number for a segment. It is used only if a record of the manifest says so durably.
    pub(crate) fn take_segment_id(&mut self) -> Result<SegmentId> {
        let id = self.next_segment;
        if id > LAST_SEGMENT {
            return Err(Error::Exhausted { what: "segments" });
        }
        self.next_segment = SegmentId(id.0 + 1);
        Ok(id)
    }

    /// Where the next frame will end up at the earliest: everything in front of it was written.
    #[inline]
    pub(crate) fn end_of_log(&self) -> LogPosition {
        self.tail.end()
    }

    /// The tail moves into a segment that has no frames yet.
    pub(crate) fn begin(&mut self, segment: Arc<Segment>, allocated: u32, writer: TailWriter) {
        let builder = DirectoryBuilder::default();
        self.tail = Tail::new(segment, (SEGMENT_HEADER_LEN, allocated), builder, writer);
    }

    /// A checkpoint is due: segments or runs wait for one, or what is dead in segments does.
    pub(crate) fn is_due(&self) -> bool {
        let waiting = self.unapplied.len();
        waiting >= CHECKPOINT_DUE
            || self.has_much_dead(self.unapplied.iter())
            || (waiting > 0 && self.active.len() >= RUNS_DUE)
    }

    /// Whether these segments, which wait for a checkpoint or waited for it, are worth a look for
    /// what is dead in them.
    pub(crate) fn has_much_dead<'s>(
        &self,
        mut waiting: impl ExactSizeIterator<Item = &'s Arc<Segment>>,
    ) -> bool {
        waiting.len() as u64 * self.tail.segment.extent_size().bytes() >= DEAD_DUE
            && waiting.any(|segment| self.suspects.contains(&segment.id()))
    }

    /// A checkpoint is late: appends help, so that memory stays bounded.
    #[inline]
    pub(crate) fn is_late(&self) -> bool {
        let waiting = self.unapplied.len();
        waiting >= CHECKPOINT_LATE || (waiting > 1 && self.active.len() >= RUNS_LATE)
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// The segment with this number, if it still counts.
    pub(crate) fn segment(&self, id: SegmentId) -> Option<Arc<Segment>> {
        if self.tail.segment.id() == id {
            return Some(Arc::clone(&self.tail.segment));
        }
        if let Some(segment) = self.catalog.segment(id) {
            return Some(Arc::clone(segment));
        }
        self.unapplied.iter().find(|segment| segment.id() == id).cloned()
    }

    /// What is known as of now of a run in memory.
    pub(crate) fn row_in_memory(&self, run_no: RunNo) -> Option<RunRow> {
        self.active.get(run_no)?.row(self.tail.segment.id(), &self.tail.builder)
    }

    /// Where the frame at a position is to be read, also once the lock is let go.
    pub(crate) fn frame_at(&self, at: Option<LogPosition>) -> Option<(Arc<Segment>, u32)> {
        let at = at?;
        Some((self.segment(at.segment)?, at.offset))
    }

    /// The segments that the catalog does not cover and that have frames of a run.
    pub(crate) fn fresh_segments(&self, run_no: RunNo) -> impl Iterator<Item = SegmentId> + '_ {
        let spans = self.active.get(run_no).map(|run| run.spans.as_slice()).unwrap_or_default();
        let in_tail = self.tail.builder.run(run_no).map(|_| self.tail.segment.id());
        spans.iter().map(|span| span.segment).chain(in_tail)
    }
}
