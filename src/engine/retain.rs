//! Retention: what a policy says is planned from the rows, and done by evictions.
//!
//! - A plan is made from one moment's rows, and done run by run under the lock: what is held, or
//!   gone, by then is passed over.
//! - Evictions are durable before anything is freed (O8).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::catalog::Catalog;
use super::core::{Core, Urgency};
use super::draft::Draft;
use super::shared::Engine;
use super::upkeep::Wanted;
use crate::error::{Error, Result};
use crate::format::eviction::{Eviction, EvictionReceipt};
use crate::gc::{Candidate, Inventory, Protection, Retention, Rule, Totals, plan};
use crate::index::{RowSummary, RunRow};
use crate::types::{AgentId, Durability, RunId, RunNo, RunRef, RunStatus, Timestamp};

/// The most bytes of evictions that are placed under one lock.
const EVICT_FRAME: usize = 32 << 10;

/// What a policy says of the runs as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GcPlan {
    /// What goes, the run that ended first in front.
    pub evict: Vec<PlannedEviction>,
    /// What was due to go and stays.
    pub protected: Vec<ProtectedRun>,
    /// The numbers, for the runs that the policy covers.
    pub totals: Totals,
}

/// A run that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Why it goes; of several rules the first.
    pub rule: Rule,
    /// The bytes of its frames, headers included.
    pub bytes: u64,
    run_no: RunNo,
}

/// A run that a limit says should go, and that stays.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProtectedRun {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// Why it was due.
    pub rule: Rule,
    /// Why it stays.
    pub protection: Protection,
    /// The bytes of its frames, headers included.
    pub bytes: u64,
}

/// What a collection did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// The plan as it was done: runs that were held or deleted in the meantime are not in it.
    pub plan: GcPlan,
    /// Extents that became free before the call returned. More may follow in the background, or
    /// when nobody reads them any more.
    pub freed_extents: u64,
    /// The bytes of these extents.
    pub freed_bytes: u64,
}

/// All runs as of one moment.
#[derive(Default)]
pub(super) struct Listed {
    inventory: Inventory,
    agents: HashMap<String, AgentId>,
    pub(super) runs: Vec<ListedRun>,
    /// The run ids, one behind the other.
    ids: String,
}

pub(super) struct ListedRun {
    pub(super) agent: AgentId,
    id: core::ops::Range<usize>,
    status: RunStatus,
    ended_at: Timestamp,
    pub(super) held: bool,
}

impl Listed {
    fn add(&mut self, row: &RowSummary<'_>) {
        if row.document {
            return;
        }
        let agent = match self.agents.get(row.agent) {
            Some(agent) => agent.clone(),
            None => {
                // Ids in rows were checked when they were read.
                let Ok(agent) = AgentId::new(row.agent) else { return };
                self.agents.insert(row.agent.to_owned(), agent.clone());
                agent
            }
        };
        let start = self.ids.len();
        self.ids.push_str(row.run);
        let ended_at = row.ended_at.unwrap_or(row.last_at);
        self.inventory.push(
            &agent,
            Candidate {
                run_no: row.run_no,
                status: row.status,
                created_at: row.created_at,
                ended_at,
                bytes: row.stored,
                held: row.held,
            },
        );
        let id = start..self.ids.len();
        let (status, held) = (row.status, row.held);
        self.runs.push(ListedRun { agent, id, status, ended_at, held });
    }

    pub(super) fn run_id(&self, run: &ListedRun) -> Result<RunId> {
        RunId::new(self.ids.get(run.id.clone()).unwrap_or_default())
    }
}

