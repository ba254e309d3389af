//! Closing releases the file and its lock, unless the program holds views of the file: these stay
//! readable, and the last one releases the lock.

use core::cell::RefCell;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use runlog::storage::MemoryStorage;
use runlog::{
    Compression, Error, NewRecord, Options, Outcome, Payload, Record, Result, RunLog, RunQuery,
};
use runlog_sim::{OpKind, SimDisk};
use tempfile::TempDir;

use crate::support::background::Background;
use crate::support::held::Held;

const EXTENT: u64 = 64 << 10;

fn options() -> Options {
    Options::new().extent_size(EXTENT)
}

/// What a record of a run is.
fn bytes(run: usize, number: usize) -> Vec<u8> {
    format!("{run}.{number}.").into_bytes().repeat(100)
}

/// Runs that take several segments, and one document.
fn fill(log: &RunLog) {
    for run in 0..20 {
        let writer = log.start_run("agent", &format!("run-{run}"), ()).unwrap();
        for number in 0..20 {
            let _ = writer.append(&bytes(run, number)).unwrap();
        }
        writer.end(&Outcome::completed()).unwrap();
    }
    log.docs().put("documents", "one", &NewRecord::new(&bytes(7, 7))).unwrap();
}

fn is_closed<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Closed))
}

/// Whether this process has the file open or mapped.
#[cfg(target_os = "linux")]
fn is_in_use(path: &Path) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let is_mapped = maps.lines().any(|line| line.ends_with(path.to_str().unwrap()));
    let mut open = fs::read_dir("/proc/self/fd").unwrap();
    is_mapped || open.any(|fd| fs::read_link(fd.unwrap().path()).is_ok_and(|to| to == path))
}

/// Every value of a store that a program can hold.
struct Holds {
    log: RunLog,
    writer: runlog::RunWriter,
    ticket: runlog::Ticket,
    records: Vec<(usize, usize, Record)>,
    payloads: Vec<(usize, usize, Payload)>,
    trace: runlog::Trace,
}

fn hold(log: &RunLog) -> Holds {
    let writer = log.start_run("agent", "open", ()).unwrap();
    let ticket = writer.append(&bytes(99, 0)).unwrap().ticket;
    let (mut records, mut payloads) = (Vec::new(), Vec::new());
    for run in [0, 3, 19] {
        let read = log.trace(&*format!("run-{run}")).unwrap();
        let kept = |(number, record): (usize, Result<Record>)| (run, number, record.unwrap());
        records.extend(read.enumerate().map(kept).step_by(3));
    }
    let document = log.docs().get("documents", "one").unwrap().unwrap();
    payloads.push((7, 7, document.into_payload()));
    let of_tail = log.trace("open").unwrap().next().unwrap().unwrap();
    payloads.push((99, 0, of_tail.into_payload()));
    let mut trace = log.trace("run-5").unwrap();
    let first = trace.next().unwrap().unwrap();
    payloads.push((5, 0, first.into_payload()));
    Holds { log: log.clone(), writer, ticket, records, payloads, trace }
}

impl Holds {
    fn assert_what_was_handed_out(&self) {
        for (run, number, record) in &self.records {
            assert_eq!(record.payload(), bytes(*run, *number), "{run} {number}");
        }
        for (run, number, payload) in &self.payloads {
            assert_eq!(**payload, *bytes(*run, *number), "{run} {number}");
        }
    }

    /// All of it reports that the store is closed, or shows the bytes that were handed out.
    fn assert_closed(mut self) {
        self.assert_what_was_handed_out();
        assert!(is_closed(self.log.trace("run-1")));
        assert!(is_closed(self.log.docs().get("documents", "one")));
        assert!(is_closed(self.writer.append(b"more")));
        assert!(self.ticket.is_durable());
        self.ticket.wait().unwrap();
        assert!(is_closed(self.trace.next().unwrap()));
        assert!(self.trace.next().is_none() && self.trace.next_back().is_none());
    }
}

