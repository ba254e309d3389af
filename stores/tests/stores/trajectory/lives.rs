//! The lives of runs: ended, started again, repeated, recorded after the end, without a start.

use runlog::{ContentType, Timestamp};
use serde_json::from_slice;

use super::*;

#[test]
fn the_first_record_starts_a_run_and_the_last_one_ends_it() {
    let store = Store::new();
    let identity = RunIdentity {
        conversation_id: Some("tea".into()),
        deadline_unix_ms: Some(NOON + 9),
        ..RunIdentity::root("run")
    };
    let mut recorder = Recorder::new(identity.clone());
    let records = recorder.whole(3);
    let (last, first) = records.split_last().unwrap();
    record_all(&store.log, first);
    assert_eq!(status(&store.log, "run"), RunStatus::InProgress);
    store.log.record(last).unwrap();
    store.always(|log| {
        assert_eq!(typed(log, "run"), records);
        let summary = log.store().run("run").unwrap();
        assert_eq!((summary.status, summary.records), (RunStatus::Completed, 5));
        let nanos = |milliseconds: u64| Timestamp(milliseconds as i64 * 1_000_000);
        assert_eq!(summary.started_at, nanos(NOON));
        assert_eq!(summary.ended_at, Some(nanos(NOON + 4)));
        let metadata = log.store().metadata("run").unwrap().unwrap();
        assert_eq!(metadata.content_type(), ContentType::JSON);
        assert_eq!(from_slice::<RunIdentity>(metadata.payload()).unwrap(), identity);
        assert_eq!(log.store().outcome("run").unwrap().unwrap().payload(), b"ended");
        assert_eq!(log.store().agent_of("run").unwrap(), AGENT);
    });
}

#[test]
fn agents_have_trajectories_of_the_same_id_apart() {
    let store = Store::new();
    let other = TrajectoryLog::new(&store.store, "other").unwrap();
    record_all(&store.log, &Recorder::root("run").whole(1));
    record_all(&other, &Recorder::root("run").whole(2));
    store.always(|log| {
        let other = TrajectoryLog::new(log.store(), "other").unwrap();
        assert_eq!((told(log, "run").as_str(), told(&other, "run").as_str()), ("0 1 2", "0 1 2 3"));
    });
}

#[test]
fn outcomes_that_are_named_like_a_status_become_it() {
    let store = Store::new();
    let long = "a long story ".repeat(1000);
    let outcomes = [
        ("ended", RunStatus::Completed),
        ("failed", RunStatus::Failed),
        ("cancelled", RunStatus::Cancelled),
        ("interrupted", RunStatus::Interrupted),
        ("in_progress", RunStatus::Completed),
        ("", RunStatus::Completed),
        (&long, RunStatus::Completed),
    ];
    for (number, (outcome, _)) in outcomes.iter().enumerate() {
        let mut recorder = Recorder::root(&number.to_string());
        let outcome = outcome.to_string();
        let ended = TrajectoryPayload::RunEnded { outcome, new_messages: vec![] };
        record_all(&store.log, &[recorder.started(), recorder.next(ended)]);
    }
    store.always(|log| {
        for (number, (_, wanted)) in outcomes.iter().enumerate() {
            assert_eq!(status(log, &number.to_string()), *wanted);
        }
    });
}

#[test]
fn a_call_that_is_repeated_leaves_one_record() {
    let mut store = Store::new();
    let mut recorder = Recorder::root("mother").child("run");
    let records = recorder.whole(3);
    for record in &records {
        let first = store.log.record(record).unwrap();
        let second = store.log.record(record).unwrap();
        store = store.killed();
        let third = store.log.record(record).unwrap();
        store = store.reopened();
        let fourth = store.log.record(record).unwrap();
        assert!(!first.repeated && second.repeated && third.repeated && fourth.repeated);
        assert!([second, third, fourth].iter().all(|recorded| recorded.place == first.place));
    }
    store.always(|log| {
        assert_eq!(typed(log, "run"), records);
        assert_eq!(names(&log.children("mother").unwrap().runs), ["run"]);
        assert_eq!(log.store().run((AGENT, "mother")).unwrap().records, 1);
    });
}

