//! Panics of the embedder's code within the engine: of the storage, an observer, a waker, a clock.
//! They cost no other caller its answer, and no acknowledged record.

use core::pin::pin;
use core::task::{Context, Waker};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Wake;
use std::time::Duration;

use runlog::env::{Clock, Environment};
use runlog::storage::{MemoryStorage, Storage};
use runlog::{
    Activity, Allow, Batch, Compaction, Durability, Expected, NewRecord, Observer, Options,
    Outcome, Phase, RunLog, RunQuery, Timestamp,
};

/// How long something takes that never happens.
const FOREVER: Duration = Duration::from_secs(60);

/// A storage whose syncs wait while a gate is shut, and one of which panics when told.
#[derive(Debug, Default)]
struct Panicky {
    storage: MemoryStorage,
    shut: Mutex<bool>,
    changed: Condvar,
    panics: AtomicBool,
}

impl Panicky {
    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }
}

impl Storage for Panicky {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.storage.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.storage.write_at(offset, data)
    }

    fn sync(&self) -> io::Result<()> {
        let shut = self.shut.lock().unwrap();
        drop(self.changed.wait_while(shut, |shut| *shut).unwrap());
        assert!(!self.panics.swap(false, Ordering::SeqCst), "the test said so");
        self.storage.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.storage.punch(offset, len)
    }
}

fn open() -> (RunLog, Arc<Panicky>) {
    let storage = Arc::new(Panicky::default());
    let options = Options::new().sync_interval(None);
    (options.create_storage(Arc::<Panicky>::clone(&storage)).unwrap(), storage)
}

/// What `ask` answers on a thread of its own.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, told) = channel();
    std::thread::spawn(move || to.send(ask()));
    told.recv_timeout(FOREVER).expect("it waits for ever, or has panicked")
}

#[test]
fn a_panic_within_the_sync_of_one_caller_leaves_no_other_waiting() {
    let (log, storage) = open();
    let run = log.start_run("agent", "run", ()).unwrap();
    let appended = run.append(b"1").unwrap();
    storage.panics.store(true, Ordering::SeqCst);
    let other = log.clone();
    std::thread::spawn(move || other.sync()).join().unwrap_err();
    assert!(log.health().poisoned.is_some());
    let other = log.clone();
    assert!(in_time(move || other.sync()).unwrap_err().is_poisoned());
    assert!(in_time(move || appended.ticket.wait()).unwrap_err().is_poisoned());
    assert!(in_time(move || log.close()).is_err());
}

struct Bad;

impl Wake for Bad {
    fn wake(self: Arc<Self>) {
        panic!("a waker");
    }
}

/// Tells that it was woken.
struct Tells(Mutex<Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

#[test]
fn a_waker_that_panics_costs_no_other_task_its_answer() {
    let (log, storage) = open();
    storage.shut(true);
    let (run, mut bad) = log.deferred().start_run("agent", "run", ()).now();
    let mut good = bad.clone();
    let (to, told) = channel();
    let wakers = [Waker::from(Arc::new(Bad)), Waker::from(Arc::new(Tells(Mutex::new(to))))];
    let mut polls = [&mut bad, &mut good].into_iter().zip(&wakers);
    let waits = polls
        .all(|(ticket, waker)| pin!(ticket).poll(&mut Context::from_waker(waker)).is_pending());
    storage.shut(false);
    assert!(waits);
    assert_eq!(told.recv_timeout(FOREVER), Ok(()));
    drop(run);
    in_time(move || log.close()).unwrap();
}

#[test]
fn a_task_is_woken_although_the_thread_that_syncs_for_it_panics() {
    // A thread that is still starting may happen to look.
    for _ in 0..20 {
        let (log, storage) = open();
        let run = log.start_run("agent", "run", ()).unwrap();
        let mut ticket = run.append(b"1").unwrap().ticket;
        storage.panics.store(true, Ordering::SeqCst);
        let (to, told) = channel();
        let waker = Waker::from(Arc::new(Tells(Mutex::new(to))));
        assert!(pin!(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(told.recv_timeout(FOREVER), Ok(()));
        assert!(ticket.wait().unwrap_err().is_poisoned());
    }
}

/// The waker of a task that owns the store.
struct Owner(Mutex<Option<RunLog>>, Mutex<Sender<()>>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap().take());
        let _ = self.1.lock().unwrap().send(());
    }
}

#[test]
fn a_task_that_owns_the_store_and_goes_when_it_is_woken_closes_it() {
    let (log, storage) = open();
    storage.shut(true);
    let (run, mut started) = log.deferred().start_run("agent", "run", ()).now();
    drop(run);
    let (to, told) = channel();
    let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(log)), Mutex::new(to))));
    let waits = pin!(&mut started).poll(&mut Context::from_waker(&waker)).is_pending();
    drop(waker);
    storage.shut(false);
    assert!(waits);
    assert_eq!(told.recv_timeout(FOREVER), Ok(()));
    let again = Options::new().open_storage(storage).unwrap();
    assert!(again.recovery_report().clean, "it was closed in order");
}

