//! The small values of the public API: what goes into a start and an end, and what comes back.

pub(crate) mod pages;
pub(crate) mod report;

use core::fmt;
use core::ops::Deref;
use std::borrow::Cow;

use crate::engine::state::payload::Payload;
use crate::engine::write::group_commit::Ticket;
use crate::error::{Error, Result};
use crate::format::frame::FLAG_LATE;
use crate::format::{FrameHeader, RunEntry};
use crate::index::RunRow;
use crate::types::{
    AgentId, ContentType, Durability, Lsn, RunId, RunNo, RunRef, RunStatus, Seq, Timestamp,
};

/// Methods of a value that is put together, each with its argument, and the field that takes it.
macro_rules! setters {
    ($(
        $(#[doc = $doc:expr])*
        $name:ident($($value:ident: $type:ty),+) => $field:ident = $to:expr;
    )*) => {$(
        $(#[doc = $doc])*
        #[must_use]
        pub fn $name(mut self, $($value: $type),+) -> Self {
            self.$field = $to;
            self
        }
    )*};
}
pub(crate) use setters;

/// What a start says of its run: bytes with a content type, at most 64 KiB (less with extents
/// below 1 MiB).
///
/// `()` stands for none, and a byte slice for bytes of which nothing is said. The default
/// durability is [`Durability::Disk`].
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) content: ContentType,
    pub(crate) durability: Durability,
    pub(crate) at: Option<Timestamp>,
}

impl<'a> Metadata<'a> {
    /// Bytes of which nothing is said.
    pub fn new(payload: &'a [u8]) -> Self {
        Self { payload, content: ContentType::BYTES, durability: Durability::Disk, at: None }
    }

    /// One JSON value that the caller has already serialised.
    pub fn json(payload: &'a [u8]) -> Self {
        Self { content: ContentType::JSON, ..Self::new(payload) }
    }

    setters! {
        /// What the bytes are.
        content_type(content: ContentType) => content = content;
        /// What the start must survive before the call returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the start, instead of the time of the call.
        at(at: Timestamp) => at = Some(at);
    }
}

impl Default for Metadata<'_> {
    fn default() -> Self {
        Self::new(&[])
    }
}

impl From<()> for Metadata<'_> {
    fn from((): ()) -> Self {
        Self::default()
    }
}

impl<'a> From<&'a [u8]> for Metadata<'a> {
    fn from(payload: &'a [u8]) -> Self {
        Self::new(payload)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Metadata<'a> {
    fn from(payload: &'a [u8; N]) -> Self {
        Self::new(payload)
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata").field("len", &self.payload.len()).finish_non_exhaustive()
    }
}

/// How a run ended: a status, and bytes with a content type, at most 4 KiB.
///
/// ```
/// use runlog::{ContentType, Outcome, RunStatus};
/// let outcome = Outcome::failed().with_payload(br#"{"error":"timeout"}"#, ContentType::JSON);
/// assert_eq!(outcome.status(), RunStatus::Failed);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Outcome {
    status: RunStatus,
    content: ContentType,
    payload: Vec<u8>,
    durability: Durability,
    at: Option<Timestamp>,
}

impl Outcome {
    /// An outcome without a payload, at [`Durability::Disk`].
    pub fn new(status: RunStatus) -> Self {
        let (content, payload) = (ContentType::BYTES, Vec::new());
        Self { status, content, payload, durability: Durability::Disk, at: None }
    }

    /// The run succeeded.
    pub fn completed() -> Self {
        Self::new(RunStatus::Completed)
    }

    /// The run failed.
    pub fn failed() -> Self {
        Self::new(RunStatus::Failed)
    }

    /// Somebody asked for the run to end.
    pub fn cancelled() -> Self {
        Self::new(RunStatus::Cancelled)
    }

    /// The run was given up.
    pub fn interrupted() -> Self {
        Self::new(RunStatus::Interrupted)
    }

    /// Adds bytes.
    #[must_use]
    pub fn with_payload(mut self, payload: &[u8], content: ContentType) -> Self {
        (self.payload, self.content) = (payload.to_vec(), content);
        self
    }

