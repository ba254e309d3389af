//! What the waker of an awaited ticket may do: whatever any thread may, also drop the last handle
//! of the store. So no lock of the engine is held where it is called.
//!
//! Nothing here sleeps. Each waker is ready while a thread holds locks.

use core::cell::RefCell;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::thread;

use runlog::env::Step;
use runlog::{Allow, Compression, Durability, Error, NewRecord, Options, Outcome, RunLog, Ticket};
use runlog_sim::{OpKind, SimDisk};

use crate::support::background::Background;
use crate::support::held::{Held, NEVER};

fn options() -> Options {
    Options::new().extent_size(64 << 10).sync_interval(None).index(false)
}

/// What the waker does, once, with the last handle of the store. `None` if it is refused.
type Act = fn(RunLog) -> Option<&'static str>;

/// Drops it.
const DROPS: Act = |log| {
    drop(log);
    Some("dropped")
};

/// Appends, and waits for the disk; then it is kept no longer.
const APPENDS: Act = |log| {
    let record = NewRecord::new(b"of a waker").durability(Durability::Disk);
    let appended = log.append_to("agent", "run", &record, Allow::nothing());
    appended.is_ok().then_some("appended")
};

type Once = Box<dyn FnOnce() + Send>;

struct Acts(Mutex<Option<Once>>);

impl Wake for Acts {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().unwrap().take();
        act.expect("it is called once")();
    }
}

/// Awaits a ticket with a waker that acts, and tells what came of it.
fn await_with<T: Send + 'static>(
    ticket: &mut Ticket,
    act: impl FnOnce() -> T + Send + 'static,
) -> Receiver<T> {
    let (to, told) = channel();
    let act: Once = Box::new(move || drop(to.send(act())));
    let waker = Waker::from(Arc::new(Acts(Mutex::new(Some(act)))));
    let polled = Pin::new(ticket).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "nothing was synced yet");
    told
}

/// What `ask` answers on a thread of its own.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, told) = channel();
    thread::spawn(move || to.send(ask()));
    told.recv_timeout(NEVER).expect("it waits for ever, or has panicked")
}