/// Panics whenever it is told something.
#[derive(Debug)]
struct Panics;

impl Observer for Panics {
    fn observe(&self, _: Activity, _: Phase<'_>) {
        panic!("an observer");
    }
}

#[test]
fn an_observer_that_panics_changes_nothing() {
    for threads in [false, true] {
        let storage = Arc::new(MemoryStorage::new());
        let options = Options::new().extent_size(64 << 10).background(threads);
        let watched = options.clone().observer(Arc::new(Panics));
        let log = watched.create_storage(Arc::<MemoryStorage>::clone(&storage)).unwrap();
        let run = log.start_run("agent", "run", ()).unwrap();
        for number in 0_u8..60 {
            let payload = [number; 8000];
            let record = NewRecord::new(&payload).durability(Durability::Disk);
            let _ = run.append_record(&record).unwrap();
        }
        assert!(log.health().is_well());
        // As after a crash.
        let image = MemoryStorage::from_bytes(storage.to_bytes());
        drop(run);
        log.close().unwrap();
        let options = options.environment(Environment::system());
        let again = options.open_storage(Arc::new(image)).unwrap();
        assert!(again.recovery_report().is_clean(), "{:?}", again.recovery_report());
        assert_eq!(again.trace("run").unwrap().count(), 60);
    }
}

#[test]
fn a_panic_while_the_log_goes_on_in_the_next_segment_poisons_the_store() {
    let storage = Arc::new(Panicky::default());
    let options = Options::new().extent_size(64 << 10).background(false);
    let log = options.create_storage(Arc::<Panicky>::clone(&storage)).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let append = || run.append_record(&NewRecord::new(&[1; 8000]));
    let mut told = None;
    for number in 0..60 {
        // Of all this only setting a segment aside syncs.
        storage.panics.store(number >= 20, Ordering::SeqCst);
        match catch_unwind(AssertUnwindSafe(append)) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => told = Some(error),
            Err(_) => assert!(told.is_none(), "one panic"),
        }
    }
    assert!(told.unwrap().is_poisoned());
    assert!(log.health().poisoned.is_some());
}

/// A clock that panics while the test says so.
#[derive(Debug, Default)]
struct Stops {
    now: AtomicBool,
    monotonic: AtomicBool,
}

impl Clock for Stops {
    fn now(&self) -> Timestamp {
        assert!(!self.now.load(Ordering::SeqCst), "the test said so");
        Timestamp(7)
    }

    fn monotonic(&self) -> Duration {
        assert!(!self.monotonic.load(Ordering::SeqCst), "the test said so");
        Duration::ZERO
    }
}

impl Observer for Stops {
    /// The clock panics from within sealing a segment on.
    fn observe(&self, activity: Activity, _: Phase<'_>) {
        self.now.fetch_or(activity == Activity::Seal, Ordering::SeqCst);
    }
}

