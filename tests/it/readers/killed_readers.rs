//! Readers that are killed at any moment leave nothing behind.
//!
//! Goal: when processes that read, follow and copy a store die by SIGKILL, the writer goes on as if
//! they had never been there, and so does the next reader: there is no file beside the store, no
//! lock but the writer's, no space that stays taken, and no copy that does not open.
//!
//! Method: threads of this process write to a store with small extents, delete and compact, so that
//! segments are sealed, moved, punched and cut off all the time. Child processes read it. The
//! parent kills one of them after a random number of its steps, or of the writer's appends, and
//! starts another one.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use runlog::{Error, Follow, LogCursor, LogEventKind, Options, Reader, RunQuery, RunSummary};
use runlog_sim::{SplitMix64, settings};

use crate::support::crowd::{Ledger, Op, RunKey, Worker};

/// The test that a process of its own runs.
const CHILD: &str = "readers::killed_readers::child";
/// How many read at a time.
const AT_ONCE: usize = 4;
/// The most steps that a child tells.
const TOLD: u64 = 12;
/// The most appends of the writer that a child lives after its steps.
const APPENDS: u64 = 80;
/// What the living runs take is a small part of this.
const LONGEST_FILE: u64 = 24 << 20;

fn options() -> Options {
    Options::new().extent_size(64 << 10).sync_interval(Some(Duration::from_millis(20)))
}

/// How many appends the writers have done, and what is known of their runs.
#[derive(Default)]
struct Done {
    appends: Mutex<u64>,
    more: Condvar,
    over: AtomicBool,
    ledger: Ledger,
}

impl Done {
    fn note(&self, run: RunKey, op: Op) {
        self.ledger.note(run, op);
        *self.appends.lock().unwrap() += u64::from(matches!(op, Op::Appended(_)));
        self.more.notify_all();
    }

    /// Waits until the writers have appended so often. They must go on.
    fn wait_for(&self, more: u64) {
        let appends = self.appends.lock().unwrap();
        let wanted = *appends + more;
        let patience = Duration::from_secs(60);
        let is_early = |appends: &mut u64| *appends < wanted;
        let (appends, waited) = self.more.wait_timeout_while(appends, patience, is_early).unwrap();
        drop(appends);
        assert!(!waited.timed_out(), "the writers do not go on");
    }
}

