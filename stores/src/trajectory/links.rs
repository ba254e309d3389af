//! Parents and children.
//!
//! A child names its parent, in its identity and in each record. A parent knows its children by
//! records of a kind of its own among its records: so the links of a run lie where the run lies,
//! are found without looking at any other run, and go when it goes.
//!
//! A parent of many children ends with many links, and what its own last record is decides how it
//! ended and what is a repetition. So a link says where the last record in front of all the links
//! next to it is ([`Behind`]), and no call walks them.

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
    /// The agent that it was recorded under or, of a parent that is not there, the child's agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// Where it stands; `None` if it is not there: it was deleted, or was never recorded.
    pub summary: Option<RunSummary>,
}

/// The children of a run.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Children {
    /// The runs, in the order in which they were first recorded.
    pub runs: Vec<Relative>,
    /// Records of the run that are damaged. Any of them may have been the link to another child,
    /// which is there all the same, and names its parent.
    pub damage: Vec<Error>,
}

/// What a parent has of a child.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) agent: String,
    pub(super) run_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    behind: Option<Behind>,
}

/// What is in front of a link, as it was when the link was about to be written. Other calls may
/// have appended meanwhile: it counts only if the link is the record that it was to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Behind {
    /// The number of the run.
    run: u64,
    /// The place that the link was to have.
    place: u64,
    /// The last record in front that is no link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last: Option<u64>,
}

impl TrajectoryLog {
    /// The run that started this one, `None` if no run did. It is what the run was first started
    /// with that counts or, without a start, the first record that names a parent.
    ///
    /// # Errors
    /// [`Error::RunNotFound`] if there is no run of this id; [`Error::Corrupt`].
    pub fn parent(&self, run: &str) -> Result<Option<Relative>> {
        let agent = self.agent().as_str();
        let Some(parent) = self.parent_of((agent, run))? else { return Ok(None) };
        let agent = self.home_of(&parent)?;
        self.relative(agent.as_str(), &parent).map(Some)
    }

    /// The runs that this one started, in the order in which that was recorded, each once. Reads
    /// the records of this run, and of no other; of each child its summary.
    ///
    /// # Errors
    /// [`Error::RunNotFound`] if neither the run nor a child of it was recorded, or if the run was
    /// deleted. Damage is in the answer.
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

    /// Notes in the parent that it has this child.
    pub(super) fn link(&self, parent: &str, child: &str) -> Result<()> {
        // A child that could not be stored is not announced.
        RunId::new(child)?;
        let home = self.home_of(parent)?;
        let behind = self.behind((home.as_str(), parent))?;
        let link = Link { agent: self.agent().to_string(), run_id: child.to_owned(), behind };
        let bytes = serde_json::to_vec(&link)
            .map_err(|source| Error::Json { source: std::sync::Arc::new(source) })?;
        self.append((home.as_str(), parent), &NewRecord::json(&bytes).kind(CHILD))?;
        Ok(())
    }

    /// What the next link of a run is behind; nothing for one that is not there, or cannot tell.
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

    /// The last record of a run that is no link to a child. Reads the last record and, if that is a
    /// link, the one that it names.
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

    /// What a run was first started with; `None` for one that was not, or not as a trajectory.
    pub(super) fn identity<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Option<RunIdentity>> {
        let metadata = self.inner.log.metadata(run)?;
        Ok(metadata.and_then(|(_, bytes)| objects::from_slice(&bytes).ok()))
    }

    /// The agent whose run of this id is meant when a child names it: this one, or the only other
    /// one that has a trajectory of it. A run of another store that has the same id is not.
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

/// Whether an error of reading the last record of a run is no reason to refuse what comes next: the
/// run is gone, or those who read it are told of the damage.
pub(super) fn is_untold(error: &Error) -> bool {
    error.is_not_found() || error.is_corruption()
}
