//! Parents and children.
//!
//! A child names its parent, in its identity and in each record. A parent has a record of a special
//! kind for each child. So the links of a run are among its records, are found without reading
//! other runs, and are deleted with the run.
//!
//! A parent of many children ends with many links, and its own last record decides how it ended and
//! whether a call is repeated. So a link states the place of the last record in front of its
//! neighbouring links ([`Behind`]), and no call reads all links.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::envelope::Envelope;
use super::payload::RunIdentity;
use super::{CHILD, TrajectoryLog};
use crate::objects;
use runlog::{AgentId, Error, NewRecord, Record, Result, RunId, RunRef, RunSummary, Seq};

/// A run that is a child or the parent of another.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Relative {
    /// The agent under which it was recorded; for a missing parent the agent of the child.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// Its summary; `None` if it was deleted or never recorded.
    pub summary: Option<RunSummary>,
}

/// The children of a run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Children {
    /// The runs, in the order in which they were first recorded.
    pub runs: Vec<Relative>,
    /// Damaged records of the run. Any of them may have been the link to another child, which still
    /// exists and names its parent.
    pub damage: Vec<Error>,
}

/// The link from a parent to a child.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) agent: String,
    pub(super) run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    behind: Option<Behind>,
}

/// What is in front of a link, as of before it was written. Other calls may have appended
/// meanwhile, so it counts only if the link got the expected place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Behind {
    /// The number of the run.
    run: u64,
    /// The expected place of the link.
    place: u64,
    /// The last record in front that is not a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<u64>,
}

impl TrajectoryLog {
    /// The run that started this one; `None` if no run did. The first start of the run decides or,
    /// without a start, the first record that names a parent.
    ///
    /// # Errors
    /// [`Error::RunNotFound`] if there is no run of this id; [`Error::Corrupt`].
    pub fn parent(&self, run: &str) -> Result<Option<Relative>> {
        let agent = self.agent().as_str();
        let Some(parent) = self.parent_of((agent, run))? else { return Ok(None) };
        let agent = self.home_of(&parent)?;
        self.relative(agent.as_str(), &parent).map(Some)
    }

    /// The runs that this one started, in the order of their first records, each once. It reads the
    /// records of this run, and the summary of each child.
    ///
    /// # Errors
    /// [`Error::RunNotFound`] if neither the run nor a child of it was recorded, or if the run was
    /// deleted. The result includes damage.
    pub fn children(&self, run: &str) -> Result<Children> {
        let mut links = Vec::new();
        let mut damage = Vec::new();
        for agent in self.agents_of(run)? {
            let mut trace = self.inner.log.trace((agent.as_str(), run))?;
            while let Some(record) = trace.next_view() {
                let link = match record {
                    Ok(record) if record.kind() != Some(CHILD) => continue,
                    Ok(record) => record.json().map(|link: Link| (record.lsn(), link)),
                    Err(error) => Err(error),
                };
                match link {
                    Ok(link) => links.push(link),
                    Err(error) => damage.push(error),
                }
            }
        }
        links.sort_unstable();
        let mut seen = HashSet::new();
        let mut is_new = |link: &Link| seen.insert((link.agent.clone(), link.run_id.clone()));
        let first = links.into_iter().filter(|(_, link)| is_new(link));
        let runs = first.map(|(_, link)| self.relative(&link.agent, &link.run_id));
        Ok(Children { runs: runs.collect::<Result<_>>()?, damage })
    }

    /// Records in the parent that it has this child.
    pub(super) fn link(&self, parent: &str, child: &str) -> Result<()> {
        // A child that could not be stored gets no link.
        RunId::new(child)?;
        let home = self.home_of(parent)?;
        let behind = self.behind((home.as_str(), parent))?;
        let link = Link { agent: self.agent().to_string(), run_id: child.to_owned(), behind };
        let bytes = serde_json::to_vec(&link)
            .map_err(|source| Error::Json { source: std::sync::Arc::new(source) })?;
        self.append((home.as_str(), parent), &NewRecord::json(&bytes).kind(CHILD))?;
        Ok(())
    }

