//! What the tests of the store of car-server-core show of it, of ours: with the records of both
//! versions of car-proto, while a process lives on, is closed and opened, or killed between any two
//! calls.

use chrono::SecondsFormat;
use runlog_conformance::car::{CarRunStore, V0_23, V0_60, Version};
use runlog_stores::run_store::{RetentionConfig, RunStatus};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::run_store_world::{DAY, NOW, World, in_all_lives, in_lives, time};

fn store<V: Version>(world: &World) -> CarRunStore<V> {
    world.store().into()
}

fn made<R: DeserializeOwned>(json: Value) -> R {
    serde_json::from_value(json).unwrap()
}

fn at(nanos: i64) -> String {
    time(nanos).to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

fn start<V: Version>(world: &World, agent: &str, run: &str, nanos: i64) {
    let intent = format!("the intent of {run}");
    let started = json!({
        "run_id": run, "agent_id": agent, "intent": intent, "started_at": at(nanos)
    });
    store::<V>(world).write_started(&made(started)).unwrap();
}

fn end_as<V: Version>(world: &World, agent: &str, run: &str, nanos: i64, termination: &Value) {
    let ended = json!({
        "run_id": run, "agent_id": agent, "termination": termination, "ended_at": at(nanos)
    });
    store::<V>(world).write_ended(&made(ended)).unwrap();
}

fn end<V: Version>(world: &World, agent: &str, run: &str, nanos: i64) {
    let outcome = json!({"status": "success", "timestamp": at(nanos)});
    let termination = json!({"kind": "outcome", "status": "success", "outcome": outcome});
    end_as::<V>(world, agent, run, nanos, &termination);
}

fn turn(index: usize, prompt: &str) -> Value {
    json!({"record": "turn", "index": index, "prompt": prompt, "verifier_verdict": "not_run"})
}

fn append<V: Version>(world: &World, agent: &str, run: &str, turns: &[Value]) {
    let turns: Vec<V::Record> = turns.iter().cloned().map(made).collect();
    store::<V>(world).append_turns(agent, run, &turns).unwrap();
}

fn trace<V: Version>(world: &World, run: &str) -> Vec<Value> {
    let trace = store::<V>(world).get_run_trace(run).expect("there is such a run");
    trace.iter().map(|record| json!(record)).collect()
}

fn ids<V: Version>(world: &World, agent: &str) -> Vec<String> {
    store::<V>(world).list_runs(agent).into_iter().map(|run| run.run_id).collect()
}

fn keep(max_per_agent: usize, max_age_days: i64) -> RetentionConfig {
    RetentionConfig { max_per_agent, max_age_days }
}

fn a_finished_run_is_read_from_its_start_to_its_end<V: Version>() {
    in_lives(|world| {
        start::<V>(world, "a", "r", NOW);
        append::<V>(world, "a", "r", &[turn(0, "go on")]);
        end::<V>(world, "a", "r", NOW + 1);
        let trace = trace::<V>(world, "r");
        assert_eq!(trace.len(), 3);
        assert_eq!(
            (&trace[0]["record"], &trace[0]["started_at"]),
            (&json!("started"), &json!(at(NOW)))
        );
        assert_eq!(trace[1], turn(0, "go on"));
        assert_eq!(trace[2]["termination"]["status"], "success");
        let [run] = &store::<V>(world).list_runs("a")[..] else { panic!("one run") };
        assert_eq!((run.status, run.turn_count), (RunStatus::Completed, 1));
    });
}

fn runs_of_several_agents_do_not_mix<V: Version>() {
    in_lives(|world| {
        let runs = [("a", "r1"), ("b", "r2"), ("a", "r3")];
        for (number, (agent, run)) in (0..).zip(runs) {
            start::<V>(world, agent, run, NOW + number);
        }
        for (agent, run) in runs {
            append::<V>(world, agent, run, &[turn(0, run)]);
        }
        for (agent, run) in runs {
            assert_eq!(trace::<V>(world, run)[1..], [turn(0, run)]);
            assert_eq!(store::<V>(world).agent_for_run(run).as_deref(), Some(agent));
        }
        assert_eq!(ids::<V>(world, "a"), ["r3", "r1"]);
        assert_eq!(ids::<V>(world, "b"), ["r2"]);
        assert!(store::<V>(world).get_run_trace_for("b", "r1").is_none());
    });
}

fn in_progress_is_not_incomplete<V: Version>() {
    in_lives(|world| {
        start::<V>(world, "a", "live", NOW);
        start::<V>(world, "a", "left", NOW + 1);
        end_as::<V>(world, "a", "left", NOW + 2, &json!({"kind": "incomplete"}));
        let runs = store::<V>(world).list_runs("a");
        let found: Vec<_> = runs.iter().map(|run| (run.run_id.as_str(), run.status)).collect();
        assert_eq!(found, [("left", RunStatus::Incomplete), ("live", RunStatus::InProgress)]);
    });
}

fn beyond_the_cap_the_oldest_go_and_a_run_in_progress_never<V: Version>() {
    in_all_lives(keep(3, 30), |world| {
        for number in 0..5 {
            let run = format!("r{number}");
            start::<V>(world, "a", &run, NOW + number);
            end::<V>(world, "a", &run, NOW + 10 + number);
        }
        start::<V>(world, "a", "live", NOW - 1);
        assert_eq!(store::<V>(world).gc(), 2);
        assert_eq!(ids::<V>(world, "a"), ["r4", "r3", "r2", "live"]);
    });
}

fn runs_beyond_the_age_go_by_their_end_and_not_by_their_start<V: Version>() {
    in_lives(|world| {
        for (run, started, ended) in [("old", 41, 40), ("fresh", 2, 1), ("long", 40, 1)] {
            start::<V>(world, "a", run, NOW - started * DAY);
            end::<V>(world, "a", run, NOW - ended * DAY);
        }
        assert_eq!(store::<V>(world).gc(), 1);
        assert_eq!(ids::<V>(world, "a"), ["fresh", "long"]);
    });
}

fn a_run_in_progress_stays_however_old_it_is<V: Version>() {
    in_all_lives(keep(1, 1), |world| {
        start::<V>(world, "a", "r", NOW - 40 * DAY);
        assert_eq!(store::<V>(world).gc(), 0);
        assert_eq!(ids::<V>(world, "a"), ["r"]);
    });
}

fn a_limit_of_nothing_keeps_everything<V: Version>() {
    for retention in [keep(0, 0), keep(0, -1), keep(0, i64::MAX), keep(0, i64::MIN)] {
        in_all_lives(retention, |world| {
            start::<V>(world, "a", "r", NOW - 4000 * DAY);
            end::<V>(world, "a", "r", NOW - 4000 * DAY);
            assert_eq!(store::<V>(world).gc(), 0);
            assert_eq!(ids::<V>(world, "a"), ["r"]);
        });
    }
}

fn of_an_agent_that_nobody_knows_there_is_nothing<V: Version>() {
    in_lives(|world| {
        assert!(store::<V>(world).list_runs("nobody").is_empty());
        assert!(store::<V>(world).get_run_trace("nothing").is_none());
        assert!(store::<V>(world).agent_for_run("nothing").is_none());
    });
}

fn orphans_are_ended_once_and_finished_runs_are_none<V: Version>() {
    in_lives(|world| {
        start::<V>(world, "a", "orphan", NOW - DAY);
        append::<V>(world, "a", "orphan", &[turn(0, "p")]);
        start::<V>(world, "a", "done", NOW - 2 * DAY);
        end::<V>(world, "a", "done", NOW - DAY);
        let before = trace::<V>(world, "done");
        assert_eq!(store::<V>(world).adopt_orphans(), 1);
        assert_eq!(store::<V>(world).adopt_orphans(), 0);
        assert_eq!(trace::<V>(world, "done"), before);
        let end = trace::<V>(world, "orphan").pop().unwrap();
        assert_eq!(end["termination"], json!({"kind": "incomplete"}));
        assert_eq!(end["ended_at"], json!(at(NOW)));
        let runs = store::<V>(world).list_runs("a");
        assert_eq!((runs[0].status, runs[0].turn_count), (RunStatus::Incomplete, 1));
    });
}

fn an_exact_retry_leaves_one_start_and_one_end<V: Version>() {
    in_lives(|world| {
        for _ in 0..3 {
            start::<V>(world, "a", "r", NOW);
        }
        append::<V>(world, "a", "r", &[turn(0, "p")]);
        for _ in 0..3 {
            end::<V>(world, "a", "r", NOW + 1);
        }
        assert_eq!(trace::<V>(world, "r").len(), 3);
        let other = json!({
            "run_id": "r", "agent_id": "a", "intent": "another", "started_at": at(NOW)
        });
        let refused = store::<V>(world).write_started(&made(other)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(trace::<V>(world, "r").len(), 3);
    });
}

fn records_need_no_start_and_may_follow_the_end<V: Version>() {
    in_lives(|world| {
        append::<V>(world, "a", "r", &[]);
        assert!(store::<V>(world).get_run_trace("r").is_none());
        append::<V>(world, "a", "r", &[turn(0, "p"), turn(0, "p")]);
        assert_eq!(trace::<V>(world, "r").len(), 2);
        assert!(ids::<V>(world, "a").is_empty(), "there is no start");
        start::<V>(world, "a", "r", NOW);
        end::<V>(world, "a", "r", NOW);
        append::<V>(world, "a", "r", &[turn(1, "late")]);
        let [run] = &store::<V>(world).list_runs("a")[..] else { panic!("one run") };
        assert_eq!((run.turn_count, run.status), (3, RunStatus::Completed));
    });
}

/// A folder of car, with the bytes that car writes.
fn a_folder_of_car_is_taken_over<V: Version>() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let agent = runs.join("a");
    std::fs::create_dir_all(&agent).unwrap();
    let line = |json| serde_json::to_string(&made::<V::Record>(json)).unwrap();
    let started = |run: &str| {
        let (intent, at) = ("i", at(NOW));
        line(json!({
            "record": "started", "run_id": run, "agent_id": "a", "intent": intent, "started_at": at
        }))
    };
    let good = line(turn(0, "good"));
    let (whole, torn) = good.split_at(good.len());
    let torn_off = format!("{}\n{whole}\n{}", started("torn"), &good[..good.len() / 2]);
    std::fs::write(agent.join("torn.jsonl"), torn_off + torn).unwrap();
    let healed = format!("{}\n{}\n{whole}\n", started("healed"), &good[..good.len() / 2]);
    std::fs::write(agent.join("healed.jsonl"), healed).unwrap();

    let opened = || CarRunStore::<V>::from_journal_dir(&folder.path().join("journals"));
    assert_eq!(opened().store().root(), runs);
    opened().store().import_tree(&runs).unwrap();
    for run in ["torn", "healed"] {
        let trace = opened().get_run_trace(run).unwrap();
        let found: Vec<Value> = trace.iter().map(|record| json!(record)).collect();
        assert_eq!(found.len(), 2, "{run}: the start and the turn that can be read");
        assert_eq!(found[1], turn(0, "good"));
    }
    assert_eq!(opened().list_runs("a").len(), 2);
}

fn what_is_kept_can_be_configured<V: Version>() {
    let folder = tempfile::tempdir().unwrap();
    let journals = folder.path().join("journals");
    let retention = || CarRunStore::<V>::from_journal_dir(&journals).store().retention();
    assert_eq!(retention(), keep(50, 30));
    std::fs::write(folder.path().join("config.toml"), "[runs]\nmax_per_agent = 10\n").unwrap();
    assert_eq!(retention(), keep(10, 30));
    std::fs::write(folder.path().join("config.toml"), "[runs]\nmax_age_days = 0\n").unwrap();
    assert_eq!(retention(), keep(50, 0));
}

#[cfg(unix)]
fn files_are_for_their_owner_alone<V: Version>() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let store = CarRunStore::<V>::new(runs.clone(), RetentionConfig::default());
    store.append_turns("a", "r", &[made(turn(0, "p"))]).unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(runs.clone()), 0o700);
    let files = std::fs::read_dir(&runs).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some()).collect();
    assert!(!files.is_empty() && files.into_iter().all(|path| mode(path) == 0o600));
    assert!(runs.join(".nobackup").is_file());
}