impl Engine {
    /// All living runs as of now, and the catalog that knows most of them.
    pub(super) fn list_all(&self) -> Result<(Listed, Arc<Catalog>)> {
        let (catalog, deleted, hot) = {
            let core = self.open_core()?;
            let mut numbers = core.hot.run_numbers();
            numbers.sort_unstable();
            let rows: Result<Vec<_>> =
                numbers.into_iter().map(|number| self.row(&core, number)).collect();
            (Arc::clone(&core.catalog), Arc::clone(&core.deleted), rows?)
        };
        let in_memory: HashSet<RunNo> = hot.iter().map(|row| row.run_no).collect();
        let listed = catalog.ask(|catalog| {
            let mut listed = Listed::default();
            catalog.each_summary(&mut |row| {
                if !in_memory.contains(&row.run_no) && !deleted.contains(&row.run_no) {
                    listed.add(&row);
                }
            })?;
            Ok(listed)
        });
        let mut listed = listed?;
        for row in &hot {
            listed.add(&row.summary());
        }
        Ok((listed, catalog))
    }

    /// What a policy says.
    pub(crate) fn gc_plan(&self, policy: &Retention) -> Result<(GcPlan, Arc<Catalog>)> {
        policy.check()?;
        let (listed, catalog) = self.list_all()?;
        let planned = plan(policy, self.now(), &listed.inventory)?;
        let mut found = GcPlan { evict: Vec::new(), protected: Vec::new(), totals: planned.totals };
        for going in planned.going {
            let Some(run) = listed.runs.get(going.place) else { continue };
            found.evict.push(PlannedEviction {
                agent: run.agent.clone(),
                run: listed.run_id(run)?,
                status: run.status,
                ended_at: run.ended_at,
                rule: going.rule,
                bytes: going.bytes,
                run_no: going.run_no,
            });
        }
        for kept in planned.protected {
            let Some(run) = listed.runs.get(kept.place) else { continue };
            found.protected.push(ProtectedRun {
                agent: run.agent.clone(),
                run: listed.run_id(run)?,
                rule: kept.rule,
                protection: kept.protection,
                bytes: kept.bytes,
            });
        }
        Ok((found, catalog))
    }

    /// Does what a policy says.
    pub(crate) fn gc(self: &Arc<Self>, policy: &Retention) -> Result<Collected> {
        let (plan, catalog) = self.gc_plan(policy)?;
        self.carry_out(plan, Some(catalog))
    }

