//! The answers of lists and of other calls about several runs.

use core::fmt;
use core::str::FromStr;

use crate::engine::values::summary::RunSummary;
use crate::error::{Error, Result};
use crate::types::as_text::serde_as_text;
use crate::types::{AgentId, RunId, RunNo, RunRef, Timestamp};

/// A place in the order of lists, directly after a run. Its text form can be stored and parsed
/// again.
///
/// It stays valid when that run is deleted, and in any query: it leads to the runs after this
/// place. In the opposite order these are the runs on the other side.
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

impl From<&RunSummary> for Cursor {
    /// The place directly after this run.
    fn from(run: &RunSummary) -> Self {
        let (at, run_no) = run.key();
        Self { at, run_no }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.at.0, self.run_no)
    }
}

serde_as_text!(Cursor);

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let what = "a cursor must come from an earlier page";
        let (at, run_no) = text.split_once('.').ok_or(Error::InvalidArgument { what })?;
        let at = at.parse().map_err(|_| Error::InvalidArgument { what })?;
        let run_no = run_no.parse().map_err(|_| Error::InvalidArgument { what })?;
        Ok(Self { at: Timestamp(at), run_no: RunNo(run_no) })
    }
}

/// A page of a list of runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RunPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Where the next page starts; `None` if this is the last page.
    pub next: Option<Cursor>,
}

impl RunPage {
    /// These runs, and whether there is a next page.
    pub(crate) fn new(runs: Vec<RunSummary>, more: bool) -> Self {
        let next = runs.last().filter(|_| more).map(Cursor::from);
        Self { runs, next }
    }
}

/// The runs that were adopted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Adopted {
    /// Their ids, in the order of their starts.
    pub runs: Vec<(AgentId, RunId)>,
}

/// What an erasure did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "extents that still have readers may have bytes of what was erased"]
pub struct Erased {
    /// The bytes of all payloads of the run, or of the current version of the document; not those
    /// of older versions. If other calls write the document at the same time, those of a version
    /// that was current shortly before the erasure.
    pub bytes: u64,
    /// Extents that may contain such bytes and still have readers.
    pub pinned_extents: u64,
}

/// What a deletion did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Deleted {
    /// The bytes of all payloads of the run.
    pub bytes: u64,
}

/// A run that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct HeldRun {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// When the hold was set.
    pub since: Timestamp,
    /// The reason that the caller gave.
    pub reason: String,
    #[cfg_attr(feature = "serde", serde(rename = "number"))]
    pub(crate) run_no: RunNo,
}

impl HeldRun {
    /// The number of the run; see [`RunSummary::number`].
    pub fn number(&self) -> RunNo {
        self.run_no
    }
}

impl<'a> From<&'a HeldRun> for RunRef<'a> {
    /// The run that is held, and not a later run with the same ids.
    fn from(held: &'a HeldRun) -> Self {
        Self::from((&held.agent, &held.run)).numbered(held.run_no)
    }
}
