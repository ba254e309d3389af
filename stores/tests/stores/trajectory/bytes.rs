//! What goes in comes out: the JSON of each payload, bytes as they came, versions, odd shapes.

use runlog::{Allow, NewRecord, Seq};
use runlog_stores::trajectory::{SCHEMA_VERSION, Unreadable, Why};

use super::*;

fn bytes_of(log: &TrajectoryLog, run: &str) -> Vec<Vec<u8>> {
    whole(log, run).iter().map(|record| record.bytes().to_vec()).collect()
}

#[test]
fn every_payload_has_the_json_of_clark_agent() {
    for (payload, wanted) in every_payload() {
        assert_eq!(serde_json::to_value(&payload).unwrap(), wanted);
        assert_eq!(serde_json::from_value::<TrajectoryPayload>(wanted.clone()).unwrap(), payload);
        assert_eq!(payload.kind(), wanted["kind"]);
    }
    let kinds = every_payload();
    let kinds: std::collections::BTreeSet<_> = kinds.iter().map(|(it, _)| it.kind()).collect();
    assert_eq!(kinds.len(), 12, "all of them are here");
}

#[test]
fn a_record_round_trips_with_its_schema_version() {
    let identity = RunIdentity::root("parent").child("run");
    let record = TrajectoryRecord::new(&identity, 4, NOON, TrajectoryPayload::TurnStarted);
    let wanted = json!({"schema_version": 1, "seq": 4, "run_id": "run", "parent_run_id": "parent",
        "depth": 1, "recorded_at_unix_ms": NOON, "payload": {"kind": "turn_started"}});
    assert_eq!(serde_json::to_value(&record).unwrap(), wanted);
    assert_eq!(serde_json::from_value::<TrajectoryRecord>(wanted).unwrap(), record);
}

#[test]
fn a_record_without_a_schema_version_is_from_before_versioning() {
    let old = json!({"seq": 0, "recorded_at_unix_ms": 1, "payload": {"kind": "turn_started"}});
    let record: TrajectoryRecord = serde_json::from_value(old).unwrap();
    assert_eq!((record.schema_version, record.depth, record.run_id), (0, 0, None));
    assert_eq!(SCHEMA_VERSION, 1);
}

#[test]
fn a_message_without_a_timestamp_gets_none() {
    let store = Store::new();
    let json = br#"{"seq":0,"run_id":"run","recorded_at_unix_ms":1,
        "payload":{"kind":"message_appended","message":{"role":"user","content":"hi"}}}"#;
    store.log.record_bytes(json).unwrap();
    store.always(|log| {
        for _ in 0..2 {
            let [record] = &whole(log, "run")[..] else { panic!("one record") };
            let message = AgentMessage::User { content: json!("hi"), timestamp: None };
            let wanted = TrajectoryPayload::MessageAppended { message };
            assert_eq!(record.read().unwrap().payload, wanted);
            assert_eq!(record.bytes(), json);
        }
    });
}

#[test]
fn all_payloads_come_back_as_types_and_as_bytes() {
    let store = Store::new();
    let identity = RunIdentity::root("r");
    let records: Vec<_> = (0..)
        .zip(every_payload())
        .map(|(seq, (payload, _))| TrajectoryRecord::new(&identity, seq, NOON, payload))
        .filter(|record| record.payload.kind() != "run_started")
        .collect();
    record_all(&store.log, &records);
    store.always(|log| {
        let found: Vec<_> = items(log, "r")
            .into_iter()
            .filter_map(|item| match item {
                Item::Record(record) => Some(record),
                _ => None,
            })
            .collect();
        assert_eq!(found.len(), records.len());
        for (found, wanted) in found.iter().zip(&records) {
            assert_eq!(found.read().unwrap(), *wanted);
            assert_eq!(found.bytes(), serde_json::to_vec(wanted).unwrap());
            assert_eq!(found.kind(), Some(wanted.payload.kind()));
            assert_eq!(found.seq(), Some(wanted.seq));
            assert_eq!(found.recorded_at().0, NOON as i64 * 1_000_000);
        }
    });
}

