//! Plans against a slow model that has another idea of everything: exceptions are a list that is
//! searched for each run, newer runs are counted one by one, and for bytes the first end among all
//! that are left is looked for again and again.
#![expect(clippy::option_option, reason = "not named, no limit, and a limit are three things")]

use core::time::Duration;

use proptest::prelude::*;

use super::agent;
use crate::gc::{Candidate, Inventory, Limits, Plan, Protection, Retention, Rule, plan};
use crate::types::{AgentId, RunNo, RunStatus, Timestamp};

const AGENTS: [&str; 3] = ["a", "b", "c"];
const ENDED: [RunStatus; 4] =
    [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled, RunStatus::Interrupted];

/// What an exception, or the policy itself, names; the inner nothing is "no limit".
#[derive(Debug, Clone, Copy, Default)]
struct Named {
    count: Option<Option<u64>>,
    age: Option<Option<u64>>,
    bytes: Option<Option<u64>>,
}

#[derive(Debug, Clone, Copy)]
struct Exception {
    agent: Option<usize>,
    status: Option<RunStatus>,
    named: Named,
}

#[derive(Debug, Clone)]
struct Spec {
    said: Vec<Exception>,
    only: Vec<usize>,
    protect_newest: bool,
    now: i64,
}

/// Agent and run.
type Runs = Vec<(usize, Candidate)>;

impl Spec {
    fn policy(&self) -> Retention {
        let mut policy = Retention::new().protect_newest(self.protect_newest);
        for said in &self.said {
            policy = said.add_to(policy);
        }
        let only = self.only.iter().map(|index| agent(AGENTS[*index]));
        only.fold(policy, Retention::only_agent)
    }

    /// The last that was said of something for exactly this scope.
    fn said<T>(
        &self,
        scope: (Option<usize>, Option<RunStatus>),
        what: fn(&Named) -> Option<T>,
    ) -> Option<T> {
        let mut said = self.said.iter().rev().filter(|said| (said.agent, said.status) == scope);
        said.find_map(|said| what(&said.named))
    }

    /// What holds for a run, and whether its status was named for that.
    fn limit(
        &self,
        run: &(usize, Candidate),
        what: fn(&Named) -> Option<Option<u64>>,
    ) -> (Option<u64>, bool) {
        let (agent, status) = (Some(run.0), Some(run.1.status));
        let scopes = [(agent, status), (agent, None), (None, status), (None, None)];
        let found = scopes.into_iter().find_map(|scope| Some((self.said(scope, what)?, scope.1)));
        found.map_or((None, false), |(limit, status)| (limit, status.is_some()))
    }

    fn due(&self, runs: &Runs, run: &(usize, Candidate)) -> Option<Rule> {
        let (count, apart) = self.limit(run, |named| named.count);
        let newer = |other: &&(usize, Candidate)| {
            let together = if apart { other.1.status == run.1.status } else { true };
            other.0 == run.0
                && other.1.status != RunStatus::InProgress
                && self.limit(other, |named| named.count).1 == apart
                && together
                && (other.1.created_at, other.1.run_no) > (run.1.created_at, run.1.run_no)
        };
        let outnumbered =
            count.is_some_and(|count| runs.iter().filter(newer).count() as u64 >= count);
        let age = i128::from(self.now) - i128::from(run.1.ended_at.0);
        let (most, _) = self.limit(run, |named| named.age);
        let too_old = most.is_some_and(|most| age > i128::from(most));
        outnumbered.then_some(Rule::NewestN).or(too_old.then_some(Rule::Age))
    }

    fn protection(&self, runs: &Runs, run: &(usize, Candidate)) -> Option<Protection> {
        let newness = |run: &Candidate| (run.created_at, run.run_no);
        let of_agent = runs.iter().filter(|other| other.0 == run.0 && other.1.status.is_ended());
        let newest = of_agent.max_by_key(|other| newness(&other.1));
        match run.1 {
            Candidate { status: RunStatus::InProgress, .. } => Some(Protection::InProgress),
            Candidate { held: true, .. } => Some(Protection::Held),
            _ => (self.protect_newest && newest == Some(run)).then_some(Protection::Newest),
        }
    }

