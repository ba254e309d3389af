//! Prints the demonstration in words, or as JSON Lines.

use std::path::Path;
use std::time::Duration;

use runlog::{AgentId, RecoveryReport, VerifyReport};
use serde_json::{Value, json};

use crate::escape::shown;
use crate::failure::Failure;
use crate::output::{Output, count, grouped, size};

use super::check::{Acks, Verdict};
use super::workload::AGENTS;

/// One step.
pub(crate) enum Step<'a> {
    Begin { file: &'a Path, threads: u32, seed: u64 },
    Killed { acks: &'a Acks, after: Duration, len: u64 },
    Recovered { report: &'a RecoveryReport, took: Duration },
    Checked { acks: &'a Acks, verdict: &'a Verdict, took: Duration },
    Adopted { runs: usize },
    Newest,
    LookedUp(Lookup),
    Verified { report: &'a VerifyReport, took: Duration },
    End { good: bool, kept: Option<&'a Path> },
}

/// A trace that was looked up by its run id.
pub(crate) struct Lookup {
    pub(crate) run: String,
    pub(crate) agent: AgentId,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    /// The median of so many lookups, with the file in the page cache.
    pub(crate) median: Duration,
    pub(crate) times: usize,
}

/// Prints the steps as they happen.
pub(crate) struct Story<'a> {
    out: &'a mut Output,
}

impl<'a> Story<'a> {
    pub(crate) fn new(out: &'a mut Output) -> Self {
        Self { out }
    }

    /// Prints one step, and flushes.
    pub(crate) fn tell(&mut self, step: &Step<'_>) -> Result<(), Failure> {
        if self.out.is_json() {
            if let Some(object) = step.object() {
                self.out.object(&object)?;
            }
        } else {
            for line in step.lines() {
                self.out.line(line)?;
            }
        }
        Ok(self.out.flush()?)
    }

    /// Lets another command print its rows.
    pub(crate) fn rows(
        &mut self,
        print: impl FnOnce(&mut Output) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        print(self.out)?;
        Ok(self.out.flush()?)
    }
}

impl Step<'_> {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Begin { file, threads, seed } => vec![
                format!("store    {}", shown(file)),
                format!(
                    "write    a second process appends runs of {} agents from {threads} threads \
                     (seed {seed})",
                    AGENTS.len(),
                ),
            ],
            Self::Killed { acks, after, len } => killed(acks, *after, *len),
            Self::Recovered { report, took } => {
                let mut lines = vec![format!("reopen   took {}", millis(*took))];
                lines.extend(report.to_string().lines().map(|line| format!("         {line}")));
                lines
            }
            Self::Checked { acks, verdict, took } => checked(acks, verdict, *took),
            Self::Adopted { runs } => vec![format!(
                "adopt    {} that the kill left in progress ended as interrupted",
                count(*runs as u64, "run")
            )],
            Self::Newest => vec!["list     the newest runs:".to_owned()],
            Self::LookedUp(lookup) => vec![looked_up(lookup)],
            Self::Verified { report, took } => verified(report, *took),
            Self::End { good, kept } => {
                let mut lines = Vec::new();
                if let Some(file) = kept {
                    lines.push(format!("kept     {}", shown(file)));
                }
                lines.push(match good {
                    true => "good     nothing that was acknowledged is missing or changed".into(),
                    false => "FAILED   see above".into(),
                });
                lines
            }
        }
    }

    fn object(&self) -> Option<Value> {
        Some(match self {
            Self::Begin { file, threads, seed } => json!({
                "event": "begin", "file": file.to_string_lossy(), "threads": threads,
                "seed": seed,
            }),
            Self::Killed { acks, after, len } => json!({
                "event": "killed", "after_ms": fits(after.as_millis()), "file_bytes": len,
                "runs": acks.runs.len(), "ended": acks.ended(), "records": acks.records(),
                "disk_records": acks.disk(), "bytes": acks.bytes,
            }),
            Self::Recovered { report, took } => json!({
                "event": "recovered", "took_us": fits(took.as_micros()),
                "report": report.to_string(),
            }),
            Self::Checked { acks, verdict, took } => json!({
                "event": "checked", "took_us": fits(took.as_micros()),
                "acknowledged": acks.records(), "intact": verdict.intact,
                "missing": verdict.missing, "changed": verdict.changed,
                "lost_boundaries": verdict.lost_boundaries, "in_flight": verdict.in_flight,
                "complaints": verdict.complaints,
            }),
            Self::Adopted { runs } => json!({ "event": "adopted", "runs": runs }),
            // Rows follow.
            Self::Newest => return None,
            Self::LookedUp(lookup) => json!({
                "event": "looked_up", "run": lookup.run, "agent": lookup.agent.as_str(),
                "records": lookup.records, "bytes": lookup.bytes,
                "lookups": lookup.times,
                "median_ns": fits(lookup.median.as_nanos()),
            }),
            Self::Verified { report, took } => json!({
                "event": "verified", "took_us": fits(took.as_micros()),
                "records": report.records, "bytes": report.bytes,
                "problems": report.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            }),
            Self::End { good, kept } => json!({
                "event": "end", "good": good, "kept": kept.map(|file| file.to_string_lossy()),
            }),
        })
    }
}

fn killed(acks: &Acks, after: Duration, len: u64) -> Vec<String> {
    vec![
        format!(
            "kill     SIGKILL after {:.1} s, in the middle of appends; the file has {}",
            after.as_secs_f64(),
            size(len)
        ),
        format!(
            "         acknowledged until then: {} with {} of {} ({} ended), {} at Disk level",
            count(acks.runs.len() as u64, "run"),
            count(acks.records(), "record"),
            size(acks.bytes),
            grouped(acks.ended()),
            grouped(acks.disk()),
        ),
    ]
}

fn checked(acks: &Acks, verdict: &Verdict, took: Duration) -> Vec<String> {
    let mut lines = vec![
        format!(
            "check    {} of {} are there byte for byte; {} missing, {} changed ({})",
            grouped(verdict.intact),
            count(acks.records(), "acknowledged record"),
            grouped(verdict.missing),
            grouped(verdict.changed),
            millis(took),
        ),
        format!(
            "         {} more had been stored and not yet acknowledged: whole as well",
            count(verdict.in_flight, "record"),
        ),
    ];
    if verdict.lost_boundaries > 0 {
        lines.push(format!(
            "         {} lost",
            count(verdict.lost_boundaries, "acknowledged start or end")
        ));
    }
    lines.extend(verdict.complaints.iter().map(|text| format!("         {text}")));
    lines
}

fn looked_up(lookup: &Lookup) -> String {
    format!(
        "look up  the trace of {} by its id: agent {}, {}, {} in {} (median of {}, in memory)",
        lookup.run,
        lookup.agent,
        count(lookup.records, "record"),
        size(lookup.bytes),
        micros(lookup.median),
        lookup.times,
    )
}

fn verified(report: &VerifyReport, took: Duration) -> Vec<String> {
    let mut lines = vec![format!(
        "verify   {}, {} checked: {} ({})",
        count(report.records, "record"),
        size(report.bytes),
        match report.problems.len() {
            0 => "no problems".to_owned(),
            n => count(n as u64, "problem"),
        },
        millis(took),
    )];
    lines.extend(report.problems.iter().map(|problem| format!("         {problem}")));
    lines
}

/// A duration as a number for JSON, limited to its range.
fn fits(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}

fn micros(duration: Duration) -> String {
    format!("{:.1} us", duration.as_secs_f64() * 1e6)
}
