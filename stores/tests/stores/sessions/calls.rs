//! Calls as futures: polling never waits, dropping leaves all or nothing, and no call is forgotten.
//!
//! A checkpoint of these tests blocks its readers until the test releases it, which is how the
//! thread of a store is kept busy for as long as a test wants.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, mpsc};
use std::time::Duration;

use runlog_sim::SplitMix64;
use runlog_stores::sessions::Call;

use super::snapshots::{mark_of, marked};
use super::*;

/// Every gate that there is; the checkpoints name them by number.
static GATES: Mutex<Vec<Arc<Gate>>> = Mutex::new(Vec::new());

#[derive(Default)]
pub(super) struct Gate {
    /// Whether a caller waits at it, and whether it is open.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    /// A gate, and its number.
    fn new() -> (Arc<Self>, i64) {
        let mut gates = GATES.lock().unwrap();
        gates.push(Arc::default());
        (gates.last().unwrap().clone(), gates.len() as i64 - 1)
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        let _open = self.changed.wait_while(state, |(_, open)| !*open).unwrap();
    }

    pub(super) fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    /// Returns once a caller waits at it.
    fn reached(&self) {
        let state = self.state.lock().unwrap();
        let _reached = self.changed.wait_while(state, |(reached, _)| !*reached).unwrap();
    }
}

/// A checkpoint that waits at its gate when it is read, or panics if it is negative.
#[derive(Debug, Serialize)]
pub(super) struct Passes(i64);

impl<'de> Deserialize<'de> for Passes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        assert!(number >= 0, "this is what the test wants");
        let gate = GATES.lock().unwrap()[number as usize].clone();
        gate.pass();
        Ok(Self(number))
    }
}

pub(super) struct Gated;

impl SessionTypes for Gated {
    type Session = Chat;
    type Artifacts = Value;
    type TraceEvent = String;
    type RunRecord = Value;
    type VerificationReport = Value;
    type SubagentTask = Value;
    type LoopCheckpoint = Passes;

    fn session_id(session: &Chat) -> &str {
        &session.id
    }
}

pub(super) type GatedStore = EngineSessionStore<Gated>;

/// Stores a checkpoint that is no [`Passes`] yet: saving one would wait at its gate, or panic.
fn plant(log: &RunLog, run: &str, number: i64) {
    let store: EngineSessionStore = EngineSessionStore::new(log);
    block_on(store.save_loop_checkpoint(run, &json!(number))).unwrap();
}

/// A store whose thread waits at a gate once the call is polled that comes from `held_up`.
fn gated() -> (GatedStore, Arc<Gate>) {
    gated_on(&in_memory())
}

pub(super) fn gated_on(log: &RunLog) -> (GatedStore, Arc<Gate>) {
    let (gate, number) = Gate::new();
    plant(log, "gate", number);
    (GatedStore::new(log), gate)
}

/// A call that waits at the gate.
pub(super) fn held_up<'a>(store: &'a GatedStore, gate: &Gate) -> Call<'a, Option<Passes>> {
    let mut call = store.load_loop_checkpoint("gate");
    assert!(poll_once(&mut call).is_pending());
    gate.reached();
    call
}

#[test]
fn polling_never_waits_for_what_the_thread_does() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let hello = chat("s", &["hello"]);
    let (mut saving, mut listing) = (store.save(&hello), store.list());
    for _ in 0..3 {
        assert!(poll_once(&mut saving).is_pending() && poll_once(&mut listing).is_pending());
    }
    gate.open();
    block_on(busy).unwrap();
    block_on(saving).unwrap();
    assert_eq!(block_on(listing).unwrap(), ["s"]);
}

#[test]
fn a_call_that_is_dropped_before_its_turn_does_nothing() {
    let (store, gate) = gated();
    block_on(store.save(&chat("s", &["first"]))).unwrap();
    let busy = held_up(&store, &gate);
    let (second, third) = (chat("s", &["second"]), chat("s", &["third"]));
    drop(store.save(&second));
    let mut polled = store.save(&third);
    assert!(poll_once(&mut polled).is_pending());
    drop(polled);
    let mut deleting = store.delete("s");
    assert!(poll_once(&mut deleting).is_pending());
    drop(deleting);
    gate.open();
    block_on(busy).unwrap();
    assert_eq!(block_on(store.load("s")).unwrap(), Some(chat("s", &["first"])));
}

