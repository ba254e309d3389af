//! What lists and other calls about several runs answer.

use core::fmt;
use core::str::FromStr;

use crate::engine::values::summary::RunSummary;
use crate::error::{Error, Result};
use crate::types::{AgentId, RunId, RunNo, Timestamp};

/// A place between two pages of a list. Its text form can be kept and parsed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    at: Timestamp,
    run_no: RunNo,
}

impl Cursor {
    pub(crate) fn key(&self) -> (Timestamp, RunNo) {
        (self.at, self.run_no)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at, self.run_no)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let what = "a cursor is what an earlier page gave";
        let (at, run_no) = text.split_once('.').ok_or(Error::InvalidArgument { what })?;
        let at = at.parse().map_err(|_| Error::InvalidArgument { what })?;
        let run_no = run_no.parse().map_err(|_| Error::InvalidArgument { what })?;
        Ok(Self { at: Timestamp(at), run_no: RunNo(run_no) })
    }
}

/// A page of a list of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Where the next page starts; `None` behind the last page.
    pub next: Option<Cursor>,
}

impl RunPage {
    /// The first `limit` of these runs; a further one tells that there is a next page.
    pub(crate) fn new(mut runs: Vec<RunSummary>, limit: usize) -> Self {
        let more = runs.len() > limit;
        runs.truncate(limit);
        let last = runs.last().filter(|_| more).map(|summary| summary.key);
        let next = last.map(|(at, run_no)| Cursor { at, run_no });
        Self { runs, next }
    }
}

/// The runs that were adopted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adopted {
    /// Their ids, in the order in which they had been started.
    pub runs: Vec<(AgentId, RunId)>,
}

/// What an erasure did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Erased {
    /// The bytes of all payloads of the run, or of the document as it was; none of what was deleted
    /// before. Of a document that other calls write without a pause, those of a version that was
    /// there shortly before the erasure.
    pub bytes: u64,
    /// Extents that may have bytes of it and still have readers.
    pub pinned_extents: u64,
}

/// What a deletion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deleted {
    /// The bytes of all payloads of the run.
    pub bytes: u64,
}

/// A run that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldRun {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// Since when.
    pub since: Timestamp,
    /// Why, as the caller said.
    pub reason: String,
}
