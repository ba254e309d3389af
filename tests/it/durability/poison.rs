//! A write or sync fails while another caller waits for a sync: every waiter is told, whatever
//! failed, and whichever thread noticed it.
//!
//! Nothing here sleeps. The background thread is held at a call of the storage, so that it cannot
//! be the one that tells; waiting uses channels.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::task::Wake;
use std::thread;

use runlog::{Durability, Error, NewRecord, Options, RunLog, TailWriter, Ticket};
use runlog_sim::OpKind;

use crate::support::held::{Held, NEVER};

/// A store on a held disk; its background thread syncs only when it is asked to.
fn open(held: &Held) -> RunLog {
    let options = Options::new().extent_size(64 << 10).sync_interval(None).index(false);
    // Each append is a call.
    let options = options.tail_writer(TailWriter::Pwrite);
    options.create_storage(held.storage()).unwrap()
}

/// A task that awaits a ticket.
struct Task {
    ticket: Ticket,
    waker: Waker,
    woken: Receiver<()>,
}

struct Bell(Mutex<Sender<()>>);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

impl Task {
    /// Polls the ticket for the first time.
    fn begin(ticket: Ticket) -> Self {
        let (bell, woken) = channel();
        let waker = Waker::from(Arc::new(Bell(Mutex::new(bell))));
        let mut task = Self { ticket, waker, woken };
        assert!(task.poll().is_pending(), "nothing was synced yet");
        task
    }

    fn poll(&mut self) -> Poll<runlog::Result<()>> {
        Pin::new(&mut self.ticket).poll(&mut Context::from_waker(&self.waker))
    }

    /// The task is woken once, and told that it is unknown whether its record survives.
    fn assert_told(&mut self, what: &str) {
        assert_eq!(self.woken.recv_timeout(NEVER), Ok(()), "{what}: the task is woken");
        assert!(matches!(self.poll(), Poll::Ready(Err(Error::Poisoned))), "{what}");
        let again = self.woken.try_recv();
        assert!(again.is_err(), "{what}: woken once");
    }
}

const OTHER: io::ErrorKind = io::ErrorKind::Other;

#[test]
fn the_failed_write_of_another_thread_wakes_who_awaits_or_waits() {
    let held = Held::new();
    let log = open(&held);
    let run = log.start_run("agent", "run", ()).unwrap();
    let holder = held.hold(OpKind::Sync);
    let ticket = run.append(b"waited for").unwrap().ticket;
    let mut task = Task::begin(ticket.clone());
    holder.wait();
    thread::scope(|scope| {
        let (told, tells) = channel();
        scope.spawn(move || told.send(ticket.wait()).unwrap());
        assert_eq!(tells.try_recv().unwrap_err(), TryRecvError::Empty);
        held.disk.fail_next(OpKind::Write, OTHER);
        let other = run.append(b"other");
        assert!(matches!(other, Err(Error::Io { .. })), "{other:?}");
        task.assert_told("a write");
        let told = tells.recv_timeout(NEVER);
        assert!(matches!(told, Ok(Err(Error::Poisoned))), "the thread is told: {told:?}");
        holder.let_go();
    });
    drop(run);
    assert!(matches!(log.close(), Err(Error::Poisoned)));
}

/// Fills the tail until the next segment is set aside, and lets the background thread fail at that.
fn reserve_that_fails(held_at: OpKind, fails: OpKind) {
    let held = Held::new();
    let log = open(&held);
    let run = log.start_run("agent", "run", ()).unwrap();
    let holder = held.hold(held_at);
    // After half of a segment, but not at its end: continuing in the next one waits for it.
    for _ in 0..70 {
        let _ = run.append(&[b'x'; 500]).unwrap();
    }
    holder.wait();
    let mut task = Task::begin(run.append(b"waited for").unwrap().ticket);
    held.disk.fail_next(fails, OTHER);
    holder.let_go();
    task.assert_told(&format!("{fails:?} while a segment is set aside"));
    assert!(matches!(run.append(b"next"), Err(Error::Poisoned)));
    drop(run);
    assert!(matches!(log.close(), Err(Error::Poisoned)));
}

#[test]
fn setting_a_segment_aside_that_fails_wakes_who_awaits() {
    reserve_that_fails(OpKind::Allocate, OpKind::Sync);
    reserve_that_fails(OpKind::Allocate, OpKind::Write);
    reserve_that_fails(OpKind::Write, OpKind::Write);
}

#[test]
fn who_begins_to_wait_after_the_failure_is_told_at_once() {
    let held = Held::new();
    let log = open(&held);
    let run = log.start_run("agent", "run", ()).unwrap();
    let mut ticket = run.append(b"waited for").unwrap().ticket;
    held.disk.fail_next(OpKind::Write, OTHER);
    let level = NewRecord::new(b"other").durability(Durability::Disk);
    assert!(run.append_record(&level).is_err());
    let polled = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Err(Error::Poisoned))));
    assert!(matches!(ticket.wait(), Err(Error::Poisoned)));
}