#[test]
fn bytes_come_back_as_they_came_however_they_are_written() {
    let store = Store::new();
    let written: [&[u8]; 4] = [
        b" {\n \"payload\" : {\"identity\":{\"run_id\":\"run\"},\"kind\":\"run_started\"},\r\n\
            \"run_id\":\"run\",\"recorded_at_unix_ms\":1e3,\"seq\":0}\n",
        br#"{"seq":1,"run_id":"r\u0075n","recorded_at_unix_ms":5,"payload":{"kind":"turn_started"},
            "extra":[1.10,1e400]}"#,
        br#"{"seq":2,"seq":2,"run_id":"run","recorded_at_unix_ms":5,"payload":{"kind":"x"}}"#,
        "{\"seq\":3,\"run_id\":\"run\",\"payload\":{\"kind\":\"\u{e9}\"},\
            \"big\":18446744073709551616}"
            .as_bytes(),
    ];
    for (seq, json) in (0..).zip(written) {
        let recorded = store.log.record_bytes(json).unwrap();
        assert!(!recorded.repeated, "record {seq}");
    }
    store.always(|log| {
        assert_eq!(bytes_of(log, "run"), written);
        assert_eq!(told(log, "run"), "0 1 2 3");
    });
}

#[test]
fn a_newer_schema_is_refused_as_a_type_and_stays_readable_as_bytes() {
    let store = Store::new();
    let newer = br#"{"schema_version":2,"seq":0,"run_id":"run","recorded_at_unix_ms":5,
        "payload":{"kind":"turn_started"}}"#;
    let other = br#"{"schema_version":99999999999,"seq":1,"run_id":"run","at":"noon",
        "payload":["of","another","shape"]}"#;
    for json in [&newer[..], other] {
        store.log.record_bytes(json).unwrap();
    }
    store.always(|log| {
        assert_eq!(bytes_of(log, "run"), [&newer[..], other]);
        let records = whole(log, "run");
        let refused = |place: usize, found| {
            let error = records[place].read().unwrap_err();
            let why = Why::NewerSchema { found, known: 1 };
            assert_eq!((error.place, error.why), (Seq(place as u64), why));
        };
        refused(0, 2);
        refused(1, 99_999_999_999);
    });
}

#[test]
fn unknown_kinds_are_kept_and_said_to_be_unknown() {
    let store = Store::new();
    let long = "k".repeat(100);
    let kinds = ["model_switched", "", "\0child", &long, "run_started "];
    for (seq, kind) in kinds.iter().enumerate() {
        let record = json!({"seq": seq, "run_id": "run", "recorded_at_unix_ms": 1,
            "payload": {"kind": kind, "to": "larger"}});
        store.log.record_bytes(&serde_json::to_vec(&record).unwrap()).unwrap();
    }
    store.always(|log| {
        let found = whole(log, "run");
        assert_eq!(found.len(), kinds.len(), "none is taken for a link");
        for (record, kind) in found.iter().zip(kinds) {
            let Err(Unreadable { why: Why::UnknownKind { kind: said }, .. }) = record.read() else {
                panic!("{kind:?} is unknown");
            };
            assert_eq!(said, kind.chars().take(64).collect::<String>());
        }
        assert_eq!(found[0].kind(), Some("model_switched"));
        assert_eq!(found[3].kind(), None, "the engine holds kinds of 64 bytes");
        assert_eq!(log.children("run").unwrap().runs, []);
    });
}

