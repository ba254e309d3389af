//! What the tests of the replaced stores say, and what they could not: in each life of a store.

use super::*;

#[test]
fn a_session_that_was_saved_is_loaded() {
    in_each_life::<Chats>(|store| {
        let saved = chat("s", &["tea?", "yes"]);
        block_on(store().save(&saved)).unwrap();
        assert_eq!(block_on(store().load("s")).unwrap(), Some(saved.clone()));
    });
}

#[test]
fn what_is_missing_is_none() {
    in_each_life::<Chats>(|store| {
        block_on(store().save(&chat("s", &[]))).unwrap();
        for id in ["t", "S", "s ", "s\0"] {
            assert_eq!(block_on(store().load(id)).unwrap(), None);
            assert!(!block_on(store().exists(id)).unwrap());
        }
        assert_eq!(block_on(store().load_artifacts("s")).unwrap(), None);
        assert_eq!(block_on(store().load_trace_events("s")).unwrap(), None);
        assert_eq!(block_on(store().load_run_records("s")).unwrap(), None);
        assert_eq!(block_on(store().load_verification_reports("s")).unwrap(), None);
        assert_eq!(block_on(store().load_subagent_tasks("s")).unwrap(), None);
        assert_eq!(block_on(store().load_loop_checkpoint("s")).unwrap(), None);
    });
}

#[test]
fn saving_again_replaces_what_was_there() {
    in_each_life::<Chats>(|store| {
        block_on(store().save(&chat("s", &["a long first message", "b"]))).unwrap();
        block_on(store().save(&chat("s", &["c"]))).unwrap();
        assert_eq!(block_on(store().load("s")).unwrap(), Some(chat("s", &["c"])));
        let events = ["a", "b", "c"].map(String::from);
        block_on(store().save_trace_events("s", &events)).unwrap();
        block_on(store().save_trace_events("s", &events[1..2])).unwrap();
        assert_eq!(block_on(store().load_trace_events("s")).unwrap(), Some(vec!["b".to_owned()]));
        block_on(store().save_trace_events("s", &[])).unwrap();
        assert_eq!(block_on(store().load_trace_events("s")).unwrap(), Some(vec![]));
        assert_eq!(block_on(store().list()).unwrap(), ["s"]);
    });
}

#[test]
fn every_session_is_listed_once_and_exists() {
    in_each_life::<Chats>(|store| {
        assert!(block_on(store().list()).unwrap().is_empty());
        for id in ["c", "a", "b", "a"] {
            block_on(store().save(&chat(id, &[]))).unwrap();
        }
        // A part alone makes no session.
        block_on(store().save_artifacts("d", &json!({}))).unwrap();
        let mut ids = block_on(store().list()).unwrap();
        ids.sort();
        assert_eq!(ids, ["a", "b", "c"]);
        assert!(block_on(store().exists("a")).unwrap() && !block_on(store().exists("d")).unwrap());
    });
}

#[test]
fn all_of_many_sessions_are_listed() {
    let store = ChatStore::new(&in_memory());
    let mut wanted: Vec<String> = (0..1234).map(|number| format!("session {number}")).collect();
    wanted.sort();
    block_on(async {
        for id in &wanted {
            store.save(&chat(id, &[])).await.unwrap();
        }
        assert_eq!(store.list().await.unwrap(), wanted);
    });
}

#[test]
fn each_part_comes_back_and_none_is_mixed_with_another() {
    in_each_life::<Chats>(|store| {
        for id in ["session/a", "session_a"] {
            let part = |name: &str| json!({ "of": id, "part": name });
            block_on(store().save_artifacts(id, &part("artifacts"))).unwrap();
            block_on(store().save_trace_events(id, &[id.to_owned()])).unwrap();
            block_on(store().save_run_records(id, &[part("run"), part("other run")])).unwrap();
            block_on(store().save_verification_reports(id, &[part("report")])).unwrap();
            block_on(store().save_subagent_tasks(id, &[part("task")])).unwrap();
            block_on(store().save_loop_checkpoint(id, &part("checkpoint"))).unwrap();
        }
        for id in ["session/a", "session_a"] {
            let part = |name: &str| json!({ "of": id, "part": name });
            let found = block_on(store().load_artifacts(id)).unwrap();
            assert_eq!(found, Some(part("artifacts")));
            let found = block_on(store().load_trace_events(id)).unwrap();
            assert_eq!(found, Some(vec![id.to_owned()]));
            let found = block_on(store().load_run_records(id)).unwrap();
            assert_eq!(found, Some(vec![part("run"), part("other run")]));
            let found = block_on(store().load_verification_reports(id)).unwrap();
            assert_eq!(found, Some(vec![part("report")]));
            let found = block_on(store().load_subagent_tasks(id)).unwrap();
            assert_eq!(found, Some(vec![part("task")]));
            let found = block_on(store().load_loop_checkpoint(id)).unwrap();
            assert_eq!(found, Some(part("checkpoint")));
        }
    });
}

