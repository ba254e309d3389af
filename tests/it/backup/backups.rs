//! Copies of a store while it is written, again and again into the same file.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Compression, Error, NewRecord, Options, Outcome, ReadLog, Reader, ReaderOptions, Retention,
    RunLog,
};
use runlog_sim::SplitMix64;
use tempfile::TempDir;

use crate::backup::interrupted_copies::reader;
use crate::readers::replicas::options;
use crate::support::answers::answers;
use crate::support::crowd::{Beside, Ledger, work_beside};

fn all(log: &impl ReadLog) -> BTreeMap<String, String> {
    answers(log, "docs")
}

fn small() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

/// Some steps of a workload: runs come, grow, end and go; documents change; what is dead is moved.
fn work(log: &RunLog, rng: &mut SplitMix64, steps: u64) {
    for _ in 0..steps {
        let id = format!("run-{}", rng.below(40));
        match rng.below(12) {
            0 | 1 => {
                if let Ok(run) = log.start_run("agent", &id, ()) {
                    let _ = run.end(&Outcome::completed());
                }
            }
            2 => drop(log.delete_run(&id)),
            3 => {
                let key = rng.below(12).to_string();
                let value = vec![rng.below(256) as u8; rng.below(20_000) as usize];
                log.docs().put("docs", &key, &NewRecord::new(&value)).unwrap();
            }
            4 if rng.below(4) == 0 => drop(log.compact().unwrap()),
            5 => {
                let _ = log.gc(&Retention::new().keep_newest(25)).unwrap();
            }
            _ => {
                let has_ended = log.run(&*id).is_ok_and(|run| run.ended_at.is_some());
                if let (false, Ok(run)) = (has_ended, log.start_run("agent", &id, ())) {
                    let len = if rng.below(40) == 0 { 9_000 } else { 200 };
                    run.append(&id.as_bytes().repeat(rng.index(len))).unwrap();
                    run.append_batch(&[NewRecord::new(b"one"), NewRecord::new(b"two")]).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_copy_has_all_of_the_store_and_is_gone_on_with() {
    let mut rng = SplitMix64::new(1);
    let storage = Arc::new(MemoryStorage::new());
    let log = small().compression(Compression::Zstd { level: 1 }).create_storage(storage.clone());
    let log = log.unwrap();
    for round in 0..12 {
        work(&log, &mut rng, 120);
        let source = reader(storage.clone());
        let copy = Arc::new(MemoryStorage::new());
        let report = source.backup_to_storage(copy.clone()).unwrap();
        assert_eq!((report.damaged.len(), report.kept_segments), (0, 0));
        let expected = all(&log);
        // By a process that only reads, which changes nothing.
        let reading = reader(copy.clone());
        assert!(reading.recovery_report().is_clean(), "{}", reading.recovery_report());
        assert!(all(&reading) == expected, "round {round}");
        assert!(reading.verify().unwrap().is_clean());
        // And by a writer, which then writes.
        let restored = small().open_storage(copy.clone()).unwrap();
        assert!(restored.recovery_report().is_clean(), "{}", restored.recovery_report());
        assert!(all(&restored) == expected, "round {round}");
        work(&restored, &mut SplitMix64::new(round), 100);
        assert!(restored.verify().unwrap().is_clean());
        let went_on = all(&restored);
        restored.close().unwrap();
        let again = small().open_storage(copy.clone()).unwrap();
        assert!(all(&again) == went_on);
        again.close().unwrap();
        // It is a store of its own now.
        assert!(source.backup_to_storage(copy).is_err());
    }
    log.close().unwrap();
}

#[test]
fn a_copy_that_is_brought_up_to_date_copies_only_what_is_new() {
    let mut rng = SplitMix64::new(2);
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let source = reader(storage);
    let copy: Arc<MemoryStorage> = Arc::new(MemoryStorage::new());
    let (mut copied, mut kept) = (0, 0);
    // `compact`, which moves much, is called in every other round.
    for round in 0..80 {
        work(&log, &mut rng, 20);
        let report = source.backup_to_storage(copy.clone()).unwrap();
        (copied, kept) = (copied + report.copied_segments, kept + report.kept_segments);
        let reading = reader(copy.clone());
        assert!(reading.recovery_report().is_clean(), "{}", reading.recovery_report());
        assert!(all(&reading) == all(&log), "round {round}");
        assert!(reading.verify().unwrap().is_clean());
        // Only the segment that takes frames is copied again.
        let report = source.backup_to_storage(copy.clone()).unwrap();
        assert!(report.copied_segments <= 1, "{report:?}");
    }
    assert!(4 * kept > copied, "{kept} segments were kept, {copied} copied");
    // What the store freed is not kept for ever.
    let (store, copy) = (log.stats().unwrap().file_len, copy.len().unwrap());
    assert!(copy <= 2 * store, "the copy has {copy} bytes, the store {store}");
    log.close().unwrap();
}

#[test]
fn nothing_is_overwritten_but_an_earlier_copy_of_the_same_store() {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    let log = small().create(path("store")).unwrap();
    log.start_run("agent", "run", ()).unwrap().append(b"x").unwrap();
    let reader = Reader::open(path("store")).unwrap();
    let _ = reader.backup_to(path("copy")).unwrap();
    std::fs::write(path("text"), b"not a store").unwrap();
    drop(small().create(path("other")).unwrap());
    std::os::unix::fs::symlink(path("copy"), path("link")).unwrap();
    std::fs::create_dir(path("folder")).unwrap();
    let taken = [path("text"), path("other"), path("link"), path("folder")];
    let read = |path: &std::path::Path| std::fs::read(path).ok();
    for path in taken {
        let before = read(&path);
        assert!(reader.backup_to(&path).is_err(), "{path:?}");
        assert!(log.backup_to(&path).is_err(), "{path:?}");
        assert_eq!(read(&path), before, "{path:?}");
    }
    // The store itself, which a writer has open.
    assert!(matches!(reader.backup_to(path("store")), Err(Error::Busy { .. })));
    // A copy that was gone on with, or is open.
    let restored = small().open_existing(path("copy")).unwrap();
    assert!(matches!(reader.backup_to(path("copy")), Err(Error::Busy { .. })));
    restored.close().unwrap();
    assert!(matches!(reader.backup_to(path("copy")), Err(Error::AlreadyExists { .. })));
    assert!(reader.backup_to(path("missing").join("copy")).is_err());
    log.close().unwrap();
    assert!(matches!(reader.backup_to(path("store")), Err(Error::AlreadyExists { .. })));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 6, "{left:?}");
}

#[test]
fn copies_beside_writers_are_whole_and_have_what_was_acknowledged_before() {
    let dir = TempDir::new().unwrap();
    let (path, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let (log, ledger) = (options().open(&path).unwrap(), Ledger::default());
    let back_up: Beside<'_, usize> = Box::new(|over| {
        let reader = Reader::open(&path).unwrap();
        for copies in 1.. {
            let before = ledger.all();
            let report = reader.backup_to(&copy).unwrap();
            assert!(report.damaged.is_empty(), "{report:?}");
            let found = Reader::open(&copy).unwrap();
            let report = found.verify().unwrap();
            assert!(report.is_clean(), "{:?}", report.problems);
            before.iter().for_each(|(run, before)| ledger.check_run(&found, *run, before));
            if over.load(Ordering::Acquire) {
                return copies;
            }
        }
        unreachable!("it is over at some time")
    });
    let copies = work_beside(&log, &ledger, 4_000, vec![back_up])[0];
    assert!(copies > 2, "only {copies} copies");
    log.close().unwrap();
    std::fs::remove_file(&copy).unwrap();
    let reader = Reader::open(&path).unwrap();
    let _ = reader.backup_to(&copy).unwrap();
    assert!(all(&Reader::open(&copy).unwrap()) == all(&reader));
}

#[test]
fn each_damaged_frame_is_in_the_report_of_a_copy() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let writer = log.start_run("agent", "run", ()).unwrap();
    for seq in 0..40_u8 {
        writer.append(&[seq + 100; 500]).unwrap();
    }
    drop(writer);
    log.close().unwrap();
    let mut bytes = storage.to_bytes();
    for seq in [3_u8, 4, 17, 30] {
        let at = bytes.windows(500).position(|part| *part == [seq + 100; 500]).unwrap();
        bytes[at + 7] ^= 1;
    }
    let broken = Arc::new(MemoryStorage::from_bytes(bytes));
    let copy = Arc::new(MemoryStorage::new());
    let report = reader(broken).backup_to_storage(copy.clone()).unwrap();
    assert_eq!(report.damaged.len(), 4, "{:?}", report.damaged);
    let restored = small().open_storage(copy).unwrap();
    assert_eq!(restored.trace("run").unwrap().filter(Result::is_ok).count(), 36);
    restored.close().unwrap();
}

/// The copy may have the only bytes that are left.
#[test]
fn a_store_that_lost_its_end_does_not_replace_an_earlier_copy() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let first = log.stats().unwrap().end.segment.0;
    while log.stats().unwrap().end.segment.0 < first + 2 {
        let _ = run.append(&[7; 5_000]).unwrap();
    }
    log.sync().unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let reader = ReaderOptions::new().open_storage(storage.clone()).unwrap();
    let _ = reader.backup_to_storage(copy.clone()).unwrap();
    let before = copy.to_bytes();
    let mut image = storage.to_bytes();
    // Within the second segment.
    image.truncate((2 * 64 + 30) << 10);
    let cut_off = Arc::new(MemoryStorage::from_bytes(image));
    let reader = ReaderOptions::new().open_storage(cut_off).unwrap();
    let refused = reader.backup_to_storage(copy.clone());
    assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
    assert!(copy.to_bytes() == before);
}
