//! Panics of the embedder's code within the engine: of the storage, an observer, a waker. They cost
//! no other caller its answer, and no acknowledged record. A panic under a lock poisons the store.

use core::pin::pin;
use core::task::{Context, Waker};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Wake;
use std::time::Duration;

use runlog::env::Environment;
use runlog::storage::MemoryStorage;
use runlog::{Activity, Durability, NewRecord, Observer, Options, Phase, RunLog};
use runlog_sim::OpKind;

use crate::support::tap::Tap;

/// How long something takes that never happens.
const FOREVER: Duration = Duration::from_secs(60);

/// A storage whose syncs wait while a gate is shut, and one of which panics when told.
#[derive(Debug, Default)]
struct Panicky {
    shut: Mutex<bool>,
    changed: Condvar,
    panics: AtomicBool,
}

impl Panicky {
    fn storage(self: &Arc<Self>) -> Arc<Tap> {
        let panicky = Arc::clone(self);
        Tap::new(Arc::new(MemoryStorage::new()), move |call| {
            if call.kind == OpKind::Sync {
                let shut = panicky.shut.lock().unwrap();
                drop(panicky.changed.wait_while(shut, |shut| *shut).unwrap());
                assert!(!panicky.panics.swap(false, Ordering::SeqCst), "the test said so");
            }
            Ok(())
        })
    }

    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }
}

fn open() -> (RunLog, Arc<Panicky>) {
    let panicky = Arc::new(Panicky::default());
    let options = Options::new().sync_interval(None);
    (options.create_storage(panicky.storage()).unwrap(), panicky)
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
    let log = options.create_storage(storage.storage()).unwrap();
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
