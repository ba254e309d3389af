//! What a plan deletes: [`PlannedEvictions`].

use core::fmt;

use crate::engine::read::listed::Listed;
use crate::gc::{Candidate, Rule};
use crate::index::RowSummary;
use crate::types::{AgentId, RunId, RunNo, RunRef, RunStatus, Timestamp};

/// A run that a plan deletes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PlannedEviction {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// How it ended.
    pub status: RunStatus,
    /// When it ended.
    pub ended_at: Timestamp,
    /// Why it is deleted; if several rules apply, the first in the order number, age, bytes.
    pub rule: Rule,
    /// The bytes of its frames, headers included.
    pub bytes: u64,
    #[cfg_attr(feature = "serde", serde(rename = "number"))]
    pub(crate) run_no: RunNo,
}

impl PlannedEviction {
    /// The number of the run; see [`RunSummary::number`](crate::RunSummary::number).
    pub fn number(&self) -> RunNo {
        self.run_no
    }
}

impl<'a> From<&'a PlannedEviction> for RunRef<'a> {
    /// The run that the plan was made for, and not a later run with the same ids.
    fn from(planned: &'a PlannedEviction) -> Self {
        Self::from((&planned.agent, &planned.run)).numbered(planned.run_no)
    }
}

/// The runs that a plan deletes, in the order of their ends.
///
/// They are kept in a few large allocations, so that a plan for a million runs stays small: a run
/// takes about 70 bytes and its id, and so does each run that the plan keeps. [`iter`](Self::iter)
/// makes a [`PlannedEviction`] of each when it is asked for.
#[derive(Clone, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Vec<PlannedEviction>"))]
pub struct PlannedEvictions {
    pub(crate) listed: Listed,
    /// The places of these runs in the list, and why they are deleted.
    pub(crate) due: Vec<(usize, Rule)>,
}

impl PlannedEvictions {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// The runs, in the order of their ends.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = PlannedEviction> + '_ {
        self.due.iter().filter_map(|&(place, rule)| {
            let (agent, run, &Candidate { run_no, status, ended_at, bytes, .. }) =
                self.listed.get(place)?;
            Some(PlannedEviction {
                agent: agent.clone(),
                run,
                status,
                ended_at,
                rule,
                bytes,
                run_no,
            })
        })
    }

    /// Adds the run of a row.
    pub(crate) fn push(&mut self, row: &RowSummary<'_>, rule: Rule) {
        let place = self.listed.inventory.len();
        self.listed.add_row(row);
        let is_run = self.listed.inventory.len() > place;
        self.due.extend(is_run.then_some((place, rule)));
    }

    /// Removes the runs for which `is_kept` is false, and returns their bytes.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(RunNo) -> bool) -> u64 {
        let mut removed = 0;
        self.due.retain(|&(place, _)| {
            let Some((_, run)) = self.listed.inventory.get(place) else { return false };
            let stays = is_kept(run.run_no);
            removed += if stays { 0 } else { run.bytes };
            stays
        });
        removed
    }
}

impl PartialEq for PlannedEvictions {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PlannedEvictions {}

impl fmt::Debug for PlannedEvictions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(feature = "serde")]
impl From<Vec<PlannedEviction>> for PlannedEvictions {
    fn from(runs: Vec<PlannedEviction>) -> Self {
        let mut all = Self::default();
        for PlannedEviction { agent, run, status, ended_at, rule, bytes, run_no } in runs {
            let run_of = Candidate { ended_at, bytes, ..Candidate::new(run_no, status) };
            all.due.push((all.listed.inventory.len(), rule));
            all.listed.add(&agent, run.as_str(), run_of);
        }
        all
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for PlannedEvictions {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}