    setters! {
        /// What the end must survive before the call returns.
        durability(durability: Durability) => durability = durability;
        /// The time of the end, instead of the time of the call.
        at(at: Timestamp) => at = Some(at);
    }

    /// How the run ended.
    pub fn status(&self) -> RunStatus {
        self.status
    }

    /// The bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// What the bytes are.
    pub fn content_type(&self) -> ContentType {
        self.content
    }

    pub(crate) fn level(&self) -> Durability {
        self.durability
    }

    pub(crate) fn time(&self) -> Option<Timestamp> {
        self.at
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outcome")
            .field("status", &self.status)
            .field("len", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What an append by ids may do beyond what a writer may. Imports of other systems need both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allow {
    /// The run need not have been started; it then counts as not started.
    pub unstarted: bool,
    /// The run may have ended; the record is then marked as late.
    pub after_end: bool,
}

impl Allow {
    /// Neither.
    pub fn nothing() -> Self {
        Self::default()
    }

    /// Both.
    pub fn everything() -> Self {
        Self { unstarted: true, after_end: true }
    }
}

/// An acknowledged append. The level that was asked for is reached; the ticket tells when the
/// append survives power loss too.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The sequence of the (last) record.
    pub seq: Seq,
    /// Its place in the whole log.
    pub lsn: Lsn,
    /// Its durability.
    pub ticket: Ticket,
}

/// What the store knows of a run without reading its records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunSummary {
    /// The agent's id.
    pub agent: AgentId,
    /// The run's id.
    pub run: RunId,
    /// Where the run stands.
    pub status: RunStatus,
    /// The run has an explicit start; without one, records were appended by ids.
    pub started: bool,
    /// When the run was started or, without a start, got its first record.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The latest time of anything that was appended to it.
    pub last_at: Timestamp,
    /// How many records it has.
    pub records: u64,
    /// How many of them came after its end.
    pub late_records: u64,
    /// The bytes of all payloads.
    pub bytes: u64,
    /// Somebody holds it, so that it is not evicted.
    pub held: bool,
    pub(crate) key: (Timestamp, RunNo),
}

impl<'a> From<&'a RunSummary> for RunRef<'a> {
    fn from(run: &'a RunSummary) -> Self {
        Self::from((&run.agent, &run.run)).numbered(run.number())
    }
}

impl RunSummary {
    /// The number that the store gave this run: of no other, also once it is deleted and its ids
    /// are used again. What a program remembers of a run is best remembered under it.
    pub fn number(&self) -> RunNo {
        self.key.1
    }

    /// When the run came into being, which is its place in lists: its start, unless records came
    /// before that.
    pub fn created_at(&self) -> Timestamp {
        self.key.0
    }

    /// The same as by way of the row of a run that no other segment has anything of.
    #[allow(clippy::inline_always, reason = "moving a summary costs as much as making it")]
    #[inline(always)]
    pub(crate) fn from_entry(entry: &RunEntry) -> Self {
        let created_at = entry.created_at.unwrap_or(entry.last_at);
        Self {
            agent: entry.agent.clone(),
            run: entry.run.clone(),
            status: entry.end.map_or(RunStatus::InProgress, |end| end.status),
            started: entry.start.is_some(),
            started_at: entry.start.map_or(created_at, |start| start.at),
            ended_at: entry.end.map(|end| end.at),
            last_at: entry.last_at,
            records: entry.records.into(),
            late_records: entry.late.into(),
            bytes: entry.bytes,
            held: entry.hold.is_some_and(|hold| hold.held),
            key: (created_at, entry.run_no),
        }
    }

    pub(crate) fn from_row(row: RunRow) -> Self {
        let held = row.is_held();
        Self {
            agent: row.agent,
            run: row.run,
            status: row.status,
            started: row.started_at.is_some(),
            started_at: row.started_at.unwrap_or(row.created_at),
            ended_at: row.ended_at,
            last_at: row.last_at,
            records: row.records,
            late_records: row.late,
            bytes: row.bytes,
            held,
            key: (row.created_at, row.run_no),
        }
    }
}

