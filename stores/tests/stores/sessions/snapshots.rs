//! All parts of a session at one moment: saved and loaded as a whole, compared by digest, and never
//! mixed, however many write at the same time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

type Snapshot = SessionSnapshot<Chats>;

/// A snapshot of which each part says who saved it.
pub(super) fn marked(id: &str, mark: &str) -> Snapshot {
    let part = || vec![json!({ "mark": mark })];
    Snapshot {
        session: chat(id, &[mark]),
        artifacts: Some(json!({ "mark": mark })),
        trace_events: Some(vec![mark.to_owned(); 3]),
        run_records: Some(part()),
        verification_reports: Some(part()),
        subagent_tasks: Some(part()),
    }
}

/// What all parts of a snapshot say of who saved it; they must agree.
pub(super) fn mark_of(snapshot: &Snapshot) -> String {
    let mark = snapshot.session.messages[0].clone();
    assert_eq!(snapshot.artifacts, Some(json!({ "mark": mark })));
    assert_eq!(snapshot.trace_events, Some(vec![mark.clone(); 3]));
    let part = Some(vec![json!({ "mark": mark })]);
    assert_eq!(snapshot.run_records, part);
    assert_eq!(snapshot.verification_reports, part);
    assert_eq!(snapshot.subagent_tasks, part);
    mark
}

#[test]
fn a_snapshot_comes_back_with_all_of_its_parts_and_no_others() {
    in_each_life::<Chats>(|store| {
        assert!(block_on(store().load_snapshot("s")).unwrap().is_none());
        block_on(store().save_artifacts("s", &json!("no session yet"))).unwrap();
        assert!(block_on(store().load_snapshot("s")).unwrap().is_none());
        block_on(store().save_snapshot(&marked("s", "first"))).unwrap();
        let loaded = block_on(store().load_snapshot("s")).unwrap().unwrap();
        assert_eq!(mark_of(&loaded.snapshot), "first");
        assert_eq!(block_on(store().load("s")).unwrap(), Some(chat("s", &["first"])));
        let fewer = Snapshot { artifacts: Some(json!(1)), ..Snapshot::new(chat("s", &["b"])) };
        block_on(store().save_snapshot(&fewer)).unwrap();
        let loaded = block_on(store().load_snapshot("s")).unwrap().unwrap().snapshot;
        assert_eq!(loaded.artifacts, Some(json!(1)));
        assert_eq!((loaded.trace_events, loaded.run_records), (None, None));
        assert_eq!(block_on(store().load_trace_events("s")).unwrap(), None);
    });
}

#[test]
fn a_digest_tells_whether_anything_was_written_in_between() {
    in_each_life::<Chats>(|store| {
        let digest = || block_on(store().load_snapshot("s")).unwrap().unwrap().digest;
        block_on(store().save_snapshot(&marked("s", "a"))).unwrap();
        let mut earlier = vec![digest()];
        assert_eq!(digest(), earlier[0], "looking changes nothing");
        assert_eq!(earlier[0].len(), 16);
        let swap = |mark: &str, expected: Option<&str>| {
            block_on(store().save_snapshot_cas(&marked("s", mark), expected)).unwrap()
        };
        assert!(swap("b", Some(&earlier[0])));
        earlier.push(digest());
        block_on(store().save(&chat("s", &["b"]))).unwrap();
        earlier.push(digest());
        block_on(store().save_trace_events("s", &[])).unwrap();
        earlier.push(digest());
        // The first state once more is another moment.
        block_on(store().save_snapshot(&marked("s", "a"))).unwrap();
        let now = digest();
        for stale in earlier.iter().map(String::as_str).chain(["", "x", "0", "0000000000000000"]) {
            assert!(!swap("never", Some(stale)), "{stale}");
        }
        assert!(!swap("never", None));
        for other in [format!("0{now}"), format!("+{now}"), format!(" {now}")] {
            assert!(!swap("never", Some(&other)), "{other:?}");
        }
        assert_eq!(mark_of(&block_on(store().load_snapshot("s")).unwrap().unwrap().snapshot), "a");
        block_on(store().save(&chat("another", &[]))).unwrap();
        block_on(store().save_loop_checkpoint("s", &json!(1))).unwrap();
        assert!(swap("c", Some(&now)), "no caller wrote this session");
        let now = digest();
        block_on(store().delete("s")).unwrap();
        assert!(!swap("never", Some(&now)));
        assert!(swap("d", None));
        assert!(!swap("never", Some(&now)) && !swap("never", None));
    });
}

/// Several handles with a thread each, on one log.
fn handles(log: &RunLog, count: usize) -> Vec<ChatStore> {
    (0..count).map(|_| ChatStore::new(log)).collect()
}

#[test]
fn of_concurrent_saves_the_last_wins_whole_and_nobody_ever_sees_a_mixture() {
    let log = in_memory();
    let (stores, start, done) = (handles(&log, 8), Barrier::new(8), AtomicBool::new(false));
    let reader = ChatStore::new(&log);
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Acquire) {
                if let Some(loaded) = block_on(reader.load_snapshot("s")).unwrap() {
                    mark_of(&loaded.snapshot);
                    seen += 1;
                }
            }
            seen
        });
        let writing: Vec<_> = stores
            .iter()
            .enumerate()
            .map(|(thread, store)| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for turn in 0..25 {
                        let snapshot = marked("s", &format!("{thread}.{turn}"));
                        block_on(store.save_snapshot(&snapshot)).unwrap();
                    }
                })
            })
            .collect();
        writing.into_iter().for_each(|writing| writing.join().unwrap());
        done.store(true, Ordering::Release);
        looking.join().unwrap();
    });
    let last = block_on(reader.load_snapshot("s")).unwrap().unwrap();
    let mark = mark_of(&last.snapshot);
    assert!(mark.ends_with(".24"), "{mark}: the last write of a caller");
}

#[test]
fn of_8_threads_that_compare_and_swap_no_change_is_lost() {
    let log = in_memory();
    let shared = ChatStore::new(&log);
    // Some share a thread, some have their own.
    let mut stores = handles(&log, 4);
    stores.extend([shared.clone(), shared.clone(), shared.clone(), shared.clone()]);
    let add = |store: &ChatStore, line: &str| {
        loop {
            let loaded = block_on(store.load_snapshot("s")).unwrap();
            let (mut snapshot, digest) = match loaded {
                Some(loaded) => (loaded.snapshot, Some(loaded.digest)),
                None => (Snapshot::new(chat("s", &[])), None),
            };
            snapshot.session.messages.push(line.to_owned());
            let swapped = store.save_snapshot_cas(&snapshot, digest.as_deref());
            if block_on(swapped).unwrap() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for (thread, store) in stores.iter().enumerate() {
            scope.spawn(move || (0..20).for_each(|turn| add(store, &format!("{thread}.{turn}"))));
        }
    });
    let mut lines = block_on(shared.load("s")).unwrap().unwrap().messages;
    assert_eq!(lines.len(), 160);
    for thread in 0..8 {
        let own = lines.iter().filter(|line| line.starts_with(&format!("{thread}.")));
        let wanted = (0..20).map(|turn| format!("{thread}.{turn}"));
        assert!(own.cloned().eq(wanted), "each thread's are in its order");
    }
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 160);
}
