//! A store that has less than was once acknowledged, since a backup was restored or a salvage found
//! no more: nothing of what it gave out for the rest is given out again.

use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{
    Error, Expected, Follow, LogCursor, NewRecord, Reader, ReaderOptions, RunLog, Version,
    salvage_storage,
};

use crate::readers::following::{all, small, told};

fn reader(storage: &Arc<MemoryStorage>) -> Reader {
    ReaderOptions::new().open_storage(storage.clone()).unwrap()
}

/// Appends so many records to a new run.
fn work(log: &RunLog, run: &str, records: usize) {
    let writer = log.start_run("agent", run, ()).unwrap();
    for number in 0..records {
        let _ = writer.append(format!("{run} {number}").as_bytes()).unwrap();
    }
}

/// The cursor behind everything that is there now.
fn end_of(storage: &Arc<MemoryStorage>) -> LogCursor {
    let mut follower = reader(storage).follow(Follow::Everything, LogCursor::START).unwrap();
    let _ = all(&mut follower);
    follower.cursor()
}

/// A store with a run.
fn begun() -> (Arc<MemoryStorage>, RunLog) {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    work(&log, "early", 10);
    (storage, log)
}

/// What a store had when it was backed up, the end of what it had later, and a document version of
/// then. The first is a copy.
fn backed_up(is_closed: bool) -> (Arc<MemoryStorage>, LogCursor, Version) {
    let (storage, log) = begun();
    let copy = Arc::new(MemoryStorage::new());
    let log = if is_closed {
        log.close().unwrap();
        let _ = reader(&storage).backup_to_storage(copy.clone()).unwrap();
        small().open_storage(storage.clone()).unwrap()
    } else {
        let _ = reader(&storage).backup_to_storage(copy.clone()).unwrap();
        log
    };
    work(&log, "lost", 500);
    let version = log.docs().put("space", "key", &NewRecord::new(b"lost")).unwrap();
    log.close().unwrap();
    (copy, end_of(&storage), version)
}

#[test]
fn a_follower_is_told_what_is_appended_to_a_restored_copy_wherever_it_was() {
    for is_closed in [true, false] {
        let (copy, cursor, _) = backed_up(is_closed);
        let log = small().open_storage(copy.clone()).unwrap();
        let mut follower = reader(&copy).follow(Follow::Everything, cursor).unwrap();
        assert_eq!(all(&mut follower).len(), 0, "nothing is new");
        work(&log, "new", 50);
        log.sync().unwrap();
        let events: Vec<_> = all(&mut follower).iter().map(told).collect();
        assert_eq!(events.len(), 51, "closed: {is_closed}, {events:?}");
        log.close().unwrap();
    }
}

#[test]
fn a_restored_copy_gives_out_no_version_again() {
    for is_closed in [true, false] {
        let (copy, _, lost) = backed_up(is_closed);
        let log = small().open_storage(copy).unwrap();
        for number in 0..600 {
            let value = format!("{number}");
            let put = log.docs().put("space", "key", &NewRecord::new(value.as_bytes())).unwrap();
            assert_ne!(put, lost, "closed: {is_closed}");
        }
        let stale =
            log.docs().put_if("space", "key", &NewRecord::new(b"stale"), Expected::Version(lost));
        assert!(matches!(stale, Err(Error::Conflict { .. })), "{stale:?}");
        log.close().unwrap();
    }
}

/// The file of a closed store was kept, and was put back by hand.
#[test]
fn a_cursor_that_is_ahead_of_a_store_is_refused() {
    let (storage, log) = begun();
    log.close().unwrap();
    let image = storage.to_bytes();
    let log = small().open_storage(storage.clone()).unwrap();
    work(&log, "lost", 500);
    log.close().unwrap();
    let cursor = end_of(&storage);
    let back = Arc::new(MemoryStorage::from_bytes(image));
    let refused = reader(&back).follow(Follow::Everything, cursor).map(|_| ());
    let Err(Error::InvalidArgument { what }) = &refused else { panic!("{refused:?}") };
    assert!(what.contains("ahead"), "{what}");
    // A reader that looked before the store went on is no reason to refuse.
    let early = reader(&back);
    let log = small().open_storage(back.clone()).unwrap();
    work(&log, "more", 500);
    log.close().unwrap();
    assert!(early.follow(Follow::Everything, end_of(&back)).is_ok());
}

/// A copy is behind its store until it is brought up to date.
#[test]
fn a_copy_can_be_followed_from_a_cursor_of_its_store() {
    let (storage, log) = begun();
    log.close().unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let _ = reader(&storage).backup_to_storage(copy.clone()).unwrap();
    let log = small().open_storage(storage.clone()).unwrap();
    work(&log, "more", 20);
    log.close().unwrap();
    let cursor = end_of(&storage);
    let mut follower = reader(&copy).follow(Follow::Everything, cursor).unwrap();
    let log = small().open_storage(storage.clone()).unwrap();
    work(&log, "last", 5);
    log.close().unwrap();
    let _ = reader(&storage).backup_to_storage(copy).unwrap();
    assert_eq!(all(&mut follower).len(), 6);
}

/// A salvage makes a new store, in which each version is a new one.
#[test]
fn a_store_that_a_salvage_made_gives_out_no_version_of_the_damaged_one() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let mut versions = Vec::new();
    for number in 0..40 {
        let key = format!("key-{}", number % 5);
        versions.push(log.docs().put("space", &key, &NewRecord::new(b"value")).unwrap());
    }
    log.close().unwrap();
    let out = Arc::new(MemoryStorage::new());
    let report = salvage_storage(storage, out.clone()).unwrap();
    assert!(report.is_complete(), "{report:?}");
    let log = small().open_storage(out).unwrap();
    for number in 0..40 {
        let key = format!("key-{}", number % 5);
        let put = log.docs().put("space", &key, &NewRecord::new(b"next")).unwrap();
        assert!(!versions.contains(&put), "{put:?}");
    }
    log.close().unwrap();
}

/// The same backup is restored a second time, since the first store that it became is lost too.
#[test]
fn two_stores_that_one_copy_became_give_out_different_numbers() {
    let (copy, _, _) = backed_up(true);
    let image = copy.to_bytes();
    let restored = || Arc::new(MemoryStorage::from_bytes(image.clone()));
    let first = restored();
    let log = small().open_storage(first.clone()).unwrap();
    work(&log, "lost", 500);
    let lost = log.docs().put("space", "key", &NewRecord::new(b"lost")).unwrap();
    log.close().unwrap();
    let cursor = end_of(&first);
    let second = restored();
    let log = small().open_storage(second.clone()).unwrap();
    let mut follower = reader(&second).follow(Follow::Everything, cursor).ok();
    work(&log, "lost", 500);
    let put = log.docs().put("space", "key", &NewRecord::new(b"other")).unwrap();
    assert_ne!(put, lost);
    log.sync().unwrap();
    // It is told, or the cursor is refused, by which of both went further.
    if let Some(follower) = &mut follower {
        assert_eq!(all(follower).len(), 501);
    }
    log.close().unwrap();
}
