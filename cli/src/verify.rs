//! `runlog verify`: checks every byte of the store and lists every problem with its place.
//!
//! It only reads, so that a store can be checked while another process writes it. The index, which
//! can be rebuilt from the rest, is not compared.

use std::collections::HashSet;
use std::path::Path;

use runlog::{Corruption, Reader, VerifyReport};
use serde::Serialize;
use serde_json::json;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let Damages { problems, verified } = Damages::of(&log, false)?;
    let (report, runs) = (verified.unwrap_or_default(), log.stats()?.runs);
    tell_problems("problem", &problems, out)?;
    let object = json!({
        "event": "summary",
        "problems": problems.len(),
        "segments": report.segments,
        "frames": report.frames,
        "records": report.records,
        "runs": runs,
        "bytes": report.bytes,
        // Only the process that has the store open for writing compares the index.
        "index_checked": report.index_checked,
    });
    let said = match problems.len() {
        0 => "no problems".to_owned(),
        n => count(n as u64, "problem"),
    };
    let text = format!(
        "checked {}: {} with {} of {}, {}; the index was not compared",
        shown(path),
        count(report.segments, "segment"),
        count(report.records, "record"),
        count(runs, "run"),
        size(report.bytes),
    );
    out.tell(&object, text)?;
    if !out.is_json() {
        out.line(said)?;
    }
    out.flush()?;
    Ok(if problems.is_empty() { Exit::Fine } else { Exit::Damage })
}

/// The damage of a store, each place once.
#[derive(Debug)]
pub(crate) struct Damages {
    pub(crate) problems: Vec<Corruption>,
    /// What was read to find it, if every byte was.
    pub(crate) verified: Option<VerifyReport>,
}

impl Damages {
    /// What opening the store found, also if it was repaired since; and unless `quick`, what is
    /// found in any byte.
    pub(crate) fn of(log: &Reader, quick: bool) -> Result<Self, Failure> {
        let mut verified = if quick { None } else { Some(log.verify()?) };
        let mut problems =
            verified.as_mut().map(|found| std::mem::take(&mut found.problems)).unwrap_or_default();
        let mut places: HashSet<_> = problems.iter().map(|problem| problem.place).collect();
        let met = log.recovery_report();
        problems.extend(met.damaged.iter().filter(|met| places.insert(met.place)).cloned());
        Ok(Self { problems, verified })
    }
}

/// A place with damage, as an object.
#[derive(Serialize)]
struct Row<'a> {
    event: &'static str,
    message: String,
    #[serde(flatten)]
    problem: &'a Corruption,
}

/// Tells of each place with damage, as an event of this name.
pub(crate) fn tell_problems(
    event: &'static str,
    problems: &[Corruption],
    out: &mut Output,
) -> Result<(), Failure> {
    for problem in problems {
        let message = problem.to_string();
        let text = if event == "problem" { message.clone() } else { format!("{event}: {message}") };
        out.tell(&Row { event, message, problem }, text)?;
    }
    Ok(())
}
