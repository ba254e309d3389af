//! `runlog verify`: checks every byte of the store and lists every problem with its place.
//!
//! It only reads, so that a store can be checked while another process writes it. The index, which
//! can be rebuilt from the rest, is not compared.

use std::path::Path;

use serde_json::json;

use crate::escape::shown;
use crate::examination::{Damages, tell_problems};
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
