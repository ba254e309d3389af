//! `RunStore`, first version: every case that the original tests, in all lives of a process.

use runlog_stores::run_store::{RetentionConfig, RunRecord, RunStatus, RunStore, RunTermination};

use serde_json::json;

use super::run_store_world::{
    DAY, NOW, ended, ids, in_all_lives, in_lives, outcome, started, success, turn,
};

fn keep(max_per_agent: usize, max_age_days: i64) -> RetentionConfig {
    RetentionConfig { max_per_agent, max_age_days }
}

#[test]
fn a_finished_run_is_read_in_order_from_its_start_to_its_end() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        world.store().append_turns("a", "r", &[turn(0, "go on")]).unwrap();
        world.store().write_ended(&ended("a", "r", NOW + 1, success())).unwrap();
        let trace = world.store().get_run_trace("r").unwrap();
        let expected = [
            RunRecord::Started(started("a", "r", NOW)),
            turn(0, "go on"),
            RunRecord::Ended(ended("a", "r", NOW + 1, success())),
        ];
        assert_eq!(trace, expected);
        assert_eq!(world.store().get_run_trace_for("a", "r").unwrap(), expected);
        assert!(world.store().get_run_trace_for("b", "r").is_none());
    });
}

#[test]
fn runs_of_several_agents_do_not_mix() {
    in_lives(|world| {
        let runs = [("a", "r1"), ("b", "r2"), ("a", "r3")];
        for (number, (agent, run)) in (0..).zip(runs) {
            world.store().write_started(&started(agent, run, NOW + number)).unwrap();
        }
        for (agent, run) in runs {
            world.store().append_turns(agent, run, &[turn(0, run)]).unwrap();
        }
        for (agent, run) in runs {
            let trace = world.store().get_run_trace(run).unwrap();
            assert_eq!(trace[1..], [turn(0, run)]);
            assert_eq!(world.store().agent_for_run(run).as_deref(), Some(agent));
        }
        assert_eq!(ids(&world.store(), "a"), ["r3", "r1"]);
        assert_eq!(ids(&world.store(), "b"), ["r2"]);
    });
}

#[test]
fn a_run_is_in_progress_until_it_ends_and_incomplete_if_nobody_reported() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        let status = || world.store().list_runs("a")[0].status;
        assert_eq!(status(), RunStatus::InProgress);
        let end = ended("a", "r", NOW + 5, RunTermination::Incomplete);
        world.store().write_ended(&end).unwrap();
        assert_eq!(status(), RunStatus::Incomplete);
        assert_eq!(world.store().list_runs("a")[0].ended_at, Some(end.ended_at));
    });
}

#[test]
fn an_end_with_any_number_comes_back_as_it_was_and_can_be_said_again() {
    in_lives(|world| {
        let mut random = runlog_sim::SplitMix64::new(3);
        for number in 0..300 {
            let run = format!("r{number}");
            world.store().write_started(&started("a", &run, NOW)).unwrap();
            let mut end = ended("a", &run, NOW + 5, success());
            if let RunTermination::Outcome { outcome, .. } = &mut end.termination {
                outcome.metrics.duration_ms = f64::from_bits(random.next_u64());
            }
            world.store().write_ended(&end).unwrap();
            world.store().write_ended(&end).unwrap();
        }
    });
}

#[test]
fn an_end_that_could_not_be_read_again_is_refused_and_the_run_goes_on() {
    use runlog_stores::run_store::{AgentOutcome, Evidence, EvidenceKind, RunStoreError};
    in_lives(|world| {
        let with = |levels: usize| {
            let nested = (0..levels).fold(json!(1), |inner, _| json!([inner]));
            let (kind, description) = (EvidenceKind::Evaluator, String::new());
            let evidence = vec![Evidence { kind, description, data: Some(nested) }];
            let outcome = AgentOutcome { evidence, ..AgentOutcome::default() };
            let status = outcome.status;
            ended("a", "r", NOW + 5, RunTermination::Outcome { status, outcome })
        };
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        let refused = world.store().write_ended(&with(200)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
        let inner = RunStoreError::of(&refused).unwrap();
        assert!(matches!(inner, RunStoreError::Unreadable { .. }), "{inner:?}");
        assert_eq!(world.store().list_runs("a")[0].status, RunStatus::InProgress);
        world.store().write_ended(&with(100)).unwrap();
        assert_eq!(world.store().list_runs("a")[0].status, RunStatus::Completed);
    });
}

#[test]
fn a_turn_that_was_acknowledged_beside_a_rollback_is_there() {
    in_lives(|world| {
        let store = world.store();
        for number in 0..300 {
            let (run, turns) = (format!("r{number}"), [turn(1, "a turn")]);
            let start = started("a", &run, NOW);
            store.write_started(&start).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| store.append_turns("a", &run, &turns).unwrap());
                let _ = store.rollback_empty_run_start(&start).unwrap();
            });
            let there = store.get_run_trace(&run).unwrap_or_default();
            assert!(there.contains(&turns[0]), "{run}: {there:?}");
        }
    });
}

