//! Retention: a policy is planned from the rows, and carried out by evictions.
//!
//! - A plan is made from the rows of one moment and carried out run by run under the lock: runs
//!   that are held or gone by then are skipped.
//! - Evictions are durable before anything is freed (O8).

mod erase;
mod full_disk;
pub(crate) mod planned;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::engine::checkpoint::Checkpoints;
use crate::engine::compact::Compactor;
use crate::engine::read::named::Detail;
use crate::engine::read::{Moment, Reader};
use crate::engine::reclaim::Reclaimer;
use crate::engine::retain::planned::{PlannedEviction, PlannedEvictions};
use crate::engine::setup::due::Wanted;
use crate::engine::setup::memory;
use crate::engine::state::catalog::Catalog;
use crate::engine::state::log_state::LogState;
use crate::engine::state::stored_run::Name;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::format::frames::eviction::{Eviction, EvictionReceipt};
use crate::format::segments::run_set::RunSet;
use crate::gc::{Candidate, Protection, Retention, Rule, Totals, plan_each};
use crate::index::RunRow;
use crate::types::{AgentId, RunId, RunNo, RunRef, SegmentId, Timestamp};

/// The most bytes of evictions that are placed under one lock.
const EVICT_FRAME: usize = 32 << 10;

/// The most runs that are looked up before some of them are evicted.
const EVICTED_AT_ONCE: usize = 1024;

/// The most deleted runs whose segments are looked up one by one.
const LOCATED: usize = 1024;

/// From so many deleted runs on the index may be built anew, and freed memory goes back to the
/// system.
const MANY: u64 = 1000;

/// The plan of a policy, for the runs as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
#[must_use = "a plan deletes nothing"]
pub struct GcPlan {
    /// The runs to delete, in the order of their ends.
    pub evict: PlannedEvictions,
    /// The runs that are kept although a limit says otherwise.
    pub protected: Vec<ProtectedRun>,
    /// The totals, for the runs that the policy covers.
    pub totals: Totals,
}

/// A run that is kept although a limit says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ProtectedRun {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// Why it would be deleted.
    pub rule: Rule,
    /// Why it is kept.
    pub protection: Protection,
    /// The bytes of its frames, headers included.
    pub bytes: u64,
}

/// The result of a collection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Collected {
    /// The plan as it was carried out, without runs that were held or deleted meanwhile.
    pub plan: GcPlan,
    /// Extents that became free before the call returned. More may follow in the background, or
    /// when their readers are gone.
    pub freed_extents: u64,
    /// The bytes of these extents.
    pub freed_bytes: u64,
}

/// Deletes runs, by policies and by name.
#[derive(Debug)]
pub(crate) struct Retainer {
    pub(crate) log: Arc<Log>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) reclaimer: Arc<Reclaimer>,
    pub(crate) compactor: Arc<Compactor>,
}

impl Retainer {
    pub(crate) fn new(compactor: &Arc<Compactor>) -> Self {
        let Compactor { log, checkpoints, reclaimer } = &**compactor;
        Self {
            log: Arc::clone(log),
            checkpoints: Arc::clone(checkpoints),
            reclaimer: Arc::clone(reclaimer),
            compactor: Arc::clone(compactor),
        }
    }

    /// The plan of a policy.
    pub(crate) fn gc_plan(&self, policy: &Retention) -> Result<(GcPlan, Arc<Catalog>)> {
        gc_plan_of(&self.log.reader, policy)
    }

    /// Carries out a policy.
    pub(crate) fn gc(&self, policy: &Retention) -> Result<Collected> {
        // Opens an index that is not open yet: an index that opens while its runs are deleted gets
        // the deletions one by one, which takes much longer. A failure is told by the checkpoint.
        let _ = self.checkpoints.checkpoint();
        let (plan, catalog) = self.gc_plan(policy)?;
        self.carry_out(plan, Some(catalog))
    }

