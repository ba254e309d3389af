//! Promises by example; `model.rs` compares plans with a slow model.

mod model;

use core::time::Duration;

use crate::error::Error;
use crate::gc::{Candidate, Inventory, Limits, Plan, Protection, Retention, Rule, plan};
use crate::types::{AgentId, RunNo, RunStatus, Timestamp};

const NOW: i64 = 1_000;

fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

fn nanos(nanos: u64) -> Duration {
    Duration::from_nanos(nanos)
}

/// A completed run of 10 bytes that was created at its number and ended 100 later.
fn run(number: u64) -> Candidate {
    let created_at = i64::try_from(number).unwrap();
    Candidate {
        run_no: RunNo(number),
        status: RunStatus::Completed,
        created_at: Timestamp(created_at),
        ended_at: Timestamp(created_at + 100),
        bytes: 10,
        held: false,
    }
}

fn in_progress(number: u64) -> Candidate {
    Candidate { status: RunStatus::InProgress, ..run(number) }
}

fn of_a(runs: &[Candidate]) -> Inventory {
    let mut inventory = Inventory::with_capacity(runs.len());
    for run in runs {
        inventory.push(&agent("a"), *run);
    }
    inventory
}

fn planned(policy: &Retention, runs: &Inventory) -> Plan {
    plan(policy, Timestamp(NOW), runs).unwrap()
}

fn numbers(plan: &Plan) -> Vec<u64> {
    plan.going.iter().map(|run| run.run_no.0).collect()
}

#[test]
fn zero_and_none_are_no_limit() {
    let runs = of_a(&[run(1), run(2), run(3)]);
    let zero = Retention::new().keep_newest(0).max_age(Duration::ZERO).max_bytes(0);
    let none = Retention::new().keep_newest(None).max_age(None).max_bytes(None);
    for policy in [zero, none] {
        assert!(policy.is_unlimited());
        assert!(planned(&policy, &runs).going.is_empty());
        let policy = policy
            .for_agent(agent("a"), Limits::new().keep_newest(0).max_bytes(0))
            .for_status(RunStatus::Completed, Limits::new().max_age(Duration::ZERO));
        assert!(policy.is_unlimited());
        assert!(planned(&policy, &runs).going.is_empty());
    }
}

#[test]
fn a_run_in_progress_never_goes_and_takes_no_place() {
    let runs = of_a(&[in_progress(1), run(2), run(3), in_progress(4), in_progress(5)]);
    let plan = planned(&Retention::new().keep_newest(1).max_age(nanos(1_000)), &runs);
    assert_eq!(numbers(&plan), [2]);
    assert_eq!((plan.totals.in_progress, plan.totals.in_progress_bytes), (3, 30));
    let all = Retention::new().keep_newest(1).max_age(nanos(1)).max_bytes(1);
    let plan = planned(&all, &runs);
    assert_eq!(numbers(&plan), [2, 3]);
    assert_eq!((plan.totals.kept, plan.totals.kept_bytes), (3, 30));
    assert_eq!(plan.totals.excess_bytes, 29);
}

#[test]
fn impossible_limits_are_refused_and_delete_nothing() {
    let runs = of_a(&[run(1)]);
    let longest = nanos(u64::try_from(i64::MAX).unwrap());
    assert!(Retention::new().max_age(longest).check().is_ok());
    for age in [longest + nanos(1), Duration::MAX] {
        let aged = Limits::new().max_age(age);
        for policy in [
            Retention::new().max_age(age),
            Retention::new().for_agent(agent("z"), aged),
            Retention::new().for_status(RunStatus::Failed, aged),
            Retention::new().for_agent_status(agent("z"), RunStatus::Failed, aged),
        ] {
            let refused = plan(&policy, Timestamp(NOW), &runs);
            assert!(matches!(refused, Err(Error::InvalidArgument { .. })), "{refused:?}");
        }
    }
    let unfinished =
        Retention::new().for_status(RunStatus::InProgress, Limits::new().keep_newest(1));
    assert!(matches!(unfinished.check(), Err(Error::InvalidArgument { .. })));
}

#[test]
fn codes_and_words_of_rules_are_their_own() {
    let known: Vec<Rule> = (0..=u8::MAX).filter_map(Rule::from_code).collect();
    assert_eq!(known.len(), 5);
    for rule in known {
        assert_eq!(Rule::from_code(rule.code()), Some(rule));
        assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{rule}\""));
    }
    for reason in [Protection::InProgress, Protection::Held, Protection::Newest] {
        assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
    }
    let codes: Vec<u8> =
        (0..=u8::MAX).filter(|code| RunStatus::from_code(*code).is_some()).collect();
    assert_eq!(codes, [0, 1, 2, 3, 4], "a policy has room for the codes below five");
}
