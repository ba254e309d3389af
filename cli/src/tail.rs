//! `runlog tail`: the last records of a run, of an agent or of the store, and with `-f` what
//! follows them.
//!
//! Each record is printed whole and once: [`Reader::follow`] goes on after what was read, and what
//! both give is left out by its number.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use runlog::{
    AgentId, Follow, Follower, LogCursor, LogEvent, LogEventKind, Reader, Record, RunId, RunRef,
    RunSummary, Seq,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::find::{self, RunArgs};
use crate::json::RecordRow;
use crate::line::{self, CUT};
use crate::message::{damaged, note};
use crate::output::Output;
use crate::records;
use crate::store;

/// How many frames of the end of the log are looked through first for the last records.
const BACK: u64 = 256;

/// How often a follower that waits looks whether its output is still read.
const TICK: Duration = Duration::from_millis(200);

/// The options of `tail`.
#[derive(Debug, clap::Args)]
pub(crate) struct TailArgs {
    /// The run: its id or AGENT/RUN, or a beginning of these [default: all runs].
    run: Option<String>,

    /// Only the runs of this agent; with RUN, the agent of that run.
    #[arg(long)]
    agent: Option<String>,

    /// How many of the last records to print.
    #[arg(short = 'n', long, alias = "lines", value_name = "N", default_value_t = 10)]
    limit: usize,

    /// Go on with what is appended: until the run ends, or without RUN until the command is
    /// interrupted.
    #[arg(short, long)]
    follow: bool,

    /// Print the payloads unchanged, each followed by a newline.
    #[arg(long, conflicts_with = "json")]
    raw: bool,

    /// Do not cut long payloads.
    #[arg(long)]
    full: bool,
}

/// A record, as an object.
#[derive(Serialize)]
struct Row<'a> {
    event: &'static str,
    agent: &'a AgentId,
    run: &'a RunId,
    #[serde(flatten)]
    record: RecordRow<'a>,
}

/// Prints records, and what happens to runs.
struct Printer<'a> {
    args: &'a TailArgs,
    out: &'a mut Output,
    exit: Exit,
}

pub(crate) fn run(args: &TailArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let mut printer = Printer { args, out, exit: Exit::Fine };
    match &args.run {
        Some(run) => {
            let named = RunArgs { run: run.clone(), agent: args.agent.clone() };
            one(&log, &find::run(&log, &named)?, &mut printer)?;
        }
        None => {
            // One that is followed may still come.
            if let Some(agent) = args.agent.as_deref().filter(|_| !args.follow) {
                find::agent(&log, agent)?;
            }
            all(&log, &mut printer)?;
        }
    }
    printer.out.flush()?;
    Ok(printer.exit)
}

/// The tail of one run, until it ends.
fn one(log: &Reader, summary: &RunSummary, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let run = RunRef::from(summary);
    // Before the records are read, so that none is between them and what is followed.
    let end = log.end_cursor()?;
    let mut next = Seq(0);
    for record in records::last(log, run, printer.args.limit)? {
        match record {
            Ok(record) => {
                next = Seq(record.seq().0 + 1);
                printer.record(&summary.agent, &summary.run, &record)?;
            }
            Err(error) => printer.failed(error)?,
        }
    }
    if !printer.args.follow {
        return Ok(());
    }
    // An end from here on is an event after the cursor.
    let has_ended = log.run(run)?.status.is_ended();
    let mut follower = log.follow(Follow::Run(run), end)?;
    while let Some(event) = printer.next(&mut follower, has_ended)? {
        match &event.kind {
            LogEventKind::Record(record) if record.seq() < next => {}
            LogEventKind::Ended(_) => {
                printer.event(&event)?;
                return Ok(());
            }
            LogEventKind::Deleted { .. } => {
                printer.event(&event)?;
                printer.exit = Exit::Error;
                return Ok(());
            }
            _ => printer.event(&event)?,
        }
    }
    Ok(())
}

