//! What one segment says about one run: the unit of a directory, and of the fold into rows.
//!
//! The layout is a part of the [`directory`](super::directory)'s.

use crate::format::codec::Writer;
use crate::types::{AgentId, Lsn, RunId, RunNo, RunStatus, Seq, Timestamp};

pub(crate) const CREATED: u16 = 1;
pub(crate) const STARTED: u16 = 1 << 1;
pub(crate) const ENDED: u16 = 1 << 2;
pub(crate) const RECORDS: u16 = 1 << 3;
/// There is a HOLD frame. The latest one holds the run if [`HELD`] is set, else it releases it.
pub(crate) const HOLD: u16 = 1 << 4;
pub(crate) const HELD: u16 = 1 << 5;
/// The entry is a version of a document, not a run.
pub(crate) const DOCUMENT: u16 = 1 << 6;
/// Everything of the run here was compressed, or compression was found not worthwhile.
pub(crate) const COLD: u16 = 1 << 7;
pub(crate) const KNOWN_FLAGS: u16 =
    CREATED | STARTED | ENDED | RECORDS | HOLD | HELD | DOCUMENT | COLD;

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
    /// The sequence of the first record here, if there is one.
    pub first_seq: Option<Seq>,
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
    /// The smallest order of a record or chunk of the run here, or the largest number if there is
    /// neither. The ranges of segments do not overlap, so this orders the segments of a run.
    pub first_lsn: Lsn,
}

/// The first order of an entry without records and chunks.
pub(crate) const NO_ORDER: Lsn = Lsn(u64::MAX);

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
            first_seq: None,
            next_seq: Seq(0),
            records: 0,
            chunks: 0,
            late: 0,
            bytes: 0,
            stored: 0,
            last_at: Timestamp(i64::MIN),
            first_lsn: NO_ORDER,
        }
    }

    pub(crate) fn encode(&self, out: &mut Writer<'_>, first_offset: u32, id_offset: u32) {
        let flags = [
            (CREATED, self.created_at.is_some()),
            (STARTED, self.start.is_some()),
            (ENDED, self.end.is_some()),
            (RECORDS, self.first_seq.is_some()),
            (HOLD, self.hold.is_some()),
            (HELD, self.hold.is_some_and(|hold| hold.held)),
            (DOCUMENT, self.document),
            (COLD, self.cold),
        ];
        let flags = flags.into_iter().filter(|flag| flag.1).fold(0, |all, flag| all | flag.0);
        let hold = self.hold.unwrap_or_default();
        let (start, end) = (self.start.unwrap_or_default(), self.end.unwrap_or_default());
        out.u64(self.run_no.0)
            .u64(self.first_seq.unwrap_or_default().0)
            .u64(self.next_seq.0)
            .u32(self.records)
            .u32(first_offset)
            .u16(flags)
            .u8(end.status.code())
            .u8(0)
            .u32(self.late)
            .i64(self.created_at.unwrap_or_default().0)
            .u32(start.offset)
            .u32(end.offset)
            .i64(start.at.0)
            .i64(end.at.0)
            .u64(end.lsn.0)
            .u64(self.bytes)
            .u64(self.stored)
            .i64(self.last_at.0)
            .u32(id_offset)
            .id_len(self.run.as_str())
            .id_len(self.agent.as_str())
            .u32(hold.offset)
            .u64(hold.lsn.0)
            .u32(self.chunks)
            .u64(self.first_lsn.0);
    }
}
