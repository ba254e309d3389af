//! All 20 methods of the trait of a3s-code-core 3.3, with the real types, against the crate's own
//! store in memory: while a process lives on, is closed and opened, or killed between two calls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use a3s_code_core::llm::Message;
use a3s_code_core::loop_checkpoint::LoopCheckpoint;
use a3s_code_core::run::{InMemoryRunStore, RunRecord};
use a3s_code_core::store::{MemorySessionStore, SessionData, SessionStore};
use a3s_code_core::subagent_task_tracker::SubagentTaskSnapshot;
use a3s_code_core::tools::{ArtifactStore, ToolArtifact};
use a3s_code_core::trace::TraceEvent;
use a3s_code_core::verification::{VerificationCheck, VerificationReport};
use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog};
use runlog_conformance_a3s3::A3sSessionStore;
use serde_json::{Value, json};

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// What happens between two calls.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Life {
    Long,
    ClosedAndOpened,
    Killed,
}

struct World {
    life: Life,
    now: Mutex<(Arc<MemoryStorage>, RunLog)>,
}

impl World {
    fn new(life: Life) -> Self {
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).unwrap();
        Self { life, now: Mutex::new((storage, log)) }
    }

    /// The store as a3s sees it, after whatever happens between two calls.
    fn store(&self) -> Arc<dyn SessionStore> {
        let mut now = self.now.lock().unwrap();
        let (storage, log) = &mut *now;
        if self.life == Life::ClosedAndOpened {
            log.clone().close().unwrap();
        }
        if self.life != Life::Long {
            *storage = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
            *log = options().open_storage(storage.clone()).unwrap();
        }
        Arc::new(A3sSessionStore::new(log))
    }
}

fn session(id: &str, said: &str) -> SessionData {
    let mut session: SessionData = serde_json::from_value(json!({
        "id": id,
        "config": {
            "name": "tea", "workspace": "/kitchen", "system_prompt": "You make tea.",
            "max_context_length": 1000, "auto_compact": true, "auto_compact_threshold": 0.75
        },
        "state": "Active",
        "messages": [],
        "context_usage": { "used_tokens": 1, "max_tokens": 1000, "percent": 0.001, "turns": 1 },
        "total_usage": { "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3 },
        "total_cost": 0.1,
        "tool_names": ["kettle"],
        "thinking_enabled": true,
        "thinking_budget": null,
        "created_at": 1_767_225_600,
        "updated_at": 1_767_225_601,
        "llm_config": { "provider": "p", "model": "m", "base_url": null },
        "tenant_id": "acme"
    }))
    .unwrap();
    session.messages = vec![Message::user(said)];
    session
}

fn artifacts(said: &str) -> ArtifactStore {
    let store = ArtifactStore::new();
    for name in ["first", "second", "third"] {
        store.put(ToolArtifact {
            artifact_id: name.to_owned(),
            artifact_uri: format!("a3s://tool-output/{name}"),
            tool_name: "kettle".to_owned(),
            content: format!("what {name} left: {said}"),
            original_bytes: 99,
            shown_bytes: 9,
        });
    }
    store
}

fn trace(said: &str) -> Vec<TraceEvent> {
    vec![TraceEvent::tool_execution(said, true, 0, Duration::from_millis(4), 17, None)]
}

async fn runs(session: &str, said: &str) -> Vec<RunRecord> {
    let store = InMemoryRunStore::new();
    store.create_run(session, said).await;
    store.records().await
}

fn reports(said: &str) -> Vec<VerificationReport> {
    vec![VerificationReport::new(said, vec![VerificationCheck::required("c", "test", "Taste it")])]
}

fn tasks(session: &str, said: &str) -> Vec<SubagentTaskSnapshot> {
    vec![
        serde_json::from_value(json!({
            "task_id": said, "parent_session_id": session, "child_session_id": "child",
            "agent": "kettle", "description": "boil", "status": "running",
            "started_ms": 1, "updated_ms": 2,
            "progress": [{ "timestamp_ms": 1, "status": "warm", "metadata": { "celsius": 60.5 } }]
        }))
        .unwrap(),
    ]
}

fn checkpoint(run: &str, turn: usize) -> LoopCheckpoint {
    serde_json::from_value(json!({
        "schema_version": 1, "run_id": run, "session_id": "s", "turn": turn, "messages": [],
        "total_usage": { "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3 },
        "tool_calls_count": turn, "checkpoint_ms": 5
    }))
    .unwrap()
}

/// All that a store shows of a session, and of a run.
async fn shown(store: &dyn SessionStore, id: &str) -> Value {
    let artifacts = store.load_artifacts(id).await.unwrap();
    let mut ids = store.list().await.unwrap();
    ids.sort();
    json!({
        "exists": store.exists(id).await.unwrap(),
        "list": ids,
        "session": store.load(id).await.unwrap(),
        // The store in memory has empty ones of a session without any.
        "artifacts": artifacts.map(|store| json!(store.artifacts())).filter(|all| *all != json!([])),
        "trace": store.load_trace_events(id).await.unwrap(),
        "runs": store.load_run_records(id).await.unwrap(),
        "reports": store.load_verification_reports(id).await.unwrap(),
        "tasks": store.load_subagent_tasks(id).await.unwrap(),
        "checkpoint": store.load_loop_checkpoint(id).await.unwrap(),
    })
}

/// Saves all parts of a session.
async fn save(store: impl Fn() -> Arc<dyn SessionStore>, id: &str, said: &str) {
    store().save(&session(id, said)).await.unwrap();
    store().save_artifacts(id, &artifacts(said)).await.unwrap();
    store().save_trace_events(id, &trace(said)).await.unwrap();
    store().save_verification_reports(id, &reports(said)).await.unwrap();
    store().save_subagent_tasks(id, &tasks(id, said)).await.unwrap();
    store().save_loop_checkpoint(id, &checkpoint(id, said.len())).await.unwrap();
}

#[tokio::test]
async fn all_20_methods_do_what_those_of_the_crates_own_store_in_memory_do() {
    for life in [Life::Long, Life::ClosedAndOpened, Life::Killed] {
        let (world, theirs) = (World::new(life), Arc::new(MemorySessionStore::new()));
        let same = async |id: &str, step: &str| {
            let (ours, theirs) = (shown(&*world.store(), id).await, shown(&*theirs, id).await);
            assert_eq!(ours, theirs, "{life:?}: {id} {step}");
        };
        let ids = ["s", "session/a", "session_a", "../../../etc/passwd", "a\\b"];
        for id in ids {
            same(id, "before").await;
            for said in ["one", "another"] {
                save(|| world.store(), id, said).await;
                save(|| theirs.clone(), id, said).await;
                // Each run has a time and an id of its own.
                let records = runs(id, said).await;
                world.store().save_run_records(id, &records).await.unwrap();
                theirs.save_run_records(id, &records).await.unwrap();
                same(id, said).await;
            }
        }
        for id in ids {
            world.store().delete(id).await.unwrap();
            theirs.delete(id).await.unwrap();
            same(id, "deleted, its checkpoint stays").await;
            world.store().delete(id).await.unwrap();
            for _ in 0..2 {
                world.store().delete_loop_checkpoint(id).await.unwrap();
                theirs.delete_loop_checkpoint(id).await.unwrap();
            }
            same(id, "without its checkpoint").await;
        }
        world.store().health_check().await.unwrap();
        assert_ne!(world.store().backend_name(), "unknown");
    }
}