/// The tail of the log, or of what an agent has in it.
fn all(log: &Reader, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let what = match &printer.args.agent {
        Some(agent) => Follow::Agent(agent),
        None => Follow::Everything,
    };
    let wanted = printer.args.limit;
    let end = log.end_cursor()?;
    let mut back = BACK.max(2 * wanted as u64);
    let (last, mut follower) = loop {
        let from = if wanted == 0 { end } else { end.earlier(back) };
        let mut follower = log.follow(what, from)?;
        let last = last_records(&mut follower, end, wanted)?;
        let found = last.iter().filter(|event| event.is_ok()).count();
        if found >= wanted || from == LogCursor::START {
            break (last, follower);
        }
        back = back.saturating_mul(8);
    };
    for event in last {
        match event {
            Ok(event) => printer.event(&event)?,
            Err(error) => printer.failed(error)?,
        }
    }
    if printer.args.follow {
        while let Some(event) = printer.next(&mut follower, false)? {
            printer.event(&event)?;
        }
    }
    Ok(())
}

/// The last `wanted` records as of `end`, and the damage between them.
fn last_records(
    follower: &mut Follower,
    end: LogCursor,
    wanted: usize,
) -> Result<VecDeque<runlog::Result<LogEvent>>, Failure> {
    let (mut last, mut records) = (VecDeque::new(), 0);
    while follower.cursor() < end {
        match follower.try_next() {
            Ok(None) => break,
            Ok(Some(event)) => {
                if matches!(event.kind, LogEventKind::Record(_)) {
                    last.push_back(Ok(event));
                    records += 1;
                }
            }
            Err(error) if error.is_corruption() => last.push_back(Err(error)),
            Err(error) => return Err(error.into()),
        }
        while records > wanted {
            records -= usize::from(last.pop_front().is_some_and(|event| event.is_ok()));
        }
    }
    Ok(last)
}

impl Printer<'_> {
    /// The next event, waiting for it unless `is_over`. `None` also if the output is read no more.
    fn next(
        &mut self,
        follower: &mut Follower,
        is_over: bool,
    ) -> Result<Option<LogEvent>, Failure> {
        loop {
            let found = match follower.try_next() {
                Ok(None) => {
                    self.out.flush()?;
                    if is_over || is_closed() {
                        return Ok(None);
                    }
                    follower.next_within(Some(TICK))
                }
                found => found,
            };
            match found {
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {}
                Err(error) => self.failed(error)?,
            }
        }
    }

    /// Damage costs only its record.
    fn failed(&mut self, error: runlog::Error) -> Result<(), Failure> {
        if !error.is_corruption() {
            return Err(error.into());
        }
        self.out.flush()?;
        damaged(&error.to_string());
        self.exit = Exit::Damage;
        Ok(())
    }

    fn record(&mut self, agent: &AgentId, run: &RunId, record: &Record) -> io::Result<()> {
        if self.args.raw {
            self.out.raw(record.payload())?;
            return self.out.raw(b"\n");
        }
        if self.out.is_json() {
            let record = RecordRow::new(record, None);
            return self.out.object(&Row { event: "record", agent, run, record });
        }
        if self.args.run.is_none() {
            self.out.text(format!("{agent}/{run}  "))?;
        }
        let max = if self.args.full { usize::MAX } else { CUT };
        line::write(self.out, record, record.kind().unwrap_or("-"), (0, max))
    }

    fn event(&mut self, event: &LogEvent) -> io::Result<()> {
        let LogEvent { agent, run, kind, .. } = event;
        if let LogEventKind::Record(record) = kind {
            return self.record(agent, run, record);
        }
        let (mut object, said) = match kind {
            LogEventKind::Started(_) => (json!({"event": "started"}), "was started".to_owned()),
            LogEventKind::Ended(outcome) => {
                let (at, status) = (outcome.at(), outcome.status());
                let object = json!({"event": "ended", "timestamp": at, "status": status});
                (object, format!("has ended: {status}"))
            }
            LogEventKind::Deleted { at, rule } => {
                let object = json!({"event": "deleted", "timestamp": at, "rule": rule.as_str()});
                (object, format!("was deleted: {rule}"))
            }
            // Of a later version.
            _ => return Ok(()),
        };
        if self.out.is_json() {
            (object["agent"], object["run"]) = (json!(agent), json!(run));
            return self.out.object(&object);
        }
        self.out.flush()?;
        note(&format!("run {run} of agent {agent} {said}"));
        Ok(())
    }
}

/// Whether the reader of the output, a pipe, is gone.
fn is_closed() -> bool {
    let stdout = io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut watched, Some(&now)).is_ok()
        && watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}
