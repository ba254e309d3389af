//! What a policy should do, computed slowly and from its documentation alone: each run is judged by
//! all limits that apply to it, newer runs are counted one by one, and for bytes the run that ended
//! first is searched again and again.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use runlog::{AgentId, GcPlan, Limits, Protection, Retention, Rule, RunStatus};
use runlog_sim::SplitMix64;

use super::state::{AGENTS, Name, State};

pub(super) const ENDED: [RunStatus; 4] =
    [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled, RunStatus::Interrupted];

/// The scope of a limit.
type Scope = (Option<&'static str>, Option<RunStatus>);

#[derive(Debug, Clone, Copy)]
enum Limit {
    Newest(u64),
    /// In nanoseconds.
    Age(u64),
    Bytes(u64),
}

/// The limits of an owner, in the order of the calls. Zero means no limit.
#[derive(Debug, Clone, Default)]
pub(super) struct Policy {
    said: Vec<(Scope, Limit)>,
    only: BTreeSet<&'static str>,
    protect_newest: bool,
}

/// A run as a policy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) name: Name,
    number: u64,
    status: RunStatus,
    created_at: i64,
    ended_at: i64,
    pub(super) bytes: u64,
    held: bool,
}

/// What a plan should report of a run: why it is due, and what protects it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) run: Judged,
    pub(super) rule: Rule,
    pub(super) protection: Option<Protection>,
}

impl Limit {
    fn random(random: &mut SplitMix64) -> Self {
        let none = random.below(8) == 0;
        match random.below(3) {
            _ if none => [Self::Newest(0), Self::Age(0), Self::Bytes(0)][random.index(3)],
            0 => Self::Newest(1 + random.below(9)),
            1 => {
                let most = 1 << (20 + random.below(23));
                Self::Age(1 + random.below(most))
            }
            _ => Self::Bytes(1000 + random.below(300_000)),
        }
    }

    fn within(self, limits: Limits) -> Limits {
        match self {
            Self::Newest(count) => limits.keep_newest(Some(count).filter(|count| *count != 0)),
            Self::Age(nanos) => limits.max_age(Duration::from_nanos(nanos)),
            Self::Bytes(bytes) => limits.max_bytes(bytes),
        }
    }
}

/// A limit that is not zero.
fn at_most(limit: u64) -> Option<u64> {
    (limit != 0).then_some(limit)
}

impl Policy {
    pub(super) fn random(random: &mut SplitMix64) -> Self {
        let mut policy = Self { protect_newest: random.coin(), ..Self::default() };
        for _ in 0..1 + random.index(4) {
            let agent = (random.below(3) == 0).then(|| AGENTS[random.index(AGENTS.len())]);
            let status = (random.below(3) == 0).then(|| ENDED[random.index(ENDED.len())]);
            policy.said.push(((agent, status), Limit::random(random)));
        }
        if random.below(6) == 0 {
            policy.only.insert(AGENTS[random.index(AGENTS.len())]);
            policy.only.insert(AGENTS[random.index(AGENTS.len())]);
        }
        policy
    }

    /// A policy that keeps a store small.
    pub(super) fn bytes(most: u64) -> Self {
        Self { said: vec![((None, None), Limit::Bytes(most))], ..Self::default() }
    }

    pub(super) fn retention(&self) -> Retention {
        let mut policy = Retention::new().protect_newest(self.protect_newest);
        for ((agent, status), limit) in &self.said {
            let agent = agent.map(|agent| AgentId::new(agent).unwrap());
            let limits = limit.within(Limits::new());
            policy = match (agent, *status) {
                (Some(agent), Some(status)) => policy.for_agent_status(agent, status, limits),
                (Some(agent), None) => policy.for_agent(agent, limits),
                (None, Some(status)) => policy.for_status(status, limits),
                (None, None) => match *limit {
                    Limit::Newest(count) => policy.keep_newest(count),
                    Limit::Age(nanos) => policy.max_age(Duration::from_nanos(nanos)),
                    Limit::Bytes(bytes) => policy.max_bytes(bytes),
                },
            };
        }
        let only = self.only.iter().map(|agent| AgentId::new(agent).unwrap());
        only.fold(policy, Retention::only_agent)
    }

