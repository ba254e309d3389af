//! `runlog gc`: evicts the runs that exceed the limits, or shows which ones it would evict.
//!
//! - Without a limit nothing can be evicted: the command reports that it is a dry run.
//! - A dry run only reads the store, so that another process may write it meanwhile.
//! - Nothing is left to the background, since this process ends: dead space is freed before the
//!   report, which is printed also if that failed.

use std::path::Path;
use std::time::Duration;

use runlog::{AgentId, GcPlan, HeldRun, Protection, ReadLog, Retention};
use serde_json::{Value, json};

use crate::amount::{parse_age, parse_size};
use crate::failure::{Exit, Failure};
use crate::find;
use crate::message::{damaged, note};
use crate::output::{Output, count, size};
use crate::store;
use crate::table::{self, Column};

/// Which runs `gc` evicts.
#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Only show what would be evicted.
    #[arg(long)]
    dry_run: bool,

    /// Keep the newest N ended runs of each agent.
    #[arg(long, value_name = "N")]
    keep: Option<u64>,

    /// Evict runs that ended longer ago than AGE.
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    max_age: Option<Duration>,

    /// Keep at most SIZE; the runs that ended first are evicted first.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_bytes: Option<u64>,

    /// Only the runs of this agent; may be repeated.
    #[arg(long = "agent", value_name = "AGENT")]
    agents: Vec<String>,

    /// Keep the newest ended run of each agent, whatever the limits say.
    #[arg(long)]
    protect_newest: bool,
}

pub(crate) fn run(args: &GcArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let policy = policy(args)?;
    if policy.is_unlimited() {
        note("no limit is given (--keep, --max-age, --max-bytes): a dry run, nothing is evicted");
    }
    if args.dry_run || policy.is_unlimited() {
        let log = store::open_to_read(path)?;
        let (held, exit) = held(&log, args)?;
        let freed = (None, log.stats()?.file_len);
        print(&log.gc_plan(&policy)?, &held, freed, out)?;
        return Ok(exit);
    }
    let log = store::open_existing(path)?;
    let (held, exit) = held(&log, args)?;
    let before = taken(&log)?;
    let (plan, given_back) = (log.gc(&policy)?.plan, log.reclaim());
    let freed = (Some(before.saturating_sub(taken(&log)?)), log.stats()?.file_len);
    print(&plan, &held, freed, out)?;
    given_back?;
    log.close()?;
    Ok(exit)
}

fn policy(args: &GcArgs) -> Result<Retention, Failure> {
    let mut policy = Retention::new()
        .keep_newest(args.keep)
        .max_age(args.max_age)
        .max_bytes(args.max_bytes)
        .protect_newest(args.protect_newest);
    for agent in &args.agents {
        policy = policy.only_agent(AgentId::new(agent)?);
    }
    policy.check()?;
    Ok(policy)
}

/// The held runs. If a reason cannot be read, only the reasons are missing. An agent without runs
/// is probably mistyped.
fn held(log: &impl ReadLog, args: &GcArgs) -> Result<(Vec<HeldRun>, Exit), Failure> {
    args.agents.iter().try_for_each(|agent| find::agent(log, agent))?;
    match log.held_runs() {
        Ok(held) => Ok((held, Exit::Fine)),
        Err(error) if error.is_corruption() => {
            damaged(&error.to_string());
            Ok((Vec::new(), Exit::Damage))
        }
        Err(error) => Err(error.into()),
    }
}

/// The bytes of the file that are in use.
fn taken(log: &impl ReadLog) -> Result<u64, Failure> {
    let stats = log.stats()?;
    Ok(stats.file_len.saturating_sub(stats.free_extents.saturating_mul(stats.extent_len)))
}

/// Tells what goes, what is protected, and how much that is. Nothing is freed in a dry run.
fn print(
    plan: &GcPlan,
    held: &[HeldRun],
    (freed, file_bytes): (Option<u64>, u64),
    out: &mut Output,
) -> Result<(), Failure> {
    let row = |run: Value, action: &str| {
        let mut row = run;
        row["action"] = json!(action);
        row
    };
    let evict: Vec<_> = plan.evict.iter().map(|run| row(json!(run), "evict")).collect();
    let columns = [
        Column::id("run").named(if freed.is_none() { "WOULD GO" } else { "GONE" }),
        Column::id("agent"),
        Column::left("status"),
        Column::left("ended_at").optional(0),
        Column::left("rule"),
        Column::right("bytes"),
    ];
    table::list(out, &columns, &evict)?;
    let protect = plan.protected.iter().map(|run| {
        let mut row = row(json!(run), "protect");
        let is_this = |held: &&HeldRun| (&held.agent, &held.run) == (&run.agent, &run.run);
        let held = held.iter().find(is_this).filter(|_| run.protection == Protection::Held);
        row["reason"] = json!(held.map(|held| &held.reason));
        row
    });
    let columns = [
        Column::id("run").named("PROTECTED"),
        Column::id("agent"),
        Column::left("rule"),
        Column::right("bytes"),
        Column::left("protection"),
        Column::text("reason"),
    ];
    table::list(out, &columns, &protect.collect::<Vec<_>>())?;
    let totals = &plan.totals;
    let object = json!({
        "action": "total",
        "dry_run": freed.is_none(),
        "evicted": totals.going,
        "evicted_bytes": totals.going_bytes,
        "protected": plan.protected.len(),
        "kept": totals.kept,
        "kept_bytes": totals.kept_bytes,
        "in_progress": totals.in_progress,
        "in_progress_bytes": totals.in_progress_bytes,
        "excess_bytes": totals.excess_bytes,
        "freed_bytes": freed.unwrap_or_default(),
        "file_bytes": file_bytes,
    });
    let evicted = if freed.is_none() { "would evict" } else { "evicted" };
    let (going, kept) = (count(totals.going, "run"), count(totals.kept, "run"));
    let (going_bytes, kept_bytes) = (size(totals.going_bytes), size(totals.kept_bytes));
    let mut text = format!("{evicted} {going}, {going_bytes}; {kept} left, {kept_bytes}");
    if totals.excess_bytes > 0 {
        let excess = size(totals.excess_bytes);
        text = format!("{text}, {excess} more than --max-bytes; no other run can be evicted");
    }
    if let Some(freed) = freed {
        let (freed, file) = (size(freed), size(file_bytes));
        text = format!("{text}; freed {freed}, the file has {file} now");
    }
    out.tell(&object, text)?;
    Ok(out.flush()?)
}
