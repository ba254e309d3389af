//! `runlog export`: runs become files again, or one stream.
//!
//! - [`tree`]: folders and files below the target, none of which is there half written.
//! - [`lines`]: a run as lines, or as the file that it was imported from.
//! - [`session_files`]: a run of several files.
//! - [`otlp`]: a run as a trace of OpenTelemetry.
//! - [`outcome`]: what was written of a run, or why nothing was.
//!
//! The names of the files are made by [`crate::names`].

mod lines;
mod otlp;
mod outcome;
mod session_files;
mod tree;

use std::collections::HashSet;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use runlog::{Error, Reader, RunMetadata, RunRef, RunSummary};
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use crate::escape::shown;
use crate::failure::{Exit, Failure};
use crate::filters::Filters;
use crate::find;
use crate::formats::origin::Origin;
use crate::message::complain;
use crate::names::{names_of, stem};
use crate::output::{Output, count, size};
use crate::store;

use self::lines::Form;
use self::outcome::{Why, Written, is_gone};
use self::tree::Tree;

/// How many bytes are written at once.
const BUFFER: usize = 256 << 10;

/// The longest ending that a file keeps.
const MAX_ENDING: usize = 24;

/// The options of `export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The folder to write the files into, or `-` for one stream of JSON Lines.
    target: PathBuf,

    /// The runs: their ids, or AGENT/RUN [default: all].
    #[arg(value_name = "RUN")]
    runs: Vec<String>,

    /// What the files are [default: original, of a stream jsonl].
    #[arg(long)]
    format: Option<ExportFormat>,

    #[command(flatten)]
    filters: Filters,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// The files that runs were imported from; other runs as JSON Lines.
    Original,
    /// JSON Lines: each record is a line.
    Jsonl,
    /// Traces of OpenTelemetry, as OTLP/JSON: each run is a line.
    Otlp,
}

impl ExportFormat {
    /// What a run becomes that was imported from there, if it was.
    fn form(self, origin: Option<Origin>) -> Form {
        let origin = origin.map(Box::new);
        match (self, origin) {
            (Self::Otlp, origin) => Form::Trace(origin),
            (Self::Original, Some(origin)) => Form::Original(origin),
            (Self::Original | Self::Jsonl, _) => Form::Records,
        }
    }
}

pub(crate) fn run(path: &Path, args: &ExportArgs, out: &mut Output) -> Result<Exit, Failure> {
    let is_stream = args.target.as_os_str() == "-";
    let format =
        args.format.unwrap_or(if is_stream { ExportFormat::Jsonl } else { ExportFormat::Original });
    if is_stream && format == ExportFormat::Original {
        return Err(Failure::said(
            "a stream has no original files: export them to a folder, or one by show --raw",
        ));
    }
    let log = store::open_to_read(path)?;
    if is_stream {
        let mut exit = Exit::Fine;
        each_run(&log, args, |run| {
            exit = exit.max(stream(&log, run, format, out)?);
            Ok(())
        })?;
        out.flush()?;
        return Ok(exit);
    }
    let tree = Tree::create(&args.target).map_err(|source| Failure::file(&args.target, source))?;
    let (target, sums, exit) = (&*args.target, Sums::default(), Exit::Fine);
    Files { log: &log, tree, format, out, target, sums, exit }.export(args)
}

/// Calls `each` once with each run that the arguments ask for: those of all runs the oldest first.
fn each_run(
    log: &Reader,
    args: &ExportArgs,
    mut each: impl FnMut(&RunSummary) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let filters = &args.filters;
    if !args.runs.is_empty() {
        // All of them first: one that is missing is an error before any output.
        let find = |run: &String| find::run(log, &filters.named(run));
        let mut runs = args.runs.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let mut seen = HashSet::new();
        runs.retain(|run| seen.insert(run.number()));
        let is_wanted =
            |run: &&RunSummary| filters.takes(run) && filters.takes_time(run.started_at);
        return runs.iter().filter(is_wanted).try_for_each(each);
    }
    filters.check(log)?;
    log.runs(&filters.started().oldest_first()).try_for_each(|run| each(&run?))
}