#[test]
fn a_call_that_is_dropped_at_any_moment_is_done_whole_or_not_at_all() {
    let seed = 0x5e55_1045;
    println!("seed {seed:#x}");
    let mut random = SplitMix64::new(seed);
    let log = in_memory();
    let store = ChatStore::new(&log);
    let mut last = "before".to_owned();
    block_on(store.save_snapshot(&marked("s", &last))).unwrap();
    let mut done = 0;
    for turn in 0..300 {
        let next = turn.to_string();
        let snapshot = marked("s", &next);
        let mut call = store.save_snapshot(&snapshot);
        let mut answered = poll_once(&mut call).is_ready();
        // Half of them at once, before the thread has woken.
        for _ in 0..random.below(400) * u64::from(random.coin()) {
            thread::yield_now();
        }
        answered |= !answered && poll_once(&mut call).is_ready();
        drop(call);
        let found = mark_of(&block_on(store.load_snapshot("s")).unwrap().unwrap().snapshot);
        assert!(found == next || (found == last && !answered), "{found} after {last} and {next}");
        done += usize::from(found == next);
        last = found;
    }
    println!("{done} of 300 were done");
}

#[test]
fn calls_are_done_in_the_order_in_which_they_were_polled_first() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let chats: Vec<Chat> = (0..30).map(|turn| chat("s", &[&turn.to_string()])).collect();
    let mut calls: Vec<_> = chats.iter().map(|chat| store.save(chat)).collect();
    for call in &mut calls {
        assert!(poll_once(call).is_pending());
    }
    gate.open();
    block_on(busy).unwrap();
    assert_eq!(block_on(store.load("s")).unwrap().as_ref(), chats.last());
    calls.into_iter().for_each(|call| block_on(call).unwrap());
    assert_eq!(block_on(store.load("s")).unwrap().as_ref(), chats.last());
}

#[test]
fn calls_that_wait_for_the_disk_at_the_same_time_share_a_sync() {
    let log = in_memory();
    let (store, gate) = gated_on(&log);
    let busy = held_up(&store, &gate);
    let chats: Vec<Chat> = (0..60).map(|number| chat(&number.to_string(), &["tea"])).collect();
    let mut saves: Vec<_> = chats.iter().map(|chat| store.save(chat)).collect();
    for save in &mut saves {
        assert!(poll_once(save).is_pending());
    }
    let before = log.stats().unwrap().io.syncs;
    gate.open();
    block_on(busy).unwrap();
    saves.into_iter().for_each(|save| block_on(save).unwrap());
    let syncs = log.stats().unwrap().io.syncs - before;
    assert!((1..=2).contains(&syncs), "{syncs} syncs for 60 saves");
    assert_eq!(block_on(store.list()).unwrap().len(), 60);
}