/// Saves everything that there can be under an id.
async fn save_all(store: &ChatStore, id: &str) {
    let part = json!({ "of": id });
    store.save(&chat(id, &["hello"])).await.unwrap();
    store.save_artifacts(id, &part).await.unwrap();
    store.save_trace_events(id, &[id.to_owned()]).await.unwrap();
    store.save_run_records(id, std::slice::from_ref(&part)).await.unwrap();
    store.save_verification_reports(id, std::slice::from_ref(&part)).await.unwrap();
    store.save_subagent_tasks(id, std::slice::from_ref(&part)).await.unwrap();
}

/// How many parts are under an id.
async fn count_all(store: &ChatStore, id: &str) -> usize {
    let found = [
        store.load(id).await.unwrap().is_some(),
        store.load_artifacts(id).await.unwrap().is_some(),
        store.load_trace_events(id).await.unwrap().is_some(),
        store.load_run_records(id).await.unwrap().is_some(),
        store.load_verification_reports(id).await.unwrap().is_some(),
        store.load_subagent_tasks(id).await.unwrap().is_some(),
    ];
    found.into_iter().filter(|found| *found).count()
}

#[test]
fn deleting_removes_all_of_a_session_and_nothing_of_another() {
    in_each_life::<Chats>(|store| {
        for id in ["a", "a/b", "a_b", "b"] {
            block_on(save_all(&store(), id));
        }
        block_on(store().save_loop_checkpoint("a", &json!({ "turn": 1 }))).unwrap();
        block_on(store().delete("a")).unwrap();
        assert_eq!(block_on(count_all(&store(), "a")), 0);
        for id in ["a/b", "a_b", "b"] {
            assert_eq!(block_on(count_all(&store(), id)), 6, "{id}");
        }
        let checkpoint = block_on(store().load_loop_checkpoint("a")).unwrap();
        assert_eq!(checkpoint, Some(json!({ "turn": 1 })), "it belongs to the run");
        // A session without a session document goes as well.
        block_on(store().save_artifacts("c", &json!({}))).unwrap();
        block_on(store().delete("c")).unwrap();
        assert_eq!(block_on(count_all(&store(), "c")), 0);
    });
}

#[test]
fn deleting_what_is_missing_is_fine() {
    in_each_life::<Chats>(|store| {
        for _ in 0..2 {
            block_on(store().delete("s")).unwrap();
            block_on(store().delete_loop_checkpoint("r")).unwrap();
        }
        block_on(store().save(&chat("s", &[]))).unwrap();
        block_on(store().save_loop_checkpoint("r", &json!(1))).unwrap();
        for _ in 0..2 {
            block_on(store().delete("s")).unwrap();
            block_on(store().delete_loop_checkpoint("r")).unwrap();
            assert!(!block_on(store().exists("s")).unwrap());
            assert_eq!(block_on(store().load_loop_checkpoint("r")).unwrap(), None);
        }
    });
}

#[test]
fn the_latest_checkpoint_of_a_run_is_kept_and_leaves_nothing_else() {
    in_each_life::<Chats>(|store| {
        for turn in 0..5 {
            block_on(store().save_loop_checkpoint("r", &json!({ "turn": turn }))).unwrap();
            let found = block_on(store().load_loop_checkpoint("r")).unwrap();
            assert_eq!(found, Some(json!({ "turn": turn })));
        }
        assert!(block_on(store().list()).unwrap().is_empty());
    });
}

