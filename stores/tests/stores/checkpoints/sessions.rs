//! The events of sessions: appended, loaded, archived.

use runlog::NewRecord;
use runlog_stores::checkpoints::SessionLog;

use super::*;
use crate::support::haunted::{Ask, Haunted};

type Session = SessionLog<Value>;

fn events(numbers: std::ops::RangeInclusive<u64>) -> Vec<Value> {
    numbers.map(|number| json!({ "event": number })).collect()
}

#[test]
fn events_have_ordinals_from_one_and_come_back_behind_a_cursor() {
    in_each_life(|log| {
        let key = key("t");
        assert!(Session::new(&log()).load_since(&key, 0).unwrap().is_empty());
        assert_eq!(Session::new(&log()).append(&key, &[]).unwrap(), 0);
        assert_eq!(Session::new(&log()).append(&key, &events(1..=3)).unwrap(), 3);
        assert_eq!(Session::new(&log()).append(&key, &events(4..=4)).unwrap(), 4);
        assert_eq!(Session::new(&log()).append(&key, &[]).unwrap(), 4);
        assert_eq!(Session::new(&log()).append(&key, &events(5..=9)).unwrap(), 9);
        for cursor in 0..9 {
            let loaded = Session::new(&log()).load_since(&key, cursor).unwrap();
            assert_eq!(loaded, events(cursor + 1..=9));
        }
        for cursor in [9, 10, u64::MAX] {
            assert!(Session::new(&log()).load_since(&key, cursor).unwrap().is_empty());
        }
        let numbered = Session::new(&log()).load_numbered_since(&key, 6).unwrap();
        assert_eq!(numbered.iter().map(|(ordinal, _)| *ordinal).collect::<Vec<_>>(), [7, 8, 9]);
    });
}

#[test]
fn archived_events_are_invisible_whatever_the_cursor() {
    in_each_life(|log| {
        let key = key("t");
        assert_eq!(Session::new(&log()).archive_before(&key, 5).unwrap(), 0);
        Session::new(&log()).append(&key, &events(1..=4)).unwrap();
        Session::new(&log()).append(&key, &events(5..=8)).unwrap();
        assert_eq!(Session::new(&log()).archive_before(&key, 6).unwrap(), 6);
        for cursor in [0, 3, 6] {
            let loaded = Session::new(&log()).load_since(&key, cursor).unwrap();
            assert_eq!(loaded, events(7..=8));
        }
        assert_eq!(Session::new(&log()).load_since(&key, 7).unwrap(), events(8..=8));
        // Lower or equal is nothing.
        for watermark in [0, 3, 6] {
            assert_eq!(Session::new(&log()).archive_before(&key, watermark).unwrap(), 0);
        }
        assert_eq!(Session::new(&log()).archive_before(&key, 7).unwrap(), 1);
        assert_eq!(Session::new(&log()).append(&key, &events(9..=9)).unwrap(), 9);
        assert_eq!(Session::new(&log()).load_since(&key, 0).unwrap(), events(8..=9));
    });
}

#[test]
fn archiving_beyond_the_end_counts_what_there_was_and_leaves_what_comes() {
    in_each_life(|log| {
        let key = key("t");
        Session::new(&log()).append(&key, &events(1..=5)).unwrap();
        assert_eq!(Session::new(&log()).archive_before(&key, 100).unwrap(), 5);
        assert!(Session::new(&log()).load_since(&key, 0).unwrap().is_empty());
        assert_eq!(Session::new(&log()).archive_before(&key, u64::MAX).unwrap(), 0);
        assert_eq!(Session::new(&log()).append(&key, &events(6..=7)).unwrap(), 7);
        assert_eq!(Session::new(&log()).load_since(&key, 0).unwrap(), events(6..=7));
    });
}

#[test]
fn archived_events_give_their_space_back() {
    let log = in_memory();
    let (session, key) = (Session::new(&log), key("t"));
    for _ in 0..300 {
        session.append(&key, &[json!("x".repeat(1000)), json!("y".repeat(1000))]).unwrap();
    }
    let namespace = "\0session-log/7/default/1";
    assert_eq!(documents(&log, namespace).len(), 300);
    assert_eq!(session.archive_before(&key, 597).unwrap(), 597);
    assert_eq!(documents(&log, namespace).len(), 2, "one of them has an event that is seen");
    assert_eq!(session.load_since(&key, 0).unwrap().len(), 3);
}