/// Where a run was imported from, if it was.
fn origin(log: &Reader, run: &RunSummary) -> Result<Option<Origin>, Error> {
    Ok(Origin::of(log.metadata(RunRef::from(run))?.as_ref()))
}

/// The sums over all runs.
#[derive(Debug, Default, Serialize)]
#[serde(tag = "event", rename = "summary")]
struct Sums {
    exported: u64,
    skipped: u64,
    errors: u64,
    records: u64,
    bytes: u64,
    damaged_records: u64,
}

/// Runs as files.
struct Files<'a> {
    log: &'a Reader,
    tree: Tree,
    format: ExportFormat,
    out: &'a mut Output,
    target: &'a Path,
    sums: Sums,
    exit: Exit,
}

impl Files<'_> {
    fn export(mut self, args: &ExportArgs) -> Result<Exit, Failure> {
        each_run(self.log, args, |run| self.run(run))?;
        self.tree.sync().map_err(|source| Failure::file(&args.target, source))?;
        self.finish()
    }

    fn run(&mut self, run: &RunSummary) -> Result<(), Failure> {
        let (id, agent) = (&run.run, &run.agent);
        let form = origin(self.log, run).map(|origin| self.format.form(origin));
        let names = form.as_ref().map(|form| file_names(run, form)).unwrap_or_default();
        let path = self.target.join(names.iter().collect::<PathBuf>());
        let done = form.map_err(Why::from).and_then(|form| {
            let written = self.write(run, &names, &form)?;
            Ok((form.name(), written))
        });
        let why = match done {
            Ok((format, written)) => {
                let Written { records, bytes, damaged } = written;
                self.sums.exported += 1;
                self.sums.records += records;
                self.sums.bytes += bytes;
                self.sums.damaged_records += damaged;
                let object = json!({
                    "event": "run",
                    "run": id,
                    "agent": agent,
                    "file": path.to_string_lossy(),
                    "format": format,
                    "status": run.status,
                    "records": records,
                    "bytes": bytes,
                    "damaged_records": damaged,
                });
                let (records, bytes) = (count(records, "record"), size(bytes));
                let text = format!("exported {} ({format}): {records}, {bytes}", shown(&path));
                self.out.tell(&object, text)?;
                if complain_of_damage(run, damaged) {
                    self.exit = self.exit.max(Exit::Damage);
                }
                return Ok(());
            }
            Err(why) => why.of_a_run()?,
        };
        let word = why.word();
        if word == "deleted" {
            self.sums.skipped += 1;
            let object = json!({"event": "skipped", "run": id, "agent": agent, "why": word});
            return Ok(self.out.tell(&object, format!("skipped {agent}/{id}: {why}"))?);
        }
        self.sums.errors += 1;
        self.exit = self.exit.max(if word == "damaged" { Exit::Damage } else { Exit::Error });
        let file = (!names.is_empty()).then_some(&path);
        if self.out.is_json() {
            self.out.object(&json!({
                "event": "error",
                "run": id,
                "agent": agent,
                "file": file.map(|path| path.to_string_lossy()),
                "why": word,
                "error": why.to_string(),
            }))?;
        }
        let name = file.map_or_else(|| format!("{agent}/{id}"), |path| shown(path));
        complain(&format!("{name}: {why}"));
        Ok(())
    }

    /// The sums, and how the command ends.
    fn finish(self) -> Result<Exit, Failure> {
        let sums = &self.sums;
        let (runs, file) = (count(sums.exported, "run"), shown(self.target));
        let (records, bytes) = (count(sums.records, "record"), size(sums.bytes));
        let mut line = format!("{runs} exported to {file}: {records}, {bytes}");
        for (number, what) in [(sums.skipped, "skipped"), (sums.errors, "refused")] {
            if number > 0 {
                line = format!("{line}; {number} {what}");
            }
        }
        self.out.tell(sums, line)?;
        self.out.flush()?;
        Ok(self.exit)
    }

    /// Writes the file of a run, or its files, each whole or not at all.
    fn write(&mut self, run: &RunSummary, names: &[String], form: &Form) -> Result<Written, Why> {
        if form.is_of_files() {
            // All records are read before the first file has its name.
            let mut text = Vec::new();
            let written = lines::write(self.log, run, form, &mut text)?;
            session_files::write(&self.tree, names, &text)?;
            return Ok(written);
        }
        let mut file = self.tree.file(names)?;
        let mut out = BufWriter::with_capacity(BUFFER, file.as_write());
        let written = lines::write(self.log, run, form, &mut out)?;
        out.flush()?;
        drop(out);
        file.publish()?;
        Ok(written)
    }
}