#[test]
fn what_is_not_one_json_object_is_refused_and_nothing_is_stored() {
    let store = Store::new();
    let json: [&[u8]; 5] =
        [b"", b"{\"seq\":0", b"\xff\xfe", b"{\"a\":1}{\"b\":2}", b"{\"a\":\"\xff\"}"];
    for bytes in json {
        assert!(matches!(store.log.record_bytes(bytes).unwrap_err(), Error::Json { .. }));
    }
    let others: [&[u8]; 4] = [b"[0,\"run\"]", b"7", b"null", b"\"{}\""];
    for bytes in others {
        let error = store.log.record_bytes(bytes).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error:?}");
    }
    let error = store.log.record_bytes(br#"{"seq":"secret" oops}"#).unwrap_err();
    assert!(!error.to_string().contains("secret"), "payloads do not belong into errors");
    assert_eq!(store.store.list_runs(&runlog::RunQuery::new().limit(10)).unwrap().runs, []);
}

#[test]
fn stored_bytes_of_any_sort_are_read_without_harm() {
    let store = Store::new();
    let deep =
        format!("{{\"seq\":3,\"run_id\":\"run\",\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
    type Odd<'a> = (&'a [u8], Option<u64>, fn(&Why) -> bool);
    let odd: [Odd<'_>; 6] = [
        (b"", None, |why| matches!(why, Why::NotJson { line: 1, column: 0 })),
        (b"{\"seq\":1,", None, |why| matches!(why, Why::NotJson { .. })),
        (b"\xc3\x28", None, |why| matches!(why, Why::NotJson { .. })),
        (b"[2]", None, |why| matches!(why, Why::OtherShape { .. })),
        (deep.as_bytes(), Some(3), |why| matches!(why, Why::OtherShape { .. })),
        (b"{\"seq\":4,\n\"payload\":{\"kind\":\"turn_started\"}}", Some(4), |why| {
            matches!(why, Why::OtherShape { line: 2, .. })
        }),
    ];
    for (bytes, _, _) in &odd {
        let record = NewRecord::json(bytes);
        store.store.append_to(AGENT, "run", &record, Allow::everything()).unwrap();
    }
    store.always(|log| {
        let all = items(log, "run").into_iter();
        let found: Vec<_> = all
            .filter_map(|item| match item {
                Item::Record(record) => Some(record),
                _ => None,
            })
            .collect();
        assert_eq!(found.len(), odd.len());
        for (record, (bytes, seq, fits)) in found.iter().zip(&odd) {
            assert_eq!((record.bytes(), record.seq()), (*bytes, *seq));
            let error = record.read().unwrap_err();
            assert!(fits(&error.why), "{error}");
        }
        log.parent("run").unwrap();
        log.children("run").unwrap();
    });
}

#[test]
fn deep_arguments_of_a_tool_are_kept() {
    let mut args = json!(1);
    for _ in 0..300 {
        args = json!([args]);
    }
    let store = Store::new();
    let mut recorder = Recorder::root("run");
    let payload = |args| TrajectoryPayload::ToolStarted {
        tool_call_id: "1".into(),
        tool_name: "nest".into(),
        args,
    };
    let record = recorder.next(payload(args));
    store.log.record(&record).unwrap();
    store.always(|log| {
        let [found] = &whole(log, "run")[..] else { panic!("one record") };
        assert_eq!(found.bytes(), serde_json::to_vec(&record).unwrap());
        assert!(matches!(found.read().unwrap_err().why, Why::OtherShape { .. }));
    });
}

#[test]
fn odd_fields_leave_a_record_where_it_belongs() {
    let store = Store::new();
    let odd = br#"{"seq":"zero","run_id":"run","recorded_at_unix_ms":-5,"payload":null}"#;
    store.log.record_bytes(odd).unwrap();
    store.log.record_bytes(odd).unwrap();
    store.log.record_bytes(b"{}").unwrap();
    store.always(|log| {
        assert_eq!(bytes_of(log, "run"), [odd, odd], "without a sequence nothing is a repetition");
        assert_eq!(log.unattributed().unwrap().count(), 1);
    });
}