#[test]
fn sessions_of_tenants_and_threads_never_see_one_another() {
    in_each_life(|log| {
        let keys = [key_of("a", "t"), key_of("b", "t"), key_of("a", "u")];
        for (number, key) in (1..).zip(&keys) {
            Session::new(&log()).append(key, &events(number..=number)).unwrap();
        }
        // A checkpoint of the same key is another thing.
        Store::new(&log()).put(&checkpoint(&keys[0], 1)).unwrap();
        Session::new(&log()).archive_before(&keys[1], 1).unwrap();
        let loaded = |number: usize| Session::new(&log()).load_since(&keys[number], 0).unwrap();
        assert_eq!((loaded(0), loaded(1), loaded(2)), (events(1..=1), vec![], events(3..=3)));
        assert!(Session::named(&log(), "other").load_since(&keys[0], 0).unwrap().is_empty());
        assert!(Session::new(&log()).delete_thread(&keys[0]).unwrap());
        assert!(!Session::new(&log()).delete_thread(&keys[0]).unwrap());
        assert_eq!((loaded(0), loaded(2)), (vec![], events(3..=3)));
        assert_eq!(Session::new(&log()).append(&keys[0], &events(1..=1)).unwrap(), 1);
        let threads = Session::new(&log()).threads(&TenantId::new("a").unwrap(), None, 9).unwrap();
        assert_eq!(threads, ["t", "u"]);
    });
}

#[test]
fn many_and_long_events_are_appended_as_one() {
    let log = in_memory();
    let (session, key) = (Session::new(&log), key("t"));
    let long: Vec<Value> = (0..40).map(|number| json!("x".repeat(100_000 + number))).collect();
    assert_eq!(session.append(&key, &long).unwrap(), 40);
    let many: Vec<Value> = (0..20_000).map(|number| json!(number)).collect();
    assert_eq!(session.append(&key, &many).unwrap(), 20_040);
    assert!(session.load_since(&key, 0).unwrap().iter().eq(long.iter().chain(&many)));
    assert!(session.load_since(&key, 20_000).unwrap().iter().eq(&many[19_960..]));
}

