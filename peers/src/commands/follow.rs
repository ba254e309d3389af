//! `tail -f` beside a writer: how far behind it is, and what it costs while nothing happens.

use std::fs::read_to_string;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use runlog::{Durability, NewRecord, Options};
use runlog_sim::SplitMix64;

/// How long nothing happens.
const IDLE: Duration = Duration::from_secs(20);
const RECORDS: usize = 200;

/// What was measured.
pub(super) struct Followed {
    /// From before each append until its line was there, sorted.
    pub(super) behind: Vec<Duration>,
    /// The processor time of the follower for each second in which nothing happens.
    pub(super) idle: Duration,
}

/// Appends records to a run that a `tail -f` follows, some time apart.
pub(super) fn follow(command: &Path, folder: &Path, small: bool) -> Followed {
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join("followed.runlog");
    let log = Options::new().create(&path).unwrap();
    let run = log.start_run("agent", "run", ()).unwrap();
    let append = |number: usize| {
        let payload = format!("{{\"number\":{number:06}}}");
        let record = NewRecord::json(payload.as_bytes()).durability(Durability::Process);
        let _ = run.append_record(&record).unwrap();
    };
    append(0);
    let mut follower = Follower::start(command, &path);
    follower.wait_for(0);
    let (idle, records) = if small { (Duration::from_millis(500), 5) } else { (IDLE, RECORDS) };
    std::thread::sleep(Duration::from_millis(500));
    let before = follower.processor();
    std::thread::sleep(idle);
    let idle = follower.processor().saturating_sub(before).div_f64(idle.as_secs_f64());
    let mut random = SplitMix64::new(12);
    let mut behind: Vec<Duration> = (1..=records)
        .map(|number| {
            std::thread::sleep(Duration::from_millis(20 + random.below(100)));
            let began = Instant::now();
            append(number);
            follower.wait_for(number);
            began.elapsed()
        })
        .collect();
    behind.sort_unstable();
    drop(follower);
    drop(run);
    log.close().unwrap();
    Followed { behind, idle }
}

struct Follower {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Follower {
    fn start(command: &Path, store: &Path) -> Self {
        let mut child = Command::new(command)
            .args(["tail", "-f", "--json", "run"])
            .env("RUNLOG_STORE", store)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Reads lines until one has the record.
    fn wait_for(&mut self, number: usize) {
        let wanted = format!("{number:06}");
        let mut line = String::new();
        while !line.contains(&wanted) {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the follower ended");
        }
    }

    /// The processor time so far, of all its threads.
    fn processor(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let nanos = tasks.map(|task| {
            let text = read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
        });
        Duration::from_nanos(nanos.sum())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}