/// A step of the background work leads the sync that covers the ticket, while it retires segments.
fn a_reclaim_leads(act: Act) {
    let (disk, background) = (SimDisk::untracked(Vec::new()), Background::default());
    let scheduled = options().scheduler(Arc::new(background.clone()));
    let log = scheduled.create_storage(Arc::new(disk.clone())).unwrap();
    let old = log.start_run("agent", "old", ()).unwrap();
    for _ in 0..200 {
        let _ = old.append(&[b'x'; 1000]).unwrap();
    }
    let _ = old.end(&Outcome::completed()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    log.delete_run("old").unwrap();
    log.checkpoint().unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    drop((run, old));
    let told = await_with(&mut ticket, move || act(log));
    assert!(in_time(move || background.run(Step::Reclaim)));
    assert!(ticket.is_durable(), "this step has synced");
    assert!(told.recv_timeout(NEVER).expect("it comes to its end").is_some());
    let again = options().background(false).open_storage(Arc::new(disk)).unwrap();
    assert!(again.recovery_report().clean, "it was closed in order");
}

/// Fills the tail until the background thread sets the next segment aside, whose sync covers the
/// ticket, or fails.
fn a_reservation_covers(fails: bool, act: Act) -> Option<&'static str> {
    let held = Held::new();
    let log = options().create_storage(Arc::new(held.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let holder = held.hold(OpKind::Allocate);
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    // After half of a segment, but not at its end: continuing in the next one waits for it.
    for _ in 0..70 {
        let _ = run.append(&[b'x'; 500]).unwrap();
    }
    holder.wait();
    drop(run);
    let told = await_with(&mut ticket, move || act(log));
    if fails {
        held.disk.fail_next(OpKind::Sync, ErrorKind::Other);
    }
    holder.let_go();
    let told = told.recv_timeout(NEVER).expect("it comes to its end");
    assert_eq!(ticket.is_durable(), !fails);
    told
}

#[test]
fn a_waker_drops_the_last_handle_while_segments_are_retired() {
    a_reclaim_leads(DROPS);
}

#[test]
fn a_waker_appends_while_segments_are_retired() {
    a_reclaim_leads(APPENDS);
}

#[test]
fn a_waker_drops_the_last_handle_while_a_segment_is_set_aside() {
    assert_eq!(a_reservation_covers(false, DROPS), Some("dropped"));
}

#[test]
fn a_waker_appends_while_a_segment_is_set_aside() {
    assert_eq!(a_reservation_covers(false, APPENDS), Some("appended"));
}

#[test]
fn a_waker_drops_the_last_handle_while_the_sync_of_a_new_segment_fails() {
    assert_eq!(a_reservation_covers(true, DROPS), Some("dropped"));
}

#[test]
fn a_waker_that_appends_while_the_sync_of_a_new_segment_fails_is_refused() {
    assert_eq!(a_reservation_covers(true, APPENDS), None);
}

/// A store whose background work nothing does, so that only calls wake.
fn idle() -> RunLog {
    let idle = options().scheduler(Arc::new(Background::default()));
    idle.create_storage(Arc::new(SimDisk::new())).unwrap()
}

#[test]
fn a_call_for_which_the_log_goes_on_in_a_new_segment_wakes_at_its_end() {
    let log = idle();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let told = await_with(&mut ticket, {
        let log = log.clone();
        move || APPENDS(log)
    });
    in_time(move || {
        while !ticket.is_durable() {
            let _ = run.append(&[b'x'; 1000]).unwrap();
        }
    });
    assert_eq!(told.try_recv(), Ok(Some("appended")), "that call has woken the task");
}

#[test]
fn a_write_that_fails_wakes_at_the_end_of_its_call() {
    let disk = SimDisk::new();
    let idle = options().scheduler(Arc::new(Background::default()));
    let log = idle.create_storage(Arc::new(disk.clone())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let told = await_with(&mut ticket, {
        let log = log.clone();
        move || APPENDS(log)
    });
    disk.fail_next(OpKind::Write, ErrorKind::Other);
    let refused = in_time(move || {
        let long = [b'x'; 40_000];
        run.append_batch(&[NewRecord::new(&long), NewRecord::new(b"more")]).unwrap_err()
    });
    assert!(matches!(refused, Error::Io { .. }), "{refused}");
    assert_eq!(told.try_recv(), Ok(None), "the store is poisoned");
}

/// What a waker does of which each clone polls another ticket of the same append.
static POLLS: RawWakerVTable = RawWakerVTable::new(polls, drop_ticket, |_| {}, drop_ticket);

fn polls(ticket: *const ()) -> RawWaker {
    // SAFETY: it is the `Arc` of a waker, which stays alive meanwhile.
    let kept = ManuallyDrop::new(unsafe { Arc::from_raw(ticket.cast::<Ticket>()) });
    let mut other = Ticket::clone(&kept);
    let polled = Pin::new(&mut other).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    RawWaker::new(Arc::into_raw(Arc::clone(&kept)).cast(), &POLLS)
}

fn drop_ticket(ticket: *const ()) {
    // SAFETY: it is the `Arc` of a waker that ends here.
    drop(unsafe { Arc::from_raw(ticket.cast::<Ticket>()) });
}

#[test]
fn a_waker_calls_the_store_while_it_is_cloned() {
    let log = idle();
    // A test that fails must not wait for a store that waits for ever.
    core::mem::forget(log.clone());
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let told = in_time(move || {
        let data = Arc::into_raw(Arc::new(ticket.clone()));
        // SAFETY: the functions keep the rules of a waker, since an `Arc` does; a ticket is `Send`
        // and `Sync`.
        let waker = unsafe { Waker::from_raw(RawWaker::new(data.cast(), &POLLS)) };
        let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
        (polled.is_pending(), ticket)
    });
    assert!(told.0);
    log.sync().unwrap();
    assert!(told.1.is_durable());
}

#[test]
fn a_waker_closes_the_store_while_another_handle_closes_it() {
    let log = idle();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let other = log.clone();
    let told = await_with(&mut ticket, move || other.close().is_ok());
    drop(run);
    in_time(move || log.close()).unwrap();
    assert_eq!(told.try_recv(), Ok(true), "closing has woken the task");
    assert!(ticket.is_durable());
}

/// A task that appends and awaits that, as soon as it is woken, wherever that is.
struct Appender {
    log: RunLog,
    left: Mutex<(Option<Ticket>, u32)>,
}

impl Appender {
    fn go_on(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let (mut context, mut left) = (Context::from_waker(&waker), self.left.lock().unwrap());
        while left.1 > 0 {
            let ticket = left.0.get_or_insert_with(|| {
                let step = NewRecord::new(b"step");
                self.log.append_to("agent", "run", &step, Allow::nothing()).unwrap().ticket
            });
            if Pin::new(ticket).poll(&mut context).is_pending() {
                return;
            }
            *left = (None, left.1 - 1);
        }
    }
}

impl Wake for Appender {
    fn wake(self: Arc<Self>) {
        self.go_on();
    }
}

/// One sync makes all of them ready.
#[test]
fn any_number_of_tasks_that_append_when_they_are_woken_are_woken_one_after_the_other() {
    const TASKS: u64 = 10_000;
    let log = options().create_storage(Arc::new(SimDisk::untracked(Vec::new()))).unwrap();
    let _ = log.start_run("agent", "run", ()).unwrap();
    let task = |_| Arc::new(Appender { log: log.clone(), left: Mutex::new((None, 3)) });
    let tasks: Vec<_> = (0..TASKS).map(task).collect();
    tasks.iter().for_each(Appender::go_on);
    while tasks.iter().any(|task| task.left.lock().unwrap().1 > 0) {
        log.sync().unwrap();
    }
    assert_eq!(log.run("run").unwrap().records, 3 * TASKS);
}

#[test]
fn a_caller_that_holds_wakes_syncs_under_a_lock_that_a_waker_takes() {
    let log = idle();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let lock = Arc::new(Mutex::new(()));
    let told = await_with(&mut ticket, {
        let (log, lock) = (log.clone(), Arc::clone(&lock));
        move || {
            drop(lock.lock().unwrap());
            APPENDS(log)
        }
    });
    let told = in_time(move || {
        let _held = log.hold_wakes();
        let _locked = lock.lock().unwrap();
        log.sync().unwrap();
        assert_eq!(told.try_recv(), Err(TryRecvError::Empty), "held");
        told
    });
    assert_eq!(told.recv_timeout(NEVER), Ok(Some("appended")));
    assert!(ticket.is_durable());
}

#[test]
fn held_wakes_are_those_of_one_log_until_its_last_guard_is_dropped() {
    let logs = [idle(), idle()];
    let mut guards = [0, 0, 1, 1].map(|log: usize| Some(logs[log].hold_wakes()));
    let mut tickets = Vec::new();
    let told = logs.each_ref().map(|log| {
        let run = log.start_run("agent", "run", ()).unwrap();
        let mut ticket = run.append(b"waited for").unwrap().ticket;
        let told = await_with(&mut ticket, || ());
        tickets.push(ticket);
        log.sync().unwrap();
        told
    });
    let mut drop_guard = |guard: usize| {
        guards[guard] = None;
        told.each_ref().map(|told| told.try_recv().is_ok())
    };
    assert_eq!(drop_guard(1), [false, false]);
    assert_eq!(drop_guard(3), [false, false]);
    assert_eq!(drop_guard(0), [true, false], "not the one of the last guard");
    assert_eq!(drop_guard(2), [false, true]);
}

#[test]
fn the_background_wakes_where_the_caller_must_not() {
    let log = options().create_storage(Arc::new(SimDisk::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let _held = log.hold_wakes();
    let told = await_with(&mut ticket, || thread::current().id());
    log.sync().unwrap();
    assert_ne!(told.recv_timeout(NEVER).unwrap(), thread::current().id());
}

/// Syncs under a lock that the waker of a task takes, once its thread ends.
struct SyncsLate(RunLog, Arc<Mutex<()>>, Sender<()>);

impl Drop for SyncsLate {
    fn drop(&mut self) {
        let _held = self.0.hold_wakes();
        let _locked = self.1.lock().unwrap();
        self.0.sync().unwrap();
        self.2.send(()).unwrap();
    }
}

thread_local! {
    static SYNCS_LATE: RefCell<Option<SyncsLate>> = const { RefCell::new(None) };
}

#[test]
fn a_thread_holds_wakes_until_its_very_end() {
    let log = idle();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let lock = Arc::new(Mutex::new(()));
    let told = await_with(&mut ticket, {
        let lock = Arc::clone(&lock);
        move || drop(lock.lock().unwrap())
    });
    let (to, synced) = channel();
    in_time(move || {
        let held = log.clone();
        SYNCS_LATE.set(Some(SyncsLate(log, lock, to)));
        // Notes that are made later are dropped earlier, if they are dropped at all.
        drop(held.hold_wakes());
    });
    assert_eq!(synced.recv_timeout(NEVER), Ok(()));
    assert_eq!(told.recv_timeout(NEVER), Ok(()));
}

thread_local! {
    /// A store that is closed when its thread ends.
    static KEPT: RefCell<Option<RunLog>> = const { RefCell::new(None) };
}

/// Keeps a store for the end of a thread, after `last` was done with it there, and opens it again.
fn closed_by_the_end_of_its_thread(options: &Options, last: fn(&RunLog)) -> RunLog {
    let disk = SimDisk::untracked(Vec::new());
    let log = options.create_storage(Arc::new(disk.clone())).unwrap();
    in_time(move || {
        KEPT.set(Some(log));
        KEPT.with_borrow(|log| last(log.as_ref().unwrap()));
    });
    let options = options.clone();
    in_time(move || {
        loop {
            // The thread may not be at its end yet.
            match options.open_storage(Arc::new(SimDisk::untracked(disk.image()))) {
                Ok(log) if log.recovery_report().clean => break log,
                _ => thread::yield_now(),
            }
        }
    })
}

#[test]
fn a_store_that_a_thread_keeps_is_closed_when_the_thread_ends() {
    let opened = closed_by_the_end_of_its_thread(&options(), |log| {
        // It leads a sync.
        let _ = log.start_run("agent", "run", ()).unwrap();
        log.sync().unwrap();
    });
    assert_eq!(opened.run("run").unwrap().records, 0);
}

/// Closing moves what lives in mostly dead segments, where its codec may be gone.
#[test]
fn a_compressed_store_that_a_thread_keeps_is_compacted_when_the_thread_ends() {
    let idle = options().scheduler(Arc::new(Background::default()));
    let options = idle.compression(Compression::Zstd { level: 1 });
    let opened = closed_by_the_end_of_its_thread(&options, |log| {
        for number in 0..100 {
            let run = log.start_run("agent", &number.to_string(), ()).unwrap();
            for record in 0_u32..10 {
                let _ = run.append(&record.to_le_bytes().repeat(1000)).unwrap();
            }
            let _ = run.end(&Outcome::completed()).unwrap();
            // The codec is used, and so it is dropped before the store.
            if number == 10 {
                let _ = log.compact().unwrap();
            }
        }
        log.checkpoint().unwrap();
        for number in (0..100).filter(|number| number % 10 != 0) {
            log.delete_run(number.to_string().as_str()).unwrap();
        }
        log.checkpoint().unwrap();
    });
    let stats = opened.stats().unwrap();
    assert!(stats.sealed_segments < 10, "it was compacted: {stats:?}");
    for number in (0..100).step_by(10) {
        let records: Vec<_> = opened.trace(number.to_string().as_str()).unwrap().collect();
        assert!(records.len() == 10 && records.iter().all(Result::is_ok));
    }
}

#[test]
fn closing_does_not_wait_for_a_waker_that_waits_for_it() {
    let log = options().create_storage(Arc::new(SimDisk::new())).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let ((woken, is_woken), (closed, is_closed)) = (channel(), channel());
    let told = await_with(&mut ticket, move || {
        woken.send(()).unwrap();
        is_closed.recv_timeout(NEVER).is_ok()
    });
    is_woken.recv_timeout(NEVER).unwrap();
    drop(run);
    log.close().unwrap();
    closed.send(()).unwrap();
    assert_eq!(told.recv_timeout(NEVER), Ok(true));
}
