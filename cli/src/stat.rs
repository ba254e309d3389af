//! `runlog stat`: shows what the store has and where its space goes.

use std::path::Path;

use serde_json::json;

use crate::du::Parts;
use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::fields;
use crate::output::Output;
use crate::store;

/// The fields that people see, if they are not zero.
const SHOWN: [&str; 17] = [
    "file_len",
    "allocated_bytes",
    "runs",
    "active_runs",
    "deleted_runs",
    "documents",
    "document_bytes",
    "live_bytes",
    "dead_bytes",
    "open_bytes",
    "free_bytes",
    "extent_len",
    "sealed_segments",
    "log_extents",
    "index_extents",
    "retired_extents",
    "free_extents",
];

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let (stats, usage) = (log.stats()?, log.usage()?);
    let mut object = json!(stats);
    object["file"] = json!(path.to_string_lossy());
    object["allocated_bytes"] = json!(Parts::of(path, &stats, &usage)?.allocated_bytes);
    object["documents"] = json!(usage.documents.count);
    object["document_bytes"] = json!(usage.documents.bytes);
    out.tell(&object, shown(path))?;
    let names: &[_] = if out.is_json() { &[] } else { &SHOWN };
    for name in names.iter().filter(|name| object[**name] != 0) {
        let value = fields::shown(out, name, &object[*name]);
        out.line(format!("{value:>12} {}", name.replace('_', " ")))?;
    }
    out.flush()?;
    Ok(Exit::Fine)
}
