//! `runlog rm` and `runlog erase`: deletes runs; `erase` leaves no byte of their payloads.
//!
//! All runs are found before the first one goes, and a person at a terminal is asked.

use std::path::Path;

use runlog::{Deleted, Erased, RunLog, RunSummary};
use serde::Serialize;

use crate::confirm;
use crate::failure::{Exit, Failure};
use crate::find::{self, RunArgs};
use crate::message::{complain, note};
use crate::output::{Output, count, size};
use crate::store;

/// The options of `rm` and `erase`.
#[derive(Debug, clap::Args)]
pub(crate) struct RmArgs {
    /// The runs: their ids, or AGENT/RUN; on a terminal beginnings of these that no other run has.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,

    /// The agent of the runs, needed where several agents have a run with such an id.
    #[arg(long)]
    agent: Option<String>,

    /// Do not ask, on a terminal. Elsewhere nothing is asked.
    #[arg(short, long)]
    yes: bool,
}

/// What was done.
#[derive(Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Row<'a> {
    Delete {
        run: &'a str,
        agent: &'a str,
        #[serde(flatten)]
        deleted: Deleted,
    },
    Erase {
        run: &'a str,
        agent: &'a str,
        #[serde(flatten)]
        erased: Erased,
    },
}

pub(crate) fn delete(args: &RmArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let Some(runs) = chosen(&log, args, "delete")? else { return Ok(Exit::Error) };
    for summary in &runs {
        let (run, agent) = (summary.run.as_str(), summary.agent.as_str());
        let deleted = log.delete_run(summary)?;
        if out.is_json() {
            out.object(&Row::Delete { run, agent, deleted })?;
        } else {
            let bytes = size(deleted.bytes);
            out.line(format!("deleted run {run} of agent {agent}, {bytes} of payloads"))?;
        }
    }
    log.close()?;
    Ok(Exit::Fine)
}

pub(crate) fn erase(args: &RmArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let Some(runs) = chosen(&log, args, "erase")? else { return Ok(Exit::Error) };
    let mut pinned = 0;
    for summary in &runs {
        let (run, agent) = (summary.run.as_str(), summary.agent.as_str());
        let erased = log.erase_run(summary)?;
        pinned = pinned.max(erased.pinned_extents);
        if out.is_json() {
            out.object(&Row::Erase { run, agent, erased })?;
        } else {
            let bytes = size(erased.bytes);
            out.line(format!("erased run {run} of agent {agent}, {bytes} of payloads"))?;
        }
    }
    log.close()?;
    if pinned == 0 {
        return Ok(Exit::Fine);
    }
    // No other process reads here, so this is not expected; but it must be reported.
    let extents = count(pinned, "extent");
    complain(&format!("{extents} may still have bytes of it, since a reader holds them"));
    Ok(Exit::Error)
}

/// The runs, each once; `None` if the user does not want it after all.
fn chosen(log: &RunLog, args: &RmArgs, verb: &str) -> Result<Option<Vec<RunSummary>>, Failure> {
    let mut runs: Vec<RunSummary> = Vec::new();
    for run in &args.runs {
        let named = RunArgs { run: run.clone(), agent: args.agent.clone() };
        let found = find::run_to_change(log, &named)?;
        if runs.iter().all(|run| run.number() != found.number()) {
            runs.push(found);
        }
    }
    let bytes = runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.bytes));
    let what = format!("{verb} {}, {}", count(runs.len() as u64, "run"), size(bytes));
    if confirm::is_wanted(&what, &runs, args.yes)? {
        return Ok(Some(runs));
    }
    note("nothing is deleted");
    Ok(None)
}
