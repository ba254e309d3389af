//! `runlog search`: finds records by the bytes of their payloads.
//!
//! A few threads take the next runs each; [`turns`] prints what they find in the order of the runs,
//! newest first. Compressed records are searched like others.

mod pattern;
mod together;
mod turns;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use runlog::{AgentId, Error, Lsn, Reader, RecordView, RunId, RunSummary, Trace};
use serde::Serialize;

use self::pattern::Pattern;
use self::together::Searched;
use self::turns::Turns;
use crate::failure::{Exit, Failure};
use crate::filters::Filters;
use crate::find;
use crate::json::RecordRow;
use crate::line::{self, CUT};
use crate::message;
use crate::output::{Output, count, grouped, size};
use crate::screen::Screen;
use crate::store;

/// The most threads: more wait for one another at the disk.
const MAX_THREADS: usize = 8;

/// How many runs a thread takes at once, at most, and how often it does that, at least.
const TOGETHER: usize = 16;
const SHARES: usize = 8;

/// How many bytes of the results of a run are printed at once.
const CHUNK: usize = 4 << 20;

/// How many bytes in front of what was found are shown of a long payload.
const LEAD: usize = 60;

/// The options of `search`.
#[derive(Debug, clap::Args)]
pub(crate) struct SearchArgs {
    /// What to find in the payloads: plain text, or with -e a regular expression.
    #[arg(allow_hyphen_values = true)]
    pattern: String,

    /// PATTERN is a regular expression, in the syntax of the crate `regex`.
    #[arg(short = 'e', long)]
    regex: bool,

    /// Do not distinguish upper and lower case.
    #[arg(short, long)]
    ignore_case: bool,

    #[command(flatten)]
    filters: Filters,

    /// Only this run: its id or AGENT/RUN, or a beginning of these.
    #[arg(long)]
    run: Option<String>,

    /// Only records of this kind; may be repeated.
    #[arg(long)]
    kind: Vec<String>,

    /// Print only the runs that have a match.
    #[arg(short = 'l', long)]
    runs: bool,

    /// Print only how many records match, for each run that has one.
    #[arg(short, long, conflicts_with = "runs")]
    count: bool,

    /// Do not cut long payloads.
    #[arg(long)]
    full: bool,
}

/// A result.
#[derive(Serialize)]
struct Row<'a> {
    agent: &'a AgentId,
    run: &'a RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    #[serde(flatten)]
    record: Option<RecordRow<'a>>,
}

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
    let turns = Turns::new(out, runs.len());
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
            let searcher = Searcher { args, pattern, is_json, screen, turns: &turns };
            let over = |run: &RunSummary| {
                let _ = bytes.fetch_add(run.bytes, Ordering::Relaxed);
            };
            while let Some((places, some)) = next() {
                let goes_on = match searcher.together(&log, places.zip(some), over) {
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
    for run in log.runs(&args.filters.query()) {
        let run = run?;
        // Nothing of it is later.
        if run.records > 0 && args.filters.may_have(run.last_at) {
            runs.push(run);
        }
    }
    Ok(runs)
}

/// Searches runs.
struct Searcher<'a, 'o> {
    args: &'a SearchArgs,
    pattern: Pattern,
    is_json: bool,
    screen: Option<Screen>,
    turns: &'a Turns<'o>,
}

impl Searcher<'_, '_> {
    /// Searches a run until its records are behind this place of the log, or there are none left,
    /// or so much is found that it is to be printed first.
    fn records(&self, one: &mut Searched<'_>, until: Lsn) -> Result<(), Failure> {
        let Searched { run, trace, at, matches, out, .. } = one;
        while let Some(record) = trace.as_mut().and_then(Trace::next_view) {
            let record = match record {
                Ok(record) => record,
                Err(Error::Evicted { .. }) => break,
                Err(error) if error.is_corruption() => {
                    self.turns.complain(&error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            *at = record.lsn();
            let is_wanted = self.is_wanted(&record);
            if let Some(found) = self.pattern.find(record.payload()).filter(|_| is_wanted) {
                *matches += 1;
                if self.args.runs {
                    break;
                }
                if !self.args.count {
                    self.print(run, &record, found, out)?;
                }
            }
            if *at > until || out.len() >= CHUNK {
                return Ok(());
            }
        }
        *trace = None;
        if *matches > 0 && (self.args.runs || self.args.count) {
            self.print_run(run, *matches, out)?;
        }
        Ok(())
    }

    fn is_wanted(&self, record: &RecordView<'_>) -> bool {
        let (at, kinds) = (record.timestamp(), &self.args.kind);
        self.args.filters.takes_time(at)
            && (kinds.is_empty()
                || record.kind().is_some_and(|kind| kinds.iter().any(|wanted| wanted == kind)))
    }

    /// Prints a record, in which the pattern is at byte `at`.
    fn print(
        &self,
        run: &RunSummary,
        record: &RecordView<'_>,
        at: usize,
        out: &mut Output<Vec<u8>>,
    ) -> io::Result<()> {
        let (agent, id) = (&run.agent, &run.run);
        if self.is_json {
            let record = Some(RecordRow::new(record, None));
            return out.object(&Row { agent, run: id, count: None, record });
        }
        out.text(format!("{agent}/{id}  "))?;
        let shown = match self.args.full {
            true => (0, usize::MAX),
            false if at + LEAD <= CUT => (0, CUT),
            false => (start_of_character(record.payload(), at - LEAD), CUT),
        };
        line::write(out, record, record.kind().unwrap_or("-"), shown)
    }

    fn print_run(
        &self,
        run: &RunSummary,
        matches: u64,
        out: &mut Output<Vec<u8>>,
    ) -> io::Result<()> {
        let (agent, id) = (&run.agent, &run.run);
        let count = self.args.count.then_some(matches);
        if self.is_json {
            return out.object(&Row { agent, run: id, count, record: None });
        }
        out.line(match count {
            Some(count) => format!("{agent}/{id}:{count}"),
            None => format!("{agent}/{id}"),
        })
    }
}

/// `at`, or the start of the character that goes on there.
fn start_of_character(bytes: &[u8], at: usize) -> usize {
    let goes_on = |at: &usize| bytes.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
    (at.saturating_sub(3)..=at).rev().find(|at| !goes_on(at)).unwrap_or(at)
}