/// A record as it was stored: with its bytes as a [`Payload`], or as a [`RecordView`].
#[derive(Clone)]
pub struct Record<B = Payload> {
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
    pub(crate) at: Timestamp,
    pub(crate) content: ContentType,
    pub(crate) late: bool,
    /// The kind and the payload.
    pub(crate) stored: B,
    pub(crate) name_len: u8,
}

/// A record to look at: its bytes are borrowed from the trace wherever that is possible.
pub type RecordView<'t> = Record<Cow<'t, [u8]>>;

impl<B> Record<B> {
    /// The record with this header and these bytes, which were checked.
    #[allow(clippy::inline_always, reason = "moving records costs more than reading them")]
    #[inline(always)]
    pub(crate) fn new(header: &FrameHeader, stored: B) -> Self {
        Self {
            seq: header.seq,
            lsn: header.lsn,
            at: header.at,
            content: header.content,
            late: header.flags & FLAG_LATE != 0,
            stored,
            name_len: header.name_len,
        }
    }
}

impl<B: Deref<Target = [u8]>> Record<B> {
    /// The place of the record in its run, from 0.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The place of the record in the whole log.
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// When it was appended.
    pub fn timestamp(&self) -> Timestamp {
        self.at
    }

    /// The kind that the caller gave it, if any.
    pub fn kind(&self) -> Option<&str> {
        let name = self.stored.get(..usize::from(self.name_len))?;
        core::str::from_utf8(name).ok().filter(|kind| !kind.is_empty())
    }

    /// What the payload is.
    pub fn content_type(&self) -> ContentType {
        self.content
    }

    /// Whether it came after the end of its run.
    pub fn is_late(&self) -> bool {
        self.late
    }

    /// The bytes exactly as they were appended.
    pub fn payload(&self) -> &[u8] {
        self.stored.get(usize::from(self.name_len)..).unwrap_or_default()
    }

    /// Reads the payload as JSON.
    ///
    /// # Errors
    /// [`Error::Json`] when it is not JSON of that shape; the bytes stay readable.
    pub fn json<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_slice(self.payload())
            .map_err(|source| Error::Json { source: std::sync::Arc::new(source) })
    }
}

impl Record {
    /// The bytes, to keep without copying.
    pub fn into_payload(self) -> Payload {
        self.stored.without_first(self.name_len)
    }
}

impl<B: Deref<Target = [u8]>> fmt::Debug for Record<B> {
    /// Shows the payload's length only: payloads do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("seq", &self.seq)
            .field("kind", &self.kind())
            .field("content_type", &self.content)
            .field("len", &self.payload().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::directory::{EndAt, HoldAt, StartAt};
    use crate::types::{AgentId, RunId, RunNo, SegmentId};

    fn entry() -> impl Strategy<Value = RunEntry> {
        let times =
            (any::<Option<i64>>(), any::<Option<i64>>(), any::<Option<i64>>(), any::<i64>());
        let counts = (any::<u32>(), any::<u32>(), any::<u64>());
        (times, counts, any::<Option<bool>>(), 1_u8..5).prop_map(|(times, counts, hold, status)| {
            let (agent, run) = (AgentId::new("planner").unwrap(), RunId::new("run-7").unwrap());
            let mut entry = RunEntry::new(RunNo(7), agent, run);
            entry.created_at = times.0.map(Timestamp);
            entry.start = times.1.map(|at| StartAt { offset: 64, at: Timestamp(at) });
            let status = RunStatus::from_code(status).unwrap();
            let end = |at| EndAt { offset: 128, at: Timestamp(at), status, lsn: Lsn(3) };
            entry.end = times.2.map(end);
            entry.last_at = Timestamp(times.3);
            entry.hold = hold.map(|held| HoldAt { offset: 192, lsn: Lsn(4), held });
            (entry.records, entry.late, entry.bytes) = counts;
            entry
        })
    }

    proptest! {
        #[test]
        fn a_summary_is_the_same_with_and_without_a_row(entry in entry()) {
            let row = RunRow::first(SegmentId(1), &entry);
            prop_assert_eq!(RunSummary::from_entry(&entry), RunSummary::from_row(row));
        }
    }
}
