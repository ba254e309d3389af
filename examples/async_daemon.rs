//! A daemon on tokio that drives 64 runs at once on a slow disk and never blocks a worker thread on
//! a sync: each task awaits its writes, and all tasks share the syncs.
//!
//! It prints the number of syncs and the longest time that a worker thread was blocked. It fails if
//! worker threads wait for the disk: `cargo run --example async_daemon`

use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use runlog::storage::{MemoryStorage, Storage};
use runlog::{NewRecord, Options, Outcome, RunLog};

const RUNS: usize = 64;
const STEPS: usize = 10;
/// How long a sync of the disk takes.
const SYNC: Duration = Duration::from_millis(50);
/// A thread that waits for a sync is mostly blocked for longer than this.
const WAITED: Duration = Duration::from_millis(25);

/// A run of an agent: each step is on the disk before the next one begins.
async fn drive(log: RunLog, number: usize) -> runlog::Result<()> {
    let id = format!("run-{number}");
    let run = log.deferred().start_run("planner", &id, b"{\"goal\":\"tea\"}").await?;
    for step in 0..STEPS {
        let payload = format!("{{\"step\":{step}}}");
        run.deferred().append_record(&NewRecord::json(payload.as_bytes()).kind("step")).await?;
    }
    log.deferred().put("plans", &id, &NewRecord::json(b"{\"done\":true}")).await?;
    run.deferred().end(&Outcome::completed()).await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let disk = Arc::new(SlowDisk::default());
    let log = Options::new().create_storage(Arc::<SlowDisk>::clone(&disk))?;
    let opening = disk.syncs.load(Ordering::Relaxed);
    let worker = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let blocked = Arc::new(Blocked::default());
    let begun = now();
    worker.block_on(async {
        let tasks: Vec<_> = (0..RUNS)
            .map(|number| {
                let drive = Box::pin(drive(log.clone(), number));
                tokio::spawn(Watched { task: drive, blocked: Arc::clone(&blocked) })
            })
            .collect();
        for task in tasks {
            task.await.map_err(runlog_error)??;
        }
        Ok::<_, runlog::Error>(())
    })?;
    let took = begun.elapsed();
    let syncs = disk.syncs.load(Ordering::Relaxed) - opening;
    let awaited = RUNS * (STEPS + 3);
    let longest = Duration::from_nanos(blocked.longest.load(Ordering::Relaxed));
    let waits = blocked.waits.load(Ordering::Relaxed);
    println!("{awaited} answers awaited in {took:.1?}, with {syncs} syncs of {SYNC:?}");
    println!("a worker thread was blocked for {longest:?} at most");
    drop(worker);
    log.close()?;
    // The machine itself may pause once or twice.
    if waits > syncs / 4 {
        return Err(format!("worker threads waited {waits} times for the disk").into());
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "it is measured how long something takes")]
fn now() -> Instant {
    Instant::now()
}

/// A task that panicked.
fn runlog_error(_: tokio::task::JoinError) -> runlog::Error {
    runlog::Error::Closed
}

/// How long the worker threads were blocked.
#[derive(Debug, Default)]
struct Blocked {
    /// The longest time, in nanoseconds.
    longest: AtomicU64,
    /// How often it was longer than [`WAITED`].
    waits: AtomicU64,
}

/// A task that measures how long it blocks its thread.
struct Watched<F> {
    task: Pin<Box<F>>,
    blocked: Arc<Blocked>,
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let (begun, busy) = (now(), busy());
        let polled = self.task.as_mut().poll(context);
        if let (Some(before), Some(after)) = (busy, self::busy()) {
            let blocked = begun.elapsed().saturating_sub(after.saturating_sub(before));
            let nanos = u64::try_from(blocked.as_nanos()).unwrap_or(u64::MAX);
            self.blocked.longest.fetch_max(nanos, Ordering::Relaxed);
            self.blocked.waits.fetch_add(u64::from(blocked > WAITED), Ordering::Relaxed);
        }
        polled
    }
}

/// How long this thread has run, or waited for a busy processor: all of its time except while it
/// was blocked. `None` if the system does not report it.
fn busy() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    // Its first number, the time on a processor, is updated only at each tick.
    let waited = text.split_whitespace().nth(1)?.parse().ok()?;
    let ran = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let ran = Duration::new(ran.tv_sec.try_into().ok()?, ran.tv_nsec.try_into().ok()?);
    Some(ran + Duration::from_nanos(waited))
}

/// A disk with slow syncs, like a busy network disk.
#[derive(Debug, Default)]
struct SlowDisk {
    memory: MemoryStorage,
    syncs: AtomicU64,
}

impl Storage for SlowDisk {
    fn len(&self) -> io::Result<u64> {
        self.memory.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset, data)
    }

    #[expect(clippy::disallowed_methods, reason = "the disk is slow")]
    fn sync(&self) -> io::Result<()> {
        std::thread::sleep(SYNC);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.memory.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.memory.punch(offset, len)
    }
}
