//! Deferred calls, whose callers wait for the disk themselves.
//!
//! The syncs of the store wait at a gate. While it is shut, each call must return, and its answer
//! must wait.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};

use runlog::storage::MemoryStorage;
use runlog::{
    Allow, Batch, Durability, Error, Expected, Metadata, NewRecord, Options, Outcome, Pending,
    Retention, Rule, RunLog, RunRef, RunStatus,
};
use runlog_sim::OpKind;

use crate::support::background::Background;
use crate::support::tap::Tap;
use crate::support::tasks::block_on;

/// So long that only a thread that is never woken waits for it.
const NEVER: Duration = Duration::from_secs(20);

/// A gate at which syncs wait while it is shut, and fail once it is broken.
#[derive(Debug, Default)]
struct Gated {
    gate: Mutex<Gate>,
    changed: Condvar,
    syncs: AtomicU64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Shut,
    Broken,
}

impl Gated {
    /// A storage in memory behind the gate.
    fn storage(self: &Arc<Self>) -> Arc<Tap> {
        let gated = Arc::clone(self);
        Tap::new(Arc::new(MemoryStorage::new()), move |call| {
            if call.kind == OpKind::Sync { gated.sync() } else { Ok(()) }
        })
    }

    fn sync(&self) -> io::Result<()> {
        let gate = self.gate.lock().unwrap();
        let gate = self.changed.wait_while(gate, |gate| *gate == Gate::Shut).unwrap();
        self.syncs.fetch_add(1, Ordering::Relaxed);
        if *gate == Gate::Broken { Err(io::Error::other("a broken disk")) } else { Ok(()) }
    }

    fn set(&self, gate: Gate) {
        *self.gate.lock().unwrap() = gate;
        self.changed.notify_all();
    }

    /// Shuts the gate until the guard is dropped: a failing test must not wait for it for ever.
    fn shut(&self) -> OpenAgain<'_> {
        self.set(Gate::Shut);
        OpenAgain(self)
    }
}

struct OpenAgain<'g>(&'g Gated);

impl Drop for OpenAgain<'_> {
    fn drop(&mut self) {
        if *self.0.gate.lock().unwrap() == Gate::Shut {
            self.0.set(Gate::Open);
        }
    }
}

/// A store with threads and one run that has ended, and its storage.
fn open() -> (RunLog, Arc<Gated>) {
    let storage = Arc::new(Gated::default());
    let options = Options::new().sync_interval(None);
    let log = options.create_storage(storage.storage()).unwrap();
    for run in ["ended", "held"] {
        let run = log.start_run("agent", run, ()).unwrap();
        let _ = run.end(&Outcome::completed()).unwrap();
    }
    log.docs().put("space", "old", &NewRecord::new(b"0")).unwrap();
    log.sync().unwrap();
    (log, storage)
}

