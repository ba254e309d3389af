//! The wakers of awaited tickets: a background thread calls them, or the call that closes the store
//! at its end, under no lock. A waker may use the store and drop its last handle.
//!
//! Nothing here sleeps.

use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::task::{Context, RawWaker, RawWakerVTable, Waker};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::thread;

use runlog::env::Step;
use runlog::{Options, RunLog, Ticket};
use runlog_sim::{OpKind, SimDisk};

use crate::support::background::Background;
use crate::support::held::{Held, NEVER};

fn options() -> Options {
    Options::new().extent_size(64 << 10).sync_interval(None).index(false)
}

/// What `ask` answers on a thread of its own.
fn in_time<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> T {
    let (to, told) = channel();
    thread::spawn(move || to.send(ask()));
    told.recv_timeout(NEVER).expect("it waits for ever, or has panicked")
}

/// A task that owns the last handle of the store.
struct Owner(Mutex<Option<RunLog>>, Sender<()>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.0.lock().unwrap().take());
        let _ = self.1.send(());
    }
}

/// A store, a ticket that waits, and what tells that its task, which owns the store, has ended.
fn owned_by_its_task(held: &Held) -> (Ticket, Receiver<()>) {
    let log = options().create_storage(held.storage()).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    drop(run);
    let (to, told) = channel();
    let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(log)), to)));
    let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending(), "the sync is held");
    (ticket, told)
}

#[test]
fn a_waker_that_is_the_last_owner_of_its_task_closes_the_store() {
    let held = Held::new();
    let holder = held.hold(OpKind::Sync);
    let (ticket, told) = owned_by_its_task(&held);
    holder.wait();
    holder.let_go();
    told.recv_timeout(NEVER).expect("closing does not join its own thread");
    assert!(ticket.is_durable());
    let again = options().background(false).open_storage(Arc::new(held.disk)).unwrap();
    assert!(again.recovery_report().clean, "it was closed in order");
}

#[test]
fn a_waker_that_is_dropped_with_its_ticket_closes_the_store() {
    let held = Held::new();
    let holder = held.hold(OpKind::Sync);
    let (ticket, told) = owned_by_its_task(&held);
    holder.wait();
    holder.let_go();
    in_time(move || drop(ticket));
    told.recv_timeout(NEVER).expect("the waker is dropped");
}

/// A store whose background work nothing does unless the test says so.
fn idle() -> (RunLog, Background) {
    let background = Background::default();
    let idle = options().scheduler(Arc::new(background.clone()));
    (idle.create_storage(Arc::new(SimDisk::new())).unwrap(), background)
}

/// What a waker does that uses the store wherever it is called, cloned or dropped: it polls another
/// ticket of the same append.
static POLLS: RawWakerVTable = RawWakerVTable::new(clone, wake, poll, end);

fn poll(ticket: *const ()) {
    // SAFETY: it is the `Arc` of a waker, which stays alive meanwhile.
    let kept = ManuallyDrop::new(unsafe { Arc::from_raw(ticket.cast::<Ticket>()) });
    let mut other = Ticket::clone(&kept);
    let _ = Pin::new(&mut other).poll(&mut Context::from_waker(Waker::noop()));
}

fn clone(ticket: *const ()) -> RawWaker {
    poll(ticket);
    // SAFETY: it is the `Arc` of a waker, which stays alive meanwhile.
    unsafe { Arc::increment_strong_count(ticket.cast::<Ticket>()) };
    RawWaker::new(ticket, &POLLS)
}

fn wake(ticket: *const ()) {
    end(ticket);
}

fn end(ticket: *const ()) {
    poll(ticket);
    // SAFETY: it is the `Arc` of a waker that ends here.
    drop(unsafe { Arc::from_raw(ticket.cast::<Ticket>()) });
}

#[test]
fn a_waker_uses_the_store_where_it_is_cloned_and_called_and_dropped() {
    let (log, background) = idle();
    // A test that fails must not wait for a store that waits for ever.
    core::mem::forget(log.clone());
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let ticket = in_time(move || {
        let data = Arc::into_raw(Arc::new(ticket.clone()));
        // SAFETY: the functions keep the rules of a waker, since an `Arc` does; a ticket is `Send`
        // and `Sync`.
        let waker = unsafe { Waker::from_raw(RawWaker::new(data.cast(), &POLLS)) };
        for _ in 0..2 {
            let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        let mut dropped = ticket.clone();
        assert!(Pin::new(&mut dropped).poll(&mut Context::from_waker(&waker)).is_pending());
        drop(dropped);
        ticket
    });
    in_time(move || {
        log.sync().unwrap();
        assert!(background.run(Step::Sync));
    });
    assert!(ticket.is_durable());
}

/// Does something once.
struct Acts(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Wake for Acts {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().unwrap().take();
        act.expect("it is called once")();
    }
}

#[test]
fn closing_wakes_the_tasks_that_wait_for_a_store_without_background_work() {
    let (log, _background) = idle();
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    let (to, told) = channel();
    let other = log.clone();
    let act = Box::new(move || to.send(other.close().is_ok()).unwrap());
    let waker = Waker::from(Arc::new(Acts(Mutex::new(Some(act)))));
    assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(run);
    in_time(move || log.close()).unwrap();
    assert_eq!(told.try_recv(), Ok(true), "a waker may close the store too");
    assert!(ticket.is_durable());
}
