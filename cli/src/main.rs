//! The `runlog` command.
//!
//! One file, or one folder, per command; each takes its parsed arguments and an [`Output`] and
//! returns an [`Exit`]. Results go to standard output, everything else to standard error.
//!
//! Exit codes: 0 fine, 1 error, 2 usage, 3 damage found, 4 the store is busy. Those of `search` are
//! grep's: 0 found, 1 not found, 2 failed.
//! A reader that closes the pipe early ends the command quietly with 0.

mod adopt;
mod amount;
mod args;
mod arguments;
mod backup;
mod chat;
mod command_line;
mod compact;
mod confirm;
mod conversation;
mod demo;
#[path = "../examples/demo.rs"]
mod demonstration;
mod doctor;
mod documents;
mod du;
mod escape;
mod export;
mod failure;
mod fields;
mod filters;
mod find;
mod gc;
mod hold;
mod import;
mod in_order;
mod inspect;
mod json;
mod limit;
mod line;
mod ls;
mod manual;
mod message;
mod names;
mod output;
mod pager;
mod pretty;
mod readable;
mod receipts;
mod records;
mod rm;
mod salvage;
mod screen;
mod search;
mod short;
mod show;
mod stat;
mod status;
mod store;
mod table;
mod tail;
mod times;
mod usage;
mod verify;
mod wrap;

use std::process::ExitCode;

use runlog_formats as formats;

use crate::args::{Args, Command};
use crate::failure::{Exit, Failure};
use crate::output::Output;

fn main() -> ExitCode {
    let args = match args::parsed(std::env::args_os().collect()) {
        Ok(args) => args,
        Err(error) => return command_line::answer(error),
    };
    if args.json {
        message::speak_json();
    }
    let mut out = Output::stdout(args.json);
    let result = run(&args, &mut out).and_then(|exit| {
        out.finish()?;
        Ok(exit)
    });
    let exit = result.unwrap_or_else(|failure| {
        // Output that was printed before the failure comes before its message.
        let _ = out.finish();
        if !failure.is_closed_pipe() {
            message::fail(&failure, failure.exit());
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
        Command::Tail(tail) => tail::run(tail, &store, out),
        Command::Search(search) => search::run(search, &store, out),
        Command::Verify => verify::run(&store, out),
        Command::Salvage(args) => salvage::run(args, out),
        Command::Backup(args) => backup::run(&store, args, out),
        Command::Export(args) => export::run(&store, args, out),
        Command::Completions(args) => manual::completions(args, args::command(), out),
        Command::Man(args) => manual::man(args, args::command(), out),
        Command::Inspect(inspect) => inspect::run(inspect, &store, out),
        Command::Doctor(doctor) => doctor::run(doctor, &store, out),
        Command::Stat => stat::run(&store, out),
        Command::Du(du) => du::run(du, &store, out),
        Command::Usage(args) => usage::run(args, &store, out),
        Command::Gc(gc) => gc::run(gc, &store, out),
        Command::Hold(hold) => hold::hold(hold, &store, out),
        Command::End(end) => hold::end(end, &store, out),
        Command::Adopt(adopt) => adopt::run(adopt, &store, out),
        Command::Release(release) => hold::release(release, &store, out),
        Command::Rm(rm) => rm::run(rm, false, &store, out),
        Command::Erase(erase) => rm::run(erase, true, &store, out),
        Command::Receipts(receipts) => receipts::run(receipts, &store, out),
        Command::Compact(args) => compact::run(&store, args, out),
        Command::Get(get) => documents::get(get, &store, out),
        Command::Put(put) => documents::put(put, &store, out),
        Command::Docs(docs) => documents::list(docs, &store, out),
        Command::Del(del) => documents::delete(del, &store, out),
    }
}
