//! `runlog verify`: checks every byte of the store and lists every problem with its place.
//!
//! It only reads, so that a store can be checked while another process writes it. The index, which
//! can be rebuilt from the rest, is not compared.

use std::path::Path;

use runlog::Corruption;
use serde::Serialize;

use crate::escape::shown;
use crate::examination::Damages;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

/// One problem, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Problem {
        message: String,
        #[serde(flatten)]
        problem: &'a Corruption,
    },
    Summary {
        problems: usize,
        segments: u64,
        frames: u64,
        records: u64,
        runs: u64,
        bytes: u64,
        /// Only the process that has the store open for writing compares the index.
        index_checked: bool,
    },
}

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let Damages { problems, verified } = Damages::of(&log, false)?;
    let (report, runs) = (verified.unwrap_or_default(), log.stats()?.runs);
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
            index_checked: report.index_checked,
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
        if !report.index_checked {
            out.line("the index was not compared: only a process that writes the store reads it")?;
        }
        out.line(match problems.len() {
            0 => "no problems".to_owned(),
            n => count(n as u64, "problem"),
        })?;
    }
    out.flush()?;
    Ok(if problems.is_empty() { Exit::Fine } else { Exit::Damage })
}

fn print(problem: &Corruption, out: &mut Output) -> Result<(), Failure> {
    if out.is_json() {
        out.object(&Event::Problem { message: problem.to_string(), problem })?;
    } else {
        out.line(problem.to_string())?;
    }
    Ok(())
}
