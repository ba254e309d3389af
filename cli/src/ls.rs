//! `runlog ls`: runs, page by page.

use std::io::Write;
use std::path::Path;

use regex::Regex;
use runlog::{Corruption, Cursor, Place, Reader, RunQuery, RunStatus, RunSummary};
use serde::Serialize;

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

    /// List the oldest runs first.
    #[arg(short, long, alias = "oldest")]
    reverse: bool,

    #[command(flatten)]
    limit: Limit,

    /// Continue after the place that an earlier `ls` printed.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,

    /// With --json: print titles too, each as a string or null.
    #[arg(long, requires = "json")]
    titles: bool,

    /// Leave out the titles, which are read from the records of each run.
    #[arg(long, conflicts_with = "titles")]
    no_titles: bool,
}

/// The title of a run, if it has one.
#[derive(Debug, Serialize)]
struct Title(Option<String>);

/// A run, and its title, which is read only where it is asked for.
#[derive(Debug, Serialize)]
struct Listed {
    #[serde(flatten)]
    run: RunSummary,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<Title>,
}

fn parse_pattern(text: &str) -> Result<Regex, String> {
    let built = regex::RegexBuilder::new(text).case_insensitive(true).build();
    built.map_err(|error| format!("not a regular expression: {error}"))
}

pub(crate) fn run(args: &LsArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    args.filters.check(&log)?;
    list(&log, args, out)?;
    out.flush()?;
    Ok(if tell_lost(&log) { Exit::Damage } else { Exit::Fine })
}

/// Reports segments that may have had runs which are not listed. Returns whether there are any.
fn tell_lost(log: &Reader) -> bool {
    let report = log.recovery_report();
    let is_directory = |found: &&Corruption| matches!(found.place, Place::Directory { .. });
    let lost: Vec<&Corruption> = report.damaged.iter().filter(is_directory).collect();
    for found in &lost {
        damaged(&format!("runs may be missing: {found}"));
    }
    store::tell_early_end(log) || !lost.is_empty()
}

/// Lists runs: page by page, so that nothing waits for the rest; all processors read the titles.
fn list(log: &Reader, args: &LsArgs, out: &mut Output) -> Result<(), Failure> {
    let wanted = args.limit.wanted();
    let mut matching = log.runs(&query(args)?).filter_map(|run| {
        let matching = run.map(|run| matching(log, args, run));
        matching.transpose()
    });
    let (mut left, mut last) = (wanted, None);
    let page = || -> Result<_, Failure> {
        let rows = matching.by_ref().take(left.min(PAGE)).collect::<Result<Vec<Listed>, _>>()?;
        left -= rows.len();
        last = rows.last().map(|listed| Cursor::from(&listed.run)).or(last);
        Ok((!rows.is_empty()).then_some(rows))
    };
    let (is_json, screen) = (out.is_json(), out.screen().cloned());
    let has_titles = if is_json { args.titles } else { !args.no_titles };
    // A pipe gets whole ids.
    let short = screen.as_ref().map(|_| ShortIds::of(log)).transpose()?.unwrap_or_default();
    let printed = |mut rows: Vec<Listed>| {
        let mut out = Output::memory(is_json, screen.clone());
        for Listed { run, title } in &mut rows {
            if !has_titles {
                *title = None;
            } else if title.is_none() {
                *title = Some(Title(title::of(log, run)));
            }
        }
        print(&rows, &short, &mut out).map(|()| out.take())
    };
    in_order(
        page,
        || (),
        |(), rows, give| {
            give(printed(rows));
        },
        |bytes| {
            bytes.transpose()?.map_or(Ok(()), |bytes| out.raw(&bytes))?;
            Ok(true)
        },
    )?;
    if left == wanted && wanted > 0 && !is_json {
        note("no runs");
    }
    if left == 0 && wanted > 0 && matching.next().is_some() {
        out.flush()?;
        more("runs", last.map(|cursor| cursor.to_string()).as_deref(), "--all");
    }
    Ok(())
}

/// The runs that the arguments ask for.
fn query(args: &LsArgs) -> Result<RunQuery, Failure> {
    let after = args.after.as_deref().map(str::parse::<Cursor>).transpose()?;
    let query = args.filters.started().after(after);
    let query = if args.reverse { query.oldest_first() } else { query };
    // With a pattern, some are not listed; without one, one more shows whether there are more.
    let most = args.limit.wanted().saturating_add(1);
    Ok(if args.grep.is_some() { query } else { query.limit(most) })
}

/// The run, if it matches the pattern.
fn matching(log: &Reader, args: &LsArgs, run: RunSummary) -> Option<Listed> {
    let Some(grep) = &args.grep else { return Some(Listed { run, title: None }) };
    if grep.is_match(&format!("{}/{}", run.agent, run.run)) {
        return Some(Listed { run, title: None });
    }
    let title = title::of(log, &run)?;
    grep.is_match(&title).then_some(Listed { run, title: Some(Title(Some(title))) })
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
        listed.title.as_ref().and_then(|title| title.0.as_deref()).unwrap_or_default().into(),
    ]
}
