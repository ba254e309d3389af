//! `runlog backup`: copies the store as of one moment, also while another process writes it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;
use crate::verify::tell_problems;

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The file of the copy: one that does not exist, or an earlier copy of the same store, which
    /// is brought up to date.
    file: PathBuf,
}

pub(crate) fn run(path: &Path, args: &BackupArgs, out: &mut Output) -> Result<Exit, Failure> {
    let copied = store::open_to_read(path)?.backup_to(&args.file)?;
    tell_problems(&copied.damaged, out)?;
    let problems = copied.damaged.len();
    let object = json!({
        "event": "backup",
        "file": args.file.to_string_lossy(),
        "copied_segments": copied.copied_segments,
        "copied_bytes": copied.copied_bytes,
        "kept_segments": copied.kept_segments,
        "problems": problems,
    });
    let mut text = format!(
        "copied {} ({}) to {}; it had {} already",
        count(copied.copied_segments, "segment"),
        size(copied.copied_bytes),
        shown(&args.file),
        count(copied.kept_segments, "segment"),
    );
    if problems > 0 {
        let problems = count(problems as u64, "problem");
        text = format!("{text}; {problems}: the copy has these bytes as they are");
    }
    out.tell(&object, text)?;
    out.flush()?;
    Ok(if problems == 0 { Exit::Fine } else { Exit::Damage })
}
