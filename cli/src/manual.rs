//! `runlog completions` and `runlog man`: what shells and `man` know of the command line.

use clap::Command;
use clap_complete::Shell;
use serde_json::{Value, json};

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

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut command: Command,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "runlog", &mut script);
    let text = String::from_utf8_lossy(&script);
    print(&json!({"shell": args.shell.to_string(), "script": text}), &script, out)
}

pub(crate) fn man(args: &ManArgs, mut whole: Command, out: &mut Output) -> Result<Exit, Failure> {
    // Options of all commands are in the pages of each only once it is built.
    whole.build();
    let page = match &args.command {
        None => whole,
        Some(name) => {
            let found = whole.find_subcommand(name).filter(|found| !found.is_hide_set());
            let missing = || Failure::said(format!("there is no command {name}"));
            found.ok_or_else(missing)?.clone()
        }
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text)?;
    let page = String::from_utf8_lossy(&text);
    print(&json!({"command": args.command, "page": page}), &text, out)
}

fn print(object: &Value, bytes: &[u8], out: &mut Output) -> Result<Exit, Failure> {
    if out.is_json() {
        out.object(object)?;
    } else {
        out.raw(bytes)?;
    }
    Ok(Exit::Fine)
}