/// The names that lead to the file of a run. An imported one keeps the ending of its file.
fn file_names(run: &RunSummary, form: &Form) -> Vec<String> {
    let mut names = names_of(run.agent.as_str(), run.run.as_str());
    if let Some(name) = names.last_mut() {
        let ending = match form {
            Form::Trace(_) => ".otlp.jsonl",
            Form::Records => ".jsonl",
            Form::Original(_) if form.is_of_files() => "",
            // A name with a dot and without an ending would lose what is after the dot.
            Form::Original(origin) => ending(&origin.imported_from)
                .filter(|ending| !ending.is_empty() || !name.contains('.'))
                .unwrap_or(".jsonl"),
        };
        name.push_str(ending);
    }
    names
}

/// The ending of the name of a file, with its dot, if it is a plain one. The name is data: it may
/// be anything.
fn ending(name: &str) -> Option<&str> {
    let ending = name.strip_prefix(stem(name))?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-~".contains(&byte);
    (ending.len() <= MAX_ENDING && ending.bytes().all(is_plain)).then_some(ending)
}

/// Writes a run into a stream; as JSON Lines with a line before its records that names it.
fn stream(
    log: &Reader,
    run: &RunSummary,
    format: ExportFormat,
    out: &mut Output,
) -> Result<Exit, Failure> {
    let mut exit = Exit::Fine;
    let metadata = match log.metadata(RunRef::from(run)) {
        Ok(metadata) => metadata,
        // It was deleted since the list was made.
        Err(error) if is_gone(&error) => return Ok(exit),
        Err(error) if error.is_corruption() => {
            complain(&error.to_string());
            exit = Exit::Damage;
            None
        }
        Err(error) => return Err(error.into()),
    };
    let form = format.form(Origin::of(metadata.as_ref()));
    if format == ExportFormat::Jsonl {
        let mut named = serde_json::to_string(run).map_err(io::Error::from)?;
        let payload = metadata.as_ref().map(RunMetadata::payload);
        let json = payload.and_then(|data| serde_json::from_slice::<&RawValue>(data).ok());
        if let Some(json) = json.filter(|json| !json.get().contains('\n')) {
            named.pop();
            named = format!("{named},\"metadata\":{json}}}");
        }
        writeln!(out.unescaped(), "{{\"runlog_run\":{named}}}")?;
    }
    // From here on a failure ends the stream: a part of the run may be in it.
    match lines::write(log, run, &form, out.unescaped()) {
        Ok(written) if complain_of_damage(run, written.damaged) => Ok(Exit::Damage),
        Ok(_) => Ok(exit),
        Err(Why::Store(error)) => Err(error.into()),
        Err(Why::Io(error)) => Err(error.into()),
        Err(other) => Err(Failure::said(other.to_string())),
    }
}

/// Tells of records that were left out; answers whether there were any.
fn complain_of_damage(run: &RunSummary, damaged: u64) -> bool {
    if damaged > 0 {
        let records = count(damaged, "damaged record");
        complain(&format!("{}/{}: {records} left out", run.agent, run.run));
    }
    damaged > 0
}
