//! The key-value interface: documents are found by key, listed in order, and never mixed with runs;
//! batches happen completely or not at all. The lives campaign writes, replaces and deletes
//! documents, with and without conditions.

use std::sync::{Arc, Barrier};

use runlog::storage::MemoryStorage;
use runlog::{
    Batch, Compaction, Durability, Error, Expected, NewRecord, Options, Outcome, RunLog, RunQuery,
    SpaceReturn, Version,
};

use crate::support::world::EXTENT;

fn options() -> Options {
    Options::new().extent_size(EXTENT).background(false)
}

fn store() -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage.clone()).unwrap();
    (storage, log)
}

fn reopened(storage: &Arc<MemoryStorage>, log: RunLog) -> RunLog {
    log.close().unwrap();
    options().open_storage(storage.clone()).unwrap()
}

fn read(log: &RunLog, key: &str) -> Option<Vec<u8>> {
    log.docs().get("space", key).unwrap().map(|document| document.payload().to_vec())
}

fn keys(log: &RunLog, prefix: &str) -> Vec<String> {
    let (mut keys, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = log.docs().list("space", prefix, after.as_deref(), 3).unwrap();
        assert!(page.documents.len() <= 3);
        keys.extend(page.documents.into_iter().map(|document| document.key));
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

/// Makes everything so far part of the catalog.
fn seal(log: &RunLog) {
    let run = log.start_run("filler", &format!("{:?}", log.stats().unwrap().end), ()).unwrap();
    let sealed = log.stats().unwrap().sealed_segments;
    while log.stats().unwrap().sealed_segments == sealed {
        let _ = run.append(&[0; 4000]).unwrap();
    }
    let _ = run.end(&Outcome::completed()).unwrap();
    log.checkpoint().unwrap();
}

#[test]
fn a_document_keeps_its_bytes_kind_content_type_and_time() {
    let (storage, mut log) = store();
    let value = NewRecord::json(b"{\"a\":1}").kind("session").at(runlog::Timestamp(77));
    log.docs().put("space", "one", &value).unwrap();
    for _ in 0..2 {
        let found = log.docs().get("space", "one").unwrap().unwrap();
        assert_eq!(found.payload(), b"{\"a\":1}");
        assert_eq!(found.kind(), Some("session"));
        assert_eq!(found.content_type(), runlog::ContentType::JSON);
        assert_eq!(found.timestamp(), runlog::Timestamp(77));
        let json: serde_json::Value = found.json().unwrap();
        assert_eq!(json["a"], 1);
        assert!(found.json::<Vec<u8>>().is_err());
        let page = log.docs().list("space", "", None, 9).unwrap();
        assert_eq!(
            (page.documents[0].timestamp, page.documents[0].bytes),
            (runlog::Timestamp(77), 7)
        );
        log = reopened(&storage, log);
    }
}

#[test]
fn a_list_has_all_documents_with_the_prefix_once_in_order() {
    let (storage, mut log) = store();
    let all = ["a", "a\0", "a/1", "a/2", "a/3", "ab", "b", "b/\u{10FFFF}", "c", "d", "\u{7f}"];
    let mut sorted = all.map(str::to_owned).to_vec();
    sorted.sort();
    for (number, key) in all.iter().enumerate() {
        for _ in 0..3 {
            log.docs().put("space", key, &NewRecord::new(key.as_bytes())).unwrap();
            log.docs().put("other", key, &NewRecord::new(b"another")).unwrap();
        }
        if number % 4 == 1 {
            seal(&log);
        }
    }
    for _ in 0..2 {
        assert_eq!(keys(&log, ""), sorted);
        assert_eq!(keys(&log, "a/"), ["a/1", "a/2", "a/3"]);
        assert_eq!(keys(&log, "a"), ["a", "a\0", "a/1", "a/2", "a/3", "ab"]);
        assert_eq!(keys(&log, "zz"), Vec::<String>::new());
        log = reopened(&storage, log);
    }
    let page = log.docs().list("space", "a", Some("zzz"), 9).unwrap();
    assert!(page.documents.is_empty() && page.next.is_none());
    let page = log.docs().list("space", "b", Some("a"), 9).unwrap();
    assert_eq!(page.documents.len(), 2, "a key in front of the prefix is fine");
}

#[test]
fn many_documents_are_listed_page_by_page_while_some_are_in_memory() {
    let (_, log) = store();
    let key = |number: usize| format!("key {number:05}");
    for number in (0..300).step_by(2) {
        log.docs().put("space", &key(number), &NewRecord::new(b"sealed")).unwrap();
    }
    seal(&log);
    for number in (1..300).step_by(2) {
        log.docs().put("space", &key(number), &NewRecord::new(b"fresh")).unwrap();
    }
    assert_eq!(keys(&log, ""), (0..300).map(key).collect::<Vec<_>>());
    for number in (0..300).step_by(3) {
        assert!(log.docs().delete("space", &key(number)).unwrap());
    }
    let left: Vec<_> = (0..300).filter(|number| number % 3 != 0).map(key).collect();
    assert_eq!(keys(&log, ""), left);
}

#[test]
fn documents_and_runs_of_the_same_names_know_nothing_of_one_another() {
    let (storage, log) = store();
    let run = log.start_run("space", "one", ()).unwrap();
    let _ = run.append(b"record").unwrap();
    log.docs().put("space", "one", &NewRecord::new(b"document")).unwrap();
    log.docs().put("space", "two", &NewRecord::new(b"document")).unwrap();
    let mut log = log;
    for turn in 0..3 {
        assert_eq!(log.list_runs(&RunQuery::new().agent("space").limit(9)).unwrap().runs.len(), 1);
        assert_eq!(log.agent_of("one").unwrap(), "space");
        assert_eq!(log.trace("one").unwrap().count(), 1);
        for missing in [log.trace("two").err(), log.run("two").err(), log.delete_run("two").err()] {
            assert!(matches!(missing, Some(Error::RunNotFound { .. })), "{missing:?}");
        }
        assert_eq!(read(&log, "one").unwrap(), b"document");
        match turn {
            0 => seal(&log),
            _ => {
                drop(log.adopt_orphans().unwrap());
                log = reopened(&storage, log);
            }
        }
    }
    assert_eq!(log.agents(None, 9).unwrap(), ["filler", "space"]);
    log.delete_run("one").unwrap();
    assert_eq!(read(&log, "one").unwrap(), b"document");
    let policy = runlog::Retention::new().keep_newest(1);
    let _ = log.gc(&policy).unwrap();
    log.compact().unwrap();
    assert_eq!(read(&log, "one").unwrap(), b"document");
    assert!(log.verify().unwrap().is_clean());
}

#[test]
fn a_batch_writes_documents_and_records_together() {
    let (storage, mut log) = store();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"0").unwrap();
    log.docs().put("space", "old", &NewRecord::new(b"old")).unwrap();
    let large = vec![7; 50_000];
    let mut batch = Batch::new();
    batch
        .put("space", "new", NewRecord::new(b"new"))
        .append("agent", "run", NewRecord::new(b"1").kind("one"))
        .delete("space", "old")
        .append("agent", "run", NewRecord::new(&large))
        .put("other", "large", NewRecord::new(&large))
        .durability(Durability::Disk);
    assert_eq!(batch.len(), 5);
    let committed = log.commit(&batch).unwrap();
    assert!(committed.ticket.is_durable());
    assert_eq!(committed.versions.iter().filter(|version| version.is_some()).count(), 3);
    drop(run);
    for _ in 0..2 {
        assert_eq!(read(&log, "new").unwrap(), b"new");
        assert_eq!(read(&log, "old"), None);
        assert_eq!(log.docs().get("other", "large").unwrap().unwrap().payload(), large);
        let records: Vec<_> = log.trace("run").unwrap().map(Result::unwrap).collect();
        let payloads: Vec<&[u8]> = records.iter().map(|record| record.payload()).collect();
        assert_eq!(payloads, [b"0", b"1", &large[..]]);
        assert_eq!(records[1].kind(), Some("one"));
        log = reopened(&storage, log);
    }
}

#[test]
fn a_batch_that_cannot_be_done_as_a_whole_does_nothing() {
    let (_, log) = store();
    let run = log.start_run("agent", "ended", ()).unwrap();
    let _ = run.end(&Outcome::completed()).unwrap();
    let large = vec![1; 100_000];
    let put = |batch: &mut Batch<'_>| {
        batch.put("space", "a", NewRecord::new(b"a"));
    };
    let mut missing = Batch::new();
    put(&mut missing);
    missing.append("agent", "nobody", NewRecord::new(b"x"));
    let mut ended = Batch::new();
    put(&mut ended);
    ended.append("agent", "ended", NewRecord::new(b"x"));
    let mut twice = Batch::new();
    put(&mut twice);
    twice.delete("space", "a");
    let mut conflict = Batch::new();
    conflict.put("space", "a", NewRecord::new(&large));
    conflict.delete_if("space", "b", Expected::Version(Version(1)));
    let end = log.stats().unwrap().end;
    assert!(matches!(log.commit(&missing), Err(Error::RunNotFound { .. })));
    assert!(matches!(log.commit(&ended), Err(Error::RunEnded { .. })));
    assert!(matches!(log.commit(&twice), Err(Error::InvalidArgument { .. })));
    assert!(matches!(log.commit(&Batch::new()), Err(Error::InvalidArgument { .. })));
    assert_eq!(log.stats().unwrap().end, end, "nothing was written");
    assert!(matches!(log.commit(&conflict), Err(Error::Conflict { .. })));
    assert_eq!(read(&log, "a"), None);
    assert_eq!(keys(&log, ""), Vec::<String>::new());
    log.docs().put("space", "a", &NewRecord::new(b"now")).unwrap();
    assert_eq!(read(&log, "a").unwrap(), b"now");
}

