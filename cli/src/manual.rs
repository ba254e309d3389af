//! `runlog completions` and `runlog man`: what shells and `man` know of the command line.

use clap::Command;
use clap_complete::Shell;
use serde::Serialize;

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

/// What was asked for, as an object.
#[derive(Serialize)]
#[serde(untagged)]
enum Row<'a> {
    Completions { shell: String, script: &'a str },
    Man { command: Option<&'a str>, page: &'a str },
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "runlog", &mut script);
    if out.is_json() {
        let (shell, script) = (args.shell.to_string(), &*String::from_utf8_lossy(&script));
        out.object(&Row::Completions { shell, script })?;
    } else {
        out.raw(&script)?;
    }
    Ok(Exit::Fine)
}

pub(crate) fn man(args: &ManArgs, mut whole: Command, out: &mut Output) -> Result<Exit, Failure> {
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
    if out.is_json() {
        let (command, page) = (args.command.as_deref(), &*String::from_utf8_lossy(&text));
        out.object(&Row::Man { command, page })?;
    } else {
        out.raw(&text)?;
    }
    Ok(Exit::Fine)
}
