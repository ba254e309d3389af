//! The two ways to write the tail: writes, and stores into a map. The bytes are the same.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use runlog::env::{Environment, Step};
use runlog::storage::{MemoryStorage, Storage};
use runlog::{Durability, Error, NewRecord, Options, Outcome, RunLog, TailWriter, Timestamp};
use runlog_sim::{OpKind, SimClock, SimDisk, SimEntropy};

use crate::support::background::Background;
use crate::support::tap::{Call, Tap};

const EXTENT: u64 = 64 << 10;

/// No threads, and nothing from outside.
fn options(writer: TailWriter) -> Options {
    Options::new().extent_size(EXTENT).background(false).tail_writer(writer).environment(
        Environment::system()
            .clock(Arc::new(SimClock::new(Timestamp(1_000_000))))
            .entropy(Arc::new(SimEntropy::new(1))),
    )
}

/// Records of many sizes, at both levels, batches, and starts and ends, over several segments.
fn some_of_everything(log: &RunLog) {
    for number in 0..12 {
        let run = log.start_run("agent", &format!("run-{number}"), b"metadata").unwrap();
        for len in [0, 1, 7, 8, 300, 4000, 17_000] {
            let payload = vec![number; len];
            let _ = run.append(&payload).unwrap();
            if len == 300 {
                let record = NewRecord::new(&payload).kind("turn");
                let _ = run.append_batch(&[record; 5]).unwrap();
                let _ = run.append_record(&record.durability(Durability::Disk)).unwrap();
            }
        }
        // Each place within a word where kind and payload can end.
        let (kind, payload) = ("kind".repeat(16), [number; 17]);
        for name in (0..=17).chain([63, 64]).filter(|name| name % 4 == usize::from(number) % 4) {
            for len in 0..=17 {
                let _ = run
                    .append_record(&NewRecord::new(&payload[..len]).kind(&kind[..name]))
                    .unwrap();
            }
        }
        let level = if number % 2 == 0 { Durability::Disk } else { Durability::Process };
        let _ = run.end(&Outcome::completed().durability(level)).unwrap();
    }
}

fn writer_of(log: &RunLog) -> TailWriter {
    log.stats().unwrap().tail_writer
}

#[test]
fn both_writers_leave_the_same_bytes() {
    let bytes = |writer| {
        let disk = SimDisk::untracked(Vec::new());
        let log = options(writer).create_storage(Arc::new(disk.clone())).unwrap();
        some_of_everything(&log);
        assert_eq!(writer_of(&log), writer);
        assert!(log.stats().unwrap().sealed_segments > 3);
        let image = disk.image();
        log.close().unwrap();
        assert_eq!(disk.counts().stores > 0, writer == TailWriter::Mapped);
        (image, disk.image())
    };
    assert!(bytes(TailWriter::Mapped) == bytes(TailWriter::Pwrite));
}

#[test]
fn both_writers_leave_the_same_bytes_in_a_real_file() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = |writer, name: &str| {
        let path = folder.path().join(name);
        let log = options(writer).create(&path).unwrap();
        some_of_everything(&log);
        let stats = log.stats().unwrap();
        // `Mapped` is requested, and not available everywhere.
        assert!(writer == TailWriter::Mapped || stats.tail_writer == TailWriter::Pwrite);
        assert_eq!(stats.io.stores > 0, stats.tail_writer == TailWriter::Mapped);
        log.close().unwrap();
        std::fs::read(path).unwrap()
    };
    assert!(bytes(TailWriter::Mapped, "mapped") == bytes(TailWriter::Pwrite, "written"));
}

#[test]
fn a_storage_without_windows_is_written_whatever_was_asked_for() {
    for writer in [TailWriter::Auto, TailWriter::Mapped] {
        let log = options(writer).create_storage(Arc::new(MemoryStorage::new())).unwrap();
        some_of_everything(&log);
        assert_eq!(writer_of(&log), TailWriter::Pwrite);
        assert_eq!(log.stats().unwrap().io.stores, 0);
    }
}