    /// Evicts the runs of a caller's own plan. Runs that may not be deleted are skipped.
    pub(crate) fn evict(&self, runs: &[(RunRef<'_>, Rule)]) -> Result<Collected> {
        let (mut going, mut bytes) = (PlannedEvictions::default(), 0_u64);
        let mut named = HashSet::new();
        for &(run, rule) in runs {
            if rule == Rule::Erased {
                let what = "`Rule::Erased` is not accepted here; use `erase_run`";
                return Err(Error::InvalidArgument { what });
            }
            let found = self.log.reader.named(run, Detail::Row)?;
            let run_no = match found.resolve() {
                Ok((run_no, _)) => run_no,
                Err(Error::RunNotFound { .. }) => continue,
                Err(error) => return Err(error),
            };
            let row = found.row(run_no)?;
            if row.status.is_ended() && !row.is_held() && named.insert(run_no) {
                bytes = bytes.saturating_add(row.stored);
                going.push(&row.summary(), rule);
            }
        }
        let totals = Totals { going: going.len() as u64, going_bytes: bytes, ..Totals::default() };
        self.carry_out(GcPlan { evict: going, protected: Vec::new(), totals }, None)
    }

    /// Carries out a plan. `catalog` is the one that it was made with, if it is for all runs.
    fn carry_out(&self, mut plan: GcPlan, catalog: Option<Arc<Catalog>>) -> Result<Collected> {
        self.log.disk.check()?;
        let before = self.free_count();
        let mut evicted = RunSet::default();
        let mut done = self.evict_all(&plan.evict, catalog.as_ref(), &mut evicted);
        // The catalog holds its segments.
        drop(catalog);
        let (mut count, mut gives_way) = (0, true);
        while let Err(Error::DiskFull { .. }) = done
            && (evicted.len() > count
                || core::mem::take(&mut gives_way) && self.checkpoints.make_way()?)
        {
            // What was evicted may free the space for the rest.
            count = evicted.len();
            self.free_on_full_disk()?;
            done = self.evict_all(&plan.evict, None, &mut evicted);
        }
        done?;
        if evicted.len() < plan.evict.len() as u64 {
            let passed = plan.evict.retain(|run_no| evicted.contains(run_no));
            plan.totals.going = plan.evict.len() as u64;
            plan.totals.going_bytes = plan.totals.going_bytes.saturating_sub(passed);
        }
        if evicted.is_empty() {
            // What is not there may be deleted by a write that is not durable yet.
            self.log.sync_all()?;
        } else {
            self.free_evicted(evicted.len())?;
            if evicted.len() >= MANY {
                memory::give_back();
            }
            self.log.due.want(Wanted::COMPACT);
            self.log.due.after_change();
        }
        let freed_extents = self.free_count().saturating_sub(before);
        let freed_bytes = freed_extents * self.log.extent_size.bytes();
        Ok(Collected { plan, freed_extents, freed_bytes })
    }

    /// Frees the segments that died by the evictions, which count even if something cannot be read:
    /// then only the observer and `RunLog::health` are told.
    fn free_evicted(&self, evicted: u64) -> Result<()> {
        let is_stale = self.is_index_stale(evicted);
        if is_stale {
            // The evictions are sealed, so that the next index has none of these runs.
            match self.log.roll(&mut self.log.state.lock()) {
                // The next index gets them with a later segment.
                Err(Error::DiskFull { .. }) => {}
                rolled => rolled?,
            }
        }
        self.log.sync_all()?;
        self.log.note_seals()?;
        if is_stale {
            self.checkpoints.drop_index(&mut self.checkpoints.index.lock())?;
        }
        // Only segments that the catalog covers can be freed. Each reports its own failure.
        let covered = self.checkpoints.checkpoint();
        let freed = covered.and(self.reclaimer.reclaim());
        match freed {
            Err(Error::Io { .. } | Error::Corrupt(_)) => self.log.disk.check(),
            freed => freed,
        }
    }

    /// The number of free extents, in a file without end: extents that were cut off count as free.
    fn free_count(&self) -> u64 {
        let allocator = self.log.space.allocator.lock();
        (u64::from(u32::MAX)).saturating_sub(allocator.manifest.extents().uses.len() as u64)
    }

    /// Evicts runs that are neither held nor gone, and adds them to `evicted`, even on an error.
    fn evict_all(
        &self,
        runs: &PlannedEvictions,
        planned: Option<&Arc<Catalog>>,
        evicted: &mut RunSet,
    ) -> Result<()> {
        // A suspect is counted again, run by run. Few deletions must not count the entire store.
        let few = runs.iter().filter(|_| runs.len() <= LOCATED);
        let moment = Moment::of(&self.log.state.lock());
        let segments_of = |run: PlannedEviction| {
            moment.stored_in(Name::new(false, &run.agent, &run.run), run.run_no)
        };
        let located: Result<Vec<_>> = few.map(segments_of).collect();
        let located: BTreeSet<SegmentId> = located.into_iter().flatten().flatten().collect();
        // While its deleted runs are held, each deletion copies the whole set.
        let Moment { catalog, deleted } = moment;
        drop(deleted);
        let done = self.evict_each(runs, planned, evicted);
        let mut state = self.log.state.lock();
        let is_suspect = |id: &SegmentId| {
            located.is_empty() || located.contains(id) || catalog.segment(*id).is_none()
        };
        let sealed = state.catalog.segments().iter().map(|segment| segment.id());
        let sealed: Vec<_> = sealed.filter(is_suspect).collect();
        let fresh: Vec<_> = state.unapplied.iter().map(|segment| segment.id()).collect();
        let tail = state.tail.segment.id();
        state.suspects.extend(sealed.into_iter().chain(fresh).chain([tail]));
        done
    }

    fn evict_each(
        &self,
        runs: &PlannedEvictions,
        planned: Option<&Arc<Catalog>>,
        evicted: &mut RunSet,
    ) -> Result<()> {
        let now = self.log.setup.now();
        let (mut rest, mut next, mut most) = (runs.iter(), Vec::new(), EVICT_FRAME);
        loop {
            next.extend(rest.by_ref().take(EVICTED_AT_ONCE - next.len()));
            // As many as fit one frame.
            let mut len = 0;
            let fits = |run: &&PlannedEviction| {
                len += eviction(run, now).encoded_len();
                len <= most
            };
            let count = next.iter().take_while(fits).count().max(1);
            let some = next.get(..count).unwrap_or_default();
            if some.is_empty() {
                return Ok(());
            }
            let (mut state, rows) = self.log.reader.asked(|moment| rows(moment, some, planned))?;
            let (mut items, mut len, mut seen) = (Vec::new(), 0, 0);
            for run in some {
                let item = eviction(run, now);
                if len + item.encoded_len() > most && seen > 0 {
                    break;
                }
                seen += 1;
                if may_evict(&state, run.run_no, rows.as_ref()) {
                    len += item.encoded_len();
                    items.push(item);
                }
            }
            if items.is_empty() {
                next.drain(..seen);
                continue;
            }
            match self.log.place_evictions(&mut state, &items, now) {
                // Fewer may fit the reserve, and free space.
                Err(Error::DiskFull { .. }) if items.len() > 1 => {
                    most = len / 2;
                    continue;
                }
                placed => _ = placed?,
            }
            next.drain(..seen);
            evicted.extend(items.iter().map(|item| item.run_no));
            let is_late = state.is_late();
            drop(state);
            if is_late {
                self.log.due.catch_up();
            }
        }
    }

    /// Whether most runs of the index are deleted: rebuilding it is faster then, and small.
    fn is_index_stale(&self, evicted: u64) -> bool {
        let catalog = Arc::clone(&self.log.state.lock().catalog);
        let Some(index) = catalog.index().filter(|_| evicted >= MANY) else { return false };
        evicted * 2 >= index.run_count() && self.log.check_directories().is_ok()
    }
}

/// The plan of a policy for the runs that a reader lists.
pub(crate) fn gc_plan_of(reader: &Reader, policy: &Retention) -> Result<(GcPlan, Arc<Catalog>)> {
    policy.check()?;
    let (listed, catalog) = reader.list_all()?;
    let (mut due, mut protected) = (Vec::new(), Vec::new());
    let now = reader.setup.now();
    let totals = plan_each(policy, now, &listed.inventory, &mut |place, rule, protection| {
        let Some(protection) = protection else { return due.push((place, rule)) };
        protected.extend(listed.get(place).map(|(agent, run, &Candidate { bytes, .. })| {
            ProtectedRun { agent: agent.clone(), run, rule, protection, bytes }
        }));
    })?;
    Ok((GcPlan { evict: PlannedEvictions { listed, due }, protected, totals }, catalog))
}

/// The rows of these runs in the catalog; `None` if it covers what that of the plan does. Then what
/// happened to a run since is in memory, also if compactions have moved its frames.
fn rows(
    moment: &Moment,
    runs: &[PlannedEviction],
    planned: Option<&Arc<Catalog>>,
) -> Result<Option<HashMap<RunNo, RunRow>>> {
    if planned.is_some_and(|planned| planned.through() == moment.catalog.through()) {
        return Ok(None);
    }
    let row = |run: &PlannedEviction| {
        let found = moment.stored_run(Name::new(false, &run.agent, &run.run), run.run_no);
        found.and_then(|found| found.map(|found| found.row()).transpose()).transpose()
    };
    let rows = runs.iter().filter_map(row).map(|row| row.map(|row| (row.run_no, row)));
    rows.collect::<Result<_>>().map(Some)
}

/// Whether a planned run still exists, has ended and is not held.
fn may_evict(state: &LogState, run_no: RunNo, rows: Option<&HashMap<RunNo, RunRow>>) -> bool {
    if state.deleted.contains(run_no) {
        return false;
    }
    let may = |row: &RunRow| row.status.is_ended() && !row.is_held();
    match (state.active.get(run_no), rows) {
        (Some(run), _) => {
            run.status.is_ended()
                && state.row_in_memory(run_no).is_ok_and(|row| row.as_ref().is_none_or(may))
        }
        // It has not changed since the plan was made.
        (None, None) => true,
        (None, Some(rows)) => rows.get(&run_no).is_some_and(may),
    }
}

/// The eviction of a planned run.
fn eviction(run: &PlannedEviction, at: Timestamp) -> Eviction {
    let (agent, id, rule) = (run.agent.clone(), run.run.clone(), run.rule.code());
    let receipt = EvictionReceipt { agent, run: id, at, rule, bytes: run.bytes };
    Eviction { run_no: run.run_no, receipt: Some(receipt) }
}