#[test]
fn a_run_with_any_outcome_is_completed_also_if_it_failed() {
    use runlog_stores::run_store::OutcomeStatus as Status;
    in_lives(|world| {
        let all = [Status::Success, Status::GiveUp, Status::Failure, Status::Timeout, Status::Done];
        for (number, status) in all.into_iter().enumerate() {
            let run = format!("r{number}");
            world.store().write_started(&started("a", &run, NOW)).unwrap();
            world.store().write_ended(&ended("a", &run, NOW, outcome(status))).unwrap();
        }
        let runs = world.store().list_runs("a");
        assert_eq!(runs.len(), all.len());
        assert!(runs.iter().all(|run| run.status == RunStatus::Completed));
    });
}

#[test]
fn beyond_the_cap_the_runs_that_started_first_go_and_those_in_progress_never() {
    in_all_lives(keep(3, 0), |world| {
        for number in 0..5 {
            let run = format!("r{number}");
            world.store().write_started(&started("a", &run, NOW + number)).unwrap();
            world.store().write_ended(&ended("a", &run, NOW + 100 - number, success())).unwrap();
        }
        // The oldest of all.
        world.store().write_started(&started("a", "live", NOW - DAY)).unwrap();
        assert_eq!(world.store().gc(), 2);
        assert_eq!(ids(&world.store(), "a"), ["r4", "r3", "r2", "live"]);
        assert!(world.store().get_run_trace("r0").is_none());
        assert_eq!(world.store().gc(), 0);
    });
}

#[test]
fn runs_that_ended_too_long_ago_go() {
    in_lives(|world| {
        for (run, days) in [("old", 40), ("fresh", 1)] {
            let at = NOW - days * DAY;
            world.store().write_started(&started("a", run, at)).unwrap();
            world.store().write_ended(&ended("a", run, at, success())).unwrap();
        }
        assert_eq!(world.store().gc(), 1);
        assert_eq!(ids(&world.store(), "a"), ["fresh"]);
    });
}

#[test]
fn a_run_in_progress_stays_however_old_it_is() {
    in_all_lives(keep(1, 1), |world| {
        world.store().write_started(&started("a", "r", NOW - 40 * DAY)).unwrap();
        assert_eq!(world.store().gc(), 0);
        assert_eq!(ids(&world.store(), "a"), ["r"]);
    });
}

#[test]
fn the_age_of_a_run_is_counted_from_its_end() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW - 40 * DAY)).unwrap();
        world.store().write_ended(&ended("a", "r", NOW - DAY, success())).unwrap();
        assert_eq!(world.store().gc(), 0);
        world.clock.set(runlog::Timestamp(NOW + 30 * DAY));
        assert_eq!(world.store().gc(), 1);
    });
}

#[test]
fn each_agent_has_a_cap_of_its_own() {
    in_all_lives(keep(1, 0), |world| {
        for (agent, run) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
            world.store().write_started(&started(agent, run, NOW)).unwrap();
            world.store().write_ended(&ended(agent, run, NOW, success())).unwrap();
        }
        assert_eq!(world.store().gc(), 1);
        // Of two from the same instant the later stays.
        assert_eq!(ids(&world.store(), "a"), ["a2"]);
        assert_eq!(ids(&world.store(), "b"), ["b1"]);
    });
}

#[test]
fn of_an_agent_that_nobody_knows_there_is_nothing() {
    in_lives(|world| {
        assert!(world.store().list_runs("nobody").is_empty());
        assert!(world.store().get_run_trace("nothing").is_none());
        assert!(world.store().agent_for_run("nothing").is_none());
        assert_eq!((world.store().gc(), world.store().adopt_orphans()), (0, 0));
    });
}

#[test]
fn orphans_are_ended_once_and_all_at_the_same_time() {
    in_lives(|world| {
        for run in ["r1", "r2"] {
            world.store().write_started(&started("a", run, NOW - DAY)).unwrap();
            world.store().append_turns("a", run, &[turn(0, "p")]).unwrap();
        }
        assert_eq!(world.store().adopt_orphans(), 2);
        assert_eq!(world.store().adopt_orphans(), 0);
        for run in world.store().list_runs("a") {
            assert_eq!(run.status, RunStatus::Incomplete);
            assert_eq!(run.ended_at, Some(super::run_store_world::time(NOW)));
            assert_eq!(run.turn_count, 1);
        }
        let trace = world.store().get_run_trace("r1").unwrap();
        assert_eq!(trace.len(), 3);
        let end = ended("a", "r1", NOW, RunTermination::Incomplete);
        assert_eq!(trace[2], RunRecord::Ended(end));
    });
}

#[test]
fn a_finished_run_is_no_orphan() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW)).unwrap();
        world.store().write_ended(&ended("a", "r", NOW, success())).unwrap();
        let before = world.store().get_run_trace("r").unwrap();
        assert_eq!(world.store().adopt_orphans(), 0);
        assert_eq!(world.store().get_run_trace("r").unwrap(), before);
        assert_eq!(world.store().list_runs("a")[0].status, RunStatus::Completed);
    });
}

