//! `runlog verify`: checks every byte of the store and lists every problem with its place.
//!
//! It only reads, so that a store can be checked while another process writes it. The index, which
//! can be rebuilt from the rest, is not compared.

use std::collections::HashSet;
use std::path::Path;

use runlog::{Corruption, Reader, VerifyReport};
use serde_json::json;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let Damages { problems, verified } = Damages::of(&log, false)?;
    let (report, runs) = (verified.unwrap_or_default(), log.stats()?.runs);
    tell_problems(&problems, out)?;
    let mut object = json!(report);
    object["event"] = json!("summary");
    object["problems"] = json!(problems.len());
    object["runs"] = json!(runs);
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
        out.line(match problems.len() {
            0 => "no problems".to_owned(),
            n => count(n as u64, "problem"),
        })?;
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

/// Tells of each place with damage.
pub(crate) fn tell_problems(problems: &[Corruption], out: &mut Output) -> Result<(), Failure> {
    for problem in problems {
        let mut object = json!(problem);
        object["event"] = json!("problem");
        object["message"] = json!(problem.to_string());
        out.tell(&object, problem.to_string())?;
    }
    Ok(())
}
