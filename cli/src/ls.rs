//! `runlog ls`: runs, page by page, or the agents.

use std::io::Write;
use std::path::Path;

use regex::Regex;
use runlog::{Corruption, Cursor, Place, Reader, RunQuery, RunStatus, RunSummary};
use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::filters::Filters;
use crate::formats::title;
use crate::in_order::in_order;
use crate::limit::Limit;
use crate::message::{damaged, more, note};
use crate::output::{self, Output};
use crate::screen::Style;
use crate::short::ShortIds;
use crate::store;
use crate::table::{self, Cell, Column};

/// How many rows are read, and laid out in columns, at once.
const PAGE: usize = 1000;

/// The options of `ls`.
#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    #[command(flatten)]
    filters: Filters,

    /// Only the runs whose AGENT/RUN or title matches this regular expression, in upper or lower
    /// case.
    #[arg(long, value_name = "PATTERN", value_parser = parse_pattern)]
    grep: Option<Regex>,

    /// What to sort by: the newest first, or the largest first.
    #[arg(long, value_name = "WHAT", default_value = "age")]
    sort: Sort,

    /// List the oldest runs first, or the smallest.
    #[arg(short, long, alias = "oldest")]
    reverse: bool,

    #[command(flatten)]
    limit: Limit,

    /// Continue behind the place that an earlier `ls` printed.
    #[arg(long, value_name = "CURSOR", conflicts_with = "sort")]
    after: Option<String>,

    /// With --json: print titles too, each as a string or null.
    #[arg(long, requires = "json")]
    titles: bool,

    /// Leave out the titles, which are read from the records of each run.
    #[arg(long, conflicts_with = "titles")]
    no_titles: bool,

    /// List the agents instead of the runs.
    #[arg(long, conflicts_with = "Filters")]
    #[arg(conflicts_with_all = ["after", "grep", "sort", "reverse", "titles", "no_titles"])]
    agents: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// By the time of the start.
    Age,
    /// By the bytes of all payloads.
    Size,
}

/// A run, and what it is about: its title is read only where it is asked for, and may be none.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    run: RunSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Option<String>>,
}

fn parse_pattern(text: &str) -> Result<Regex, String> {
    let built = regex::RegexBuilder::new(text).case_insensitive(true).build();
    built.map_err(|error| format!("not a regular expression: {error}"))
}

pub(crate) fn run(args: &LsArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    if args.agents {
        agents(&log, args, out)?;
    } else {
        args.filters.check(&log)?;
        let titles = if out.is_json() { args.titles } else { !args.no_titles };
        // A pipe gets whole ids.
        let short = out.screen().map(|_| ShortIds::of(&log)).transpose()?.unwrap_or_default();
        let lists = Lists { log: &log, args, titles, short };
        if args.sort == Sort::Size { lists.by_size(out)? } else { lists.by_age(out)? }
    }
    out.flush()?;
    Ok(if tell_lost(&log) { Exit::Damage } else { Exit::Fine })
}

/// Tells of segments that may have had runs which are not listed. Returns whether there are any.
fn tell_lost(log: &Reader) -> bool {
    let report = log.recovery_report();
    let is_directory = |found: &&Corruption| matches!(found.place, Place::Directory { .. });
    let lost: Vec<&Corruption> = report.damaged.iter().filter(is_directory).collect();
    for found in &lost {
        damaged(&format!("runs may be missing: {found}"));
    }
    store::tell_early_end(log) || !lost.is_empty()
}

/// Lists of runs.
struct Lists<'a> {
    log: &'a Reader,
    args: &'a LsArgs,
    /// Whether titles are shown.
    titles: bool,
    /// What the ids are shown as.
    short: ShortIds,
}

impl Lists<'_> {
    fn by_age(&self, out: &mut Output) -> Result<(), Failure> {
        let wanted = self.args.limit.wanted();
        let mut pages = Pages::new(self, wanted)?;
        self.print(|| pages.next(), out)?;
        let Pages { listed, after, .. } = pages;
        let after = after.filter(|_| wanted > 0).map(|cursor| cursor.to_string());
        self.end(listed, after.as_deref().map(|after| (Some(after), "--all")), out)
    }

    /// The largest first; all are read for that.
    fn by_size(&self, out: &mut Output) -> Result<(), Failure> {
        let mut runs = self.log.runs(&query(self.args)).collect::<Result<Vec<_>, _>>()?;
        // Of the same size, in the order of age.
        runs.sort_by_key(|run| if self.args.reverse { run.bytes } else { u64::MAX - run.bytes });
        let wanted = self.args.limit.wanted();
        let mut matching = runs.into_iter().filter_map(|run| self.matching(run));
        let rows: Vec<Listed> = matching.by_ref().take(wanted).collect();
        let has_more = wanted > 0 && matching.next().is_some();
        let (listed, mut rows) = (rows.len(), rows.into_iter());
        let page = || {
            let page: Vec<_> = rows.by_ref().take(PAGE).collect();
            Ok((!page.is_empty()).then_some(page))
        };
        self.print(page, out)?;
        self.end(listed, has_more.then_some((None, "-n N, or --all")), out)
    }

    /// Says that there are none, or more.
    fn end(
        &self,
        listed: usize,
        goes_on: Option<(Option<&str>, &str)>,
        out: &mut Output,
    ) -> Result<(), Failure> {
        if listed == 0 && self.args.limit.wanted() > 0 && !out.is_json() {
            note("no runs");
        }
        if let Some((after, otherwise)) = goes_on {
            out.flush()?;
            more("runs", after, otherwise);
        }
        Ok(())
    }

    /// The run, if it matches the pattern.
    fn matching(&self, run: RunSummary) -> Option<Listed> {
        let is_match = |text: &str| self.args.grep.as_ref().is_none_or(|grep| grep.is_match(text));
        if self.args.grep.is_none() || is_match(&format!("{}/{}", run.agent, run.run)) {
            return Some(Listed { run, title: None });
        }
        let title = title::of(self.log, &run)?;
        is_match(&title).then_some(Listed { run, title: Some(Some(title)) })
    }

    /// Prints page by page, so that nothing waits for the rest; all processors read the titles.
    fn print(
        &self,
        next: impl FnMut() -> Result<Option<Vec<Listed>>, Failure> + Send,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let (is_json, screen) = (out.is_json(), out.screen().cloned());
        let printed = |mut rows: Vec<Listed>| {
            let mut out = Output::memory(is_json, screen.clone());
            for Listed { run, title } in &mut rows {
                if !self.titles {
                    *title = None;
                } else if title.is_none() {
                    *title = Some(title::of(self.log, run));
                }
            }
            print(&rows, &self.short, &mut out).map(|()| out.take())
        };
        in_order(
            next,
            || (),
            |(), rows, give| {
                give(printed(rows));
            },
            |bytes| {
                bytes.transpose()?.map_or(Ok(()), |bytes| out.raw(&bytes))?;
                Ok(true)
            },
        )
    }
}

