//! What a policy promises, a sentence a test; `model.rs` compares plans with a slow model.

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

fn with_status(number: u64, status: RunStatus) -> Candidate {
    Candidate { status, ..run(number) }
}

fn in_progress(number: u64) -> Candidate {
    with_status(number, RunStatus::InProgress)
}

fn held(number: u64) -> Candidate {
    Candidate { held: true, ..run(number) }
}

fn ended_at(number: u64, at: i64) -> Candidate {
    Candidate { ended_at: Timestamp(at), ..run(number) }
}

fn inventory(runs: &[(&str, Candidate)]) -> Inventory {
    let mut inventory = Inventory::with_capacity(runs.len());
    for (name, run) in runs {
        inventory.push(&agent(name), *run);
    }
    inventory
}

fn of_a(runs: &[Candidate]) -> Inventory {
    inventory(&runs.iter().map(|run| ("a", *run)).collect::<Vec<_>>())
}

fn planned(policy: &Retention, runs: &Inventory) -> Plan {
    plan(policy, Timestamp(NOW), runs).unwrap()
}

fn going(plan: &Plan) -> Vec<(u64, Rule)> {
    plan.going.iter().map(|run| (run.run_no.0, run.rule)).collect()
}

fn numbers(plan: &Plan) -> Vec<u64> {
    plan.going.iter().map(|run| run.run_no.0).collect()
}

fn protected(plan: &Plan) -> Vec<(u64, Rule, Protection)> {
    plan.protected.iter().map(|run| (run.run_no.0, run.rule, run.protection)).collect()
}

