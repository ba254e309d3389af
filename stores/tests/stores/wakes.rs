//! A waker of the engine may call the stores, whose calls wake it: never under a lock of theirs.
//!
//! Nothing here sleeps. No background work runs, so that only calls wake.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use runlog::env::{Scheduler, Steps};
use runlog::storage::MemoryStorage;
use runlog::{Durability, Metadata, Options, RunLog, Ticket};
use runlog_stores::checkpoints::{Checkpointer, TenantId, ThreadKey};
use runlog_stores::run_store::{RetentionConfig, RunStore};
use runlog_stores::trajectory::{RunIdentity, TrajectoryLog, TrajectoryPayload, TrajectoryRecord};

use super::run_store_world::{NOW, started, turn};

/// So long that only a thread that is never woken waits for it.
const NEVER: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Idle;

impl Scheduler for Idle {
    fn begin(&self, _: Steps) {}
}

fn options() -> Options {
    let options = Options::new().extent_size(64 << 10).sync_interval(None).index(false);
    options.scheduler(Arc::new(Idle))
}

fn idle() -> RunLog {
    options().create_storage(Arc::new(MemoryStorage::new())).unwrap()
}

type Once = Box<dyn FnOnce() + Send>;

struct Acts(Mutex<Option<Once>>);

impl Wake for Acts {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().unwrap().take();
        act.expect("it is called once")();
    }
}

/// A task that awaits an append and acts where it is woken; what came of it.
struct Task {
    ticket: Ticket,
    told: Receiver<bool>,
}

impl Task {
    fn new(log: &RunLog, act: impl FnOnce() -> bool + Send + 'static) -> Self {
        let start = Metadata::new(b"").durability(Durability::Process);
        let run = log.start_run("other", "awaited", start).unwrap();
        let mut ticket = run.append(b"awaited").unwrap().ticket;
        let (to, told) = channel();
        let act: Once = Box::new(move || _ = to.send(act()));
        let waker = Waker::from(Arc::new(Acts(Mutex::new(Some(act)))));
        let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "nothing was synced yet");
        Self { ticket, told }
    }

    /// It was woken by a call that has returned.
    fn check(&self) {
        assert!(self.ticket.is_durable());
        assert_eq!(self.told.try_recv(), Ok(true));
    }
}

/// What `ask` answers on a thread of its own.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, told) = channel();
    thread::spawn(move || to.send(ask()));
    told.recv_timeout(NEVER).expect("it waits for ever, or has panicked")
}

fn runs(log: &RunLog) -> RunStore {
    RunStore::on(log.clone(), RetentionConfig::default())
}

#[test]
fn a_waker_appends_to_a_run_while_another_start_is_rolled_back() {
    let log = idle();
    let (store, other) = (runs(&log), runs(&log));
    store.write_started(&started("a", "r", NOW)).unwrap();
    let task = Task::new(&log, move || other.append_turns("a", "r2", &[turn(0, "p")]).is_ok());
    let back = in_time(move || store.rollback_empty_run_start(&started("a", "r", NOW)));
    assert!(back.unwrap());
    task.check();
}

#[test]
fn a_waker_starts_the_run_whose_start_is_being_rolled_back() {
    let log = idle();
    let (store, other) = (runs(&log), runs(&log));
    store.write_started(&started("a", "r", NOW)).unwrap();
    let task = Task::new(&log, move || other.write_started(&started("a", "r", NOW)).is_ok());
    let back = in_time(move || store.rollback_empty_run_start(&started("a", "r", NOW)));
    assert!(back.unwrap());
    task.check();
    assert_eq!(runs(&log).list_runs("a").len(), 1);
}

#[test]
fn a_waker_records_in_the_run_that_is_being_recorded() {
    let log = idle();
    let store = TrajectoryLog::new(&log, "a").unwrap();
    let record = |seq: u64| {
        let payload =
            TrajectoryPayload::RunEnded { outcome: "x".repeat(5000), new_messages: Vec::new() };
        TrajectoryRecord::new(&RunIdentity::root("r"), seq, 1, payload)
    };
    let other = TrajectoryLog::new(&log, "a").unwrap();
    let of_task = record(1000);
    let task = Task::new(&log, move || other.record(&of_task).is_ok());
    let ticket = task.ticket.clone();
    // The log goes on in a new segment within one of these calls, which syncs.
    in_time(move || {
        for seq in 0..100 {
            if !ticket.is_durable() {
                store.record(&record(seq)).unwrap();
            }
        }
    });
    task.check();
}

#[test]
fn a_waker_prunes_a_thread_that_is_being_pruned() {
    let log = idle();
    let store = Checkpointer::<u32>::new(&log);
    let other = store.clone();
    let key = ThreadKey::new(TenantId::default(), "t").unwrap();
    let same = key.clone();
    for state in 0..3 {
        store.put(&store.checkpoint(&key, 1, state, None).unwrap()).unwrap();
    }
    let task = Task::new(&log, move || other.prune(&same, Some(1), None).is_ok());
    let pruned = in_time(move || store.prune(&key, Some(1), None));
    assert_eq!(pruned.unwrap().checkpoints, 2);
    task.check();
}

#[test]
fn a_waker_opens_the_folder_of_the_store_that_is_being_dropped() {
    for keeps_log in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("runs");
        let open = |root: &std::path::Path| {
            RunStore::with_options(root.to_owned(), RetentionConfig::default(), options())
        };
        let (store, other) = (open(&root), open(&root));
        store.write_started(&started("a", "r", NOW)).unwrap();
        let task = Task::new(&store.log().unwrap(), move || {
            other.write_started(&started("a", "r2", NOW)).is_ok()
        });
        // The log may outlive its store.
        let log = keeps_log.then(|| store.log().unwrap());
        in_time(move || {
            drop(store);
            drop(log);
        });
        task.check();
        assert_eq!(open(&root).list_runs("a").len(), 2);
    }
}
