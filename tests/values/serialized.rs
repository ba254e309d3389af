//! Public values through serde: what is written is read back the same, and looks as it should.

use core::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use runlog::retention::{Candidate, Inventory, plan};
use runlog::storage::MemoryStorage;
use runlog::{
    Activity, Adopted, AgentId, Allow, Compression, ContentType, Corruption, Cursor, Damage,
    Durability, Expected, Health, IndexRecovery, Limits, LogPosition, NewRecord, Options, Outcome,
    Place, Protection, Retention, Rule, RunId, RunLog, RunNo, RunStatus, Seq, SpaceReturn,
    TailWriter, Timestamp, Version,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json, to_value};

/// Writes a value as JSON text and reads it back; gives the JSON.
#[track_caller]
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) -> Value {
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
    to_value(value).unwrap()
}

fn memory() -> RunLog {
    Options::new().background(false).create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

#[test]
fn ids_numbers_words_and_times_are_texts_and_numbers() {
    assert_eq!(comes_back(&AgentId::new("a \"b\"\n").unwrap()), json!("a \"b\"\n"));
    assert_eq!(comes_back(&RunId::new("r").unwrap()), json!("r"));
    assert_eq!(comes_back(&Seq(u64::MAX)), json!(u64::MAX));
    assert_eq!(comes_back(&(RunNo(1), Version(2))), json!([1, 2]));
    assert_eq!(comes_back(&Timestamp(1)), json!("1970-01-01T00:00:00.000000001Z"));
    assert_eq!(comes_back(&RunStatus::InProgress), json!("in_progress"));
    assert_eq!(comes_back(&Rule::NewestN), json!("newest_n"));
    assert_eq!(comes_back(&Protection::Newest), json!("newest"));
    assert_eq!(comes_back(&Durability::Disk), json!("disk"));
    assert_eq!(comes_back(&ContentType::from_code(130)), json!("custom:130"));
    assert_eq!(comes_back(&"-5.7".parse::<Cursor>().unwrap()), json!("-5.7"));
    assert_eq!(comes_back(&TailWriter::Mapped), json!("mapped"));
    assert_eq!(comes_back(&SpaceReturn::Punch), json!("punch"));
    assert_eq!(comes_back(&Compression::Zstd { level: 3 }), json!({ "zstd": { "level": 3 } }));
    assert_eq!(comes_back(&IndexRecovery::Kept), json!("kept"));
    assert_eq!(comes_back(&Expected::Version(Version(3))), json!({ "version": 3 }));
    assert_eq!(comes_back(&Activity::IndexRebuild), json!(Activity::IndexRebuild.name()));
    let well = comes_back(&Health::default());
    assert_eq!((&well["poisoned"], &well["failures"]), (&json!(null), &json!([])));
    assert_eq!(comes_back(&Allow::everything()), json!({ "unstarted": true, "after_end": true }));
}

#[test]
fn what_no_value_prints_is_refused() {
    let too_long = json!("x".repeat(513));
    assert!(serde_json::from_value::<RunId>(too_long).is_err());
    for bad in [json!("Completed"), json!(1), json!(null)] {
        assert!(serde_json::from_value::<RunStatus>(bad.clone()).is_err(), "{bad}");
        assert!(serde_json::from_value::<Timestamp>(bad.clone()).is_err(), "{bad}");
        assert!(serde_json::from_value::<Cursor>(bad.clone()).is_err(), "{bad}");
    }
}

#[test]
fn what_lists_and_calls_answer_comes_back_the_same() {
    let log = memory();
    for (run, at) in [("one", 1), ("two", 2), ("three", 3)] {
        let writer = log.start_run("agent", run, ()).unwrap();
        let _ = writer.append(b"record").unwrap();
        if run != "three" {
            let _ = writer.end(&Outcome::failed().at(Timestamp(at))).unwrap();
        }
    }
    assert!(log.hold("two", "an audit").unwrap());
    let page = log.list_runs(&runlog::RunQuery::new().agent("agent").limit(2)).unwrap();
    let told = comes_back(&page);
    assert_eq!(told["next"], json!(page.next.unwrap().to_string()));
    let two = comes_back(&log.run("two").unwrap());
    assert_eq!((&two["agent"], &two["run"]), (&json!("agent"), &json!("two")));
    assert_eq!((&two["status"], &two["held"]), (&json!("failed"), &json!(true)));
    assert_eq!(two["ended_at"], json!("1970-01-01T00:00:00.000000002Z"));
    assert_eq!(two["number"], json!(log.run("two").unwrap().number().0));

    let held = comes_back(&log.held_runs().unwrap());
    assert_eq!((&held[0]["reason"], &held[0]["number"]), (&json!("an audit"), &two["number"]));

    let policy = Retention::new().max_age(Duration::from_secs(1));
    let told = comes_back(&log.gc_plan(&policy).unwrap());
    assert_eq!(
        (&told["evict"][0]["run"], &told["evict"][0]["rule"]),
        (&json!("one"), &json!("age"))
    );
    assert_eq!(told["protected"][0]["protection"], json!("held"));
    assert_eq!(told["totals"]["going"], json!(1));
    let _ = comes_back(&log.gc(&policy).unwrap());
    let receipts = comes_back(&log.receipts(9).unwrap());
    assert_eq!((&receipts[0]["run"], &receipts[0]["rule"]), (&json!("one"), &json!("age")));
    assert!(receipts[0]["deleted_at"].as_str().unwrap().ends_with('Z'));

    let _ = log.docs().put("space", "key", &NewRecord::new(b"value")).unwrap();
    let listed = comes_back(&log.docs().list("space", "", None, 9).unwrap());
    assert_eq!((&listed["documents"][0]["key"], &listed["next"]), (&json!("key"), &Value::Null));
    assert_eq!(comes_back(&log.docs().erase("space", "key").unwrap())["bytes"], json!(5));
    let told = json!({ "runs": [["agent", "three"]] });
    assert_eq!(comes_back(&serde_json::from_value::<Adopted>(told.clone()).unwrap()), told);
    let _ = log.end_run("agent", "three", &Outcome::failed(), Allow::nothing()).unwrap();
    assert_eq!(comes_back(&log.delete_run("three").unwrap()), json!({ "bytes": 6 }));

    let _ = comes_back(&log.compact().unwrap());
    let stats = comes_back(&log.stats().unwrap());
    assert_eq!((&stats["runs"], &stats["pinned"]), (&json!(1), &json!([])));
    assert!(stats["io"]["writes"].as_u64().unwrap() > 0);
    assert_eq!(comes_back(&log.verify().unwrap())["problems"], json!([]));
    let _ = comes_back(log.recovery_report());
}

#[test]
fn damage_comes_back_with_its_place() {
    let at = LogPosition { segment: runlog::SegmentId(3), offset: 64 };
    let places = [
        Place::Header,
        Place::Superblock { slot: 1 },
        Place::OwnerPage,
        Place::Manifest { offset: 4096 },
        Place::Extent { extent: runlog::ExtentNo(2) },
        Place::Frame(at),
        Place::Directory { segment: runlog::SegmentId(1) },
        Place::Index,
    ];
    for place in places {
        let _ = comes_back(&place);
    }
    assert_eq!(comes_back(&Place::Frame(at)), json!({ "frame": { "segment": 3, "offset": 64 } }));
    let damage = Damage::Checksum { expected: 1, found: 2 };
    assert_eq!(comes_back(&damage), json!({ "checksum": { "expected": 1, "found": 2 } }));
    let told = json!({
        "place": "index", "damage": "missing", "agent": "a", "run": "r", "seq": 4,
    });
    let read: Corruption = serde_json::from_value(told.clone()).unwrap();
    assert_eq!(comes_back(&read), told);
    assert_eq!(
        read.to_string(),
        "the index is damaged: it is missing (agent \"a\", run \"r\", record 4)"
    );
}

#[test]
fn a_policy_comes_back_the_same_and_says_only_what_was_named() {
    assert_eq!(comes_back(&Retention::new()), json!({}));
    let billing = AgentId::new("billing").unwrap();
    let policy = Retention::new()
        .keep_newest(100)
        .max_age(Duration::from_millis(1_500))
        .max_bytes(None)
        .for_status(RunStatus::Failed, Limits::new().max_bytes(7))
        .for_agent(billing.clone(), Limits::new().keep_newest(None))
        .for_agent_status(billing.clone(), RunStatus::Cancelled, Limits::new().keep_newest(1))
        .only_agent(billing)
        .protect_newest(true);
    let told = json!({
        "keep_newest": 100,
        "max_age": { "secs": 1, "nanos": 500_000_000 },
        "max_bytes": null,
        "statuses": { "failed": { "max_bytes": 7 } },
        "agents": {
            "billing": { "keep_newest": null, "statuses": { "cancelled": { "keep_newest": 1 } } },
        },
        "only_agents": ["billing"],
        "protect_newest": true,
    });
    assert_eq!(comes_back(&policy), told);
    // Zero is no limit, as for the calls.
    let none: Retention = serde_json::from_value(json!({ "keep_newest": 0 })).unwrap();
    assert!(none.is_unlimited());
}

#[test]
fn a_policy_with_a_name_that_is_not_known_is_refused() {
    for misspelled in [
        json!({ "keep": 1 }),
        json!({ "statuses": { "fail": { "keep_newest": 1 } } }),
        json!({ "statuses": { "failed": { "newest": 1 } } }),
        json!({ "agents": { "a": { "keep": 1 } } }),
        json!({ "agents": { "a": { "agents": { "b": {} } } } }),
        json!({ "agents": { "a": { "protect_newest": true } } }),
        json!({ "agents": { "": {} } }),
        json!({ "keep_newest": -1 }),
    ] {
        assert!(serde_json::from_value::<Retention>(misspelled.clone()).is_err(), "{misspelled}");
    }
}

#[test]
fn what_is_planned_without_a_store_comes_back_the_same() {
    let mut runs = Inventory::new();
    let mut run = Candidate::new(RunNo(1), RunStatus::Completed);
    (run.bytes, run.held) = (10, true);
    let _ = comes_back(&run);
    runs.push(&AgentId::new("a").unwrap(), run);
    let policy = Retention::new().max_age(Duration::from_nanos(1));
    let planned = plan(&policy, Timestamp(9), &runs).unwrap();
    assert_eq!(comes_back(&planned)["protected"][0]["run_no"], json!(1));
}
