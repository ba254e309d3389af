//! `runlog salvage BROKEN OUT`: reads everything that can still be read out of a damaged store into
//! a new one, and lists what is missing. With `--replace` the new store takes the place of BROKEN.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use runlog::SalvageReport;
use serde::Serialize;
use serde_json::json;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::verify::tell_problems;

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

pub(crate) fn run(args: &SalvageArgs, out: &mut Output) -> Result<Exit, Failure> {
    let Some(new) = &args.out else { return replace(&args.broken, out) };
    let report = runlog::salvage(&args.broken, new)?;
    tell(new, &report, out)?;
    out.flush()?;
    Ok(if report.is_complete() { Exit::Fine } else { Exit::Damage })
}

fn replace(store: &Path, out: &mut Output) -> Result<Exit, Failure> {
    match runlog::salvage_in_place(store)? {
        Some(replaced) => {
            let damaged = &replaced.damaged;
            tell(store, &replaced.report, out)?;
            let object = json!({"event": "replaced", "store": store, "damaged": damaged});
            out.tell(&object, format!("the damaged file is {}", shown(damaged)))?;
        }
        None => {
            let text = format!("{} opens: nothing was changed", shown(store));
            out.tell(&json!({"event": "opens", "store": store}), text)?;
        }
    }
    out.flush()?;
    Ok(Exit::Fine)
}

fn tell(new: &Path, report: &SalvageReport, out: &mut Output) -> Result<(), Failure> {
    tell_problems(&report.damaged, out)?;
    tell_each(("caveat", "in doubt"), &report.caveats, out)?;
    tell_each(("missing", "missing"), &report.missing, out)?;
    let mut object = json!(report);
    object["event"] = json!("summary");
    for list in ["damaged", "caveats", "missing"] {
        object[list] = json!(object[list].as_array().map(Vec::len));
    }
    let left = match report.deleted {
        0 => String::new(),
        deleted => format!("; {} left out", count(deleted, "deleted run or version")),
    };
    let missing = match report.missing.len() {
        0 => "nothing is missing".to_owned(),
        places => format!("{} with something missing", count(places as u64, "place")),
    };
    let text = format!(
        "{}: {} of {}, {}, {}, {}{left}; {missing}",
        shown(new),
        count(report.records, "record"),
        count(report.runs, "run"),
        size(report.bytes),
        count(report.documents, "document"),
        count(report.receipts, "receipt"),
    );
    Ok(out.tell(&object, text)?)
}

/// Tells of each finding, as an event of this name.
fn tell_each<T: Display + Serialize>(
    (event, said): (&str, &str),
    findings: &[T],
    out: &mut Output,
) -> Result<(), Failure> {
    findings.iter().try_for_each(|found| {
        let object = json!({"event": event, "message": found.to_string(), event: found});
        Ok(out.tell(&object, format!("{said}: {found}"))?)
    })
}
