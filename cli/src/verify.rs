//! `runlog verify`: checks every byte of the store and lists every problem with its place.

use std::collections::HashSet;
use std::path::Path;

use runlog::Corruption;
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

/// One problem, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Problem { place: String, damage: String, run: Option<&'a str>, seq: Option<u64> },
    Summary { problems: usize, segments: u64, frames: u64, records: u64, runs: u64, bytes: u64 },
}

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let report = log.verify()?;
    let runs = log.stats()?.runs;
    let mut problems = report.problems;
    // What opening met is damage as well, also where it has been dealt with since.
    let mut places: HashSet<_> = problems.iter().map(|problem| problem.place).collect();
    let met = log.recovery_report().damaged.iter();
    problems.extend(met.filter(|met| places.insert(met.place)).cloned());
    for problem in &problems {
        print(problem, out)?;
    }
    if out.is_json() {
        out.object(&Event::Summary {
            problems: problems.len(),
            segments: report.segments,
            frames: report.frames,
            records: report.records,
            runs,
            bytes: report.bytes,
        })?;
    } else {
        out.line(format!(
            "checked {}: {} with {} of {}, {}",
            shown(path),
            count(report.segments, "segment"),
            count(report.records, "record"),
            count(runs, "run"),
            size(report.bytes),
        ))?;
        out.line(match problems.len() {
            0 => "no problems".to_owned(),
            n => count(n as u64, "problem"),
        })?;
    }
    out.flush()?;
    log.close()?;
    Ok(if problems.is_empty() { Exit::Fine } else { Exit::Damage })
}

fn print(problem: &Corruption, out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        out.object(&Event::Problem {
            place: problem.place.to_string(),
            damage: problem.damage.to_string(),
            run: problem.run.as_ref().map(runlog::RunId::as_str),
            seq: problem.seq.map(|seq| seq.0),
        })?;
    } else {
        out.line(problem.to_string())?;
    }
    Ok(())
}
