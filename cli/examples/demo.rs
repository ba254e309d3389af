//! What was acknowledged is there after the writing process is killed: `runlog demo` runs this.
//!
//! A second process appends runs from several threads, and reports each acknowledgement through a
//! pipe. It is killed with SIGKILL while it appends. Then this process opens the file, makes each
//! acknowledged record again from the seed and compares it, ends the runs that the kill cut off,
//! and looks one up by its id.
//!
//! A kill leaves the page cache alone, so this shows the promise of level `Process` for a kill. The
//! simulations of the test suite cover power cuts.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, thread};

use runlog::{ContentType, Durability, NewRecord, Options, Outcome, RunLog, RunQuery};
use serde_json::{Value, json};

/// Whatever ended the demonstration.
pub(crate) type Failed = Box<dyn Error + Send + Sync>;

/// Takes each step, as an object and in words.
pub(crate) type Tell<'a> = dyn FnMut(Value, String) -> io::Result<()> + 'a;

const AGENTS: [&str; 4] = ["coder", "planner", "reviewer", "writer"];

/// The writer is killed early once so many records are acknowledged: no machine fills its disk.
const ENOUGH: u64 = 200_000;

/// What is written, by how many threads, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Demo {
    pub(crate) file: PathBuf,
    pub(crate) seed: u64,
    pub(crate) threads: u32,
    pub(crate) time: Duration,
}

/// What was acknowledged of a run.
#[derive(Debug, Default)]
struct Acknowledged {
    records: u64,
    has_ended: bool,
}

type Runs = BTreeMap<u32, Acknowledged>;

impl Demo {
    /// Performs it. `writer` is a command that calls [`Demo::write`]. Answers whether every promise
    /// was kept.
    pub(crate) fn run(&self, mut writer: Command, tell: &mut Tell<'_>) -> Result<bool, Failed> {
        Options::new().create(&self.file)?.close()?;
        let (file, threads) = (self.file.display().to_string(), self.threads);
        tell(
            json!({"event": "begin", "file": file, "threads": threads, "seed": self.seed}),
            format!("write    a second process appends from {threads} threads to {file}"),
        )?;
        let runs = self.killed(&mut writer)?;
        let records: u64 = runs.values().map(|run| run.records).sum();
        tell(
            json!({"event": "killed", "runs": runs.len(), "records": records}),
            format!("kill     after {records} acknowledged records of {} runs", runs.len()),
        )?;
        let clock = Instant::now();
        let log = Options::new().open_existing(&self.file)?;
        let (took, report) = (millis(clock.elapsed()), log.recovery_report().to_string());
        let shown = report.replace('\n', "\n         ");
        tell(
            json!({"event": "recovered", "took_ms": took, "report": report}),
            format!("reopen   took {took} ms\n         {shown}"),
        )?;
        let is_kept = self.check(&log, &runs, tell)?;
        let adopted = log.adopt_orphans()?.runs.len();
        tell(
            json!({"event": "adopted", "runs": adopted}),
            format!("adopt    {adopted} runs that the kill cut off are interrupted now"),
        )?;
        for run in log.list_runs(&RunQuery::new().limit(12))?.runs {
            let (id, agent, status) = (run.run.as_str(), run.agent.as_str(), run.status.as_str());
            tell(
                json!({"event": "run", "run": id, "agent": agent, "status": status}),
                format!("list     {id}  {agent:<10}{status:<13}{} records", run.records),
            )?;
        }
        look_up(&log, &runs, tell)?;
        let problems = log.verify()?.problems.len();
        tell(
            json!({"event": "verified", "problems": problems}),
            format!("verify   every byte was read: {problems} problems"),
        )?;
        log.close()?;
        Ok(is_kept && problems == 0)
    }

    /// Writes until it is killed: the process that `run` starts. It ends with its parent.
    pub(crate) fn write(&self) -> Result<(), Failed> {
        let log = Options::new().open_existing(&self.file)?;
        let (failed, failure) = std::sync::mpsc::channel();
        // The parent sends nothing: its end of the pipe closes when it dies.
        thread::spawn(|| {
            let _ = io::stdin().read(&mut [0]);
            process::exit(1);
        });
        for first in 0..self.threads {
            let (demo, log, failed) = (self.clone(), log.clone(), failed.clone());
            thread::spawn(move || {
                let step = usize::try_from(demo.threads).unwrap_or(1);
                let done = (first..).step_by(step).try_for_each(|run| demo.write_run(&log, run));
                let _ = failed.send(done);
            });
        }
        failure.recv()?
    }

