//! Reads that wait for the disk do not delay appends.
//!
//! The store has no index and no views, so that a query reads directories and frames by system
//! calls. A storage blocks reads while its gate is shut: a thread runs a query, and once it waits
//! for the disk, the test appends, or closes the store, after which the answer must be that it is
//! closed.

use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Durability, Error, Expected, Metadata, NewRecord, Options, Outcome, Result, Retention,
    Rule, RunLog, RunQuery, RunStatus, RunWriter, TailWriter,
};

use crate::support::tap::Tap;

/// How long something takes that never happens.
const FOREVER: Duration = Duration::from_secs(60);

/// What the reads of a store wait for.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    shut: bool,
    /// How many reads wait.
    waiting: usize,
    /// A thread that never waits.
    exempt: Option<ThreadId>,
    /// Reads fail.
    fails: bool,
}

impl Gate {
    fn shut(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
        self.changed.notify_all();
    }

    /// Returns once the gate is open.
    fn pass(&self) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.fails {
            return Err(std::io::Error::other("no read"));
        }
        if state.shut && state.exempt != Some(std::thread::current().id()) {
            state.waiting += 1;
            self.changed.notify_all();
            state = self.changed.wait_while(state, |state| state.shut).unwrap();
            state.waiting -= 1;
        }
        Ok(())
    }

    /// Returns once a read waits.
    fn await_reader(&self, question: &str) {
        let state = self.state.lock().unwrap();
        let (state, _) =
            self.changed.wait_timeout_while(state, FOREVER, |state| state.waiting == 0).unwrap();
        assert!(state.waiting > 0, "{question}: nothing was read");
    }
}

fn options() -> Options {
    Options::new()
        .extent_size(64 << 10)
        .index(false)
        .background(false)
        .tail_writer(TailWriter::Pwrite)
}

/// A store with runs and documents in several full segments, with nothing in memory and no
/// directory read yet, and a run in progress.
fn store() -> (Arc<Gate>, RunLog, RunWriter) {
    let gate = Arc::new(Gate::default());
    let passes = Arc::clone(&gate);
    let storage = Tap::new(Arc::new(MemoryStorage::new()), move |call| {
        if call.is_read() { passes.pass() } else { Ok(()) }
    });
    let log = options().create_storage(storage).unwrap();
    let new = log.start_run("agent", "new", ()).unwrap();
    let quick = Durability::Process;
    for number in 0..6 {
        let metadata = Metadata::new(b"metadata").durability(quick);
        let run = log.start_run("agent", &format!("old-{number}"), metadata).unwrap();
        for _ in 0..4 {
            let _ = run.append(&[7; 6_000]).unwrap();
        }
        let _ = run.end(&Outcome::completed().durability(quick)).unwrap();
        log.docs().put("documents", &format!("key-{number}"), &NewRecord::new(b"value")).unwrap();
    }
    // A directory that cannot be read now is read when it is asked.
    gate.state.lock().unwrap().fails = true;
    log.checkpoint().unwrap();
    gate.state.lock().unwrap().fails = false;
    (gate, log, new)
}

/// Runs a query while no read passes, and appends to another run once the query waits.
fn appends_go_on_during(question: &str, ask: impl FnOnce(&RunLog) + Send + 'static) {
    let (gate, log, run) = store();
    gate.shut(true);
    let asking = std::thread::spawn({
        let log = log.clone();
        move || ask(&log)
    });
    gate.await_reader(question);
    let (told, appended) = channel();
    let appending = std::thread::spawn(move || {
        for _ in 0..100 {
            let _ = run.append(b"a record").unwrap();
        }
        told.send(()).unwrap();
    });
    let in_time = appended.recv_timeout(FOREVER);
    gate.shut(false);
    assert!(in_time.is_ok(), "{question}: appends wait for it");
    appending.join().unwrap();
    asking.join().unwrap();
}

#[test]
fn appends_go_on_while_a_question_waits_for_the_disk() {
    appends_go_on_during("agent_of", |log| {
        assert_eq!(log.agent_of("old-1").unwrap().as_str(), "agent");
    });
    appends_go_on_during("run", |log| assert_eq!(log.run("old-1").unwrap().records, 4));
    appends_go_on_during("trace", |log| assert_eq!(log.trace("old-1").unwrap().count(), 4));
    appends_go_on_during("metadata", |log| {
        assert_eq!(log.metadata("old-1").unwrap().unwrap().payload(), b"metadata");
    });
    appends_go_on_during("outcome", |log| assert!(log.outcome("old-1").unwrap().is_some()));
    appends_go_on_during("a document", |log| {
        assert_eq!(log.docs().get("documents", "key-1").unwrap().unwrap().payload(), b"value");
    });
    appends_go_on_during("the version of a document", |log| {
        assert!(log.docs().version_of("documents", "key-1").unwrap().is_some());
    });
    appends_go_on_during("a list of documents", |log| {
        assert_eq!(log.docs().list("documents", "key", None, 10).unwrap().documents.len(), 6);
    });
    appends_go_on_during("a list of runs", |log| {
        assert!(log.list_runs(&RunQuery::new().agent("agent").limit(10)).unwrap().runs.len() >= 6);
    });
    appends_go_on_during("all runs", |log| {
        assert!(log.list_runs(&RunQuery::new().limit(10)).unwrap().runs.len() >= 6);
    });
    appends_go_on_during("agents", |log| {
        assert_eq!(log.agents(None, 10).unwrap().len(), 1);
    });
}

