//! The lines of `RunStore`, byte for byte as the versions of the original write them.

use chrono::DateTime;
use runlog_stores::run_store::{
    AgentOutcome, CliOutcome, Evidence, EvidenceKind, LineFault, OutcomeStatus, PolicyRejection,
    RunCancelResponse, RunCancellationIdentity, RunCancellationRequested, RunCancellationStatus,
    RunEnded, RunModelCallRefused, RunModelTokenUsage, RunModelToolCall, RunModelTurn, RunRecord,
    RunStarted, RunSummary, RunTermination, RunTurn, VerifierVerdict,
};
use serde_json::json;

fn at(text: &str) -> DateTime<chrono::Utc> {
    text.parse().unwrap()
}

/// Both ways, through this crate and through serde.
fn is_written_as(record: &RunRecord, line: &str) {
    assert_eq!(String::from_utf8(record.to_line()).unwrap(), line);
    assert_eq!(serde_json::to_string(record).unwrap(), line);
    assert_eq!(RunRecord::from_line(line.as_bytes()).as_ref(), Ok(record));
    assert_eq!(serde_json::from_str::<RunRecord>(line).unwrap(), *record);
}

#[test]
fn a_start_is_written_with_nanoseconds_and_without_what_is_not_known() {
    let mut started = RunStarted {
        run_id: "r".into(),
        agent_id: "a".into(),
        intent: "i".into(),
        started_at: at("2026-01-02T03:04:05.123456789Z"),
        ..RunStarted::default()
    };
    is_written_as(
        &RunRecord::Started(started.clone()),
        concat!(
            r#"{"record":"started","run_id":"r","agent_id":"a","intent":"i","#,
            r#""started_at":"2026-01-02T03:04:05.123456789Z"}"#,
        ),
    );
    started.client_id = Some("c".into());
    started.outcome_description = Some("d".into());
    is_written_as(
        &RunRecord::Started(started),
        concat!(
            r#"{"record":"started","run_id":"r","client_id":"c","agent_id":"a","intent":"i","#,
            r#""outcome_description":"d","started_at":"2026-01-02T03:04:05.123456789Z"}"#,
        ),
    );
}

#[test]
fn a_turn_is_written_with_what_it_has() {
    is_written_as(
        &RunRecord::Turn(RunTurn::default()),
        r#"{"record":"turn","index":0,"verifier_verdict":"not_run"}"#,
    );
    let turn = RunTurn {
        index: 1,
        prompt: Some("p".into()),
        tool: Some("drive_cli".into()),
        parameters: json!({ "b": 1, "a": 2 }),
        output: Some(json!({ "exit_code": 0 })),
        cli_outcome: Some(CliOutcome::Exited { code: 0 }),
        verifier_verdict: VerifierVerdict::Pass,
        policy_rejected: Some(PolicyRejection { rule: "x".into(), param: None }),
        ..RunTurn::default()
    };
    is_written_as(
        &RunRecord::Turn(turn),
        concat!(
            r#"{"record":"turn","index":1,"prompt":"p","tool":"drive_cli","parameters":{"a":2,"#,
            r#""b":1},"output":{"exit_code":0},"cli_outcome":{"kind":"exited","code":0},"#,
            r#""verifier_verdict":"pass","policy_rejected":{"rule":"x"}}"#,
        ),
    );
}

