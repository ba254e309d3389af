//! `runlog import`: JSON Lines files become runs, their lines records.
//!
//! - [`tree`]: which files the paths mean, and whose runs they are.
//! - [`place`]: files and folders, opened so that no link is followed.
//! - [`mod@line`]: what one line is: its kind, its time, whether it is damaged.
//! - [`reading`]: a file that is being read, and what its lines have said so far.
//! - [`batch`]: lines that are appended together.
//! - [`mod@file`]: one file into one run.
//! - [`report`]: what the user is told.
//!
//! Rules that make `show RUN --raw` give the file back byte for byte:
//!
//! 1. Each line is one record, in order; its payload is the bytes between the newlines, so the
//!    carriage return of CR LF is part of it and a blank line is an empty payload.
//! 2. A last line without a newline has the kind [`UNTERMINATED`][word].
//! 3. An empty file is a run without records.
//!
//! What a file costs is bounded by the data in it: lines are no longer than a record, and a file
//! with more than [`MAX_HOLES`](runlog_stores::json_lines::MAX_HOLES) of holes is refused.
//!
//! A run is imported whole or refused whole. Problems of one file never stop the others; problems
//! of the store do.
//!
//! [word]: runlog_stores::json_lines::UNTERMINATED

mod batch;
mod file;
mod line;
mod place;
mod reading;
mod report;
mod tree;

use std::path::Path;

use crate::args::ImportArgs;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::store;

use self::file::{FileError, Importer};
use self::report::Reporter;

/// The agent of files that belong to no folder of runs, where the user names none.
const DEFAULT_AGENT: &str = "imported";

pub(crate) fn run(args: &ImportArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let found = tree::find(&args.paths, args.agent.as_deref());
    let mut reporter = Reporter::new(out, &found);
    for skipped in &found.skipped {
        reporter.skipped(skipped)?;
    }
    for (path, error) in &found.errors {
        reporter.refused(path, error)?;
    }
    if found.sources.is_empty() && !found.errors.is_empty() {
        return reporter.finish(path);
    }
    let log = store::open_or_create(path)?;
    let importer = Importer::new(&log, args.keep_open);
    for source in &found.sources {
        match importer.import(source, &mut |bytes| reporter.progress(bytes)) {
            Ok(done) => reporter.imported(source, &done)?,
            Err(FileError::Store(error)) => {
                reporter.clear();
                return Err(error.into());
            }
            Err(FileError::File(error)) => {
                reporter.refused(&source.place.path(), &error.to_string())?;
            }
        }
    }
    log.sync()?;
    log.close()?;
    reporter.finish(path)
}
