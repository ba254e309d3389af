//! What the recorder records, and what the log has of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog, RunStatus};
use runlog_conformance::clark::ClarkSink;
use runlog_stores::trajectory::{
    Hole, HoleCause, Item, StoredRecord, TrajectoryLog, TrajectoryRecord as OurRecord,
};
use serde_json::{Value, json};

use super::clark::{
    AgentEvent, AgentMessage, AssistantContent, EventObserver, InMemoryTrajectorySink, RunIdentity,
    StopReason, ToolResult, TrajectoryError, TrajectoryPayload, TrajectoryRecord,
    TrajectoryRecorder, TrajectorySink,
};
use super::scripted::{make_tea, question};

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// A store in memory, and its trajectories.
struct Store {
    storage: Arc<MemoryStorage>,
    store: RunLog,
}

impl Store {
    fn new() -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let store = options().create_storage(storage.clone()).unwrap();
        Self { storage, store }
    }

    fn log(&self) -> TrajectoryLog {
        TrajectoryLog::new(&self.store, "planner").unwrap()
    }

    /// As a process finds it that comes after this one was killed.
    fn after_a_kill(&self) -> Self {
        let storage = Arc::new(MemoryStorage::from_bytes(self.storage.to_bytes()));
        let store = options().open_storage(storage.clone()).unwrap();
        Self { storage, store }
    }

    fn closed_and_opened(self) -> Self {
        self.store.close().unwrap();
        let storage = self.storage;
        let store = options().open_storage(storage.clone()).unwrap();
        Self { storage, store }
    }

    /// This holds now, after a kill, and after closing and opening.
    fn always(self, check: impl Fn(&TrajectoryLog)) {
        check(&self.log());
        check(&self.after_a_kill().log());
        check(&self.closed_and_opened().log());
    }
}

/// Sends everything to the sink that clark-agent has for tests too, and refuses what it is told to.
struct Both {
    ours: ClarkSink,
    theirs: InMemoryTrajectorySink,
    refused: AtomicU64,
}

impl Both {
    fn new(log: TrajectoryLog) -> Arc<Self> {
        let (theirs, refused) = (InMemoryTrajectorySink::new(), AtomicU64::new(u64::MAX));
        Arc::new(Self { ours: ClarkSink::new(log), theirs, refused })
    }

    /// What clark-agent itself has of it, as JSON.
    async fn lines(&self) -> Vec<Vec<u8>> {
        let records = self.theirs.snapshot().await;
        records.iter().map(|record| serde_json::to_vec(record).unwrap()).collect()
    }
}

#[async_trait]
impl TrajectorySink for Both {
    async fn record(&self, record: TrajectoryRecord) -> Result<(), TrajectoryError> {
        if record.seq == self.refused.load(Ordering::Relaxed) {
            return Err(TrajectoryError::Io("as asked".into()));
        }
        self.theirs.record(record.clone()).await?;
        TrajectorySink::record(&self.ours, record).await
    }
}

fn root(run: &str) -> RunIdentity {
    RunIdentity::root().with_run_id(run)
}

/// The records of a run, of which nothing is missing.
fn records(log: &TrajectoryLog, run: &str) -> Vec<StoredRecord> {
    let record = |item| match item {
        Ok(Item::Record(record)) => record,
        other => panic!("{other:?}"),
    };
    log.trajectory(run).unwrap().map(record).collect()
}

fn bytes(records: &[StoredRecord]) -> Vec<&[u8]> {
    records.iter().map(StoredRecord::bytes).collect()
}

#[tokio::test]
async fn a_whole_run_comes_back_byte_for_byte_and_in_order() {
    let store = Store::new();
    let both = Both::new(store.log());
    make_tea(root("run-1"), Arc::new(TrajectoryRecorder::new(both.clone()))).await;
    let expected = both.lines().await;
    drop(both);
    assert!(expected.len() > 15, "{} records", expected.len());
    store.always(|log| {
        let records = records(log, "run-1");
        assert_eq!(bytes(&records), expected);
        assert!(records.iter().map(StoredRecord::seq).eq((0..expected.len() as u64).map(Some)));
        let run = log.store().run("run-1").unwrap();
        assert_eq!((run.status, run.agent.as_str()), (RunStatus::Completed, "planner"));
        let kinds: Vec<&str> = records.iter().filter_map(StoredRecord::kind).collect();
        assert_eq!((kinds[0], kinds.last()), ("run_started", Some(&"run_ended")));
        for kind in [
            "turn_started",
            "turn_ended",
            "message_appended",
            "tool_started",
            "tool_ended",
            "provider_request_prepared",
            "context_transform_applied",
            "tool_gate_applied",
            "tool_gate_conflict_resolved",
        ] {
            assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
        }
    });
}