/// A store without threads, and its clock, which also observes it.
fn with_clock() -> (RunLog, Arc<Stops>) {
    let clock = Arc::<Stops>::default();
    let environment = Environment::system().clock(Arc::<Stops>::clone(&clock));
    let options = Options::new().extent_size(64 << 10).background(false).environment(environment);
    let options = options.observer(Arc::<Stops>::clone(&clock));
    (options.create_storage(Arc::new(MemoryStorage::new())).unwrap(), clock)
}

#[test]
fn a_clock_that_panics_while_an_activity_is_watched_does_not_end_the_process() {
    let (log, clock) = with_clock();
    let run = log.start_run("agent", "run", ()).unwrap();
    let append = || run.append_record(&NewRecord::new(&[1; 8000]));
    let mut appended = 0;
    while let Ok(told) = catch_unwind(AssertUnwindSafe(append)) {
        assert!(told.is_ok() && appended < 20);
        appended += 1;
    }
    assert_eq!(log.health().poisoned.unwrap().at, Timestamp(0), "the clock did not tell");
    clock.now.store(false, Ordering::SeqCst);
    assert!(append().unwrap_err().is_poisoned());
    assert_eq!(log.trace("run").unwrap().count(), appended);
}

#[test]
fn a_monotonic_clock_that_panics_costs_only_how_long_things_took() {
    let (log, clock) = with_clock();
    let run = log.start_run("agent", "run", ()).unwrap();
    clock.monotonic.store(true, Ordering::SeqCst);
    let _ = run.append(b"1").unwrap();
    log.sync().unwrap();
    assert!(log.health().is_well() && log.health().last_sync.is_some());
}

#[test]
fn a_clock_that_panics_within_a_batch_leaves_nothing_of_it() {
    let (log, clock) = with_clock();
    let old = log.docs().put("space", "key", &NewRecord::new(b"old")).unwrap();
    let active = log.stats().unwrap().active_runs;
    clock.now.store(true, Ordering::SeqCst);
    // It has a time of its own, so that only the frames around it ask the clock.
    let new = NewRecord::new(b"new").at(Timestamp(1));
    catch_unwind(AssertUnwindSafe(|| log.docs().put("space", "key", &new))).unwrap_err();
    clock.now.store(false, Ordering::SeqCst);
    assert_eq!(log.stats().unwrap().active_runs, active);
    let found = log.docs().get("space", "key").unwrap().unwrap();
    assert_eq!((found.version(), found.payload()), (old, b"old".as_slice()));
    log.docs().put_if("space", "key", &new, Expected::Version(old)).unwrap();
}

/// A clock that panics once it was asked so many times.
#[derive(Debug)]
struct CountsDown(AtomicI64);

