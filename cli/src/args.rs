//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use runlog::{Compression, RunRef, RunStatus, Timestamp};

use crate::adopt::AdoptArgs;
use crate::backup::BackupArgs;
use crate::doctor::DoctorArgs;
use crate::du::DuArgs;
use crate::export::ExportArgs;
use crate::gc::GcArgs;
use crate::inspect::InspectArgs;
use crate::ls::LsArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::rm::RmArgs;
use crate::search::SearchArgs;
use crate::show::ShowArgs;
use crate::tail::TailArgs;
use crate::usage::UsageArgs;

const EXIT_CODES: &str = "\
The store is --store FILE, else $RUNLOG_STORE, else ./runs.runlog.
Exit codes: 0 fine, 1 error, 2 usage, 3 damage found, 4 another process has the store open,
and the command would write to it.";

const LIMITS: &str = "\
A run is evicted if any limit says so. A run in progress or held is never evicted.
Without a limit nothing is evicted, and the command is a dry run. 0 means no limit.
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
    /// Demonstrate the promises: write, kill the writer, reopen, check, look up.
    ///
    /// The store is created in the temporary folder and removed at the end, unless --keep or
    /// --store names a file.
    Demo(DemoArgs),
    /// The process that `demo` starts and kills.
    #[command(hide = true)]
    DemoWriter(WriterArgs),
    /// Import agent logs of many formats: each file becomes a run, each line or step a record.
    ///
    /// PATH is a file, or a folder: one that holds `runs/`, one whose folders are agents, or one
    /// whose files are the runs of the agent that it is named after. Links inside a folder are not
    /// followed.
    ///
    /// The format is recognised by the content: sessions of Claude Code, Codex, pi, `OpenClaw` and
    /// Gemini, the runs of CAR, trajectories of SWE-agent and mini-swe-agent, logs of Inspect,
    /// ATIF, other JSON Lines and JSON documents, and text. Any other file is named, and makes the
    /// exit code 1.
    ///
    /// `show RUN --raw` gives a file back byte for byte. A run has ended if its file says so, or
    /// --end does; otherwise it stays in progress. A file that was imported before is there
    /// already, one that grew is gone on with, and one that changed is refused.
    ///
    /// A file with a line of more than 64 MiB, a document of more than 256 MiB, or more than 64 MiB
    /// of holes is not imported.
    Import(ImportArgs),
    /// List runs, newest first, with what their users asked for.
    ///
    /// The title of a run is the first message of its user, if it has one among its first records.
    /// On a terminal the list fits its width, ids are elided in the middle, and times are local; in
    /// a pipe everything is whole, and times are UTC.
    Ls(LsArgs),
    /// Show the records of a run.
    ///
    /// On a terminal each record has a heading and its payload below, JSON indented and long ones
    /// folded, in the pager $PAGER or `less`. Elsewhere each record is one line, and a long one is
    /// cut. --pretty and --lines choose one of the two anywhere, --full shows everything.
    ///
    /// Control and invisible characters are shown as escapes such as \u{1b}, and in JSON as
    /// \u001b. --raw prints the bytes as they are.
    Show(ShowArgs),
    /// Show the last records of a run, or of all runs; with -f what follows as well.
    ///
    /// With -f and RUN it ends when the run does. Starts, ends and deletions of runs are told on
    /// standard error, and with --json on standard output.
    Tail(TailArgs),
    /// Search the payloads of records for text or a regular expression.
    ///
    /// Runs are searched newest first, compressed ones as well. The exit code is 0 if something was
    /// found, 1 if nothing was, and 2 for a failure or a damaged record.
    Search(SearchArgs),
    /// Check every byte of the store and list every problem; the index is not compared.
    Verify,
    /// Read all that can be read out of a damaged store into a new one, and list what is missing.
    ///
    /// The damaged file is only read. Records keep their order, time, kind and bytes; where one is
    /// missing, the later ones of its run count on without a gap. Runs in progress stay in
    /// progress. What has lost its name is at the agent `salvaged`. The exit code is 3 if anything
    /// is missing.
    Salvage(SalvageArgs),
    /// Copy the store to FILE as of one moment, also while another process writes it.
    Backup(BackupArgs),
    /// Write runs into files: those that they were imported from, or JSON Lines.
    ///
    /// Each run becomes the file AGENT/RUN below TARGET, also while another process writes the
    /// store. A run that was imported becomes the file that it was imported from, byte for byte,
    /// with what was appended to its lines since; its digest is checked. Any other run becomes
    /// JSON Lines, and with --format jsonl every run does: a payload that is one line of JSON is
    /// this line, any other is a string in `{"runlog_text":...}` or `{"runlog_base64":...}`, which
    /// `import` takes out again. `import` finds the same ids in the names, whatever they are.
    ///
    /// With `-` the lines of all runs go to standard output, in front of each run one that names
    /// it: `{"runlog_run":...}`.
    ///
    /// With --format otlp each run is a line with a trace of OpenTelemetry (semantic conventions
    /// 1.41.0): the run, the messages of models and the calls of tools as spans, as far as their
    /// times are known, without what they say.
    ///
    /// No file is there half written, and none is replaced: a run whose file is there is refused,
    /// the others are exported, and the exit code is 1.
    Export(ExportArgs),
    /// Show what the store has and where its space goes.
    Stat,
    /// Show what takes how much: agents, runs or kinds of records, and the parts of the file.
    ///
    /// BYTES are the payloads as they were appended, STORED what the file has of them: compressed
    /// or not, and with headers. The parts of the file add up to its length.
    Du(DuArgs),
    /// Add up the tokens and the cost of messages, by agent, run, model or day.
    ///
    /// The numbers are those that the records of imported runs, and of others in the same formats,
    /// say themselves; `import` and this command make up none. Each message counts once, also where
    /// several records or several runs of an agent have it. INPUT may include what was read from
    /// the cache, as the data counts. A + behind a cost: some messages do not say theirs.
    Usage(UsageArgs),
    /// Say what is wrong with the store and with this machine, and what to do about it.
    ///
    /// Each finding is `ok`, a `note`, a `warning` or an `error`, and has a command where there is
    /// one. The exit code is 0 if nothing is worse than a note, 3 if anything is damaged, else 1.
    ///
    /// It changes nothing, and works beside a writer. It reads every byte of the store to look for
    /// damage; with --quick it does not.
    Doctor(DoctorArgs),
    /// Show the structures of the file as they are, for debugging; see docs/FORMAT.md.
    ///
    /// Without an option: the header, the superblocks, the owner, the manifest, and what each
    /// extent is used for. With --extent or --segment: the header, the directory and every frame of
    /// a segment. With a place or --lsn: one frame.
    ///
    /// It only reads, also beside a writer, and works on a file that does not open: it tells what
    /// is damaged and goes on. The exit code is 3 if anything that it shows is damaged. Payloads
    /// are shown only with --payload.
    Inspect(InspectArgs),
    /// Evict the runs that exceed the limits; without a limit, only show what is there.
    #[command(after_help = LIMITS)]
    Gc(GcArgs),
    /// Hold a run: it cannot be evicted or deleted until it is released.
    Hold(HoldArgs),
    /// Release a run that is held.
    Release(RunArgs),
    /// End a run in progress whose program does not end it any more.
    End(EndArgs),
    /// End all runs in progress whose programs died. On a terminal it asks before.
    ///
    /// One process at a time writes a store. While another one does, the command changes nothing
    /// and names it, with exit code 4; otherwise no run in progress has a writer any more.
    ///
    /// Runs that were imported from files that say nothing of an end are in progress too. --agent
    /// and --older-than choose; --dry-run only lists, and only reads.
    Adopt(AdoptArgs),
    /// Delete runs that have ended. On a terminal it asks before.
    Rm(RmArgs),
    /// Delete runs that have ended, and leave no byte of their payloads in the file.
    ///
    /// On a terminal it asks before.
    Erase(RmArgs),
    /// List what was deleted, when and why, the latest first.
    Receipts(ReceiptsArgs),
    /// Move the records of each run together, and free the space of deleted runs.
    Compact(CompactArgs),
    /// Show a document.
    ///
    /// Without --raw and --json it is shown in one line. Control and invisible characters are shown
    /// as escapes such as \u{1b}, and in JSON as \u001b.
    Get(GetArgs),
    /// Write a document, and replace the one that is there.
    Put(PutArgs),
    /// List the documents of a namespace, by key.
    Docs(DocsArgs),
    /// Delete a document.
    Del(DelArgs),
    /// Print a script that completes the command line in a shell.
    ///
    /// For bash: runlog completions bash > ~/.local/share/bash-completion/completions/runlog
    Completions(CompletionsArgs),
    /// Print the manual page of runlog, or of one of its commands, for `man -l -`.
    Man(ManArgs),
}

