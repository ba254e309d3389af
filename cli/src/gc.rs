//! `runlog gc`: evicts the runs that exceed the limits, or shows which ones it would evict.
//!
//! - Without a limit nothing can be evicted: the command reports that it is a dry run.
//! - A dry run only reads the store, so that another process may write it meanwhile.
//! - Nothing is left to the background, since this process ends: dead space is freed before the
//!   report, which is printed also if that failed.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use runlog::{
    AgentId, GcPlan, HeldRun, PlannedEviction, ProtectedRun, Protection, ReadLog, Retention,
    RunQuery,
};
use serde::Serialize;

use crate::amount::{age, exact_size, parse_age, parse_size};
use crate::escape::cut;
use crate::failure::{Exit, Failure};
use crate::message::{damaged, note};
use crate::output::{Output, count, size};
use crate::store;
use crate::table::{self, Cell, Column};

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

/// One run, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Row<'a> {
    Evict(&'a PlannedEviction),
    Protect {
        #[serde(flatten)]
        run: &'a ProtectedRun,
        reason: Option<&'a str>,
    },
    Total {
        dry_run: bool,
        evicted: u64,
        evicted_bytes: u64,
        protected: u64,
        kept: u64,
        kept_bytes: u64,
        in_progress: u64,
        in_progress_bytes: u64,
        excess_bytes: u64,
        freed_bytes: u64,
        file_bytes: u64,
    },
}

/// What is reported.
struct Report<'a> {
    plan: &'a GcPlan,
    /// Why runs are held.
    reasons: HashMap<(&'a str, &'a str), &'a str>,
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
        let (reasons, is_dry) = (reasons(&held), true);
        Report { plan: &plan, reasons, is_dry, freed: 0, file_bytes }.print(args, out)?;
        return Ok(exit);
    }
    let log = store::open_existing(path)?;
    tell_unknown(&log, args)?;
    let (held, exit) = held(&log)?;
    let before = taken(&log)?;
    let (plan, given_back) = (log.gc(&policy)?.plan, log.reclaim());
    let (freed, file_bytes) = (before.saturating_sub(taken(&log)?), log.stats()?.file_len);
    let (reasons, is_dry) = (reasons(&held), false);
    Report { plan: &plan, reasons, is_dry, freed, file_bytes }.print(args, out)?;
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

fn reasons(held: &[HeldRun]) -> HashMap<(&str, &str), &str> {
    let reasons = held.iter().map(|run| ((run.agent.as_str(), run.run.as_str()), &*run.reason));
    reasons.collect()
}

/// The bytes of the file that are in use.
fn taken(log: &impl ReadLog) -> Result<u64, Failure> {
    let stats = log.stats()?;
    Ok(stats.file_len.saturating_sub(stats.free_extents.saturating_mul(stats.extent_len)))
}

impl Report<'_> {
    fn print(&self, args: &GcArgs, out: &mut Output) -> Result<(), Failure> {
        if out.is_json() {
            self.json(out)?;
        } else {
            self.text(args, out)?;
        }
        Ok(out.flush()?)
    }

    fn json(&self, out: &mut Output) -> Result<(), Failure> {
        for run in &self.plan.evict {
            out.object(&Row::Evict(run))?;
        }
        for run in &self.plan.protected {
            out.object(&Row::Protect { run, reason: self.reason(run) })?;
        }
        let totals = &self.plan.totals;
        out.object(&Row::Total {
            dry_run: self.is_dry,
            evicted: totals.going,
            evicted_bytes: totals.going_bytes,
            protected: self.plan.protected.len() as u64,
            kept: totals.kept,
            kept_bytes: totals.kept_bytes,
            in_progress: totals.in_progress,
            in_progress_bytes: totals.in_progress_bytes,
            excess_bytes: totals.excess_bytes,
            freed_bytes: self.freed,
            file_bytes: self.file_bytes,
        })?;
        Ok(())
    }

    /// Why the run is held.
    fn reason(&self, run: &ProtectedRun) -> Option<&str> {
        if run.protection != Protection::Held {
            return None;
        }
        self.reasons.get(&(run.agent.as_str(), run.run.as_str())).copied()
    }

    fn text(&self, args: &GcArgs, out: &mut Output) -> Result<(), Failure> {
        self.evicted(out)?;
        self.protected(out)?;
        self.totals(out)?;
        let limits = limits(args);
        if !limits.is_empty() {
            out.line(format!("limits: {limits}"))?;
        }
        if !self.is_dry {
            let (freed, file) = (size(self.freed), size(self.file_bytes));
            out.line(format!("freed {freed}, the file has {file} now"))?;
        }
        Ok(())
    }

    fn evicted(&self, out: &mut Output) -> Result<(), Failure> {
        if self.plan.evict.is_empty() {
            return Ok(());
        }
        let columns = [
            Column::id(if self.is_dry { "WOULD GO" } else { "GONE" }),
            Column::id("AGENT"),
            Column::left("STATUS"),
            Column::left("ENDED").optional(0),
            Column::left("RULE"),
            Column::right("SIZE"),
        ];
        let rows: Vec<_> = self.plan.evict.iter().map(|run| evicted_cells(run, out)).collect();
        table::write(out, &columns, &rows)?;
        out.line("")?;
        Ok(())
    }

    fn protected(&self, out: &mut Output) -> Result<(), Failure> {
        if self.plan.protected.is_empty() {
            return Ok(());
        }
        let columns = [
            Column::id("PROTECTED"),
            Column::id("AGENT"),
            Column::left("RULE"),
            Column::right("SIZE"),
            Column::text("WHY"),
        ];
        let rows: Vec<_> =
            self.plan.protected.iter().map(|run| self.protected_cells(run)).collect();
        table::write(out, &columns, &rows)?;
        out.line("")?;
        Ok(())
    }

    fn protected_cells(&self, run: &ProtectedRun) -> [Cell; 5] {
        let mut why = run.protection.as_str().to_owned();
        if let Some(reason) = self.reason(run) {
            let shown = cut(reason.as_bytes(), CUT);
            why.push_str(": ");
            why.push_str(reason.get(..shown.len()).unwrap_or_default());
            why.push_str(if shown.len() < reason.len() { " ..." } else { "" });
        }
        [
            run.run.as_str().into(),
            run.agent.as_str().into(),
            run.rule.as_str().into(),
            size(run.bytes).into(),
            why.into(),
        ]
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
        Ok(())
    }
}

fn evicted_cells(run: &PlannedEviction, out: &Output) -> [Cell; 6] {
    [
        run.run.as_str().into(),
        run.agent.as_str().into(),
        run.status.as_str().into(),
        out.time(run.ended_at).into(),
        run.rule.as_str().into(),
        size(run.bytes).into(),
    ]
}

/// The limits as they were parsed, in a form that can be parsed again.
fn limits(args: &GcArgs) -> String {
    let mut said = Vec::new();
    said.extend(args.keep.filter(|n| *n > 0).map(|n| format!("--keep {n}")));
    let oldest = args.max_age.filter(|oldest| !oldest.is_zero());
    said.extend(oldest.map(|oldest| format!("--max-age {}", age(oldest))));
    let bytes = args.max_bytes.filter(|bytes| *bytes > 0);
    said.extend(bytes.map(|bytes| format!("--max-bytes {}", exact_size(bytes))));
    said.join(" ")
}