#[test]
fn a_batch_happens_only_if_documents_that_it_leaves_alone_are_as_expected() {
    let (storage, mut log) = store();
    let run = log.start_run("agent", "run", ()).unwrap();
    let first = log.docs().put("space", "leader", &NewRecord::new(b"one")).unwrap();
    let large = vec![1; 100_000];
    for turn in 0..3 {
        let same = Expected::Version(first);
        let wrong =
            [("leader", Expected::Absent), ("none", same), ("none", Expected::Version(Version(0)))];
        for (key, expected) in wrong {
            let mut batch = Batch::new();
            batch.expect("space", "leader", same).expect("space", key, expected);
            batch.put("space", "new", NewRecord::new(&large)).delete("space", "leader");
            batch.append("agent", "run", NewRecord::new(b"never"));
            let refused = log.commit(&batch).unwrap_err();
            let Error::Conflict { namespace, key: of, found } = refused else { panic!() };
            assert_eq!((&*namespace, &*of), ("space", key));
            assert_eq!(found, (key == "leader").then_some(first));
            assert_eq!(keys(&log, ""), ["leader"]);
        }
        if turn == 0 {
            seal(&log);
        } else {
            log = reopened(&storage, log);
        }
    }
    let mut batch = Batch::new();
    batch.expect("space", "leader", Expected::Version(first));
    batch.expect("space", "none", Expected::Absent).expect("other", "any", Expected::Anything);
    batch.append("agent", "run", NewRecord::new(b"0"));
    assert_eq!(batch.len(), 1, "conditions are no writes");
    for _ in 0..3 {
        let committed = log.commit(&batch).unwrap();
        assert_eq!(committed.versions, [None]);
        assert!(committed.ticket.is_durable(), "what depends on something is durable");
    }
    assert_eq!(log.docs().get("space", "leader").unwrap().unwrap().version(), first);
    assert_eq!(log.trace("run").unwrap().count(), 3);
    drop(run);
}