    fn covers(&self, run: &Judged) -> bool {
        self.only.is_empty() || self.only.contains(run.name.0)
    }

    /// The last limit for exactly this scope.
    fn said_of(&self, scope: Scope, what: fn(Limit) -> Option<u64>) -> Option<u64> {
        let of_scope = self.said.iter().rev().filter(|said| said.0 == scope);
        of_scope.map(|said| said.1).find_map(what)
    }

    /// The limit of a run, from the narrowest scope that has one, and whether that scope is one of
    /// a status.
    fn limit_of(&self, run: &Judged, what: fn(Limit) -> Option<u64>) -> (Option<u64>, bool) {
        let (agent, status) = (Some(run.name.0), Some(run.status));
        for scope in [(agent, status), (agent, None), (None, status), (None, None)] {
            if let Some(limit) = self.said_of(scope, what) {
                return (at_most(limit), scope.1.is_some());
            }
        }
        (None, false)
    }

    fn is_outnumbered(&self, all: &[Judged], run: &Judged) -> bool {
        let newest = |limit| match limit {
            Limit::Newest(count) => Some(count),
            _ => None,
        };
        let (Some(count), apart) = self.limit_of(run, newest) else { return false };
        let counted_with = |other: &&Judged| {
            other.status.is_ended()
                && other.name.0 == run.name.0
                && self.limit_of(other, newest).1 == apart
                && (!apart || other.status == run.status)
        };
        let newer =
            |other: &&Judged| (other.created_at, other.number) > (run.created_at, run.number);
        all.iter().filter(counted_with).filter(newer).count() as u64 >= count
    }

    fn is_too_old(&self, run: &Judged, now: i64) -> bool {
        let (most, _) = self.limit_of(run, |limit| match limit {
            Limit::Age(nanos) => Some(nanos),
            _ => None,
        });
        most.is_some_and(|most| i128::from(now) - i128::from(run.ended_at) > i128::from(most))
    }

    fn protection(&self, all: &[Judged], run: &Judged) -> Option<Protection> {
        let of_agent = |other: &&Judged| other.name.0 == run.name.0 && other.status.is_ended();
        let newest =
            all.iter().filter(of_agent).max_by_key(|other| (other.created_at, other.number));
        if !run.status.is_ended() {
            Some(Protection::InProgress)
        } else if run.held {
            Some(Protection::Held)
        } else if self.protect_newest && newest == Some(run) {
            Some(Protection::Newest)
        } else {
            None
        }
    }

    /// All scopes, the narrowest first.
    fn scopes() -> Vec<Scope> {
        let mut scopes = Vec::new();
        for agent in AGENTS {
            scopes.extend(ENDED.map(|status| (Some(agent), Some(status))));
        }
        scopes.extend(AGENTS.map(|agent| (Some(agent), None)));
        scopes.extend(ENDED.map(|status| (None, Some(status))));
        scopes.push((None, None));
        scopes
    }

    fn bytes_of(&self, scope: Scope) -> Option<u64> {
        let bytes = |limit| match limit {
            Limit::Bytes(bytes) => Some(bytes),
            _ => None,
        };
        self.said_of(scope, bytes).and_then(at_most)
    }

    /// The runs that are due, in the order of their ends. `all` is in that order.
    fn judge(&self, all: &[Judged], now: i64) -> Vec<Option<Rule>> {
        let of_itself = |run: &Judged| {
            if !self.covers(run) {
                None
            } else if self.is_outnumbered(all, run) {
                Some(Rule::NewestN)
            } else if self.is_too_old(run, now) {
                Some(Rule::Age)
            } else {
                None
            }
        };
        let mut due: Vec<Option<Rule>> = all.iter().map(of_itself).collect();
        for (agent, status) in Self::scopes() {
            let Some(most) = self.bytes_of((agent, status)) else { continue };
            let within = |run: &Judged| {
                self.covers(run)
                    && agent.is_none_or(|agent| agent == run.name.0)
                    && status.is_none_or(|status| status == run.status)
            };
            loop {
                let stays = |place: &usize| {
                    let run = &all[*place];
                    within(run) && (due[*place].is_none() || self.protection(all, run).is_some())
                };
                let kept: u64 = (0..all.len()).filter(stays).map(|place| all[place].bytes).sum();
                let first = (0..all.len()).find(|at| within(&all[*at]) && due[*at].is_none());
                match first {
                    Some(first) if kept > most => due[first] = Some(Rule::Bytes),
                    _ => break,
                }
            }
        }
        due
    }

