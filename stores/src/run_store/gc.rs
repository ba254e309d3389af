//! Deleting runs, and ending runs whose writers died.

use core::ops::ControlFlow;
use std::io;

use chrono::DateTime;

use super::RunStore;
use super::config::RetentionConfig;
use super::error::{Result, RunStoreError};
use super::fold::Found;
use super::line::{NewLine, timestamp};
use super::list::RunStatus;
use super::open::Opened;
use super::records::{RunEnded, RunRecord, RunTermination};
use runlog::retention::{Candidate, Inventory, plan};
use runlog::{AgentId, Error, Rule, RunId, RunQuery, RunRef};

/// What happened to runs whose writers died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Adoption {
    /// Runs that got an end, as [`RunTermination::Incomplete`].
    pub adopted: usize,
    /// Runs that had an end which the engine did not know.
    pub completed: usize,
    /// Runs that had not begun, and were removed.
    pub taken_out: usize,
    /// Runs with a pending cancellation. They stay unchanged: their work may go on.
    pub pending: usize,
}

impl RunStore {
    /// Ends all runs in progress, as [`RunTermination::Incomplete`], and returns how many. A daemon
    /// calls it when it starts, before it starts runs and before [`RunStore::gc`]. **It treats all
    /// runs in progress as orphans**, also those of other stores of this process.
    ///
    /// Runs without a start, and those with a pending cancellation, stay unchanged. The cost
    /// depends only on the number of runs in progress.
    ///
    /// # Durability
    /// Survives power loss.
    ///
    /// If a run cannot be adopted, this returns the count up to there;
    /// [`try_adopt_orphans`](Self::try_adopt_orphans) returns the error.
    pub fn adopt_orphans(&self) -> usize {
        let mut adoption = Adoption::default();
        if let Ok(Some(opened)) = self.look() {
            // A run that cannot be adopted now can be at the next start.
            let _ = opened.adopt(&mut adoption);
        }
        adoption.adopted
    }

    /// As [`RunStore::adopt_orphans`], with more details.
    ///
    /// # Errors
    /// Why a run could not be adopted; the runs before it were.
    pub fn try_adopt_orphans(&self) -> io::Result<Adoption> {
        let mut adoption = Adoption::default();
        if let Some(opened) = self.look()? {
            opened.adopt(&mut adoption)?;
        }
        Ok(adoption)
    }

    /// Deletes the runs that [`RetentionConfig`] does not keep, and returns how many.
    ///
    /// The newest finished runs of each agent stay, by the times of their starts, if they are not
    /// too old. A run in progress or with a pending cancellation is never deleted, and does not
    /// count among the newest. A run without a start is never deleted either. A held run stays and
    /// counts among the newest; so does a run with a line that cannot be read, until it is deleted
    /// by name. Foreign runs in the same log are ignored.
    ///
    /// # Durability
    /// Survives power loss.
    ///
    /// It returns no error; [`try_gc`](Self::try_gc) does.
    pub fn gc(&self) -> usize {
        self.try_gc().unwrap_or_default()
    }

    /// As [`RunStore::gc`].
    ///
    /// # Errors
    /// Why the runs could not be read or deleted.
    pub fn try_gc(&self) -> io::Result<usize> {
        match self.look()? {
            Some(opened) => Ok(opened.collect(&self.retention())?),
            None => Ok(0),
        }
    }
}