    /// Evicts runs that a plan of the caller's names. What may not go is passed over.
    pub(crate) fn evict(self: &Arc<Self>, runs: &[(RunRef<'_>, Rule)]) -> Result<Collected> {
        let mut plan =
            GcPlan { evict: Vec::new(), protected: Vec::new(), totals: Totals::default() };
        let mut named = HashSet::new();
        for &(run, rule) in runs {
            if rule == Rule::Erased {
                let what = "an eviction leaves bytes behind, so it cannot say that it erases";
                return Err(Error::InvalidArgument { what });
            }
            let core = self.open_core()?;
            let run_no = match self.resolve(&core, run) {
                Ok(run_no) => run_no,
                Err(Error::RunNotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            let row = self.row(&core, run_no)?;
            if !row.status.is_ended() || row.is_held() || !named.insert(run_no) {
                continue;
            }
            plan.totals.going_bytes = plan.totals.going_bytes.saturating_add(row.stored);
            plan.evict.push(PlannedEviction {
                agent: row.agent.clone(),
                run: row.run.clone(),
                status: row.status,
                ended_at: row.ended_at.unwrap_or(row.last_at),
                rule,
                bytes: row.stored,
                run_no,
            });
        }
        plan.totals.going = plan.evict.len() as u64;
        self.carry_out(plan, None)
    }

    /// Does what a plan says, which was made with this catalog if it is a plan for all runs.
    fn carry_out(
        self: &Arc<Self>,
        mut plan: GcPlan,
        catalog: Option<Arc<Catalog>>,
    ) -> Result<Collected> {
        self.disk.check()?;
        let before = self.free_count();
        let mut evicted = HashSet::with_capacity(plan.evict.len());
        let mut done = self.evict_all(&plan.evict, catalog.as_ref(), &mut evicted);
        // It holds its segments.
        drop(catalog);
        let mut count = 0;
        while let Err(Error::DiskFull { .. }) = done
            && (evicted.len() > count || self.make_way()?)
        {
            // What was evicted may give the space for the rest.
            count = evicted.len();
            self.free_on_full_disk()?;
            done = self.evict_all(&plan.evict, None, &mut evicted);
        }
        done?;
        if evicted.len() < plan.evict.len() {
            let passed: u64 = plan
                .evict
                .extract_if(.., |run| !evicted.contains(&run.run_no))
                .map(|run| run.bytes)
                .sum();
            plan.totals.going = plan.evict.len() as u64;
            plan.totals.going_bytes = plan.totals.going_bytes.saturating_sub(passed);
        }
        if !evicted.is_empty() {
            self.free_evicted(evicted.len() as u64)?;
            self.upkeep.want(Wanted::COMPACT);
            self.after_change();
        }
        let freed_extents = self.free_count().saturating_sub(before);
        let freed_bytes = freed_extents * self.extent_size.bytes();
        Ok(Collected { plan, freed_extents, freed_bytes })
    }

    /// Frees what is dead since runs were evicted.
    fn free_evicted(&self, evicted: u64) -> Result<()> {
        let is_stale = self.is_index_stale(evicted)?;
        if is_stale {
            // The evictions are sealed, so that the index to come has none of these runs.
            match self.core.lock().roll(self) {
                // They come to it with a later segment.
                Err(Error::DiskFull { .. }) => {}
                rolled => rolled?,
            }
        }
        self.sync_all()?;
        self.note_seals()?;
        if is_stale {
            self.drop_index(&mut self.index.lock())?;
        }
        // Only what the catalog covers can be freed.
        self.checkpoint()?;
        self.reclaim()
    }

    /// Extents that are free or were cut off, compared with a file without end.
    fn free_count(&self) -> u64 {
        let keeper = self.keeper.lock();
        (u64::from(u32::MAX)).saturating_sub(keeper.manifest.extents().uses.len() as u64)
    }

    /// Evicts what is neither held nor gone, and says in `evicted` what that was, also if it comes
    /// to an error.
    fn evict_all(
        &self,
        runs: &[PlannedEviction],
        planned: Option<&Arc<Catalog>>,
        evicted: &mut HashSet<RunNo>,
    ) -> Result<()> {
        let done = self.evict_each(runs, planned, evicted);
        let mut core = self.core.lock();
        let all: Vec<_> = core.catalog.segments().iter().map(|segment| segment.id()).collect();
        let fresh: Vec<_> = core.unapplied.iter().map(|segment| segment.id()).collect();
        let tail = core.tail.segment.id();
        core.suspects.extend(all.into_iter().chain(fresh).chain([tail]));
        done
    }

    fn evict_each(
        &self,
        runs: &[PlannedEviction],
        planned: Option<&Arc<Catalog>>,
        evicted: &mut HashSet<RunNo>,
    ) -> Result<()> {
        let now = self.now();
        let (mut rest, mut most) = (runs, EVICT_FRAME);
        while !rest.is_empty() {
            let mut core = self.open_core()?;
            let (mut items, mut len, mut seen) = (Vec::new(), 0, 0);
            for run in rest {
                let item = eviction(run, now);
                if len + item.encoded_len() > most && seen > 0 {
                    break;
                }
                seen += 1;
                if self.may_evict(&core, run.run_no, planned)? {
                    len += item.encoded_len();
                    items.push(item);
                }
            }
            if items.is_empty() {
                rest = rest.get(seen..).unwrap_or_default();
                continue;
            }
            match self.place_evictions(&mut core, &items) {
                // Fewer may fit in what is kept back, and give space.
                Err(Error::DiskFull { .. }) if items.len() > 1 => {
                    most = len / 2;
                    continue;
                }
                placed => _ = placed?,
            }
            rest = rest.get(seen..).unwrap_or_default();
            evicted.extend(items.iter().map(|item| item.run_no));
            let (waiting, hot) = (core.unapplied.len(), core.hot.len());
            drop(core);
            self.keep_up(waiting, hot);
        }
        Ok(())
    }

    /// Whether a run that was planned to go is still there and not held by now.
    fn may_evict(
        &self,
        core: &Core,
        run_no: RunNo,
        planned: Option<&Arc<Catalog>>,
    ) -> Result<bool> {
        if core.deleted.contains(&run_no) {
            return Ok(false);
        }
        let may = |row: &RunRow| row.status.is_ended() && !row.is_held();
        match core.hot.get(run_no) {
            Some(run) => {
                let row = run.row(core.tail.segment.id(), &core.tail.builder);
                Ok(run.status.is_ended() && row.as_ref().is_none_or(may))
            }
            // It has not changed since the plan was made.
            None if planned.is_some_and(|planned| Arc::ptr_eq(&core.catalog, planned)) => Ok(true),
            None => Ok(core.catalog.ask(|catalog| catalog.row(run_no))?.as_ref().is_some_and(may)),
        }
    }

    /// Places an EVICT, and lets go of the runs.
    pub(crate) fn place_evictions(
        &self,
        core: &mut Core,
        items: &[Eviction],
    ) -> Result<crate::types::LogPosition> {
        let mut body = Vec::new();
        let mut draft = Draft::evict(items, self.now(), &mut body);
        let end = core.place_one(self, &mut draft, Urgency::Reserve, Durability::Disk)?;
        for item in items {
            core.hot.remove(item.run_no);
        }
        Arc::make_mut(&mut core.deleted).extend(items.iter().map(|item| item.run_no));
        Ok(end)
    }

    /// Deletes an ended run; answers its payload bytes.
    pub(crate) fn delete(self: &Arc<Self>, run: RunRef<'_>, rule: Rule) -> Result<u64> {
        self.deleting(|| {
            let core = self.open_core()?;
            let run_no = self.resolve(&core, run)?;
            self.delete_resolved(core, run_no, rule)
        })
    }

    /// The same for a run that was found while `core` was locked.
    pub(super) fn delete_resolved(
        self: &Arc<Self>,
        mut core: MutexGuard<'_, Core>,
        run_no: RunNo,
        rule: Rule,
    ) -> Result<u64> {
        self.load(&mut core, run_no)?;
        let row = self.row(&core, run_no)?;
        if !row.status.is_ended() {
            return Err(Error::RunInProgress { agent: row.agent, run: row.run });
        }
        if row.is_held() {
            return Err(Error::RunHeld { agent: row.agent, run: row.run });
        }
        let segments = self.segments_of(&core, &[run_no])?;
        let (agent, run, bytes) = (row.agent.clone(), row.run.clone(), row.stored);
        let receipt = EvictionReceipt { agent, run, at: self.now(), rule: rule.code(), bytes };
        let end =
            self.place_evictions(&mut core, &[Eviction { run_no, receipt: Some(receipt) }])?;
        core.suspects.extend(segments);
        self.upkeep.want(Wanted::COMPACT);
        self.finish(core, end, Durability::Disk)?;
        Ok(row.bytes)
    }

    /// Whether most runs of the index are deleted: building it anew from what is left is faster
    /// than removing them, and it becomes small.
    fn is_index_stale(&self, evicted: u64) -> Result<bool> {
        let catalog = Arc::clone(&self.core.lock().catalog);
        if catalog.index().is_none() || evicted < 1000 {
            return Ok(false);
        }
        Ok(evicted * 2 >= catalog.ask(|catalog| catalog.count_runs())?)
    }
}

/// The eviction of a run that was planned to go.
fn eviction(run: &PlannedEviction, at: Timestamp) -> Eviction {
    let (agent, id, rule) = (run.agent.clone(), run.run.clone(), run.rule.code());
    let receipt = EvictionReceipt { agent, run: id, at, rule, bytes: run.bytes };
    Eviction { run_no: run.run_no, receipt: Some(receipt) }
}
