//! What a [`Retention`] deletes, and what it keeps although a limit says otherwise. No I/O: runs
//! in, plan out.
//!
//! 1. The runs are sorted by their ends.
//! 2. Number and age concern each run alone: for each group of runs that are counted together, the
//!    last run that is kept is found, and each run is compared with it.
//! 3. Bytes depend on what the other limits leave. The budgets are enforced one after the other,
//!    from the narrowest scope to the whole store, each by one walk that begins at the first end.

use std::collections::HashMap;

use super::retention::{Resolved, Retention, STATUSES};
use super::rule::{Protection, Rule};
use crate::error::Result;
use crate::types::{AgentId, RunNo, RunStatus, Timestamp};

/// A run as a policy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Candidate {
    /// Its number.
    pub run_no: RunNo,
    /// Whether it is in progress, or how it ended.
    pub status: RunStatus,
    /// When it was created: its place in the lists of runs.
    pub created_at: Timestamp,
    /// When it ended. For a run in progress, the time of the last append: the value that would
    /// count if it were not protected.
    pub ended_at: Timestamp,
    /// Its bytes in the store.
    pub bytes: u64,
    /// It is held.
    pub held: bool,
}

impl Candidate {
    /// A run with this number and status, not held, with 0 bytes, created and ended at the first
    /// moment of 1970. Set the fields to change that.
    pub fn new(run_no: RunNo, status: RunStatus) -> Self {
        let at = Timestamp::default();
        Self { run_no, status, created_at: at, ended_at: at, bytes: 0, held: false }
    }
}

/// All runs that a policy judges.
///
/// ```
/// use runlog::retention::{Candidate, Inventory, plan};
/// use runlog::{AgentId, Retention, Rule, RunNo, RunStatus, Timestamp};
///
/// # fn main() -> runlog::Result<()> {
/// let planner = AgentId::new("planner")?;
/// let mut runs = Inventory::new();
/// for number in 1..=3 {
///     let mut run = Candidate::new(RunNo(number), RunStatus::Completed);
///     run.created_at = Timestamp(number as i64);
///     run.ended_at = Timestamp(number as i64 + 10);
///     run.bytes = 1000;
///     runs.push(&planner, run);
/// }
/// let plan = plan(&Retention::new().keep_newest(2), Timestamp(20), &runs)?;
/// assert_eq!(plan.going.len(), 1);
/// assert_eq!((plan.going[0].run_no, plan.going[0].rule), (RunNo(1), Rule::NewestN));
/// assert_eq!(plan.totals.going_bytes, 1000);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    agents: Vec<AgentId>,
    numbers: HashMap<AgentId, usize>,
    runs: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    run: Candidate,
    /// The index of the agent in the list of agents.
    agent: usize,
}

impl Inventory {
    /// An empty inventory.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty inventory with capacity for this many runs.
    pub fn with_capacity(runs: usize) -> Self {
        Self { runs: Vec::with_capacity(runs), ..Self::default() }
    }

    /// Adds a run. Adding the runs of one agent in a row is cheapest.
    pub fn push(&mut self, agent: &AgentId, run: Candidate) {
        let last = self.runs.last().map(|entry| entry.agent);
        let agent = match last {
            Some(last) if self.agents[last] == *agent => last,
            _ => self.number(agent),
        };
        self.runs.push(Entry { run, agent });
    }

    fn number(&mut self, agent: &AgentId) -> usize {
        if let Some(number) = self.numbers.get(agent) {
            return *number;
        }
        let number = self.agents.len();
        self.agents.push(agent.clone());
        self.numbers.insert(agent.clone(), number);
        number
    }

    /// The agent with this id, if one of its runs was added.
    pub(crate) fn agent(&self, id: &str) -> Option<&AgentId> {
        self.numbers.get_key_value(id).map(|(agent, _)| agent)
    }

    /// The agent and the run at a place, in the order in which they were added.
    pub(crate) fn get(&self, place: usize) -> Option<(&AgentId, &Candidate)> {
        let entry = self.runs.get(place)?;
        Some((self.agents.get(entry.agent)?, &entry.run))
    }

    /// How many runs there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

/// A run that is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Going {
    /// Its number.
    pub run_no: RunNo,
    /// Its index among the candidates, in the order in which they were added.
    pub place: usize,
    /// Why. If several rules apply, this is the first in the order number, age, bytes.
    pub rule: Rule,
    /// Its bytes in the store.
    pub bytes: u64,
}

/// A run that a limit would delete, and that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Protected {
    /// Its number.
    pub run_no: RunNo,
    /// Its index among the candidates, in the order in which they were added.
    pub place: usize,
    /// Why it would be deleted.
    pub rule: Rule,
    /// Why it is kept.
    pub protection: Protection,
    /// Its bytes in the store.
    pub bytes: u64,
}

/// The totals of a plan, for the runs that the policy covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Totals {
    /// How many runs are deleted.
    pub going: u64,
    /// Their bytes.
    pub going_bytes: u64,
    /// How many runs are kept, including those in progress.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
    /// How many runs are in progress.
    pub in_progress: u64,
    /// Their bytes.
    pub in_progress_bytes: u64,
    /// By how much `kept_bytes` exceeds the maximum for the whole store, if no more runs may be
    /// deleted.
    pub excess_bytes: u64,
}