#[test]
fn of_many_threads_appending_at_once_each_has_its_events_in_a_row() {
    let log = in_memory();
    let session: SessionLog<u64> = SessionLog::new(&log);
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let session = session.clone();
            scope.spawn(move || {
                for turn in 0..10 {
                    let event = thread * 1000 + turn * 10;
                    let last = session.append(&key("t"), &[event, event + 1]).unwrap();
                    assert_eq!(last % 2, 0);
                    let since = session.load_since(&key("t"), last - 2).unwrap();
                    assert!(since.chunks(2).all(|pair| pair[1] == pair[0] + 1), "{since:?}");
                    if turn == 5 {
                        session.archive_before(&key("t"), last - 2).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(session.append(&key("t"), &[]).unwrap(), 320);
}

#[test]
fn events_that_cannot_be_read_are_told_and_stay_readable() {
    let log = in_memory();
    let key = key("t");
    Session::new(&log).append(&key, &[json!(1), json!("two")]).unwrap();
    let numbers: SessionLog<u64> = SessionLog::new(&log);
    let error = numbers.load_since(&key, 0).unwrap_err();
    let CheckpointError::OtherShape { namespace, key: at, line, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*line, 3);
    assert!(!error.to_string().contains("two"), "{error}");
    let bytes = log.docs().get(namespace, at).unwrap().unwrap();
    assert!(bytes.payload().ends_with(b"\n1\n\"two\""));
    log.docs().delete(namespace, at).unwrap();
    let missing = numbers.load_since(&key, 0).unwrap_err();
    assert!(matches!(missing, CheckpointError::Damaged { .. }), "{missing}");
}

/// How many documents hold the events of the first thread.
fn stored(log: &RunLog) -> usize {
    log.docs().list("\0session-log/7/default/1", "", None, usize::MAX).unwrap().documents.len()
}

#[test]
fn small_events_that_are_appended_one_by_one_are_put_together_and_come_back_as_they_were() {
    in_each_life(|log| {
        let (key, mut most) = (key("t"), 0);
        for number in 1..=200 {
            assert_eq!(
                Session::new(&log()).append(&key, &events(number..=number)).unwrap(),
                number
            );
            let now = log();
            most = most.max(stored(&now));
            for cursor in [0, 1, 62, 63, 64, 65, 127, 128, 150, number - 1] {
                let loaded = Session::new(&now).load_since(&key, cursor).unwrap();
                assert_eq!(loaded, events(cursor + 1..=number), "{number} behind {cursor}");
            }
        }
        assert!(most <= 64 + 2, "{most} documents");
        assert_eq!(stored(&log()), 3 + 200 % 64);
        assert_eq!(Session::new(&log()).archive_before(&key, 70).unwrap(), 70);
        assert_eq!(Session::new(&log()).load_since(&key, 0).unwrap(), events(71..=200));
        assert_eq!(stored(&log()), 2 + 200 % 64);
        assert_eq!(Session::new(&log()).archive_before(&key, 195).unwrap(), 125);
        for number in 201..=260 {
            Session::new(&log()).append(&key, &events(number..=number)).unwrap();
        }
        assert_eq!(Session::new(&log()).load_since(&key, 0).unwrap(), events(196..=260));
        assert_eq!(Session::new(&log()).archive_before(&key, u64::MAX).unwrap(), 65);
        assert_eq!(stored(&log()), 0);
    });
}

#[test]
fn large_events_and_such_that_cannot_be_read_are_left_as_they_are() {
    let log = in_memory();
    let (session, key) = (Session::new(&log), key("t"));
    for number in 1..=70 {
        session.append(&key, &[json!({ "event": number, "text": "x".repeat(1000) })]).unwrap();
    }
    assert_eq!(stored(&log), 70);
    session.append(&key, &events(71..=71)).unwrap();
    let namespace = "\0session-log/7/default/1";
    let damaged = log.docs().list(namespace, "", None, usize::MAX).unwrap().documents.remove(70);
    log.docs().put(namespace, &damaged.key, &NewRecord::json(b"{}")).unwrap();
    for number in 72..=140 {
        assert_eq!(session.append(&key, &events(number..=number)).unwrap(), number);
    }
    assert_eq!(stored(&log), 140);
    assert!(session.load_since(&key, 0).is_err());
    assert_eq!(session.load_since(&key, 71).unwrap(), events(72..=140));
    // It goes on behind them.
    session.append(&key, &events(141..=141)).unwrap();
    for number in 142..=240 {
        session.append(&key, &events(number..=number)).unwrap();
    }
    assert!(stored(&log) < 240);
    assert_eq!(session.load_since(&key, 71).unwrap(), events(72..=240));
}

#[test]
fn who_reads_and_archives_beside_one_who_appends_sees_whole_beginnings() {
    let log = in_memory();
    let (session, key) = (Session::new(&log), key("t"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=1_000 {
                assert_eq!(session.append(&key, &events(number..=number)).unwrap(), number);
            }
        });
        let mut archived = 0;
        loop {
            let loaded = session.load_numbered_since(&key, 0).unwrap();
            let (first, last) = (archived + 1, loaded.last().map_or(archived, |last| last.0));
            let values: Vec<Value> = loaded.into_iter().map(|(_, event)| event).collect();
            assert_eq!(values, events(first..=last));
            if last == 1_000 {
                break;
            }
            archived += session.archive_before(&key, last / 2).unwrap();
        }
    });
}

#[test]
fn an_empty_append_tells_no_ordinal_that_a_power_loss_can_take() {
    let (disk, log) = Haunted::new(options());
    let (session, key) = (Session::new(&log), key("t"));
    session.append(&key, &events(1..=1)).unwrap();
    log.docs().put("space", "key", &NewRecord::new(b"waits for a sync")).unwrap();
    let (other, of) = (session.clone(), key.clone());
    // The sync of the empty append.
    disk.before(Ask::Change, 0, move || {
        let (looks, at) = (other.clone(), of.clone());
        std::thread::spawn(move || other.append(&of, &events(2..=2)).unwrap());
        // It is there, and waits for the sync behind this one.
        while looks.load_since(&at, 0).unwrap().len() < 2 {
            std::thread::yield_now();
        }
    });
    assert_eq!(session.append(&key, &[]).unwrap(), 1);
    assert!(disk.is_over());
}
