//! `runlog stat`: what is in the store and where its space goes.

use std::path::Path;

use runlog::Stats;
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

#[derive(Serialize)]
struct Row {
    file: String,
    file_bytes: u64,
    extent_bytes: u64,
    log_extents: u64,
    reserved_extents: u64,
    index_extents: u64,
    meta_extents: u64,
    retired_extents: u64,
    free_extents: u64,
    live_bytes: u64,
    dead_bytes: u64,
    free_bytes: u64,
    pinned_bytes: u64,
    sealed_segments: u64,
    runs: u64,
    deleted_runs: u64,
    has_index: bool,
    index_applied_segment: Option<u32>,
}

pub(crate) fn run(path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_existing(path)?;
    let stats = log.stats()?;
    if out.is_json() {
        out.object(&row(path, &stats))?;
    } else {
        text(path, &stats, out)?;
    }
    out.flush()?;
    log.close()?;
    Ok(Exit::Fine)
}

fn row(path: &Path, stats: &Stats) -> Row {
    Row {
        file: path.to_string_lossy().into_owned(),
        file_bytes: stats.file_len,
        extent_bytes: stats.extent_len,
        log_extents: stats.log_extents,
        reserved_extents: stats.reserved_extents,
        index_extents: stats.index_extents,
        meta_extents: stats.meta_extents,
        retired_extents: stats.retired_extents,
        free_extents: stats.free_extents,
        live_bytes: stats.live_bytes,
        dead_bytes: stats.dead_bytes,
        free_bytes: stats.free_bytes,
        pinned_bytes: stats.pinned.iter().fold(0, |sum, pinned| sum.saturating_add(pinned.bytes)),
        sealed_segments: stats.sealed_segments,
        runs: stats.runs,
        deleted_runs: stats.deleted_runs,
        has_index: stats.index_open,
        index_applied_segment: stats.index_applied.map(|segment| segment.0),
    }
}

fn text(path: &Path, stats: &Stats, out: &mut Output) -> Result<(), Failure> {
    let file = shown(path);
    let deleted = match stats.deleted_runs {
        0 => String::new(),
        n => format!(", {} not yet given back", count(n, "deleted run")),
    };
    let index = match (stats.index_open, stats.index_applied) {
        (true, Some(segment)) => format!("up to segment {segment}"),
        (true, None) => "empty".to_owned(),
        (false, _) if stats.index_extents > 0 => "not opened yet".to_owned(),
        (false, _) => "none, which a small store does not need".to_owned(),
    };
    out.line(format!("file      {file}, {}", size(stats.file_len)))?;
    out.line(format!("runs      {}{deleted}", count(stats.runs, "run")))?;
    out.line(format!(
        "log       {}, then the open one",
        count(stats.sealed_segments, "sealed segment")
    ))?;
    out.line(format!(
        "space     {} living, {} dead, {} free",
        size(stats.live_bytes),
        size(stats.dead_bytes),
        size(stats.free_bytes)
    ))?;
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