#[tokio::test]
async fn a_whole_run_is_read_as_our_types_and_as_theirs() {
    let store = Store::new();
    let sink = Arc::new(ClarkSink::durable(store.log()));
    make_tea(root("run-1"), Arc::new(TrajectoryRecorder::new(sink))).await;
    store.always(|log| {
        for record in records(log, "run-1") {
            let ours = record.read().unwrap();
            assert_eq!(json!(ours), serde_json::from_slice::<Value>(record.bytes()).unwrap());
            let theirs: TrajectoryRecord = serde_json::from_slice(record.bytes()).unwrap();
            assert_eq!((ours.seq, ours.run_id), (theirs.seq, theirs.run_id));
        }
    });
}

/// Every event that the recorder knows.
fn events() -> Vec<AgentEvent> {
    let assistant = AgentMessage::Assistant {
        content: AssistantContent::text("\u{1f375}"),
        stop_reason: StopReason::EndTurn,
        error_message: Some("almost".into()),
        timestamp: Some(7),
        usage: None,
    };
    let custom = AgentMessage::Custom { kind: "k".into(), payload: json!([1]), timestamp: None };
    let (iteration, tools) = (3, vec!["kettle".to_owned()]);
    vec![
        AgentEvent::TurnStart,
        AgentEvent::TurnEnd { message: assistant.clone(), tool_results: vec![custom.clone()] },
        AgentEvent::MessageEnd { message: question() },
        AgentEvent::ToolExecutionStart {
            tool_call_id: "c".into(),
            tool_name: "kettle".into(),
            args: json!({"litres": 0.5}),
        },
        AgentEvent::ToolExecutionEnd {
            tool_call_id: "c".into(),
            tool_name: "kettle".into(),
            result: ToolResult::terminal("done").with_narration("It boils."),
            is_error: false,
        },
        AgentEvent::ToolExecutionEnd {
            tool_call_id: "c".into(),
            tool_name: "kettle".into(),
            result: ToolResult { details: json!({"code": 1}), ..ToolResult::error("cold") },
            is_error: true,
        },
        AgentEvent::ProviderRequestPrepared {
            iteration,
            model_id: None,
            system_prompt: "\u{e9}".into(),
            messages: vec![custom.clone()],
            tools: vec![],
            temperature: None,
            max_output_tokens: None,
        },
        AgentEvent::ContextTransformApplied {
            iteration,
            plugin: "p",
            before: vec![custom.clone(), custom],
            after: vec![],
        },
        AgentEvent::ToolGateApplied { iteration, plugin: "p", allow: None },
        AgentEvent::ToolGateApplied { iteration, plugin: "p", allow: Some(tools.clone()) },
        AgentEvent::ToolGateConflictResolved {
            iteration,
            plugins: vec!["p".into(), "q".into()],
            chosen_plugin: None,
            allow: tools,
            reason: "r".into(),
        },
        AgentEvent::OutputTokensEscalation { attempt: 3, prev_cap: 1, new_cap: u32::MAX },
        AgentEvent::AgentEnd { messages: vec![assistant] },
    ]
}

#[tokio::test]
async fn each_event_becomes_a_record_that_both_read() {
    let store = Store::new();
    let both = Both::new(store.log());
    let recorder = TrajectoryRecorder::new(both.clone());
    recorder.on_event(&AgentEvent::AgentStart).await;
    let identity =
        root("run-1").with_conversation_id("conversation").with_deadline_unix_ms(1 << 50);
    recorder.on_event(&AgentEvent::RunIdentified { identity }).await;
    for event in events() {
        recorder.on_event(&event).await;
    }
    let expected = both.lines().await;
    assert_eq!(expected.len(), 1 + events().len());
    drop((recorder, both));
    store.always(|log| {
        let records = records(log, "run-1");
        assert_eq!(bytes(&records), expected);
        for record in records {
            let ours: OurRecord = record.read().unwrap();
            assert_eq!(serde_json::to_vec(&ours).unwrap(), record.bytes(), "{:?}", record.kind());
            assert_eq!(ours.schema_version, super::clark::TRAJECTORY_SCHEMA_VERSION);
        }
    });
}