#[test]
fn ids_of_any_characters_stay_distinct_and_others_are_refused() {
    let long = "x".repeat(512);
    let ids = [
        "../../../etc/passwd",
        "..\\..\\x",
        "a/b",
        "a\\b",
        "a_b",
        "a/../b",
        "a",
        "A",
        "\0",
        " ",
        "\n",
        ".",
        "..",
        "\u{e9}",
        "e\u{301}",
        &long,
    ];
    in_each_life::<Chats>(|store| {
        for id in ids {
            assert!(!block_on(store().exists(id)).unwrap(), "{id:?}");
            block_on(store().save(&chat(id, &[id]))).unwrap();
        }
        for id in ids {
            assert_eq!(block_on(store().load(id)).unwrap(), Some(chat(id, &[id])));
        }
        let mut listed = block_on(store().list()).unwrap();
        let mut wanted = ids.map(String::from);
        listed.sort();
        wanted.sort();
        assert_eq!(listed, wanted);
        let too_long = "x".repeat(513);
        for id in ["", &too_long] {
            let refused = |error| matches!(error, SessionError::Store(Error::InvalidId { .. }));
            assert!(refused(block_on(store().save(&chat(id, &[]))).unwrap_err()));
            assert!(refused(block_on(store().load(id)).unwrap_err()));
            assert!(refused(block_on(store().exists(id)).unwrap_err()));
            assert!(refused(block_on(store().delete(id)).unwrap_err()));
            assert!(refused(block_on(store().save_loop_checkpoint(id, &json!(1))).unwrap_err()));
        }
    });
}

#[test]
fn stores_of_different_names_know_nothing_of_one_another() {
    let log = in_memory();
    let names = ["default", "a", "a/session", "a/artifacts", ""];
    let stores = names.map(|name| ChatStore::named(&log, name));
    block_on(async {
        for (store, name) in stores.iter().zip(names) {
            assert!(store.list().await.unwrap().is_empty(), "{name:?}");
            store.save(&chat("s", &[name])).await.unwrap();
        }
        for (store, name) in stores.iter().zip(names) {
            assert_eq!(store.load("s").await.unwrap(), Some(chat("s", &[name])));
        }
        let nameless = ChatStore::named(&log, &"x".repeat(513));
        let refused = nameless.list().await.unwrap_err();
        assert!(matches!(refused, SessionError::Store(Error::InvalidId { .. })));
    });
}

#[test]
fn a_store_that_works_is_healthy_and_one_that_does_not_says_why() {
    in_each_life::<Chats>(|store| {
        block_on(store().health_check()).unwrap();
        assert!(block_on(store().list()).unwrap().is_empty());
    });
    let log = in_memory();
    let store = ChatStore::new(&log);
    block_on(store.health_check()).unwrap();
    log.close().unwrap();
    let ill = block_on(store.health_check()).unwrap_err();
    assert!(matches!(ill, SessionError::Store(Error::Closed)), "{ill}");
    assert!(matches!(block_on(store.load("s")), Err(SessionError::Store(Error::Closed))));
}

#[test]
fn a_store_says_what_it_is_and_what_it_does() {
    let store: Arc<dyn SessionStore<Chats>> = Arc::new(ChatStore::new(&in_memory()));
    assert_eq!(store.backend_name(), "runlog");
    let capabilities = store.capabilities();
    assert!(capabilities.atomic_session_snapshots && capabilities.aggregate_cas);
    assert!(capabilities.lease_fencing && capabilities.watch);
    assert!(!capabilities.append_only_event_log && !capabilities.encrypted_at_rest);
    assert!(!capabilities.reference_aware_artifact_gc);
}

#[test]
fn sessions_without_types_are_json_with_an_id() {
    let store: EngineSessionStore = EngineSessionStore::new(&in_memory());
    block_on(async {
        let session = json!({ "id": "s", "schema_version": 99, "anything": [1, null] });
        store.save(&session).await.unwrap();
        assert_eq!(store.load("s").await.unwrap(), Some(session));
        for nameless in [json!({}), json!({ "id": 7 }), json!([]), json!(null)] {
            let refused = store.save(&nameless).await.unwrap_err();
            assert!(matches!(refused, SessionError::Store(Error::InvalidId { len: 0, .. })));
        }
    });
}

