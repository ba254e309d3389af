//! Closing releases the file and its lock, even while other values refer to the store, and keeps
//! the bytes that were handed out.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use runlog::storage::{FileStorage, MemoryStorage};
use runlog::{
    Allow, Error, NewRecord, Options, Outcome, Payload, Record, Result, RunLog, RunQuery,
};
use runlog_sim::{OpKind, SimDisk};
use tempfile::TempDir;

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

/// The next owner of the file deletes all runs, frees their space, and writes others.
fn overwrite(path: &Path) {
    let log = options().open_existing(path).unwrap();
    assert!(log.recovery_report().clean);
    for run in 0..20 {
        log.delete_run(&*format!("run-{run}")).unwrap();
    }
    log.docs().delete("documents", "one").unwrap();
    if log.run("open").is_ok() {
        log.end_run("agent", "open", &Outcome::completed(), Allow::nothing()).unwrap();
        assert_eq!(log.erase_run("open").unwrap().pinned_extents, 0);
    }
    log.compact().unwrap();
    log.reclaim().unwrap();
    for run in 0..40 {
        let writer = log.start_run("other", &format!("run-{run}"), ()).unwrap();
        let _ = writer.append(&[b'#'; 5000]).unwrap();
        writer.end(&Outcome::completed()).unwrap();
    }
    log.close().unwrap();
}

#[test]
fn closing_releases_file_and_lock_whatever_the_program_holds_and_leaves_what_was_handed_out() {
    for background in [true, false] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().canonicalize().unwrap().join("store");
        let log = options().background(background).create(&path).unwrap();
        fill(&log);
        let held = hold(&log);
        assert!(held.payloads.iter().any(|payload| payload.2.is_view()) || cfg!(not(unix)));
        log.close().unwrap();
        #[cfg(target_os = "linux")]
        assert!(!is_in_use(&path));
        overwrite(&path);
        held.assert_what_was_handed_out();
        fs::remove_file(&path).unwrap();
        held.assert_closed();
    }
}

#[test]
fn the_bytes_of_a_record_that_is_looked_at_stay_while_another_thread_closes_the_store() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().create(&path).unwrap();
    fill(&log);
    let mut trace = log.trace("run-2").unwrap();
    trace.next_view().unwrap().unwrap();
    let view = trace.next_view().unwrap().unwrap();
    let before = view.payload().as_ptr();
    thread::scope(|scope| {
        scope.spawn(|| log.clone().close().unwrap());
    });
    overwrite(&path);
    assert_eq!(view.payload(), bytes(2, 1));
    assert_eq!(view.payload().as_ptr(), before);
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
            overwrite(&path);
        });
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
fn dropping_the_last_handle_releases_the_file_while_records_live() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("store");
    let log = options().create(&path).unwrap();
    fill(&log);
    let payload = log.trace("run-4").unwrap().next().unwrap().unwrap().into_payload();
    let trace = log.trace("run-4").unwrap();
    drop(log);
    overwrite(&path);
    assert_eq!(*payload, *bytes(4, 0));
    drop(trace);
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
fn handles_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<RunLog>();
    check::<FileStorage>();
    check::<Payload>();
}

#[test]
fn a_weak_handle_of_a_store_that_is_being_closed_answers_once_it_is_closed() {
    let held = Held::new();
    let log = options().background(false).create_storage(Arc::new(held.clone())).unwrap();
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