#[test]
fn after_closing_views_stay_readable_and_hold_the_file_until_the_last_one_is_dropped() {
    for background in [true, false] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("store");
        let log = options().background(background).create(&path).unwrap();
        fill(&log);
        let held = hold(&log);
        let live_views = log.close().unwrap().live_views;
        assert_eq!(live_views > 0, held.payloads.iter().any(|payload| payload.2.is_view()));
        if live_views > 0 {
            let refused = options().open(&path).unwrap_err();
            assert!(refused.is_busy());
            assert!(
                matches!(&refused, Error::Locked { live_views: told, .. } if *told == live_views)
            );
        }
        held.assert_closed();
        assert!(options().open(&path).unwrap().recovery_report().clean);
    }
}

#[test]
fn closing_releases_the_file_at_once_whatever_else_the_program_holds() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().canonicalize().unwrap().join("store");
    let log = options().create(&path).unwrap();
    fill(&log);
    let Holds { log: other, writer, ticket, records, payloads, trace } = hold(&log);
    drop((records, payloads, trace));
    assert_eq!(log.close().unwrap().live_views, 0);
    #[cfg(target_os = "linux")]
    assert!(!is_in_use(&path));
    assert!(options().open(&path).unwrap().recovery_report().clean);
    assert!(is_closed(other.trace("run-1")) && is_closed(writer.append(b"more")));
    ticket.wait().unwrap();
}

#[test]
fn a_leaked_payload_blocks_neither_closing_nor_a_weak_handle() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().create(&path).unwrap();
    fill(&log);
    let payload = log.trace("run-4").unwrap().next().unwrap().unwrap().into_payload();
    let weak = log.downgrade();
    drop(log);
    assert!(weak.upgrade().is_none() && !weak.is_open());
    assert!(!payload.is_view() || options().open(&path).unwrap_err().is_busy());
    assert_eq!(*payload, *bytes(4, 0));
    drop(payload);
    assert!(options().open(&path).unwrap().recovery_report().clean);
}

#[test]
fn the_bytes_of_a_record_that_is_looked_at_stay_while_another_thread_closes_the_store() {
    let folder = TempDir::new().unwrap();
    let log = options().create(folder.path().join("store")).unwrap();
    fill(&log);
    let mut trace = log.trace("run-2").unwrap();
    trace.next_view().unwrap().unwrap();
    let view = trace.next_view().unwrap().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| log.clone().close().unwrap());
    });
    assert_eq!(view.payload(), bytes(2, 1));
    assert!(is_closed(trace.next_view().unwrap()));
    assert!(trace.next_view().is_none());
    assert!(is_closed(log.trace("run-2")));
}

#[test]
fn what_reads_while_the_store_is_closed_answers_right_or_says_that_it_is_closed() {
    for round in 0..30 {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("store");
        let log = options().create(&path).unwrap();
        fill(&log);
        thread::scope(|scope| {
            for thread in 0..3 {
                let log = log.clone();
                scope.spawn(move || {
                    let (mut kept, mut run) = (Vec::new(), thread);
                    while log.stats().is_ok() {
                        run = (run + 7) % 20;
                        kept.extend(read(&log, run));
                    }
                    // Everything that was handed out is still there.
                    for (run, number, payload) in kept {
                        assert_eq!(*payload, *bytes(run, number), "round {round}");
                    }
                });
            }
            // Lets them reach different places.
            while log.trace("run-0").unwrap().count() < 20 {}
            for _ in 0..round {
                let _ = log.run("run-1").unwrap();
            }
            log.clone().close().unwrap();
        });
        assert!(options().open(&path).unwrap().recovery_report().clean);
    }
}