#[tokio::test]
async fn events_of_streams_leave_nothing() {
    let store = Store::new();
    let recorder = TrajectoryRecorder::new(Arc::new(ClarkSink::new(store.log())));
    let identity = root("run-1");
    recorder.on_event(&AgentEvent::RunIdentified { identity }).await;
    recorder.on_event(&AgentEvent::MessageStart { message: question() }).await;
    let partial = ToolResult::text("partial");
    let (tool_call_id, tool_name) = ("c".to_owned(), "kettle".to_owned());
    let update = AgentEvent::ToolExecutionUpdate { tool_call_id, tool_name, partial };
    recorder.on_event(&update).await;
    drop(recorder);
    store.always(|log| assert_eq!(records(log, "run-1").len(), 1));
}

#[tokio::test]
async fn a_process_can_die_between_any_two_records() {
    let store = Store::new();
    let both = Both::new(store.log());
    make_tea(root("run-1"), Arc::new(TrajectoryRecorder::new(both.clone()))).await;
    let sent = both.theirs.snapshot().await;
    let mut store = Store::new();
    for (number, record) in sent.iter().enumerate() {
        let sink = ClarkSink::new(store.log());
        TrajectorySink::record(&sink, record.clone()).await.unwrap();
        store = store.after_a_kill();
        let found = records(&store.log(), "run-1");
        assert_eq!(found.len(), number + 1);
        assert_eq!(found[number].bytes(), serde_json::to_vec(record).unwrap());
    }
    assert_eq!(store.store.run("run-1").unwrap().status, RunStatus::Completed);
}

#[tokio::test]
async fn a_run_that_was_left_in_the_middle_is_found_as_interrupted() {
    let store = Store::new();
    let recorder = TrajectoryRecorder::new(Arc::new(ClarkSink::new(store.log())));
    recorder.on_event(&AgentEvent::RunIdentified { identity: root("run-1") }).await;
    recorder.on_event(&AgentEvent::TurnStart).await;
    let store = store.after_a_kill();
    assert!(store.log().settle_ends().unwrap().is_empty());
    store.store.adopt_orphans().unwrap();
    assert_eq!(store.store.run("run-1").unwrap().status, RunStatus::Interrupted);
    store.always(|log| assert_eq!(records(log, "run-1").len(), 2));
}

#[tokio::test]
async fn what_the_sink_refuses_is_a_hole_and_the_agent_goes_on() {
    let store = Store::new();
    let both = Both::new(store.log());
    both.refused.store(2, Ordering::Relaxed);
    make_tea(root("run-1"), Arc::new(TrajectoryRecorder::new(both.clone()))).await;
    drop(both);
    store.always(|log| {
        let items: Vec<Item> = log.trajectory("run-1").unwrap().map(Result::unwrap).collect();
        let holes: Vec<&Hole> = items
            .iter()
            .filter_map(|item| if let Item::Hole(hole) = item { Some(hole) } else { None })
            .collect();
        let [hole] = holes[..] else { panic!("{holes:?}") };
        assert_eq!((&hole.missing, hole.cause), (&(2..3), HoleCause::NotRecorded));
        assert_eq!(log.store().run("run-1").unwrap().status, RunStatus::Completed);
    });
}