    /// What is in front of the next link of a run; `None` if there is no such run, or it cannot be
    /// read.
    fn behind(&self, run: (&str, &str)) -> Result<Option<Behind>> {
        let run = match self.inner.log.run(run) {
            Ok(run) => run,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let newest = self.inner.log.trace(&run).and_then(|mut trace| trace.next_back().transpose());
        let found = newest.and_then(|newest| Ok(newest.zip(Some(self.last_but_links(&run)?))));
        let (newest, last) = match found {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            Err(error) if is_untold(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (place, last) = (newest.seq().0.saturating_add(1), last.map(|last| last.seq().0));
        Ok(Some(Behind { run: run.number().0, place, last }))
    }

    /// The last record of a run that is not a link to a child. It reads the last record and, if
    /// that is a link, the one that it names.
    pub(super) fn last_but_links(&self, run: &RunSummary) -> Result<Option<Record>> {
        let mut trace = self.inner.log.trace(run)?;
        while let Some(record) = trace.next_back().transpose()? {
            if record.kind() != Some(CHILD) {
                return Ok(Some(record));
            }
            let Ok(Link { behind: Some(behind), .. }) = record.json() else { continue };
            if (behind.run, behind.place) == (run.number().0, record.seq().0) {
                let Some(last) = behind.last.map(Seq) else { break };
                trace = trace.range(last..=last)?;
            }
        }
        Ok(None)
    }

    /// The name of the parent of a run.
    pub(super) fn parent_of<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<String>> {
        let run = run.into();
        if let Some(identity) = self.identity(run)? {
            return Ok(identity.parent_run_id);
        }
        let mut trace = self.inner.log.trace(run)?;
        while let Some(record) = trace.next_view() {
            let Ok(record) = record else { continue };
            if record.kind() != Some(CHILD)
                && let Ok(Envelope { parent: Some(parent), .. }) = Envelope::read(record.payload())
            {
                return Ok(Some(parent));
            }
        }
        Ok(None)
    }

    /// The first start of a run; `None` if it was not started, or not as a trajectory.
    pub(super) fn identity<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunIdentity>> {
        let metadata = self.inner.log.metadata(run)?;
        Ok(metadata.and_then(|metadata| objects::from_slice(metadata.payload()).ok()))
    }

    /// The agent of the run that a child names: this agent, or the only other one that has a
    /// trajectory of that run. A run of another store with the same id does not count.
    pub(super) fn home_of(&self, run: &str) -> Result<AgentId> {
        let agents = match self.agents_of(run) {
            Ok(agents) => agents,
            Err(error) if error.is_not_found() => return Ok(self.agent().clone()),
            Err(error) => return Err(error),
        };
        if agents.contains(self.agent()) {
            return Ok(self.agent().clone());
        }
        let mut homes = Vec::new();
        for agent in agents {
            if self.identity((agent.as_str(), run))?.is_some_and(|found| found.run_id == run) {
                homes.push(agent);
            }
        }
        match homes.as_slice() {
            [only] => Ok(only.clone()),
            _ => Ok(self.agent().clone()),
        }
    }

    /// All agents that have a run of this id.
    pub(super) fn agents_of(&self, run: &str) -> Result<Vec<AgentId>> {
        match self.inner.log.agent_of(run) {
            Ok(agent) => Ok(vec![agent]),
            Err(Error::Ambiguous { agents, .. }) => Ok(agents),
            Err(error) => Err(error),
        }
    }

    fn relative(&self, agent: &str, run: &str) -> Result<Relative> {
        let summary = match self.inner.log.run((agent, run)) {
            Ok(summary) => Some(summary),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        Ok(Relative { agent: AgentId::new(agent)?, run: RunId::new(run)?, summary })
    }
}

/// Whether an error of reading the last record of a run does not prevent the next record: the run
/// was deleted, or readers report the damage.
pub(super) fn is_untold(error: &Error) -> bool {
    error.is_not_found() || error.is_corruption()
}
