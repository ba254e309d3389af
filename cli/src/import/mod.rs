//! `runlog import`: files become runs, their lines or steps records.
//!
//! [`crate::formats`] says what a file is, and reads its records.
//!
//! Rules that make `show RUN --raw` give the file back byte for byte:
//!
//! 1. Each line is one record, in order; its payload is the bytes between the newlines, so the
//!    carriage return of CR LF is part of it and a blank line is an empty payload.
//! 2. A last line without a newline has the kind [`UNTERMINATED`][word].
//! 3. An empty file is a run without records.
//! 4. Other files are cut as [`Layout`](crate::formats::Layout) says.
//!
//! A file is read into memory once it is known that it can be imported. A file of lines that is
//! longer than [`IN_MEMORY`](input::IN_MEMORY) is read twice instead, line by line: once to see
//! how many lines it has, and once to import them. So the cost is bounded: lines are no longer than
//! a record, and a file with more than [`MAX_HOLES`](runlog_stores::json_lines::MAX_HOLES) of holes
//! is refused.
//!
//! A run is imported whole or refused whole. Problems of one file never stop the others; problems
//! of the store do.
//!
//! [word]: runlog_stores::json_lines::UNTERMINATED

mod args;
mod document;
mod done;
mod feed;
mod file;
mod input;
mod lines;
mod pieces;
mod progress;
mod reading;
mod refusal;
mod replace;
mod report;
mod run_identity;
mod safe_open;
mod scan_loop;
mod session_folder;
mod sidecars;
#[cfg(test)]
mod tests;
mod tree;

use std::io::{self, Seek as _};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use runlog::Options;
use runlog::storage::MemoryStorage;

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::store;

pub(crate) use self::args::ImportArgs;
use self::done::Notice;
use self::file::Importer;
use self::report::Reporter;
use self::safe_open::Location;
use self::scan_loop::ScanLoop;
use self::tree::{Choice, STDIN};

/// How often files that are followed are looked at.
const INTERVAL: Duration = Duration::from_millis(250);

pub(crate) fn run(args: &ImportArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let choice = choice(args)?;
    let find = || tree::find(&args.paths, &choice);
    let mut found = find();
    let mut reporter = Reporter::new(out, args);
    let is_error =
        |(notice, ..): &(Notice, _, _)| matches!(notice, Notice::Missing | Notice::Refused);
    let finds_nothing = found.sources.is_empty() && found.notices.iter().any(is_error);
    // A store that is there may have what an earlier import left.
    let is_dry = args.dry_run || finds_nothing && !args.follow && !path.exists();
    let reads = (is_dry && path.exists()).then(|| store::open_to_read(path)).transpose()?;
    let log = if is_dry {
        Options::new().create_storage(Arc::new(MemoryStorage::new()))?
    } else {
        store::open_to_write(path, args.create)?
    };
    let importer = Importer::new(&log, reads.as_ref(), args);
    for (file, why) in importer.settle_all()? {
        reporter.notice(Notice::Refused, &file, &why.to_string())?;
    }
    let mut scan = ScanLoop::default();
    loop {
        if scan.run(&importer, found, &mut reporter)? {
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

/// Which files the user wants. Reads standard input to its end, if it is one of them.
fn choice(args: &ImportArgs) -> Result<Choice, Failure> {
    let is_stdin = args.paths.iter().any(|path| path == Path::new(STDIN));
    if is_stdin && args.run.is_none() {
        return Err(Failure::Usage("standard input has no name: --run names its run".to_owned()));
    }
    if is_stdin && args.follow {
        return Err(Failure::Usage("--follow is for files, not for standard input".to_owned()));
    }
    let is_one_file = matches!(args.paths.as_slice(), [path] if !path.is_dir());
    if args.run.is_some() && !is_one_file {
        return Err(Failure::Usage("--run names the run of one file or of -".to_owned()));
    }
    let stdin = if is_stdin {
        let mut read = tempfile::tempfile().map_err(Failure::Input)?;
        io::copy(&mut io::stdin().lock(), &mut read).map_err(Failure::Input)?;
        read.rewind().map_err(Failure::Input)?;
        Some(Location::stdin(read))
    } else {
        None
    };
    Ok(Choice { args: args.clone(), excluded: tree::globs(&args.exclude)?, stdin })
}
