//! Records of a late version of car-proto, each kind with all fields and with as few as it can
//! have, beside the same records of the store.

use car_ir_0_60 as ir;
use car_proto_0_60 as v60;
use runlog_stores::run_store as ours;
use serde_json::{Value, json};

use super::run_store_world::{NOW, time};

pub(crate) fn records() -> Vec<(v60::RunRecord, ours::RunRecord)> {
    let mut all = vec![started(None), started(Some("c".into()))];
    all.extend([model_turn(false), model_turn(true), turn()]);
    all.extend([cancellation_requested(None), cancellation_requested(Some("x".into()))]);
    all.extend([
        cancellation_result(
            v60::RunCancellationStatus::CancelledConfirmed,
            ours::RunCancellationStatus::CancelledConfirmed,
        ),
        cancellation_result(
            v60::RunCancellationStatus::AlreadyTerminal,
            ours::RunCancellationStatus::AlreadyTerminal,
        ),
        cancellation_result(
            v60::RunCancellationStatus::TerminationUnconfirmed,
            ours::RunCancellationStatus::TerminationUnconfirmed,
        ),
    ]);
    all.extend([refused(false), refused(true)]);
    all.extend([
        ended(v60::RunTermination::Incomplete, ours::RunTermination::Incomplete),
        ended(outcome().0, outcome().1),
        ended(cancelled().0, cancelled().1),
    ]);
    all
}

fn started(client_id: Option<String>) -> (v60::RunRecord, ours::RunRecord) {
    let theirs = v60::RunStarted {
        run_id: "r".into(),
        client_id: client_id.clone(),
        agent_id: "a".into(),
        intent: "i".into(),
        outcome_description: client_id.clone(),
        started_at: time(NOW),
    };
    let ours = ours::RunStarted {
        run_id: "r".into(),
        client_id: client_id.clone(),
        agent_id: "a".into(),
        intent: "i".into(),
        outcome_description: client_id,
        started_at: time(NOW),
    };
    (v60::RunRecord::Started(theirs), ours::RunRecord::Started(ours))
}

fn model_turn(full: bool) -> (v60::RunRecord, ours::RunRecord) {
    let arguments = json!({"path": "/tmp", "ratio": 0.1});
    let theirs = v60::RunModelTurn {
        index: 4,
        turn_index: 1,
        assistant_text: "\u{e9}\n\"".into(),
        requested_tool_calls: if full {
            let arguments = arguments.clone();
            vec![v60::RunModelToolCall { id: "t".into(), name: "ls".into(), arguments }]
        } else {
            vec![]
        },
        model_id: "m".into(),
        token_usage: full.then_some(v60::RunModelTokenUsage {
            prompt_tokens: 1,
            completion_tokens: 2,
            total_tokens: 3,
            context_window: u64::MAX,
            cache_read_input_tokens: 4,
            cache_creation_input_tokens: 5,
        }),
        duration_ms: 7,
        recorded_at: time(NOW + 1_000_000),
    };
    let ours = ours::RunModelTurn {
        index: 4,
        turn_index: 1,
        assistant_text: "\u{e9}\n\"".into(),
        requested_tool_calls: if full {
            vec![ours::RunModelToolCall { id: "t".into(), name: "ls".into(), arguments }]
        } else {
            vec![]
        },
        model_id: "m".into(),
        token_usage: full.then_some(ours::RunModelTokenUsage {
            prompt_tokens: 1,
            completion_tokens: 2,
            total_tokens: 3,
            context_window: u64::MAX,
            cache_read_input_tokens: 4,
            cache_creation_input_tokens: 5,
        }),
        duration_ms: 7,
        recorded_at: time(NOW + 1_000_000),
    };
    (v60::RunRecord::ModelTurn(theirs), ours::RunRecord::ModelTurn(ours))
}