#[test]
fn a_condition_is_looked_at_in_front_of_the_writes_of_its_batch() {
    let (_, log) = store();
    let first = log.docs().put("space", "a", &NewRecord::new(b"a")).unwrap();
    let mut batch = Batch::new();
    batch.put("space", "a", NewRecord::new(b"b")).expect("space", "a", Expected::Version(first));
    let second = log.commit(&batch).unwrap().versions[0].unwrap();
    assert!(matches!(log.commit(&batch), Err(Error::Conflict { .. })));
    assert_eq!(log.docs().get("space", "a").unwrap().unwrap().version(), second);
}

#[test]
fn a_batch_of_conditions_only_is_refused_and_so_are_impossible_names() {
    let (_, log) = store();
    let mut only = Batch::new();
    only.expect("space", "a", Expected::Absent);
    assert!(only.is_empty());
    assert!(matches!(log.commit(&only), Err(Error::InvalidArgument { .. })));
    let long = "x".repeat(513);
    for (namespace, key) in [("", "a"), ("space", ""), ("space", &*long), (&*long, "a")] {
        let mut batch = Batch::new();
        batch.put("space", "a", NewRecord::new(b"a")).expect(namespace, key, Expected::Absent);
        assert!(matches!(log.commit(&batch), Err(Error::InvalidId { .. })));
    }
    assert_eq!(keys(&log, ""), Vec::<String>::new());
}

