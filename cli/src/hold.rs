//! `runlog hold` and `runlog release`: a held run is neither evicted nor deleted; and `runlog end`:
//! ends a run whose own program does not end it any more.

use std::path::Path;

use runlog::{Durability, Outcome, RunStatus, RunSummary};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::find::{self, RunArgs};
use crate::output::Output;
use crate::status;
use crate::store;

#[derive(Debug, clap::Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// The reason. It is stored with the run, and replaces an earlier one.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EndArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// How the run ended.
    #[arg(long, value_parser = status::ended())]
    pub(crate) status: RunStatus,
}

pub(crate) fn hold(args: &HoldArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let run = find::run_to_change(&log, &args.run)?;
    let changed = log.hold((run.agent.as_str(), run.run.as_str()), &args.reason)?;
    log.close()?;
    let done = match (changed, run.held) {
        (true, false) => "is held now",
        (true, true) => "was held already, for another reason, which is replaced",
        (false, _) => "was held already, for this reason",
    };
    print(&run, "hold", ("changed", json!(changed)), done, out)
}

pub(crate) fn release(args: &RunArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let run = find::run_to_change(&log, args)?;
    let changed = log.release((run.agent.as_str(), run.run.as_str()))?;
    log.close()?;
    let done = if changed { "is released" } else { "was not held" };
    print(&run, "release", ("changed", json!(changed)), done, out)
}

pub(crate) fn end(args: &EndArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let run = find::run_to_change(&log, &args.run)?;
    let status = args.status;
    let writer = log.writer(&run)?;
    let _ = writer.end(&Outcome::new(status).durability(Durability::Disk))?;
    drop(writer);
    log.close()?;
    print(&run, "end", ("status", json!(status)), &format!("is {status} now"), out)
}

fn print(
    summary: &RunSummary,
    action: &str,
    (name, value): (&'static str, Value),
    done: &str,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let (run, agent) = (&summary.run, &summary.agent);
    let object = json!({"action": action, "run": run, "agent": agent, name: value});
    out.tell(&object, format!("run {run} of agent {agent} {done}"))?;
    Ok(Exit::Fine)
}