fn turn() -> (v60::RunRecord, ours::RunRecord) {
    let theirs = v60::RunTurn {
        index: 5,
        proposal_id: Some("p".into()),
        action_id: Some("x".into()),
        action_status: Some(ir::ActionStatus::Succeeded),
        action_duration_ms: Some(12.5),
        action_completed_at: Some(time(NOW)),
        depends_on: Some(vec![]),
        state_dependencies: Some(vec!["k".into()]),
        prompt: Some(String::new()),
        tool: Some("ls".into()),
        parameters: json!([1, null]),
        output: Some(json!("o")),
        cli_outcome: Some(v60::CliOutcome::Timeout),
        verifier_verdict: v60::VerifierVerdict::Fail,
        policy_rejected: Some(v60::PolicyRejection { rule: "x".into(), param: Some("y".into()) }),
    };
    let ours = ours::RunTurn {
        index: 5,
        proposal_id: Some("p".into()),
        action_id: Some("x".into()),
        action_status: Some(ours::ActionStatus::Succeeded),
        action_duration_ms: Some(12.5),
        action_completed_at: Some(time(NOW)),
        depends_on: Some(vec![]),
        state_dependencies: Some(vec!["k".into()]),
        prompt: Some(String::new()),
        tool: Some("ls".into()),
        parameters: json!([1, null]),
        output: Some(json!("o")),
        cli_outcome: Some(ours::CliOutcome::Timeout),
        verifier_verdict: ours::VerifierVerdict::Fail,
        policy_rejected: Some(ours::PolicyRejection { rule: "x".into(), param: Some("y".into()) }),
    };
    (v60::RunRecord::Turn(theirs), ours::RunRecord::Turn(ours))
}

/// The fields that a turn may lack, each with a value, and the version that had it first.
pub(crate) fn fields_of_a_turn() -> Vec<(&'static str, Value, u32)> {
    vec![
        ("proposal_id", json!("p"), 60),
        ("action_id", json!("x"), 60),
        ("action_status", json!("skipped"), 60),
        ("action_duration_ms", json!(0.1), 60),
        ("action_completed_at", json!("2026-01-01T00:00:00.5Z"), 60),
        ("depends_on", json!([]), 60),
        ("state_dependencies", json!(["k", ""]), 60),
        ("prompt", json!("\u{1f375}"), 23),
        ("tool", json!("drive_cli"), 23),
        ("parameters", json!({"a": {"b": [1, 2.5, true]}, "c": "\u{0}"}), 23),
        ("output", json!(-1), 23),
        ("cli_outcome", json!({"kind": "killed"}), 23),
        ("policy_rejected", json!({"rule": "no", "param": "p"}), 23),
    ]
}

fn cancellation_requested(id: Option<String>) -> (v60::RunRecord, ours::RunRecord) {
    let theirs = v60::RunCancellationRequested {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        reason_digest: "d".into(),
        principal: "p".into(),
        action_id: id.clone(),
        request_id: id.clone(),
    };
    let ours = ours::RunCancellationRequested {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        reason_digest: "d".into(),
        principal: "p".into(),
        action_id: id.clone(),
        request_id: id,
    };
    (v60::RunRecord::CancellationRequested(theirs), ours::RunRecord::CancellationRequested(ours))
}

fn cancellation_result(
    theirs: v60::RunCancellationStatus,
    ours: ours::RunCancellationStatus,
) -> (v60::RunRecord, ours::RunRecord) {
    let theirs = v60::RunCancelResponse {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        reason_digest: "d".into(),
        principal: "p".into(),
        status: theirs,
        terminal_digest: Some("t".into()),
        action_id: None,
        request_id: None,
        receipt_digest: "e".into(),
    };
    let ours = ours::RunCancelResponse {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        reason_digest: "d".into(),
        principal: "p".into(),
        status: ours,
        terminal_digest: Some("t".into()),
        action_id: None,
        request_id: None,
        receipt_digest: "e".into(),
    };
    (v60::RunRecord::CancellationResult(theirs), ours::RunRecord::CancellationResult(ours))
}

