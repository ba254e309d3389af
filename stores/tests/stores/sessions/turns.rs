//! Calls in turn: none waits for ever because others come all the time, and none is done that was
//! told that it is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use runlog::RunWriter;
use runlog_sim::settings;
use runlog_stores::sessions::Call;

use super::calls::{NEVER, gated_on, held_up, wakers};
use super::*;

/// A task that loads a session again and again, on whichever thread it is woken: as soon as it has
/// an answer, its next call is in the queue, or in front of it.
struct Loads {
    store: &'static ChatStore,
    call: Mutex<Option<Call<'static, Option<Chat>>>>,
    is_over: Arc<AtomicBool>,
}

impl Loads {
    fn go_on(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut call = self.call.lock().unwrap();
        while !self.is_over.load(Ordering::Relaxed) {
            let now = call.get_or_insert_with(|| self.store.load("s"));
            match now.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Pending => return,
                Poll::Ready(found) => assert!(found.unwrap().is_some()),
            }
            *call = None;
        }
    }
}

impl Wake for Loads {
    fn wake(self: Arc<Self>) {
        self.go_on();
    }
}

/// Calls that write, one behind the other, beside so many tasks that load all the time.
fn write_beside(readers: usize) {
    let store: &'static ChatStore = Box::leak(Box::new(ChatStore::new(&in_memory())));
    block_on(store.save(&chat("s", &["hello"]))).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    for _ in 0..readers {
        let (call, is_over) = (Mutex::default(), is_over.clone());
        Arc::new(Loads { store, call, is_over }).go_on();
    }
    for number in 0..20 {
        let small = chat("small", &[&number.to_string()]);
        let (mut call, (_, tells, told)) = (store.save(&small), wakers());
        while call.as_mut().poll(&mut Context::from_waker(&tells)).is_pending() {
            let woken = told.recv_timeout(NEVER);
            is_over.store(woken.is_err(), Ordering::Relaxed);
            woken.expect("the call goes on while others do");
        }
    }
    is_over.store(true, Ordering::Relaxed);
}

#[test]
fn a_call_that_writes_is_answered_beside_any_number_that_read() {
    write_beside(2);
}

#[test]
fn a_call_that_waits_for_a_place_gets_it_before_those_that_come_later() {
    write_beside(70);
}

/// A waker that appends a record, so that there is something to sync again.
struct Appends(RunWriter);

impl Wake for Appends {
    fn wake(self: Arc<Self>) {
        let _ = self.0.append(b"behind the sync").unwrap();
    }
}

#[test]
fn calls_that_wait_for_the_disk_share_a_sync_also_beside_an_appender() {
    let log = in_memory();
    let (store, gate) = gated_on(&log);
    let busy = held_up(&store, &gate);
    let waker = Waker::from(Arc::new(Appends(log.start_run("agent", "run", ()).unwrap())));
    let chats: Vec<Chat> = (0..60).map(|number| chat(&number.to_string(), &["tea"])).collect();
    let mut saves: Vec<_> = chats.iter().map(|chat| store.save(chat)).collect();
    let before = log.stats().unwrap().io.syncs;
    for save in &mut saves {
        assert!(save.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    gate.open();
    block_on(busy).unwrap();
    saves.into_iter().for_each(|save| block_on(save).unwrap());
    let syncs = log.stats().unwrap().io.syncs - before;
    assert!((1..=2).contains(&syncs), "{syncs} syncs for 60 saves");
}

#[repr(C)]
struct Limit {
    soft: u64,
    hard: u64,
}

unsafe extern "C" {
    fn getrlimit(resource: i32, limit: *mut Limit) -> i32;
    fn setrlimit(resource: i32, limit: *const Limit) -> i32;
}

/// The memory that a process may map, as Linux counts its limits.
const RLIMIT_AS: i32 = 9;

/// Lets the process map this much more memory than it has; `None` takes the limit back.
fn limit_memory(more: Option<u64>) {
    let mut limit = Limit { soft: 0, hard: 0 };
    // SAFETY: `limit` is a place for the answer.
    assert_eq!(unsafe { getrlimit(RLIMIT_AS, &raw mut limit) }, 0);
    limit.soft = more.map_or(limit.hard, |more| {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
        pages * 4096 + more
    });
    // SAFETY: `limit` is whole.
    assert_eq!(unsafe { setrlimit(RLIMIT_AS, &raw const limit) }, 0);
}

/// Not a test of its own: the process that gets no thread for a while.
#[test]
fn without_threads() {
    if settings::child_arguments().is_none() {
        return;
    }
    let log = in_memory();
    let store = ChatStore::new(&log);
    let sessions: Vec<Chat> = (0..70).map(|number| chat(&number.to_string(), &[])).collect();
    let mut calls: Vec<_> = sessions.iter().map(|session| store.save(session)).collect();
    // Less than the stack of a thread.
    limit_memory(Some(1 << 20));
    let answers: Vec<_> = calls.iter_mut().map(poll_once).collect();
    limit_memory(None);
    for answer in answers {
        assert!(matches!(answer, Poll::Ready(Err(SessionError::NoThread { .. }))), "{answer:?}");
    }
    block_on(store.save(&chat("later", &[]))).unwrap();
    assert_eq!(block_on(store.list()).unwrap(), ["later"], "nothing of the others was done");
    println!("no thread");
}

#[test]
fn a_call_that_gets_no_thread_is_never_done_and_later_ones_are() {
    let output = settings::child("sessions::turns::without_threads", &[]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("no thread"), "{told}{error}");
}
