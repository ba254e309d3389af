//! What the tests of the stores of a3s-code-core show of them, of ours: behind the real trait, with
//! the real types, while a process lives on, is closed and opened, or killed between any two calls.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use a3s_code_core::llm::Message;
use a3s_code_core::loop_checkpoint::{
    LoopCheckpoint, LoopCheckpointSink, SessionStoreCheckpointSink,
};
use a3s_code_core::orchestration::{StepOutcome, WorkflowCheckpoint};
use a3s_code_core::run::{InMemoryRunStore, RunRecord};
use a3s_code_core::session_review::SessionReviewStoreV1;
use a3s_code_core::store::{
    MemorySessionStore, SessionData, SessionSnapshotV1, SessionStore, snapshot_content_digest,
};
use a3s_code_core::subagent_task_tracker::SubagentTaskSnapshot;
use a3s_code_core::tools::{ArtifactStore, ToolArtifact};
use a3s_code_core::trace::TraceEvent;
use a3s_code_core::verification::{VerificationCheck, VerificationReport};
use runlog::storage::MemoryStorage;
use runlog_stores::sessions::{Part, SessionError};
use runlog::{NewRecord, Options, RunLog};
use runlog_conformance_a3s::A3sSessionStore;
use serde_json::json;

fn options() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// What happens between two calls.
#[derive(Debug, Clone, Copy)]
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
    /// The log, after whatever happens between two calls.
    fn log(&self) -> RunLog {
        let mut now = self.now.lock().unwrap();
        let (storage, log) = &mut *now;
        match self.life {
            Life::Long => {}
            Life::ClosedAndOpened => {
                log.clone().close().unwrap();
                *log = options().open_storage(storage.clone()).unwrap();
            }
            Life::Killed => {
                *storage = Arc::new(MemoryStorage::from_bytes(storage.to_bytes()));
                *log = options().open_storage(storage.clone()).unwrap();
            }
        }
        log.clone()
    }

    /// The store as a3s sees it.
    fn store(&self) -> Arc<dyn SessionStore> {
        Arc::new(A3sSessionStore::new(&self.log()))
    }
}

