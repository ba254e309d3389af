//! Followers where something goes wrong: reads that fail, damage, a store that closes; and tasks.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Compression, Follow, Follower, LogCursor, LogEventKind, Outcome, Reader, ReaderOptions,
    Retention, RunLog,
};
use tempfile::TempDir;

use crate::readers::following::{all, all_and_errors, small, store, told};
use crate::support::manifest::Manifest;
use crate::support::tap::Tap;

/// Runs over several segments, of which some are compressed and some have large records.
fn wide() -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let options = small().compression(Compression::Zstd { level: 1 });
    let log = options.create_storage(storage.clone()).unwrap();
    for run in 0..12 {
        let id = format!("run-{run}");
        let writer = log.start_run("agent", &id, ()).unwrap();
        for seq in 0..12_u64 {
            let len = if seq == 5 { 12_000 } else { 700 };
            let payload: Vec<u8> = format!("{id} {seq} ").bytes().cycle().take(len).collect();
            writer.append(&payload).unwrap();
        }
        if run != 7 {
            writer.end(&Outcome::completed()).unwrap();
        }
        if run == 6 {
            log.checkpoint().unwrap();
            log.compact().unwrap();
        }
    }
    for run in ["run-1", "run-9"] {
        log.delete_run(run).unwrap();
    }
    (storage, log)
}

#[test]
fn a_read_that_fails_costs_a_follower_no_event() {
    let (storage, log) = wide();
    let whole = ReaderOptions::new().open_storage(storage.clone()).unwrap();
    let expected: Vec<String> =
        all(&mut whole.follow(Follow::Everything, LogCursor::START).unwrap())
            .iter()
            .map(told)
            .collect();
    assert!(expected.len() > 120, "only {} events", expected.len());
    let left = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&left);
    // One read fails, once.
    let failing = Tap::only_reads(storage, move |_, _| {
        let fails = counted.fetch_sub(1, Ordering::SeqCst) == 1;
        if fails { Err(io::Error::other("this read fails")) } else { Ok(()) }
    });
    let reader = ReaderOptions::new().open_storage(failing).unwrap();
    let (mut number, mut errors) = (1, 0);
    loop {
        let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
        left.store(number, Ordering::SeqCst);
        let (events, failed) = all_and_errors(&mut follower);
        errors += failed.len();
        let events: Vec<String> = events.iter().map(told).collect();
        assert!(events == expected, "read {number} failed");
        let is_over = left.load(Ordering::SeqCst) < u64::MAX / 2 && left.load(Ordering::SeqCst) > 0;
        if is_over {
            break;
        }
        // Each of the first, then fewer.
        number += 1 + number / 64;
    }
    assert!(errors > 50, "only {errors} reads failed");
    log.close().unwrap();
}

#[test]
fn damage_is_told_in_its_place_and_what_is_behind_it_too_also_when_the_store_is_closed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("store");
    let log = small().create(&path).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for seq in 0..10 {
        run.append(format!("payload {seq}").as_bytes()).unwrap();
    }
    let mut inside = log.follow(Follow::Everything, LogCursor::START).unwrap();
    let reader = Reader::open(&path).unwrap();
    let mut outside = reader.follow(Follow::Everything, LogCursor::START).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(9).position(|part| part == b"payload 5").unwrap();
    {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"damaged !", at as u64).unwrap();
    }
    drop(run);
    log.close().unwrap();
    for follower in [&mut inside, &mut outside] {
        let (events, errors) = all_and_errors(follower);
        let [(at, error)] = &errors[..] else { panic!("{errors:?}") };
        assert!(error.is_corruption(), "{error}");
        assert_eq!((events.len(), *at), (10, 6), "in its place: {events:?}");
    }
    assert!(inside.next().is_none());
}

/// The directories of the segments are whole, so nothing but their frames says what is missing.
#[test]
fn a_segment_of_which_no_frame_is_left_is_told_once_in_its_place() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    for run in 0..9 {
        let writer = log.start_run("agent", &format!("run-{run}"), ()).unwrap();
        for _ in 0..30 {
            writer.append(&[run; 1_000]).unwrap();
        }
    }
    log.close().unwrap();
    let image = storage.to_bytes();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let whole = all(&mut reader.follow(Follow::Everything, LogCursor::START).unwrap());
    let whole: Vec<String> = whole.iter().map(told).collect();
    let places = Manifest::of(&image).unwrap().seals();
    assert!(places.len() > 2, "{places:?}");
    for (number, (start, seal)) in places.into_iter().enumerate() {
        for value in [0, 0x55] {
            let mut bytes = image.clone();
            bytes[start + 64..seal].fill(value);
            let broken = Arc::new(MemoryStorage::from_bytes(bytes));
            let reader = ReaderOptions::new().open_storage(broken).unwrap();
            let mut follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
            let (events, errors) = all_and_errors(&mut follower);
            let events: Vec<String> = events.iter().map(told).collect();
            let [(at, error)] = &errors[..] else { panic!("segment {number}: {errors:?}") };
            assert!(error.is_corruption(), "{error}");
            let at = *at;
            assert!(events.len() < whole.len() && events[..at] == whole[..at]);
            let rest = &events[at..];
            assert_eq!(rest, &whole[whole.len() - rest.len()..], "segment {number}");
        }
    }
}

