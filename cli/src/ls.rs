//! `runlog ls`: runs newest first, page by page, or the agents.

use std::path::Path;

use runlog::{Cursor, RunLog, RunPage, RunStatus, RunSummary};
use serde::Serialize;

use crate::args::{LsArgs, Status};
use crate::failure::{Exit, Failure};
use crate::json::RunRow;
use crate::output::{self, Align, Output, note};
use crate::{store, time};

/// How many rows are asked for, and laid out in columns, at once.
const PAGE: usize = 1000;

pub(crate) fn run(args: &LsArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    if args.agents {
        agents(&log, args, out)?;
    } else {
        runs(&log, args, out)?;
    }
    out.flush()?;
    log.close()?;
    Ok(Exit::Fine)
}

fn runs(log: &RunLog, args: &LsArgs, out: &mut Output) -> Result<(), Failure> {
    let mut after = match &args.after {
        Some(text) => Some(text.parse::<Cursor>()?),
        None => None,
    };
    let mut left = if args.all { usize::MAX } else { args.limit };
    let wanted = left;
    while left > 0 {
        // Never more than may be printed, so that the page's cursor is where printing stopped.
        let page = next_page(log, args, after.as_ref(), left.min(PAGE))?;
        let rows: Vec<&RunSummary> =
            page.runs.iter().filter(|run| args.status.is_none_or(|s| s.is(run.status))).collect();
        left -= rows.len();
        print(&rows, out)?;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if left == wanted && wanted > 0 && !out.is_json() {
        note("no runs");
    }
    // The cursor of a full page may stand at the very end.
    if let Some(cursor) = after
        && !next_page(log, args, Some(&cursor), 1)?.runs.is_empty()
    {
        out.flush()?;
        note(&format!("more runs: --after {cursor}, or --all"));
    }
    Ok(())
}

/// The next runs in the order that was asked for. The status is left to the caller, except that
/// the store knows its runs in progress.
fn next_page(
    log: &RunLog,
    args: &LsArgs,
    after: Option<&Cursor>,
    limit: usize,
) -> Result<RunPage, Failure> {
    Ok(match (&args.agent, args.status) {
        (Some(agent), _) => log.runs(agent, after, limit)?,
        (None, Some(Status::InProgress)) => log.in_progress(after, limit)?,
        (None, _) => log.all_runs(after, limit)?,
    })
}

/// Prints runs as JSON Lines or as a table.
pub(crate) fn print(runs: &[&RunSummary], out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        for run in runs {
            out.object(&RunRow::from(*run))?;
        }
        return Ok(());
    }
    if runs.is_empty() {
        return Ok(());
    }
    let heading = [
        ("RUN", Align::Left),
        ("AGENT", Align::Left),
        ("STATUS", Align::Left),
        ("STARTED", Align::Left),
        ("ENDED", Align::Left),
        ("RECORDS", Align::Right),
        ("BYTES", Align::Right),
    ];
    let rows: Vec<[String; 7]> = runs.iter().map(|run| cells(run)).collect();
    output::table(out, heading, &rows)?;
    Ok(())
}

fn cells(run: &RunSummary) -> [String; 7] {
    [
        run.run.to_string(),
        run.agent.to_string(),
        run.status.as_str().to_owned(),
        if run.started { time::seconds(run.started_at) } else { "not started".to_owned() },
        run.ended_at.map_or_else(|| "-".to_owned(), time::seconds),
        output::grouped(run.records),
        output::size(run.bytes),
    ]
}

#[derive(Serialize)]
struct AgentRow<'a> {
    agent: &'a str,
}

fn agents(log: &RunLog, args: &LsArgs, out: &mut Output) -> Result<(), Failure> {
    let mut left = if args.all { usize::MAX } else { args.limit };
    let mut after = None;
    while left > 0 {
        // One more than wanted tells whether there are more.
        let page = log.agents(after.as_ref(), left.min(PAGE).saturating_add(1))?;
        let more = page.len() > left;
        for agent in page.iter().take(left) {
            if out.is_json() {
                out.object(&AgentRow { agent: agent.as_str() })?;
            } else {
                out.line(agent.as_str())?;
            }
        }
        if more {
            out.flush()?;
            note("more agents: --all");
            return Ok(());
        }
        left -= page.len();
        after = match page.into_iter().next_back() {
            Some(agent) => Some(agent),
            None => return Ok(()),
        };
    }
    Ok(())
}

impl Status {
    fn is(self, status: RunStatus) -> bool {
        let wanted = match self {
            Self::InProgress => RunStatus::InProgress,
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
            Self::Interrupted => RunStatus::Interrupted,
        };
        status == wanted
    }
}