#[test]
fn of_threads_that_take_over_and_write_nobody_writes_who_was_taken_over() {
    let (_, log) = store();
    let start = Barrier::new(8);
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let (log, start) = (&log, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..20 {
                    let name = [thread];
                    let lead = log.docs().put("space", "leader", &NewRecord::new(&name)).unwrap();
                    let mut batch = Batch::new();
                    batch.expect("space", "leader", Expected::Version(lead));
                    batch.put("space", "by", NewRecord::new(&name));
                    let Ok(committed) = log.commit(&batch) else { continue };
                    // A later leader wrote later.
                    let by = log.docs().get("space", "by").unwrap().unwrap().version();
                    assert!(by >= committed.versions[0].unwrap());
                }
            });
        }
    });
    // Nobody has taken over from the last leader.
    let (leader, by) = (read(&log, "leader").unwrap(), read(&log, "by").unwrap());
    assert_eq!(leader, by);
}

/// How often a text is in the file.
fn occurrences(storage: &MemoryStorage, text: &[u8]) -> usize {
    storage.to_bytes().windows(text.len()).filter(|window| *window == text).count()
}

#[test]
fn of_an_erased_document_no_byte_of_any_value_is_left() {
    let secret = b"what nobody may read any more";
    let large: Vec<u8> = secret.iter().copied().cycle().take(50_000).collect();
    // Where the versions are when the document is erased, and whether it exists.
    for case in 0..16 {
        let [sealed, compacted, deleted, keeps] = [1, 2, 4, 8].map(|bit| case & bit != 0);
        let space = if keeps { SpaceReturn::Keep } else { SpaceReturn::Shrink };
        let options = options().compaction(Compaction::new().space_return(space));
        let storage = Arc::new(MemoryStorage::new());
        let mut log = options.create_storage(storage.clone()).unwrap();
        let run = log.start_run("space", "key", ()).unwrap();
        let put = |log: &RunLog, namespace: &str, key: &str, value: &[u8]| {
            log.docs().put(namespace, key, &NewRecord::new(value)).unwrap()
        };
        for turn in 0..6_u8 {
            put(&log, "space", "key", secret);
            put(&log, "space", "key", &large);
            put(&log, "space", &format!("other {turn}"), &[turn; 700]);
            let _ = run.append(&[turn; 700]).unwrap();
            if sealed {
                seal(&log);
            }
            if compacted {
                let _ = log.compact().unwrap();
            }
        }
        put(&log, "space", "key", &large);
        put(&log, "space", "key", secret);
        put(&log, "space", "key b", b"a neighbour");
        put(&log, "another", "key", b"a namesake");
        if deleted {
            assert!(log.docs().delete("space", "key").unwrap());
        }
        drop(run);
        if sealed {
            log = reopened(&storage, log);
        }
        assert!(occurrences(&storage, secret) > 1);
        let erased = log.docs().erase("space", "key").unwrap();
        let bytes = if deleted { 0 } else { secret.len() as u64 };
        assert_eq!((erased.bytes, erased.pinned_extents), (bytes, 0), "case {case}");
        assert_eq!(occurrences(&storage, secret), 0, "case {case}");
        for _ in 0..2 {
            assert_eq!(read(&log, "key"), None);
            assert_eq!(read(&log, "key b").unwrap(), b"a neighbour");
            assert_eq!(log.docs().get("another", "key").unwrap().unwrap().payload(), b"a namesake");
            for turn in 0..6_u8 {
                assert_eq!(read(&log, &format!("other {turn}")).unwrap(), [turn; 700]);
            }
            assert_eq!(log.trace("key").unwrap().count(), 6, "a run of these names is no document");
            assert!(log.verify().unwrap().is_clean(), "case {case}");
            log = reopened(&storage, log);
            assert_eq!(occurrences(&storage, secret), 0);
        }
        // It can be written and erased again; of a document that never existed nothing is left.
        put(&log, "space", "key", secret);
        let _ = log.docs().erase("space", "key").unwrap();
        assert_eq!(log.docs().erase("space", "never").unwrap().bytes, 0);
        assert_eq!(occurrences(&storage, secret), 0);
    }
}

