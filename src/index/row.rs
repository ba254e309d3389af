//! The one fold from directory entries to rows. Append, recovery, rebuild and compaction all use
//! it, so that they cannot diverge.
//!
//! - [`RunRow`]: everything that the store knows about a run without reading its frames.
//! - [`RowSummary`]: what retention needs of each run, cheaper than a row.
//!
//! Rules of the fold. None of them depends on the order of the entries, since compaction moves
//! frames to segments whose numbers say nothing about the order of the log:
//!
//! - counts add up; `next_seq` and `last_at` are the largest seen;
//! - of several explicit starts the one with the smallest timestamp wins; of several ends, and of
//!   several holds, the one with the largest order wins. If these are equal, which only damage or
//!   two clocks cause, the position decides: the smallest for a start, else the largest;
//! - the entry with the run's first frame determines `created_at`. Only chunks precede that frame,
//!   and an entry with chunks alone has no timestamp;
//! - all entries name the run alike;
//! - a run that is evicted anywhere does not exist. So an eviction is not a step of the fold: the
//!   caller leaves the run out.

use super::tables::key::State;
use crate::format::RunEntry;
use crate::types::{AgentId, LogPosition, Lsn, RunId, RunNo, RunStatus, SegmentId, Seq, Timestamp};

/// What the store knows about a run without reading its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRow {
    /// The number of the run.
    pub(crate) run_no: RunNo,
    /// The agent's id.
    pub(crate) agent: AgentId,
    /// The run's id.
    pub(crate) run: RunId,
    /// Whether it is a version of a document, not a run. Then the agent's id is the namespace and
    /// the run's id the key.
    pub(crate) document: bool,
    /// When the run was created: the timestamp of its first frame.
    pub(crate) created_at: Timestamp,
    /// When it was explicitly started.
    pub(crate) started_at: Option<Timestamp>,
    /// Where the explicit START is; as the END and the HOLD in no segment if only the index says
    /// it.
    pub(crate) start: Option<LogPosition>,
    /// When it ended.
    pub(crate) ended_at: Option<Timestamp>,
    /// Where the END is.
    pub(crate) end: Option<LogPosition>,
    /// The order of the END; zero without one.
    pub(crate) end_lsn: Lsn,
    /// The latest HOLD.
    pub(crate) hold: Option<Hold>,
    /// Whether the run is in progress, or how it ended.
    pub(crate) status: RunStatus,
    /// How many records it has.
    pub(crate) records: u64,
    /// How many of them were appended after its end.
    pub(crate) late: u64,
    /// The payload bytes of its records.
    pub(crate) bytes: u64,
    /// The bytes of all its frames, headers included.
    pub(crate) stored: u64,
    /// The sequence of its last record plus one.
    pub(crate) next_seq: Seq,
    /// The latest timestamp of a frame of it.
    pub(crate) last_at: Timestamp,
    /// The segments with entries of it, ascending. A row that is one of very many segments lists
    /// none: see [`RunRow::can_be_in`].
    pub(crate) segments: Vec<SegmentId>,
}

/// The most segments that a row lists.
pub(crate) const MAX_SEGMENTS: usize = 4096;

/// The latest HOLD of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Where the HOLD frame is.
    pub(crate) at: LogPosition,
    /// Its order.
    pub(crate) lsn: Lsn,
    /// Whether it holds the run or releases it.
    pub(crate) held: bool,
}

impl RunRow {
    /// The row of a run whose first applied entry is `entry`.
    pub(crate) fn first(segment: SegmentId, entry: &RunEntry) -> Self {
        let mut row = Self {
            run_no: entry.run_no,
            agent: entry.agent.clone(),
            run: entry.run.clone(),
            document: entry.document,
            created_at: entry.created_at.unwrap_or(entry.last_at),
            started_at: None,
            start: None,
            ended_at: None,
            end: None,
            end_lsn: Lsn(0),
            hold: None,
            status: RunStatus::InProgress,
            records: 0,
            late: 0,
            bytes: 0,
            stored: 0,
            next_seq: Seq(0),
            last_at: entry.last_at,
            segments: Vec::new(),
        };
        row.apply(segment, entry);
        row
    }

