//! Trajectories: what is recorded comes back as it came, in order, with what is missing told in its
//! place; parents know their children; and runs that have odd lives keep all that was recorded.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Error, RunLog, RunStatus};
use runlog_stores::trajectory::{
    AgentMessage, Hole, HoleCause, Item, Relative, RunIdentity, StoredRecord, ToolResult,
    TrajectoryLog, TrajectoryPayload, TrajectoryRecord,
};
use serde_json::{Value, json};

use super::support::options;

mod bytes;
mod crashes;
mod families;
mod holes;
mod lives;
mod sinks;

const AGENT: &str = "planner";
const NOON: u64 = 1_700_000_000_000;

/// A store in memory that can be closed and opened again.
struct Store {
    storage: Arc<MemoryStorage>,
    store: RunLog,
    log: TrajectoryLog,
}

impl Store {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let store = options().create_storage(storage.clone()).unwrap();
        let log = TrajectoryLog::new(&store, AGENT).unwrap();
        Self { storage, store, log }
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        let storage = Arc::new(MemoryStorage::from_bytes(bytes));
        let store = options().open_storage(storage.clone()).unwrap();
        let log = TrajectoryLog::new(&store, AGENT).unwrap();
        Self { storage, store, log }
    }

    /// Closes the store in order and opens it again.
    fn reopened(self) -> Self {
        drop(self.log);
        self.store.close().unwrap();
        Self::from_bytes(self.storage.to_bytes())
    }

    /// The store as it is found when the process dies now.
    fn killed(&self) -> Self {
        Self::from_bytes(self.storage.to_bytes())
    }

    /// This must hold now, after a kill, and after closing and reopening.
    fn always(self, check: impl Fn(&TrajectoryLog)) -> Self {
        check(&self.log);
        check(&self.killed().log);
        let store = self.reopened();
        check(&store.log);
        store
    }
}

/// A recorder of one run: it counts, as clark-agent's does.
#[derive(Clone)]
struct Recorder {
    identity: RunIdentity,
    seq: u64,
}

impl Recorder {
    fn new(identity: RunIdentity) -> Self {
        Self { identity, seq: 0 }
    }

    fn root(run: &str) -> Self {
        Self::new(RunIdentity::root(run))
    }

    fn child(&self, run: &str) -> Self {
        Self::new(self.identity.child(run))
    }

    fn next(&mut self, payload: TrajectoryPayload) -> TrajectoryRecord {
        let seq = self.seq;
        self.seq += 1;
        TrajectoryRecord::new(&self.identity, seq, NOON + seq, payload)
    }

    fn started(&mut self) -> TrajectoryRecord {
        let identity = self.identity.clone();
        self.next(TrajectoryPayload::RunStarted { identity })
    }

    fn turn(&mut self) -> TrajectoryRecord {
        self.next(TrajectoryPayload::TurnStarted)
    }

    fn ended(&mut self) -> TrajectoryRecord {
        self.next(TrajectoryPayload::RunEnded { outcome: "ended".into(), new_messages: vec![] })
    }

    /// A start, so many turns, and an end.
    fn whole(&mut self, turns: usize) -> Vec<TrajectoryRecord> {
        let mut records = vec![self.started()];
        records.extend((0..turns).map(|_| self.turn()));
        records.push(self.ended());
        records
    }
}

fn record_all(log: &TrajectoryLog, records: &[TrajectoryRecord]) {
    for record in records {
        log.record(record).unwrap();
    }
}

fn items(log: &TrajectoryLog, run: &str) -> Vec<Item> {
    log.trajectory(run).unwrap().map(Result::unwrap).collect()
}

/// The records of a run that has no holes.
fn whole(log: &TrajectoryLog, run: &str) -> Vec<StoredRecord> {
    let record = |item| match item {
        Item::Record(record) => record,
        other => panic!("{other:?}"),
    };
    items(log, run).into_iter().map(record).collect()
}

fn typed(log: &TrajectoryLog, run: &str) -> Vec<TrajectoryRecord> {
    whole(log, run).iter().map(|record| record.read().unwrap()).collect()
}

/// A trajectory as one line: sequences, holes, restarts.
fn told(log: &TrajectoryLog, run: &str) -> String {
    let word = |item: &Item| match item {
        Item::Record(record) => record.seq().map_or("?".into(), |seq| seq.to_string()),
        Item::Hole(Hole { missing, cause: HoleCause::NotRecorded, .. }) => {
            format!("lost{missing:?}")
        }
        Item::Hole(Hole { missing, cause: HoleCause::Damaged, .. }) => format!("bad{missing:?}"),
        Item::Hole(Hole { missing, .. }) => format!("elsewhere{missing:?}"),
        Item::Restart(restart) if restart.announced => "again".into(),
        Item::Restart(_) => "back".into(),
        other => panic!("{other:?}"),
    };
    items(log, run).iter().map(word).collect::<Vec<_>>().join(" ")
}

fn names(relatives: &[Relative]) -> Vec<&str> {
    relatives.iter().map(|relative| relative.run.as_str()).collect()
}