#[test]
fn a_batch_that_defers_its_sync_is_there_at_once_and_durable_once_it_was_waited_for() {
    let (_, log) = store();
    let durable = || log.stats().unwrap().durable;
    let before = durable();
    let mut batch = Batch::new();
    batch.put_if("space", "key", NewRecord::new(b"1"), Expected::Absent).defer_sync();
    batch.durability(Durability::Disk);
    let committed = log.commit(&batch).unwrap();
    assert_eq!(read(&log, "key").as_deref(), Some(&b"1"[..]));
    assert!(matches!(log.commit(&batch), Err(Error::Conflict { .. })));
    assert!(!committed.ticket.is_durable() && durable() == before, "neither call has waited");
    committed.ticket.wait().unwrap();
    assert!(committed.ticket.is_durable() && durable() > before);
}

#[test]
fn names_of_documents_are_any_text_of_1_to_512_bytes() {
    let (storage, log) = store();
    let long = "k".repeat(512);
    for (namespace, key) in [("", "k"), ("n", ""), (&*long.repeat(2), "k"), ("n", &*long.repeat(2))]
    {
        let value = NewRecord::new(b"v");
        for refused in [
            log.docs().put(namespace, key, &value).err(),
            log.docs().get(namespace, key).err(),
            log.docs().delete(namespace, key).err(),
        ] {
            assert!(matches!(refused, Some(Error::InvalidId { .. })), "{refused:?}");
        }
    }
    assert!(log.docs().list("", "", None, 1).is_err());
    let names = ["../../etc", "a/b", "a\\b", "a_b", "\0", "\u{1}\n", " ", ".", &long];
    for name in names {
        log.docs().put(name, name, &NewRecord::new(name.as_bytes())).unwrap();
    }
    let log = reopened(&storage, log);
    for name in names {
        assert_eq!(log.docs().get(name, name).unwrap().unwrap().payload(), name.as_bytes());
        assert_eq!(log.docs().list(name, "", None, 9).unwrap().documents.len(), 1);
    }
    let prefix = "x".repeat(2000);
    assert!(log.docs().list(&long, &prefix, None, 9).unwrap().documents.is_empty());
}

#[test]
fn of_many_threads_that_create_a_document_exactly_one_succeeds() {
    let (_, log) = store();
    for turn in 0..20 {
        let (key, start) = (format!("key {turn}"), Barrier::new(64));
        let won = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..64_u8)
                .map(|thread| {
                    let (log, key, start) = (&log, &key, &start);
                    scope.spawn(move || {
                        start.wait();
                        let value = [thread];
                        log.docs()
                            .put_if("space", key, &NewRecord::new(&value), Expected::Absent)
                            .is_ok()
                            .then_some(thread)
                    })
                })
                .collect();
            tries.into_iter().filter_map(|tried| tried.join().unwrap()).collect::<Vec<u8>>()
        });
        assert_eq!(won.len(), 1);
        assert_eq!(read(&log, &key).unwrap(), won);
    }
}

#[test]
fn of_several_conflicts_a_batch_names_the_document_that_it_leaves_alone() {
    let (_, log) = store();
    log.docs().put("space", "written", &NewRecord::new(b"1")).unwrap();
    log.docs().put("space", "leader", &NewRecord::new(b"1")).unwrap();
    let mut batch = Batch::new();
    batch.put_if("space", "written", NewRecord::new(b"2"), Expected::Absent);
    batch.expect("space", "leader", Expected::Absent);
    let refused = log.commit(&batch).unwrap_err();
    assert!(matches!(&refused, Error::Conflict { key, .. } if key == "leader"), "{refused}");
}