#[test]
fn adopted_runs_can_go_by_age_in_the_same_start() {
    in_lives(|world| {
        world.store().write_started(&started("a", "r", NOW - 90 * DAY)).unwrap();
        assert_eq!((world.store().adopt_orphans(), world.store().gc()), (1, 0));
        world.clock.advance(31 * DAY);
        assert_eq!((world.store().adopt_orphans(), world.store().gc()), (0, 1));
    });
}

#[test]
fn records_need_no_start_and_may_come_after_the_end_and_twice() {
    in_lives(|world| {
        world.store().append_records("a", "r", &[]).unwrap();
        assert!(world.store().get_run_trace("r").is_none());
        world.store().append_records("a", "r", &[turn(0, "p"), turn(0, "p")]).unwrap();
        assert_eq!(world.store().get_run_trace("r").unwrap().len(), 2);
        assert!(world.store().list_runs("a").is_empty(), "there is no start");
        assert_eq!((world.store().adopt_orphans(), world.store().gc()), (0, 0));

        let end = RunRecord::Ended(ended("a", "r", NOW + 9, success()));
        let start = RunRecord::Started(started("a", "r", NOW));
        world.store().append_records("a", "r", &[end, start]).unwrap();
        world.store().append_turns("a", "r", &[turn(7, "late")]).unwrap();
        let [run] = &world.store().list_runs("a")[..] else { panic!("one run") };
        assert_eq!((run.turn_count, run.status), (3, RunStatus::Completed));
        let trace = world.store().get_run_trace("r").unwrap();
        assert_eq!((trace.len(), &trace[4]), (5, &turn(7, "late")));
    });
}

#[test]
fn of_several_starts_and_ends_the_last_counts() {
    in_lives(|world| {
        let append = |record| world.store().append_records("a", "r", &[record]).unwrap();
        append(RunRecord::Started(started("a", "r", NOW)));
        append(RunRecord::Ended(ended("a", "r", NOW + 1, success())));
        let other = runlog_stores::run_store::RunStarted {
            intent: "something else".to_owned(),
            ..started("a", "r", NOW + 2)
        };
        append(RunRecord::Started(other.clone()));
        append(RunRecord::Ended(ended("a", "r", NOW + 3, RunTermination::Incomplete)));
        let [run] = &world.store().list_runs("a")[..] else { panic!("one run") };
        assert_eq!((run.intent.as_str(), run.started_at), ("something else", other.started_at));
        assert_eq!(run.status, RunStatus::Incomplete);
        assert_eq!(run.ended_at, Some(super::run_store_world::time(NOW + 3)));
        assert_eq!(world.store().run_started("a", "r").unwrap(), Some(other));
    });
}

#[test]
fn the_ids_of_a_list_are_those_of_the_start_and_those_of_the_call_find_the_run() {
    in_lives(|world| {
        let start = RunRecord::Started(started("inner-agent", "inner-run", NOW));
        world.store().append_records("agent", "run", &[start]).unwrap();
        let [run] = &world.store().list_runs("agent")[..] else { panic!("one run") };
        assert_eq!((run.agent_id.as_str(), run.run_id.as_str()), ("inner-agent", "inner-run"));
        assert!(world.store().list_runs("inner-agent").is_empty());
        assert_eq!(world.store().agent_for_run("run").as_deref(), Some("agent"));
        assert_eq!(world.store().adopt_orphans(), 1);
        assert_eq!(world.store().get_run_trace_for("agent", "run").unwrap().len(), 2);
    });
}

#[test]
fn of_two_agents_with_the_same_run_the_first_by_its_id_is_found() {
    in_lives(|world| {
        for agent in ["b", "a", "c"] {
            world.store().append_turns(agent, "r", &[turn(0, agent)]).unwrap();
        }
        assert_eq!(world.store().agent_for_run("r").as_deref(), Some("a"));
        assert_eq!(world.store().get_run_trace("r").unwrap(), [turn(0, "a")]);
        assert_eq!(world.store().get_run_trace_for("c", "r").unwrap(), [turn(0, "c")]);
    });
}

#[test]
fn runs_from_the_same_instant_are_listed_by_their_ids() {
    in_lives(|world| {
        for run in ["m", "z", "a"] {
            world.store().write_started(&started("a", run, NOW)).unwrap();
        }
        world.store().write_started(&started("a", "first", NOW + 1)).unwrap();
        world.store().write_started(&started("a", "0-last", NOW - 1)).unwrap();
        assert_eq!(ids(&world.store(), "a"), ["first", "a", "m", "z", "0-last"]);
    });
}

#[test]
fn a_store_can_be_made_and_shown_without_anything_being_there() {
    let store = RunStore::new("/no/such/folder".into(), keep(2, 3));
    assert_eq!(store.clone().root(), std::path::Path::new("/no/such/folder"));
    assert_eq!(store.retention(), keep(2, 3));
    assert!(format!("{store:?}").contains("/no/such/folder"));
    assert!(store.list_runs("a").is_empty() && store.get_run_trace("r").is_none());
}