/// Whether a poll finds no answer yet.
fn is_waiting<T>(pending: &mut Pending<T>) -> bool {
    pin!(pending).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// What each call that makes something durable does, with its answer as text.
type Call = (&'static str, fn(&RunLog) -> Pending<String>);

fn say<T: core::fmt::Debug + Send + 'static>(given: Pending<T>) -> Pending<String> {
    given.map(|answer| format!("{answer:?}"))
}

const CALLS: [Call; 14] = [
    ("start_run", |log| say(log.deferred().start_run("agent", "new", ()))),
    ("append_to", |log| {
        let record = NewRecord::new(b"1").durability(Durability::Disk);
        say(log.deferred().append_to("agent", "new", &record, Allow::nothing()))
    }),
    ("append_batch_to", |log| {
        let records = [NewRecord::new(b"2"), NewRecord::new(b"3").durability(Durability::Disk)];
        say(log.deferred().append_batch_to("agent", "new", &records, Allow::nothing()))
    }),
    ("append", |log| say(log.writer("new").unwrap().deferred().append(b"4"))),
    ("append_json", |log| say(log.writer("new").unwrap().deferred().append_json("5"))),
    ("append_batch", |log| {
        say(log.writer("new").unwrap().deferred().append_batch(&[NewRecord::new(b"6")]))
    }),
    ("end", |log| say(log.writer("new").unwrap().deferred().end(&Outcome::completed()))),
    ("end_run", |log| {
        say(log.deferred().end_run("agent", "new", &Outcome::completed(), Allow::nothing()))
    }),
    ("hold", |log| say(log.deferred().hold("held", "audit"))),
    ("release", |log| say(log.deferred().release("held"))),
    ("delete_run", |log| say(log.deferred().delete_run("ended"))),
    ("put", |log| say(log.deferred().put("space", "key", &NewRecord::new(b"1")))),
    ("put_if", |log| {
        say(log.deferred().put_if("space", "once", &NewRecord::new(b"1"), Expected::Absent))
    }),
    ("delete", |log| say(log.deferred().delete("space", "old"))),
];

#[test]
fn no_deferred_call_waits_for_a_sync_and_each_answer_does() {
    let (log, storage) = open();
    let _open_again = storage.shut();
    let mut given: Vec<_> = CALLS.iter().map(|(name, call)| (*name, call(&log))).collect();
    // All of the work is done, and other calls see it.
    assert_eq!(log.run("new").unwrap().records, 6);
    assert_eq!(log.run("new").unwrap().status, RunStatus::Completed);
    assert!(log.run("ended").unwrap_err().is_not_found());
    assert!(log.docs().get("space", "old").unwrap().is_none());
    for (name, pending) in &mut given {
        assert!(!pending.is_durable() && is_waiting(pending), "{name}");
    }
    let before = storage.syncs.load(Ordering::Relaxed);
    storage.set(Gate::Open);
    for (name, pending) in given {
        let _ = block_on(pending).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let syncs = storage.syncs.load(Ordering::Relaxed) - before;
    assert!(syncs <= 4, "{syncs} syncs for all of them");
    log.close().unwrap();
}

#[test]
fn a_refusal_waits_for_what_it_rests_on_and_others_do_not() {
    let (log, storage) = open();
    let _open_again = storage.shut();
    let put = || log.deferred().put_if("s", "k", &NewRecord::new(b"1"), Expected::Absent);
    let (first, mut second) = (put(), put());
    assert!(!first.is_durable() && !second.is_durable(), "the first may be lost yet");
    assert!(is_waiting(&mut second));
    let invalid = log.deferred().start_run("", "run", ());
    assert!(invalid.is_durable());
    assert!(block_on(invalid).unwrap_err().is_invalid_input());
    storage.set(Gate::Open);
    first.wait().unwrap();
    assert!(block_on(second).unwrap_err().is_conflict());
}

#[test]
fn a_run_goes_on_before_its_start_is_on_the_disk() {
    let (log, storage) = open();
    let _open_again = storage.shut();
    let (run, started) = log.deferred().start_run("agent", "run", Metadata::json(b"{}")).now();
    let step = run.unwrap().deferred().append(b"step");
    assert!(!started.is_durable() && !step.is_durable());
    storage.set(Gate::Open);
    assert_eq!(step.wait().unwrap().seq.0, 0);
    assert!(started.is_durable(), "the log is durable as a prefix");
}

#[test]
fn deferred_batches_are_done_as_a_whole() {
    let (log, storage) = open();
    let _open_again = storage.shut();
    let mut batch = Batch::new();
    batch.put_if("space", "new", NewRecord::new(b"1"), Expected::Absent).delete("space", "old");
    let done = log.deferred().commit(&batch);
    assert!(!done.is_durable());
    storage.set(Gate::Open);
    let done = done.wait().unwrap();
    assert!(done.ticket.is_durable() && done.versions.len() == 2);
}

#[test]
fn poison_and_close_wake_all_that_is_pending() {
    for broken in [true, false] {
        let (log, storage) = open();
        let _open_again = storage.shut();
        let given: Vec<_> = CALLS.iter().map(|(name, call)| (*name, call(&log))).collect();
        let waiting: Vec<_> = given
            .into_iter()
            .map(|(name, pending)| std::thread::spawn(move || (name, block_on(pending))))
            .collect();
        storage.set(if broken { Gate::Broken } else { Gate::Open });
        let closed = log.close();
        assert_eq!(closed.is_err(), broken);
        for thread in waiting {
            let (name, told) = thread.join().unwrap();
            assert_eq!(told.is_err(), broken, "{name}: {told:?}");
        }
    }
}

#[test]
fn a_store_without_threads_syncs_when_an_answer_is_awaited() {
    let storage = Arc::new(Gated::default());
    let options = Options::new().background(false);
    let log = options.create_storage(storage.storage()).unwrap();
    let before = storage.syncs.load(Ordering::Relaxed);
    let run = log.deferred().start_run("agent", "run", ());
    let put = log.deferred().put("s", "k", &NewRecord::new(b"1"));
    assert_eq!(storage.syncs.load(Ordering::Relaxed), before);
    let run = block_on(run).unwrap();
    assert!(put.is_durable(), "one sync for both");
    let _ = block_on(put).unwrap();
    assert_eq!(storage.syncs.load(Ordering::Relaxed), before + 1);
    let ended = run.deferred().end(&Outcome::completed());
    ended.wait().unwrap();
    let again = log.deferred().append_to("agent", "run", &NewRecord::new(b""), Allow::nothing());
    assert!(matches!(again.wait(), Err(Error::RunEnded { .. })));
    assert!(block_on(log.deferred().delete_run(RunRef::from("run"))).is_ok());
}

#[test]
fn an_ambiguous_id_is_no_final_refusal_while_a_power_loss_can_make_it_clear() {
    let (log, storage) = open();
    let _open_again = storage.shut();
    let second = log.deferred().start_run("another agent", "held", ());
    let refused = log.deferred().hold("held", "audit");
    assert!(!refused.is_durable(), "the second run may be lost yet");
    storage.set(Gate::Open);
    assert!(matches!(refused.wait(), Err(Error::Ambiguous { .. })));
    assert!(second.is_durable());
}

#[test]
fn deferred_calls_let_memory_grow_no_further_than_four_times_as_far_as_others() {
    // No step of the background work ever runs.
    let segments_behind = |deferred: bool| {
        let idle = Arc::new(Background::default());
        let options = Options::new().extent_size(64 << 10).scheduler(idle);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        let mut most = 0;
        for _ in 0..16 * 200 {
            let record = NewRecord::new(&[1; 4000]);
            if deferred {
                let _ = run.deferred().append_record(&record).now().0.unwrap();
            } else {
                let _ = run.append_record(&record).unwrap();
            }
            let stats = log.stats().unwrap();
            let applied = stats.index_applied.map_or(0, |segment| segment.0);
            most = most.max(stats.end.segment.0 - applied);
        }
        most
    };
    let (others, deferred) = (segments_behind(false), segments_behind(true));
    assert!(others < 40 && deferred > others && deferred < 4 * 40, "{others}, {deferred}");
}

#[test]
fn an_interval_without_an_end_leaves_the_thread_that_syncs_alive() {
    let (over, is_over) = channel();
    std::thread::spawn(move || {
        let options = Options::new().sync_interval(Some(Duration::MAX));
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        for _ in 0..5 {
            // The thread looks at the interval as soon as the first of them is there.
            for _ in 0..1000 {
                let _ = run.append(b"step").unwrap();
            }
            let _ = block_on(run.deferred().append(b"last")).unwrap();
        }
        over.send(()).unwrap();
    });
    is_over.recv_timeout(NEVER).expect("each answer came");
}

#[test]
fn what_an_eviction_leaves_out_needs_no_other_eviction_after_a_power_loss() {
    let (log, _storage) = open();
    let gone = log.deferred().delete_run("ended");
    assert!(!gone.is_durable());
    let evicted = log.evict(&[("ended".into(), Rule::Deleted)]).unwrap();
    assert!(evicted.plan.evict.is_empty() && gone.is_durable());
    let second = log.deferred().start_run("another agent", "held", ());
    assert!(!second.is_durable());
    let refused = log.evict(&[("held".into(), Rule::Deleted)]);
    assert!(matches!(refused, Err(Error::Ambiguous { .. })) && second.is_durable());
    let gone = log.deferred().delete_run(("agent", "held"));
    assert!(!gone.is_durable());
    let collected = log.gc(&Retention::new().keep_newest(1)).unwrap();
    assert!(collected.plan.evict.is_empty() && gone.is_durable());
}