    /// Adds the entry of one more segment, in any order.
    ///
    /// Counts saturate instead of overflowing, since a directory is untrusted input.
    pub(crate) fn apply(&mut self, segment: SegmentId, entry: &RunEntry) {
        self.created_at = entry.created_at.unwrap_or(self.created_at);
        self.document |= entry.document;
        let position = |offset| LogPosition { segment, offset };
        if let Some(start) = entry.start {
            let found = (start.at, position(start.offset));
            if self.started_at.is_none_or(|known| found < (known, self.start.unwrap_or_default())) {
                self.started_at = Some(found.0);
                self.start = Some(found.1);
            }
        }
        if let Some(end) = entry.end {
            let found = (end.lsn, position(end.offset));
            let known = (self.end_lsn, self.end.unwrap_or_default());
            if self.ended_at.is_none() || found > known {
                self.end_lsn = found.0;
                self.end = Some(found.1);
                self.ended_at = Some(end.at);
                self.status = end.status;
            }
        }
        if let Some(hold) = entry.hold {
            let found = Hold { at: position(hold.offset), lsn: hold.lsn, held: hold.held };
            if self.hold.is_none_or(|known| (found.lsn, found.at) > (known.lsn, known.at)) {
                self.hold = Some(found);
            }
        }
        self.records = self.records.saturating_add(u64::from(entry.records));
        self.late = self.late.saturating_add(u64::from(entry.late));
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.stored = self.stored.saturating_add(entry.stored);
        self.next_seq = self.next_seq.max(entry.next_seq);
        self.last_at = self.last_at.max(entry.last_at);
        if let Err(place) = self.segments.binary_search(&segment) {
            self.segments.insert(place, segment);
        }
    }

    /// Whether a segment may have an entry of the run.
    pub(crate) fn can_be_in(&self, segment: SegmentId) -> bool {
        self.segments.is_empty() || self.segments.binary_search(&segment).is_ok()
    }

    /// Whether the run is held, so that retention keeps it.
    pub(crate) fn is_held(&self) -> bool {
        self.hold.is_some_and(|hold| hold.held)
    }

    /// Among which runs lists have the run.
    pub(super) fn state(&self) -> State {
        State { status: self.status, held: self.is_held() }
    }

    /// What retention needs of the run.
    pub(crate) fn summary(&self) -> RowSummary<'_> {
        RowSummary {
            run_no: self.run_no,
            agent: self.agent.as_str(),
            run: self.run.as_str(),
            document: self.document,
            status: self.status,
            created_at: self.created_at,
            ended_at: self.ended_at,
            last_at: self.last_at,
            bytes: self.bytes,
            stored: self.stored,
            held: self.is_held(),
        }
    }

    /// The row as the index has it: the places of frames are not known.
    pub(crate) fn without_places(mut self) -> Self {
        self.start = self.started_at.map(|_| LogPosition::default());
        self.end = self.ended_at.map(|_| LogPosition::default());
        self.hold = self.hold.map(|hold| Hold { at: LogPosition::default(), ..hold });
        if self.segments.len() > MAX_SEGMENTS {
            self.segments.clear();
        }
        self
    }

    /// The place of the run in the lists that are ordered by time.
    pub(crate) fn time_key(&self) -> (Timestamp, RunNo) {
        (self.created_at, self.run_no)
    }
}