#[test]
fn without_limits_nothing_goes() {
    let runs = of_a(&[run(1), run(2), in_progress(3), held(4)]);
    let plan = planned(&Retention::new(), &runs);
    assert!(plan.going.is_empty() && plan.protected.is_empty());
    assert_eq!((plan.totals.kept, plan.totals.kept_bytes), (4, 40));
    assert!(Retention::new().is_unlimited());
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
fn the_newest_n_of_each_agent_stay() {
    let runs = inventory(&[
        ("a", run(1)),
        ("b", run(2)),
        ("a", run(3)),
        ("a", run(4)),
        ("b", run(5)),
        ("c", run(6)),
    ]);
    let plan = planned(&Retention::new().keep_newest(2), &runs);
    assert_eq!(going(&plan), [(1, Rule::NewestN)]);
    let plan = planned(&Retention::new().keep_newest(1), &runs);
    assert_eq!(numbers(&plan), [1, 2, 3]);
    assert!(planned(&Retention::new().keep_newest(u64::MAX), &runs).going.is_empty());
}

#[test]
fn newest_is_by_creation_and_not_by_end() {
    let runs = of_a(&[ended_at(1, 900), ended_at(2, 500)]);
    assert_eq!(numbers(&planned(&Retention::new().keep_newest(1), &runs)), [1]);
}

#[test]
fn of_runs_from_the_same_instant_the_larger_number_is_newer() {
    let twin = |number| Candidate { created_at: Timestamp(5), ..ended_at(number, 50) };
    let runs = of_a(&[twin(8), twin(7), twin(9)]);
    assert_eq!(numbers(&planned(&Retention::new().keep_newest(1), &runs)), [7, 8]);
    assert_eq!(numbers(&planned(&Retention::new().max_bytes(10), &runs)), [7, 8]);
}

#[test]
fn failed_cancelled_and_interrupted_runs_are_completed_ones() {
    let runs = of_a(&[
        with_status(1, RunStatus::Failed),
        with_status(2, RunStatus::Cancelled),
        with_status(3, RunStatus::Interrupted),
        run(4),
    ]);
    assert_eq!(numbers(&planned(&Retention::new().keep_newest(1), &runs)), [1, 2, 3]);
}

#[test]
fn a_run_goes_when_it_is_older_than_the_age_and_not_when_as_old() {
    let runs = of_a(&[ended_at(1, NOW - 301), ended_at(2, NOW - 300), ended_at(3, NOW - 299)]);
    let plan = planned(&Retention::new().max_age(nanos(300)), &runs);
    assert_eq!(going(&plan), [(1, Rule::Age)]);
}

#[test]
fn age_counts_from_the_end_and_not_from_the_start() {
    let runs = of_a(&[Candidate { created_at: Timestamp(i64::MIN), ..ended_at(1, NOW - 1) }]);
    assert!(planned(&Retention::new().max_age(nanos(1)), &runs).going.is_empty());
}

#[test]
fn a_clock_before_the_end_of_a_run_gives_it_no_age() {
    let runs = of_a(&[ended_at(1, NOW + 1), ended_at(2, i64::MAX), ended_at(3, NOW)]);
    let policy = Retention::new().max_age(nanos(1));
    assert!(planned(&policy, &runs).going.is_empty());
    assert!(plan(&policy, Timestamp(i64::MIN), &runs).unwrap().going.is_empty());
}

#[test]
fn bytes_go_in_the_order_of_the_ends_until_the_rest_fits() {
    let runs = of_a(&[ended_at(1, 30), ended_at(2, 10), ended_at(3, 20), ended_at(4, 40)]);
    let gone = |bytes| numbers(&planned(&Retention::new().max_bytes(bytes), &runs));
    assert!(gone(40).is_empty());
    assert_eq!(gone(39), [2]);
    assert_eq!(gone(30), [2]);
    assert_eq!(gone(29), [2, 3]);
    assert_eq!(gone(9), [2, 3, 1, 4]);
}

#[test]
fn bytes_are_of_all_agents_together_and_of_what_the_other_limits_leave() {
    let runs = inventory(&[("a", run(1)), ("a", run(2)), ("b", run(3)), ("a", run(4))]);
    let policy = Retention::new().keep_newest(2).max_bytes(30);
    assert_eq!(going(&planned(&policy, &runs)), [(1, Rule::NewestN)]);
    let policy = policy.max_bytes(20);
    assert_eq!(going(&planned(&policy, &runs)), [(1, Rule::NewestN), (2, Rule::Bytes)]);
}

#[test]
fn whichever_limit_is_more_restrictive_wins() {
    let runs = of_a(&[ended_at(1, 100), ended_at(2, 200), ended_at(3, 300)]);
    let policy = Retention::new().keep_newest(2).max_age(nanos(750));
    assert_eq!(going(&planned(&policy, &runs)), [(1, Rule::NewestN), (2, Rule::Age)]);
    let policy = Retention::new().keep_newest(1).max_age(nanos(850));
    assert_eq!(going(&planned(&policy, &runs)), [(1, Rule::NewestN), (2, Rule::NewestN)]);
    let policy = Retention::new().keep_newest(9).max_age(nanos(1)).max_bytes(100);
    assert_eq!(numbers(&planned(&policy, &runs)), [1, 2, 3]);
}

#[test]
fn what_goes_by_age_has_its_place_among_the_newest_n() {
    // The newest by creation ended first: it goes by its age, and the next is not moved up.
    let runs = of_a(&[ended_at(1, 900), ended_at(2, 900), ended_at(3, 100)]);
    let policy = Retention::new().keep_newest(2).max_age(nanos(500));
    assert_eq!(going(&planned(&policy, &runs)), [(3, Rule::Age), (1, Rule::NewestN)]);
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
fn a_run_in_progress_is_told_only_where_it_was_due() {
    let policy = Retention::new().keep_newest(1);
    let runs = of_a(&[in_progress(1), run(2), in_progress(3)]);
    let due = [(1, Rule::NewestN, Protection::InProgress)];
    assert_eq!(protected(&planned(&policy, &runs)), due);
    let policy = Retention::new().max_age(nanos(500));
    let stale = |number, at| Candidate { status: RunStatus::InProgress, ..ended_at(number, at) };
    let runs = of_a(&[stale(1, 499), stale(2, 500)]);
    assert_eq!(protected(&planned(&policy, &runs)), [(1, Rule::Age, Protection::InProgress)]);
}

#[test]
fn the_bytes_of_runs_in_progress_and_held_ones_count() {
    let runs = of_a(&[held(1), in_progress(2), run(3), run(4), run(5)]);
    let plan = planned(&Retention::new().max_bytes(35), &runs);
    assert_eq!(numbers(&plan), [3, 4]);
    let due = [(1, Rule::Bytes, Protection::Held), (2, Rule::Bytes, Protection::InProgress)];
    assert_eq!(protected(&plan), due);
    assert_eq!((plan.totals.kept_bytes, plan.totals.excess_bytes), (30, 0));
}

#[test]
fn a_held_run_never_goes() {
    let runs = of_a(&[held(1), held(2)]);
    let all = Retention::new().keep_newest(1).max_age(nanos(1)).max_bytes(1);
    let plan = planned(&all, &runs);
    assert!(plan.going.is_empty());
    let due = [(1, Rule::NewestN, Protection::Held), (2, Rule::Age, Protection::Held)];
    assert_eq!(protected(&plan), due);
}

#[test]
fn a_hold_changes_the_fate_of_no_other_run() {
    let policy = Retention::new().keep_newest(2).max_age(nanos(898));
    let free: Vec<Candidate> = (1..=5).map(run).collect();
    let without = numbers(&planned(&policy, &of_a(&free)));
    assert_eq!(without, [1, 2, 3]);
    for place in 0..free.len() {
        let mut runs = free.clone();
        runs[place].held = true;
        let number = runs[place].run_no.0;
        let expected: Vec<u64> = without.iter().copied().filter(|gone| *gone != number).collect();
        assert_eq!(numbers(&planned(&policy, &of_a(&runs))), expected, "run {number} held");
    }
}

#[test]
fn the_newest_completed_run_of_each_agent_stays_if_that_is_asked() {
    let all = Retention::new().max_age(nanos(1)).max_bytes(1).protect_newest(true);
    let runs = inventory(&[
        ("a", run(1)),
        ("a", with_status(2, RunStatus::Failed)),
        ("a", in_progress(3)),
        ("b", run(4)),
    ]);
    let plan = planned(&all, &runs);
    assert_eq!(numbers(&plan), [1]);
    let due = [
        (2, Rule::Age, Protection::Newest),
        (3, Rule::Age, Protection::InProgress),
        (4, Rule::Age, Protection::Newest),
    ];
    assert_eq!(protected(&plan), due);
    assert_eq!(numbers(&planned(&all.protect_newest(false), &runs)), [1, 2, 4]);
}

#[test]
fn an_agents_exception_replaces_what_it_names_and_inherits_the_rest() {
    let runs = inventory(&[("a", run(1)), ("a", run(2)), ("b", run(3)), ("b", run(4))]);
    let policy = Retention::new().keep_newest(1).max_age(nanos(897));
    assert_eq!(
        going(&planned(&policy, &runs)),
        [(1, Rule::NewestN), (2, Rule::Age), (3, Rule::NewestN)]
    );
    let more = policy.clone().for_agent(agent("a"), Limits::new().keep_newest(2));
    assert_eq!(going(&planned(&more, &runs)), [(1, Rule::Age), (2, Rule::Age), (3, Rule::NewestN)]);
    let older = policy.clone().for_agent(agent("a"), Limits::new().max_age(None));
    assert_eq!(numbers(&planned(&older, &runs)), [1, 3]);
    let both = more.for_agent(agent("a"), Limits::new().max_age(nanos(899)));
    assert_eq!(numbers(&planned(&both, &runs)), [3]);
}

#[test]
fn failures_can_be_kept_longer_and_are_counted_apart() {
    let failed = |number| with_status(number, RunStatus::Failed);
    let runs = of_a(&[failed(1), failed(2), run(3), run(4), failed(5), run(6)]);
    let policy = Retention::new().keep_newest(2);
    assert_eq!(numbers(&planned(&policy, &runs)), [1, 2, 3, 4]);
    let three = policy.clone().for_status(RunStatus::Failed, Limits::new().keep_newest(3));
    assert_eq!(numbers(&planned(&three, &runs)), [3]);
    let all = policy.clone().for_status(RunStatus::Failed, Limits::new().keep_newest(0));
    assert_eq!(numbers(&planned(&all, &runs)), [3]);
    let aged = policy.for_status(RunStatus::Failed, Limits::new().max_age(nanos(898)));
    let plan = planned(&aged, &runs);
    assert_eq!(numbers(&plan), [1, 2, 3, 4]);
    let aged = Retention::new()
        .max_age(nanos(898))
        .for_status(RunStatus::Failed, Limits::new().max_age(nanos(1_000)));
    assert!(planned(&aged, &runs).going.is_empty());
}

#[test]
fn the_narrowest_exception_wins() {
    let failed = with_status(1, RunStatus::Failed);
    let runs = inventory(&[("a", failed), ("a", run(2)), ("b", Candidate { ..failed })]);
    let aged = |age| Limits::new().max_age(nanos(age));
    let policy = Retention::new().max_age(nanos(1)).for_status(RunStatus::Failed, aged(2_000));
    assert_eq!(numbers(&planned(&policy, &runs)), [2]);
    let policy = policy.for_agent(agent("a"), aged(898));
    assert_eq!(numbers(&planned(&policy, &runs)), [1], "the agent goes before the status");
    let policy = policy.for_agent_status(agent("a"), RunStatus::Failed, aged(3_000));
    assert!(planned(&policy, &runs).going.is_empty());
}

#[test]
fn a_maximum_of_bytes_is_for_its_scope_and_lifts_no_larger_one() {
    let failed = |number| with_status(number, RunStatus::Failed);
    let runs = inventory(&[("a", run(1)), ("b", run(2)), ("a", failed(3)), ("b", failed(4))]);
    let bytes = |bytes| Limits::new().max_bytes(bytes);
    let agents = Retention::new().for_agent(agent("b"), bytes(10));
    assert_eq!(numbers(&planned(&agents, &runs)), [2]);
    let statuses = Retention::new().for_status(RunStatus::Failed, bytes(10));
    assert_eq!(numbers(&planned(&statuses, &runs)), [3]);
    let both = Retention::new().for_agent_status(agent("a"), RunStatus::Failed, bytes(1));
    assert_eq!(numbers(&planned(&both, &runs)), [3]);
    let total = Retention::new().max_bytes(20).for_agent(agent("b"), bytes(1_000));
    assert_eq!(numbers(&planned(&total, &runs)), [1, 2]);
    // What goes for the narrower scope needs not go again for the larger one.
    assert_eq!(numbers(&planned(&both.max_bytes(30), &runs)), [3]);
}

#[test]
fn only_the_runs_of_named_agents_are_looked_at() {
    let runs = inventory(&[("a", run(1)), ("b", run(2)), ("c", run(3)), ("b", run(4))]);
    let policy = Retention::new().max_bytes(10).only_agent(agent("b"));
    let plan = planned(&policy, &runs);
    assert_eq!(numbers(&plan), [2]);
    assert_eq!((plan.totals.kept, plan.totals.going), (1, 1));
    assert_eq!(plan.going[0].place, 1);
    let plan = planned(&policy.only_agent(agent("a")), &runs);
    assert_eq!(numbers(&plan), [1, 2]);
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
fn the_ends_of_time_and_of_numbers_are_no_trouble() {
    let far = |number, at| Candidate { bytes: u64::MAX, ..ended_at(number, at) };
    let runs = of_a(&[far(1, i64::MIN), far(2, 0), far(3, i64::MAX)]);
    let policy = Retention::new().max_age(nanos(1));
    let at = |now| plan(&policy, Timestamp(now), &runs).unwrap();
    assert_eq!(numbers(&at(i64::MAX)), [1, 2]);
    assert_eq!(at(i64::MAX).totals.going_bytes, u64::MAX);
    assert!(at(i64::MIN).going.is_empty());
    let longest = Retention::new().max_age(nanos(u64::try_from(i64::MAX).unwrap()));
    assert!(plan(&longest, Timestamp(0), &runs).unwrap().going.is_empty());
    let bytes = |most| planned(&Retention::new().max_bytes(most), &runs);
    assert_eq!(numbers(&bytes(u64::MAX)), [1, 2]);
    assert_eq!(numbers(&bytes(u64::MAX - 1)), [1, 2, 3]);
    let empty = plan(&policy, Timestamp(NOW), &Inventory::new()).unwrap();
    assert_eq!(empty, Plan::default());
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
