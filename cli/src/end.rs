//! `runlog end`: ends a run whose own program does not end it any more.

use std::path::Path;

use runlog::{Durability, Outcome};
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::find::{self, RunArgs};
use crate::output::Output;
use crate::status::EndStatus;
use crate::store;

#[derive(Debug, clap::Args)]
pub(crate) struct EndArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// How the run ended.
    #[arg(long)]
    pub(crate) status: EndStatus,
}

pub(crate) fn run(args: &EndArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let summary = find::run_to_change(&log, &args.run)?;
    let status = args.status.status();
    let writer = log.writer(&summary)?;
    let _ = writer.end(&Outcome::new(status).durability(Durability::Disk))?;
    drop(writer);
    log.close()?;
    let (run, agent) = (&summary.run, &summary.agent);
    let object = json!({"action": "end", "run": run, "agent": agent, "status": status});
    out.tell(&object, format!("run {run} of agent {agent} is {status} now"))?;
    Ok(Exit::Fine)
}