#[test]
fn all_is_beside_runs_and_documents_of_the_same_file() {
    let log = in_memory();
    let store = ChatStore::new(&log);
    let run = log.start_run("agent", "s", ()).unwrap();
    log.docs().put("sessions", "s", &NewRecord::new(b"document")).unwrap();
    block_on(save_all(&store, "s"));
    let _ = run.append(b"record").unwrap();
    block_on(store.delete("s")).unwrap();
    assert_eq!(log.trace("s").unwrap().count(), 1);
    assert_eq!(log.docs().get("sessions", "s").unwrap().unwrap().payload(), b"document");
    assert_eq!(log.list_runs(&runlog::RunQuery::new().limit(10)).unwrap().runs.len(), 1);
}

/// A store that keeps sessions only.
struct Bare(Mutex<Vec<Chat>>);

impl SessionStore<Chats> for Bare {
    fn save<'a>(&'a self, session: &'a Chat) -> runlog_stores::sessions::Call<'a, ()> {
        self.0.lock().unwrap().push(session.clone());
        Box::pin(async { Ok(()) })
    }

    fn load<'a>(&'a self, id: &'a str) -> runlog_stores::sessions::Call<'a, Option<Chat>> {
        let found = self.0.lock().unwrap().iter().rfind(|chat| chat.id == id).cloned();
        Box::pin(async { Ok(found) })
    }

    fn delete<'a>(&'a self, id: &'a str) -> runlog_stores::sessions::Call<'a, ()> {
        self.0.lock().unwrap().retain(|chat| chat.id != id);
        Box::pin(async { Ok(()) })
    }

    fn list(&self) -> runlog_stores::sessions::Call<'_, Vec<String>> {
        let ids = self.0.lock().unwrap().iter().map(|chat| chat.id.clone()).collect();
        Box::pin(async { Ok(ids) })
    }

    fn exists<'a>(&'a self, id: &'a str) -> runlog_stores::sessions::Call<'a, bool> {
        Box::pin(async move { Ok(self.load(id).await?.is_some()) })
    }
}

#[test]
fn a_store_that_leaves_parts_out_never_drops_what_is_to_be_saved() {
    let store: Arc<dyn SessionStore<Chats>> = Arc::new(Bare(Mutex::default()));
    block_on(async {
        store.save(&chat("s", &[])).await.unwrap();
        assert!(store.exists("s").await.unwrap());
        let refused = |result| matches!(result, Err(SessionError::Unsupported { .. }));
        assert!(refused(store.save_trace_events("s", &["a".to_owned()]).await));
        assert!(refused(store.save_artifacts("s", &json!({})).await));
        assert!(refused(store.save_loop_checkpoint("r", &json!({})).await));
        assert!(refused(store.save_snapshot(&SessionSnapshot::new(chat("s", &[]))).await));
        store.save_trace_events("s", &[]).await.unwrap();
        store.save_run_records("s", &[]).await.unwrap();
        store.delete_loop_checkpoint("r").await.unwrap();
        assert_eq!(store.load_trace_events("s").await.unwrap(), None);
        store.health_check().await.unwrap();
        let nothing = runlog_stores::sessions::SessionStoreCapabilities::default();
        assert_eq!((store.backend_name(), store.capabilities()), ("unknown", nothing));
        assert!(store.watch_commits().is_none());
    });
}

#[test]
fn to_see_that_a_session_is_there_costs_no_more_reads_than_the_first_step_of_a_load() {
    let disk = runlog_sim::SimDisk::untracked(Vec::new());
    let log = options().create_storage(Arc::new(disk.clone())).unwrap();
    let store = ChatStore::new(&log);
    block_on(async {
        for number in 0..600 {
            store.save(&chat(&format!("s-{number}"), &["hello"])).await.unwrap();
        }
    });
    drop(store);
    log.close().unwrap();
    let bytes_read = |look: &dyn Fn(&ChatStore)| {
        let log = options().open_storage(Arc::new(disk.clone())).unwrap();
        let store = ChatStore::new(&log);
        let _ = disk.take_counts();
        look(&store);
        let counts = disk.take_counts();
        (counts.reads, counts.read_bytes)
    };
    let exists = bytes_read(&|store| assert!(block_on(store.exists("s-123")).unwrap()));
    let load = bytes_read(&|store| assert!(block_on(store.load("s-123")).unwrap().is_some()));
    println!("(reads, bytes) of exists: {exists:?}; of a load: {load:?}");
    assert!(exists.0 < load.0 && exists.1 < load.1, "{exists:?} {load:?}");
}