fn refused(full: bool) -> (v60::RunRecord, ours::RunRecord) {
    let theirs = v60::RunModelCallRefused {
        at: time(NOW),
        model: "m".into(),
        reason: "cap".into(),
        message: "no more today".into(),
        cap: full.then(|| json!({"usd": 1.5})),
        spent_usd: full.then_some(1.25),
        resets_at: full.then(|| "tomorrow".into()),
        zone: full.then(|| "UTC".into()),
    };
    let ours = ours::RunModelCallRefused {
        at: time(NOW),
        model: "m".into(),
        reason: "cap".into(),
        message: "no more today".into(),
        cap: full.then(|| json!({"usd": 1.5})),
        spent_usd: full.then_some(1.25),
        resets_at: full.then(|| "tomorrow".into()),
        zone: full.then(|| "UTC".into()),
    };
    (v60::RunRecord::ModelCallRefused(theirs), ours::RunRecord::ModelCallRefused(ours))
}

fn ended(
    theirs: v60::RunTermination,
    ours: ours::RunTermination,
) -> (v60::RunRecord, ours::RunRecord) {
    let theirs = v60::RunEnded {
        run_id: "r".into(),
        client_id: Some("c".into()),
        agent_id: "a".into(),
        termination: theirs,
        completion_digest: Some("0".repeat(64)),
        ended_at: time(NOW),
    };
    let ours = ours::RunEnded {
        run_id: "r".into(),
        client_id: Some("c".into()),
        agent_id: "a".into(),
        termination: ours,
        completion_digest: Some("0".repeat(64)),
        ended_at: time(NOW),
    };
    (v60::RunRecord::Ended(theirs), ours::RunRecord::Ended(ours))
}

fn outcome() -> (v60::RunTermination, ours::RunTermination) {
    let theirs = ir::AgentOutcome {
        status: ir::OutcomeStatus::PartialSuccess,
        summary: "s".into(),
        evidence: vec![ir::Evidence {
            kind: ir::EvidenceKind::Evaluator,
            description: "d".into(),
            data: Some(json!({"score": 0.5})),
        }],
        metrics: ir::OutcomeMetrics {
            turns: 1,
            tool_calls: 2,
            duration_ms: 3.25,
            retries: 4,
            actions_succeeded: 5,
            actions_failed: u32::MAX,
        },
        timestamp: time(NOW),
    };
    let ours = ours::AgentOutcome {
        status: ours::OutcomeStatus::PartialSuccess,
        summary: "s".into(),
        evidence: vec![ours::Evidence {
            kind: ours::EvidenceKind::Evaluator,
            description: "d".into(),
            data: Some(json!({"score": 0.5})),
        }],
        metrics: ours::OutcomeMetrics {
            turns: 1,
            tool_calls: 2,
            duration_ms: 3.25,
            retries: 4,
            actions_succeeded: 5,
            actions_failed: u32::MAX,
        },
        timestamp: time(NOW),
    };
    (
        v60::RunTermination::Outcome { status: ir::OutcomeStatus::PartialSuccess, outcome: theirs },
        ours::RunTermination::Outcome {
            status: ours::OutcomeStatus::PartialSuccess,
            outcome: ours,
        },
    )
}

fn cancelled() -> (v60::RunTermination, ours::RunTermination) {
    let theirs = v60::RunCancellationIdentity {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        reason_digest: "d".into(),
        principal: "p".into(),
        action_id: Some("x".into()),
        request_id: None,
    };
    let ours = ours::RunCancellationIdentity {
        receipt_version: 1,
        run_id: "r".into(),
        idempotency_key: "k".into(),
        reason_digest: "d".into(),
        principal: "p".into(),
        action_id: Some("x".into()),
        request_id: None,
    };
    (
        v60::RunTermination::Cancelled { cancellation: theirs },
        ours::RunTermination::Cancelled { cancellation: ours },
    )
}