/// Compaction has put runs one behind the other, so the orders of its segments lie within those of
/// others.
#[test]
fn a_cursor_among_lost_frames_is_told_of_them_wherever_it_is() {
    let (storage, log) = wide();
    log.close().unwrap();
    let mut image = vec![0; usize::try_from(storage.len().unwrap()).unwrap()];
    storage.read_at(0, &mut image).unwrap();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let events = all(&mut reader.follow(Follow::Everything, LogCursor::START).unwrap());
    let mut within = 0;
    for (start, seal) in Manifest::of(&image).unwrap().seals() {
        let mut bytes = image.clone();
        bytes[start + 64..seal].fill(0x55);
        let broken = Arc::new(MemoryStorage::from_bytes(bytes));
        let reader = ReaderOptions::new().open_storage(broken).unwrap();
        for (place, event) in events.iter().enumerate().step_by(5) {
            let mut follower = reader.follow(Follow::Everything, event.cursor).unwrap();
            let (told, errors) = all_and_errors(&mut follower);
            let lost = events.len() - place - 1 - told.len();
            assert!(lost == 0 || !errors.is_empty(), "at {start}, from {place}: {lost} lost");
            within += usize::from(lost > 0);
        }
    }
    assert!(within > 10, "only {within} cursors");
}

/// Tells a channel that a task was woken, after doing something with the store.
struct Woken {
    told: SyncSender<()>,
    log: Mutex<Option<RunLog>>,
    drops: bool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        if let Some(log) = &*self.log.lock().unwrap() {
            let writer = log.start_run("waker", "run", ()).unwrap();
            writer.append(b"from a waker").unwrap();
        }
        if self.drops {
            drop(self.log.lock().unwrap().take());
        }
        self.told.send(()).unwrap();
    }
}

fn waker(log: Option<RunLog>, drops: bool) -> (Waker, Receiver<()>) {
    let (told, woken) = sync_channel(16);
    (Waker::from(Arc::new(Woken { told, log: Mutex::new(log), drops })), woken)
}

fn is_pending(follower: &mut Follower, waker: &Waker) -> bool {
    pin!(follower.next_event()).poll(&mut Context::from_waker(waker)).is_pending()
}

#[test]
fn a_task_that_follows_is_woken_by_an_append_and_by_the_end_of_the_store() {
    let (_, log, _) = store();
    let run = log.writer("two").unwrap();
    let mut follower = log.follow(Follow::Everything, LogCursor::START).unwrap();
    all(&mut follower);
    let (waker, woken) = waker(None, false);
    assert!(is_pending(&mut follower, &waker));
    assert!(is_pending(&mut follower, &waker), "one waker, however often it is polled");
    run.append(b"new").unwrap();
    woken.recv().unwrap();
    let mut context = Context::from_waker(&waker);
    let Poll::Ready(Some(Ok(event))) = follower.poll_next(&mut context) else { panic!("none") };
    assert_eq!(told(&event), "b/two: 2 new");
    run.append(b"more").unwrap();
    assert!(follower.poll_next(&mut context).is_ready());
    assert!(is_pending(&mut follower, &waker));
    drop(run);
    log.close().unwrap();
    loop {
        woken.recv().unwrap();
        if let Poll::Ready(event) = follower.poll_next(&mut context) {
            assert!(event.is_none());
            break;
        }
    }
}

#[test]
fn a_waker_may_use_the_store_and_drop_its_last_handle() {
    for drops in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let log = small().create_storage(storage).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let mut follower = log.follow(Follow::Everything, LogCursor::START).unwrap();
        all(&mut follower);
        let (waker, woken) = waker(Some(log.clone()), drops);
        assert!(is_pending(&mut follower, &waker));
        run.append(b"new").unwrap();
        drop((run, log));
        woken.recv().unwrap();
        if !drops {
            assert!(all(&mut follower).iter().any(|event| told(event).contains("from a waker")));
        }
    }
}

/// A store with runs of an agent that have ended, each in segments that others share.
fn with_ended(receipts: u64) -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let options = small().receipts(receipts, core::time::Duration::MAX);
    let log = options.create_storage(storage.clone()).unwrap();
    for run in 0..8 {
        end_one(&log, "agent", &format!("run-{run}"));
    }
    (storage, log)
}

fn end_one(log: &RunLog, agent: &str, run: &str) {
    let writer = log.start_run(agent, run, ()).unwrap();
    writer.append(&[7; 9_000]).unwrap();
    writer.end(&Outcome::completed()).unwrap();
}