impl Clock for CountsDown {
    fn now(&self) -> Timestamp {
        assert!(self.0.fetch_sub(1, Ordering::SeqCst) != 0, "the test said so");
        Timestamp(7)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
}

/// What can be seen of a store: counts of extents, segments and runs, and what is in it.
fn seen(log: &RunLog) -> String {
    let stats = log.stats().unwrap();
    let extents = (stats.log_extents, stats.reserved_extents, stats.retired_extents);
    let runs: Vec<_> = log.runs(&RunQuery::new()).map(|run| run.unwrap().run).collect();
    let documents = ["key", "short"].map(|key| {
        let found = log.docs().get("space", key).unwrap();
        found.map(|found| (found.version(), found.payload().len()))
    });
    format!("{extents:?} {} {} {runs:?} {documents:?}", stats.active_runs, stats.runs)
}

/// Does something with a clock that panics at its first, second, ... question, until none panics.
/// Then what can be seen is as before, unless that was while a segment was sealed, which poisons
/// the store. Afterwards the same succeeds, and ends as if the clock had never panicked.
fn at_each_question(begin: fn(&RunLog), act: fn(&RunLog), is_whole: bool) {
    let prepared = || {
        let clock = Arc::new(CountsDown(AtomicI64::new(-1)));
        let environment = Environment::system().clock(Arc::<CountsDown>::clone(&clock));
        let options = Options::new().extent_size(1 << 20).background(false).index(false);
        let options = options.compaction(Compaction::new().automatic(false));
        let options = options.environment(environment);
        let log = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        begin(&log);
        (log, clock)
    };
    let (control, _) = prepared();
    act(&control);
    let mut panics = 0;
    for question in 0.. {
        assert!(question < 200);
        let (log, clock) = prepared();
        let before = seen(&log);
        clock.0.store(question, Ordering::SeqCst);
        let done = catch_unwind(AssertUnwindSafe(|| act(&log)));
        if clock.0.swap(-1, Ordering::SeqCst) >= 0 {
            break;
        }
        if log.health().poisoned.is_some() {
            continue;
        }
        // Within a row of chunks, an earlier time does.
        if done.is_err() {
            panics += 1;
            if is_whole {
                assert_eq!(seen(&log), before, "question {question}");
            }
            act(&log);
        }
        let (found, wanted) = (seen(&log), seen(&control));
        let without_versions = |seen: &str| seen.replace(|c: char| c.is_ascii_digit(), "");
        assert_eq!(without_versions(&found), without_versions(&wanted), "question {question}");
        assert!(log.verify().unwrap().is_clean());
        let (found, wanted) = (log.stats().unwrap(), control.stats().unwrap());
        assert_eq!(found.active_runs, wanted.active_runs, "question {question}");
        assert_eq!(found.reserved_extents, wanted.reserved_extents, "question {question}");
    }
    assert!(panics > 0, "the clock was asked outside of seals");
}

fn with_document(log: &RunLog) {
    log.docs().put("space", "key", &NewRecord::new(b"old")).unwrap();
}

#[test]
fn a_clock_that_panics_at_any_question_of_a_long_put_leaves_nothing_of_it() {
    let put = |log: &RunLog| {
        let long = vec![3; 3 << 20];
        log.docs().put("space", "key", &NewRecord::new(&long)).unwrap();
    };
    at_each_question(with_document, put, true);
}

#[test]
fn a_clock_that_panics_at_any_question_of_a_long_append_leaves_no_run() {
    let append = |log: &RunLog| {
        let long = vec![3; 3 << 20];
        let record = NewRecord::new(&long);
        let _ = log.append_to("agent", "new", &record, Allow::everything()).unwrap();
    };
    at_each_question(with_document, append, true);
}

#[test]
fn a_clock_that_panics_at_any_question_of_a_batch_leaves_nothing_of_it() {
    let begin = |log: &RunLog| {
        with_document(log);
        let _ = log.start_run("agent", "run", ()).unwrap();
    };
    let commit = |log: &RunLog| {
        let (long, short) = (vec![3; 1 << 20], NewRecord::new(b"short"));
        let mut batch = Batch::new();
        batch.put("space", "key", NewRecord::new(&long)).put("space", "short", short);
        batch.append("agent", "run", short);
        let _ = log.commit(&batch).unwrap();
    };
    at_each_question(begin, commit, true);
}

#[test]
fn a_clock_that_panics_at_any_question_of_a_compaction_loses_no_extent() {
    let begin = |log: &RunLog| {
        for number in 0..12 {
            let run = log.start_run("agent", &number.to_string(), ()).unwrap();
            let _ = run.append(&vec![7; 400 << 10]).unwrap();
            let _ = run.end(&Outcome::completed()).unwrap();
        }
        for number in 0..12 {
            if number % 2 == 0 {
                log.delete_run(number.to_string().as_str()).unwrap();
            }
        }
    };
    at_each_question(begin, |log| _ = log.compact().unwrap(), false);
}