/// The arguments of `salvage`.
#[derive(Debug, clap::Args)]
pub(crate) struct SalvageArgs {
    /// The damaged store. `--store` plays no part.
    pub(crate) broken: PathBuf,

    /// The new store, where no file may exist.
    #[arg(required_unless_present = "replace", conflicts_with = "replace")]
    pub(crate) out: Option<PathBuf>,

    /// Put the new store in the place of the damaged one, which gets another name beside it.
    ///
    /// A store that opens stays as it is. The exit code is 0 if the store opens now.
    #[arg(long)]
    pub(crate) replace: bool,
}

/// The options of `compact`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompactArgs {
    /// Compress ended runs with zstd, from 1 (fast) to 19 (small); 3 if no level is given.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "3")]
    #[arg(value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,
}

impl CompactArgs {
    /// The value for the library.
    pub(crate) fn compression(&self) -> Compression {
        self.zstd.map_or(Compression::None, |level| Compression::Zstd { level })
    }
}

/// A run, for every command that takes one.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The run: its id or AGENT/RUN, or a beginning of these that no other run has.
    pub(crate) run: String,

    /// The agent of the run, needed if several agents have a run with this id.
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

    /// Print the bytes unchanged, and nothing else.
    #[arg(long, conflicts_with = "json")]
    pub(crate) raw: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// The file with the value [default: standard input].
    pub(crate) file: Option<PathBuf>,

    /// Create the store if there is none.
    #[arg(long)]
    pub(crate) create: bool,

    /// The content type of the value. A value that does not fit is refused.
    #[arg(long = "type", value_name = "TYPE", default_value = "bytes")]
    pub(crate) r#type: Type,

    /// The kind of the document, in a word of your own.
    #[arg(long)]
    pub(crate) kind: Option<String>,

    /// Write only if there is no such document.
    #[arg(long)]
    pub(crate) if_absent: bool,

    /// Write only if the document still has this version.
    #[arg(long, value_name = "N", conflicts_with = "if_absent")]
    pub(crate) if_version: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct EndArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// How the run ended.
    #[arg(long)]
    pub(crate) status: EndStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EndStatus {
    Completed,
    Failed,
    Cancelled,
    Interrupted,
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

    /// Only documents whose keys begin with this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) prefix: String,

    /// The most documents to list.
    #[arg(long, default_value_t = 20, conflicts_with = "all")]
    pub(crate) limit: usize,

    /// List all.
    #[arg(long)]
    pub(crate) all: bool,

    /// Continue behind this key.
    #[arg(long, value_name = "KEY")]
    pub(crate) after: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) document: DocumentArgs,

    /// Leave no byte of any of its values in the file, also if it was deleted before.
    #[arg(long)]
    pub(crate) erase: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Create the store at FILE, which must not exist, and keep it. --store does the same.
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) keep: Option<PathBuf>,

    /// The seed of all ids and payloads.
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
    /// Files, or folders of them.
    #[arg(required = true, value_name = "PATH")]
    pub(crate) paths: Vec<PathBuf>,

    /// Create the store if there is none.
    #[arg(long)]
    pub(crate) create: bool,

    /// The agent of files that are not in the folder of an agent [default: imported].
    #[arg(long)]
    pub(crate) agent: Option<String>,

    /// How runs ended of whose end their files say nothing. Without it they stay in progress, and
    /// an import of a file that grew goes on with its run.
    #[arg(long, value_name = "STATUS", conflicts_with = "follow")]
    pub(crate) end: Option<EndStatus>,

    /// Go on importing as the files grow and new ones come, until the command is interrupted.
    #[arg(long)]
    pub(crate) follow: bool,

    /// Import files that changed anew, in the place of their runs. Without it they are refused.
    #[arg(long)]
    pub(crate) replace: bool,

    /// Pass over files that are not recognised. They are named in any case; without it the exit
    /// code is 1.
    #[arg(long)]
    pub(crate) skip_unknown: bool,

    /// Show progress on standard error also where that is no terminal.
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Reads a time with an offset.
pub(crate) fn parse_time(text: &str) -> Result<Timestamp, &'static str> {
    text.parse().map_err(|_| "expected a date and time like 2026-01-31T12:00:00Z")
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

impl Status {
    pub(crate) fn wanted(self) -> RunStatus {
        match self {
            Self::InProgress => RunStatus::InProgress,
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
            Self::Interrupted => RunStatus::Interrupted,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// The reason. It is stored with the run, and replaces an earlier one.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ReceiptsArgs {
    /// The most receipts to list.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,
}