/// Compaction writes the deletions anew, each call's with those before.
fn rewrite(log: &RunLog) {
    for filler in 0..12 {
        end_one(log, "filler", &format!("filler-{filler}"));
    }
    log.checkpoint().unwrap();
    log.compact().unwrap();
}

fn deletions(follower: &mut Follower) -> Vec<String> {
    let gone = all(follower).into_iter();
    let gone = gone.filter(|event| matches!(event.kind, LogEventKind::Deleted { .. }));
    gone.map(|event| event.run.to_string()).collect()
}

#[test]
fn a_deletion_is_never_skipped_by_a_cursor_within_an_eviction_of_many() {
    let (storage, log) = with_ended(3);
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let end = reader.end_cursor().unwrap();
    let _ = log.gc(&Retention::new().keep_newest(1)).unwrap();
    let events = all(&mut reader.follow(Follow::Everything, end).unwrap());
    assert_eq!(events.len(), 7);
    // Compaction leaves out the oldest receipts, and numbers the others anew.
    rewrite(&log);
    let kept: Vec<String> =
        log.receipts(100).unwrap().iter().map(|receipt| receipt.run.to_string()).collect();
    for (number, event) in events.iter().enumerate() {
        let due = (number + 1..7).map(|run| format!("run-{run}"));
        let due: Vec<String> = due.filter(|run| kept.contains(run)).collect();
        let mut follower = reader.follow(Follow::Agent("agent"), event.cursor).unwrap();
        let found = deletions(&mut follower);
        assert!(due.iter().all(|run| found.contains(run)), "{number}: {found:?} of {due:?}");
    }
    log.close().unwrap();
}

#[test]
fn deletions_that_are_written_anew_do_not_move_a_follower_back() {
    let (storage, log) = with_ended(100);
    for run in 0..5 {
        log.delete_run(&*format!("run-{run}")).unwrap();
    }
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let end = reader.end_cursor().unwrap();
    let rule = runlog::Rule::Deleted;
    let _ = log.evict(&[("run-5".into(), rule), ("run-6".into(), rule)]).unwrap();
    let mut follower = reader.follow(Follow::Agent("agent"), end).unwrap();
    assert_eq!(deletions(&mut follower), ["run-5", "run-6"]);
    let cursor = follower.cursor();
    rewrite(&log);
    assert_eq!(deletions(&mut follower), [""; 0], "these were in front of it");
    assert!(follower.cursor() >= cursor, "{} behind {cursor}", follower.cursor());
    log.close().unwrap();
}

#[test]
fn no_deletion_is_skipped_when_those_of_one_call_are_written_anew_between_two_of_them() {
    for before in 1..5 {
        let (storage, log) = with_ended(3);
        let reader = ReaderOptions::new().open_storage(storage).unwrap();
        let end = reader.end_cursor().unwrap();
        let _ = log.gc(&Retention::new().keep_newest(1)).unwrap();
        let mut follower = reader.follow(Follow::Agent("agent"), end).unwrap();
        let told = (0..before).map(|_| follower.try_next().unwrap().unwrap().run.to_string());
        let mut told: Vec<String> = told.collect();
        rewrite(&log);
        told.extend(deletions(&mut follower));
        for receipt in log.receipts(100).unwrap() {
            let run = receipt.run.to_string();
            assert_eq!(told.iter().filter(|one| **one == run).count(), 1, "{run}: {told:?}");
        }
        log.close().unwrap();
    }
}

#[test]
fn no_cursor_within_deletions_that_share_their_order_skips_one_of_them() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let name = |call: usize, run: usize| format!("{call}-{run}-{}", "x".repeat(200));
    let counts = [60, 100];
    for (call, count) in counts.into_iter().enumerate() {
        for run in 0..count {
            end_one(&log, "agent", &name(call, run));
        }
        let names: Vec<String> = (0..count).map(|run| name(call, run)).collect();
        let rule = runlog::Rule::Deleted;
        let runs: Vec<_> = names.iter().map(|run| (run.as_str().into(), rule)).collect();
        let _ = log.evict(&runs).unwrap();
    }
    // Those of the second call do not fit into one frame with those of the first one.
    rewrite(&log);
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let events = all(&mut reader.follow(Follow::Agent("agent"), LogCursor::START).unwrap());
    assert_eq!(events.len(), counts.iter().sum::<usize>());
    for (number, event) in events.iter().enumerate() {
        let behind = &events[number + 1..];
        let mut follower = reader.follow(Follow::Agent("agent"), event.cursor).unwrap();
        let found = deletions(&mut follower);
        let skipped = behind.iter().find(|event| !found.contains(&event.run.to_string()));
        assert!(skipped.is_none(), "behind {number}, {}: {skipped:?}", event.cursor);
        assert!(behind.first().is_none_or(|next| next.cursor >= event.cursor), "{number}");
    }
    log.close().unwrap();
}