fn pages_neither_repeat_nor_skip_while_runs_come<V: Version>() {
    in_lives(|world| {
        for number in 0..5 {
            start::<V>(world, "a", &format!("r{number}"), NOW + number);
        }
        let page = |cursor| store::<V>(world).store().list_runs_page("a", cursor, 2).unwrap();
        let first = page(None);
        start::<V>(world, "a", "new", NOW + 10);
        let second = page(first.next.as_ref());
        let third = page(second.next.as_ref());
        let all = [first.runs, second.runs, third.runs].concat();
        let all: Vec<&str> = all.iter().map(|run| run.run_id.as_str()).collect();
        assert_eq!(all, ["r4", "r3", "r2", "r1", "r0"]);
    });
}

/// Only the late version has cancellations.
#[test]
fn a_run_whose_cancellation_is_pending_is_neither_adopted_nor_evicted() {
    in_all_lives(keep(1, 1), |world| {
        let identity = json!({
            "receipt_version": 1, "run_id": "r", "idempotency_key": "k", "reason_digest": "d",
            "principal": "p", "action_id": null, "request_id": null
        });
        let mut requested = identity.clone();
        requested["record"] = json!("cancellation_requested");
        start::<V0_60>(world, "a", "r", NOW - 40 * DAY);
        append::<V0_60>(world, "a", "r", &[requested]);
        let status = || store::<V0_60>(world).list_runs("a")[0].status;
        assert_eq!(status(), RunStatus::CancellationPending);
        assert_eq!((store::<V0_60>(world).adopt_orphans(), store::<V0_60>(world).gc()), (0, 0));

        let cancelled = json!({"kind": "cancelled", "cancellation": identity});
        end_as::<V0_60>(world, "a", "r", NOW - 39 * DAY, &cancelled);
        assert_eq!(status(), RunStatus::Cancelled);
        assert_eq!(trace::<V0_60>(world, "r")[2]["termination"], cancelled);
        assert_eq!(store::<V0_60>(world).gc(), 1);
    });
}

