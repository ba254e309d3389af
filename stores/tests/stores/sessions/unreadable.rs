//! What is stored and is not of the type that is asked for: told by name, and still readable.

use super::*;

const UNREADABLE: [(&[u8], bool); 8] = [
    (b"", false),
    (b"{\"id\":\"s\",\"mess", false),
    (b"not json", false),
    (b"\xff\xfe\0", false),
    (b"{}", true),
    (b"[2,[]]", true),
    (b"{\"id\":\"s\",\"messages\":[\"secret\",7]}", true),
    (b"{\"schema_version\":1,\"schema_version\":2}", true),
];

#[test]
fn what_does_not_parse_is_told_with_session_and_part_and_stays_readable_raw() {
    for (bytes, is_json) in UNREADABLE {
        let log = in_memory();
        let store = ChatStore::new(&log);
        block_on(async {
            store.save(&chat("other", &["fine"])).await.unwrap();
            store.save(&chat("s", &["fine"])).await.unwrap();
            log.docs().put("\0sessions/default/session", "s", &NewRecord::new(bytes)).unwrap();
            for error in
                [store.load("s").await.unwrap_err(), store.load_snapshot("s").await.unwrap_err()]
            {
                let text = error.to_string();
                assert!(text.contains("session of \"s\" is"), "{text}");
                assert!(!format!("{error:?} {text}").contains("secret"), "{text}");
                let SessionError::Unreadable { id, part, is_json: told, .. } = error else {
                    panic!("{error:?}")
                };
                assert_eq!((&*id, part, told), ("s", Part::Session, is_json), "{bytes:?}");
            }
            assert_eq!(store.raw("s", Part::Session).await.unwrap().unwrap(), bytes);
            assert!(store.exists("s").await.unwrap());
            assert_eq!(store.list().await.unwrap(), ["other", "s"]);
            assert_eq!(store.load("other").await.unwrap(), Some(chat("other", &["fine"])));
            store.save(&chat("s", &["anew"])).await.unwrap();
            assert_eq!(store.load("s").await.unwrap(), Some(chat("s", &["anew"])));
        });
    }
}

#[test]
fn a_part_that_does_not_parse_spoils_no_other() {
    let log = in_memory();
    let store = ChatStore::new(&log);
    block_on(async {
        store.save(&chat("s", &[])).await.unwrap();
        store.save_artifacts("s", &json!({ "a": 1 })).await.unwrap();
        for part in ["trace_events", "loop_checkpoint"] {
            let namespace = format!("\0sessions/default/{part}");
            log.docs().put(&namespace, "s", &NewRecord::new(b"[1,{}")).unwrap();
        }
        let error = store.load_trace_events("s").await.unwrap_err();
        assert!(matches!(error, SessionError::Unreadable { part: Part::TraceEvents, .. }));
        let error = store.load_loop_checkpoint("s").await.unwrap_err();
        assert!(matches!(error, SessionError::Unreadable { part: Part::LoopCheckpoint, .. }));
        let error = store.load_snapshot("s").await.unwrap_err();
        assert!(matches!(error, SessionError::Unreadable { part: Part::TraceEvents, .. }));
        assert_eq!(store.raw("s", Part::TraceEvents).await.unwrap().unwrap(), b"[1,{}");
        assert_eq!(store.load("s").await.unwrap(), Some(chat("s", &[])));
        assert_eq!(store.load_artifacts("s").await.unwrap(), Some(json!({ "a": 1 })));
        assert_eq!(store.raw("s", Part::RunRecords).await.unwrap(), None);
        store.delete("s").await.unwrap();
        assert_eq!(store.raw("s", Part::TraceEvents).await.unwrap(), None);
    });
}

#[test]
fn a_lease_that_cannot_be_read_keeps_everybody_out_and_says_so() {
    let log = in_memory();
    let store = ChatStore::new(&log);
    log.docs().put("\0sessions/default/lease", "s", &NewRecord::new(b"{")).unwrap();
    block_on(async {
        let error = store.save(&chat("s", &[])).await.unwrap_err();
        assert!(matches!(error, SessionError::Store(Error::Json { .. })), "{error:?}");
        let ttl = std::time::Duration::from_secs(1);
        let error = store.acquire_writer_lease("s", "a", ttl).await.unwrap_err();
        assert!(matches!(error, SessionError::Store(Error::Json { .. })), "{error:?}");
        store.save(&chat("t", &[])).await.unwrap();
    });
}