/// Reads a run and a document, and checks what comes before the store is closed.
fn read(log: &RunLog, run: usize) -> Option<(usize, usize, Payload)> {
    let id = format!("run-{run}");
    match log.run(&*id) {
        Ok(summary) => assert_eq!(summary.records, 20),
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    match log.docs().get("documents", "one") {
        Ok(document) => assert_eq!(document.unwrap().payload(), bytes(7, 7)),
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    match log.list_runs(&RunQuery::new().agent("agent").limit(100)) {
        Ok(page) => assert_eq!(page.runs.len(), 20),
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    let mut last = None;
    match log.trace(&*id) {
        Ok(trace) => {
            for (number, record) in trace.enumerate() {
                match record {
                    Ok(record) => last = Some((run, number, record.into_payload())),
                    Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
                }
            }
        }
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    last
}

#[test]
fn a_close_that_fails_releases_the_file_too_and_the_next_one_answers_the_same() {
    let disk = SimDisk::untracked(Vec::new());
    let log = options().background(false).create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let ticket = run.append(b"acknowledged").unwrap().ticket;
    let again = log.clone();
    disk.fail_from(disk.op_count(), ErrorKind::Other);
    let first = log.close().unwrap_err();
    disk.clear_faults();
    assert_eq!(again.clone().close().unwrap_err().to_string(), first.to_string());
    assert!(ticket.wait().is_err() && run.append(b"more").is_err());
    assert!(again.trace("run").is_err());
    let log = options().background(false).open_storage(Arc::new(disk)).unwrap();
    let records: Vec<_> = log.trace("run").unwrap().map(Result::unwrap).collect();
    assert_eq!(records.iter().map(Record::payload).collect::<Vec<_>>(), [b"acknowledged"]);
}

#[test]
fn closing_a_store_in_memory_leaves_what_was_handed_out() {
    let storage = Arc::new(MemoryStorage::new());
    let log = options().create_storage(storage).unwrap();
    fill(&log);
    let held = hold(&log);
    log.close().unwrap();
    held.assert_closed();
}

#[test]
fn a_weak_handle_of_a_store_that_is_being_closed_answers_once_it_is_closed() {
    let held = Held::new();
    let log = options().background(false).create_storage(held.storage()).unwrap();
    fill(&log);
    let (weak, other) = (log.downgrade(), log.clone());
    let holder = held.hold(OpKind::Sync);
    // The disk holds threads with this name.
    let closes = thread::Builder::new().name("runlog-sync".to_owned());
    let closes = closes.spawn(move || log.close().unwrap()).unwrap();
    holder.wait();
    let (answers, answered) = channel();
    let asks = thread::spawn(move || answers.send(weak.upgrade().is_some()).unwrap());
    let early = answered.recv_timeout(Duration::from_millis(100));
    assert!(early.is_err(), "it answered while the store was being closed: {early:?}");
    holder.let_go();
    closes.join().unwrap();
    asks.join().unwrap();
    assert!(!answered.recv().unwrap());
    assert!(other.downgrade().upgrade().is_none());
}

thread_local! {
    /// A store that is closed when its thread ends.
    static KEPT: RefCell<Option<RunLog>> = const { RefCell::new(None) };
}

/// Closing moves what lives in mostly dead segments, where the codec of the thread may be gone.
#[test]
fn a_compressed_store_that_a_thread_keeps_is_compacted_when_the_thread_ends() {
    let idle = options().index(false).scheduler(Arc::new(Background::default()));
    let options = idle.compression(Compression::Zstd { level: 1 });
    let disk = SimDisk::untracked(Vec::new());
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    thread::spawn(move || {
        for number in 0..100 {
            let run = log.start_run("agent", &number.to_string(), ()).unwrap();
            for record in 0_u32..10 {
                let _ = run.append(&record.to_le_bytes().repeat(1000)).unwrap();
            }
            let _ = run.end(&Outcome::completed()).unwrap();
            // The codec is used, and so it is dropped before the store.
            if number == 10 {
                KEPT.set(Some(log.clone()));
                let _ = log.compact().unwrap();
            }
        }
        log.checkpoint().unwrap();
        for number in (0..100).filter(|number| number % 10 != 0) {
            log.delete_run(number.to_string().as_str()).unwrap();
        }
        log.checkpoint().unwrap();
    })
    .join()
    .unwrap();
    let opened = options.open_storage(Arc::new(disk)).unwrap();
    assert!(opened.recovery_report().clean);
    let stats = opened.stats().unwrap();
    assert!(stats.sealed_segments < 10, "it was compacted: {stats:?}");
    for number in (0..100).step_by(10) {
        let records: Vec<_> = opened.trace(number.to_string().as_str()).unwrap().collect();
        assert!(records.len() == 10 && records.iter().all(Result::is_ok));
    }
}
