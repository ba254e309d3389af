//! The one fold from directory entries to rows. Append, recovery, rebuild and compaction all go
//! through it, so that they cannot drift apart.
//!
//! - [`RunRow`]: everything the store knows of a run without reading its frames.
//! - [`Span`]: that a segment holds frames of the run, and where its directory says so.
//! - [`RunState`]: the row and the spans of one run; entries and evictions are applied to it in
//!   the order of the log.
//!
//! Rules of the fold:
//!
//! - counts add up; `next_seq` and `last_at` are the largest seen;
//! - the first explicit start wins; of several ends the one with the largest order wins;
//! - `created_at` is said by the segment with the run's first frame. Where that segment is lost,
//!   the latest timestamp of the first segment that is left stands in for it;
//! - an eviction removes all that came before it.

use crate::format::RunEntry;
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, RunStatus, SegmentId, Seq, Timestamp};

/// What the store knows of a run without reading its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRow {
    /// The number of the run.
    pub(crate) run_no: RunNo,
    /// The agent's id.
    pub(crate) agent: AgentId,
    /// The run's id.
    pub(crate) run: RunId,
    /// When the run came into being: the timestamp of its first frame.
    pub(crate) created_at: Timestamp,
    /// When it was explicitly started.
    pub(crate) started_at: Option<Timestamp>,
    /// Where the explicit START is.
    pub(crate) start: Option<LogPosition>,
    /// When it ended.
    pub(crate) ended_at: Option<Timestamp>,
    /// Where the END is.
    pub(crate) end: Option<LogPosition>,
    /// The order of the END; zero without one.
    pub(crate) end_lsn: Lsn,
    /// Where the run stands.
    pub(crate) status: RunStatus,
    /// How many records it has.
    pub(crate) records: u64,
    /// How many of them came after its end.
    pub(crate) late: u64,
    /// The payload bytes of its records.
    pub(crate) bytes: u64,
    /// The bytes of all its frames, headers included.
    pub(crate) stored: u64,
    /// One above the sequence of its last record.
    pub(crate) next_seq: Seq,
    /// The latest timestamp of a frame of it.
    pub(crate) last_at: Timestamp,
}

impl RunRow {
    /// The row of a run of which `entry` is the first that is known.
    pub(crate) fn first(segment: SegmentId, entry: &RunEntry) -> Self {
        let mut row = Self {
            run_no: entry.run_no,
            agent: entry.agent.clone(),
            run: entry.run.clone(),
            created_at: entry.created_at.unwrap_or(entry.last_at),
            started_at: None,
            start: None,
            ended_at: None,
            end: None,
            end_lsn: Lsn(0),
            status: RunStatus::InProgress,
            records: 0,
            late: 0,
            bytes: 0,
            stored: 0,
            next_seq: Seq(0),
            last_at: entry.last_at,
        };
        row.apply(segment, entry);
        row
    }

    /// Adds what one more segment says of the run. Segments come in the order of the log.
    ///
    /// Counts stop at the largest number instead of overflowing, since a directory is input.
    pub(crate) fn apply(&mut self, segment: SegmentId, entry: &RunEntry) {
        if let Some(created_at) = entry.created_at {
            self.created_at = self.created_at.min(created_at);
        }
        if let (None, Some(start)) = (self.start, entry.start) {
            self.start = Some(LogPosition { segment, offset: start.offset });
            self.started_at = Some(start.at);
        }
        if let Some(end) = entry.end
            && (self.end.is_none() || end.lsn > self.end_lsn)
        {
            self.end = Some(LogPosition { segment, offset: end.offset });
            self.ended_at = Some(end.at);
            self.end_lsn = end.lsn;
            self.status = end.status;
        }
        self.records = self.records.saturating_add(u64::from(entry.records));
        self.late = self.late.saturating_add(u64::from(entry.late));
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.stored = self.stored.saturating_add(entry.stored);
        self.next_seq = self.next_seq.max(entry.next_seq);
        self.last_at = self.last_at.max(entry.last_at);
    }

    /// Whether these are all spans of the run: a lookup that finds fewer records than the row
    /// counts has met damage.
    pub(crate) fn is_covered_by(&self, spans: &[Span]) -> bool {
        let sum = |count: fn(&Span) -> u64| {
            spans.iter().fold(0_u64, |sum, span| sum.saturating_add(count(span)))
        };
        sum(|span| u64::from(span.records)) == self.records
            && sum(|span| span.stored) == self.stored
    }

    /// The place of the run in the lists that are ordered by time.
    pub(crate) fn time_key(&self) -> (Timestamp, RunNo) {
        (self.created_at, self.run_no)
    }
}

/// That a segment holds frames of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// The segment.
    pub(crate) segment: SegmentId,
    /// The place of the run in the run table of the segment's directory.
    pub(crate) slot: u32,
    /// The sequence of the first record there, if there is one.
    pub(crate) first_seq: Option<Seq>,
    /// One above the sequence of the last record there.
    pub(crate) next_seq: Seq,
    /// How many records are there.
    pub(crate) records: u32,
    /// The bytes of all frames of the run there.
    pub(crate) stored: u64,
}

impl Span {
    /// The span of a directory entry.
    pub(crate) fn new(segment: SegmentId, slot: u32, entry: &RunEntry) -> Self {
        Self {
            segment,
            slot,
            first_seq: entry.first_seq,
            next_seq: entry.next_seq,
            records: entry.records,
            stored: entry.stored,
        }
    }
}

