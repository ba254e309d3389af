//! The command line, as clap reads it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use textwrap::{Options, fill};

use crate::arguments::ordered;
use crate::find::RunArgs;
use crate::screen::Screen;
use crate::{
    adopt, backup, compact, demo, doctor, documents, du, export, gc, hold, import, inspect, ls,
    manual, receipts, rm, salvage, search, show, tail, usage,
};

const EXIT_CODES: &str = "\
The store is --store FILE, else $RUNLOG_STORE, else ./runs.runlog.
Exit codes: 0 fine, 1 error, 2 usage, 3 damage found, 4 another process has the store open,
and the command would write to it.";

const LIMITS: &str = "\
A run is evicted if any limit says so. A run in progress or held is never evicted.
Without a limit nothing is evicted, and the command is a dry run. 0 means no limit.
Sizes: 1GiB (2^30 bytes), 500MB (500 * 10^6 bytes), 1024. Ages: 30d, 12h, 90m, 45s, 2w, 1d12h.";

/// The commands as `--help` lists them, the daily ones first.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Every day", &["import", "ls", "show", "search", "tail", "usage"]),
    ("Runs", &["end", "adopt", "hold", "release", "rm", "erase", "export"]),
    ("Space", &["du", "stat", "gc", "compact", "receipts"]),
    ("Care", &["verify", "doctor", "backup", "salvage", "inspect"]),
    ("Documents", &["get", "put", "docs", "del"]),
    ("More", &["demo", "completions", "man", "help"]),
];

/// The width of the help where no terminal shows it, and at most.
const HELP_WIDTH: usize = 100;

/// The command line, with its commands in groups.
pub(crate) fn command() -> clap::Command {
    let command = Args::command().max_term_width(HELP_WIDTH);
    let width = Screen::of_stdout().map_or(HELP_WIDTH, |screen| screen.width().min(HELP_WIDTH));
    let mut groups = String::new();
    for (title, names) in GROUPS {
        groups.push_str(title);
        groups.push_str(":\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about =
                about.map_or_else(|| "Print the help of a command".to_owned(), ToString::to_string);
            let first = format!("  {name:<13}");
            let margin = " ".repeat(first.len());
            let options = Options::new(width).initial_indent(&first).subsequent_indent(&margin);
            groups.push_str(&fill(&about, options));
            groups.push('\n');
        }
        groups.push('\n');
    }
    let front = "{about-with-newline}\n{usage-heading} {usage}\n\n";
    command.help_template(format!("{front}{groups}Options:\n{{options}}{{after-help}}"))
}

