//! The async faces of the stores under load, on the real disk: 64 saves of sessions, and puts of
//! checkpoints, at the same time from one task; a pruning alone and beside one who puts every 3 ms;
//! the archiving of 100,000 events that were appended one by one, and the file that they make, in
//! `RUNLOG_BENCH_DIR` if that is set.
//!
//! What is reported is the time of one save or put, of one pruning, and of one archiving; the bytes
//! of the file are printed before all of that, with the part of the payload that they are.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::Thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use runlog::storage::MemoryStorage;
use runlog::{Options, RunLog};
use runlog_stores::checkpoints::{
    AsyncCheckpointer, Checkpointer, SessionLog, TenantId, ThreadKey,
};
use runlog_stores::sessions::{EngineSessionStore, SessionStore};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Calls at the same time.
const TASKS: usize = 64;
/// Checkpoints of the thread that is pruned, and the bytes of a state.
const CHECKPOINTS: usize = 2_000;
const STATE: usize = 2_000;
/// Events that are archived.
const EVENTS: u64 = 100_000;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Is ready once all are.
struct All<'a>(Vec<Pin<Box<dyn Future<Output = ()> + 'a>>>);

impl Future for All<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if self.0.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn log() -> (TempDir, RunLog) {
    let folder = TempDir::new().unwrap();
    let log = Options::new().create(folder.path().join("store")).unwrap();
    (folder, log)
}

fn key(name: &str) -> ThreadKey {
    ThreadKey::new(TenantId::default(), name).unwrap()
}

fn per_call(rounds: u64, mut round: impl FnMut()) -> Duration {
    let began = Instant::now();
    (0..rounds).for_each(|_| round());
    began.elapsed() / u32::try_from(TASKS).unwrap()
}

fn at_once(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("async_64_at_once");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    group.bench_function("save", |bencher| {
        let (_folder, log) = log();
        let store: EngineSessionStore = EngineSessionStore::new(&log);
        let sessions: Vec<Value> =
            (0..TASKS).map(|task| json!({ "id": task.to_string() })).collect();
        bencher.iter_custom(|rounds| {
            per_call(rounds, || {
                let save = |session| {
                    let store = &store;
                    Box::pin(async move { store.save(session).await.unwrap() }) as Pin<Box<_>>
                };
                block_on(All(sessions.iter().map(save).map(|save| save as _).collect()));
            })
        });
    });
    group.bench_function("put", |bencher| {
        let (_folder, log) = log();
        let store = AsyncCheckpointer::new(Checkpointer::<Value>::new(&log));
        let keys: Vec<ThreadKey> = (0..TASKS).map(|task| key(&task.to_string())).collect();
        bencher.iter_custom(|rounds| {
            per_call(rounds, || {
                let put = |key| {
                    let new = store.blocking().checkpoint(key, 1, json!("x"), None).unwrap();
                    let store = &store;
                    Box::pin(async move { store.put(new).await.unwrap() }) as Pin<Box<_>>
                };
                block_on(All(keys.iter().map(put).map(|put| put as _).collect()));
            })
        });
    });
    group.finish();
}

fn prune(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prune_2000");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    for beside in [false, true] {
        let name = if beside { "beside_a_writer" } else { "alone" };
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| pruned(beside)).sum());
        });
    }
    group.finish();
}

/// The time of one pruning.
fn pruned(beside: bool) -> Duration {
    let (_folder, log) = log();
    let (store, key) = (Checkpointer::<Value>::new(&log), key("t"));
    let put = |step: usize| {
        let state = json!(["x".repeat(STATE), step]);
        store.put(&store.checkpoint(&key, step, state, None).unwrap()).unwrap();
    };
    (0..CHECKPOINTS).for_each(put);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if beside {
            scope.spawn(|| {
                for step in CHECKPOINTS.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    put(step);
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
        }
        let began = Instant::now();
        let _ = store.prune(&key, Some(1), None).unwrap();
        let took = began.elapsed();
        is_over.store(true, Ordering::Relaxed);
        took
    })
}

fn archive(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("archive");
    group.sample_size(10).warm_up_time(Duration::from_millis(1));
    group.bench_function("100000_events", |bencher| {
        bencher.iter_custom(|rounds| (0..rounds).map(|_| archived()).sum());
    });
    group.finish();
}

/// The time of one archiving of everything. The events are written without waiting for the disk.
fn archived() -> Duration {
    let (folder, key) = (TempDir::new().unwrap(), key("t"));
    let path = folder.path().join("store");
    fill_in_memory(&path, &key);
    let log = Options::new().open(&path).unwrap();
    let session = SessionLog::<u64>::new(&log);
    let began = Instant::now();
    assert_eq!(session.archive_before(&key, EVENTS).unwrap(), EVENTS);
    began.elapsed()
}

/// A file with the events in it, from a store in memory: 100,000 syncs would take too long.
fn fill_in_memory(path: &std::path::Path, key: &ThreadKey) {
    let memory = Arc::new(MemoryStorage::new());
    let log = Options::new().create_storage(Arc::clone(&memory) as _).unwrap();
    let session = SessionLog::<u64>::new(&log);
    for event in 0..EVENTS {
        let _ = session.append(key, &[event]).unwrap();
    }
    drop(session);
    log.close().unwrap();
    std::fs::write(path, memory.to_bytes()).unwrap();
}

/// Prints what 100,000 events of 80 bytes take that were appended one by one, as they are left by
/// the work that goes on meanwhile, and after a compaction.
fn sizes(_: &mut Criterion) {
    let folder = match std::env::var_os("RUNLOG_BENCH_DIR") {
        Some(folder) => TempDir::new_in(folder).unwrap(),
        None => TempDir::new().unwrap(),
    };
    let path = folder.path().join("store");
    let log = Options::new().create(&path).unwrap();
    let (session, key) = (SessionLog::<String>::new(&log), key("t"));
    let mut payload = 0;
    for event in 0..EVENTS {
        let event = format!("{event:078}");
        payload += event.len() as u64 + 2;
        let _ = session.append(&key, &[event]).unwrap();
    }
    let taken = || 512 * std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap());
    let tell = |when: &str| {
        let (taken, part) = (taken(), 100 * taken() / payload);
        println!("100,000 events of 80 bytes, {when}: {taken} bytes, {part} % of the payload");
    };
    tell("appended");
    std::thread::sleep(Duration::from_secs(2));
    tell("two seconds later");
    let _ = log.compact().unwrap();
    log.reclaim().unwrap();
    tell("compacted");
}

criterion_group!(benches, sizes, at_once, prune, archive);
criterion_main!(benches);
