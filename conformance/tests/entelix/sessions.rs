//! Events of sessions through the trait.

use chrono::{DateTime, Utc};
use entelix_core::ir::ContentPart;
use entelix_session::{GraphEvent, InMemorySessionLog, SessionGraph, SessionLog};
use runlog_conformance::entelix::EntelixSessionLog;
use serde_json::json;

use super::{LIVES, World, key, key_of};

fn time(number: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(1_767_225_600_000_000_000 + number)
}

/// Events of several kinds, each different.
fn events(numbers: core::ops::Range<i64>) -> Vec<GraphEvent> {
    let event = |number| {
        let (timestamp, text) = (time(number), format!("{number}\n\u{1f375}"));
        match number % 4 {
            0 => GraphEvent::UserMessage { content: vec![ContentPart::text(text)], timestamp },
            1 => GraphEvent::ToolCall {
                id: text,
                name: "kettle".into(),
                input: json!({"litres": 0.5, "null": null}),
                timestamp,
            },
            2 => GraphEvent::CheckpointMarker {
                checkpoint_id: "c".into(),
                thread_id: text,
                timestamp,
            },
            _ => GraphEvent::Cancelled { reason: text, timestamp },
        }
    };
    numbers.map(event).collect()
}

#[tokio::test]
async fn events_have_ordinals_from_1_and_are_loaded_behind_a_cursor() {
    for life in LIVES {
        let world = World::new(life);
        let log = || EntelixSessionLog::new(&world.log());
        assert_eq!(log().append(&key("t"), &[]).await.unwrap(), 0);
        assert_eq!(log().append(&key("t"), &events(0..3)).await.unwrap(), 3);
        assert_eq!(log().append(&key("t"), &events(3..8)).await.unwrap(), 8);
        for cursor in 0..10 {
            let expected = events(i64::try_from(cursor).unwrap().min(8)..8);
            assert_eq!(log().load_since(&key("t"), cursor).await.unwrap(), expected);
        }
        assert!(log().load_since(&key("t"), u64::MAX).await.unwrap().is_empty());
        assert!(log().load_since(&key("unknown"), 0).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn archived_events_are_gone_whatever_the_cursor() {
    for life in LIVES {
        let world = World::new(life);
        let log = || EntelixSessionLog::new(&world.log());
        log().append(&key("t"), &events(0..6)).await.unwrap();
        for (watermark, archived) in [(0, 0), (4, 4), (4, 0), (2, 0), (5, 1)] {
            let found = log().archive_before(&key("t"), watermark).await.unwrap();
            assert_eq!(found, archived, "{watermark}");
        }
        assert_eq!(log().load_since(&key("t"), 0).await.unwrap(), events(5..6));
        assert_eq!(log().archive_before(&key("unknown"), 9).await.unwrap(), 0);
        assert_eq!(log().append(&key("t"), &events(6..7)).await.unwrap(), 7);
    }
}

/// The store in memory counts events that never were, and then hides those that come.
#[tokio::test]
async fn archiving_beyond_the_end_archives_what_there_is() {
    let theirs = InMemorySessionLog::new();
    theirs.append(&key("t"), &events(0..2)).await.unwrap();
    assert_eq!(theirs.archive_before(&key("t"), 10).await.unwrap(), 10);
    theirs.append(&key("t"), &events(2..3)).await.unwrap();
    assert!(theirs.load_since(&key("t"), 0).await.unwrap().is_empty());
    for life in LIVES {
        let world = World::new(life);
        let log = || EntelixSessionLog::new(&world.log());
        log().append(&key("t"), &events(0..2)).await.unwrap();
        assert_eq!(log().archive_before(&key("t"), 10).await.unwrap(), 2);
        assert_eq!(log().append(&key("t"), &events(2..3)).await.unwrap(), 3);
        assert_eq!(log().load_since(&key("t"), 0).await.unwrap(), events(2..3));
    }
}

#[tokio::test]
async fn sessions_of_tenants_and_threads_are_apart() {
    for life in LIVES {
        let world = World::new(life);
        let log = || EntelixSessionLog::new(&world.log());
        let keys = [key_of("a", "t"), key_of("b", "t"), key_of("a", "u")];
        for (number, key) in (0..).zip(&keys) {
            log().append(key, &events(number..number + 1)).await.unwrap();
        }
        log().archive_before(&keys[0], 1).await.unwrap();
        for (number, key) in (1..).zip(&keys[1..]) {
            assert_eq!(log().load_since(key, 0).await.unwrap(), events(number..number + 1));
        }
    }
}

#[tokio::test]
async fn whatever_is_done_the_answers_are_those_of_the_log_in_memory() {
    let seed = 0x5e55_1047;
    println!("seed {seed:#x}");
    for life in LIVES {
        let world = World::new(life);
        let log = || EntelixSessionLog::new(&world.log());
        let theirs = InMemorySessionLog::new();
        let mut random = runlog_sim::SplitMix64::new(seed);
        let mut next = 0;
        for _ in 0..60 {
            let key = key(if random.coin() { "t" } else { "u" });
            let count = i64::try_from(random.below(4)).unwrap();
            let new = events(next..next + count);
            next += count;
            let last = log().append(&key, &new).await.unwrap();
            assert_eq!(last, theirs.append(&key, &new).await.unwrap());
            let (watermark, cursor) = (random.below(last + 1), random.below(last + 2));
            if random.below(4) == 0 {
                let archived = log().archive_before(&key, watermark).await.unwrap();
                assert_eq!(archived, theirs.archive_before(&key, watermark).await.unwrap());
            }
            let found = log().load_since(&key, cursor).await.unwrap();
            assert_eq!(found, theirs.load_since(&key, cursor).await.unwrap());
        }
    }
}

/// A session as entelix has it in memory, written as it grows and read by another process.
#[tokio::test]
async fn a_session_wakes_up_in_another_process_as_it_was() {
    let world = World::new(LIVES[2]);
    let mut session = SessionGraph::new("t");
    for event in events(0..9) {
        session.append(event);
        let log = EntelixSessionLog::new(&world.log());
        let known = log.load_since(&key("t"), 0).await.unwrap().len();
        log.append(&key("t"), &session.events[known..]).await.unwrap();
    }
    let log = EntelixSessionLog::new(&world.log());
    assert_eq!(log.load_since(&key("t"), 0).await.unwrap(), session.events);
}
