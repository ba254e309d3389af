//! Measures runlog against other engines: the same data, the same work, one run.
//!
//! ```sh
//! cargo run --release -p runlog-peers                # all tables, half an hour
//! cargo run --release -p runlog-peers -- readme      # the same, one short table
//! cargo run --release -p runlog-peers -- --small     # a minute, to see that it works
//! cargo run --release -p runlog-peers -- retention   # retention, beside SQLite
//! cargo run --release -p runlog-peers -- repetition  # bytes of runs that repeat themselves
//! cargo run --release -p runlog-peers -- commands    # the command, beside cp and ripgrep
//! ```
//!
//! - [`engine`]: the engines behind a common interface, and how each is configured.
//! - [`workload`]: their data.
//! - [`check`]: checks that all give the same answers, before anything is measured.
//! - [`rows`]: the measurements.
//! - [`measure`]: time and counts.
//! - [`results`]: the results as data; [`report`], [`readme`]: as text.
//! - [`retention`], [`repetition`], [`commands`]: separate comparisons.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod args;
mod check;
mod commands;
mod engine;
mod files;
mod measure;
mod readme;
mod repetition;
mod report;
mod results;
mod retention;
mod rows;
mod workload;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use self::args::{Args, Command, USAGE};
use self::engine::Kind;
use self::results::{Entry, Measured, Out, Results};
use self::rows::{Context, Row, Scale};

fn main() -> ExitCode {
    // A thread that fails must not leave others waiting for it.
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        std::process::exit(101);
    }));
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [command, kind, folder, count] = &words[..]
        && command == rows::reopen::FILL
        && let (Some(kind), Ok(count)) = (Kind::named(kind), count.parse())
    {
        rows::reopen::fill(kind, Path::new(folder), count);
    }
    if let [command, kind, folder, asked @ ..] = &words[..]
        && command == rows::first::ASK
        && let Some(kind) = Kind::named(kind)
    {
        rows::first::ask(kind, Path::new(folder), asked);
        return ExitCode::SUCCESS;
    }
    if let [command, mode, tree, file] = &words[..]
        && command == commands::imports::LOOP
    {
        commands::imports::import_into_sqlite(mode, Path::new(tree), Path::new(file));
        return ExitCode::SUCCESS;
    }
    let args = match Args::parse(&words) {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("{problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match args.command {
        Command::Help => print!("{USAGE}"),
        Command::Rows => rows::all(scale(&args)).iter().for_each(|row| println!("{}", row.name())),
        Command::Retention { once, ours } => {
            retention::compare(args.small, once, ours, &args.dir);
        }
        Command::Repetition => {
            repetition::compare(args.small, &args.engines, |name| args.wants(name), &args.dir);
        }
        Command::Commands { megabytes } => commands::compare(&commands::Asked {
            small: args.small,
            rounds: args.rounds.unwrap_or(if args.small { 1 } else { 11 }),
            dir: &args.dir,
            tables: &args.rows,
            megabytes,
        }),
        Command::Compare => return tell(&args, report::print, report::print_summary),
        Command::Readme => {
            return tell(&args, |_| {}, |results| print!("{}", readme::table(results)));
        }
    }
    ExitCode::SUCCESS
}

fn scale(args: &Args) -> Scale {
    let scale = if args.small { Scale::small() } else { Scale::full() };
    Scale { rounds: args.rounds.unwrap_or(scale.rounds), ..scale }
}

/// Prints each entry as it comes, and all of them at the end.
fn tell(args: &Args, each: fn(&Entry), all: fn(&Results)) -> ExitCode {
    let told = match &args.from {
        None => compare(args, each).map(|(results, context)| {
            all(&results);
            context.finish();
        }),
        Some(file) => Results::load(file).map(|results| {
            each(&Entry::Setting(results.setting.clone()));
            for row in &results.rows {
                each(&Entry::Row(row.clone()));
            }
            all(&results);
        }),
    };
    if let Err(problem) = told {
        eprintln!("{problem}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Measures all requested rows. Removing the stores is left for later.
fn compare(args: &Args, each: fn(&Entry)) -> Result<(Results, Context), String> {
    let mut out = args.out.as_deref().map(Out::create).transpose()?;
    let mut told = |entry: &Entry| {
        each(entry);
        if let Some(out) = &mut out {
            out.write(entry);
        }
    };
    let context = Context::new(scale(args), args.dir.clone());
    context.tell("comparing the answers of all engines");
    let checked = check::check(&args.engines, &context.dir);
    let small = if args.small { "small, which shows that it works; " } else { "" };
    let rounds = context.scale.rounds;
    let scale = format!("{small}medians of {rounds} rounds, each engine in turn in each");
    let setting = report::setting(&context.dir, &args.engines, &scale, checked);
    told(&Entry::Setting(setting.clone()));
    let wanted = rows::all(context.scale).into_iter().filter(|row| args.wants(&row.name()));
    let wanted: Vec<_> = wanted.collect();
    let count = wanted.len();
    let mut rows = Vec::new();
    for (number, row) in (1..).zip(wanted) {
        context.tell(&format!("row {number} of {count}: {}", row.name()));
        let row = measured(row, &args.engines, &context);
        told(&Entry::Row(row.clone()));
        rows.push(row);
    }
    Ok((Results { setting, rows }, context))
}

/// Measures a row: in each round each engine in turn, beginning with another one.
fn measured(mut row: Box<dyn Row>, kinds: &[Kind], context: &Context) -> Measured {
    let began = Instant::now();
    let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| row.takes(*kind)).collect();
    row.prepare(context, &kinds);
    let mut values: Vec<_> = kinds.iter().map(|kind| (*kind, Vec::new())).collect();
    for round in 0..row.rounds(context) {
        context.tell(&format!("round {}", round + 1));
        for turn in 0..kinds.len() {
            let at = (turn + round) % kinds.len();
            values[at].1.push(row.round(context, kinds[at]));
        }
    }
    row.finish(context);
    Measured {
        name: row.name(),
        what: row.what(),
        level: row.level(),
        columns: row.columns().into_iter().map(str::to_owned).collect(),
        lines: row.lines(),
        digits: row.digits(),
        values,
        notes: row.notes(),
        seconds: began.elapsed().as_secs_f64(),
        load: report::load(),
    }
}
