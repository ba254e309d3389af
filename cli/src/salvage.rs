//! `runlog salvage BROKEN OUT`: reads everything that can still be read out of a damaged store into
//! a new one, and lists what is missing.

use runlog::salvaged::{Doubt, Missing};
use runlog::{Corruption, SalvageReport};
use serde::Serialize;

use crate::args::SalvageArgs;
use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};

/// One finding, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Damage {
        message: String,
        #[serde(flatten)]
        problem: &'a Corruption,
    },
    Doubt {
        message: String,
        doubt: &'a Doubt,
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
        lost_headers: u64,
        has_manifest: bool,
        missing: usize,
        doubts: usize,
    },
}

pub(crate) fn run(args: &SalvageArgs, out: &mut Output) -> Result<Exit, Failure> {
    let report = runlog::salvage(&args.broken, &args.out)?;
    if out.is_json() {
        objects(&report, out)?;
    } else {
        lines(args, &report, out)?;
    }
    out.flush()?;
    Ok(if report.is_complete() { Exit::Fine } else { Exit::Damage })
}

fn objects(report: &SalvageReport, out: &mut Output) -> Result<(), Failure> {
    for problem in &report.damaged {
        out.object(&Event::Damage { message: problem.to_string(), problem })?;
    }
    for doubt in &report.doubts {
        out.object(&Event::Doubt { message: doubt.to_string(), doubt })?;
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
        lost_headers: report.lost_headers,
        has_manifest: report.has_manifest,
        missing: report.missing.len(),
        doubts: report.doubts.len(),
    })?;
    Ok(())
}

fn lines(args: &SalvageArgs, report: &SalvageReport, out: &mut Output) -> Result<(), Failure> {
    for problem in &report.damaged {
        out.line(format!("damage: {problem}"))?;
    }
    for doubt in &report.doubts {
        out.line(format!("in doubt: {doubt}"))?;
    }
    for missing in &report.missing {
        out.line(format!("missing: {missing}"))?;
    }
    out.line(format!(
        "{}: {} of {}, {}, {}, {}",
        shown(&args.out),
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
