//! The child of the kill test: writes until it is killed. Each thread has one call in flight.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runlog::{Activity, Compression, Observer, Options, Phase, TailWriter};
use runlog_sim::SplitMix64;

use super::script::{Message, Stall, THREADS};
use crate::support::crowd::Worker;

/// Small extents, so that segments are full soon. Most children store into a map where that is
/// possible; one in three writes.
pub(crate) fn options(writes: bool) -> Options {
    let writer = if writes { TailWriter::Pwrite } else { TailWriter::Auto };
    let options = Options::new().extent_size(256 << 10).tail_writer(writer);
    let options =
        if writes { options.compression(Compression::Zstd { level: 1 }) } else { options };
    options.sync_interval(Some(Duration::from_millis(20)))
}

/// Appends until the process is killed.
pub(crate) fn run(path: &Path, seed: u64, child: u64, stall: Option<Stall>) {
    // A thread that fails must not leave the others running for ever.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let pipe = Arc::new(Pipe::from_stdin());
    let marks = Marks { pipe: Arc::clone(&pipe), stall, seen: AtomicU64::new(0) };
    let log = options(child % 3 == 2).observer(Arc::new(marks)).open(path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, pipe) = (&log, Arc::clone(&pipe));
            let random = SplitMix64::for_case(seed, child << 8 | thread);
            let tell = move |run, op| pipe.tell(Message::Of(run, op));
            scope.spawn(move || Worker { log, thread, child, random, tell }.run(|| true));
        }
    });
}

/// The way to the parent.
#[derive(Debug)]
struct Pipe(File);

impl Pipe {
    /// The parent has put the writing end where the standard input would be.
    fn from_stdin() -> Self {
        let stdin = std::io::stdin();
        Self(File::from(stdin.as_fd().try_clone_to_owned().unwrap()))
    }

    /// One write, so that a message arrives whole or not at all.
    fn tell(&self, message: Message) {
        let line = message.to_line();
        assert_eq!((&self.0).write(line.as_bytes()).unwrap(), line.len());
    }
}

/// Reports the engine's activities to the parent, and stops the thread where requested.
#[derive(Debug)]
struct Marks {
    pipe: Arc<Pipe>,
    stall: Option<Stall>,
    seen: AtomicU64,
}

thread_local! {
    /// The events since the activity to stop in began on this thread.
    static WITHIN: Cell<Option<u64>> = const { Cell::new(None) };
}

impl Observer for Marks {
    fn observe(&self, activity: Activity, phase: Phase<'_>) {
        let message = match phase {
            Phase::Begin => Message::Begin(activity),
            Phase::End(_) => Message::End(activity),
        };
        self.pipe.tell(message);
        if self.stall.is_some_and(|stall| self.stops_here(stall, message)) {
            self.pipe.tell(Message::Stopped);
            loop {
                std::thread::park();
            }
        }
    }
}

impl Marks {
    fn stops_here(&self, stall: Stall, message: Message) -> bool {
        if message == Message::Begin(stall.activity) {
            let times = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
            WITHIN.set((times >= stall.times).then_some(0));
            // If it was once too short for its events, the next one stops at its begin.
            return times > stall.times || (times == stall.times && stall.events == 0);
        }
        let Some(events) = WITHIN.get() else { return false };
        WITHIN.set((message != Message::End(stall.activity)).then_some(events + 1));
        WITHIN.get().is_some_and(|events| events >= stall.events)
    }
}