#[test]
fn ends_are_written_with_their_terminations() {
    let mut ended = RunEnded {
        run_id: "r".into(),
        agent_id: "a".into(),
        ended_at: at("2026-01-02T03:04:05Z"),
        ..RunEnded::default()
    };
    is_written_as(
        &RunRecord::Ended(ended.clone()),
        concat!(
            r#"{"record":"ended","run_id":"r","agent_id":"a","#,
            r#""termination":{"kind":"incomplete"},"ended_at":"2026-01-02T03:04:05Z"}"#,
        ),
    );
    let outcome = AgentOutcome {
        status: OutcomeStatus::GiveUp,
        summary: "s".into(),
        timestamp: at("2026-01-02T03:04:04Z"),
        ..AgentOutcome::default()
    };
    ended.termination = RunTermination::Outcome { status: OutcomeStatus::GiveUp, outcome };
    is_written_as(
        &RunRecord::Ended(ended.clone()),
        concat!(
            r#"{"record":"ended","run_id":"r","agent_id":"a","termination":{"kind":"outcome","#,
            r#""status":"give_up","outcome":{"status":"give_up","summary":"s","evidence":[],"#,
            r#""metrics":{"turns":0,"tool_calls":0,"duration_ms":0.0,"retries":0,"#,
            r#""actions_succeeded":0,"actions_failed":0},"timestamp":"2026-01-02T03:04:04Z"}},"#,
            r#""ended_at":"2026-01-02T03:04:05Z"}"#,
        ),
    );
    let cancellation = RunCancellationIdentity {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        ..RunCancellationIdentity::default()
    };
    ended.termination = RunTermination::Cancelled { cancellation };
    (ended.client_id, ended.completion_digest) = (Some("c".into()), Some("d".into()));
    is_written_as(
        &RunRecord::Ended(ended),
        concat!(
            r#"{"record":"ended","run_id":"r","client_id":"c","agent_id":"a","#,
            r#""termination":{"kind":"cancelled","cancellation":{"receipt_version":1,"#,
            r#""run_id":"r","idempotency_key":"k","reason_digest":"","principal":"","#,
            r#""action_id":null,"request_id":null}},"completion_digest":"d","#,
            r#""ended_at":"2026-01-02T03:04:05Z"}"#,
        ),
    );
}

#[test]
fn an_outcome_is_read_from_little_and_always_the_same() {
    let line = concat!(
        r#"{"record":"ended","run_id":"r","agent_id":"a","termination":{"kind":"outcome","#,
        r#""status":"done","outcome":{"status":"done","evidence":[{"kind":"evaluator","#,
        r#""description":"d","data":null}],"tools_called":3}},"#,
        r#""ended_at":"2026-01-02T03:04:05Z"}"#,
    );
    let read = || match RunRecord::from_line(line.as_bytes()).unwrap() {
        RunRecord::Ended(ended) => ended,
        other => panic!("{other:?}"),
    };
    assert_eq!(read(), read());
    let RunTermination::Outcome { outcome, .. } = read().termination else { panic!("an outcome") };
    assert_eq!(outcome.timestamp, DateTime::UNIX_EPOCH);
    let evidence = Evidence { kind: EvidenceKind::Evaluator, description: "d".into(), data: None };
    assert_eq!(outcome.evidence, [evidence]);
}

#[test]
fn later_records_are_written_as_later_versions_do() {
    is_written_as(
        &RunRecord::ModelTurn(RunModelTurn {
            index: 2,
            turn_index: 1,
            assistant_text: "t".into(),
            requested_tool_calls: vec![RunModelToolCall {
                id: "c".into(),
                name: "n".into(),
                arguments: json!({}),
            }],
            model_id: "m".into(),
            token_usage: Some(RunModelTokenUsage { prompt_tokens: 1, ..Default::default() }),
            duration_ms: 5,
            recorded_at: at("2026-01-02T03:04:05Z"),
        }),
        concat!(
            r#"{"record":"model_turn","index":2,"turn_index":1,"assistant_text":"t","#,
            r#""requested_tool_calls":[{"id":"c","name":"n","arguments":{}}],"model_id":"m","#,
            r#""token_usage":{"prompt_tokens":1,"completion_tokens":0,"total_tokens":0,"#,
            r#""context_window":0,"cache_read_input_tokens":0,"cache_creation_input_tokens":0},"#,
            r#""duration_ms":5,"recorded_at":"2026-01-02T03:04:05Z"}"#,
        ),
    );
    is_written_as(
        &RunRecord::ModelCallRefused(RunModelCallRefused {
            at: at("2026-01-02T03:04:05Z"),
            model: "m".into(),
            reason: "budget_reached".into(),
            message: "no".into(),
            spent_usd: Some(1.5),
            ..RunModelCallRefused::default()
        }),
        concat!(
            r#"{"record":"model_call_refused","at":"2026-01-02T03:04:05Z","model":"m","#,
            r#""reason":"budget_reached","message":"no","spent_usd":1.5}"#,
        ),
    );
    is_written_as(
        &RunRecord::CancellationRequested(RunCancellationRequested {
            run_id: "r".into(),
            ..RunCancellationRequested::default()
        }),
        concat!(
            r#"{"record":"cancellation_requested","receipt_version":0,"run_id":"r","#,
            r#""idempotency_key":"","reason_digest":"","principal":"","action_id":null,"#,
            r#""request_id":null}"#,
        ),
    );
    is_written_as(
        &RunRecord::CancellationResult(RunCancelResponse {
            receipt_version: 1,
            run_id: "r".into(),
            idempotency_key: "k".into(),
            reason_digest: "d".into(),
            principal: "p".into(),
            status: RunCancellationStatus::TerminationUnconfirmed,
            terminal_digest: None,
            action_id: None,
            request_id: None,
            receipt_digest: "e".into(),
        }),
        concat!(
            r#"{"record":"cancellation_result","receipt_version":1,"run_id":"r","#,
            r#""idempotency_key":"k","reason_digest":"d","principal":"p","#,
            r#""status":"termination_unconfirmed","terminal_digest":null,"action_id":null,"#,
            r#""request_id":null,"receipt_digest":"e"}"#,
        ),
    );
}

