//! The child of the kill test: appends until it is killed.
//!
//! Each thread has its own agent. It continues the runs in progress that it finds, starts others,
//! ends them when they are long enough, and deletes all but its newest ended ones. Each thread has
//! one call in flight and reports each acknowledgement before it makes the next call.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use runlog::{
    Activity, Compression, Durability, NewRecord, Observer, Options, Phase, RunLog, RunQuery,
    RunStatus, TailWriter,
};
use runlog_sim::SplitMix64;

use super::script::{LONGEST_BATCH, Message, Op, RunKey, Stall, THREADS, agent};

/// The ended runs that a thread keeps.
const KEPT: usize = 3;

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
pub(crate) fn run(path: &Path, seed: u64, child: u32, stall: Option<Stall>) {
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
            let (log, pipe) = (log.clone(), Arc::clone(&pipe));
            let case = u64::from(child) << 8 | u64::from(thread);
            let random = SplitMix64::for_case(seed, case);
            let worker = Worker { seed, child, thread, log, pipe, random, next: 0 };
            scope.spawn(move || worker.run());
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
    fn tell(&self, message: &Message) {
        let written = (&self.0).write(&message.encode()).unwrap();
        assert_eq!(written, Message::LEN);
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
        let op = match phase {
            Phase::Begin => Op::Begin(activity),
            Phase::End(_) => Op::End(activity),
        };
        self.pipe.tell(&Message::about(op));
        if self.stall.is_some_and(|stall| self.stops_here(stall, op)) {
            self.pipe.tell(&Message::about(Op::Stopped));
            loop {
                std::thread::park();
            }
        }
    }
}

impl Marks {
    fn stops_here(&self, stall: Stall, op: Op) -> bool {
        if op == Op::Begin(stall.activity) {
            let times = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
            WITHIN.set((times >= stall.times).then_some(0));
            // If it was once too short for its events, the next one stops at its begin.
            return times > stall.times || (times == stall.times && stall.events == 0);
        }
        let Some(events) = WITHIN.get() else { return false };
        WITHIN.set((op != Op::End(stall.activity)).then_some(events + 1));
        WITHIN.get().is_some_and(|events| events >= stall.events)
    }
}

/// One thread that appends.
struct Worker {
    seed: u64,
    child: u32,
    thread: u8,
    log: RunLog,
    pipe: Arc<Pipe>,
    random: SplitMix64,
    next: u32,
}

impl Worker {
    fn run(mut self) {
        let (mut ended, unfinished) = self.find_runs();
        for (run, records) in unfinished {
            self.append_to_end(run, records);
            ended.push(run);
        }
        loop {
            while ended.len() > KEPT {
                self.delete(ended.remove(0));
            }
            let run = RunKey { thread: self.thread, child: self.child, number: self.next };
            self.next += 1;
            let metadata = run.metadata(self.seed);
            self.log.start_run(&run.agent(), &run.run(), &metadata[..]).unwrap();
            self.tell(Op::Started, run, 0);
            self.append_to_end(run, 0);
            ended.push(run);
        }
    }

    /// The runs of this thread's agent, oldest first: ended ones, and others with their lengths.
    fn find_runs(&self) -> (Vec<RunKey>, Vec<(RunKey, u64)>) {
        let (mut ended, mut unfinished) = (Vec::new(), Vec::new());
        let mut after = None;
        loop {
            let page = self
                .log
                .list_runs(&RunQuery::new().agent(&agent(self.thread)).limit(3).after(after))
                .unwrap();
            for summary in page.runs {
                let run = RunKey::from_run(summary.run.as_str()).unwrap();
                if summary.status == RunStatus::InProgress {
                    unfinished.push((run, summary.records));
                } else {
                    ended.push(run);
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        ended.reverse();
        unfinished.reverse();
        (ended, unfinished)
    }

    /// Appends what the run lacks, and ends it.
    fn append_to_end(&mut self, run: RunKey, mut seq: u64) {
        let (agent, id) = (run.agent(), run.run());
        let writer = self.log.writer((agent.as_str(), id.as_str())).unwrap();
        let len = run.len(self.seed);
        while seq < len {
            let batch =
                if self.random.below(8) == 0 { self.random.below(LONGEST_BATCH) } else { 0 };
            let count = (1 + batch).min(len - seq);
            let disk = self.random.below(16) == 0;
            let level = if disk { Durability::Disk } else { Durability::Process };
            let contents: Vec<_> =
                (seq..seq + count).map(|seq| run.record(self.seed, seq)).collect();
            let records: Vec<NewRecord<'_>> =
                contents.iter().map(|content| content.to_record(level)).collect();
            let appended = match &records[..] {
                [record] => writer.append_record(record).unwrap(),
                records => writer.append_batch(records).unwrap(),
            };
            assert_eq!(appended.seq.0, seq + count - 1, "of {run:?}");
            let count = u8::try_from(count).unwrap();
            self.tell(Op::Appended { disk, count }, run, seq);
            seq += u64::from(count);
        }
        let _ = writer.end(&run.outcome(self.seed)).unwrap();
        self.tell(Op::Ended, run, 0);
    }

    fn delete(&self, run: RunKey) {
        self.tell(Op::Deleting, run, 0);
        let (agent, id) = (run.agent(), run.run());
        self.log.delete_run((agent.as_str(), id.as_str())).unwrap();
        self.tell(Op::Deleted, run, 0);
    }

    fn tell(&self, op: Op, run: RunKey, seq: u64) {
        self.pipe.tell(&Message { op, run, seq });
    }
}
