//! `runlog gc`: evicts the runs that exceed the limits, or shows which ones it would evict.
//!
//! - Without a limit nothing can be evicted: the command reports that it is a dry run.
//! - A dry run only reads the store, so that another process may write it meanwhile.
//! - Nothing is left to the background, since this process ends: dead space is freed before the
//!   report, which is printed also if that failed.

use std::path::Path;
use std::time::Duration;

use runlog::{AgentId, GcPlan, HeldRun, ProtectedRun, Protection, ReadLog, Retention, RunQuery};
use serde_json::{Value, json};

use crate::amount::{parse_age, parse_size};
use crate::escape::cut;
use crate::failure::{Exit, Failure};
use crate::message::{damaged, note};
use crate::output::{Output, count, size};
use crate::store;
use crate::table::{self, Column};

/// How many characters of the reason of a hold are shown in a table.
const CUT: usize = 80;

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

/// What is reported.
struct Report<'a> {
    plan: &'a GcPlan,
    held: &'a [HeldRun],
    is_dry: bool,
    freed: u64,
    file_bytes: u64,
}

pub(crate) fn run(args: &GcArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let policy = policy(args)?;
    if policy.is_unlimited() {
        note("no limit is given (--keep, --max-age, --max-bytes): a dry run, nothing is evicted");
    }
    if args.dry_run || policy.is_unlimited() {
        let log = store::open_to_read(path)?;
        tell_unknown(&log, args)?;
        let (held, exit) = held(&log)?;
        let (plan, file_bytes) = (log.gc_plan(&policy)?, log.stats()?.file_len);
        Report { plan: &plan, held: &held, is_dry: true, freed: 0, file_bytes }.print(out)?;
        return Ok(exit);
    }
    let log = store::open_existing(path)?;
    tell_unknown(&log, args)?;
    let (held, exit) = held(&log)?;
    let before = taken(&log)?;
    let (plan, given_back) = (log.gc(&policy)?.plan, log.reclaim());
    let (freed, file_bytes) = (before.saturating_sub(taken(&log)?), log.stats()?.file_len);
    Report { plan: &plan, held: &held, is_dry: false, freed, file_bytes }.print(out)?;
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

/// An agent without runs is probably mistyped. It evicts nothing, so it is not an error.
fn tell_unknown(log: &impl ReadLog, args: &GcArgs) -> Result<(), Failure> {
    for agent in &args.agents {
        if log.list_runs(&RunQuery::new().agent(agent).limit(1))?.runs.is_empty() {
            note(&format!("agent {agent} has no runs"));
        }
    }
    Ok(())
}

/// The held runs. If a reason cannot be read, only the reasons are missing.
fn held(log: &impl ReadLog) -> Result<(Vec<HeldRun>, Exit), Failure> {
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

impl Report<'_> {
    fn print(&self, out: &mut Output) -> Result<(), Failure> {
        let tagged = |run: Value, action: &str| {
            let mut run = run;
            run["action"] = json!(action);
            run
        };
        let evict: Vec<_> = self.plan.evict.iter().map(|run| tagged(json!(run), "evict")).collect();
        let columns = [
            Column::id("run").named(if self.is_dry { "WOULD GO" } else { "GONE" }),
            Column::id("agent"),
            Column::left("status"),
            Column::left("ended_at").optional(0),
            Column::left("rule"),
            Column::right("bytes"),
        ];
        table::list(out, &columns, &evict)?;
        if !evict.is_empty() {
            out.blank()?;
        }
        let protect = self.plan.protected.iter().map(|run| {
            let mut row = tagged(json!(run), "protect");
            row["reason"] = json!(self.reason(run));
            row
        });
        let protect: Vec<_> = protect.collect();
        let columns = [
            Column::id("run").named("PROTECTED"),
            Column::id("agent"),
            Column::left("rule"),
            Column::right("bytes"),
            Column::text("why").made(why),
        ];
        table::list(out, &columns, &protect)?;
        if !protect.is_empty() {
            out.blank()?;
        }
        let totals = &self.plan.totals;
        let object = json!({
            "action": "total",
            "dry_run": self.is_dry,
            "evicted": totals.going,
            "evicted_bytes": totals.going_bytes,
            "protected": self.plan.protected.len(),
            "kept": totals.kept,
            "kept_bytes": totals.kept_bytes,
            "in_progress": totals.in_progress,
            "in_progress_bytes": totals.in_progress_bytes,
            "excess_bytes": totals.excess_bytes,
            "freed_bytes": self.freed,
            "file_bytes": self.file_bytes,
        });
        if out.is_json() {
            out.object(&object)?;
        } else {
            self.totals(out)?;
        }
        Ok(out.flush()?)
    }

    /// Why the run is held.
    fn reason(&self, run: &ProtectedRun) -> Option<&str> {
        let is_this = |held: &&HeldRun| (&held.agent, &held.run) == (&run.agent, &run.run);
        let held = self.held.iter().find(is_this).filter(|_| run.protection == Protection::Held);
        held.map(|held| &*held.reason)
    }

    fn totals(&self, out: &mut Output) -> Result<(), Failure> {
        let totals = &self.plan.totals;
        let (evicted, kept) =
            if self.is_dry { ("would evict", "would keep") } else { ("evicted", "kept") };
        let (going, staying) = (count(totals.going, "run"), count(totals.kept, "run"));
        out.line(format!("{evicted} {going}, {}", size(totals.going_bytes)))?;
        let in_progress = match totals.in_progress {
            0 => String::new(),
            n => format!(", {n} in progress with {}", size(totals.in_progress_bytes)),
        };
        out.line(format!("{kept} {staying}, {}{in_progress}", size(totals.kept_bytes)))?;
        if totals.excess_bytes > 0 {
            let excess = size(totals.excess_bytes);
            out.line(format!(
                "that is {excess} more than --max-bytes; no other run can be evicted"
            ))?;
        }
        if !self.is_dry {
            let (freed, file) = (size(self.freed), size(self.file_bytes));
            out.line(format!("freed {freed}, the file has {file} now"))?;
        }
        Ok(())
    }
}

/// Why a run is protected, with the reason of its hold.
fn why(row: &Value) -> String {
    let protection = row["protection"].as_str().unwrap_or_default();
    let Some(reason) = row["reason"].as_str() else { return protection.to_owned() };
    let shown = cut(reason.as_bytes(), CUT).len();
    let more = if shown < reason.len() { " ..." } else { "" };
    format!("{protection}: {}{more}", reason.get(..shown).unwrap_or_default())
}