    /// The runs to delete, and those that are due but kept.
    pub(super) fn verdicts(&self, all: &[Judged], now: i64) -> Vec<Verdict> {
        let due = self.judge(all, now);
        let verdicts = all.iter().zip(due).filter_map(|(run, rule)| {
            let protection = self.protection(all, run);
            Some(Verdict { run: run.clone(), rule: rule?, protection })
        });
        verdicts.collect()
    }

    /// Compares a plan with the verdicts, run by run and number by number.
    pub(super) fn check(&self, plan: &GcPlan, all: &[Judged], verdicts: &[Verdict]) {
        let going: Vec<_> = verdicts.iter().filter(|found| found.protection.is_none()).collect();
        let staying: Vec<_> = verdicts.iter().filter(|found| found.protection.is_some()).collect();
        let expected: Vec<_> = going
            .iter()
            .map(|Verdict { run, rule, .. }| {
                (run.name.0, run.name.1.as_str(), run.status, run.ended_at, *rule, run.bytes)
            })
            .collect();
        let evict = plan.evict.iter().map(|run| {
            let (agent, id) = (run.agent.as_str(), run.run.as_str());
            (agent, id, run.status, run.ended_at.0, run.rule, run.bytes)
        });
        assert_eq!(evict.collect::<Vec<_>>(), expected, "{self:?}");
        let expected: Vec<_> = staying
            .iter()
            .map(|Verdict { run, rule, protection }| {
                (run.name.0, run.name.1.as_str(), *rule, protection.unwrap(), run.bytes)
            })
            .collect();
        let protected = plan
            .protected
            .iter()
            .map(|run| (run.agent.as_str(), run.run.as_str(), run.rule, run.protection, run.bytes));
        assert_eq!(protected.collect::<Vec<_>>(), expected, "{self:?}");
        let covered: Vec<_> = all.iter().filter(|run| self.covers(run)).collect();
        let bytes: u64 = covered.iter().map(|run| run.bytes).sum();
        let going_bytes: u64 = going.iter().map(|found| found.run.bytes).sum();
        let running: Vec<_> = covered.iter().filter(|run| !run.status.is_ended()).collect();
        let most = self.bytes_of((None, None)).unwrap_or(u64::MAX);
        let totals = plan.totals;
        assert_eq!((totals.going, totals.going_bytes), (going.len() as u64, going_bytes));
        assert_eq!(totals.kept, (covered.len() - going.len()) as u64);
        assert_eq!(totals.kept_bytes, bytes - going_bytes);
        assert_eq!(totals.in_progress, running.len() as u64);
        assert_eq!(totals.in_progress_bytes, running.iter().map(|run| run.bytes).sum::<u64>());
        assert_eq!(totals.excess_bytes, (bytes - going_bytes).saturating_sub(most));
    }
}

impl Judged {
    /// All runs of a state in the order of their ends. The bytes are those that the store counts,
    /// since a compaction leaves some frames out: they must be within the limits of the state.
    pub(super) fn all(
        state: &State,
        bytes: &BTreeMap<(String, String), u64>,
        compressed: bool,
    ) -> Vec<Self> {
        assert_eq!(bytes.len(), state.runs.len());
        let mut all: Vec<Self> = Vec::new();
        for (name, run) in &state.runs {
            let bytes = bytes[&(name.0.to_owned(), name.1.clone())];
            let (least, most) = run.stored(compressed);
            assert!((least..=most).contains(&bytes), "{name:?}: {bytes} of {least} to {most}");
            all.push(Self {
                name: name.clone(),
                number: run.number,
                status: run.status(),
                created_at: run.created_at,
                ended_at: run.end.as_ref().map_or(run.last_at, |end| end.at),
                bytes,
                held: run.hold.is_some(),
            });
        }
        all.sort_by_key(|run| (run.ended_at, run.number));
        all
    }
}
