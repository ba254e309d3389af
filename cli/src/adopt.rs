//! `runlog adopt`: ends the runs in progress whose programs died.
//!
//! Only one process writes a store. So while this one has it, no run in progress has another
//! writer.

use std::path::Path;
use std::time::{Duration, SystemTime};

use runlog::{
    Durability, Error, Outcome, ReadLog, RunLog, RunQuery, RunStatus, RunSummary, Timestamp,
};
use serde_json::json;

use crate::amount::parse_age;
use crate::confirm;
use crate::failure::{Exit, Failure};
use crate::find;
use crate::message::note;
use crate::output::{Output, count};
use crate::status;
use crate::store;
use crate::table::{self, Column};

/// The options of `adopt`.
#[derive(Debug, clap::Args)]
pub(crate) struct AdoptArgs {
    /// Only the runs of this agent.
    #[arg(long)]
    agent: Option<String>,

    /// Only runs to which nothing was appended for AGE, such as 1h or 2d.
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    older_than: Option<Duration>,

    /// How the runs ended.
    #[arg(long, default_value = "interrupted", value_parser = status::ended())]
    status: RunStatus,

    /// Only show which runs would be ended.
    #[arg(long)]
    dry_run: bool,

    /// Do not ask, on a terminal. Elsewhere nothing is asked.
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn run(args: &AdoptArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    if args.dry_run {
        let log = store::open_to_read(path)?;
        // The runs of a living process are its own.
        if let Some(owner) = log.writer()? {
            return Err(Error::Busy { path: path.to_path_buf(), owner: Some(owner) }.into());
        }
        args.print(&args.orphans(&log)?, out)?;
        return Ok(Exit::Fine);
    }
    let log = store::open_existing(path)?;
    let runs = args.orphans(&log)?;
    let what = format!("end {} as {}", count(runs.len() as u64, "run"), args.status);
    if !runs.is_empty() && !confirm::is_wanted(&what, &runs, args.yes)? {
        note("nothing is ended");
        return Ok(Exit::Error);
    }
    let (ended, failed) = args.end(&log, &runs);
    log.sync()?;
    args.print(&runs[..ended], out)?;
    failed?;
    log.close()?;
    Ok(Exit::Fine)
}

impl AdoptArgs {
    /// The runs in progress that are wanted, the oldest first.
    fn orphans(&self, log: &impl ReadLog) -> Result<Vec<RunSummary>, Failure> {
        let mut query = RunQuery::new().status(RunStatus::InProgress).oldest_first();
        if let Some(agent) = &self.agent {
            find::agent(log, agent)?;
            query = query.agent(agent);
        }
        let since = self.older_than.map(|age| {
            let long_ago = SystemTime::now().checked_sub(age);
            long_ago.map_or(Timestamp(i64::MIN), Timestamp::from)
        });
        let mut found = Vec::new();
        for run in log.runs(&query) {
            let run = run?;
            if since.is_none_or(|since| run.last_at <= since) {
                found.push(run);
            }
        }
        Ok(found)
    }

    /// Ends the runs, and answers how many have ended if one could not be.
    fn end(&self, log: &RunLog, runs: &[RunSummary]) -> (usize, Result<(), Failure>) {
        // One sync is enough for all of them.
        let outcome = Outcome::new(self.status).durability(Durability::Process);
        for (ended, run) in runs.iter().enumerate() {
            let done = log.writer(run).and_then(|writer| writer.end(&outcome));
            if let Err(error) = done {
                return (ended, Err(error.into()));
            }
        }
        (runs.len(), Ok(()))
    }

    fn print(&self, runs: &[RunSummary], out: &mut Output) -> Result<(), Failure> {
        let status = self.status;
        let row = |run: &RunSummary| {
            json!({
                "action": "adopt",
                "run": run.run,
                "agent": run.agent,
                "status": status,
                "started_at": run.started_at,
                "last_at": run.last_at,
                "records": run.records,
            })
        };
        let columns = [
            Column::id("run").named(if self.dry_run { "WOULD END" } else { "ENDED" }),
            Column::id("agent"),
            Column::left("started_at").optional(0),
            Column::left("last_at").named("LAST RECORD"),
            Column::right("records"),
        ];
        let rows: Vec<_> = runs.iter().map(row).collect();
        table::list(out, &columns, &rows)?;
        if !runs.is_empty() {
            out.blank()?;
        }
        let verb = if self.dry_run { "would end" } else { "ended" };
        let object = json!({"action": "total", "dry_run": self.dry_run, "adopted": runs.len()});
        out.tell(&object, format!("{verb} {} as {status}", count(runs.len() as u64, "run")))?;
        Ok(out.flush()?)
    }
}
