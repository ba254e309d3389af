//! `runlog gc`: evicts the runs that the limits do not keep, or tells which ones it would.
//!
//! - Without a limit nothing can go: that is a dry run, and said.
//! - Nothing is left to the background, since this process ends: what is dead is given back before
//!   the report, which is printed also where that failed.

use std::collections::HashMap;
use std::path::Path;

use runlog::{
    AgentId, GcPlan, HeldRun, PlannedEviction, ProtectedRun, Protection, Retention, RunLog,
};
use serde::Serialize;

use crate::amount::{age, exact_size};
use crate::args::GcArgs;
use crate::escape::cut;
use crate::failure::{Exit, Failure};
use crate::output::{self, Align, Output, complain, count, note, size};
use crate::{store, time};

/// How many characters of the reason of a hold are shown in a table.
const CUT: usize = 80;

/// One run, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "action", rename_all = "snake_case")]
enum Row<'a> {
    Evict {
        run: &'a str,
        agent: &'a str,
        status: &'static str,
        ended_at: String,
        rule: &'static str,
        bytes: u64,
    },
    Protect {
        run: &'a str,
        agent: &'a str,
        rule: &'static str,
        protection: &'static str,
        reason: Option<&'a str>,
        bytes: u64,
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
    let log = store::open_existing(path)?;
    if policy.is_unlimited() {
        note("no limit is given (--keep, --max-age, --max-bytes): a dry run, nothing goes");
    }
    tell_unknown(&log, args)?;
    let (held, exit) = held(&log)?;
    let is_dry = args.dry_run || policy.is_unlimited();
    let before = taken(&log)?;
    let (plan, given_back) = if is_dry {
        (log.gc_plan(&policy)?, Ok(()))
    } else {
        (log.gc(&policy)?.plan, log.reclaim())
    };
    let report = Report {
        plan: &plan,
        reasons: reasons(&held),
        is_dry,
        freed: if is_dry { 0 } else { before.saturating_sub(taken(&log)?) },
        file_bytes: log.stats()?.file_len,
    };
    if out.is_json() {
        report.json(out)?;
    } else {
        report.text(args, out)?;
    }
    out.flush()?;
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

/// An agent that has no runs is most likely mistyped. Nothing goes by that, so it is no error.
fn tell_unknown(log: &RunLog, args: &GcArgs) -> Result<(), Failure> {
    for agent in &args.agents {
        if log.runs(agent, None, 1)?.runs.is_empty() {
            note(&format!("agent {agent} has no runs"));
        }
    }
    Ok(())
}

/// The runs that are held. A reason that cannot be read costs the reasons, and nothing else.
fn held(log: &RunLog) -> Result<(Vec<HeldRun>, Exit), Failure> {
    match log.held_runs() {
        Ok(held) => Ok((held, Exit::Fine)),
        Err(error) if error.is_corruption() => {
            complain(&error.to_string());
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
fn taken(log: &RunLog) -> Result<u64, Failure> {
    let stats = log.stats()?;
    Ok(stats.file_len.saturating_sub(stats.free_extents.saturating_mul(stats.extent_len)))
}

impl Report<'_> {
    fn json(&self, out: &mut Output) -> Result<(), Failure> {
        for run in &self.plan.evict {
            out.object(&Row::Evict {
                run: run.run.as_str(),
                agent: run.agent.as_str(),
                status: run.status.as_str(),
                ended_at: time::precise(run.ended_at),
                rule: run.rule.as_str(),
                bytes: run.bytes,
            })?;
        }
        for run in &self.plan.protected {
            out.object(&Row::Protect {
                run: run.run.as_str(),
                agent: run.agent.as_str(),
                rule: run.rule.as_str(),
                protection: run.protection.as_str(),
                reason: self.reason(run),
                bytes: run.bytes,
            })?;
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

    /// Why somebody holds the run.
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
        let heading = [
            (if self.is_dry { "WOULD GO" } else { "GONE" }, Align::Left),
            ("AGENT", Align::Left),
            ("STATUS", Align::Left),
            ("ENDED", Align::Left),
            ("RULE", Align::Left),
            ("SIZE", Align::Right),
        ];
        let rows: Vec<_> = self.plan.evict.iter().map(evicted_cells).collect();
        output::table(out, heading, &rows)?;
        out.line("")?;
        Ok(())
    }

    fn protected(&self, out: &mut Output) -> Result<(), Failure> {
        if self.plan.protected.is_empty() {
            return Ok(());
        }
        let heading = [
            ("PROTECTED", Align::Left),
            ("AGENT", Align::Left),
            ("RULE", Align::Left),
            ("SIZE", Align::Right),
            ("WHY", Align::Left),
        ];
        let rows: Vec<_> =
            self.plan.protected.iter().map(|run| self.protected_cells(run)).collect();
        output::table(out, heading, &rows)?;
        out.line("")?;
        Ok(())
    }

    fn protected_cells(&self, run: &ProtectedRun) -> [String; 5] {
        let mut why = run.protection.as_str().to_owned();
        if let Some(reason) = self.reason(run) {
            let shown = cut(reason.as_bytes(), CUT);
            why.push_str(": ");
            why.push_str(reason.get(..shown.len()).unwrap_or_default());
            why.push_str(if shown.len() < reason.len() { " ..." } else { "" });
        }
        [
            run.run.to_string(),
            run.agent.to_string(),
            run.rule.as_str().to_owned(),
            size(run.bytes),
            why,
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
            out.line(format!("that is {excess} more than --max-bytes, and no other run may go"))?;
        }
        Ok(())
    }
}

fn evicted_cells(run: &PlannedEviction) -> [String; 6] {
    [
        run.run.to_string(),
        run.agent.to_string(),
        run.status.as_str().to_owned(),
        time::seconds(run.ended_at),
        run.rule.as_str().to_owned(),
        size(run.bytes),
    ]
}

/// The limits as they were understood, in a form that can be given again.
fn limits(args: &GcArgs) -> String {
    let mut said = Vec::new();
    said.extend(args.keep.filter(|n| *n > 0).map(|n| format!("--keep {n}")));
    let oldest = args.max_age.filter(|oldest| !oldest.is_zero());
    said.extend(oldest.map(|oldest| format!("--max-age {}", age(oldest))));
    let bytes = args.max_bytes.filter(|bytes| *bytes > 0);
    said.extend(bytes.map(|bytes| format!("--max-bytes {}", exact_size(bytes))));
    said.join(" ")
}
