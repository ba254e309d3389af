//! Parents and children: apart, linked, and what becomes of links when a relative is missing.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use runlog::{Allow, MAX_ID_LEN, NewRecord, Outcome, Retention};

use super::*;

fn children(log: &TrajectoryLog, run: &str) -> Vec<String> {
    let children = log.children(run).unwrap();
    assert!(children.damage.is_empty());
    names(&children.runs).into_iter().map(str::to_owned).collect()
}

fn parent(log: &TrajectoryLog, run: &str) -> Option<String> {
    log.parent(run).unwrap().map(|parent| parent.run.to_string())
}

#[test]
fn parent_and_children_are_apart_and_linked_both_ways() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    let (mut first, mut second) = (mother.child("first"), mother.child("second"));
    let mut all = [vec![], vec![], vec![]];
    for round in 0..4 {
        for (recorder, records) in [&mut mother, &mut first, &mut second].into_iter().zip(&mut all)
        {
            let record = if round == 0 { recorder.started() } else { recorder.turn() };
            store.log.record(&record).unwrap();
            records.push(record);
        }
    }
    store.always(|log| {
        for (run, records) in ["mother", "first", "second"].into_iter().zip(&all) {
            assert_eq!(typed(log, run), *records, "the parent's records stay as they came");
        }
        assert_eq!(children(log, "mother"), ["first", "second"]);
        assert_eq!(children(log, "first"), [""; 0]);
        assert_eq!(parent(log, "second").as_deref(), Some("mother"));
        assert_eq!(parent(log, "mother"), None);
        let found = log.children("mother").unwrap().runs.remove(0);
        assert_eq!(found.agent, AGENT);
        assert_eq!(found.summary.unwrap().records, 4);
        assert!(log.parent("first").unwrap().unwrap().summary.unwrap().started);
    });
}

#[test]
fn a_chain_of_a_hundred_generations_is_walked_in_both_directions() {
    let store = Store::new();
    let mut recorder = Recorder::root("0");
    store.log.record(&recorder.started()).unwrap();
    for depth in 1..100 {
        recorder = recorder.child(&depth.to_string());
        let record = recorder.started();
        assert_eq!(record.depth, depth);
        store.log.record(&record).unwrap();
    }
    store.always(|log| {
        for depth in 1..100 {
            assert_eq!(children(log, &(depth - 1).to_string()), [depth.to_string()]);
            assert_eq!(parent(log, &depth.to_string()), Some((depth - 1).to_string()));
        }
    });
}

#[test]
fn a_child_that_is_announced_twice_is_listed_once() {
    let mut store = Store::new();
    let mut child = Recorder::root("mother").child("child");
    for _ in 0..3 {
        child.seq = 0;
        store.log.record(&child.started()).unwrap();
        store.log.record(&child.turn()).unwrap();
        store = store.reopened();
    }
    assert_eq!(children(&store.log, "mother"), ["child"]);
    assert_eq!(told(&store.log, "child"), "0 1 again 0 1 again 0 1");
}

#[test]
fn a_parent_that_was_never_recorded_is_known_by_its_children() {
    let store = Store::new();
    let mother = Recorder::root("mother");
    for name in ["a", "b"] {
        record_all(&store.log, &mother.child(name).whole(1));
    }
    let store = store.always(|log| {
        assert_eq!(children(log, "mother"), ["a", "b"]);
        assert_eq!(whole(log, "mother").len(), 0);
        let found = log.parent("a").unwrap().unwrap();
        assert!(!found.summary.unwrap().started, "no call started it");
        assert!(is_run_not_found(log.children("nobody")));
        assert!(is_run_not_found(log.parent("nobody")));
    });
    // And then it is recorded after all.
    let mut mother = mother;
    let records = mother.whole(2);
    record_all(&store.log, &records);
    store.always(|log| {
        assert_eq!(children(log, "mother"), ["a", "b"]);
        assert_eq!(typed(log, "mother"), records);
        assert_eq!(status(log, "mother"), RunStatus::Completed);
        assert!(log.store().run((AGENT, "mother")).unwrap().started);
    });
}

