//! The command line, as clap reads it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use runlog::{Compression, RunRef};

use crate::amount::{parse_age, parse_size};

const EXIT_CODES: &str = "\
The store is --store FILE, else $RUNLOG_STORE, else ./runs.runlog.
Exit codes: 0 fine, 1 error, 2 usage, 3 damage found, 4 another process has the store open.";

const LIMITS: &str = "\
A run goes if any limit says so. A run in progress never goes, and neither does one that is held.
Without a limit nothing goes, and that is a dry run. 0 means no limit.
Sizes: 1GiB (2^30 bytes), 500MB (500 * 10^6 bytes), 1024. Ages: 30d, 12h, 90m, 45s, 2w, 1d12h.";

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
    /// Show what the store promises: write, be killed, reopen, check, look up.
    ///
    /// The store is made in the temporary folder, and removed at the end, unless --keep or --store
    /// names a file.
    Demo(DemoArgs),
    /// The process that `demo` starts and kills.
    #[command(hide = true)]
    DemoWriter(WriterArgs),
    /// Import JSON Lines files: each file becomes a run, each line a record.
    ///
    /// PATH is a file, or a folder: one that holds `runs/`, one whose folders are agents, or one
    /// whose files are the runs of the agent that it is named after. Links inside a folder are not
    /// followed. A file with a line of more than 64 MiB, or with more than 64 MiB of holes, is
    /// refused as a whole.
    ///
    /// `show RUN --raw` gives a file back byte for byte. Lines that are not exactly one JSON value
    /// are kept as they are, as records of kind `raw`, and reported. A file that was imported
    /// before is skipped, and one that was imported in part is gone on with.
    Import(ImportArgs),
    /// List runs, newest first.
    Ls(LsArgs),
    /// Show the records of a run.
    ///
    /// Without --raw and --json each record is one line, cut where it is long. What a terminal
    /// would obey or hide is shown as an escape such as \u{1b}, and in JSON as \u001b.
    Show(ShowArgs),
    /// Check every byte of the store and list every problem.
    Verify,
    /// Tell what is in the store and where its space goes.
    Stat,
    /// Evict the runs that the limits do not keep; without a limit, only tell what is there.
    #[command(after_help = LIMITS)]
    Gc(GcArgs),
    /// Hold a run: it is neither evicted nor deleted until it is released.
    Hold(HoldArgs),
    /// Release a run that is held.
    Release(RunArgs),
    /// Delete a run that has ended.
    Rm(RunArgs),
    /// Delete a run that has ended, and leave no byte of its payloads in the file.
    Erase(RunArgs),
    /// List what was deleted, when and why, the latest first.
    Receipts(ReceiptsArgs),
    /// Move the records of each run together, and give back the space of deleted ones.
    Compact(CompactArgs),
    /// Show a document.
    ///
    /// Without --raw and --json it is shown in one line. What a terminal would obey or hide is
    /// shown as an escape such as \u{1b}, and in JSON as \u001b.
    Get(GetArgs),
    /// Write a document, in the place of what is there.
    Put(PutArgs),
    /// List the documents of a namespace, by key.
    Docs(DocsArgs),
    /// Delete a document.
    Del(DelArgs),
}

/// How a store is compacted.
#[derive(Debug, clap::Args)]
pub(crate) struct CompactArgs {
    /// Compress runs that have ended, by zstd: 1 is fast, 19 is short, and 3 if nothing is said.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "3")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
}

impl CompactArgs {
    /// What the library is asked for.
    pub(crate) fn compression(&self) -> Compression {
        self.zstd.map_or(Compression::None, |level| Compression::Zstd { level })
    }
}

/// A run, for every command that takes one.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The run.
    pub(crate) run: String,

    /// The agent of the run, needed where several agents have a run of this id.
    #[arg(long)]
    pub(crate) agent: Option<String>,
}

impl RunArgs {
    /// The run as the store takes it.
    pub(crate) fn named(&self) -> RunRef<'_> {
        match &self.agent {
            Some(agent) => RunRef::from((agent.as_str(), self.run.as_str())),
            None => RunRef::from(self.run.as_str()),
        }
    }
}