/// What is deleted and why, and what is kept although a limit says otherwise. Both are in the order
/// of the ends, the earliest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Plan {
    /// The runs that are deleted.
    pub going: Vec<Going>,
    /// The runs that are kept although a limit says otherwise.
    pub protected: Vec<Protected>,
    /// The totals.
    pub totals: Totals,
}

/// Plans what to delete at the time `now`, and changes nothing. The same runs make the same plan,
/// in whatever order they were added.
///
/// # Errors
/// The errors of [`Retention::check`].
pub fn plan(policy: &Retention, now: Timestamp, runs: &Inventory) -> Result<Plan> {
    let mut plan = Plan::default();
    plan.totals = plan_each(policy, now, runs, &mut |place, rule, protection| {
        let Some((_, &Candidate { run_no, bytes, .. })) = runs.get(place) else { return };
        match protection {
            None => plan.going.push(Going { run_no, place, rule, bytes }),
            Some(protection) => {
                plan.protected.push(Protected { run_no, place, rule, protection, bytes });
            }
        }
    })?;
    Ok(plan)
}

/// As [`plan`], without a list: calls `due` for each run that a limit would delete, in the order of
/// the ends, with its place, the limit, and why it is kept, if it is.
pub(crate) fn plan_each(
    policy: &Retention,
    now: Timestamp,
    runs: &Inventory,
    due: &mut dyn FnMut(usize, Rule, Option<Protection>),
) -> Result<Totals> {
    policy.check()?;
    let mut planning = Planning::new(policy, runs);
    planning.judge_each(now);
    planning.judge_bytes(policy);
    Ok(planning.finish(policy.bytes_of_all(), due))
}

/// The sort key of runs by newness; larger is newer.
type Newness = (Timestamp, RunNo);

/// What was found about a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Stays,
    Due(Rule),
}

/// A plan that is being made.
struct Planning<'a> {
    runs: &'a [Entry],
    agents: Vec<[Resolved; STATUSES]>,
    names: &'a [AgentId],
    /// The newest completed run of each agent, if those are protected.
    newest: Vec<Option<Newness>>,
    /// The indexes of the covered runs, sorted by their ends. Only steps that need that order use
    /// it: memory holds the runs by index.
    order: Vec<usize>,
    /// By index.
    fates: Vec<Fate>,
}

impl<'a> Planning<'a> {
    fn new(policy: &Retention, runs: &'a Inventory) -> Self {
        let covered: Vec<bool> = runs.agents.iter().map(|agent| policy.covers(agent)).collect();
        let mut planning = Self {
            runs: &runs.runs,
            agents: runs.agents.iter().map(|agent| policy.resolve(agent)).collect(),
            names: &runs.agents,
            newest: vec![None; runs.agents.len()],
            order: in_order_of_ends(&runs.runs, &covered),
            fates: vec![Fate::Stays; runs.runs.len()],
        };
        if policy.protects_newest() {
            planning.find_newest();
        }
        planning
    }

    fn find_newest(&mut self) {
        for entry in self.runs.iter().filter(|entry| entry.run.status.is_ended()) {
            let newest = &mut self.newest[entry.agent];
            *newest = (*newest).max(Some(newness(&entry.run)));
        }
    }

    /// Applies number and age.
    fn judge_each(&mut self, now: Timestamp) {
        let last_kept = self.last_kept();
        for (place, entry) in self.runs.iter().enumerate() {
            let limits = self.limits(entry);
            let outnumbered =
                last_kept[self.group(entry)].is_some_and(|last| newness(&entry.run) < last);
            let too_old = limits.max_age.is_some_and(|max_age| age(&entry.run, now) > max_age);
            if outnumbered {
                self.fates[place] = Fate::Due(Rule::NewestN);
            } else if too_old {
                self.fates[place] = Fate::Due(Rule::Age);
            }
        }
    }

    /// For each group of runs that are counted together, the last one that is kept, if a limit on
    /// their number is reached.
    fn last_kept(&self) -> Vec<Option<Newness>> {
        let mut groups: Vec<Vec<Newness>> = vec![Vec::new(); self.agents.len() * STATUSES];
        for entry in self.runs {
            if entry.run.status.is_ended() && self.limits(entry).keep_newest.is_some() {
                groups[self.group(entry)].push(newness(&entry.run));
            }
        }
        let limits = self.agents.iter().flatten().map(|limits| limits.keep_newest);
        groups.into_iter().zip(limits).map(|(group, limit)| nth_newest(group, limit?)).collect()
    }

    /// The group that a run is counted in: its agent's, or one of its agent and status.
    fn group(&self, entry: &Entry) -> usize {
        let status = usize::from(entry.run.status.code());
        let within = if self.limits(entry).apart { status } else { 0 };
        entry.agent * STATUSES + within
    }