impl Opened {
    fn adopt(&self, adoption: &mut Adoption) -> Result<()> {
        let now = self.log().now();
        let done = self.each_in_progress(&mut |opened, found| {
            let (agent, run) = found.key();
            if found.fold.ended.is_some() {
                drop(opened.finish(agent, run)?);
                adoption.completed += 1;
            } else if found.run.records == 0 {
                let is_taken_out = opened.take_out(agent, run, |found| {
                    let mark = opened.mark(agent, run)?;
                    Ok(found.run.records == 0 && mark.is_some_and(|mark| !mark.empty))
                });
                match is_taken_out {
                    // It is removed once it is released.
                    Err(RunStoreError::Engine(Error::RunHeld { .. })) => {}
                    is_taken_out => adoption.taken_out += usize::from(is_taken_out?),
                }
            } else if found.status() == RunStatus::CancellationPending {
                adoption.pending += 1;
            } else if found.fold.started.is_some() {
                let (agent_id, run_id) = match opened.started(&found)? {
                    Some(started) => (started.agent_id, started.run_id),
                    None => (agent.to_owned(), run.to_owned()),
                };
                let ended = RunRecord::Ended(RunEnded {
                    run_id,
                    agent_id,
                    termination: RunTermination::Incomplete,
                    ended_at: DateTime::from_timestamp_nanos(now.0),
                    ..RunEnded::default()
                });
                drop(opened.put_end(agent, run, NewLine::of(&ended))?);
                drop(opened.finish(agent, run)?);
                adoption.adopted += 1;
            }
            Ok(())
        });
        self.log().sync()?;
        done
    }

    /// All runs that the engine considers in progress. No call starts or ends them meanwhile.
    fn each_in_progress(&self, visit: &mut dyn FnMut(&Self, Found) -> Result<()>) -> Result<()> {
        let in_progress = RunQuery::new().status(runlog::RunStatus::InProgress).oldest_first();
        for run in self.log().runs(&in_progress) {
            let run = run?;
            let _guard = self.lock_boundary(run.agent.as_str(), run.run.as_str());
            // As it is now.
            let Some(found) = self.find(run.agent.as_str(), run.run.as_str())? else {
                continue;
            };
            if !found.run.status.is_ended() {
                visit(self, found)?;
            }
        }
        Ok(())
    }

    pub(super) fn collect(&self, retention: &RetentionConfig) -> Result<usize> {
        // The engine must know all ended runs, or it would protect them.
        self.each_in_progress(&mut |opened, found| {
            let (agent, run) = found.key();
            if found.fold.ended.is_some() {
                match opened.finish(agent, run) {
                    // It stays this time; others free space.
                    Err(RunStoreError::Engine(Error::DiskFull { .. })) => {}
                    finished => drop(finished?),
                }
            }
            Ok(())
        })?;
        let (mut inventory, mut ids) = (Inventory::new(), Vec::new());
        let mut rolled_back: Vec<(AgentId, RunId)> = Vec::new();
        self.each_agent(&mut |agent| {
            self.each_run(agent, &mut |found| {
                if found.is_rolled_back() {
                    if !found.run.held {
                        rolled_back.push((found.run.agent, found.run.run));
                    }
                } else if let Some(candidate) = candidate(&found) {
                    inventory.push(&found.run.agent, candidate);
                    let number = found.run.number();
                    ids.push((found.run.agent, found.run.run, number));
                }
                Ok(ControlFlow::Continue(()))
            })
        })?;
        let plan = plan(&retention.policy(), self.log().now(), &inventory)?;
        let going = plan.going.iter().filter_map(|going| Some((ids.get(going.place)?, going.rule)));
        // Exactly the planned runs, whatever has their ids now.
        let all: Vec<(RunRef<'_>, Rule)> = going
            .map(|((agent, run, number), rule)| ((agent, run).into(), *number, rule))
            .map(|(run, number, rule): (RunRef<'_>, _, _)| (run.numbered(number), rule))
            .collect();
        let evicted = if all.is_empty() { 0 } else { self.log().evict(&all)?.plan.evict.len() };
        for (agent, run) in &rolled_back {
            self.delete_rolled_back(agent.as_str(), run.as_str())?;
        }
        Ok(evicted)
    }
}

/// A finished run, as a policy sees it.
fn candidate(found: &Found) -> Option<Candidate> {
    let start = found.fold.started?;
    if !found.run.status.is_ended() {
        return None;
    }
    let mut candidate = Candidate::new(found.run.number(), found.run.status);
    candidate.created_at = timestamp(start.at);
    candidate.ended_at = found.ended_at().map_or(found.run.last_at, timestamp);
    candidate.bytes = found.run.bytes;
    // The unreadable part may be the reason to keep it.
    candidate.held = found.run.held || found.fold.damaged > 0;
    Some(candidate)
}