#[test]
fn a_record_of_an_unknown_kind_keeps_its_bytes() {
    let line = br#"{ "z": 1,  "record":"from_the_future", "a":[1.0e3] }"#;
    let record = RunRecord::from_line(line).unwrap();
    let RunRecord::Other(other) = &record else { panic!("{record:?}") };
    assert_eq!((other.kind(), other.line()), ("from_the_future", &line[..]));
    assert_eq!((record.kind(), record.to_line()), ("from_the_future", line.to_vec()));
    assert!(!format!("{record:?}").contains("1.0e3"), "payloads are not shown");
    let value: serde_json::Value = serde_json::from_slice(line).unwrap();
    assert_eq!(serde_json::to_value(&record).unwrap(), value);
}

#[test]
fn what_is_no_record_is_told_with_its_place_and_without_its_bytes() {
    let wrong = |kind, column| LineFault::WrongShape { kind, column };
    for (line, fault) in [
        (&b"\xff\xfe"[..], LineFault::NotUtf8 { valid: 0 }),
        (b"{\"record\":\"turn\",\"x\":\"\xc3\"}", LineFault::NotUtf8 { valid: 22 }),
        (b"{\"record\":\"turn\",\"ind", LineFault::NotJson { column: 21 }),
        (b"secret", LineFault::NotJson { column: 1 }),
        (b"{\"record\":\"turn\"}{}", LineFault::NotJson { column: 18 }),
        (b"[\"secret\"", LineFault::NotARecord { column: 0 }),
        (b"{\"kind\":\"secret\"}", LineFault::NotARecord { column: 17 }),
        (b"{\"record\":7}", LineFault::NotARecord { column: 11 }),
        (b"{\"record\":\"turn\",\"index\":0}", wrong("turn", 27)),
        (b"{\"record\":\"turn\",\"index\":\"secret\"}", wrong("turn", 33)),
        (b"{\"record\":\"started\"}", wrong("started", 20)),
    ] {
        let found = RunRecord::from_line(line).unwrap_err();
        assert_eq!(found, fault, "{}", String::from_utf8_lossy(line));
        assert!(!format!("{found} {found:?}").contains("secret"));
    }
}

#[test]
fn a_number_that_is_none_comes_back_as_one() {
    let mut outcome = AgentOutcome::default();
    outcome.metrics.duration_ms = f64::NAN;
    let termination = RunTermination::Outcome { status: OutcomeStatus::Done, outcome };
    let ended = RunRecord::Ended(RunEnded { termination, ..RunEnded::default() });
    let again = RunRecord::from_line(&ended.to_line()).unwrap();
    assert_eq!(again.to_line(), ended.to_line());
}

#[test]
fn a_summary_is_written_as_the_original_does() {
    let mut summary = RunSummary {
        run_id: "r".into(),
        agent_id: "a".into(),
        intent: "i".into(),
        started_at: at("2026-01-02T03:04:05Z"),
        ended_at: None,
        status: runlog_stores::run_store::RunStatus::InProgress,
        turn_count: 3,
        damaged_lines: 0,
    };
    let json = serde_json::to_string(&summary).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"{"run_id":"r","agent_id":"a","intent":"i","started_at":"2026-01-02T03:04:05Z","#,
            r#""status":"in_progress","turn_count":3}"#,
        )
    );
    summary.damaged_lines = 2;
    let json = serde_json::to_string(&summary).unwrap();
    assert!(json.ends_with(r#","damaged_lines":2}"#), "{json}");
    assert_eq!(serde_json::from_str::<RunSummary>(&json).unwrap(), summary);
}
