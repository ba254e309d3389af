//! One frame that is damaged after a kill, in front of frames that are whole: a COMMIT, or a BIND.
//! The first opening and all later ones say the same of what it belongs to.

use std::sync::Arc;

use runlog::env::{BootId, Environment};
use runlog::format::FrameKind;
use runlog::storage::MemoryStorage;
use runlog::{Batch, Durability, Metadata, NewRecord, Options, RunLog};

use crate::support::background::Background;
use crate::support::frames::frames_in;

fn options(extent: usize) -> Options {
    let environment = Environment::system().boot_id(Some(BootId([1; 16])));
    Options::new()
        .extent_size(extent as u64)
        .index(false)
        .environment(environment)
        // Nothing runs in the background, so the manifest is not told of full segments.
        .scheduler(Arc::new(Background::default()))
}

/// What a killed process leaves if the last COMMIT is damaged.
fn without_commit(file: &MemoryStorage) -> Arc<MemoryStorage> {
    let mut image = file.to_bytes();
    let commit = frames_in(&image, 0)
        .into_iter()
        .rfind(|(_, frame)| frame.kind == FrameKind::Commit)
        .unwrap();
    image[commit.0].fill(0xff);
    Arc::new(MemoryStorage::from_bytes(image))
}

fn records(log: &RunLog, run: &str) -> Vec<Vec<u8>> {
    log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec()).collect()
}

#[test]
fn a_document_that_was_deleted_after_the_commit_of_its_last_version_was_lost_stays_deleted() {
    let file = Arc::new(MemoryStorage::new());
    let log = options(64 << 10).create_storage(file.clone()).unwrap();
    let _ = log.docs().put("space", "key", &NewRecord::new(b"one")).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut batch = Batch::new();
    batch.put("space", "key", NewRecord::new(b"two")).durability(Durability::Process);
    let _ = log.commit(&batch).unwrap();
    let _ = run.append(b"behind").unwrap();

    let file = without_commit(&file);
    let log = options(64 << 10).open_storage(file.clone()).unwrap();
    assert!(log.docs().get("space", "key").unwrap().is_some());
    assert!(log.docs().delete("space", "key").unwrap());
    log.close().unwrap();
    let log = options(64 << 10).open_storage(file).unwrap();
    let found = log.docs().get("space", "key").unwrap();
    assert!(found.is_none(), "{:?} is back", found.map(|found| found.payload().to_vec()));
}

#[test]
fn records_whose_commit_was_lost_are_there_at_each_opening_or_at_none() {
    let file = Arc::new(MemoryStorage::new());
    let log = options(64 << 10).create_storage(file.clone()).unwrap();
    let other = log.start_run("agent", "other", ()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"zero").unwrap();
    let _ = run.append_batch(&[NewRecord::new(b"one"), NewRecord::new(b"two")]).unwrap();
    let _ = other.append(b"behind").unwrap();

    let file = without_commit(&file);
    let log = options(64 << 10).open_storage(file.clone()).unwrap();
    let _ = log.writer("run").unwrap().append(b"later").unwrap();
    let expected = records(&log, "run");
    log.close().unwrap();
    let log = options(64 << 10).open_storage(file).unwrap();
    assert_eq!(records(&log, "run"), expected);
}

/// The directory that was written for a full segment does not list the batch. If opening does not
/// believe it, the one that replaces it has no room.
#[test]
fn a_full_segment_with_a_large_batch_whose_commit_was_lost_can_be_opened() {
    let extent = 4 << 20;
    let file = Arc::new(MemoryStorage::new());
    let log = options(extent).create_storage(file.clone()).unwrap();
    let other = log.start_run("agent", "other", ()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append_batch(&vec![NewRecord::new(b"1"); 12_500]).unwrap();
    let _ = other.append(b"behind").unwrap();

    let file = without_commit(&file);
    let log = options(extent).open_storage(file.clone()).unwrap();
    let unsynced = Metadata::default().durability(Durability::Process);
    let filler = log.start_run("agent", "filler", unsynced).unwrap();
    let first = log.stats().unwrap().end.segment;
    let mut appended = 0;
    while log.stats().unwrap().end.segment == first {
        let _ = filler.append(&[1; 1000]).unwrap();
        appended += 1;
    }
    let killed = Arc::new(MemoryStorage::from_bytes(file.to_bytes()));
    for _ in 0..2 {
        let log = options(extent).open_storage(killed.clone()).unwrap();
        assert_eq!(log.trace("filler").unwrap().flatten().count(), appended);
        log.close().unwrap();
    }
}

/// The manifest does not know yet that the segment in front of it is full.
#[test]
fn records_whose_bind_was_lost_in_an_unsealed_segment_are_there_at_each_opening() {
    let file = Arc::new(MemoryStorage::new());
    let log = options(64 << 10).create_storage(file.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"zero").unwrap();
    let filler = log.start_run("agent", "filler", ()).unwrap();
    let first = log.stats().unwrap().end.segment;
    while log.stats().unwrap().end.segment == first {
        let _ = filler.append(&[1; 5000]).unwrap();
    }
    let _ = run.append(b"one").unwrap();
    let _ = filler.append(b"behind").unwrap();

    let mut image = file.to_bytes();
    let (bind, _) =
        frames_in(&image, 1).into_iter().rfind(|(_, frame)| frame.kind == FrameKind::Bind).unwrap();
    image[bind].fill(0);
    let file = Arc::new(MemoryStorage::from_bytes(image));
    for opened in 1..4_u8 {
        let log = options(64 << 10).open_storage(file.clone()).unwrap();
        assert_eq!(records(&log, "run").len(), 1 + usize::from(opened));
        let _ = log.writer("run").unwrap().append(&[opened]).unwrap();
        log.close().unwrap();
    }
}
