//! The `runlog` command.
//!
//! One file, or one folder, per command; each takes its parsed arguments and an [`Output`] and
//! returns an [`Exit`]. Results go to standard output, everything else to standard error.
//!
//! Exit codes: 0 fine, 1 error, 2 usage, 3 damage found, 4 the store is busy.
//! A reader that closes the pipe early ends the command quietly with 0.

mod amount;
mod args;
mod compact;
mod demo;
mod documents;
mod escape;
mod failure;
mod gc;
mod hold;
mod import;
mod json;
mod ls;
mod output;
mod receipts;
mod rm;
mod show;
mod stat;
mod store;
mod time;
mod usage;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};
use crate::failure::{Exit, Failure};
use crate::output::{Output, complain};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage::answer(error),
    };
    let mut out = Output::stdout(args.json);
    let result = run(&args, &mut out).and_then(|exit| {
        out.flush()?;
        Ok(exit)
    });
    let exit = result.unwrap_or_else(|failure| {
        // What was printed before the failure belongs before its message.
        let _ = out.flush();
        if !failure.is_closed_pipe() {
            complain(&failure.to_string());
        }
        failure.exit()
    });
    exit.into()
}

fn run(args: &Args, out: &mut Output) -> Result<Exit, Failure> {
    let store = store::path(args.store.as_deref());
    match &args.command {
        Command::Demo(demo) => demo::run(demo, args.store.as_deref(), out),
        Command::DemoWriter(writer) => demo::write(writer),
        Command::Import(import) => import::run(import, &store, out),
        Command::Ls(ls) => ls::run(ls, &store, out),
        Command::Show(show) => show::run(show, &store, out),
        Command::Verify => verify::run(&store, out),
        Command::Stat => stat::run(&store, out),
        Command::Gc(gc) => gc::run(gc, &store, out),
        Command::Hold(hold) => hold::hold(hold, &store, out),
        Command::Release(release) => hold::release(release, &store, out),
        Command::Rm(rm) => rm::delete(rm, &store, out),
        Command::Erase(erase) => rm::erase(erase, &store, out),
        Command::Receipts(receipts) => receipts::run(receipts, &store, out),
        Command::Compact(args) => compact::run(&store, args, out),
        Command::Get(get) => documents::get(get, &store, out),
        Command::Put(put) => documents::put(put, &store, out),
        Command::Docs(docs) => documents::list(docs, &store, out),
        Command::Del(del) => documents::delete(del, &store, out),
    }
}