/// The runs of a list by age, page by page.
struct Pages<'a> {
    lists: &'a Lists<'a>,
    query: RunQuery,
    /// Where the list goes on, if it does.
    after: Option<Cursor>,
    wanted: usize,
    listed: usize,
    is_over: bool,
}

impl<'a> Pages<'a> {
    fn new(lists: &'a Lists<'a>, wanted: usize) -> Result<Self, Failure> {
        let after = match &lists.args.after {
            Some(text) => Some(text.parse::<Cursor>()?),
            None => None,
        };
        let query = query(lists.args);
        Ok(Self { lists, query, after, wanted, listed: 0, is_over: false })
    }

    fn next(&mut self) -> Result<Option<Vec<Listed>>, Failure> {
        if self.is_over || self.listed >= self.wanted {
            return Ok(None);
        }
        let left = self.wanted - self.listed;
        // With a pattern, some of a page are not listed.
        let some = if self.lists.args.grep.is_some() { PAGE } else { left.min(PAGE) };
        let query = self.query.clone().after(self.after).limit(some);
        let page = self.lists.log.list_runs(&query)?;
        self.after = page.next;
        let mut rows: Vec<Listed> = Vec::with_capacity(page.runs.len());
        for run in page.runs {
            let Some(listed) = self.lists.matching(run) else { continue };
            if rows.len() == left {
                self.after = rows.last().map(|last| Cursor::from(&last.run));
                self.is_over = true;
                break;
            }
            rows.push(listed);
        }
        self.listed += rows.len();
        self.is_over |= self.after.is_none();
        Ok(Some(rows))
    }
}

/// What the arguments ask for, without the page.
fn query(args: &LsArgs) -> RunQuery {
    let query = args.filters.started();
    let oldest_first = args.reverse && args.sort == Sort::Age;
    if oldest_first { query.oldest_first() } else { query }
}

/// Prints runs as JSON Lines or as a table.
fn print<W: Write>(rows: &[Listed], short: &ShortIds, out: &mut Output<W>) -> Result<(), Failure> {
    if out.is_json() {
        for listed in rows {
            out.object(listed)?;
        }
        return Ok(());
    }
    if rows.is_empty() {
        return Ok(());
    }
    let columns = [
        Column::id("RUN"),
        Column::id("AGENT").unless_same(),
        Column::left("STATUS").unless_same(),
        Column::left("STARTED"),
        Column::left("ENDED").optional(0).unless_same(),
        Column::right("RECORDS").optional(1),
        Column::right("BYTES").optional(2),
        Column::text("TITLE"),
    ];
    let has_titles = rows.iter().any(|listed| listed.title.is_some());
    let columns = &columns[..columns.len() - usize::from(!has_titles)];
    let cells: Vec<_> = rows.iter().map(|listed| cells(listed, short, out)).collect();
    Ok(table::write(out, columns, &cells)?)
}

fn cells<W: Write>(listed: &Listed, short: &ShortIds, out: &Output<W>) -> [Cell; 8] {
    let run = &listed.run;
    let time = |at| out.screen().map_or_else(|| out.time(at), |screen| screen.minute(at));
    let started = if run.started { time(run.started_at) } else { "not started".to_owned() };
    let style = match run.status {
        RunStatus::Completed => Style::Good,
        RunStatus::Failed => Style::Bad,
        RunStatus::InProgress => Style::Lively,
        _ => Style::Plain,
    };
    [
        Cell::styled(short.shown(run.run.as_str()), Style::Strong),
        run.agent.as_str().into(),
        Cell::styled(run.status.as_str(), style),
        started.into(),
        run.ended_at.map_or_else(|| "-".to_owned(), time).into(),
        output::grouped(run.records).into(),
        output::size(run.bytes).into(),
        listed.title.clone().flatten().unwrap_or_default().into(),
    ]
}

fn agents(log: &Reader, args: &LsArgs, out: &mut Output) -> Result<(), Failure> {
    let wanted = args.limit.wanted();
    // One more than requested shows whether there are more.
    let agents = log.agents(None, wanted.saturating_add(1))?;
    for agent in agents.iter().take(wanted) {
        out.tell(&json!({"agent": agent}), agent.as_str())?;
    }
    if agents.len() > wanted && wanted > 0 {
        out.flush()?;
        more("agents", None, "--all");
    }
    Ok(())
}
