//! `runlog demo`: demonstrates the promises of the store.
//!
//! 1. A second process writes runs of several agents from several threads into a new store and
//!    reports each acknowledgement through a pipe ([`writer`], [`ack`]).
//! 2. It is killed with SIGKILL while it appends.
//! 3. This process opens the file and shows what recovery found.
//! 4. It makes every acknowledged record again from the seed ([`workload`]) and compares it with
//!    the record of the store ([`check`]).
//! 5. It ends the runs that the kill left behind, lists the newest, and looks one up by its id.
//!
//! A kill does not affect the page cache, so this shows the promise of Process level for a kill.
//! The simulations of the test suite cover power cuts.

mod ack;
mod check;
mod story;
mod workload;
mod writer;

use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use runlog::{Options, RunLog, RunQuery};

use crate::args::{DemoArgs, WriterArgs};
use crate::failure::{Exit, Failure};
use crate::ls::{self, Listed};
use crate::output::Output;

use self::ack::Ack;
use self::check::Acks;
use self::story::{Lookup, Step, Story};
use self::workload::Workload;

/// The writer is killed early when it has written this much, so that a fast machine does not fill
/// its disk.
const ENOUGH_BYTES: u64 = 256 << 20;

/// How many runs are listed.
const LISTED: usize = 12;

/// How often the same lookup is timed.
const LOOKUPS: usize = 201;

/// The hidden command that the second process runs.
pub(crate) fn write(args: &WriterArgs) -> Result<Exit, Failure> {
    writer::run(args)
}

pub(crate) fn run(args: &DemoArgs, file: Option<&Path>, out: &mut Output) -> Result<Exit, Failure> {
    let place = Place::new(args.keep.as_deref().or(file))?;
    let mut story = Story::new(out);
    let good = perform(args, &place, &mut story)?;
    story.tell(&Step::End { good, kept: place.kept() })?;
    Ok(if good { Exit::Fine } else { Exit::Error })
}

/// Everything between creating the store and removing it. Returns whether all promises were kept.
fn perform(args: &DemoArgs, place: &Place, story: &mut Story<'_>) -> Result<bool, Failure> {
    let workload = Workload::new(args.seed);
    Options::new().create(&place.file)?.close()?;
    story.tell(&Step::Begin { file: &place.file, threads: args.threads, seed: args.seed })?;

    let (acks, wrote) = write_until_killed(args, &place.file, &workload)?;
    story.tell(&Step::Killed { acks: &acks, after: wrote, len: file_len(&place.file)? })?;

    let clock = Instant::now();
    let log = Options::new().open_existing(&place.file)?;
    let opened = clock.elapsed();
    story.tell(&Step::Recovered { report: log.recovery_report(), took: opened })?;

    let clock = Instant::now();
    let verdict = check::check(&log, &acks, &workload)?;
    story.tell(&Step::Checked { acks: &acks, verdict: &verdict, took: clock.elapsed() })?;

    let adopted = log.adopt_orphans()?;
    story.tell(&Step::Adopted { runs: adopted.runs.len() })?;

    let newest = log.list_runs(&RunQuery::new().limit(LISTED))?.runs;
    let rows: Vec<Listed> = newest.into_iter().map(Listed::from).collect();
    story.tell(&Step::Newest)?;
    story.rows(|out| ls::print(&rows, out))?;
    if let Some(lookup) = look_up(&log, &acks)? {
        story.tell(&Step::LookedUp(lookup))?;
    }

    let clock = Instant::now();
    let report = log.verify()?;
    let problems = report.problems.len();
    story.tell(&Step::Verified { report: &report, took: clock.elapsed() })?;
    log.close()?;
    Ok(verdict.is_good() && problems == 0)
}