#[test]
fn two_records_with_one_sequence_are_both_kept() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    store.log.record(&recorder.started()).unwrap();
    let mut record = recorder.turn();
    store.log.record(&record).unwrap();
    record.recorded_at_unix_ms += 1;
    store.log.record(&record).unwrap();
    store.always(|log| assert_eq!(told(log, "run"), "0 1 back 1"));
}

#[test]
fn a_recorder_that_restarts_with_the_same_start_begins_another_trajectory_of_the_run() {
    let mut store = Store::new();
    for _ in 0..3 {
        let mut recorder = Recorder::root("run");
        record_all(&store.log, &[recorder.started(), recorder.turn()]);
        store = store.killed();
    }
    store.always(|log| {
        assert_eq!(told(log, "run"), "0 1 again 0 1 again 0 1");
        assert_eq!(status(log, "run"), RunStatus::InProgress);
    });
}

#[test]
fn a_recorder_that_restarts_with_another_start_keeps_what_the_run_was_first() {
    let store = Store::new();
    let mut first = Recorder::root("mother").child("run");
    let mut second = Recorder::root("stepmother").child("run");
    let firsts = [first.started(), first.turn()];
    record_all(&store.log, &firsts);
    let _dropped = second.started();
    let seconds = [second.started(), second.ended()];
    record_all(&store.log, &seconds);
    store.always(|log| {
        assert_eq!(told(log, "run"), "0 1 again lost0..1 1 2");
        assert_eq!(log.parent("run").unwrap().unwrap().run, "mother");
        assert_eq!(names(&log.children("mother").unwrap().runs), ["run"]);
        assert_eq!(names(&log.children("stepmother").unwrap().runs), ["run"]);
        let records: Vec<_> = items(log, "run")
            .iter()
            .filter_map(|item| match item {
                Item::Record(record) => Some(record.read().unwrap()),
                _ => None,
            })
            .collect();
        assert_eq!(records, [firsts.clone(), seconds.clone()].concat());
    });
}

#[test]
fn a_run_that_is_started_again_after_its_end_is_kept_as_late_records() {
    let mut store = Store::new();
    for _ in 0..2 {
        record_all(&store.log, &Recorder::root("run").whole(1));
        store = store.reopened();
    }
    store.always(|log| {
        assert_eq!(told(log, "run"), "0 1 2 again 0 1 2");
        let summary = log.store().run("run").unwrap();
        assert_eq!((summary.status, summary.late_records), (RunStatus::Completed, 3));
        let late: Vec<_> = items(log, "run")
            .iter()
            .filter_map(|item| match item {
                Item::Record(record) => Some(record.is_late()),
                _ => None,
            })
            .collect();
        assert_eq!(late, [false, false, false, true, true, true]);
    });
}

#[test]
fn records_after_the_end_are_kept_and_a_second_end_changes_nothing() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    let mut records = recorder.whole(1);
    records.push(recorder.turn());
    let failed = TrajectoryPayload::RunEnded { outcome: "failed".into(), new_messages: vec![] };
    records.push(recorder.next(failed));
    record_all(&store.log, &records);
    store.always(|log| {
        assert_eq!(typed(log, "run"), records);
        assert_eq!(status(log, "run"), RunStatus::Completed);
        assert_eq!(log.store().outcome("run").unwrap().unwrap().payload(), b"ended");
    });
}

