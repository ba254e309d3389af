//! How a caller names a run: [`RunRef`].

use crate::types::id::{AgentId, RunId};
use crate::types::number::RunNo;

/// How a caller names a run: by its id alone, by agent and id, or by a value that the store
/// returned.
///
/// If several agents have a run with this id and the caller names no agent, the call returns
/// [`Error::Ambiguous`](crate::Error::Ambiguous). A [summary](crate::RunSummary), a
/// [writer](crate::RunWriter), the [trace](crate::Trace) that a record came from, a [held
/// run](crate::HeldRun) and a [planned eviction](crate::PlannedEviction) name only their own run:
/// not another run that was started with the same ids after that run was deleted. A
/// [`Receipt`](crate::Receipt) names no run, since its run is deleted.
///
/// An agent has two runs with one id only if damage took the deletion of the first. The ids then
/// name the newest of them, in each call. Lists have all of them, and the older ones are reached by
/// what names only its own run. Once the newest is deleted, the ids name the one before it.
///
/// ```
/// use runlog::RunRef;
/// let by_id = RunRef::from("run-7");
/// let by_both = RunRef::from(("planner", "run-7"));
/// assert_eq!(by_id.run(), by_both.run());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RunRef<'a> {
    agent: Option<&'a str>,
    run: &'a str,
    /// If set, only the run with this number matches.
    number: Option<RunNo>,
}

impl<'a> RunRef<'a> {
    /// Names only the run with this number: not another run that is started with the same ids after
    /// this one was deleted.
    #[must_use]
    pub fn numbered(self, number: RunNo) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The number, if the caller gave it.
    pub fn number(&self) -> Option<RunNo> {
        self.number
    }

    /// The agent, if the caller named it.
    pub fn agent(&self) -> Option<&'a str> {
        self.agent
    }

    /// The run id.
    pub fn run(&self) -> &'a str {
        self.run
    }
}

impl<'a> From<&'a str> for RunRef<'a> {
    fn from(run: &'a str) -> Self {
        Self { agent: None, run, number: None }
    }
}

impl<'a> From<&'a String> for RunRef<'a> {
    fn from(run: &'a String) -> Self {
        Self { agent: None, run, number: None }
    }
}

impl<'a> From<&'a RunId> for RunRef<'a> {
    fn from(run: &'a RunId) -> Self {
        Self { agent: None, run: run.as_str(), number: None }
    }
}

impl<'a> From<(&'a str, &'a str)> for RunRef<'a> {
    fn from((agent, run): (&'a str, &'a str)) -> Self {
        Self { agent: Some(agent), run, number: None }
    }
}

impl<'a> From<&'a (AgentId, RunId)> for RunRef<'a> {
    fn from((agent, run): &'a (AgentId, RunId)) -> Self {
        Self::from((agent, run))
    }
}

impl<'a> From<(&'a AgentId, &'a RunId)> for RunRef<'a> {
    fn from((agent, run): (&'a AgentId, &'a RunId)) -> Self {
        Self { agent: Some(agent.as_str()), run: run.as_str(), number: None }
    }
}
