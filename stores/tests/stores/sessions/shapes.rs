//! Sessions in the shape that a3s-code-core gives them, through types of one's own: what its types
//! leave out is left out, and what an older version wrote is read.

use super::*;
use runlog::storage::MemoryStorage;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Data {
    id: String,
    config: Value,
    state: String,
    messages: Vec<Value>,
    #[serde(default)]
    total_cost: f64,
    tool_names: Vec<String>,
    thinking_budget: Option<u64>,
    created_at: i64,
    llm_config: Option<LlmConfig>,
    #[serde(default, alias = "todos")]
    tasks: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tenant_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct LlmConfig {
    model: String,
    #[serde(default, skip_serializing)]
    api_key: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Checkpoint {
    #[serde(default)]
    schema_version: u32,
    run_id: String,
    turn: usize,
    #[serde(default)]
    verification_reports: Vec<Value>,
}

struct A3s;

impl SessionTypes for A3s {
    type Session = Data;
    type Artifacts = Value;
    type TraceEvent = Value;
    type RunRecord = Value;
    type VerificationReport = Value;
    type SubagentTask = Value;
    type LoopCheckpoint = Checkpoint;

    fn session_id(session: &Data) -> &str {
        &session.id
    }
}

fn data() -> Data {
    Data {
        id: "s".into(),
        config: json!({ "permission_policy": { "deny": ["Bash(rm:*)"], "default": "ask" } }),
        state: "Active".into(),
        messages: vec![json!({ "role": "user", "content": "\u{1f375}\0\\" })],
        total_cost: 0.125,
        tool_names: vec!["read".into(), "bash".into()],
        thinking_budget: None,
        created_at: 1_700_000_000,
        llm_config: None,
        tasks: vec![],
        tenant_id: None,
    }
}

#[test]
fn policies_tools_and_everything_else_of_a_session_come_back() {
    in_each_life::<A3s>(|store| {
        let saved = Data { tenant_id: Some("t".into()), ..data() };
        block_on(store().save(&saved)).unwrap();
        assert_eq!(block_on(store().load("s")).unwrap(), Some(saved));
    });
}

#[test]
fn what_a_type_does_not_write_is_in_no_byte() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    let store: EngineSessionStore<A3s> = EngineSessionStore::new(&log);
    let llm = LlmConfig { model: "m".into(), api_key: "sk-never-stored".into() };
    block_on(store.save(&Data { llm_config: Some(llm), ..data() })).unwrap();
    let loaded = block_on(store.load("s")).unwrap().unwrap().llm_config.unwrap();
    assert_eq!((&*loaded.model, &*loaded.api_key), ("m", ""));
    let needle = b"sk-never-stored";
    assert!(!storage.to_bytes().windows(needle.len()).any(|bytes| bytes == needle));
}

#[test]
fn the_bytes_are_the_json_of_the_type() {
    in_each_life::<A3s>(|store| {
        block_on(store().save(&data())).unwrap();
        let raw = block_on(store().raw("s", Part::Session)).unwrap().unwrap();
        assert_eq!(raw, serde_json::to_vec(&data()).unwrap());
        let text = String::from_utf8(raw).unwrap();
        assert!(text.contains("\"thinking_budget\":null") && !text.contains("tenant_id"));
    });
}

#[test]
fn what_an_older_version_wrote_is_read() {
    let log = in_memory();
    let untyped: EngineSessionStore = EngineSessionStore::new(&log);
    let typed: EngineSessionStore<A3s> = EngineSessionStore::new(&log);
    let mut older = serde_json::to_value(data()).unwrap();
    let fields = older.as_object_mut().unwrap();
    let tasks = fields.remove("tasks").unwrap();
    assert_eq!(fields.insert("todos".into(), json!(["a"])), None);
    fields.remove("total_cost").unwrap();
    assert_eq!(tasks, json!([]));
    block_on(async {
        untyped.save(&older).await.unwrap();
        let loaded = typed.load("s").await.unwrap().unwrap();
        assert_eq!(loaded, Data { tasks: vec![json!("a")], total_cost: 0.0, ..data() });
        // The first checkpoints had no version.
        untyped.save_loop_checkpoint("r", &json!({ "run_id": "r", "turn": 3 })).await.unwrap();
        let loaded = typed.load_loop_checkpoint("r").await.unwrap().unwrap();
        assert_eq!((loaded.schema_version, loaded.turn), (0, 3));
    });
}

#[test]
fn a_session_or_checkpoint_of_a_newer_schema_is_refused_and_stays_readable_raw() {
    let log = in_memory();
    let untyped: EngineSessionStore = EngineSessionStore::new(&log);
    let typed: EngineSessionStore<A3s> = EngineSessionStore::new(&log);
    block_on(async {
        // One would parse all the same, one would not.
        let mut newer = serde_json::to_value(data()).unwrap();
        newer["schema_version"] = json!(2);
        for newer in [newer, json!({ "id": "s", "schema_version": 7_000_000_000_u64 })] {
            untyped.save(&newer).await.unwrap();
            for error in
                [typed.load("s").await.unwrap_err(), typed.load_snapshot("s").await.unwrap_err()]
            {
                let text = error.to_string();
                let SessionError::NewerSchema { id, part, found, known, .. } = error else {
                    panic!("{error:?}")
                };
                assert_eq!((&*id, part, known), ("s", Part::Session, 1));
                assert_eq!(json!(found), newer["schema_version"]);
                assert!(text.starts_with("session of \"s\" has schema version"), "{text}");
            }
            let raw = typed.raw("s", Part::Session).await.unwrap().unwrap();
            assert_eq!(raw, serde_json::to_vec(&newer).unwrap());
            assert!(typed.exists("s").await.unwrap());
        }
        let checkpoint = Checkpoint {
            schema_version: 2,
            run_id: "r".into(),
            turn: 1,
            verification_reports: vec![],
        };
        let newer = serde_json::to_value(&checkpoint).unwrap();
        untyped.save_loop_checkpoint("r", &newer).await.unwrap();
        let refused = typed.load_loop_checkpoint("r").await.unwrap_err();
        assert!(matches!(refused, SessionError::NewerSchema { found: 2, known: 1, .. }));
        let current = Checkpoint { schema_version: 1, ..checkpoint };
        typed.save_loop_checkpoint("r", &current).await.unwrap();
        assert_eq!(typed.load_loop_checkpoint("r").await.unwrap(), Some(current));
    });
}

#[test]
fn what_its_own_types_would_not_read_back_is_refused_when_it_is_saved() {
    let log = in_memory();
    let store: EngineSessionStore<A3s> = EngineSessionStore::new(&log);
    let untyped: EngineSessionStore = EngineSessionStore::new(&log);
    block_on(async {
        let newer = Checkpoint {
            schema_version: 2,
            run_id: "r".into(),
            turn: 1,
            verification_reports: vec![],
        };
        let refused = store.save_loop_checkpoint("r", &newer).await.unwrap_err();
        assert!(matches!(refused, SessionError::NewerSchema { found: 2, known: 1, .. }));
        let deep = (0..130).fold(json!(1), |inner, _| json!([inner]));
        let refused = untyped.save(&json!({ "id": "s", "deep": deep })).await.unwrap_err();
        assert!(matches!(refused, SessionError::Store(Error::Json { .. })), "{refused}");
        assert!(untyped.save_artifacts("s", &deep).await.is_err());
        assert!(!untyped.exists("s").await.unwrap());
        assert!(store.load_loop_checkpoint("r").await.unwrap().is_none());
    });
}

/// Sessions whose parts are numbers, or lists of them.
struct Numbers;

impl SessionTypes for Numbers {
    type Session = (String, f64);
    type Artifacts = f64;
    type TraceEvent = f64;
    type RunRecord = f64;
    type VerificationReport = f64;
    type SubagentTask = f64;
    type LoopCheckpoint = f64;

    fn session_id(session: &(String, f64)) -> &str {
        &session.0
    }
}

#[test]
fn numbers_that_json_has_no_word_for_are_refused_in_every_part_and_leave_what_was_there() {
    let log = in_memory();
    let store: EngineSessionStore<Numbers> = EngineSessionStore::new(&log);
    let snapshot = |number, part| SessionSnapshot::<Numbers> {
        session: ("s".into(), 1.0),
        artifacts: Some(part),
        trace_events: None,
        run_records: Some(vec![number]),
        verification_reports: None,
        subagent_tasks: None,
    };
    block_on(async {
        store.save_snapshot(&snapshot(1.5, 2.5)).await.unwrap();
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let list = [1.0, none];
            for refused in [
                store.save(&("s".into(), none)).await,
                store.save_artifacts("s", &none).await,
                store.save_trace_events("s", &list).await,
                store.save_run_records("s", &list).await,
                store.save_verification_reports("s", &list).await,
                store.save_subagent_tasks("s", &list).await,
                store.save_loop_checkpoint("r", &none).await,
                store.save_snapshot(&snapshot(none, 1.0)).await,
                store.save_snapshot(&snapshot(1.0, none)).await,
            ] {
                let refused = refused.unwrap_err();
                assert!(matches!(refused, SessionError::Store(Error::Json { .. })), "{refused}");
            }
        }
        let loaded = store.load_snapshot("s").await.unwrap().unwrap().snapshot;
        assert_eq!((loaded.session.1, loaded.artifacts), (1.0, Some(2.5)));
        assert_eq!((loaded.trace_events, loaded.run_records), (None, Some(vec![1.5])));
        assert_eq!(store.load_loop_checkpoint("r").await.unwrap(), None);
    });
}
