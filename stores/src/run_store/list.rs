//! Lists of runs.

use core::fmt;
use core::ops::ControlFlow;
use core::str::FromStr;
use std::io;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::RunStore;
use super::error::Result;
use super::fold::{Found, is_absent};
use super::open::Opened;
use runlog::{Cursor, Error, RunNo, RunQuery, Timestamp};

/// How many runs are asked for at once.
const PAGE: usize = 256;

/// The status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunStatus {
    /// It has not ended.
    InProgress,
    /// It ended with an outcome, which may be a failure.
    Completed,
    /// It ended without an outcome: its writer died.
    Incomplete,
    /// A caller requested its cancellation, and no record states yet that it is cancelled. It is
    /// neither adopted nor evicted.
    CancellationPending,
    /// It was cancelled.
    Cancelled,
}

/// A run in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The run id in its start.
    pub run_id: String,
    /// The agent id in its start.
    pub agent_id: String,
    /// The task of the agent.
    pub intent: String,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<DateTime<Utc>>,
    /// Where it stands.
    pub status: RunStatus,
    /// How many records `turn` it has, including those behind its end.
    pub turn_count: usize,
    /// How many of its lines are damaged or not records. It is not written while it is 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged_lines: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// A place between two pages of runs. It stays valid, whatever runs start or are deleted meanwhile.
/// Its text form can be kept and parsed again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunCursor {
    created_at: Timestamp,
    run: String,
}

impl fmt::Display for RunCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created_at.0, self.run)
    }
}

impl FromStr for RunCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let what = "a cursor is what an earlier page gave";
        let (at, run) = text.split_once('.').ok_or(Error::InvalidArgument { what })?;
        let at = at.parse().map_err(|_| Error::InvalidArgument { what })?;
        Ok(Self { created_at: Timestamp(at), run: run.to_owned() })
    }
}

/// A page of runs, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSummaryPage {
    /// The runs.
    pub runs: Vec<RunSummary>,
    /// Where the next page begins; `None` behind the last.
    pub next: Option<RunCursor>,
}

impl RunStore {
    /// The runs of an agent, newest first; of runs with the same time, the smaller id first. It is
    /// empty for an unknown agent. Runs without a start are left out.
    ///
    /// After an error it is empty; [`try_list_runs`](Self::try_list_runs) returns the error.
    pub fn list_runs(&self, agent_id: &str) -> Vec<RunSummary> {
        self.try_list_runs(agent_id).unwrap_or_default()
    }

    /// As [`RunStore::list_runs`].
    ///
    /// # Errors
    /// Why the runs could not be read. Damage of some lines is not an error; see
    /// [`RunSummary::damaged_lines`].
    pub fn try_list_runs(&self, agent_id: &str) -> io::Result<Vec<RunSummary>> {
        let Some(opened) = self.look()? else { return Ok(Vec::new()) };
        let mut runs = Vec::new();
        let _: ControlFlow<()> = opened.each_run(agent_id, &mut |found| {
            runs.extend(opened.summary(&found)?);
            Ok(ControlFlow::Continue(()))
        })?;
        runs.sort_by(|left, right| {
            let by_time = right.started_at.cmp(&left.started_at);
            by_time.then_with(|| left.run_id.cmp(&right.run_id))
        });
        Ok(runs)
    }

    /// A page of at most `limit` runs of an agent, newest first: those behind `after`, or the
    /// first. The cost does not depend on how many runs there are.
    ///
    /// The order is that of the start times in the records; of runs with the same time the smaller
    /// id is first. (A run whose turns came before its start has the place of its first turn.) If
    /// runs start or are deleted between two pages, no other run is repeated or skipped.
    ///
    /// # Errors
    /// Why the runs could not be read.
    pub fn list_runs_page(
        &self,
        agent_id: &str,
        after: Option<&RunCursor>,
        limit: usize,
    ) -> io::Result<RunSummaryPage> {
        let empty = RunSummaryPage { runs: Vec::new(), next: None };
        match self.look()? {
            Some(opened) if limit > 0 => Ok(opened.page(agent_id, after, limit)?),
            _ => Ok(empty),
        }
    }