#[test]
fn a_child_without_a_start_is_linked_by_any_of_its_records() {
    let store = Store::new();
    let mut child = Recorder::root("mother").child("child");
    let _dropped = child.started();
    store.log.record(&child.turn()).unwrap();
    store.always(|log| {
        assert_eq!(children(log, "mother"), ["child"]);
        assert_eq!(parent(log, "child").as_deref(), Some("mother"));
        assert_eq!(told(log, "child"), "lost0..1 1");
    });
}

#[test]
fn a_parent_that_has_ended_still_gets_children() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    let records = mother.whole(1);
    record_all(&store.log, &records);
    record_all(&store.log, &mother.child("late").whole(1));
    store.always(|log| {
        assert_eq!(children(log, "mother"), ["late"]);
        assert_eq!(typed(log, "mother"), records);
        assert_eq!(status(log, "mother"), RunStatus::Completed);
    });
}

#[test]
fn a_child_outlives_its_parent_and_a_parent_its_child() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    record_all(&store.log, &mother.whole(1));
    for name in ["kept", "deleted"] {
        record_all(&store.log, &mother.child(name).whole(1));
    }
    store.store.delete_run((AGENT, "deleted")).unwrap();
    let store = store.always(|log| {
        let found = log.children("mother").unwrap().runs;
        assert_eq!(names(&found), ["kept", "deleted"]);
        assert!(found[0].summary.is_some() && found[1].summary.is_none());
    });
    store.store.delete_run((AGENT, "mother")).unwrap();
    let store = store.always(|log| {
        assert!(is_run_not_found(log.children("mother")), "links go with their run");
        assert_eq!(whole(log, "kept").len(), 3);
        let found = log.parent("kept").unwrap().unwrap();
        assert_eq!((found.run.as_str(), found.summary), ("mother", None));
    });
    // A child of a deleted parent announces it anew; nothing of the deleted one comes back.
    record_all(&store.log, &mother.child("later").whole(1));
    store.always(|log| {
        assert_eq!(children(log, "mother"), ["later"]);
        assert_eq!(whole(log, "mother").len(), 0);
    });
}

#[test]
fn a_policy_takes_parents_and_children_like_any_other_runs() {
    let store = Store::new();
    for number in 0..6 {
        let mut mother = Recorder::root(&format!("mother-{number}"));
        store.log.record(&mother.started()).unwrap();
        record_all(&store.log, &mother.child(&format!("child-{number}")).whole(1));
        store.log.record(&mother.ended()).unwrap();
    }
    store.store.gc(&Retention::new().keep_newest(4)).unwrap();
    store.always(|log| {
        let left = log.store().list_runs(&runlog::RunQuery::new().limit(100)).unwrap().runs;
        assert_eq!(left.len(), 4, "links hold nothing up, and leave nothing behind");
        for number in [4, 5] {
            let (mother, child) = (format!("mother-{number}"), format!("child-{number}"));
            assert_eq!(children(log, &mother), [child.as_str()]);
            assert_eq!(parent(log, &child), Some(mother));
        }
    });
}

#[test]
fn a_parent_that_only_children_named_goes_once_it_was_adopted() {
    let store = Store::new();
    record_all(&store.log, &Recorder::root("mother").child("child").whole(1));
    let store = store.reopened();
    let adopted = store.store.adopt_orphans().unwrap().runs;
    assert_eq!(adopted.len(), 1);
    assert_eq!(children(&store.log, "mother"), ["child"]);
    store.store.delete_run((AGENT, "mother")).unwrap();
    assert!(is_run_not_found(store.log.children("mother")));
}

#[test]
fn a_child_of_another_agent_is_found_and_runs_of_other_stores_stay_as_they_are() {
    let store = Store::new();
    let kitchen = TrajectoryLog::new(&store.store, "kitchen").unwrap();
    // The same id, in another store's hands.
    let raw = store.store.start_run("raw", "mother", b"not an identity").unwrap();
    raw.append(b"raw").unwrap();
    raw.end(&Outcome::completed()).unwrap();
    // One child before its parent is recorded, one after.
    let mut mother = Recorder::root("mother");
    record_all(&kitchen, &mother.child("early").whole(0));
    record_all(&store.log, &mother.whole(1));
    record_all(&kitchen, &mother.child("late").whole(0));
    record_all(&kitchen, &Recorder::root("elsewhere").child("own").whole(0));
    record_all(&store.log, &Recorder::root("elsewhere").child("other").whole(0));
    store.always(|log| {
        assert_eq!(children(log, "mother"), ["early", "late"]);
        let found = log.children("mother").unwrap().runs;
        assert!(found.iter().all(|child| child.agent == "kitchen" && child.summary.is_some()));
        assert_eq!(children(log, "elsewhere"), ["own", "other"]);
        let raw: Vec<_> = log.store().trace(("raw", "mother")).unwrap().collect();
        assert_eq!(raw.len(), 1);
    });
}