/// Polls all until all are done.
async fn join_all(mut calls: Vec<Option<Call<'_, ()>>>) {
    poll_fn(|context| {
        for place in &mut calls {
            if let Some(call) = place
                && let Poll::Ready(done) = Pin::new(call).poll(context)
            {
                done.unwrap();
                *place = None;
            }
        }
        if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[test]
fn more_calls_than_the_queue_takes_wait_in_front_of_it() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let chats: Vec<Chat> = (0..300).map(|number| chat(&format!("{number:03}"), &[])).collect();
    let mut calls: Vec<_> = chats.iter().map(|chat| Some(store.save(chat))).collect();
    for call in calls.iter_mut().flatten() {
        assert!(poll_once(call).is_pending());
    }
    // Some of those who wait in the queue or in front of it lose interest.
    calls.iter_mut().step_by(3).for_each(|call| *call = None);
    gate.open();
    block_on(busy).unwrap();
    block_on(join_all(calls));
    let wanted = (0..300).filter(|number| number % 3 != 0).map(|number| format!("{number:03}"));
    assert!(block_on(store.list()).unwrap().into_iter().eq(wanted));
}

/// A task of an executor that polls what was woken, and nothing else.
struct Task {
    number: usize,
    ready: Arc<Mutex<Vec<usize>>>,
    thread: thread::Thread,
}

impl std::task::Wake for Task {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().push(self.number);
        self.thread.unpark();
    }
}

#[test]
fn of_many_calls_that_wait_in_front_of_the_queue_each_is_polled_a_few_times() {
    const CALLS: usize = 4_000;
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let chats: Vec<Chat> = (0..CALLS).map(|number| chat(&format!("{number}"), &[])).collect();
    let mut calls: Vec<_> = chats.iter().map(|chat| Some(store.save(chat))).collect();
    let ready = Arc::new(Mutex::new((0..CALLS).rev().collect::<Vec<_>>()));
    let task = |number| Arc::new(Task { number, ready: ready.clone(), thread: thread::current() });
    let wakers: Vec<Waker> = (0..CALLS).map(|number| task(number).into()).collect();
    let (mut polls, mut left) = (0, CALLS);
    while left > 0 {
        let Some(number) = ready.lock().unwrap().pop() else {
            thread::park();
            continue;
        };
        let Some(call) = &mut calls[number] else { continue };
        polls += 1;
        if let Poll::Ready(done) = call.as_mut().poll(&mut Context::from_waker(&wakers[number])) {
            done.unwrap();
            calls[number] = None;
            left -= 1;
        }
        if polls == CALLS {
            // All are under way, and wait.
            gate.open();
        }
    }
    block_on(busy).unwrap();
    // Once at first, once in its turn, once for the answer; a few more on a busy machine.
    assert!(polls < 6 * CALLS, "{polls} polls for {CALLS} calls");
}

#[test]
fn calls_that_are_woken_and_never_polled_again_do_not_hold_up_others() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let (idle, last) = (chat("idle", &[]), chat("last", &[]));
    let mut kept: Vec<_> = (0..300).map(|_| store.save(&idle)).collect();
    kept.iter_mut().for_each(|call| assert!(poll_once(call).is_pending()));
    let (_, tells, told) = wakers();
    let mut behind = store.save(&last);
    assert!(behind.as_mut().poll(&mut Context::from_waker(&tells)).is_pending());
    gate.open();
    told.recv_timeout(NEVER).expect("the call is woken");
    block_on(behind).unwrap();
    block_on(busy).unwrap();
    drop(kept);
    assert!(block_on(store.exists("last")).unwrap());
}

/// A waker that panics, and one that tells.
struct Panics;

impl std::task::Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

struct Tells(Mutex<mpsc::Sender<()>>);

impl std::task::Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

/// A waker that panics, one that tells, and where it tells.
pub(super) fn wakers() -> (Waker, Waker, mpsc::Receiver<()>) {
    let (tell, told) = mpsc::channel();
    (Arc::new(Panics).into(), Arc::new(Tells(Mutex::new(tell))).into(), told)
}

/// So long that only a task that is never woken waits for it.
pub(super) const NEVER: Duration = Duration::from_secs(20);

#[test]
fn a_waker_that_panics_costs_no_other_call_its_turn() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let full = chat("queued", &[]);
    let mut queued: Vec<_> = (0..64).map(|_| store.save(&full)).collect();
    queued.iter_mut().for_each(|call| assert!(poll_once(call).is_pending()));
    let (panics, tells, told) = wakers();
    let mut waiting: Vec<_> = (0..2).map(|_| store.save(&full)).collect();
    for (call, waker) in waiting.iter_mut().zip([&panics, &tells]) {
        assert!(call.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    gate.open();
    told.recv_timeout(NEVER).expect("the other call is woken");
    block_on(busy).unwrap();
    waiting.into_iter().for_each(|call| block_on(call).unwrap());
}

#[test]
fn calls_that_are_woken_and_never_polled_again_hold_up_no_other_beside_a_busy_one() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let idle = chat("idle", &[]);
    let mut kept: Vec<_> = (0..128).map(|_| store.save(&idle)).collect();
    kept.iter_mut().for_each(|call| assert!(poll_once(call).is_pending()));
    let (other, is_over) = (store.clone(), Arc::new(AtomicBool::new(false)));
    let mut behind = store.save(&idle);
    let (_, tells, told) = wakers();
    assert!(behind.as_mut().poll(&mut Context::from_waker(&tells)).is_pending());
    thread::scope(|scope| {
        // As soon as one of its calls is answered it makes the next.
        let load = scope.spawn(|| {
            (0..20_000).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(|_| {
                block_on(other.load("missing")).unwrap();
            });
        });
        gate.open();
        let woken = told.recv_timeout(NEVER);
        assert!(!load.is_finished(), "it came in its turn, and not once the other call was over");
        is_over.store(true, Ordering::Relaxed);
        woken.expect("the call is woken");
    });
    block_on(behind).unwrap();
    block_on(busy).unwrap();
    drop(kept);
}

