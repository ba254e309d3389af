//! Killed processes: everything that was acknowledged is there afterwards, whatever was running.
//!
//! Goal: no record that was acknowledged at Process or Disk level is missing or changed after its
//! process was killed, no run is out of order, and what was deleted stays deleted.
//!
//! Method: a child process writes to one real file with eight threads, and reports each call before
//! and after it, and each activity of the engine, through a pipe. The parent kills it with
//! SIGKILL: after a random number of acknowledgements, or when the engine begins a roll, a seal, a
//! checkpoint of the index or a recovery. Some of these kills hit the engine wherever it is by
//! then; for others the child stops at a point within the activity, so that a known share of all
//! kills hits that point on any machine. Then the parent opens the file, or a copy of it, and
//! compares everything with bytes that follow from the keys of the runs. The next child continues
//! with the same file.

use std::io::{BufRead, BufReader, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use runlog::storage::MemoryStorage;
use runlog::{Activity, Options, RunLog};
use runlog_sim::SplitMix64;

use runlog_sim::settings::{child, child_arguments, scale, seed};

use self::script::{Message, Stall};
use crate::support::crowd::{Ledger, Op};

mod script;
mod worker;

/// The activities within which at least a fifth of the kills must hit.
const AIMS: [Activity; 4] =
    [Activity::Roll, Activity::Seal, Activity::IndexCheckpoint, Activity::Recovery];
/// One kill in this many finds the child stopped within a compaction.
const COMPACTION: u64 = 8;
/// A child that does not reach the point where the parent waits is killed after this many messages.
const PATIENCE: u64 = 200_000;
/// Once compacted, the file is no longer than this: what the kills left behind is freed. How far
/// it grows between them depends on how much time each child has.
const LONGEST_FILE: u64 = 16 << 20;

/// When a child is killed.
#[derive(Debug, Clone, Copy)]
enum Plan {
    /// After this many acknowledgements.
    After(u64),
    /// When this activity begins for the n-th time.
    At(Activity, u64),
    /// When the child has stopped there.
    Stopped(Stall),
}

impl Plan {
    /// Of eight kills, two find the child stopped within an activity and one within a compaction,
    /// one is aimed at an activity, and four come at any time.
    fn choose(kill: u64, random: &mut SplitMix64) -> Self {
        if kill % COMPACTION == 3 {
            let (activity, events) = (Activity::Compaction, random.below(4));
            return Self::Stopped(Stall { activity, times: 1 + random.below(2), events });
        }
        let activity = AIMS[random.index(AIMS.len())];
        let once = activity == Activity::Recovery;
        let times = if once { 1 } else { 1 + random.below(3) };
        let events = if once { 0 } else { random.below(4) };
        match kill % 4 {
            1 => Self::Stopped(Stall { activity, times, events }),
            3 => Self::At(activity, times),
            _ => {
                let most = 1 << random.below(14);
                Self::After(random.below(most))
            }
        }
    }
}

/// What a child reported before it died.
#[derive(Debug, Default)]
struct Death {
    /// Activities that had begun and not ended.
    open: Vec<Activity>,
    /// Acknowledged records.
    acknowledged: u64,
}

struct Harness {
    seed: u64,
    dir: tempfile::TempDir,
    ledger: Ledger,
    random: SplitMix64,
}

/// Goal and method: see the module.
#[test]
fn no_acknowledged_record_is_lost_or_changed_by_a_kill() {
    let (kills, seed) = (scale(60, 80), seed(0x006b_696c_6c65_6401));
    println!("{kills} kills, RUNLOG_SEED={seed}");
    let mut harness = Harness {
        seed,
        dir: tempfile::tempdir().unwrap(),
        ledger: Ledger::default(),
        random: SplitMix64::new(seed),
    };
    let mut within = 0;
    let mut compacting = 0;
    let mut by_activity = [0; AIMS.len()];
    let mut acknowledged = 0;
    for kill in 0..kills {
        let plan = Plan::choose(kill, &mut harness.random);
        let death = harness.run_child(kill, plan);
        let hit = death.open.iter().any(|open| aimed(*open));
        within += u64::from(hit);
        compacting += u64::from(death.open.contains(&Activity::Compaction));
        for (count, activity) in by_activity.iter_mut().zip(AIMS) {
            *count += u64::from(death.open.contains(&activity));
        }
        acknowledged += death.acknowledged;
        harness.check(kill, plan);
    }
    let log = worker::options(false).background(false).open_existing(harness.store()).unwrap();
    harness.ledger.settle(&log);
    let grown = log.stats().unwrap().file_len;
    let _ = log.compact().unwrap();
    harness.ledger.settle(&log);
    let stats = log.stats().unwrap();
    println!(
        "{within} of {kills} kills within a roll, seal, checkpoint or recovery ({AIMS:?}: \
         {by_activity:?}), {compacting} within a compaction; acknowledged: {acknowledged}; \
         {grown} bytes, {} once compacted",
        stats.file_len
    );
    log.close().unwrap();
    assert!(stats.file_len < LONGEST_FILE, "{grown} bytes, once compacted {stats:?}");
    assert!(acknowledged > kills, "{acknowledged}");
    assert!(compacting * 2 * COMPACTION >= kills, "{compacting} of {kills} kills in compactions");
    assert!(within * 5 >= kills, "only {within} of {kills} kills landed within");
}

/// Not a test of its own: the process that the test above starts and kills.
#[test]
fn started() {
    let Some(arguments) = child_arguments() else { return };
    let [path, seed, number, stall] = &arguments[..] else { panic!("four arguments") };
    let (seed, number) = (seed.parse().unwrap(), number.parse().unwrap());
    worker::run(Path::new(path), seed, number, Stall::from_text(stall));
}

impl Harness {
    fn store(&self) -> PathBuf {
        self.dir.path().join("store.runlog")
    }

    /// Starts a child, listens to it, kills it as planned, and listens to the rest.
    fn run_child(&mut self, number: u64, plan: Plan) -> Death {
        let (mut child, pipe) = self.start_child(number, plan);
        let mut death = Death::default();
        let (mut heard, mut acks, mut times, mut killed) = (0, 0, 0, false);
        for line in BufReader::new(pipe).lines() {
            let message = Message::from_line(&line.unwrap());
            heard += 1;
            match message {
                Message::Begin(activity) => death.open.push(activity),
                Message::End(activity) => {
                    let at = death.open.iter().rposition(|open| *open == activity);
                    death.open.swap_remove(at.expect("what ends has begun"));
                }
                Message::Stopped => {}
                Message::Of(run, op) => {
                    self.ledger.note(run, op);
                    if let Op::Appended(count) = op {
                        death.acknowledged += count;
                    }
                    let is_answer = matches!(op, Op::Started | Op::Appended(_) | Op::Ended);
                    acks += u64::from(is_answer || op == Op::Deleted);
                }
            }
            let due = match plan {
                Plan::After(count) => acks > count,
                Plan::At(activity, wanted) => {
                    times += u64::from(message == Message::Begin(activity));
                    times >= wanted
                }
                Plan::Stopped(_) => message == Message::Stopped,
            };
            if !killed && (due || heard > PATIENCE) {
                child.kill().unwrap();
                killed = true;
            }
        }
        let status = child.wait().unwrap();
        assert!(killed, "child {number} ended by itself: {status}; {plan:?}");
        death
    }

    fn start_child(&self, number: u64, plan: Plan) -> (Child, PipeReader) {
        let (reader, writer) = std::io::pipe().unwrap();
        let stall = if let Plan::Stopped(stall) = plan { stall.to_text() } else { String::new() };
        let (store, seed, number) = (self.store(), self.seed.to_string(), number.to_string());
        let arguments = [store.to_str().unwrap(), &seed, &number, &stall];
        let mut command = child("durability::kill::started", &arguments);
        // The child writes into it: its output belongs to the test harness.
        command.stdin(Stdio::from(writer)).stdout(Stdio::null());
        // The command holds the parent's end for writing until it is dropped.
        (command.spawn().unwrap(), reader)
    }

    /// Opens the file of the child and compares it. Usually a copy, so that the next child finds
    /// the original; sometimes the file itself.
    fn check(&mut self, kill: u64, plan: Plan) {
        let context = format!("after kill {kill} ({plan:?}), seed {}", self.seed);
        let names: Vec<_> =
            self.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        if !self.store().exists() {
            // It was killed before the store existed.
            assert!(names.is_empty(), "{names:?} {context}");
            return;
        }
        assert_eq!(names, ["store.runlog"], "{context}");
        let options = worker::options(false).background(false);
        let log = if kill % 5 == 4 {
            options.open_existing(self.store()).unwrap()
        } else {
            open_copy(&options, &self.store())
        };
        assert!(log.recovery_report().damaged.is_empty(), "{context}");
        assert_eq!(log.health().quarantined, [], "{context}");
        self.ledger.settle(&log);
        log.close().unwrap();
    }
}

fn open_copy(options: &Options, path: &Path) -> RunLog {
    let bytes = std::fs::read(path).unwrap();
    options.open_storage(Arc::new(MemoryStorage::from_bytes(bytes))).unwrap()
}

fn aimed(activity: Activity) -> bool {
    AIMS.contains(&activity) || activity == Activity::IndexRebuild
}
