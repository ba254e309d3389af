//! `runlog show`: the records of one run, for people, as JSON Lines, or byte for byte.
//!
//! A damaged record is reported on standard error and costs only itself; the exit code is 3 then.

use std::path::Path;

use runlog::{Error, Record, RunLog, RunRef, RunSummary, Seq};
use runlog_stores::json_lines::UNTERMINATED;

use crate::args::ShowArgs;
use crate::escape::cut;
use crate::failure::{Exit, Failure};
use crate::json::RecordRow;
use crate::output::{Output, complain, count, size};
use crate::{store, time};

/// How many characters of a payload are shown to people who did not ask for all of it.
const CUT: usize = 240;

pub(crate) fn run(args: &ShowArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let exit = show(&log, args, out)?;
    out.flush()?;
    log.close()?;
    Ok(exit)
}

fn show(log: &RunLog, args: &ShowArgs, out: &mut Output) -> Result<Exit, Failure> {
    let run = args.run.named();
    // The summary first: a run that is not there, or there twice, is an error before any output.
    let summary = log.run(run)?;
    let (from, to) = range(log, run, args)?;
    let mut printer = Printer::new(args, out);
    printer.heading(&summary)?;
    let mut exit = Exit::Fine;
    for record in log.trace(run)?.range(Seq(from)..Seq(to))? {
        match record {
            Ok(record) => printer.record(&record)?,
            Err(error) if error.is_corruption() => {
                complain(&error.to_string());
                exit = Exit::Damage;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(exit)
}

/// The first record to show and the one behind the last.
fn range(log: &RunLog, run: RunRef<'_>, args: &ShowArgs) -> Result<(u64, u64), Failure> {
    let from = args.from.unwrap_or(0);
    let to = args.to.map_or(u64::MAX, |last| last.saturating_add(1));
    let Some(last) = args.last else {
        return Ok((from, to.max(from)));
    };
    // As many steps as records were asked for, whatever the store says of itself.
    let mut from = u64::MAX;
    for record in log.trace(run)?.rev().take(usize::try_from(last).unwrap_or(usize::MAX)) {
        match record {
            Ok(record) => from = record.seq().0,
            Err(Error::Corrupt(damage)) => from = damage.seq.map_or(from, |seq| seq.0),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((from, u64::MAX))
}

/// Prints records in the form that was asked for.
struct Printer<'a> {
    args: &'a ShowArgs,
    out: &'a mut Output,
    /// A newline that is printed only when something follows: the last line of the imported file
    /// had none.
    newline_is_due: bool,
}

impl<'a> Printer<'a> {
    fn new(args: &'a ShowArgs, out: &'a mut Output) -> Self {
        Self { args, out, newline_is_due: false }
    }

    fn heading(&mut self, run: &RunSummary) -> Result<(), Failure> {
        if self.args.raw || self.out.is_json() {
            return Ok(());
        }
        let started = if run.started { "started" } else { "without a start, first record" };
        let ended = match run.ended_at {
            Some(at) => format!(", ended {}", time::seconds(at)),
            None => String::new(),
        };
        self.out.line(format!(
            "run {} of agent {}: {}, {started} {}{ended}, {}, {}",
            run.run,
            run.agent,
            run.status,
            time::seconds(run.started_at),
            count(run.records, "record"),
            size(run.bytes),
        ))?;
        Ok(())
    }

    fn record(&mut self, record: &Record) -> Result<(), Failure> {
        if self.args.raw {
            return self.raw(record);
        }
        if self.out.is_json() {
            return Ok(self.out.object(&RecordRow::from(record))?);
        }
        let max = if self.args.full { usize::MAX } else { CUT };
        let payload = cut(record.payload(), max);
        let left = record.payload().len() - payload.len();
        let more =
            if left > 0 { format!(" ... {} more", size(left as u64)) } else { String::new() };
        let late = if record.is_late() { " (after the end)" } else { "" };
        self.out.text(format!(
            "{:>5}  {}  {}{late}  ",
            record.seq(),
            time::millis(record.timestamp()),
            record.kind().unwrap_or("-"),
        ))?;
        self.out.text(payload)?;
        Ok(self.out.line(more)?)
    }

    fn raw(&mut self, record: &Record) -> Result<(), Failure> {
        if self.newline_is_due {
            self.out.raw(b"\n")?;
        }
        self.out.raw(record.payload())?;
        self.newline_is_due = record.kind() == Some(UNTERMINATED);
        if !self.newline_is_due {
            self.out.raw(b"\n")?;
        }
        Ok(())
    }
}