/// Does a test in each life.
async fn in_lives<F: Future<Output = ()>>(test: impl Fn(Arc<World>) -> F) {
    for life in [Life::Long, Life::ClosedAndOpened, Life::Killed] {
        println!("life: {life:?}");
        let storage = Arc::new(MemoryStorage::new());
        let log = options().create_storage(storage.clone()).unwrap();
        test(Arc::new(World { life, now: Mutex::new((storage, log)) })).await;
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

fn artifact(name: &str) -> ToolArtifact {
    ToolArtifact {
        artifact_id: name.to_owned(),
        artifact_uri: format!("a3s://tool-output/{name}"),
        tool_name: "kettle".to_owned(),
        content: format!("what {name} left"),
        original_bytes: 99,
        shown_bytes: 9,
    }
}

fn artifacts(names: &[&str]) -> ArtifactStore {
    let store = ArtifactStore::new();
    for name in names {
        store.put(artifact(name));
    }
    store
}

fn trace(name: &str) -> TraceEvent {
    TraceEvent::tool_execution(name, true, 0, Duration::from_millis(4), 17, None)
}

async fn runs(session: &str) -> Vec<RunRecord> {
    let store = InMemoryRunStore::new();
    store.create_run(session, "make tea").await;
    store.records().await
}

fn report(subject: &str) -> VerificationReport {
    VerificationReport::new(subject, vec![VerificationCheck::required("c", "test", "Taste it")])
}

fn task(session: &str, task: &str) -> SubagentTaskSnapshot {
    serde_json::from_value(json!({
        "task_id": task, "parent_session_id": session, "child_session_id": "child",
        "agent": "kettle", "description": "boil", "status": "running",
        "started_ms": 1, "updated_ms": 2,
        "progress": [{ "timestamp_ms": 1, "status": "warm", "metadata": { "celsius": 60.5 } }]
    }))
    .unwrap()
}

async fn snapshot(id: &str, said: &str) -> SessionSnapshotV1 {
    let artifacts = artifacts(&["first", "second"]);
    artifacts.set_retained_uris(["a3s://tool-output/first"]);
    let mut snapshot = SessionSnapshotV1::new(
        session(id, said),
        &artifacts,
        vec![trace(said)],
        runs(id).await,
        vec![report(said)],
        vec![task(id, said)],
    );
    snapshot.session_review = Some(SessionReviewStoreV1::empty(id).unwrap());
    snapshot
}

fn loop_checkpoint(run: &str, turn: usize) -> LoopCheckpoint {
    serde_json::from_value(json!({
        "schema_version": 1, "run_id": run, "session_id": "s", "turn": turn, "messages": [],
        "total_usage": { "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3 },
        "tool_calls_count": turn, "checkpoint_ms": 5
    }))
    .unwrap()
}

fn workflow(id: &str, output: &str) -> WorkflowCheckpoint {
    let outcome: StepOutcome = serde_json::from_value(json!({
        "task_id": "step", "session_id": "s", "agent": "a", "output": output, "success": true
    }))
    .unwrap();
    WorkflowCheckpoint::from_completed(id, &HashMap::from([("step".to_owned(), outcome)]), 7)
}

/// Types of a3s have no equality: their JSON has.
fn same(left: impl serde::Serialize, right: impl serde::Serialize) {
    assert_eq!(json!(left), json!(right));
}

#[tokio::test]
async fn a_session_comes_back_as_it_was_saved_and_the_last_save_counts() {
    in_lives(|world| async move {
        assert!(world.store().load("s").await.unwrap().is_none());
        assert!(!world.store().exists("s").await.unwrap());
        for said in ["first", "second"] {
            world.store().save(&session("s", said)).await.unwrap();
            same(world.store().load("s").await.unwrap(), Some(session("s", said)));
        }
        assert!(world.store().exists("s").await.unwrap());
        assert_eq!(world.store().list().await.unwrap(), ["s"]);
        world.store().delete("s").await.unwrap();
        world.store().delete("s").await.unwrap();
        assert!(world.store().load("s").await.unwrap().is_none());
        assert!(world.store().list().await.unwrap().is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_key_of_a_provider_is_not_stored() {
    in_lives(|world| async move {
        let mut saved = session("s", "hello");
        saved.llm_config.as_mut().unwrap().api_key = Some("secret".to_owned());
        world.store().save(&saved).await.unwrap();
        let loaded = world.store().load("s").await.unwrap().unwrap();
        assert_eq!(loaded.llm_config.unwrap().api_key, None);
        let raw = A3sSessionStore::new(&world.log()).sessions().raw("s", Part::Session).await;
        assert!(!String::from_utf8(raw.unwrap().unwrap()).unwrap().contains("secret"));
    })
    .await;
}

#[tokio::test]
async fn each_part_of_a_session_comes_back_and_goes_with_it() {
    in_lives(|world| async move {
        let id = "session/a";
        world.store().save(&session(id, "hello")).await.unwrap();
        world.store().save_artifacts(id, &artifacts(&["x", "y"])).await.unwrap();
        world.store().save_trace_events(id, &[trace("a"), trace("b")]).await.unwrap();
        let runs = runs(id).await;
        world.store().save_run_records(id, &runs).await.unwrap();
        world.store().save_verification_reports(id, &[report("r")]).await.unwrap();
        world.store().save_subagent_tasks(id, &[task(id, "t")]).await.unwrap();

        let found = world.store().load_artifacts(id).await.unwrap().unwrap();
        assert_eq!(found.artifacts(), artifacts(&["x", "y"]).artifacts());
        same(world.store().load_trace_events(id).await.unwrap(), [trace("a"), trace("b")]);
        same(world.store().load_run_records(id).await.unwrap(), runs);
        same(world.store().load_verification_reports(id).await.unwrap(), [report("r")]);
        same(world.store().load_subagent_tasks(id).await.unwrap(), [task(id, "t")]);
        // A save replaces, and touches nothing else.
        world.store().save_trace_events(id, &[trace("c")]).await.unwrap();
        same(world.store().load_trace_events(id).await.unwrap(), [trace("c")]);
        same(world.store().load_verification_reports(id).await.unwrap(), [report("r")]);

        world.store().delete(id).await.unwrap();
        assert!(world.store().load_artifacts(id).await.unwrap().is_none());
        assert!(world.store().load_trace_events(id).await.unwrap().is_none());
        assert!(world.store().load_run_records(id).await.unwrap().is_none());
        assert!(world.store().load_verification_reports(id).await.unwrap().is_none());
        assert!(world.store().load_subagent_tasks(id).await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn ids_that_were_one_file_once_are_sessions_of_their_own() {
    in_lives(|world| async move {
        let ids = ["a/b", "a_b", "a\\b", "../../../etc/passwd", "______etc_passwd", "..", "_", " "];
        for id in ids {
            world.store().save(&session(id, id)).await.unwrap();
        }
        for id in ids {
            same(world.store().load(id).await.unwrap(), session(id, id));
        }
        let mut list = world.store().list().await.unwrap();
        list.sort();
        let mut wanted = ids.map(str::to_owned);
        wanted.sort();
        assert_eq!(list, wanted);
        world.store().delete("a/b").await.unwrap();
        assert!(world.store().exists("a_b").await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn a_snapshot_is_one_generation_with_all_that_it_has() {
    in_lives(|world| async move {
        for said in ["first", "second"] {
            let saved = snapshot("s", said).await;
            world.store().save_snapshot(&saved).await.unwrap();
            let loaded = world.store().load_snapshot("s").await.unwrap().unwrap();
            loaded.validate_for_session("s").unwrap();
            same(&loaded, &saved);
            let digests = (snapshot_content_digest(&loaded), snapshot_content_digest(&saved));
            assert_eq!(digests.0.unwrap(), digests.1.unwrap());
        }
        let retained = world.store().load_artifacts("s").await.unwrap().unwrap().retained_uris();
        assert_eq!(retained, ["a3s://tool-output/first".to_owned()].into());
        assert!(world.store().load_snapshot("other").await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn a_save_of_one_part_leaves_the_rest_of_the_generation() {
    in_lives(|world| async move {
        let mut wanted = snapshot("s", "first").await;
        world.store().save_snapshot(&wanted).await.unwrap();
        wanted.session = session("s", "second");
        world.store().save(&wanted.session).await.unwrap();
        wanted.trace_events = vec![];
        world.store().save_trace_events("s", &[]).await.unwrap();
        same(world.store().load_snapshot("s").await.unwrap(), wanted);
    })
    .await;
}

#[tokio::test]
async fn parts_that_were_saved_one_by_one_are_loaded_as_a_snapshot() {
    in_lives(|world| async move {
        world.store().save(&session("s", "hello")).await.unwrap();
        world.store().save_artifacts("s", &artifacts(&["x"])).await.unwrap();
        let loaded = world.store().load_snapshot("s").await.unwrap().unwrap();
        let (parts, none) = (artifacts(&["x"]), vec![]);
        let session = session("s", "hello");
        let wanted = SessionSnapshotV1::new(session, &parts, vec![], none, vec![], vec![]);
        same(loaded, wanted);
    })
    .await;
}

/// As the store in memory of a3s does.
#[tokio::test]
async fn a_generation_is_replaced_if_it_is_the_expected_one() {
    in_lives(|world| async move {
        let theirs = MemorySessionStore::new();
        let (first, second) = (snapshot("s", "first").await, snapshot("s", "second").await);
        let digest = snapshot_content_digest(&first).unwrap();
        let steps = [
            (&first, Some(digest.as_str()), false),
            (&first, None, true),
            (&second, Some("sha256:other"), false),
            (&second, Some(digest.as_str()), true),
            (&first, Some(digest.as_str()), false),
            (&first, None, true),
        ];
        for (snapshot, expected, done) in steps {
            let ours = world.store().save_snapshot_cas(snapshot, expected).await.unwrap();
            assert_eq!(ours, done, "{expected:?}");
            assert_eq!(theirs.save_snapshot_cas(snapshot, expected).await.unwrap(), done);
            same(
                world.store().load_snapshot("s").await.unwrap(),
                theirs.load_snapshot("s").await.unwrap(),
            );
        }
    })
    .await;
}

#[tokio::test]
async fn of_many_who_replace_the_same_generation_one_does() {
    in_lives(|world| async move {
        let first = snapshot("s", "first").await;
        let store = world.store();
        store.save_snapshot(&first).await.unwrap();
        let digest = snapshot_content_digest(&first).unwrap();
        let mut tasks = Vec::new();
        for number in 0..8 {
            let (store, digest) = (store.clone(), digest.clone());
            tasks.push(tokio::spawn(async move {
                let mine = snapshot("s", &format!("of {number}")).await;
                store.save_snapshot_cas(&mine, Some(&digest)).await.unwrap()
            }));
        }
        let mut done = 0;
        for task in tasks {
            done += usize::from(task.await.unwrap());
        }
        assert_eq!(done, 1);
    })
    .await;
}

#[tokio::test]
async fn what_a_newer_version_wrote_is_refused() {
    in_lives(|world| async move {
        let mut newer = snapshot("s", "hello").await;
        newer.schema_version = 99;
        assert!(world.store().save_snapshot(&newer).await.is_err());
        assert!(world.store().save_snapshot_cas(&newer, None).await.is_err());
        let mut checkpoint = loop_checkpoint("r", 1);
        checkpoint.schema_version = 99;
        // Not even saved: what was saved must be loaded.
        let refused = world.store().save_loop_checkpoint("r", &checkpoint).await.unwrap_err();
        let refused = refused.downcast_ref::<SessionError>().expect("our error");
        assert!(matches!(refused, SessionError::NewerSchema { found: 99, .. }), "{refused}");
        let mut newer = workflow("w", "o");
        newer.schema_version = 99;
        assert!(world.store().save_workflow_checkpoint("w", &newer).await.is_err());
        assert!(world.store().load_workflow_checkpoint("w").await.unwrap().is_none());
    })
    .await;
}

#[tokio::test]
async fn what_does_not_parse_is_an_error_and_not_missing() {
    in_lives(|world| async move {
        world.store().save(&session("s", "hello")).await.unwrap();
        for bytes in [&b""[..], b"{", b"{\"schema_version\":1}", b"no json"] {
            let saved = world.log().put("\0sessions/default/session", "s", &NewRecord::new(bytes));
            saved.unwrap();
            let unreadable = world.store().load("s").await.unwrap_err();
            let unreadable = unreadable.downcast_ref::<SessionError>().expect("our error");
            assert!(matches!(unreadable, SessionError::Unreadable { .. }), "{unreadable}");
            assert!(world.store().load_snapshot("s").await.is_err());
        }
    })
    .await;
}

#[tokio::test]
async fn a_loop_checkpoint_is_the_latest_and_outlives_its_session() {
    in_lives(|world| async move {
        // Through what the loop of a3s itself calls.
        let sink = || SessionStoreCheckpointSink::new(world.store());
        for turn in 1..=3 {
            sink().save_checkpoint(&loop_checkpoint("r/1", turn)).await;
        }
        sink().save_checkpoint(&loop_checkpoint("r_1", 9)).await;
        same(sink().load_latest("r/1").await, loop_checkpoint("r/1", 3));
        world.store().save(&session("s", "hello")).await.unwrap();
        world.store().delete("s").await.unwrap();
        same(sink().load_latest("r/1").await, loop_checkpoint("r/1", 3));
        for _ in 0..2 {
            world.store().delete_loop_checkpoint("r/1").await.unwrap();
        }
        assert!(sink().load_latest("r/1").await.is_none());
        same(sink().load_latest("r_1").await, loop_checkpoint("r_1", 9));
        let other = world.store().save_loop_checkpoint("x", &loop_checkpoint("y", 1)).await;
        assert!(other.is_err(), "a checkpoint of another run");
    })
    .await;
}

#[tokio::test]
async fn a_workflow_checkpoint_is_the_latest_and_is_no_loop_checkpoint() {
    in_lives(|world| async move {
        for output in ["first", "second"] {
            world.store().save_workflow_checkpoint("w", &workflow("w", output)).await.unwrap();
        }
        let found = world.store().load_workflow_checkpoint("w").await.unwrap();
        assert_eq!(found, Some(workflow("w", "second")));
        assert!(world.store().load_loop_checkpoint("w").await.unwrap().is_none());
        assert!(world.store().list().await.unwrap().is_empty());
        for _ in 0..2 {
            world.store().delete_workflow_checkpoint("w").await.unwrap();
        }
        assert!(world.store().load_workflow_checkpoint("w").await.unwrap().is_none());
        assert!(world.store().save_workflow_checkpoint("x", &workflow("w", "")).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn saves_at_the_same_time_leave_one_of_them_whole() {
    in_lives(|world| async move {
        let store = world.store();
        let mut tasks = Vec::new();
        for number in 0..5 {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                let said = format!("of {number}");
                store.save_snapshot(&snapshot("s", &said).await).await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        drop(store);
        let found = world.store().load_snapshot("s").await.unwrap().unwrap();
        assert_eq!(found.trace_events[0].name, found.verification_reports[0].subject);
        assert_eq!(found.trace_events[0].name, found.subagent_tasks[0].task_id);
        let said = &found.trace_events[0].name;
        same(&found.session, session("s", said));
    })
    .await;
}

#[tokio::test]
async fn the_store_says_what_it_is_and_does_not_promise_more() {
    in_lives(|world| async move {
        world.store().health_check().await.unwrap();
        assert_eq!(world.store().backend_name(), "runlog");
        let capabilities = world.store().capabilities();
        assert!(capabilities.atomic_session_snapshots && capabilities.aggregate_cas);
        assert!(!capabilities.lease_fencing && !capabilities.watch);
        assert!(world.store().acquire_writer_lease("me").await.is_err());
        assert!(world.store().writer_lease().await.unwrap().is_none());
        assert!(world.store().watch_commits().await.is_err());
    })
    .await;
    let log = options().create_storage(Arc::new(MemoryStorage::new())).unwrap();
    let store: Arc<dyn SessionStore> = Arc::new(A3sSessionStore::new(&log));
    log.close().unwrap();
    assert!(store.health_check().await.is_err());
}
