//! Measures runlog against other engines: the same data, the same work, one run.
//!
//! ```sh
//! cargo run --release -p runlog-peers                # all tables, an hour
//! cargo run --release -p runlog-peers -- --small     # a minute, to see that it works
//! cargo run --release -p runlog-peers -- retention   # retention, beside SQLite
//! ```
//!
//! - [`engine`]: the engines behind one face, and how each is set up.
//! - [`workload`]: what they are given.
//! - [`check`]: all give the same answers, before anything is measured.
//! - [`rows`]: what is measured.
//! - [`measure`], [`report`]: how, and what is told of it.
//! - [`retention`]: a comparison of its own.

#![allow(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod args;
mod check;
mod engine;
mod files;
mod measure;
mod report;
mod retention;
mod rows;
mod workload;

use std::path::Path;
use std::process::ExitCode;

use self::args::{Args, Command, USAGE};
use self::engine::Kind;
use self::report::{Measured, Values};
use self::rows::{Context, Row, Scale};

fn main() -> ExitCode {
    // A thread that fails must not leave others waiting for it.
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::exit(101);
    }));
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [command, kind, folder, count] = &words[..]
        && command == rows::reopen::FILL
        && let (Some(kind), Ok(count)) = (Kind::named(kind), count.parse())
    {
        rows::reopen::fill(kind, Path::new(folder), count);
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
        Command::Compare => compare(&args),
    }
    ExitCode::SUCCESS
}

fn scale(args: &Args) -> Scale {
    let scale = if args.small { Scale::small() } else { Scale::full() };
    Scale { rounds: args.rounds.unwrap_or(scale.rounds), ..scale }
}

fn compare(args: &Args) {
    let context = Context { scale: scale(args), dir: args.dir.clone() };
    report::print_header(&context.dir, &args.engines, context.scale.rounds);
    println!("{}.\n", check::check(&args.engines, &context.dir));
    let rows = rows::all(context.scale).into_iter().filter(|row| args.wants(&row.name()));
    let measured: Vec<Measured> = rows.map(|row| measured(row, &args.engines, &context)).collect();
    report::print_summary(&measured, &args.engines);
}

/// Measures a row: in each round each engine in turn, beginning with another one.
fn measured(mut row: Box<dyn Row>, kinds: &[Kind], context: &Context) -> Measured {
    let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| row.takes(*kind)).collect();
    for kind in &kinds {
        row.prepare(context, *kind);
    }
    let mut values = Values(kinds.iter().map(|kind| (*kind, Vec::new())).collect());
    for round in 0..row.rounds(context) {
        for turn in 0..kinds.len() {
            let at = (turn + round) % kinds.len();
            values.0[at].1.push(row.round(context, kinds[at]));
        }
    }
    row.finish();
    report::print(&*row, &values)
}
