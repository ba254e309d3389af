//! `runlog import`: files become runs, their lines or steps records.
//!
//! - [`tree`]: which files the paths mean, and which ids their runs may have.
//! - [`whose`]: which run is a file's.
//! - [`place`]: files and folders, opened so that no link is followed.
//! - [`input`]: the bytes of a file.
//! - [`round`]: a round over the files that changed.
//! - [`crew`]: several files at a time.
//! - [`mod@file`]: one file into one run; [`lines`] of a file of lines, [`document`] of the others.
//! - [`anew`]: a file in the place of its run.
//! - [`reading`]: a file that is being read, and what its lines have said so far.
//! - [`batch`]: records that are appended together.
//! - [`report`]: what the user is told.
//!
//! What a file is, and what its records say, is in [`crate::formats`].
//!
//! Rules that make `show RUN --raw` give the file back byte for byte:
//!
//! 1. Each line is one record, in order; its payload is the bytes between the newlines, so the
//!    carriage return of CR LF is part of it and a blank line is an empty payload.
//! 2. A last line without a newline has the kind [`UNTERMINATED`][word].
//! 3. An empty file is a run without records.
//! 4. Other files are cut as [`Layout`](crate::formats::Layout) says.
//!
//! What a file costs is bounded by the data in it: lines are no longer than a record, and a file
//! with more than [`MAX_HOLES`](runlog_stores::json_lines::MAX_HOLES) of holes is refused.
//!
//! A run is imported whole or refused whole. Problems of one file never stop the others; problems
//! of the store do.
//!
//! [word]: runlog_stores::json_lines::UNTERMINATED

mod anew;
mod batch;
mod crew;
mod document;
mod file;
mod input;
mod lines;
mod place;
mod reading;
mod report;
mod round;
#[cfg(test)]
mod tests;
mod tree;
mod whose;

use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::args::{EndStatus, ImportArgs};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::store;

use self::file::Importer;
use self::report::Reporter;
use self::round::Rounds;

/// The agent of files that belong to no folder of runs, where the user names none.
const DEFAULT_AGENT: &str = "imported";

/// How often files that are followed are looked at.
const INTERVAL: Duration = Duration::from_millis(250);

pub(crate) fn run(args: &ImportArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let find = || tree::find(&args.paths, args.agent.as_deref());
    let mut found = find();
    let mut reporter = Reporter::new(out, args.progress, args.skip_unknown);
    let finds_nothing = found.sources.is_empty() && !found.errors.is_empty();
    // A store that is there may have what an earlier import left.
    if finds_nothing && !args.follow && !path.exists() {
        for skipped in &found.skipped {
            reporter.skipped(&skipped.path, skipped.why)?;
        }
        for (path, error) in &found.errors {
            reporter.refused(path, error)?;
        }
        return reporter.finish(path);
    }
    let log = store::open_to_write(path, args.create)?;
    let importer = Importer {
        log: &log,
        end: args.end.map(EndStatus::status),
        replace: args.replace,
        follows: args.follow,
    };
    for (file, why) in importer.settle_all()? {
        reporter.refused(&file, &why.to_string())?;
    }
    let mut rounds = Rounds::default();
    loop {
        if rounds.round(&importer, found, &mut reporter)? {
            log.sync()?;
        }
        if !args.follow {
            break;
        }
        reporter.flush()?;
        thread::sleep(INTERVAL);
        found = find();
    }
    log.close()?;
    reporter.finish(path)
}
