//! `runlog completions` and `runlog man`: what shells and `man` know of the command line.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Args;
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// The options of `completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// The options of `man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed [default: the page of runlog].
    command: Option<String>,
}

pub(crate) fn completions(args: &CompletionsArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "runlog", &mut script);
    out.raw(&script)?;
    Ok(Exit::Fine)
}

pub(crate) fn man(args: &ManArgs, out: &mut Output) -> Result<Exit, Failure> {
    let mut whole = Args::command();
    // Options of all commands are in the pages of each only once it is built.
    whole.build();
    let page = match &args.command {
        None => whole,
        Some(name) => {
            let found = whole.find_subcommand(name).filter(|found| !found.is_hide_set());
            let Some(found) = found else {
                return Err(Failure::said(format!("there is no command {name}")));
            };
            found.clone()
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    out.raw(&text)?;
    Ok(Exit::Fine)
}
