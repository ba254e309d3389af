//! Backups of a store that is damaged, into a file that a backup made before.

use std::sync::{Arc, Mutex};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{Options, Reader, ReaderOptions, RunQuery};

use crate::backups::seals;
use crate::support::reads::OnlyReads;

fn small() -> Options {
    Options::new().extent_size(64 << 10).background(false)
}

fn open(storage: &Arc<MemoryStorage>) -> Reader {
    ReaderOptions::new().open_storage(Arc::<MemoryStorage>::clone(storage)).unwrap()
}

/// How many records can be read.
fn readable(storage: &Arc<MemoryStorage>) -> usize {
    let log = open(storage);
    let runs = log.runs(&RunQuery::new()).map(Result::unwrap);
    runs.map(|run| log.trace(&run).unwrap().filter(Result::is_ok).count()).sum()
}

/// What a copy has that the store has lost since is not replaced, however little else it lacks.
#[test]
fn a_backup_replaces_what_is_damaged_in_the_copy_by_whole_segments_only() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let writer = log.start_run("agent", "run", ()).unwrap();
    for number in 1..=200_u8 {
        writer.append(&[number; 1000]).unwrap();
    }
    drop(writer);
    log.close().unwrap();
    let whole = storage.to_bytes();
    let (start, seal) = seals(&whole)[0];
    // Four entries in the report, of four records.
    let mut few = whole.clone();
    for number in [10_u8, 20, 30, 40] {
        let at = few[start..].windows(1000).position(|part| *part == [number; 1000]).unwrap();
        few[start + at + 9] ^= 1;
    }
    // Two entries, of most records of the segment.
    let mut most = whole.clone();
    most[start + 3000..seal].fill(0x55);
    let back_up = |bytes: &[u8], copy: &Arc<MemoryStorage>| {
        let source = Arc::new(MemoryStorage::from_bytes(bytes.to_vec()));
        open(&source).backup_to_storage(Arc::<MemoryStorage>::clone(copy)).unwrap()
    };
    let copy = Arc::new(MemoryStorage::new());
    assert_eq!(back_up(&few, &copy).damaged.len(), 4);
    assert_eq!(readable(&copy), 196);
    assert_eq!(back_up(&most, &copy).damaged.len(), 4);
    assert_eq!(readable(&copy), 196);
    let last = back_up(&whole, &copy);
    assert_eq!((last.damaged.len(), last.copied_segments, readable(&copy)), (0, 1, 200));
}

/// The writer moves what the backup is about to read.
#[test]
fn a_backup_that_begins_again_still_tells_what_was_damaged_at_first() {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    for number in 0..200_u32 {
        let run = log.start_run("agent", &format!("run-{number}"), ()).unwrap();
        run.append(&[number as u8 + 1; 1000]).unwrap();
    }
    log.sync().unwrap();
    let whole = storage.to_bytes();
    let places = seals(&whole);
    let at = places[0].1 - 32;
    storage.write_at(at as u64, &[0x55; 8]).unwrap();
    let (last, log) = (places[2].0 as u64, Mutex::new(Some(log)));
    let busy = OnlyReads::new(storage.clone(), move |offset, len| {
        let is_copied = len > 20_000 && offset == last;
        if let Some(log) = is_copied.then(|| log.lock().unwrap().take()).flatten() {
            log.checkpoint().unwrap();
            let _ = log.compact().unwrap();
            let run = log.start_run("agent", "more", ()).unwrap();
            for _ in 0..200 {
                run.append(&[7; 1000]).unwrap();
            }
            log.sync().unwrap();
        }
        Ok(())
    });
    let reader = ReaderOptions::new().open_storage(busy).unwrap();
    let copy = Arc::new(MemoryStorage::new());
    let report = reader.backup_to_storage(copy.clone()).unwrap();
    assert_eq!(report.damaged.len(), 1, "{report:?}");
    assert_eq!(open(&copy).verify().unwrap().problems.len(), 1);
    // The store is restored.
    storage.write_at(at as u64, &whole[at..at + 8]).unwrap();
    let again = open(&storage).backup_to_storage(copy.clone()).unwrap();
    assert!(again.damaged.is_empty() && again.copied_segments > 0, "{again:?}");
    assert!(open(&copy).verify().unwrap().is_clean());
}
