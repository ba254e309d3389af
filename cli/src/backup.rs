//! `runlog backup`: copies the store as of one moment, also while another process writes it.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::output::{Output, count, size};
use crate::store;

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The file of the copy: one that does not exist, or an earlier copy of the same store, which
    /// is brought up to date.
    file: PathBuf,
}

/// What was copied, or one damage that was met.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Problem {
        message: String,
        #[serde(flatten)]
        problem: &'a runlog::Corruption,
    },
    Backup {
        file: String,
        copied_segments: u64,
        copied_bytes: u64,
        kept_segments: u64,
        problems: usize,
    },
}

pub(crate) fn run(path: &Path, args: &BackupArgs, out: &mut Output) -> Result<Exit, Failure> {
    let copied = store::open_to_read(path)?.backup_to(&args.file)?;
    for problem in &copied.damaged {
        if out.is_json() {
            out.object(&Event::Problem { message: problem.to_string(), problem })?;
        } else {
            out.line(problem.to_string())?;
        }
    }
    let problems = copied.damaged.len();
    if out.is_json() {
        out.object(&Event::Backup {
            file: args.file.to_string_lossy().into_owned(),
            copied_segments: copied.copied_segments,
            copied_bytes: copied.copied_bytes,
            kept_segments: copied.kept_segments,
            problems,
        })?;
    } else {
        out.line(format!(
            "copied {} ({}) to {}; it had {} already",
            count(copied.copied_segments, "segment"),
            size(copied.copied_bytes),
            shown(&args.file),
            count(copied.kept_segments, "segment"),
        ))?;
        if problems > 0 {
            out.line(format!(
                "{}; the copy has these bytes as they are",
                count(problems as u64, "problem")
            ))?;
        }
    }
    out.flush()?;
    Ok(if problems == 0 { Exit::Fine } else { Exit::Damage })
}