#[test]
fn a_run_that_is_its_own_ancestor_is_reported_as_it_was_said() {
    let store = Store::new();
    let circle = |run: &str, parent: &str| RunIdentity {
        parent_run_id: Some(parent.into()),
        ..RunIdentity::root(run)
    };
    for (run, parent) in [("self", "self"), ("egg", "hen"), ("hen", "egg")] {
        let mut recorder = Recorder::new(circle(run, parent));
        store.log.record(&recorder.started()).unwrap();
        recorder.seq += 1;
        store.log.record(&recorder.turn()).unwrap();
    }
    store.always(|log| {
        assert_eq!(children(log, "self"), ["self"]);
        assert_eq!(children(log, "egg"), ["hen"]);
        for run in ["self", "egg", "hen"] {
            assert_eq!(told(log, run), "0 lost1..2 2", "and nothing goes round for ever");
        }
    });
}

#[test]
fn ids_of_every_shape_stay_distinct() {
    let store = Store::new();
    let longest = "x".repeat(MAX_ID_LEN);
    let ids = [
        "a",
        "A",
        "a ",
        " a",
        "a/b",
        "a\\b",
        "../a",
        "a\0",
        "\0",
        "\0a",
        "a\n",
        "\u{e4}",
        "a\u{308}",
        ".",
        "con",
        "\0unattributed",
        AGENT,
        "\"",
        "{}",
        &longest,
    ];
    for id in ids {
        let mut mother = Recorder::root(id);
        store.log.record(&mother.started()).unwrap();
        let child = format!("{}.", &id[..id.len().min(500)]);
        record_all(&store.log, &mother.child(&child).whole(1));
    }
    store.log.record_bytes(br#"{"seq":0}"#).unwrap();
    store.always(|log| {
        for id in ids {
            let [record] = &typed(log, id)[..] else { panic!("{id:?} has one record") };
            assert_eq!(record.run_id.as_deref(), Some(id));
            assert_eq!(children(log, id).len(), 1);
            assert_eq!(parent(log, &children(log, id)[0]).as_deref(), Some(id));
        }
        assert_eq!(log.unattributed().unwrap().count(), 1);
    });
}

#[test]
fn ids_that_cannot_be_kept_are_refused_before_anything_is_stored() {
    let store = Store::new();
    let long = "x".repeat(MAX_ID_LEN + 1);
    for bad in ["", &long] {
        let of_itself = Recorder::root(bad).started();
        let of_parent = Recorder::root(bad).child("child").started();
        let of_child = Recorder::root("mother").child(bad).started();
        for record in [of_itself, of_parent, of_child] {
            let error = store.log.record(&record).unwrap_err();
            assert!(matches!(error, Error::InvalidId { .. }), "{error:?}");
        }
    }
    assert_eq!(store.store.list_runs(&runlog::RunQuery::new().limit(10)).unwrap().runs, []);
    assert!(TrajectoryLog::new(&store.store, "").is_err());
    assert!(TrajectoryLog::new(&store.store, "\0mine").is_err());
}

#[test]
fn who_sees_a_record_sees_all_that_came_before_it() {
    let store = Store::new();
    let recorder = Mutex::new(Recorder::root("run"));
    store.log.record(&recorder.lock().unwrap().started()).unwrap();
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut recorder = recorder.lock().unwrap();
                    store.log.record(&recorder.turn()).unwrap();
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
        scope.spawn(|| {
            let mut seen = 0;
            while done.load(Ordering::Acquire) < 4 {
                let records = whole(&store.log, "run");
                assert!(records.len() >= seen, "nothing goes away");
                assert!((0..).zip(&records).all(|(seq, record)| record.seq() == Some(seq)));
                seen = records.len();
            }
        });
    });
    store.always(|log| assert_eq!(whole(log, "run").len(), 801));
}

