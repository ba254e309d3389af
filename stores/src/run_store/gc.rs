//! What goes, and what becomes of runs whose writers are gone.

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
use runlog::{AgentId, Error, Rule, RunId, RunRef};

/// How many runs in progress are asked for at once.
const PAGE: usize = 256;

/// What became of runs whose writers are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Adoption {
    /// Runs that got an end, as [`RunTermination::Incomplete`].
    pub adopted: usize,
    /// Runs that had one, of which the engine had not heard.
    pub completed: usize,
    /// Runs that had been about to start, of which nothing was there yet.
    pub taken_out: usize,
    /// Runs that a caller asked to be cancelled. They stay as they are: their work may
    /// go on.
    pub pending: usize,
}

impl RunStore {
    /// Ends all runs in progress, as [`RunTermination::Incomplete`], and answers how many. For the
    /// start of a daemon, before it starts runs and before [`RunStore::gc`]: **who calls it
    /// says that all runs in progress are orphans**, also those of other stores of this process.
    ///
    /// Runs without a start, and those with a cancellation pending, are left alone. The cost is
    /// that of the runs in progress, however many others there are.
    ///
    /// # Durability
    /// Survives power loss.
    ///
    /// What keeps runs from being adopted is not told, and those before it count;
    /// [`try_adopt_orphans`](Self::try_adopt_orphans) tells it.
    pub fn adopt_orphans(&self) -> usize {
        let mut adoption = Adoption::default();
        if let Ok(Some(opened)) = self.look() {
            // A run that cannot be adopted now can be at the next start.
            let _ = opened.adopt(&mut adoption);
        }
        adoption.adopted
    }

    /// As [`RunStore::adopt_orphans`], and says what else was found.
    ///
    /// # Errors
    /// What kept a run from being adopted; those before it were.
    pub fn try_adopt_orphans(&self) -> io::Result<Adoption> {
        let mut adoption = Adoption::default();
        if let Some(opened) = self.look()? {
            opened.adopt(&mut adoption)?;
        }
        Ok(adoption)
    }

    /// Deletes what [`RetentionConfig`] does not keep, and answers how many runs that were.
    ///
    /// Of each agent the newest finished runs stay, by the times of their starts, if they have not
    /// ended too long ago. A run in progress or with a cancellation pending never goes, and takes
    /// no place among the newest; one without a start never goes either. One that somebody holds
    /// stays, and takes its place; so does one with a line that cannot be read, until it is deleted
    /// by name. Runs that others keep in the same log are not looked at.
    ///
    /// # Durability
    /// Survives power loss.
    ///
    /// What keeps runs from being deleted is not told; [`try_gc`](Self::try_gc) tells it.
    pub fn gc(&self) -> usize {
        self.try_gc().unwrap_or_default()
    }

    /// As [`RunStore::gc`].
    ///
    /// # Errors
    /// What kept the runs from being read or deleted.
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
                    // It is taken out once it is let go.
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

    /// All runs that the engine takes to be in progress. No call starts or ends them meanwhile.
    fn each_in_progress(&self, visit: &mut dyn FnMut(&Self, Found) -> Result<()>) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.log().in_progress(after.as_ref(), PAGE)?;
            for run in page.runs {
                let _guard = self.lock_boundary(run.agent.as_str(), run.run.as_str());
                // As it is now.
                let Some(found) = self.find(run.agent.as_str(), run.run.as_str())? else {
                    continue;
                };
                if !found.run.status.is_ended() {
                    visit(self, found)?;
                }
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    pub(super) fn collect(&self, retention: &RetentionConfig) -> Result<usize> {
        // The engine must know of all that ended, or it would protect them.
        self.each_in_progress(&mut |opened, found| {
            let (agent, run) = found.key();
            if found.fold.ended.is_some() {
                match opened.finish(agent, run) {
                    // It stays this time, and others give space.
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
        // Those that were planned for, whatever has their ids by now.
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

/// What a policy is told of a finished run.
fn candidate(found: &Found) -> Option<Candidate> {
    let start = found.fold.started?;
    if !found.run.status.is_ended() {
        return None;
    }
    Some(Candidate {
        run_no: found.run.number(),
        status: found.run.status,
        created_at: timestamp(start.at),
        ended_at: found.ended_at().map_or(found.run.last_at, timestamp),
        bytes: found.run.bytes,
        // What cannot be read of it is perhaps what it is kept for.
        held: found.run.held || found.fold.damaged > 0,
    })
}