/// The row and the spans of one run while entries and evictions are applied to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunState {
    /// The row; absent when nothing was applied, or an eviction was the last.
    pub(crate) row: Option<RunRow>,
    /// The spans that were applied since the last eviction, by segment.
    pub(crate) spans: Vec<Span>,
}

impl RunState {
    /// Adds what the entry in `slot` of a segment's directory says.
    pub(crate) fn apply(&mut self, segment: SegmentId, slot: u32, entry: &RunEntry) {
        match &mut self.row {
            Some(row) => row.apply(segment, entry),
            none => *none = Some(RunRow::first(segment, entry)),
        }
        let span = Span::new(segment, slot, entry);
        match self.spans.last_mut() {
            Some(last) if last.segment == segment => *last = span,
            _ => self.spans.push(span),
        }
    }

    /// Removes everything that was applied.
    pub(crate) fn evict(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::directory::{EndAt, StartAt};

    fn entry(last_at: i64) -> RunEntry {
        let mut entry =
            RunEntry::new(RunNo(7), AgentId::new("planner").unwrap(), RunId::new("run-7").unwrap());
        entry.last_at = Timestamp(last_at);
        entry
    }

    fn end(lsn: u64, status: RunStatus) -> EndAt {
        EndAt { offset: 640, at: Timestamp(90), status, lsn: Lsn(lsn) }
    }

    #[test]
    fn counts_add_up_and_the_largest_sequence_wins() {
        let mut one = entry(20);
        one.created_at = Some(Timestamp(10));
        (one.records, one.bytes, one.stored) = (3, 300, 480);
        (one.first_seq, one.next_seq) = (Some(Seq(0)), Seq(3));
        let mut two = entry(40);
        (two.records, two.late, two.bytes, two.stored) = (2, 1, 50, 150);
        (two.first_seq, two.next_seq) = (Some(Seq(3)), Seq(5));

        let mut row = RunRow::first(SegmentId(1), &one);
        row.apply(SegmentId(2), &two);

        assert_eq!((row.records, row.late, row.bytes, row.stored), (5, 1, 350, 630));
        assert_eq!((row.next_seq, row.last_at), (Seq(5), Timestamp(40)));
        assert_eq!(row.created_at, Timestamp(10));
        assert_eq!((row.start, row.end, row.status), (None, None, RunStatus::InProgress));
    }

    #[test]
    fn counts_of_a_hostile_directory_do_not_overflow() {
        let mut huge = entry(0);
        (huge.bytes, huge.stored) = (u64::MAX, u64::MAX);
        let mut row = RunRow::first(SegmentId(1), &huge);
        row.apply(SegmentId(2), &huge);
        assert_eq!((row.bytes, row.stored), (u64::MAX, u64::MAX));
    }

    #[test]
    fn the_first_start_wins() {
        let mut one = entry(20);
        one.start = Some(StartAt { offset: 64, at: Timestamp(11) });
        let mut two = entry(30);
        two.start = Some(StartAt { offset: 128, at: Timestamp(12) });
        let mut row = RunRow::first(SegmentId(3), &one);
        row.apply(SegmentId(4), &two);
        assert_eq!(row.start, Some(LogPosition { segment: SegmentId(3), offset: 64 }));
        assert_eq!(row.started_at, Some(Timestamp(11)));
    }

    #[test]
    fn of_several_ends_the_latest_by_order_wins() {
        let mut late = entry(20);
        late.end = Some(end(9, RunStatus::Failed));
        let mut early = entry(30);
        early.end = Some(end(5, RunStatus::Completed));
        let mut row = RunRow::first(SegmentId(3), &late);
        row.apply(SegmentId(4), &early);
        assert_eq!((row.status, row.end_lsn), (RunStatus::Failed, Lsn(9)));
        assert_eq!(row.end.map(|end| end.segment), Some(SegmentId(3)));

        let mut row = RunRow::first(SegmentId(3), &early);
        row.apply(SegmentId(4), &late);
        assert_eq!((row.status, row.end_lsn), (RunStatus::Failed, Lsn(9)));
    }

    #[test]
    fn an_end_with_order_zero_counts() {
        let mut only = entry(20);
        only.end = Some(end(0, RunStatus::Completed));
        assert_eq!(RunRow::first(SegmentId(1), &only).status, RunStatus::Completed);
    }

    #[test]
    fn a_run_whose_first_segment_is_lost_was_created_when_it_was_first_seen() {
        let row = RunRow::first(SegmentId(5), &entry(77));
        assert_eq!(row.created_at, Timestamp(77));
    }

    #[test]
    fn spans_that_miss_one_do_not_cover_the_row() {
        let (mut one, mut two) = (entry(1), entry(2));
        (one.records, one.stored) = (2, 200);
        two.stored = 64;
        let mut state = RunState::default();
        state.apply(SegmentId(1), 0, &one);
        state.apply(SegmentId(2), 0, &two);
        let row = state.row.unwrap();
        assert!(row.is_covered_by(&state.spans));
        assert!(!row.is_covered_by(&state.spans[..1]));
        assert!(!row.is_covered_by(&state.spans[1..]));
    }

    #[test]
    fn an_eviction_removes_what_came_before_it_only() {
        let mut state = RunState::default();
        state.apply(SegmentId(1), 4, &entry(1));
        state.evict();
        assert_eq!(state, RunState::default());
        state.apply(SegmentId(2), 5, &entry(2));
        assert_eq!(state.spans.len(), 1);
        assert_eq!(state.row.unwrap().last_at, Timestamp(2));
    }
}