    fn limits(&self, entry: &Entry) -> &Resolved {
        &self.agents[entry.agent][usize::from(entry.run.status.code())]
    }

    /// Applies the limits on bytes, from the narrowest scope to the widest.
    fn judge_bytes(&mut self, policy: &Retention) {
        let by_both: Vec<_> =
            self.names.iter().flat_map(|agent| policy.bytes_of_agent_statuses(agent)).collect();
        let by_agent: Vec<_> =
            self.names.iter().map(|agent| policy.bytes_of_agent(agent)).collect();
        self.keep_budgets(&by_both, |agent, status| agent * STATUSES + status);
        self.keep_budgets(&by_agent, |agent, _| agent);
        self.keep_budgets(&policy.bytes_of_statuses(), |_, status| status);
        self.keep_budgets(&[policy.bytes_of_all()], |_, _| 0);
    }

    /// Marks runs as due, in the order of their ends, until each budget is met. `of` gives the
    /// budget of a run by its agent and its status.
    fn keep_budgets(&mut self, budgets: &[Option<u64>], of: impl Fn(usize, usize) -> usize) {
        if budgets.iter().all(Option::is_none) {
            return;
        }
        let budget_of = |entry: &Entry| of(entry.agent, usize::from(entry.run.status.code()));
        let mut spent = vec![0_u128; budgets.len()];
        for &place in self.order.iter().filter(|place| !self.goes(**place)) {
            let entry = &self.runs[place];
            spent[budget_of(entry)] += u128::from(entry.run.bytes);
        }
        for index in 0..self.order.len() {
            let place = self.order[index];
            let entry = &self.runs[place];
            let budget = budget_of(entry);
            let exceeded = budgets[budget].is_some_and(|most| spent[budget] > u128::from(most));
            if !exceeded || self.fates[place] != Fate::Stays {
                continue;
            }
            self.fates[place] = Fate::Due(Rule::Bytes);
            if self.goes(place) {
                spent[budget] -= u128::from(entry.run.bytes);
            }
        }
    }

    fn goes(&self, place: usize) -> bool {
        self.fates[place] != Fate::Stays && self.protection(&self.runs[place]).is_none()
    }

    fn protection(&self, entry: &Entry) -> Option<Protection> {
        if !entry.run.status.is_ended() {
            Some(Protection::InProgress)
        } else if entry.run.held {
            Some(Protection::Held)
        } else if self.newest[entry.agent] == Some(newness(&entry.run)) {
            Some(Protection::Newest)
        } else {
            None
        }
    }

    fn finish(
        self,
        most: Option<u64>,
        due: &mut dyn FnMut(usize, Rule, Option<Protection>),
    ) -> Totals {
        let mut totals = Totals::default();
        for &place in &self.order {
            let entry = &self.runs[place];
            let protection = self.protection(entry);
            totals.add(&entry.run, protection.is_none() && self.goes(place));
            if let Fate::Due(rule) = self.fates[place] {
                due(place, rule, protection);
            }
        }
        let kept = totals.kept_bytes;
        totals.excess_bytes = most.map_or(0, |most| kept.saturating_sub(most));
        totals
    }
}

impl Totals {
    fn add(&mut self, run: &Candidate, goes: bool) {
        let (count, bytes) = if goes {
            (&mut self.going, &mut self.going_bytes)
        } else {
            (&mut self.kept, &mut self.kept_bytes)
        };
        *count += 1;
        *bytes = bytes.saturating_add(run.bytes);
        if !run.status.is_ended() {
            self.in_progress += 1;
            self.in_progress_bytes = self.in_progress_bytes.saturating_add(run.bytes);
        }
    }
}

fn newness(run: &Candidate) -> Newness {
    (run.created_at, run.run_no)
}

/// How many nanoseconds ago a run ended, at most; negative if the clock is earlier than its end.
fn age(run: &Candidate, now: Timestamp) -> i64 {
    now.0.saturating_sub(run.ended_at.0)
}

/// The indexes of the runs of covered agents, sorted by their ends.
fn in_order_of_ends(runs: &[Entry], covered: &[bool]) -> Vec<usize> {
    let places = runs.iter().enumerate().filter(|(_, entry)| covered[entry.agent]);
    let mut order: Vec<usize> = places.map(|(place, _)| place).collect();
    // Without a copy of the keys, which would take four times the memory of the order.
    order.sort_unstable_by_key(|place| order_of_end(&runs[*place].run));
    order
}

/// Time and number as one number, which sorts several times faster than a pair.
fn order_of_end(run: &Candidate) -> u128 {
    let since_first = run.ended_at.0.abs_diff(i64::MIN);
    u128::from(since_first) << 64 | u128::from(run.run_no.0)
}

/// The last of the newest `count`, if there are that many.
fn nth_newest(mut group: Vec<Newness>, count: u64) -> Option<Newness> {
    let nth = usize::try_from(count).ok()?.checked_sub(1)?;
    if nth >= group.len() {
        return None;
    }
    let (_, last, _) = group.select_nth_unstable_by(nth, |left, right| right.cmp(left));
    Some(*last)
}

#[cfg(test)]
mod tests;