#[test]
fn threads_that_record_parents_and_children_at_once_lose_and_mix_nothing() {
    let store = Store::new();
    let workers = 8;
    thread::scope(|scope| {
        for worker in 0..workers {
            let log = store.log.clone();
            scope.spawn(move || {
                let mut common = Recorder::root("common").child(&format!("mother-{worker}"));
                log.record(&common.started()).unwrap();
                for number in 0..20 {
                    let mut child = common.child(&format!("child-{worker}-{number}"));
                    for _ in 0..3 {
                        log.record(&common.turn()).unwrap();
                    }
                    record_all(&log, &child.whole(5));
                }
                log.record(&common.ended()).unwrap();
            });
        }
    });
    store.always(|log| {
        let mothers: BTreeSet<_> = children(log, "common").into_iter().collect();
        assert_eq!(mothers.len(), workers);
        for worker in 0..workers {
            let mother = format!("mother-{worker}");
            let seqs: Vec<_> = typed(log, &mother).iter().map(|record| record.seq).collect();
            assert_eq!(seqs, (0..62).collect::<Vec<_>>());
            let wanted: Vec<_> = (0..20).map(|number| format!("child-{worker}-{number}")).collect();
            assert_eq!(children(log, &mother), wanted);
            for child in wanted {
                assert_eq!(typed(log, &child).len(), 7);
            }
        }
    });
}

/// What finding out how a mother ended reads when the store was just opened, and whether her last
/// record is known as a repetition.
fn looks_at_the_end(store: &Store, last: &TrajectoryRecord) -> u64 {
    let looks = |log: &TrajectoryLog| {
        let io = log.store().stats().unwrap().io;
        io.reads + io.mapped_reads
    };
    let before = looks(&store.log);
    store.log.settle_ends().unwrap();
    let recorded = store.log.record(last).unwrap();
    assert!(recorded.repeated, "the last record of the mother is in front of the links");
    looks(&store.log) - before
}

#[test]
fn the_last_record_of_a_parent_is_found_without_a_walk_over_its_links() {
    let looks = |children: usize| {
        let store = Store::new();
        let mut mother = Recorder::root("mother");
        record_all(&store.log, &[mother.started()]);
        for number in 0..children {
            let mut child = mother.child(&format!("early {number}"));
            record_all(&store.log, &child.whole(0));
        }
        let last = mother.turn();
        store.log.record(&last).unwrap();
        for number in 0..children {
            let mut child = mother.child(&format!("late {number}"));
            record_all(&store.log, &child.whole(0));
        }
        looks_at_the_end(&store.killed(), &last)
    };
    let (few, many) = (looks(3), looks(300));
    assert!(many < few + 20, "{few} looks with 3 links behind it, {many} with 300");
}

#[test]
fn links_that_do_not_say_what_is_in_front_of_them_or_say_so_too_late_are_walked_over() {
    let store = Store::new();
    let mut mother = Recorder::root("mother");
    record_all(&store.log, &[mother.started()]);
    store.log.record(&mother.child("first").started()).unwrap();
    let number = store.store.run((AGENT, "mother")).unwrap().number().0;
    let last = mother.turn();
    store.log.record(&last).unwrap();
    // As an earlier version wrote them; of another run; and as of before the last record.
    for behind in [
        json!(null),
        json!({ "run": number + 1, "place": 4, "last": 0 }),
        json!({ "run": number, "place": 2, "last": 0 }),
        json!({ "run": number, "place": 2 }),
    ] {
        let mut link = json!({ "agent": AGENT, "run_id": "old" });
        if !behind.is_null() {
            link["behind"] = behind;
        }
        let bytes = serde_json::to_vec(&link).unwrap();
        let record = NewRecord::json(&bytes).kind("\0child");
        store.store.append_to(AGENT, "mother", &record, Allow::everything()).unwrap();
    }
    store.log.record(&mother.child("second").started()).unwrap();
    looks_at_the_end(&store.killed(), &last);
    store.always(|log| assert_eq!(children(log, "mother"), ["first", "old", "second"]));
}
