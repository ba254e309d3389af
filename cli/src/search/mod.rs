//! `runlog search`: finds records by what their payloads say.
//!
//! A few threads take the next runs each; [`turns`] prints what they find in the order of the runs,
//! newest first. Compressed records are searched like others.

mod excerpt;
mod options;
mod pattern;
mod searcher;
mod together;
mod turns;

use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use runlog::{Reader, RunSummary};

pub(crate) use self::options::SearchArgs;
use self::pattern::Pattern;
use self::searcher::Searcher;
use self::turns::Turns;
use crate::failure::{Exit, Failure};
use crate::find;
use crate::message;
use crate::output::{Output, count, grouped, size};
use crate::store;

/// The most threads: more wait for one another at the disk.
const MAX_THREADS: usize = 8;

/// How many runs a thread takes at once, at most, and how often it does that, at least.
const TOGETHER: usize = 16;
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
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MAX_THREADS).min(runs.len());
    let (is_json, screen) = (out.is_json(), out.screen().cloned());
    let has_groups = !is_json && screen.is_some() && !args.runs && !args.count;
    let turns = Turns::new(out, runs.len(), args.limit.unwrap_or(usize::MAX), has_groups);
    let (taken, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    // Runs that were written at the same time are next to one another, and one thread searches them
    // together. Two would wait for one another.
    let share = (runs.len() / (threads.max(1) * SHARES)).clamp(1, TOGETHER);
    let next = || {
        let first = taken.fetch_add(share, Ordering::Relaxed);
        let some = runs.get(first..)?;
        Some((first.., some.iter().take(share))).filter(|_| !some.is_empty())
    };
    thread::scope(|scope| {
        let work = || {
            // Each thread has a handle and a pattern of its own, so that none waits for another.
            let (log, pattern) = (log.clone(), pattern.clone());
            let screen = screen.clone();
            let searcher = Searcher { args, log, pattern, is_json, screen, turns: &turns };
            let over = |run: &RunSummary| {
                let _ = bytes.fetch_add(run.bytes, Ordering::Relaxed);
            };
            while let Some((places, some)) = next() {
                let goes_on = match searcher.together(places.zip(some), over) {
                    Ok(goes_on) => goes_on,
                    Err(failure) => turns.fail(failure),
                };
                if !goes_on {
                    return;
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        turns.wait(
            || workers.iter().all(thread::ScopedJoinHandle::is_finished),
            |done| {
                let (done, all) = (grouped(done as u64), count(runs.len() as u64, "run"));
                format!("searched {done} of {all}, {}", size(bytes.load(Ordering::Relaxed)))
            },
        );
    });
    turns.end()
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