/// The file of a store, if the thread of the zeros does a step after each of these calls, which are
/// chosen by what was written and by whether closing has given space back.
fn file_with_steps(calls: fn(&[u8], bool) -> bool) -> Vec<u8> {
    let (disk, background) = (SimDisk::untracked(Vec::new()), Background::default());
    let (seen, asked, thread) = (disk.clone(), disk.clone(), background.clone());
    let space = Arc::new(AtomicU64::new(0));
    let taken = Arc::clone(&space);
    let [closing, trimmed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (begun, over) = (Arc::clone(&closing), Arc::clone(&trimmed));
    let before = move |call: Call| {
        space.store(asked.allocated(), Ordering::Relaxed);
        if call.kind == OpKind::Punch && begun.load(Ordering::Relaxed) {
            over.store(true, Ordering::Relaxed);
        }
        Ok(())
    };
    let after = move |call: Call, replaced: &[u8]| {
        let mut written = vec![0; call.len as usize];
        if call.kind == OpKind::Write {
            seen.read_at(call.offset, &mut written).unwrap();
        }
        // Erasing writes zeros onto headers of segments.
        let is_header = call.offset % (4 * EXTENT) == EXTENT;
        let is_trimmed = trimmed.load(Ordering::Relaxed);
        if call.kind == OpKind::Write && !is_header && written.iter().all(|byte| *byte == 0) {
            assert!(replaced.iter().all(|byte| *byte == 0), "zeros onto frames, {call:?}");
            assert!(!is_trimmed, "zeros after closing gave space back");
            let taken = taken.load(Ordering::Relaxed);
            assert_eq!(taken, seen.allocated(), "zeros where no space is allocated, {call:?}");
        } else if calls(&written, is_trimmed) {
            thread.run(Step::Zeros);
        }
    };
    let storage = Tap::around(Arc::new(disk.clone()), before, after);
    for life in 0..2 {
        let options = options(TailWriter::Mapped).scheduler(Arc::new(background.clone()));
        let opened = match life {
            0 => options.extent_size(4 * EXTENT).create_storage(storage.clone()),
            _ => options.open_storage(storage.clone()),
        };
        let log = opened.unwrap();
        if life == 0 {
            some_of_everything(&log);
        }
        let run = log.start_run("agent", &format!("erased-{life}"), ()).unwrap();
        for len in [300, 70_000, 300, 3_000, 300] {
            let _ = run.append(&vec![7; len]).unwrap();
        }
        // Behind their frames the SEAL frame is longer than the zeros that calls write.
        for _ in 0..10 {
            let _ = run.append_batch(&[NewRecord::new(b""); 500]).unwrap();
        }
        let _ = run.end(&Outcome::completed()).unwrap();
        let _ = log.erase_run(&format!("erased-{life}")).unwrap();
        assert!(log.stats().unwrap().pinned.is_empty());
        let _ =
            log.start_run("agent", &format!("last-{life}"), ()).unwrap().append(b"end").unwrap();
        closing.store(life == 1, Ordering::Relaxed);
        log.close().unwrap();
        assert!(!background.run(Step::Zeros));
    }
    assert!(disk.counts().stores > 100);
    disk.image()
}

#[test]
fn steps_of_the_thread_write_no_zeros_onto_frames_and_none_without_space() {
    let expected = file_with_steps(|_, _| false);
    let some: [fn(&[u8], bool) -> bool; 3] = [
        |_, _| true,
        // SEAL frames: directories begin so.
        |written, _| written.windows(7).any(|bytes| bytes == b"RLOGDIR"),
        // What closing writes after it gave space back.
        |_, is_trimmed| is_trimmed,
    ];
    for calls in some {
        assert!(file_with_steps(calls) == expected);
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[test]
fn shared_memory_is_stored_into_by_default() {
    let shared = Path::new("/dev/shm");
    let Ok(folder) = tempfile::tempdir_in(shared) else { return };
    let log = Options::new().create(folder.path().join("store")).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let stores = log.stats().unwrap().io.stores;
    let _ = run.append(b"record").unwrap();
    assert_eq!(writer_of(&log), TailWriter::Mapped);
    assert_eq!(log.stats().unwrap().io.stores, stores + 1);
}

#[test]
fn only_what_nobody_waits_for_is_stored() {
    let disk = SimDisk::new();
    let log = options(TailWriter::Mapped).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    assert_eq!(disk.counts().stores, 0);
    let _ = run.append(b"stored").unwrap();
    assert_eq!(disk.counts().stores, 1);
    let record = NewRecord::new(b"written").durability(Durability::Disk);
    let _ = run.append_record(&record).unwrap();
    assert_eq!(disk.counts().stores, 1);
    let _ = run.append_batch(&[NewRecord::new(b"stored"); 3]).unwrap();
    assert_eq!(disk.counts().stores, 2, "a batch is one store");
}

#[test]
fn zeros_that_cannot_be_written_refuse_the_append_and_change_nothing() {
    let disk = SimDisk::new();
    let log = options(TailWriter::Mapped).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    for (kind, full) in [(ErrorKind::StorageFull, true), (ErrorKind::Other, false)] {
        disk.fail_next(OpKind::Write, kind);
        // Zeros go ahead sooner or later.
        let refused = (0..20).find_map(|_| run.append(&[1; 1000]).err()).unwrap();
        assert_eq!(refused.is_disk_full(), full, "{refused}");
        assert!(full || matches!(refused, Error::Io { .. }), "{refused}");
        let before = log.run("run").unwrap().records;
        assert_eq!(run.append(b"after").unwrap().seq.0, before);
    }
    assert!(log.verify().unwrap().is_clean());
    let all = log.run("run").unwrap().records;
    drop(run);
    drop(log);
    let image = MemoryStorage::from_bytes(disk.image());
    let log = options(TailWriter::Pwrite).open_storage(Arc::new(image)).unwrap();
    assert_eq!(log.trace("run").unwrap().map(Result::unwrap).count() as u64, all);
}

#[test]
fn a_failed_store_ends_all_writing() {
    let disk = SimDisk::new();
    let log = options(TailWriter::Mapped).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let _ = run.append(b"whole").unwrap();
    disk.fail_next(OpKind::Store, ErrorKind::Other);
    assert!(matches!(run.append(b"torn"), Err(Error::Io { .. })));
    assert!(matches!(run.append(b"more"), Err(Error::Poisoned)));
    assert!(matches!(log.sync(), Err(Error::Poisoned)));
    assert_eq!(log.trace("run").unwrap().map(Result::unwrap).count(), 1);
}

#[test]
fn a_ticket_of_a_stored_record_is_durable_after_a_sync_and_not_before() {
    let disk = SimDisk::new();
    let log = options(TailWriter::Mapped).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let appended = run.append(b"record").unwrap();
    assert!(!appended.ticket.is_durable());
    let count = |image: Vec<u8>| {
        let storage = Arc::new(MemoryStorage::from_bytes(image));
        let log = options(TailWriter::Auto).open_storage(storage).unwrap();
        log.run("run").unwrap().records
    };
    assert_eq!(count(disk.durable()), 0);
    assert_eq!(count(disk.image()), 1);
    appended.ticket.wait().unwrap();
    assert!(appended.ticket.is_durable());
    assert_eq!(count(disk.durable()), 1);
    assert!(disk.len().unwrap() > 0);
}

#[test]
fn threads_that_append_without_a_pause_lose_nothing_and_each_keeps_its_order() {
    const THREADS: u64 = 4;
    const RECORDS: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let log = Options::new().create(folder.path().join("turns.runlog")).unwrap();
    let shared = log.start_run("agent", "shared", ()).unwrap();
    let lsns: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (log, shared) = (&log, &shared);
                scope.spawn(move || {
                    let own = log.start_run("agent", &format!("own-{thread}"), ()).unwrap();
                    let append = |number: u64| {
                        let payload = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                        let run = if number % 8 == 0 { shared } else { &own };
                        run.append(&payload).unwrap().lsn.0
                    };
                    (0..RECORDS).map(append).collect::<Vec<_>>()
                })
            })
            .collect();
        let lsns: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(lsns.iter().all(|lsns| lsns.is_sorted()), "a thread's appends are in its order");
        lsns.concat()
    });
    let different: std::collections::BTreeSet<_> = lsns.iter().collect();
    assert_eq!(different.len() as u64, THREADS * RECORDS);
    let numbers = |run: &str, thread: u64| -> Vec<u64> {
        let payloads = log.trace(run).unwrap().map(|record| record.unwrap().payload().to_vec());
        let words = payloads.map(|payload| {
            let (thread, number) = payload.split_at(8);
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            (word(thread), word(number))
        });
        words.filter(|words| words.0 == thread).map(|words| words.1).collect()
    };
    for thread in 0..THREADS {
        let (in_shared, in_own): (Vec<u64>, Vec<u64>) = (0..RECORDS).partition(|no| no % 8 == 0);
        assert_eq!(numbers("shared", thread), in_shared);
        assert_eq!(numbers(&format!("own-{thread}"), thread), in_own);
    }
}
