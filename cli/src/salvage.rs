//! `runlog salvage BROKEN OUT`: reads everything that can still be read out of a damaged store into
//! a new one, and lists what is missing. With `--replace` the new store takes the place of BROKEN.

use std::path::{Path, PathBuf};

use runlog::salvaged::{Caveat, Missing};
use runlog::{Corruption, SalvageReport};
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};

/// The arguments of `salvage`.
#[derive(Debug, clap::Args)]
pub(crate) struct SalvageArgs {
    /// The damaged store. `--store` plays no part.
    pub(crate) broken: PathBuf,

    /// The new store, where no file may exist.
    #[arg(required_unless_present = "replace", conflicts_with = "replace")]
    pub(crate) out: Option<PathBuf>,

    /// Put the new store in the place of the damaged one, which gets another name beside it.
    ///
    /// A store that opens stays as it is. The exit code is 0 if the store opens now.
    #[arg(long)]
    pub(crate) replace: bool,
}

/// One finding, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Damage {
        message: String,
        #[serde(flatten)]
        problem: &'a Corruption,
    },
    Caveat {
        message: String,
        caveat: &'a Caveat,
    },
    Missing {
        message: String,
        missing: &'a Missing,
    },
    Summary {
        runs: u64,
        records: u64,
        bytes: u64,
        documents: u64,
        receipts: u64,
        deleted: u64,
        segments: u64,
        has_manifest: bool,
        missing: usize,
        caveats: usize,
    },
    /// The new store is in the place of the damaged one, which has another name now.
    Replaced {
        store: &'a Path,
        damaged: &'a Path,
    },
    /// The store opens, so it stays as it is.
    Opens {
        store: &'a Path,
    },
}

pub(crate) fn run(args: &SalvageArgs, out: &mut Output) -> Result<Exit, Failure> {
    let Some(new) = &args.out else { return replace(&args.broken, out) };
    let report = runlog::salvage(&args.broken, new)?;
    tell(new, &report, out)?;
    out.flush()?;
    Ok(if report.is_complete() { Exit::Fine } else { Exit::Damage })
}

fn replace(store: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let found = runlog::salvage_in_place(store)?;
    if let Some(replaced) = &found {
        tell(store, &replaced.report, out)?;
    }
    let damaged = found.as_ref().map(|replaced| replaced.damaged.as_path());
    match (damaged, out.is_json()) {
        (Some(damaged), true) => out.object(&Event::Replaced { store, damaged })?,
        (Some(damaged), false) => out.line(format!("the damaged file is {}", shown(damaged)))?,
        (None, true) => out.object(&Event::Opens { store })?,
        (None, false) => out.line(format!("{} opens: nothing was changed", shown(store)))?,
    }
    out.flush()?;
    Ok(Exit::Fine)
}

fn tell(new: &Path, report: &SalvageReport, out: &mut Output) -> Result<(), Failure> {
    if out.is_json() { objects(report, out) } else { lines(new, report, out) }
}

fn objects(report: &SalvageReport, out: &mut Output) -> Result<(), Failure> {
    for problem in &report.damaged {
        out.object(&Event::Damage { message: problem.to_string(), problem })?;
    }
    for caveat in &report.caveats {
        out.object(&Event::Caveat { message: caveat.to_string(), caveat })?;
    }
    for missing in &report.missing {
        out.object(&Event::Missing { message: missing.to_string(), missing })?;
    }
    out.object(&Event::Summary {
        runs: report.runs,
        records: report.records,
        bytes: report.bytes,
        documents: report.documents,
        receipts: report.receipts,
        deleted: report.deleted,
        segments: report.segments,
        has_manifest: report.has_manifest,
        missing: report.missing.len(),
        caveats: report.caveats.len(),
    })?;
    Ok(())
}

fn lines(new: &Path, report: &SalvageReport, out: &mut Output) -> Result<(), Failure> {
    for problem in &report.damaged {
        out.line(format!("damage: {problem}"))?;
    }
    for caveat in &report.caveats {
        out.line(format!("in doubt: {caveat}"))?;
    }
    for missing in &report.missing {
        out.line(format!("missing: {missing}"))?;
    }
    out.line(format!(
        "{}: {} of {}, {}, {}, {}",
        shown(new),
        count(report.records, "record"),
        count(report.runs, "run"),
        size(report.bytes),
        count(report.documents, "document"),
        count(report.receipts, "receipt"),
    ))?;
    if report.deleted > 0 {
        let left = count(report.deleted, "deleted run or version");
        out.line(format!("{left} left out"))?;
    }
    out.line(match report.missing.len() {
        0 => "nothing is missing".to_owned(),
        places => format!("{} with something missing", count(places as u64, "place")),
    })?;
    Ok(())
}
