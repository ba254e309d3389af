//! `runlog search`: finds records by what their payloads say.
//!
//! A few threads search the next runs each; [`turns`] prints what they find in the order of the
//! runs, newest first. Compressed records are searched like others.

mod excerpt;
mod options;
mod pattern;
mod searcher;
mod together;
mod turns;

use std::path::Path;

use runlog::{Reader, RunSummary};

pub(crate) use self::options::SearchArgs;
use self::pattern::Pattern;
use self::searcher::Searcher;
use self::turns::{Found, Turns};
use crate::failure::{Exit, Failure};
use crate::find;
use crate::in_order::{in_order, threads};
use crate::message;
use crate::output::Output;
use crate::store;

/// How many runs a thread takes at once, at most, and how often it does that, at least.
const SHARE: usize = 128;
const SHARES: usize = 8;

/// Searches. Its exit codes are those of grep, so a failure is 2.
pub(crate) fn run(args: &SearchArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let failure = match search(args, path, out) {
        Err(failure) if !failure.is_closed_pipe() => failure,
        done => return done,
    };
    let _ = out.flush();
    message::fail(&failure, Exit::Trouble);
    Ok(Exit::Trouble)
}

fn search(args: &SearchArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let pattern = Pattern::new(&args.pattern, args.regex, args.ignore_case)?;
    let reads_most = args.run.is_none() && args.filters.may_choose_most();
    let log = if reads_most { store::open_to_read_most(path)? } else { store::open_to_read(path)? };
    let runs = runs(&log, args)?;
    let (is_json, screen) = (out.is_json(), out.screen().cloned());
    let has_groups = !is_json && screen.is_some() && !args.runs && !args.count;
    let mut turns = Turns::new(out, args.limit.unwrap_or(usize::MAX), has_groups);
    let mut shares = runs.chunks((runs.len() / (threads() * SHARES)).clamp(1, SHARE));
    in_order(
        || Ok(shares.next()),
        // Each thread has a handle and a pattern of its own, so that none waits for another.
        || {
            let (log, pattern, screen) = (log.clone(), pattern.clone(), screen.clone());
            Searcher { args, log, pattern, is_json, screen }
        },
        |searcher, some, give| {
            if let Err(failure) = searcher.runs(some, give) {
                give(Err(failure));
            }
        },
        |found| turns.take(&found.unwrap_or_else(|| Ok(Found::default()))?),
    )?;
    Ok(turns.end())
}

/// The runs to search, newest first.
fn runs(log: &Reader, args: &SearchArgs) -> Result<Vec<RunSummary>, Failure> {
    if let Some(run) = &args.run {
        let run = find::run(log, &args.filters.named(run))?;
        return Ok(if args.filters.takes(&run) { vec![run] } else { Vec::new() });
    }
    let mut runs = Vec::new();
    args.filters.check(log)?;
    for run in log.runs(&args.filters.query()) {
        let run = run?;
        // Nothing of it is later.
        if run.records > 0 && args.filters.may_have(run.last_at) {
            runs.push(run);
        }
    }
    Ok(runs)
}