#[tokio::test]
async fn an_id_that_no_run_can_have_is_the_fault_of_the_record() {
    let store = Store::new();
    let sink = ClarkSink::new(store.log());
    for run in [String::new(), "r".repeat(513)] {
        let payload = TrajectoryPayload::TurnStarted;
        let record = TrajectoryRecord {
            schema_version: 1,
            seq: 0,
            run_id: Some(run),
            parent_run_id: None,
            depth: 0,
            recorded_at_unix_ms: 1,
            payload,
        };
        let refused = TrajectorySink::record(&sink, record).await;
        assert!(matches!(refused, Err(TrajectoryError::Rejected(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_closed_store_is_the_fault_of_the_store() {
    let store = Store::new();
    let sink = ClarkSink::new(store.log());
    let record = json!({"seq": 0, "run_id": "r", "recorded_at_unix_ms": 1,
        "payload": {"kind": "turn_started"}});
    let record: TrajectoryRecord = serde_json::from_value(record).unwrap();
    store.store.clone().close().unwrap();
    let refused = TrajectorySink::record(&sink, record).await;
    assert!(matches!(refused, Err(TrajectoryError::Io(_))), "{refused:?}");
}

#[tokio::test]
async fn a_record_from_before_there_were_versions_stays_one() {
    let old =
        br#"{"seq":0,"run_id":"r","recorded_at_unix_ms":9,"payload":{"kind":"turn_started"}}"#;
    let theirs: TrajectoryRecord = serde_json::from_slice(old).unwrap();
    assert_eq!(theirs.schema_version, 0);
    let store = Store::new();
    store.log().record_bytes(old).unwrap();
    store.always(|log| {
        let [record] = &records(log, "r")[..] else { panic!("one record") };
        assert_eq!((record.bytes(), record.read().unwrap().schema_version), (&old[..], 0));
    });
}

/// clark-agent gives it the time of the reading, another one each time.
#[tokio::test]
async fn a_message_without_a_time_is_the_same_at_each_reading() {
    let store = Store::new();
    let recorder = TrajectoryRecorder::new(Arc::new(ClarkSink::new(store.log())));
    recorder.on_event(&AgentEvent::RunIdentified { identity: root("r") }).await;
    recorder.on_event(&AgentEvent::MessageEnd { message: question() }).await;
    drop(recorder);
    store.always(|log| {
        let record = records(log, "r").remove(1);
        let theirs: TrajectoryRecord = serde_json::from_slice(record.bytes()).unwrap();
        assert_ne!(serde_json::to_vec(&theirs).unwrap(), record.bytes(), "it has made up a time");
        let ours = record.read().unwrap();
        assert_eq!(serde_json::to_vec(&ours).unwrap(), record.bytes());
    });
}

#[tokio::test]
async fn a_child_with_a_recorder_of_its_own_is_found_from_its_parent() {
    let store = Store::new();
    let sink = Arc::new(ClarkSink::new(store.log()));
    let parent = root("parent");
    let child = RunIdentity::child_of(&parent).with_run_id("child");
    make_tea(parent, Arc::new(TrajectoryRecorder::new(sink.clone()))).await;
    make_tea(child, Arc::new(TrajectoryRecorder::new(sink))).await;
    store.always(|log| {
        let children = log.children("parent").unwrap().runs;
        assert_eq!(children.len(), 1);
        assert_eq!(children[0].run.as_str(), "child");
        assert_eq!(log.parent("child").unwrap().unwrap().run.as_str(), "parent");
        assert_eq!(records(log, "parent").len(), records(log, "child").len());
    });
}

#[tokio::test]
async fn a_recorder_that_is_used_again_begins_a_trajectory_anew() {
    let store = Store::new();
    let recorder = Arc::new(TrajectoryRecorder::new(Arc::new(ClarkSink::new(store.log()))));
    make_tea(root("run-1"), recorder.clone()).await;
    let first = records(&store.log(), "run-1").len();
    make_tea(root("run-1"), recorder).await;
    store.always(|log| {
        let items: Vec<Item> = log.trajectory("run-1").unwrap().map(Result::unwrap).collect();
        assert_eq!(items.len(), 2 * first + 1);
        let Item::Restart(restart) = &items[first] else { panic!("{:?}", items[first]) };
        assert!(restart.announced);
        let late = items.iter().filter(|item| matches!(item, Item::Record(r) if r.is_late()));
        assert_eq!(late.count(), first, "the second came after the end of the first");
    });
}

#[tokio::test]
async fn what_comes_before_an_identity_is_kept() {
    let store = Store::new();
    let recorder = TrajectoryRecorder::new(Arc::new(ClarkSink::new(store.log())));
    recorder.on_event(&AgentEvent::AgentStart).await;
    recorder.on_event(&AgentEvent::TurnStart).await;
    drop(recorder);
    store.always(|log| {
        let found: Vec<Item> = log.unattributed().unwrap().map(Result::unwrap).collect();
        let [Item::Record(record)] = &found[..] else { panic!("{found:?}") };
        assert_eq!(record.read().unwrap().run_id, None);
    });
}