#[test]
fn a_run_without_a_start_is_kept_and_can_be_started_later() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    store.log.record(&recorder.turn()).unwrap();
    assert!(!store.store.run("run").unwrap().started);
    store.log.record(&recorder.started()).unwrap();
    let store = store.always(|log| {
        assert_eq!(told(log, "run"), "0 1");
        assert!(log.store().run("run").unwrap().started);
    });
    // One that ended without a start stays without one.
    let mut other = Recorder::root("other");
    record_all(&store.log, &[other.turn(), other.ended(), other.started()]);
    store.always(|log| {
        assert!(!log.store().run("other").unwrap().started);
        assert_eq!(told(log, "other"), "0 1 2");
    });
}

#[test]
fn runs_that_died_are_adopted_and_may_go_on() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    record_all(&store.log, &[recorder.started(), recorder.turn()]);
    let store = store.killed();
    assert_eq!(store.log.settle_ends().unwrap(), [""; 0]);
    assert_eq!(store.store.adopt_orphans().unwrap().runs.len(), 1);
    record_all(&store.log, &[recorder.turn(), recorder.ended()]);
    store.always(|log| {
        assert_eq!(told(log, "run"), "0 1 2 3");
        assert_eq!(status(log, "run"), RunStatus::Interrupted);
    });
}

#[test]
fn a_run_that_was_deleted_while_it_was_recorded_says_what_is_missing() {
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    record_all(&store.log, &[recorder.started(), recorder.turn()]);
    store.store.end_run(AGENT, "run", &runlog::Outcome::cancelled(), Default::default()).unwrap();
    store.store.delete_run("run").unwrap();
    assert!(is_run_not_found(store.log.trajectory("run")));
    record_all(&store.log, &[recorder.turn(), recorder.ended()]);
    store.always(|log| {
        assert_eq!(told(log, "run"), "lost0..2 2 3");
        assert_eq!(status(log, "run"), RunStatus::Completed);
    });
}

#[test]
fn records_before_any_identity_are_kept_with_their_agent() {
    let store = Store::new();
    let other = TrajectoryLog::new(&store.store, "other").unwrap();
    let without =
        |seq| TrajectoryRecord { run_id: None, ..Recorder { seq, ..Recorder::root("r") }.turn() };
    store.log.record(&without(0)).unwrap();
    other.record(&without(7)).unwrap();
    let store = store.always(|log| {
        let found: Vec<_> = log.unattributed().unwrap().map(Result::unwrap).collect();
        let [Item::Record(record)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(record.read().unwrap(), without(0));
    });
    // Also after a caller ended the run that has no end of its own.
    store.store.adopt_orphans().unwrap();
    store.log.record(&without(1)).unwrap();
    store.always(|log| assert_eq!(log.unattributed().unwrap().count(), 2));
    assert_eq!(Store::new().log.unattributed().unwrap().count(), 0);
}

#[test]
fn a_start_whose_record_names_no_run_belongs_to_the_run_that_it_starts() {
    let store = Store::new();
    let mut record = Recorder::root("mother").child("run").started();
    (record.run_id, record.parent_run_id) = (None, None);
    store.log.record(&record).unwrap();
    store.always(|log| {
        assert_eq!(typed(log, "run"), [record.clone()]);
        assert_eq!(names(&log.children("mother").unwrap().runs), ["run"]);
    });
}

#[test]
fn times_that_cannot_be_do_no_harm() {
    let store = Store::new();
    for (run, at) in [("zero", 0), ("huge", u64::MAX)] {
        let mut recorder = Recorder::root(run);
        for mut record in recorder.whole(1) {
            record.recorded_at_unix_ms = at;
            store.log.record(&record).unwrap();
        }
    }
    store.always(|log| {
        assert_eq!(typed(log, "huge")[1].recorded_at_unix_ms, u64::MAX);
        assert_eq!(typed(log, "zero")[1].recorded_at_unix_ms, 0);
        let started = |run| log.store().run(run).unwrap().started_at;
        assert_eq!(started("huge"), Timestamp(i64::MAX));
        assert!(started("zero").0 > NOON as i64, "no time is the time of the store");
    });
}
