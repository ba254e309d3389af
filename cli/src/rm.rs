//! `runlog rm` and `runlog erase`: one run goes; erased, it leaves no byte of its payloads.

use std::path::Path;

use serde::Serialize;

use crate::args::RunArgs;
use crate::failure::{Exit, Failure};
use crate::output::{Output, complain, count, size};
use crate::store;

/// What was done.
#[derive(Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Row<'a> {
    Delete { run: &'a str, agent: &'a str, bytes: u64 },
    Erase { run: &'a str, agent: &'a str, bytes: u64, pinned_extents: u64 },
}

pub(crate) fn delete(args: &RunArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let summary = log.run(args.named())?;
    let (run, agent) = (summary.run.as_str(), summary.agent.as_str());
    let bytes = log.delete_run((agent, run))?.bytes;
    log.close()?;
    if out.is_json() {
        out.object(&Row::Delete { run, agent, bytes })?;
    } else {
        out.line(format!("deleted run {run} of agent {agent}, {} of payloads", size(bytes)))?;
    }
    Ok(Exit::Fine)
}

pub(crate) fn erase(args: &RunArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let summary = log.run(args.named())?;
    let (run, agent) = (summary.run.as_str(), summary.agent.as_str());
    let erased = log.erase_run((agent, run))?;
    let (bytes, pinned_extents) = (erased.bytes, erased.pinned_extents);
    log.close()?;
    if out.is_json() {
        out.object(&Row::Erase { run, agent, bytes, pinned_extents })?;
    } else {
        out.line(format!("erased run {run} of agent {agent}, {} of payloads", size(bytes)))?;
    }
    if pinned_extents == 0 {
        return Ok(Exit::Fine);
    }
    // No other process reads here, so this is not expected; but it must not be passed over.
    let extents = count(pinned_extents, "extent");
    complain(&format!("{extents} may still have bytes of it, since somebody reads there"));
    Ok(Exit::Error)
}