/// What retention needs of each run: a [`RunRow`] without its positions and without copies of the
/// ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowSummary<'a> {
    /// The number of the run.
    pub(crate) run_no: RunNo,
    /// The agent's id.
    pub(crate) agent: &'a str,
    /// The run's id.
    pub(crate) run: &'a str,
    /// Whether it is a version of a document, to which no policy applies.
    pub(crate) document: bool,
    /// Whether the run is in progress, or how it ended.
    pub(crate) status: RunStatus,
    /// When the run was created.
    pub(crate) created_at: Timestamp,
    /// When it ended.
    pub(crate) ended_at: Option<Timestamp>,
    /// The latest timestamp of a frame of it.
    pub(crate) last_at: Timestamp,
    /// The payload bytes of its records.
    pub(crate) bytes: u64,
    /// The bytes of all its frames, headers included.
    pub(crate) stored: u64,
    /// Whether it is held.
    pub(crate) held: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::segments::directory::{EndAt, HoldAt, StartAt};

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
        one.next_seq = Seq(3);
        let mut two = entry(40);
        (two.records, two.late, two.bytes, two.stored) = (2, 1, 50, 150);
        two.next_seq = Seq(5);

        let mut row = RunRow::first(SegmentId(1), &one);
        row.apply(SegmentId(2), &two);

        assert_eq!((row.records, row.late, row.bytes, row.stored), (5, 1, 350, 630));
        assert_eq!((row.next_seq, row.last_at), (Seq(5), Timestamp(40)));
        assert_eq!(row.created_at, Timestamp(10));
        assert_eq!((row.start, row.end, row.status), (None, None, RunStatus::InProgress));
    }

    #[test]
    fn the_earliest_start_wins_whichever_is_met_first() {
        let (mut early, mut late) = (entry(20), entry(30));
        early.start = Some(StartAt { offset: 128, at: Timestamp(11) });
        late.start = Some(StartAt { offset: 64, at: Timestamp(12) });
        for [(first, one), (second, two)] in [[(9, &early), (3, &late)], [(3, &late), (9, &early)]]
        {
            let mut row = RunRow::first(SegmentId(first), one);
            row.apply(SegmentId(second), two);
            assert_eq!(row.start, Some(LogPosition { segment: SegmentId(9), offset: 128 }));
            assert_eq!(row.started_at, Some(Timestamp(11)));
        }
    }

    #[test]
    fn a_run_is_held_until_a_later_hold_releases_it() {
        let hold = |lsn, held| {
            let mut entry = entry(20);
            entry.hold = Some(HoldAt { offset: 64, lsn: Lsn(lsn), held });
            entry
        };
        let mut row = RunRow::first(SegmentId(3), &hold(5, true));
        assert!(row.is_held());
        row.apply(SegmentId(2), &hold(9, false));
        assert!(!row.is_held());
        row.apply(SegmentId(7), &hold(7, true));
        assert!(!row.is_held());
        let at = LogPosition { segment: SegmentId(2), offset: 64 };
        assert_eq!(row.hold, Some(Hold { at, lsn: Lsn(9), held: false }));
        assert!(!RunRow::first(SegmentId(1), &entry(1)).is_held());
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
    fn the_first_frame_says_when_a_run_was_created_also_behind_its_chunks() {
        let (chunks, mut first) = (entry(i64::MIN), entry(90));
        first.created_at = Some(Timestamp(80));
        for [one, two] in [[&chunks, &first], [&first, &chunks]] {
            let mut row = RunRow::first(SegmentId(5), one);
            row.apply(SegmentId(6), two);
            assert_eq!(row.created_at, Timestamp(80));
        }
    }

    /// Few different numbers, so that equal ones are frequent.
    fn any_entry() -> impl Strategy<Value = RunEntry> {
        let at = || (0..4_i64).prop_map(Timestamp);
        let start = (0..3_u32, at()).prop_map(|(offset, at)| StartAt { offset, at });
        let codes = [RunStatus::Completed, RunStatus::Failed];
        let end =
            (0..3_u32, at(), 0..2_usize, 0..3_u64).prop_map(move |(offset, at, code, lsn)| EndAt {
                offset,
                at,
                status: codes[code],
                lsn: Lsn(lsn),
            });
        let hold = (0..3_u32, 0..3_u64, any::<bool>()).prop_map(|(offset, lsn, held)| HoldAt {
            offset,
            lsn: Lsn(lsn),
            held,
        });
        let marks = (
            proptest::option::of(at()),
            proptest::option::of(start),
            proptest::option::of(end),
            proptest::option::of(hold),
        );
        let huge = || prop_oneof![0..9_u64, Just(u64::MAX)];
        let counts = (0..9_u64, 0..9_u32, 0..9_u32, huge(), huge(), 0..9_i64);
        (marks, counts).prop_map(|(marks, counts)| {
            let mut entry = entry(if counts.5 == 0 { i64::MIN } else { counts.5 });
            (entry.created_at, entry.start, entry.end, entry.hold) = marks;
            (entry.next_seq, entry.records, entry.late) = (Seq(counts.0), counts.1, counts.2);
            (entry.bytes, entry.stored) = (counts.3, counts.4);
            entry
        })
    }

    fn folded(entries: &[(SegmentId, RunEntry)]) -> RunRow {
        let mut row = RunRow::first(entries[0].0, &entries[0].1);
        for (segment, entry) in &entries[1..] {
            row.apply(*segment, entry);
        }
        row
    }

    proptest! {
        #[test]
        fn the_order_of_the_entries_does_not_matter(
            (entries, shuffled) in proptest::collection::vec(any_entry(), 1..7)
                .prop_map(|mut entries| {
                    // One entry has the first frame of the run.
                    for entry in entries.iter_mut().skip(1) {
                        entry.created_at = None;
                    }
                    if let Some(first) = entries.first_mut() {
                        first.created_at.get_or_insert(Timestamp(7));
                    }
                    (1_u32..).map(SegmentId).zip(entries).collect::<Vec<_>>()
                })
                .prop_flat_map(|entries| (Just(entries.clone()), Just(entries).prop_shuffle()))
        ) {
            prop_assert_eq!(folded(&entries), folded(&shuffled));
        }
    }
}
