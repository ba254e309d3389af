//! What lists report of a run.

use crate::format::RunEntry;
use crate::index::RunRow;
use crate::types::{AgentId, RunId, RunNo, RunRef, RunStatus, Timestamp};

/// What the store knows about a run without reading its records.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RunSummary {
    /// The agent's id.
    pub agent: AgentId,
    /// The run's id.
    pub run: RunId,
    /// Whether the run is in progress, or how it ended.
    pub status: RunStatus,
    /// Whether the run was started explicitly. Without a start, records were appended by ids.
    pub started: bool,
    /// When the run was started or, without a start, when it got its first record.
    pub started_at: Timestamp,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The latest time of everything that was appended to it.
    pub last_at: Timestamp,
    /// The number of its records.
    pub records: u64,
    /// The number of records that were appended after its end.
    pub late_records: u64,
    /// The bytes of all payloads, as they were appended.
    pub bytes: u64,
    /// The bytes of all its frames in the file: payloads, compressed or not, and headers.
    pub stored_bytes: u64,
    /// Whether it is held, so that it cannot be deleted.
    pub held: bool,
    created_at: Timestamp,
    number: RunNo,
}

impl<'a> From<&'a RunSummary> for RunRef<'a> {
    fn from(run: &'a RunSummary) -> Self {
        Self::from((&run.agent, &run.run)).numbered(run.number())
    }
}

impl RunSummary {
    /// The number of the run in this store. The store never gives it to another run, even after
    /// this run is deleted and its ids are reused. Programs that remember something about a run
    /// should use it as the key.
    pub fn number(&self) -> RunNo {
        self.number
    }

    /// When the run was created, which is its place in lists: at its start, or at its first record
    /// if that came before. If damage took that frame, times of what is left replace it, so the
    /// place may change as the run continues.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// Its place in lists.
    pub(crate) fn key(&self) -> (Timestamp, RunNo) {
        (self.created_at, self.number)
    }

    /// The summary of a run that only one segment has frames of; equals the one made from its row.
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
            stored_bytes: entry.stored,
            held: entry.hold.is_some_and(|hold| hold.held),
            created_at,
            number: entry.run_no,
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
            stored_bytes: row.stored,
            held,
            created_at: row.created_at,
            number: row.run_no,
        }
    }
}