    fn write_run(&self, log: &RunLog, run: u32) -> Result<(), Failed> {
        // One call for each, and shorter than the atomic writes of a pipe.
        let acknowledge = |what: &str| io::stdout().write_all(format!("{run} {what}\n").as_bytes());
        let writer = log.start_run(agent(run), &id(run), br#"{"task":"demonstration"}"#)?;
        acknowledge("started")?;
        for seq in 0..20 + mixed(self.seed ^ u64::from(run)) % 60 {
            let level = if seq % 64 == 0 { Durability::Disk } else { Durability::Process };
            let payload = self.payload(run, seq);
            let record = NewRecord::new(payload.as_bytes()).kind("message").durability(level);
            let _ = writer.append_record(&record.content_type(ContentType::JSON))?;
            acknowledge("record")?;
        }
        let _ = writer.end(&Outcome::completed())?;
        Ok(acknowledge("ended")?)
    }

    /// The payload of a record, made from the seed. Most are short and few are long, as of agents.
    fn payload(&self, run: u32, seq: u64) -> String {
        let number = mixed(mixed(self.seed ^ u64::from(run)) ^ seq);
        let words = 8_usize << number.trailing_zeros().min(11);
        let text = format!("{number:016x} ").repeat(words);
        format!(r#"{{"role":"assistant","run":{run},"turn":{seq},"content":"{text}"}}"#)
    }

    /// Starts the writer, collects what it reports, and kills it in the middle of its work.
    fn killed(&self, writer: &mut Command) -> Result<Runs, Failed> {
        let mut child = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let pipe = BufReader::new(child.stdout.take().ok_or("the writer has no output")?);
        let (clock, mut runs, mut lines, mut is_killed) = (Instant::now(), Runs::new(), 0, false);
        // The pipe keeps the lines that the writer printed before the kill.
        for line in pipe.lines() {
            let line = line?;
            let (number, what) = line.split_once(' ').ok_or("no acknowledgement")?;
            let known = runs.entry(number.parse()?).or_default();
            known.records += u64::from(what == "record");
            known.has_ended |= what == "ended";
            lines += 1;
            if !is_killed && (clock.elapsed() >= self.time || lines >= ENOUGH) {
                child.kill()?;
                is_killed = true;
            }
        }
        child.wait()?;
        drop(input);
        if is_killed { Ok(runs) } else { Err("the writing process ended by itself".into()) }
    }

    /// Compares each acknowledged record with the store.
    fn check(&self, log: &RunLog, runs: &Runs, tell: &mut Tell<'_>) -> Result<bool, Failed> {
        let (mut intact, mut missing, mut changed, mut more) = (0, 0, 0, 0);
        for (run, acknowledged) in runs {
            let name = id(*run);
            let mut found = 0;
            for record in log.trace((agent(*run), name.as_str()))? {
                let expected = self.payload(*run, found);
                let is_same = record.is_ok_and(|record| record.payload() == expected.as_bytes());
                let counted = if found < acknowledged.records { &mut intact } else { &mut more };
                *(if is_same { counted } else { &mut changed }) += 1;
                found += 1;
            }
            missing += acknowledged.records.saturating_sub(found);
            let has_ended = log.run((agent(*run), name.as_str()))?.status.is_ended();
            missing += u64::from(acknowledged.has_ended && !has_ended);
        }
        tell(
            json!({"event": "checked", "intact": intact, "missing": missing, "changed": changed,
                "in_flight": more}),
            format!(
                "check    {intact} acknowledged records are there byte for byte; {missing} \
                 missing, {changed} changed;\n         {more} more were stored and are whole"
            ),
        )?;
        Ok(missing + changed == 0)
    }
}

/// Times the lookup of a run by its id alone, with the file in memory.
fn look_up(log: &RunLog, runs: &Runs, tell: &mut Tell<'_>) -> Result<(), Failed> {
    let Some((run, _)) = runs.iter().max_by_key(|(_, run)| run.records) else { return Ok(()) };
    let (name, mut times, mut records) = (id(*run), Vec::new(), 0);
    for _ in 0..101 {
        let clock = Instant::now();
        records = log.trace(name.as_str())?.count();
        times.push(clock.elapsed());
    }
    times.sort_unstable();
    let took = millis(times[times.len() / 2]);
    tell(
        json!({"event": "looked_up", "run": name, "records": records, "median_ms": took}),
        format!("look up  {records} records of {name} by its id alone in {took} ms"),
    )?;
    Ok(())
}

fn agent(run: u32) -> &'static str {
    AGENTS[run as usize % AGENTS.len()]
}

fn id(run: u32) -> String {
    format!("run-{run:05}")
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Mixes all bits; no two numbers become the same.
fn mixed(number: u64) -> u64 {
    let bits = (number ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (bits >> 31)
}

/// Calls `with` with the path of a store in a new folder, and then removes the folder.
pub(crate) fn in_a_folder<T>(with: impl FnOnce(&Path) -> T) -> io::Result<T> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let folder = env::temp_dir().join(format!("runlog-demo-{}-{now}", process::id()));
    // It fails if something is there, so no other user can prepare the folder.
    fs::create_dir(&folder)?;
    let done = with(&folder.join("demo.runlog"));
    fs::remove_dir_all(&folder)?;
    Ok(done)
}

#[allow(dead_code, reason = "`runlog demo` has a main of its own")]
fn main() -> Result<(), Failed> {
    let demo = |file: &Path| {
        let (file, time) = (file.to_path_buf(), Duration::from_secs(2));
        Demo { file, seed: 7, threads: 8, time }
    };
    if let Some(file) = env::args_os().nth(1) {
        return demo(Path::new(&file)).write();
    }
    in_a_folder(|file| {
        let mut writer = Command::new(env::current_exe()?);
        writer.arg(file);
        let is_good = demo(file).run(writer, &mut |_, line| {
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes())?;
            out.write_all(b"\n")
        })?;
        if is_good { Ok(()) } else { Err("a promise was not kept".into()) }
    })?
}