#[test]
fn threads_that_find_the_queue_full_are_woken() {
    let (store, gate) = gated();
    let busy = held_up(&store, &gate);
    let full = chat("queued", &[]);
    let mut queued: Vec<_> = (0..64).map(|_| store.save(&full)).collect();
    queued.iter_mut().for_each(|call| assert!(poll_once(call).is_pending()));
    thread::scope(|scope| {
        for number in 0..40 {
            let store = &store;
            scope.spawn(move || block_on(store.save(&chat(&format!("{number}"), &[]))).unwrap());
        }
        gate.open();
    });
    block_on(busy).unwrap();
    assert_eq!(block_on(store.list()).unwrap().len(), 41);
}

#[test]
fn a_panic_in_a_type_of_the_caller_ends_its_call_alone() {
    let log = in_memory();
    plant(&log, "bad", -1);
    let store = GatedStore::new(&log);
    for _ in 0..3 {
        let lost = block_on(store.load_loop_checkpoint("bad")).unwrap_err();
        assert!(matches!(lost, SessionError::NoAnswer), "{lost}");
        block_on(store.save(&chat("s", &[]))).unwrap();
    }
    assert_eq!(block_on(store.raw("bad", Part::LoopCheckpoint)).unwrap().unwrap(), b"-1");
}

#[test]
fn the_last_handle_waits_for_the_call_that_is_under_way() {
    let (store, gate) = gated();
    drop(held_up(&store, &gate));
    let other = store.clone();
    drop(store);
    let opener = {
        let gate = gate.clone();
        thread::spawn(move || gate.open())
    };
    drop(other);
    assert!(gate.state.lock().unwrap().1, "the thread was let go in front of that");
    opener.join().unwrap();
}

#[test]
fn a_file_can_be_opened_again_once_the_last_handle_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    for turn in 0..3 {
        let log = Options::new().open(&path).unwrap();
        let store = ChatStore::new(&log);
        let found = block_on(store.load("s")).unwrap().map(|chat| chat.messages.len());
        assert_eq!(found, (turn > 0).then_some(turn));
        block_on(store.save(&chat("s", &["x"].repeat(turn + 1)))).unwrap();
        drop(store);
        log.close().unwrap();
    }
}

#[test]
fn of_8_threads_each_finds_what_it_saved() {
    let store: Arc<dyn SessionStore<Chats>> = Arc::new(ChatStore::new(&in_memory()));
    thread::scope(|scope| {
        for thread in 0..8 {
            let store = store.clone();
            scope.spawn(move || {
                let (own, shared) = (format!("own {thread}"), "shared");
                for turn in 0..20 {
                    let mine = chat(&own, &[&turn.to_string()]);
                    let ours = chat(shared, &[&own, &turn.to_string()]);
                    block_on(async {
                        store.save(&mine).await.unwrap();
                        assert_eq!(store.load(&own).await.unwrap(), Some(mine));
                        store.save(&ours).await.unwrap();
                        let found = store.load(shared).await.unwrap().unwrap();
                        assert!(found.messages.len() == 2 && found.messages[0].starts_with("own"));
                        store.save_trace_events(&own, std::slice::from_ref(&own)).await.unwrap();
                        assert!(store.exists(&own).await.unwrap());
                        if turn % 5 == 4 {
                            store.delete(&own).await.unwrap();
                            assert_eq!(store.load_trace_events(&own).await.unwrap(), None);
                        }
                    });
                }
            });
        }
    });
    assert_eq!(block_on(store.list()).unwrap(), ["shared"]);
}