/// A document, for every command that takes one.
#[derive(Debug, clap::Args)]
pub(crate) struct DocumentArgs {
    /// The namespace of the document.
    pub(crate) namespace: String,

    /// The key of the document.
    pub(crate) key: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// The bytes as they are, and nothing else.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// The file with the value [default: standard input].
    pub(crate) file: Option<PathBuf>,

    /// What the value is. One that is not so is refused.
    #[arg(long = "type", value_name = "TYPE", default_value = "bytes")]
    pub(crate) r#type: Type,

    /// What kind of document it is, in a word of your own.
    #[arg(long)]
    pub(crate) kind: Option<String>,

    /// Only if there is no such document.
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// Only if no writer wrote it since it had this version.
    #[arg(long, value_name = "N", conflicts_with = "if_absent")]
    pub(crate) if_version: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Type {
    Bytes,
    Json,
    Text,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DocsArgs {
    /// The namespace.
    pub(crate) namespace: String,

    /// Only those whose keys begin so.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,

    /// How many documents at most.
    #[arg(long, default_value_t = 20, conflicts_with = "all")]
    pub(crate) limit: usize,

    /// All of them.
    #[arg(long)]
    pub(crate) all: bool,

    /// Go on behind this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// Leave no byte of any of its values in the file, be it there or deleted before.
    #[arg(long)]
    pub(crate) erase: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Make the store at FILE, which must not exist, and keep it. So does --store.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) keep: Option<PathBuf>,

    /// The seed that all ids and payloads come from.
    #[arg(long, default_value_t = 7)]
    pub(crate) seed: u64,

    /// How many threads append.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,

    /// How long to write before the kill, in milliseconds.
    #[arg(long, default_value_t = 2500, value_parser = clap::value_parser!(u64).range(50..=10_000))]
    pub(crate) millis: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct WriterArgs {
    #[arg(long)]
    pub(crate) file: PathBuf,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long)]
    pub(crate) threads: u32,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// JSON Lines files, or folders of them.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    /// The agent of files that no agent's folder holds [default: imported].
    #[arg(long)]
    pub(crate) agent: Option<String>,

    /// Leave the runs in progress, so that a file that grows can be imported again.
    #[arg(long)]
    pub(crate) keep_open: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LsArgs {
    /// Only the runs of this agent.
    #[arg(long)]
    pub(crate) agent: Option<String>,

    /// Only the runs of this status.
    #[arg(long)]
    pub(crate) status: Option<Status>,

    /// How many runs at most.
    #[arg(long, default_value_t = 20, conflicts_with = "all")]
    pub(crate) limit: usize,

    /// All of them.
    #[arg(long)]
    pub(crate) all: bool,

    /// Go on behind the place that an earlier `ls` named.
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,

    /// List the agents instead of the runs.
    #[arg(long, conflicts_with_all = ["agent", "status", "after"])]
    pub(crate) agents: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Status {
    InProgress,
    Completed,
    Failed,
    Cancelled,
    Interrupted,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Print the payloads as they are, each followed by a newline. The last line of an imported
    /// file that did not end with one gets none.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,

    /// Do not cut long payloads.
    #[arg(long)]
    pub(crate) full: bool,

    /// The first record, counted from 0.
    #[arg(long, value_name = "N")]
    pub(crate) from: Option<u64>,

    /// The last record, itself included.
    #[arg(long, value_name = "N")]
    pub(crate) to: Option<u64>,

    /// Only the last N records.
    #[arg(long, value_name = "N", conflicts_with_all = ["from", "to"])]
    pub(crate) last: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Only tell what would go.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Keep the newest N ended runs of each agent.
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<u64>,

    /// Keep runs until they ended longer ago than AGE.
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    pub(crate) max_age: Option<Duration>,

    /// Keep at most SIZE; the runs that ended first go first.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) max_bytes: Option<u64>,

    /// Only the runs of this agent, and of each other that is named so.
    #[arg(long = "agent", value_name = "AGENT")]
    pub(crate) agents: Vec<String>,

    /// Keep the newest ended run of each agent, whatever the limits say.
    #[arg(long)]
    pub(crate) protect_newest: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Why. It is kept with the run, and replaces an earlier reason.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReceiptsArgs {
    /// How many at most.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}