/// Starts the writing process, collects its acknowledgements, and kills it in the middle of its
/// work. Also returns how long it wrote.
fn write_until_killed(
    args: &DemoArgs,
    file: &Path,
    workload: &Workload,
) -> Result<(Acks, Duration), Failure> {
    let mut writer = Writer::start(args, file)?;
    let Some(pipe) = writer.child.stdout.take() else {
        return Err(Failure::said("the writing process has no output"));
    };
    let bytes = AtomicU64::new(0);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut pipe = BufReader::new(pipe);
            let mut acks = Acks::default();
            while let Some(ack) = Ack::read(&mut pipe)? {
                acks.add(ack, workload);
                bytes.store(acks.bytes, Ordering::Relaxed);
            }
            Ok(acks)
        });
        let clock = Instant::now();
        let deadline = Duration::from_millis(args.millis);
        let is_early = || {
            clock.elapsed() < deadline
                && bytes.load(Ordering::Relaxed) < ENOUGH_BYTES
                && !reader.is_finished()
        };
        while is_early() {
            thread::sleep(Duration::from_millis(5));
        }
        let died_first = reader.is_finished();
        writer.kill()?;
        let wrote = clock.elapsed();
        let acks = collect(reader)?;
        if died_first {
            return Err(Failure::said("the writing process ended by itself"));
        }
        Ok((acks, wrote))
    })
}

/// The acknowledgements. The pipe ends when the writer is dead, so this does not wait long.
fn collect(reader: ScopedJoinHandle<'_, io::Result<Acks>>) -> Result<Acks, Failure> {
    let acks = reader.join().map_err(|_| Failure::said("an acknowledgement out of order"))?;
    acks.map_err(|error| Failure::said(format!("cannot read the acknowledgements: {error}")))
}

/// The writing process. It is killed at the latest when this is dropped.
struct Writer {
    child: Child,
    /// Closed when this process ends, which ends the writer.
    _life: Option<ChildStdin>,
}

impl Writer {
    fn start(args: &DemoArgs, file: &Path) -> Result<Self, Failure> {
        let cannot = |error| Failure::said(format!("cannot start the writing process: {error}"));
        let mut child = Command::new(std::env::current_exe().map_err(cannot)?)
            .arg("demo-writer")
            .arg("--file")
            .arg(file)
            .arg(format!("--seed={}", args.seed))
            .arg(format!("--threads={}", args.threads))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(cannot)?;
        let life = child.stdin.take();
        Ok(Self { child, _life: life })
    }

    /// Kills it with SIGKILL and waits until it has ended.
    fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map_err(|error| Failure::said(format!("cannot kill the writer: {error}")))?;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Killing a dead process is not an error; no caller could use other errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Times the lookup of one run, which ended before the kill, by its id alone.
fn look_up(log: &RunLog, acks: &Acks) -> Result<Option<Lookup>, Failure> {
    let mut ended: Vec<_> = acks.runs.iter().filter(|(_, run)| run.ended).collect();
    // The median run by its number of records.
    ended.sort_by_key(|(number, run)| (run.records, **number));
    let Some((number, run)) = ended.get(ended.len() / 2) else {
        return Ok(None);
    };
    let run_id = Workload::run_id(**number);
    let mut times = Vec::with_capacity(LOOKUPS);
    let mut bytes = 0;
    for _ in 0..LOOKUPS {
        let clock = Instant::now();
        bytes = 0;
        for record in log.trace(run_id.as_str())? {
            bytes += record?.payload().len() as u64;
        }
        times.push(clock.elapsed());
    }
    times.sort_unstable();
    let median = times.get(LOOKUPS / 2).copied().unwrap_or_default();
    let agent = log.agent_of(&run_id)?;
    Ok(Some(Lookup { run: run_id, agent, records: run.records, bytes, median, times: LOOKUPS }))
}

fn file_len(file: &Path) -> Result<u64, Failure> {
    Ok(fs::metadata(file).map_err(|error| Failure::file(file, error))?.len())
}

/// Where the store of the demonstration is, and whether it is kept.
struct Place {
    file: PathBuf,
    /// The folder that is removed at the end.
    temporary: Option<PathBuf>,
}

impl Place {
    fn new(keep: Option<&Path>) -> Result<Self, Failure> {
        if let Some(file) = keep {
            return Ok(Self { file: file.to_path_buf(), temporary: None });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let name = format!("runlog-demo-{}-{now}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        // Fails if something is there already, so no other user can prepare the folder.
        fs::create_dir(&folder).map_err(|error| Failure::file(&folder, error))?;
        Ok(Self { file: folder.join("demo.runlog"), temporary: Some(folder) })
    }

    fn kept(&self) -> Option<&Path> {
        self.temporary.is_none().then_some(self.file.as_path())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(folder) = &self.temporary {
            let _ = fs::remove_dir_all(folder);
        }
    }
}