    /// Passes all runs of all agents to a closure, agent by agent, newest first, without keeping
    /// them.
    ///
    /// # Errors
    /// Why the runs could not be read.
    pub fn visit_runs(
        &self,
        mut visit: impl FnMut(RunSummary) -> ControlFlow<()>,
    ) -> io::Result<()> {
        let Some(opened) = self.look()? else { return Ok(()) };
        let mut stopped = false;
        opened.each_agent(&mut |agent| {
            opened.each_run(agent, &mut |found| {
                if let Some(summary) = opened.summary(&found)? {
                    stopped = stopped || visit(summary).is_break();
                }
                Ok(if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
            })
        })?;
        Ok(())
    }

    /// The id of the agent of a run; of several agents the first by id.
    ///
    /// It is `None` after an error; [`try_agent_for_run`](Self::try_agent_for_run) returns the
    /// error.
    pub fn agent_for_run(&self, run_id: &str) -> Option<String> {
        self.try_agent_for_run(run_id).unwrap_or_default()
    }

    /// As [`RunStore::agent_for_run`].
    ///
    /// # Errors
    /// Why the run could not be looked up.
    pub fn try_agent_for_run(&self, run_id: &str) -> io::Result<Option<String>> {
        let Some(opened) = self.look()? else { return Ok(None) };
        Ok(opened.find_by_run(run_id)?.map(|found| found.run.agent.as_str().to_owned()))
    }
}

impl Opened {
    /// The run with this id, of the first agent that has one.
    pub(super) fn find_by_run(&self, run: &str) -> Result<Option<Found>> {
        let agents = match self.log().agent_of(run) {
            Ok(agent) => vec![agent],
            Err(Error::Ambiguous { agents, .. }) => agents,
            Err(error) if is_absent(&error) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        for agent in agents {
            if let Some(found) = self.find_visible(agent.as_str(), run)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The summary of a run; `None` if it has no start.
    pub(super) fn summary(&self, found: &Found) -> Result<Option<RunSummary>> {
        if found.is_rolled_back() {
            return Ok(None);
        }
        let Some(start) = found.fold.started else { return Ok(None) };
        let (agent, run) = found.key();
        let mut damaged = found.fold.damaged;
        let (run_id, agent_id, intent) = match self.started(found)? {
            Some(started) => (started.run_id, started.agent_id, started.intent),
            // It was readable before.
            None => {
                damaged = damaged.max(1);
                (run.to_owned(), agent.to_owned(), String::new())
            }
        };
        Ok(Some(RunSummary {
            run_id,
            agent_id,
            intent,
            started_at: start.at,
            ended_at: found.ended_at(),
            status: found.status(),
            turn_count: usize::try_from(found.fold.turns).unwrap_or(usize::MAX),
            damaged_lines: usize::try_from(damaged).unwrap_or(usize::MAX),
        }))
    }

    /// All agents that have runs.
    pub(super) fn each_agent(
        &self,
        visit: &mut dyn FnMut(&str) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let agents = self.log().agents(after.as_ref(), PAGE)?;
            let Some(last) = agents.last().cloned() else { return Ok(()) };
            for agent in agents {
                if visit(agent.as_str())?.is_break() {
                    return Ok(());
                }
            }
            after = Some(last);
        }
    }

    /// All runs of an agent in the engine.
    pub(super) fn each_run(
        &self,
        agent: &str,
        visit: &mut dyn FnMut(Found) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        for run in self.log().runs(&RunQuery::new().agent(agent)) {
            let run = match run {
                Err(error) if is_absent(&error) => break,
                run => run?,
            };
            let Some(found) = self.still_found(run)? else { continue };
            if visit(found)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A run of a page, unless it was deleted meanwhile.
    pub(super) fn still_found(&self, run: runlog::RunSummary) -> Result<Option<Found>> {
        match self.found(run) {
            Err(super::RunStoreError::Engine(error)) if error.is_not_found() => Ok(None),
            found => found.map(Some),
        }
    }

    /// The engine orders runs with the same time by their numbers, so these are read together and
    /// sorted by id.
    fn page(&self, agent: &str, after: Option<&RunCursor>, limit: usize) -> Result<RunSummaryPage> {
        let mut page = PageInMaking { after, limit, runs: Vec::new(), last: None, more: false };
        let mut cursor = match after {
            Some(after) => Some(instant_of(after)?),
            None => None,
        };
        let mut instant: Vec<runlog::RunSummary> = Vec::new();
        while !page.more {
            let wanted = limit.saturating_add(1).min(PAGE);
            let query = RunQuery::new().agent(agent).limit(wanted).after(cursor);
            let runs = match self.log().list_runs(&query) {
                Err(error) if is_absent(&error) => break,
                runs => runs?,
            };
            for run in runs.runs {
                if instant.last().is_some_and(|last| last.created_at() != run.created_at()) {
                    page.add(self, core::mem::take(&mut instant))?;
                }
                instant.push(run);
            }
            cursor = runs.next;
            if cursor.is_none() {
                page.add(self, core::mem::take(&mut instant))?;
                break;
            }
        }
        let next = page.last.filter(|_| page.more);
        Ok(RunSummaryPage { runs: page.runs, next })
    }
}

/// A cursor in front of all runs that were created at the time of this one.
fn instant_of(cursor: &RunCursor) -> Result<Cursor, Error> {
    format!("{}.{}", cursor.created_at.0, RunNo(u64::MAX)).parse()
}

struct PageInMaking<'a> {
    after: Option<&'a RunCursor>,
    limit: usize,
    runs: Vec<RunSummary>,
    last: Option<RunCursor>,
    /// Whether there is a run behind the page.
    more: bool,
}

impl PageInMaking<'_> {
    /// Adds the runs with one time.
    fn add(&mut self, opened: &Opened, mut instant: Vec<runlog::RunSummary>) -> Result<()> {
        instant.sort_by(|left, right| left.run.cmp(&right.run));
        for run in instant {
            if self.more {
                return Ok(());
            }
            let here = RunCursor { created_at: run.created_at(), run: run.run.as_str().to_owned() };
            let is_behind = self
                .after
                .is_none_or(|after| after.created_at != here.created_at || after.run < here.run);
            if !is_behind {
                continue;
            }
            let Some(found) = opened.still_found(run)? else { continue };
            let Some(summary) = opened.summary(&found)? else { continue };
            if self.runs.len() == self.limit {
                self.more = true;
            } else {
                self.runs.push(summary);
                self.last = Some(here);
            }
        }
        Ok(())
    }
}