/// Reads a command line.
pub(crate) fn parsed(arguments: Vec<OsString>) -> Result<Args, clap::Error> {
    let mut command = command();
    let arguments = ordered(&mut command, arguments);
    let matches = command.try_get_matches_from_mut(arguments)?;
    Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Keeps the run logs of AI agents in one file.
#[derive(Debug, Parser)]
#[command(name = "runlog", bin_name = "runlog", version, after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// The file that holds the store.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,

    /// Print JSON Lines: one object per line, with the same fields in every release.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Demonstrate the promises: write, kill the writer, reopen, check, look up.
    ///
    /// The store is created in the temporary folder and removed at the end, unless --store
    /// names a file.
    Demo(demo::DemoArgs),
    /// The process that `demo` starts and kills.
    #[command(hide = true)]
    DemoWriter(demo::WriterArgs),
    /// Import agent logs of many formats: each file becomes a run, each line or step a record.
    ///
    /// PATH is a file, or a folder: one that holds `runs/`, one whose folders are agents, or one
    /// whose files are the runs of the agent that it is named after. Links inside a folder are not
    /// followed. The content says which format a file has. A file that is not recognised is named,
    /// and makes the exit code 1; files that are known to be no runs, such as indexes and settings,
    /// are counted in one line.
    ///
    /// A run has ended if its file says so, or --end does. A file that was imported before is there
    /// already, the rest of one that grew is appended, and one that changed is refused. `show RUN
    /// --raw` gives a file back byte for byte, a compressed one unpacked.
    ///
    /// A file with a line of more than 64 MiB, a document or unpacked file of more than 256 MiB, or
    /// more than 64 MiB of holes is not imported.
    Import(import::ImportArgs),
    /// List runs, newest first, with what their users asked for.
    ///
    /// On a terminal the list fits its width, times are local, each id is its shortest beginning
    /// that no other run has, and columns that are the same in each line become one line above. In
    /// a pipe everything is whole, and times are UTC.
    #[command(alias = "list")]
    Ls(ls::LsArgs),
    /// Show the records of a run.
    ///
    /// On a terminal a run reads as a conversation, in the pager $PAGER or `less`: what users and
    /// models say is whole, and what tools take and answer is folded. Elsewhere each record is one
    /// line, and a long one is cut. --chat, --records and --lines choose a form anywhere, --full
    /// shows everything.
    ///
    /// Control and invisible characters are shown as escapes such as \u{1b}, and in JSON as
    /// \u001b. --raw prints the bytes as they are.
    #[command(alias = "cat")]
    Show(show::ShowArgs),
    /// Show the last records of a run, or of all runs; with -f what follows as well.
    ///
    /// With -f and RUN it ends when the run does. It reports starts, ends and deletions of runs on
    /// standard error, and with --json on standard output.
    Tail(tail::TailArgs),
    /// Search the payloads of records for text or a regular expression.
    ///
    /// Text is found as it reads, whatever JSON makes of its quotation marks, line ends and
    /// letters. Runs are searched newest first, compressed ones as well. The exit code is 0 if
    /// something was found, 1 if nothing was, and 2 for a failure or a damaged record.
    #[command(alias = "grep")]
    Search(search::SearchArgs),
    /// Check every byte of the store and list every problem; the index is not compared.
    Verify,
    /// Read all that can be read out of a damaged store into a new one, and list what is missing.
    ///
    /// The damaged file is only read. Records keep their order, time, kind and bytes; where one is
    /// missing, the numbers of the later ones of its run have no gap. What has lost its name is at
    /// the agent `salvaged`. The exit code is 3 if anything is missing.
    Salvage(salvage::SalvageArgs),
    /// Copy the store to FILE as of one moment, also while another process writes it.
    Backup(backup::BackupArgs),
    /// Write runs into files: those that they were imported from, or JSON Lines.
    ///
    /// Each run becomes the file AGENT/RUN below TARGET. A run that was imported becomes its file,
    /// byte for byte, with the lines that were appended since; its digest is checked. Any other
    /// run, and with --format jsonl every run, becomes JSON Lines: a payload that is no line of
    /// JSON is a string in `{"runlog_text":...}` or `{"runlog_base64":...}`, which `import` takes
    /// out again.
    ///
    /// With `-` the lines of all runs go to standard output, and before those of each run a line
    /// that names it: `{"runlog_run":...}`. With --format otlp each run is a line with a trace of
    /// OpenTelemetry (semantic conventions 1.41.0): the run, its messages and its calls of tools as
    /// spans, without what they say.
    ///
    /// No file is half written or replaced: a run whose file is there is refused, the others are
    /// exported, and the exit code is 1.
    Export(export::ExportArgs),
    /// Show what the store has and where its space goes.
    Stat,
    /// Show what takes how much: agents or runs, and the parts of the file.
    ///
    /// BYTES are the payloads as they were appended, STORED what the file has of them: compressed
    /// or not, and with headers. The parts of the file add up to its length.
    Du(du::DuArgs),
    /// Add up the tokens and the cost of messages, by agent, run, model or day.
    ///
    /// The numbers are those that the records say themselves. Each message counts once, also where
    /// several records or several runs of an agent have it. INPUT may include what was read from
    /// the cache, as the data counts. A + after a cost: some messages do not say theirs.
    Usage(usage::UsageArgs),
    /// Say what is wrong with the store and its place, and what to do about it.
    ///
    /// Each finding is `ok`, a `note`, a `warning` or an `error`, and has a command where there is
    /// one. The exit code is 0 if nothing is worse than a note, 3 if anything is damaged, else 1.
    ///
    /// It changes nothing, and works beside a writer. It reads every byte of the store to look for
    /// damage; with --quick it does not.
    Doctor(doctor::DoctorArgs),
    /// Show the structures of the file as they are, for debugging; see docs/FORMAT.md.
    ///
    /// Without an option: the header, the superblocks, the owner, the manifest, and what each
    /// extent is used for. With --segment: every frame of a segment. With a place: one frame.
    ///
    /// It only reads, also beside a writer, and works on a file that does not open: it names damage
    /// and continues. The exit code is 3 if anything that it shows is damaged. Payloads are shown
    /// only with --payload.
    Inspect(inspect::InspectArgs),
    /// Evict the runs that exceed the limits; without a limit, only show what is there.
    #[command(after_help = LIMITS)]
    Gc(gc::GcArgs),
    /// Hold a run: it cannot be evicted or deleted until it is released.
    Hold(hold::HoldArgs),
    /// Release a run that is held.
    Release(RunArgs),
    /// End a run in progress whose program does not end it any more.
    End(hold::EndArgs),
    /// End all runs in progress whose programs died. On a terminal it asks before.
    ///
    /// One process at a time writes a store. While another one does, the command changes nothing
    /// and names it, with exit code 4; otherwise no run in progress has a writer any more.
    ///
    /// Runs that were imported from files that say nothing of an end are in progress too. --agent
    /// and --older-than choose; --dry-run only lists, and only reads.
    Adopt(adopt::AdoptArgs),
    /// Delete runs that have ended. On a terminal it asks before.
    Rm(rm::RmArgs),
    /// Delete runs that have ended, and leave no byte of their payloads in the file.
    ///
    /// On a terminal it asks before.
    Erase(rm::RmArgs),
    /// List what was deleted, when and why, the latest first.
    Receipts(receipts::ReceiptsArgs),
    /// Move the records of each run together, and free the space of deleted runs.
    Compact(compact::CompactArgs),
    /// Show a document.
    ///
    /// Without --raw and --json it is shown in one line. Control and invisible characters are shown
    /// as escapes such as \u{1b}, and in JSON as \u001b.
    Get(documents::GetArgs),
    /// Write a document, and replace the one that is there.
    Put(documents::PutArgs),
    /// List the documents of a namespace, by key.
    Docs(documents::DocsArgs),
    /// Delete a document.
    Del(documents::DelArgs),
    /// Print a script that completes the command line in a shell.
    ///
    /// For bash: runlog completions bash > ~/.local/share/bash-completion/completions/runlog
    Completions(manual::CompletionsArgs),
    /// Print the manual page of runlog, or of one of its commands, for `man -l -`.
    Man(manual::ManArgs),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::error::ErrorKind;
    use clap::{Arg, ArgAction};

    use super::*;

    /// What the ids, names and patterns of others begin with.
    const HYPHENS: [&str; 5] =
        ["-home-u-app/run", "-Users-x", "-n-h-y", "--config-x/run", "-h/--agent"];

    fn whole() -> clap::Command {
        let mut whole = command();
        whole.build();
        whole
    }

    /// All commands that a user may call.
    fn commands() -> Vec<clap::Command> {
        let is_own =
            |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
        whole().get_subcommands().filter(is_own).cloned().collect()
    }

    /// A value that the argument takes.
    fn sample(arg: &Arg) -> String {
        let possible = arg.get_possible_values();
        possible.first().map_or_else(|| "1".to_owned(), |value| value.get_name().to_owned())
    }

    /// A command line with what the command requires, with `text` as the value of `arg`.
    fn line(command: &clap::Command, arg: &Arg, text: &str) -> Vec<OsString> {
        let mut line = vec!["runlog".to_owned(), command.get_name().to_owned()];
        for other in command.get_arguments().filter(|other| !other.is_positional()) {
            let is_this = other.get_id() == arg.get_id();
            if !is_this && other.is_required_set() {
                line.extend([format!("--{}", other.get_long().expect("a name")), sample(other)]);
            }
        }
        if let Some(long) = arg.get_long() {
            line.extend([format!("--{long}"), text.to_owned()]);
        }
        for other in command
            .get_positionals()
            .filter(|_| command.get_name() != "inspect" || arg.is_positional())
        {
            let is_this = other.get_id() == arg.get_id();
            line.push(if is_this { text.to_owned() } else { sample(other) });
        }
        line.into_iter().map(OsString::from).collect()
    }

    fn matches(line: &[OsString]) -> Result<clap::ArgMatches, clap::Error> {
        let mut command = command();
        let line = ordered(&mut command, line.to_vec());
        command.try_get_matches_from_mut(line)
    }

    #[test]
    fn every_argument_takes_a_value_that_begins_with_a_hyphen() {
        let mut taken = BTreeSet::new();
        for command in commands() {
            for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
                // A run, an agent or a pattern, and any other text.
                if !arg.get_possible_values().is_empty()
                    || arg.get_num_args().is_some_and(|number| number.min_values() == 0)
                {
                    continue;
                }
                for text in HYPHENS {
                    let line = line(&command, arg, text);
                    let found = match matches(&line) {
                        Ok(found) => found,
                        // A number, a time or a size: it is refused for what it is.
                        Err(error) if error.kind() == ErrorKind::ValueValidation => continue,
                        Err(error) => panic!("{line:?}: {error}"),
                    };
                    let (_, found) = found.subcommand().expect("a command");
                    let raw = found.get_raw(arg.get_id().as_str()).expect("a value");
                    assert!(raw.into_iter().any(|value| value == text), "{line:?}");
                    taken.insert(format!("{} {}", command.get_name(), arg.get_id()));
                }
            }
        }
        for name in [
            "show run",
            "tail run",
            "export runs",
            "end run",
            "hold run",
            "release run",
            "rm runs",
            "erase runs",
            "search run",
            "search pattern",
            "ls agent",
            "ls grep",
            "usage agent",
            "du agent",
            "gc agents",
            "adopt agent",
            "import agent",
            "import paths",
        ] {
            assert!(taken.contains(name), "{name} of {taken:?}");
        }
    }

    #[test]
    fn flags_are_flags_before_and_after_such_a_value() {
        for command in commands().iter().filter(|one| one.get_positionals().next().is_some()) {
            let positional = command.get_positionals().next().expect("one");
            if !positional.get_possible_values().is_empty() {
                continue;
            }
            let is_flag = |arg: &&Arg| matches!(arg.get_action(), ArgAction::SetTrue);
            for flag in command.get_arguments().filter(is_flag) {
                let long = flag.get_long().map(|long| format!("--{long}"));
                let short = flag.get_short().map(|short| format!("-{short}"));
                for name in long.into_iter().chain(short) {
                    let line = line(command, positional, "-home-u-app");
                    for place in [2, line.len()] {
                        let mut line = line.clone();
                        line.insert(place, name.clone().into());
                        match matches(&line) {
                            Ok(found) => {
                                let (_, found) = found.subcommand().expect("a command");
                                assert!(found.get_flag(flag.get_id().as_str()), "{line:?}");
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{line:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_mistyped_option_is_an_error_that_names_it() {
        for command in commands() {
            for typo in ["--agnet", "--jsno", "-Z"] {
                let mut line = vec!["runlog".into(), command.get_name().into(), typo.into()];
                line.extend(command.get_positionals().map(|_| OsString::from("-home-u-app")));
                let error = matches(&line).expect_err("an error");
                assert_eq!(error.kind(), ErrorKind::UnknownArgument, "{line:?}: {error}");
                assert!(error.to_string().contains(typo), "{error}");
            }
        }
    }

    #[test]
    fn short_options_are_combined_and_take_their_values() {
        let read = |words: &[&str]| {
            let line: Vec<OsString> = words.iter().map(OsString::from).collect();
            matches(&line).map(|found| found.subcommand().map(|(_, found)| found.clone()))
        };
        for words in [
            &["runlog", "tail", "-fn5", "-a-b-"][..],
            &["runlog", "tail", "-a-b-", "-f", "-n", "5"],
            &["runlog", "tail", "-n=5", "-f", "--", "-a-b-"],
        ] {
            let found = read(words).expect("options").expect("a command");
            assert!(found.get_flag("follow"), "{words:?}");
            assert_eq!(found.get_one::<usize>("limit"), Some(&5), "{words:?}");
            assert_eq!(found.get_one::<String>("run").map(String::as_str), Some("-a-b-"));
        }
        let help = read(&["runlog", "rm", "-h"]).expect_err("the help");
        assert_eq!(help.kind(), ErrorKind::DisplayHelp);
        // That would be help, and no deletion.
        let found = read(&["runlog", "rm", "-yh"]).expect("a run").expect("a command");
        assert!(!found.get_flag("yes"));
    }

    #[test]
    fn each_command_is_in_one_group_of_the_help() {
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut names: Vec<String> =
            commands().iter().map(|one| one.get_name().to_owned()).collect();
        names.push("help".to_owned());
        let sorted: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(sorted.len(), listed.len(), "each once");
        assert_eq!(sorted, names.iter().map(String::as_str).collect::<BTreeSet<_>>());
    }
}
