//! `runlog stat`: shows what the store has and where its space goes.

use std::borrow::Cow;
use std::path::Path;

use runlog::Stats;
use serde::Serialize;

use crate::escape::shown;
use crate::examination::Amounts;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

#[derive(Serialize)]
struct Row<'a> {
    file: Cow<'a, str>,
    allocated_bytes: u64,
    documents: u64,
    document_bytes: u64,
    #[serde(flatten)]
    stats: &'a Stats,
}

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let found = Amounts::of(&log, path)?;
    let Amounts { stats, usage, parts } = &found;
    if out.is_json() {
        out.object(&Row {
            file: path.to_string_lossy(),
            allocated_bytes: parts.allocated_bytes,
            documents: usage.documents.count,
            document_bytes: usage.documents.bytes,
            stats,
        })?;
    } else {
        text(path, &found, out)?;
    }
    out.flush()?;
    Ok(Exit::Fine)
}

fn text(path: &Path, found: &Amounts, out: &mut Output) -> Result<(), Failure> {
    let Amounts { stats, usage, parts } = found;
    let file = shown(path);
    let deleted = match stats.deleted_runs {
        0 => String::new(),
        n => format!(", {} not yet freed", count(n, "deleted run")),
    };
    let index = match stats.index_extents {
        0 => "none; a small store needs none".to_owned(),
        extents => count(extents, "extent"),
    };
    let allocated = size(parts.allocated_bytes);
    out.line(format!("file      {file}, {}, {allocated} allocated", size(stats.file_len)))?;
    out.line(format!("runs      {}{deleted}", count(stats.runs, "run")))?;
    out.line(match usage.documents.count {
        0 => "          no documents".to_owned(),
        n => format!("          {}, {}", count(n, "document"), size(usage.documents.bytes)),
    })?;
    out.line(format!(
        "log       {}, then the open one",
        count(stats.sealed_segments, "sealed segment")
    ))?;
    let space = [
        (stats.live_bytes, "live"),
        (parts.dead_bytes, "dead"),
        (parts.open_bytes, "room behind the end of the log"),
        (parts.free_bytes, "free"),
    ];
    let space = space.iter().filter(|(bytes, _)| *bytes > 0);
    let space: Vec<_> = space.map(|(bytes, what)| format!("{} {what}", size(*bytes))).collect();
    out.line(format!("space     {}", space.join(", ")))?;
    out.line(format!("index     {index}"))?;
    out.line(format!("extents   of {}:", size(stats.extent_len)))?;
    for (extents, what) in [
        (stats.log_extents, "log"),
        (stats.index_extents, "index"),
        (stats.meta_extents, "map of the file"),
        (stats.retired_extents, "dead, being read"),
        (stats.free_extents, "free"),
    ] {
        if extents > 0 {
            out.line(format!("  {extents:>6}  {what}"))?;
        }
    }
    Ok(())
}
