//! The lines of runs, byte for byte: what car-proto writes and what `RunStore` writes is the same,
//! for each kind of record, of its first version and of a late one.

use car_proto_0_23 as v23;
use car_proto_0_60 as v60;
use runlog_conformance::car::{CarRunStore, V0_23, V0_60, Version, to_ours, to_theirs};
use runlog_stores::run_store as ours;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::late;
use super::run_store_world::{NOW, ended, in_lives, time};

fn text(bytes: &[u8]) -> &str {
    core::str::from_utf8(bytes).unwrap()
}

/// Both write this line, both read it, and reading and writing it again changes nothing.
fn both_write<R: serde::Serialize + DeserializeOwned>(
    theirs: &R,
    record: &ours::RunRecord,
    line: &str,
) {
    assert_eq!(serde_json::to_string(theirs).unwrap(), line);
    assert_eq!(text(&record.to_line()), line);
    assert_eq!(&to_ours(theirs).unwrap(), record);
    let again: R = to_theirs(record).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), line);
    assert_eq!(&ours::RunRecord::from_line(line.as_bytes()).unwrap(), record);
}

#[test]
fn a_start_of_the_first_version_is_the_same_line() {
    for description in [None, Some("tea".to_owned())] {
        let theirs = v23::RunRecord::Started(v23::RunStarted {
            run_id: "r".into(),
            agent_id: "a".into(),
            intent: "i".into(),
            outcome_description: description.clone(),
            started_at: time(NOW + 123_456_789),
        });
        let line = match &description {
            None => concat!(
                r#"{"record":"started","run_id":"r","agent_id":"a","intent":"i","#,
                r#""started_at":"2026-01-01T00:00:00.123456789Z"}"#
            ),
            Some(_) => concat!(
                r#"{"record":"started","run_id":"r","agent_id":"a","intent":"i","#,
                r#""outcome_description":"tea","started_at":"2026-01-01T00:00:00.123456789Z"}"#
            ),
        };
        let record = ours::RunRecord::Started(ours::RunStarted {
            run_id: "r".into(),
            agent_id: "a".into(),
            intent: "i".into(),
            outcome_description: description,
            started_at: time(NOW + 123_456_789),
            ..ours::RunStarted::default()
        });
        both_write(&theirs, &record, line);
    }
}

#[test]
fn a_turn_of_the_first_version_is_the_same_line() {
    let bare = v23::RunTurn {
        index: 0,
        prompt: None,
        tool: None,
        parameters: Value::Null,
        output: None,
        cli_outcome: None,
        verifier_verdict: v23::VerifierVerdict::NotRun,
        policy_rejected: None,
    };
    let line = r#"{"record":"turn","index":0,"verifier_verdict":"not_run"}"#;
    let record = ours::RunRecord::Turn(ours::RunTurn::default());
    both_write(&v23::RunRecord::Turn(bare), &record, line);

    let full = v23::RunTurn {
        index: 1,
        prompt: Some("p".into()),
        tool: Some("drive_cli".into()),
        parameters: json!({"a": 2, "b": 1}),
        output: Some(json!({"exit_code": 0})),
        cli_outcome: Some(v23::CliOutcome::Exited { code: 0 }),
        verifier_verdict: v23::VerifierVerdict::Pass,
        policy_rejected: Some(v23::PolicyRejection { rule: "x".into(), param: None }),
    };
    let line = concat!(
        r#"{"record":"turn","index":1,"prompt":"p","tool":"drive_cli","#,
        r#""parameters":{"a":2,"b":1},"output":{"exit_code":0},"#,
        r#""cli_outcome":{"kind":"exited","code":0},"verifier_verdict":"pass","#,
        r#""policy_rejected":{"rule":"x"}}"#
    );
    let record = ours::RunRecord::Turn(ours::RunTurn {
        index: 1,
        prompt: Some("p".into()),
        tool: Some("drive_cli".into()),
        parameters: json!({"a": 2, "b": 1}),
        output: Some(json!({"exit_code": 0})),
        cli_outcome: Some(ours::CliOutcome::Exited { code: 0 }),
        verifier_verdict: ours::VerifierVerdict::Pass,
        policy_rejected: Some(ours::PolicyRejection { rule: "x".into(), param: None }),
        ..ours::RunTurn::default()
    });
    both_write(&v23::RunRecord::Turn(full), &record, line);
}