#[test]
fn a_start_that_nothing_followed_is_taken_back() {
    in_lives(|world| {
        let started = json!({
            "run_id": "r", "agent_id": "a", "intent": "i", "started_at": at(NOW), "client_id": "c"
        });
        store::<V0_60>(world).write_started(&made(started.clone())).unwrap();
        let roll_back = || {
            let started = serde_json::from_value(started.clone()).unwrap();
            store::<V0_60>(world).store().rollback_empty_run_start(&started).unwrap()
        };
        assert!(roll_back() && !roll_back());
        assert!(store::<V0_60>(world).get_run_trace("r").is_none());
        store::<V0_60>(world).write_started(&made(started.clone())).unwrap();
        append::<V0_60>(world, "a", "r", &[turn(0, "p")]);
        assert!(!roll_back());
        assert_eq!(trace::<V0_60>(world, "r").len(), 2);
    });
}

macro_rules! of_both_versions {
    ($($(#[$attribute:meta])* $case:ident)*) => {
        mod first_version {
            $($(#[$attribute])* #[test] fn $case() { super::$case::<super::V0_23>(); })*
        }
        mod late_version {
            $($(#[$attribute])* #[test] fn $case() { super::$case::<super::V0_60>(); })*
        }
    };
}

of_both_versions! {
    a_finished_run_is_read_from_its_start_to_its_end
    runs_of_several_agents_do_not_mix
    in_progress_is_not_incomplete
    beyond_the_cap_the_oldest_go_and_a_run_in_progress_never
    runs_beyond_the_age_go_by_their_end_and_not_by_their_start
    a_run_in_progress_stays_however_old_it_is
    a_limit_of_nothing_keeps_everything
    of_an_agent_that_nobody_knows_there_is_nothing
    orphans_are_ended_once_and_finished_runs_are_none
    an_exact_retry_leaves_one_start_and_one_end
    records_need_no_start_and_may_follow_the_end
    a_folder_of_car_is_taken_over
    what_is_kept_can_be_configured
    #[cfg(unix)] files_are_for_their_owner_alone
    pages_neither_repeat_nor_skip_while_runs_come
}