#[test]
fn appends_go_on_while_a_call_that_writes_waits_for_the_disk() {
    appends_go_on_during("a start again", |log| {
        let again = log.start_run("agent", "old-1", Metadata::new(b"metadata"));
        assert!(again.is_ok(), "{again:?}");
    });
    appends_go_on_during("a start with other metadata", |log| {
        let other = log.start_run("agent", "old-1", Metadata::new(b"other"));
        assert!(matches!(other, Err(Error::RunExists { .. })), "{other:?}");
    });
    appends_go_on_during("a writer", |log| {
        let writer = log.writer("old-1");
        assert!(matches!(writer, Err(Error::RunEnded { .. })), "{writer:?}");
    });
    appends_go_on_during("an append by ids", |log| {
        let late = log.append_to("agent", "old-1", &NewRecord::new(b"late"), Allow::nothing());
        assert!(matches!(late, Err(Error::RunEnded { .. })), "{late:?}");
    });
    appends_go_on_during("a document that must be absent", |log| {
        let value = NewRecord::new(b"other");
        let put = log.docs().put_if("documents", "key-1", &value, Expected::Absent);
        assert!(matches!(put, Err(Error::Conflict { .. })), "{put:?}");
    });
    appends_go_on_during("a hold", |log| assert!(log.hold("old-1", "evidence").unwrap()));
    appends_go_on_during("a deletion", |log| {
        let _ = log.delete_run("old-1").unwrap();
    });
}

/// Runs a query while no read passes, and closes the store once the query waits.
fn is_overtaken(question: &str, ask: impl FnOnce(&RunLog) -> Result<()> + Send + 'static) {
    let (gate, log, run) = store();
    drop(run);
    gate.state.lock().unwrap().exempt = Some(std::thread::current().id());
    gate.shut(true);
    let asking = std::thread::spawn({
        let log = log.clone();
        move || ask(&log)
    });
    gate.await_reader(question);
    log.close().unwrap();
    gate.shut(false);
    let answer = asking.join().unwrap();
    assert!(matches!(answer, Err(Error::Closed)), "{question}: {answer:?}");
}

#[test]
fn an_answer_that_comes_after_the_store_was_closed_says_so() {
    is_overtaken("agent_of", |log| log.agent_of("old-1").map(drop));
    is_overtaken("run", |log| log.run("old-1").map(drop));
    is_overtaken("a run that is not there", |log| log.run("none").map(drop));
    is_overtaken("trace", |log| log.trace("old-1").map(drop));
    is_overtaken("metadata", |log| log.metadata("old-1").map(drop));
    is_overtaken("outcome", |log| log.outcome("old-1").map(drop));
    is_overtaken("a document", |log| log.docs().get("documents", "key-1").map(drop));
    is_overtaken("its version", |log| log.docs().version_of("documents", "key-1").map(drop));
    is_overtaken("documents", |log| log.docs().list("documents", "key", None, 10).map(drop));
    is_overtaken("runs", |log| log.list_runs(&RunQuery::new().agent("agent").limit(10)).map(drop));
    is_overtaken("all runs", |log| log.list_runs(&RunQuery::new().limit(10)).map(drop));
    is_overtaken("runs in progress", |log| {
        log.list_runs(&RunQuery::new().status(RunStatus::InProgress).oldest_first().limit(10))
            .map(drop)
    });
    is_overtaken("agents", |log| log.agents(None, 10).map(drop));
    is_overtaken("held runs", |log| log.held_runs().map(drop));
    is_overtaken("stats", |log| log.stats().map(drop));
    is_overtaken("a plan", |log| log.gc_plan(&Retention::new().keep_newest(2)).map(drop));
}

#[test]
fn a_call_that_would_write_after_the_store_was_closed_says_so() {
    is_overtaken("a start", |log| {
        log.start_run("agent", "old-1", Metadata::new(b"other")).map(drop)
    });
    is_overtaken("a writer", |log| log.writer("old-1").map(drop));
    is_overtaken("a record", |log| {
        log.append_to("agent", "old-1", &NewRecord::new(b"late"), Allow::nothing()).map(drop)
    });
    is_overtaken("a document", |log| {
        log.docs().put_if("documents", "key-1", &NewRecord::new(b"x"), Expected::Absent).map(drop)
    });
    is_overtaken("a hold", |log| log.hold("old-1", "evidence").map(drop));
    is_overtaken("a deletion", |log| log.delete_run("old-1").map(drop));
    is_overtaken("an erasure", |log| log.erase_run("old-1").map(drop));
    is_overtaken("of a document", |log| log.docs().erase("documents", "key-1").map(drop));
    is_overtaken("gc", |log| log.gc(&Retention::new().keep_newest(100)).map(drop));
    is_overtaken("evictions", |log| log.evict(&[("none".into(), Rule::Deleted)]).map(drop));
    is_overtaken("compact", |log| log.compact().map(drop));
}