/// One payload of each kind, with everything that can be there and with nothing that need not.
fn every_payload() -> Vec<(TrajectoryPayload, Value)> {
    let user = AgentMessage::User { content: json!("tea?"), timestamp: Some(7) };
    let user_json = json!({"role": "user", "content": "tea?", "timestamp": 7});
    let identity = RunIdentity {
        run_id: "r".into(),
        parent_run_id: Some("p".into()),
        depth: 2,
        conversation_id: Some("c".into()),
        deadline_unix_ms: Some(9),
    };
    let result = ToolResult {
        content: json!([{"type": "text", "text": "hot"}]),
        is_error: true,
        details: json!({"t": 99}),
        terminate: true,
        narration: Some("boiled".into()),
    };
    use TrajectoryPayload as P;
    let strings = |of: &[&str]| of.iter().map(|text| text.to_string()).collect::<Vec<_>>();
    vec![
        (
            P::RunStarted { identity },
            json!({"kind": "run_started", "identity": {"run_id": "r", "parent_run_id": "p",
                "depth": 2, "conversation_id": "c", "deadline_unix_ms": 9}}),
        ),
        (
            P::RunStarted { identity: RunIdentity::root("r") },
            json!({"kind": "run_started", "identity": {"run_id": "r", "depth": 0}}),
        ),
        (
            P::RunEnded { outcome: "ended".into(), new_messages: vec![user.clone()] },
            json!({"kind": "run_ended", "outcome": "ended", "new_messages": [user_json]}),
        ),
        (P::TurnStarted, json!({"kind": "turn_started"})),
        (
            P::TurnEnded {
                assistant: AgentMessage::Assistant {
                    content: json!([{"type": "text", "text": "yes"}]),
                    stop_reason: json!("end_turn"),
                    error_message: None,
                    timestamp: None,
                    usage: None,
                },
                tool_results: vec![AgentMessage::ToolResult {
                    tool_call_id: "1".into(),
                    tool_name: "kettle".into(),
                    content: json!("hot"),
                    is_error: false,
                    narration: None,
                    details: None,
                    timestamp: Some(8),
                }],
            },
            json!({"kind": "turn_ended",
                "assistant": {"role": "assistant", "stop_reason": "end_turn",
                    "content": [{"type": "text", "text": "yes"}]},
                "tool_results": [{"role": "tool_result", "tool_call_id": "1", "timestamp": 8,
                    "tool_name": "kettle", "content": "hot", "is_error": false}]}),
        ),
        (
            P::MessageAppended {
                message: AgentMessage::System { content: "be kind".into(), timestamp: None },
            },
            json!({"kind": "message_appended",
                "message": {"role": "system", "content": "be kind"}}),
        ),
        (
            P::MessageAppended {
                message: AgentMessage::Custom {
                    kind: "note".into(),
                    payload: json!({"a": null}),
                    timestamp: Some(1),
                },
            },
            json!({"kind": "message_appended", "message": {"role": "custom", "kind": "note",
                "payload": {"a": null}, "timestamp": 1}}),
        ),
        (
            P::ToolStarted {
                tool_call_id: "1".into(),
                tool_name: "kettle".into(),
                args: json!({"litres": 1.5}),
            },
            json!({"kind": "tool_started", "tool_call_id": "1", "tool_name": "kettle",
                "args": {"litres": 1.5}}),
        ),
        (
            P::ToolEnded {
                tool_call_id: "1".into(),
                tool_name: "kettle".into(),
                result,
                is_error: false,
            },
            json!({"kind": "tool_ended", "tool_call_id": "1", "tool_name": "kettle",
                "result": {"content": [{"type": "text", "text": "hot"}], "is_error": true,
                    "details": {"t": 99}, "terminate": true, "narration": "boiled"},
                "is_error": false}),
        ),
        (
            P::ToolEnded {
                tool_call_id: "2".into(),
                tool_name: "cup".into(),
                result: ToolResult { content: json!("ok"), ..ToolResult::default() },
                is_error: false,
            },
            json!({"kind": "tool_ended", "tool_call_id": "2", "tool_name": "cup",
                "result": {"content": "ok"}, "is_error": false}),
        ),
        (
            P::ProviderRequestPrepared {
                iteration: 1,
                model_id: None,
                system_prompt_chars: 10,
                message_count: 2,
                tool_count: 1,
                tools: strings(&["kettle"]),
            },
            json!({"kind": "provider_request_prepared", "iteration": 1, "model_id": null,
                "system_prompt_chars": 10, "message_count": 2, "tool_count": 1,
                "tools": ["kettle"]}),
        ),
        (
            P::ContextTransformApplied {
                iteration: 1,
                plugin: "trim".into(),
                before_count: 9,
                after_count: 3,
            },
            json!({"kind": "context_transform_applied", "iteration": 1, "plugin": "trim",
                "before_count": 9, "after_count": 3}),
        ),
        (
            P::ToolGateApplied { iteration: 1, plugin: "gate".into(), allow: None },
            json!({"kind": "tool_gate_applied", "iteration": 1, "plugin": "gate"}),
        ),
        (
            P::ToolGateApplied { iteration: 1, plugin: "gate".into(), allow: Some(vec![]) },
            json!({"kind": "tool_gate_applied", "iteration": 1, "plugin": "gate", "allow": []}),
        ),
        (
            P::ToolGateConflictResolved {
                iteration: 1,
                plugins: strings(&["a", "b"]),
                chosen_plugin: None,
                allow: strings(&["kettle"]),
                reason: "first".into(),
            },
            json!({"kind": "tool_gate_conflict_resolved", "iteration": 1, "plugins": ["a", "b"],
                "allow": ["kettle"], "reason": "first"}),
        ),
        (
            P::OutputTokensEscalation { attempt: 300, prev_cap: 1, new_cap: 2 },
            json!({"kind": "output_tokens_escalation", "attempt": 300, "prev_cap": 1,
                "new_cap": 2}),
        ),
    ]
}

fn status(log: &TrajectoryLog, run: &str) -> RunStatus {
    log.store().run((AGENT, run)).unwrap().status
}

fn is_run_not_found<T: std::fmt::Debug>(result: Result<T, Error>) -> bool {
    matches!(result.unwrap_err(), Error::RunNotFound { .. })
}