    /// Run numbers with the rule they are due by.
    fn all_due(&self, runs: &Runs) -> Vec<Option<Rule>> {
        let mut due: Vec<_> = runs.iter().map(|run| self.due(runs, run)).collect();
        let agents = || (0..AGENTS.len()).map(Some);
        let statuses = || ENDED.into_iter().map(Some);
        let mut scopes = Vec::new();
        scopes.extend(agents().flat_map(|agent| statuses().map(move |status| (agent, status))));
        scopes.extend(agents().map(|agent| (agent, None)));
        scopes.extend(statuses().map(|status| (None, status)));
        scopes.push((None, None));
        for scope in scopes {
            if let Some(Some(most)) = self.said(scope, |named| named.bytes) {
                self.fit(runs, scope, most, &mut due);
            }
        }
        due
    }

    fn fit(
        &self,
        runs: &Runs,
        (agent, status): (Option<usize>, Option<RunStatus>),
        most: u64,
        due: &mut [Option<Rule>],
    ) {
        let within = |run: &(usize, Candidate)| {
            agent.is_none_or(|agent| agent == run.0)
                && status.is_none_or(|status| status == run.1.status)
        };
        loop {
            let kept = runs.iter().zip(&*due).filter(|(run, due)| {
                within(run) && (due.is_none() || self.protection(runs, run).is_some())
            });
            let bytes: u128 = kept.map(|(run, _)| u128::from(run.1.bytes)).sum();
            let waiting = (0..runs.len()).filter(|at| within(&runs[*at]) && due[*at].is_none());
            let first = waiting.min_by_key(|at| (runs[*at].1.ended_at, runs[*at].1.run_no));
            match first {
                Some(first) if bytes > u128::from(most) => due[first] = Some(Rule::Bytes),
                _ => return,
            }
        }
    }
}

impl Exception {
    fn add_to(&self, policy: Retention) -> Retention {
        let mut limits = Limits::new();
        if let Some(count) = self.named.count {
            limits = limits.keep_newest(count);
        }
        if let Some(age) = self.named.age {
            limits = limits.max_age(age.map(Duration::from_nanos));
        }
        if let Some(bytes) = self.named.bytes {
            limits = limits.max_bytes(bytes);
        }
        match (self.agent.map(|index| agent(AGENTS[index])), self.status) {
            (Some(agent), Some(status)) => policy.for_agent_status(agent, status, limits),
            (Some(agent), None) => policy.for_agent(agent, limits),
            (None, Some(status)) => policy.for_status(status, limits),
            (None, None) => self.say_for_all(policy),
        }
    }

    fn say_for_all(&self, mut policy: Retention) -> Retention {
        if let Some(count) = self.named.count {
            policy = policy.keep_newest(count);
        }
        if let Some(age) = self.named.age {
            policy = policy.max_age(age.map(Duration::from_nanos));
        }
        if let Some(bytes) = self.named.bytes {
            policy = policy.max_bytes(bytes);
        }
        policy
    }
}

fn limit(most: u64) -> impl Strategy<Value = Option<Option<u64>>> {
    let some = (1..=most).prop_map(|at| Some(Some(at)));
    prop_oneof![3 => Just(None), 1 => Just(Some(None)), 4 => some]
}

fn named() -> impl Strategy<Value = Named> {
    (limit(5), limit(12), limit(40)).prop_map(|(count, age, bytes)| Named { count, age, bytes })
}

fn exception() -> impl Strategy<Value = Exception> {
    let agent = proptest::option::of(0..AGENTS.len());
    let status = proptest::option::of(proptest::sample::select(&ENDED[..]));
    (agent, status, named()).prop_map(|(agent, status, named)| Exception { agent, status, named })
}

