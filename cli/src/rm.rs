//! `runlog rm` and `runlog erase`: deletes runs; `erase` leaves no byte of their payloads.
//!
//! All runs are found before the first one goes, and a person at a terminal is asked.

use std::path::Path;

use runlog::{RunLog, RunSummary};
use serde_json::json;

use crate::confirm;
use crate::failure::{Exit, Failure};
use crate::find::{self, RunArgs};
use crate::message::{note, tell_pinned};
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

/// Deletes the runs, and with `erase` every byte of their payloads.
pub(crate) fn run(
    args: &RmArgs,
    erase: bool,
    path: &Path,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let (verb, done) = if erase { ("erase", "erased") } else { ("delete", "deleted") };
    let Some(runs) = chosen(&log, args, verb)? else { return Ok(Exit::Error) };
    let mut pinned = 0;
    for summary in &runs {
        let (run, agent) = (&summary.run, &summary.agent);
        let (mut object, bytes) = if erase {
            let erased = log.erase_run(summary)?;
            pinned = pinned.max(erased.pinned_extents);
            (json!(erased), erased.bytes)
        } else {
            let deleted = log.delete_run(summary)?;
            (json!(deleted), deleted.bytes)
        };
        (object["action"], object["run"], object["agent"]) =
            (json!(verb), json!(run), json!(agent));
        let bytes = size(bytes);
        out.tell(&object, format!("{done} run {run} of agent {agent}, {bytes} of payloads"))?;
    }
    log.close()?;
    Ok(tell_pinned(pinned))
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
