//! A reader that is overtaken by a writer again and again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Durability, Error, Follow, LogCursor, LogEventKind, NewRecord, Outcome, ReaderOptions,
};

use crate::readers::following::small;
use crate::support::tap::Tap;

/// A store with a large record in two segments, of which the second one has the record itself. In
/// front of the first `moves` reads of the record the writer moves the first segment.
fn moved_within_reads(moves: usize) -> Arc<dyn Storage> {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let neighbours: Vec<String> = (0..moves).map(|number| format!("neighbour {number}")).collect();
    for name in &neighbours {
        let neighbour = log.start_run("agent", name, ()).unwrap();
        neighbour.append(b"beside the first chunks").unwrap();
        neighbour.end(&Outcome::completed()).unwrap();
    }
    let run = log.start_run("agent", "run", ()).unwrap();
    run.append(&[1; 7000]).unwrap();
    let large = NewRecord::new(&[2; 80_000]).kind("a needle").durability(Durability::Disk);
    run.append_record(&large).unwrap();
    for _ in 0..10 {
        run.append(&[3; 7000]).unwrap();
    }
    log.sync().unwrap();
    let bytes = storage.to_bytes();
    let needle = bytes.windows(8).position(|part| part == b"a needle").unwrap() as u64;
    // Once for each look at the superblocks.
    let (writer, is_due) = (Mutex::new((log, neighbours)), AtomicBool::new(true));
    Tap::only_reads(storage, move |offset, len| {
        is_due.fetch_or(offset < 16 << 10, Ordering::SeqCst);
        let is_read = (offset..offset + len as u64).contains(&needle);
        if is_read && is_due.swap(false, Ordering::SeqCst) {
            let (log, left) = &mut *writer.lock().unwrap();
            if let Some(name) = left.pop() {
                assert_eq!(log.erase_run(name.as_str()).unwrap().pinned_extents, 0);
            }
        }
        Ok(())
    })
}

#[test]
fn a_large_record_whose_chunks_move_whenever_it_is_read_is_no_damage() {
    for moves in 1..6 {
        let reader = ReaderOptions::new().open_storage(moved_within_reads(moves)).unwrap();
        let lens = reader.trace("run").unwrap().map(|record| record.unwrap().payload().len());
        assert!(lens.eq([7000, 80_000].into_iter().chain([7000; 10])), "{moves} moves");

        let reader = ReaderOptions::new().open_storage(moved_within_reads(moves)).unwrap();
        let mut follower = reader.follow(Follow::Agent("agent"), LogCursor::START).unwrap();
        let mut records = 0;
        while let Some(event) = follower.try_next().unwrap() {
            records += usize::from(matches!(event.kind, LogEventKind::Record(_)));
        }
        assert!(records >= 12, "{moves} moves: {records} records");

        let reader = ReaderOptions::new().open_storage(moved_within_reads(moves)).unwrap();
        let problems = reader.verify().unwrap().problems;
        assert!(problems.is_empty(), "{moves} moves: {problems:?}");
    }
}

/// A store with a full segment that has the receipts of four deleted runs. In front of so many
/// reads of an extent the writer moves the segment, once `is_ready`.
fn receipts_that_move(moves: usize, is_ready: &Arc<AtomicBool>) -> Arc<dyn Storage> {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().create_storage(storage.clone()).unwrap();
    let short = |name: &str| {
        let run = log.start_run("agent", name, ()).unwrap();
        run.append(b"beside the receipts").unwrap();
        run.end(&Outcome::completed()).unwrap();
    };
    let names =
        |what: &'static str, count| (0..count).map(move |number| format!("{what} {number}"));
    names("gone", 4).chain(names("neighbour", moves)).for_each(|name| short(&name));
    for name in names("gone", 4) {
        log.delete_run(name.as_str()).unwrap();
    }
    log.start_run("agent", "stays", ()).unwrap().append(&[1; 100_000]).unwrap();
    log.sync().unwrap();
    let writer = Mutex::new((log, names("neighbour", moves).collect::<Vec<_>>()));
    let is_ready = Arc::clone(is_ready);
    Tap::only_reads(storage, move |offset, _| {
        if is_ready.load(Ordering::SeqCst) && offset >= 64 << 10 {
            let (log, left) = &mut *writer.lock().unwrap();
            if let Some(name) = left.pop() {
                assert_eq!(log.erase_run(name.as_str()).unwrap().pinned_extents, 0);
            }
        }
        Ok(())
    })
}

#[test]
fn a_reader_leaves_out_no_receipt_that_moves_whenever_it_is_read() {
    for moves in 0..6 {
        let is_ready = Arc::<AtomicBool>::default();
        let storage = receipts_that_move(moves, &is_ready);
        let reader = ReaderOptions::new().open_storage(storage).unwrap();
        is_ready.store(true, Ordering::SeqCst);
        let receipts = reader.receipts(100).unwrap();
        let gone = receipts.iter().filter(|receipt| receipt.run.as_str().starts_with("gone"));
        assert_eq!(gone.count(), 4, "{moves} moves: {receipts:?}");
    }
}

/// In front of each read of the log the writer appends a record, up to very many.
fn appends_before_reads() -> (Arc<dyn Storage>, Arc<AtomicU64>) {
    let storage = Arc::new(MemoryStorage::new());
    let log = small().extent_size(4 << 20).create_storage(storage.clone()).unwrap();
    log.start_run("quiet", "run", ()).unwrap();
    let busy = log.start_run("busy", "other", ()).unwrap();
    let (reads, count) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (counted, writer) = (Arc::clone(&reads), Mutex::new((log, busy)));
    let before = move |offset, _| {
        if offset >= 64 << 10 && count.fetch_add(1, Ordering::SeqCst) < 20_000 {
            counted.fetch_add(1, Ordering::SeqCst);
            drop(writer.lock().unwrap().1.append(b"of another agent").unwrap());
        }
        Ok(())
    };
    (Tap::only_reads(storage, before), reads)
}

#[test]
fn a_follower_whose_log_goes_on_whenever_it_reads_tells_what_was_there_by_then() {
    let (storage, reads) = appends_before_reads();
    let reader = ReaderOptions::new().open_storage(storage).unwrap();
    let mut follower = reader.follow(Follow::Agent("quiet"), LogCursor::START).unwrap();
    assert!(matches!(follower.try_next().unwrap().unwrap().kind, LogEventKind::Started(_)));
    for _ in 0..3 {
        let before = reads.load(Ordering::SeqCst);
        assert!(follower.try_next().unwrap().is_none());
        assert!(reads.load(Ordering::SeqCst) < before + 8);
    }
}

/// A writer that moves the run whenever it is read.
#[test]
fn a_trace_or_a_follower_that_is_always_overtaken_says_so() {
    let most = 75;
    let reader = ReaderOptions::new().open_storage(moved_within_reads(most)).unwrap();
    let mut trace = reader.trace("run").unwrap();
    let told = trace.find_map(Result::err);
    assert!(matches!(told, Some(Error::Overtaken { .. })), "{told:?}");
    assert!(trace.next().is_none());

    let reader = ReaderOptions::new().open_storage(moved_within_reads(most)).unwrap();
    let mut follower = reader.follow(Follow::Agent("agent"), LogCursor::START).unwrap();
    let (mut records, mut overtaken) = (0, 0);
    loop {
        match follower.try_next() {
            Ok(Some(event)) => {
                records += usize::from(matches!(event.kind, LogEventKind::Record(_)))
            }
            Ok(None) => break,
            Err(Error::Overtaken { .. }) => overtaken += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(records >= 12 && overtaken > 0, "{records} records, {overtaken} times");
}