#[test]
fn an_end_of_the_first_version_is_the_same_line() {
    let (head, tail) = (
        r#"{"record":"ended","run_id":"r","agent_id":"a","termination":"#,
        r#","ended_at":"2026-01-01T00:00:00Z"}"#,
    );
    let theirs = |termination| {
        let (run_id, agent_id) = ("r".to_owned(), "a".to_owned());
        v23::RunRecord::Ended(v23::RunEnded { run_id, agent_id, termination, ended_at: time(NOW) })
    };
    let record = |termination| ours::RunRecord::Ended(ended("a", "r", NOW, termination));
    let line = format!("{head}{}{tail}", r#"{"kind":"incomplete"}"#);
    let ends = (theirs(v23::RunTermination::Incomplete), record(ours::RunTermination::Incomplete));
    both_write(&ends.0, &ends.1, &line);

    let line = [
        head,
        r#"{"kind":"outcome","status":"give_up","outcome":{"status":"give_up","summary":"s","#,
        r#""evidence":[{"kind":"tool_result","description":"d","data":null}],"metrics":{"#,
        r#""turns":0,"tool_calls":0,"duration_ms":0.0,"retries":0,"actions_succeeded":0,"#,
        r#""actions_failed":0},"#,
        r#""timestamp":"2026-01-01T00:00:00Z"}}"#,
        tail,
    ];
    let outcome = car_ir_0_23::AgentOutcome {
        status: car_ir_0_23::OutcomeStatus::GiveUp,
        summary: "s".into(),
        evidence: vec![car_ir_0_23::Evidence {
            kind: car_ir_0_23::EvidenceKind::ToolResult,
            description: "d".into(),
            data: None,
        }],
        metrics: car_ir_0_23::OutcomeMetrics::default(),
        timestamp: time(NOW),
    };
    let status = car_ir_0_23::OutcomeStatus::GiveUp;
    let theirs = theirs(v23::RunTermination::Outcome { status, outcome });
    let outcome = ours::AgentOutcome {
        status: ours::OutcomeStatus::GiveUp,
        summary: "s".into(),
        evidence: vec![ours::Evidence {
            kind: ours::EvidenceKind::ToolResult,
            description: "d".into(),
            data: None,
        }],
        timestamp: time(NOW),
        ..ours::AgentOutcome::default()
    };
    let status = ours::OutcomeStatus::GiveUp;
    both_write(&theirs, &record(ours::RunTermination::Outcome { status, outcome }), &line.concat());
}

#[test]
fn each_kind_of_a_late_version_is_the_same_line() {
    for (theirs, record) in late::records() {
        let line = serde_json::to_string(&theirs).unwrap();
        both_write(&theirs, &record, &line);
    }
}

/// Every word that a record can have, in the versions that have it.
#[test]
fn each_word_of_each_version_is_the_same() {
    use car_ir_0_60::{
        ActionStatus as TheirAction, EvidenceKind as TheirKind, OutcomeStatus as TheirStatus,
    };
    use ours::{EvidenceKind, OutcomeStatus, VerifierVerdict};
    fn same(words: &[(impl serde::Serialize, impl serde::Serialize)]) {
        for (theirs, ours) in words {
            let (theirs, ours) = (json!(theirs), json!(ours));
            assert_eq!(theirs, ours);
        }
    }
    same(&[
        (v23::VerifierVerdict::Pass, VerifierVerdict::Pass),
        (v23::VerifierVerdict::Fail, VerifierVerdict::Fail),
        (v23::VerifierVerdict::NotRun, VerifierVerdict::NotRun),
    ]);
    same(&[
        (v23::CliOutcome::Exited { code: -9 }, ours::CliOutcome::Exited { code: -9 }),
        (v23::CliOutcome::Killed, ours::CliOutcome::Killed),
        (v23::CliOutcome::Timeout, ours::CliOutcome::Timeout),
    ]);
    same(&[
        (TheirStatus::Success, OutcomeStatus::Success),
        (TheirStatus::PartialSuccess, OutcomeStatus::PartialSuccess),
        (TheirStatus::GiveUp, OutcomeStatus::GiveUp),
        (TheirStatus::Timeout, OutcomeStatus::Timeout),
        (TheirStatus::Failure, OutcomeStatus::Failure),
        (TheirStatus::Done, OutcomeStatus::Done),
    ]);
    same(&[
        (TheirKind::SelfAssessment, EvidenceKind::SelfAssessment),
        (TheirKind::ToolResult, EvidenceKind::ToolResult),
        (TheirKind::StateChange, EvidenceKind::StateChange),
        (TheirKind::ExternalVerification, EvidenceKind::ExternalVerification),
        (TheirKind::StopReason, EvidenceKind::StopReason),
        (TheirKind::Evaluator, EvidenceKind::Evaluator),
    ]);
    same(&[
        (TheirAction::Proposed, ours::ActionStatus::Proposed),
        (TheirAction::Validated, ours::ActionStatus::Validated),
        (TheirAction::Rejected, ours::ActionStatus::Rejected),
        (TheirAction::Executing, ours::ActionStatus::Executing),
        (TheirAction::Succeeded, ours::ActionStatus::Succeeded),
        (TheirAction::Failed, ours::ActionStatus::Failed),
        (TheirAction::Skipped, ours::ActionStatus::Skipped),
    ]);
}

/// Each set of fields that may be missing, 8,192 of them, in the late version; and each that the
/// first version knows, in both.
#[test]
fn turns_with_any_fields_missing_are_the_same_lines() {
    let fields = late::fields_of_a_turn();
    for present in 0..1_u32 << fields.len() {
        let mut turn = json!({"record": "turn", "index": present, "verifier_verdict": "fail"});
        let mut is_old = true;
        for (number, (name, value, since)) in fields.iter().enumerate() {
            if present >> number & 1 == 1 {
                turn[*name] = value.clone();
                is_old &= *since == 23;
            }
        }
        let theirs: v60::RunRecord = serde_json::from_value(turn.clone()).unwrap();
        let line = serde_json::to_string(&theirs).unwrap();
        both_write(&theirs, &to_ours(&theirs).unwrap(), &line);
        if is_old {
            let theirs: v23::RunRecord = serde_json::from_value(turn).unwrap();
            both_write(&theirs, &to_ours(&theirs).unwrap(), &line);
        }
    }
}

#[test]
fn what_is_stored_is_what_car_writes_and_comes_back_as_its_types() {
    in_lives(|world| {
        let records: Vec<v60::RunRecord> =
            late::records().into_iter().map(|(theirs, _)| theirs).collect();
        let store = || CarRunStore::<V0_60>::from(world.store());
        store().append_records("a", "r", &records).unwrap();
        let lines: Vec<String> = world
            .store()
            .lines("a", "r")
            .unwrap()
            .map(|line| text(line.unwrap().bytes()).to_owned())
            .collect();
        let written: Vec<String> =
            records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
        assert_eq!(lines, written);
        let read = store().get_run_trace_for("a", "r").unwrap();
        let again: Vec<String> =
            read.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
        assert_eq!(again, written);
        // The first version sees what it knows.
        let old = CarRunStore::<V0_23>::from(world.store()).get_run_trace("r").unwrap();
        let known = ["started", "turn", "ended"];
        let known = |record: &&v60::RunRecord| {
            let value = json!(record);
            let is_new = value["termination"]["kind"] == "cancelled";
            known.contains(&value["record"].as_str().unwrap()) && !is_new
        };
        assert_eq!(old.len(), records.iter().filter(known).count());
    });
}

#[test]
fn a_line_that_one_refuses_the_other_refuses_too() {
    let lines = [
        r#"{"record":"turn","index":0}"#,
        r#"{"record":"turn","index":-1,"verifier_verdict":"pass"}"#,
        r#"{"record":"turn","index":0,"verifier_verdict":"perhaps"}"#,
        r#"{"record":"started","run_id":"r","agent_id":"a","intent":"i"}"#,
        r#"{"record":"started","run_id":"r","agent_id":"a","intent":"i","started_at":"today"}"#,
        r#"{"record":"ended","run_id":"r","agent_id":"a","ended_at":"2026-01-01T00:00:00Z"}"#,
        r#"{"record":"ended","run_id":"r","agent_id":"a","termination":{"kind":"other"},"#,
        r#"{"record":"turn","index":0,"verifier_ver"#,
        r#"{"index":0,"verifier_verdict":"pass"}"#,
        "[]",
        "",
    ];
    for line in lines {
        assert!(serde_json::from_str::<<V0_23 as Version>::Record>(line).is_err(), "{line}");
        assert!(serde_json::from_str::<<V0_60 as Version>::Record>(line).is_err(), "{line}");
        assert!(ours::RunRecord::from_line(line.as_bytes()).is_err(), "{line}");
    }
}

#[test]
fn unknown_fields_do_no_harm_and_unknown_kinds_are_kept() {
    let line = r#"{"record":"turn","index":0,"verifier_verdict":"pass","mood":"fine"}"#;
    assert!(serde_json::from_str::<v23::RunRecord>(line).is_ok());
    assert!(ours::RunRecord::from_line(line.as_bytes()).is_ok());
    let line = r#"{"record":"weather","is":"fine"}"#;
    assert!(serde_json::from_str::<v60::RunRecord>(line).is_err());
    let kept = ours::RunRecord::from_line(line.as_bytes()).unwrap();
    assert_eq!(text(&kept.to_line()), line);
}

#[test]
fn the_digest_of_an_end_that_was_stored_is_the_one_that_car_computes() {
    in_lives(|world| {
        let store = || CarRunStore::<V0_60>::from(world.store());
        for (theirs, _) in late::records() {
            let v60::RunRecord::Ended(ended) = theirs else { continue };
            let digest = car_proto_0_60::canonical_sha256(&ended.termination).unwrap();
            store().append_records("a", "r", &[v60::RunRecord::Ended(ended)]).unwrap();
            let read = store().get_run_trace("r").unwrap().pop();
            let Some(v60::RunRecord::Ended(read)) = read else { panic!("an end") };
            let again = car_proto_0_60::canonical_sha256(&read.termination).unwrap();
            assert_eq!(again, digest);
        }
    });
}

/// The one value that depends on when it is read in car, and does not here.
#[test]
fn an_outcome_without_a_time_is_the_same_value_at_each_reading() {
    let line = concat!(
        r#"{"record":"ended","run_id":"r","agent_id":"a","termination":{"kind":"outcome","#,
        r#""status":"done","outcome":{"status":"done"}},"ended_at":"2026-01-01T00:00:00Z"}"#
    );
    assert!(serde_json::from_str::<v23::RunRecord>(line).is_ok());
    let read = || ours::RunRecord::from_line(line.as_bytes()).unwrap();
    assert_eq!(read(), read());
}