fn spec() -> impl Strategy<Value = Spec> {
    let said = proptest::collection::vec(exception(), 0..6);
    let only = prop_oneof![
        3 => Just(Vec::new()),
        1 => proptest::collection::vec(0..AGENTS.len(), 1..3),
    ];
    let now = prop_oneof![8 => 0_i64..25, 1 => Just(i64::MIN), 1 => Just(i64::MAX)];
    (named(), said, only, any::<bool>(), now).prop_map(|(named, mut said, only, newest, now)| {
        said.insert(0, Exception { agent: None, status: None, named });
        Spec { said, only, protect_newest: newest, now }
    })
}

fn time() -> impl Strategy<Value = Timestamp> {
    let near = (0_i64..20).prop_map(Timestamp);
    prop_oneof![30 => near, 1 => Just(Timestamp(i64::MIN)), 1 => Just(Timestamp(i64::MAX))]
}

fn runs() -> impl Strategy<Value = Runs> {
    let status =
        prop_oneof![1 => Just(RunStatus::InProgress), 6 => proptest::sample::select(&ENDED[..])];
    let bytes = prop_oneof![40 => 0_u64..6, 1 => Just(u64::MAX)];
    let run = (0..AGENTS.len(), status, time(), time(), bytes, proptest::bool::weighted(0.1));
    proptest::collection::vec(run, 0..40).prop_map(|runs| {
        let numbered = (0..).zip(runs);
        let candidate = |(number, (agent, status, created_at, ended_at, bytes, held))| {
            let run_no = RunNo(number);
            (agent, Candidate { run_no, status, created_at, ended_at, bytes, held })
        };
        numbered.map(candidate).collect()
    })
}

fn made(spec: &Spec, runs: &Runs) -> Plan {
    let names: Vec<AgentId> = AGENTS.iter().map(|name| agent(name)).collect();
    let mut inventory = Inventory::new();
    for (agent, run) in runs {
        inventory.push(&names[*agent], *run);
    }
    plan(&spec.policy(), Timestamp(spec.now), &inventory).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn plans_are_those_of_the_model(spec in spec(), all in runs(), backwards: bool) {
        let mut all = all;
        if backwards {
            all.reverse();
        }
        let plan = made(&spec, &all);
        let covers = |run: &&(usize, Candidate)| spec.only.is_empty() || spec.only.contains(&run.0);
        let mut runs: Runs = all.iter().filter(covers).copied().collect();
        runs.sort_by_key(|(_, run)| (run.ended_at, run.run_no));
        let due = spec.all_due(&runs);
        let judged = || {
            runs.iter().zip(&due).map(|(run, due)| (run, due, spec.protection(&runs, run)))
        };
        let going: Vec<_> = judged()
            .filter(|(_, _, protection)| protection.is_none())
            .filter_map(|(run, due, _)| Some((run.1.run_no, (*due)?, run.1.bytes)))
            .collect();
        let protected: Vec<_> = judged()
            .filter_map(|(run, due, protection)| Some((run.1.run_no, (*due)?, protection?)))
            .collect();
        let planned: Vec<_> =
            plan.going.iter().map(|run| (run.run_no, run.rule, run.bytes)).collect();
        prop_assert_eq!(planned, going.clone());
        let planned: Vec<_> =
            plan.protected.iter().map(|run| (run.run_no, run.rule, run.protection)).collect();
        prop_assert_eq!(planned, protected);
        prop_assert!(plan.going.iter().all(|run| all[run.place].1.run_no == run.run_no));
        prop_assert_eq!(plan.totals.going, going.len() as u64);
        prop_assert_eq!(plan.totals.kept, (runs.len() - going.len()) as u64);
        let bytes = runs.iter().map(|(_, run)| u128::from(run.bytes)).sum::<u128>()
            - going.iter().map(|(_, _, bytes)| u128::from(*bytes)).sum::<u128>();
        prop_assert_eq!(plan.totals.kept_bytes, u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}