/// None if it was deleted meanwhile.
fn unless_gone<T>(answer: Result<T, Error>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(Error::RunNotFound { .. } | Error::Evicted { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

fn read_run(reader: &Reader, run: &RunSummary) {
    let Some(trace) = unless_gone(reader.trace(run)) else { return };
    for (seq, record) in (0..).zip(trace) {
        let Some(record) = unless_gone(record) else { return };
        RunKey::from_run(run.run.as_str()).check(seq, &record);
    }
}

fn lists(reader: &Reader) -> Vec<RunSummary> {
    reader.runs(&RunQuery::new()).map(|run| run.unwrap()).collect()
}

/// Says that a step is done, as long as the parent may listen.
fn say(step: &mut u64) {
    if *step < TOLD {
        let mut out = std::io::stdout();
        out.write_all(b"step\n").and_then(|()| out.flush()).unwrap();
    }
    *step += 1;
}

/// Not a test of its own: the process that the test below starts and kills. It reads for ever.
#[test]
fn child() {
    let Some(arguments) = settings::child_arguments() else { return };
    let [path, copy, kind] = &arguments[..] else { panic!("a store, a copy and a kind") };
    let mut step = 0;
    // Without its parent it ends.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    // The test harness has begun a line.
    println!();
    say(&mut step);
    match kind.as_str() {
        "0" => {
            let reader = Reader::open(path).unwrap();
            loop {
                reader.refresh().unwrap();
                lists(&reader).iter().for_each(|run| read_run(&reader, run));
                say(&mut step);
            }
        }
        "1" => {
            let reader = Reader::open(path).unwrap();
            let follower = reader.follow(Follow::Everything, LogCursor::START).unwrap();
            for event in follower {
                let event = event.unwrap();
                if let LogEventKind::Record(record) = &event.kind {
                    RunKey::from_run(event.run.as_str()).check(record.seq().0, record);
                    say(&mut step);
                }
            }
        }
        "2" => loop {
            let report = Reader::open(path).unwrap().backup_to(copy).unwrap();
            assert!(report.damaged.is_empty(), "{report:?}");
            say(&mut step);
        },
        _ => loop {
            let reader = Reader::open(path).unwrap();
            let report = reader.verify().unwrap();
            assert!(report.is_clean(), "{:?}", report.problems);
            say(&mut step);
        },
    }
}

/// A process that reads.
struct Reading {
    process: Child,
    says: BufReader<ChildStdout>,
    kind: u64,
    copy: PathBuf,
}

impl Reading {
    fn start(store: &Path, copy: &Path, kind: u64) -> Self {
        let (of, to) = (store.to_str().unwrap(), copy.to_str().unwrap());
        let mut process = settings::child(CHILD, &[of, to, &kind.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        Self { process, says, kind, copy: copy.to_owned() }
    }

    /// Lets it live for so many steps, and then for so many appends of the writer, and kills it.
    fn kill(mut self, steps: u64, appends: u64, done: &Done) {
        let mut heard = 0;
        let mut line = String::new();
        while heard < steps {
            line.clear();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "it ended by itself");
            heard += u64::from(line == "step\n");
        }
        done.wait_for(appends);
        self.process.kill().unwrap();
        let status = self.process.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "it ended by itself: {status}");
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // If the test fails meanwhile.
        let _ = (self.process.kill(), self.process.wait());
    }
}

fn names(dir: &Path) -> Vec<String> {
    let names = dir.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

/// A copy that a killed process left is one that opens, and is brought up to date.
fn check_copy(store: &Path, copy: &Path) -> bool {
    let is_there = copy.exists();
    for _ in 0..1 + u64::from(is_there) {
        if copy.exists() {
            let found = Reader::open(copy).unwrap();
            let report = found.verify().unwrap();
            assert!(report.is_clean(), "{:?}", report.problems);
            lists(&found).iter().for_each(|run| read_run(&found, run));
        }
        let report = Reader::open(store).unwrap().backup_to(copy).unwrap();
        assert!(report.damaged.is_empty(), "{report:?}");
    }
    is_there
}

/// Goal and method: see the module.
#[test]
fn readers_that_are_killed_leave_nothing_that_the_writer_or_the_next_reader_notices() {
    let (kills, seed) = (settings::scale(30, 60), settings::seed(2026));
    println!("RUNLOG_SEED={seed}, {kills} kills");
    let (dir, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let store = dir.path().join("store");
    let log = options().create(&store).unwrap();
    let done = Done::default();
    let (mut kinds, mut left) = ([0; 4], 0);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (log, done) = (&log, &done);
            let random = SplitMix64::for_case(seed, thread);
            let tell = |run, op| done.note(run, op);
            let mut worker = Worker { log, thread, child: 0, random, tell };
            scope.spawn(move || worker.run(|| !done.over.load(Ordering::Acquire)));
        }
        let over = Over(&done.over);
        let mut random = SplitMix64::new(seed);
        let start = |number: u64| {
            Reading::start(&store, &copies.path().join(format!("copy-{number}")), number % 4)
        };
        let mut reading: Vec<Reading> = (0..AT_ONCE as u64).map(start).collect();
        for kill in 0..kills {
            let one = reading.swap_remove(random.index(reading.len()));
            let (kind, copy) = (one.kind, one.copy.clone());
            // While it opens the store, early, or late.
            let most = [2, 4, TOLD][random.index(3)];
            one.kill(1 + random.below(most), random.below(APPENDS), &done);
            kinds[kind as usize] += 1;
            reading.push(start(kill + AT_ONCE as u64));

            assert_eq!(names(dir.path()), ["store"], "after kill {kill}");
            done.wait_for(1);
            let next = Reader::open(&store).unwrap();
            let owner = next.writer().unwrap().map(|owner| owner.pid);
            assert!(owner.is_none_or(|pid| pid == std::process::id()), "locked by {owner:?}");
            if kind == 2 {
                left += u64::from(check_copy(&store, &copy));
                std::fs::remove_file(&copy).unwrap();
            }
        }
        for one in reading {
            one.kill(0, 0, &done);
        }
        drop(over);
    });
    let copied: Vec<_> = names(copies.path());
    assert!(copied.iter().all(|name| name.starts_with("copy-")), "{copied:?}");
    // What was kept for no reader is free.
    log.reclaim().unwrap();
    let stats = log.stats().unwrap();
    println!(
        "{kills} kills ({kinds:?}: tracing, following, copying, verifying), {left} copies were \
         there, {} appends, {} bytes",
        done.appends.lock().unwrap(),
        stats.file_len
    );
    assert!(stats.file_len < LONGEST_FILE, "{} bytes", stats.file_len);
    log.close().unwrap();
    assert_eq!(names(dir.path()), ["store"]);
    // The next writer and the next reader.
    let log = options().open_existing(&store).unwrap();
    assert!(log.recovery_report().clean, "{}", log.recovery_report());
    done.ledger.settle(&log);
    done.ledger.settle(&Reader::open(&store).unwrap());
    log.close().unwrap();
}

/// Ends the writers, however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
