//! `runlog show`: prints the records of one run, for people, as JSON Lines, or byte for byte.
//!
//! For people a run is a conversation on terminals, and elsewhere each record is a line. Each
//! record can also be a heading with its payload below.
//!
//! A damaged record is reported on standard error, and the others are printed; then the exit code
//! is 3.

use std::path::Path;

use runlog::{Reader, Record, RunRef, RunSummary, Seq};

use crate::chat::{Chat, Turn};
use crate::escape::escaped;
use crate::failure::{Exit, Failure};
use crate::find::{self, RunArgs};
use crate::formats::envelope::ENVELOPE;
use crate::formats::facts::Facts;
use crate::formats::origin::Origin;
use crate::formats::whole::Whole;
use crate::formats::{Format, facts_of};
use crate::json::RecordRow;
use crate::line::{self, CUT};
use crate::message::damaged;
use crate::output::{Output, count, size};
use crate::pretty::{self, SHORT};
use crate::records;
use crate::screen::Style;
use crate::store;
use crate::wrap::{Fold, wrapped};

/// In front of what goes on below.
const INDENT: &str = "    ";

/// The options of `show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    run: RunArgs,

    /// Print the payloads unchanged, each followed by a newline, except for the last line of an
    /// imported file that did not end with one.
    #[arg(long, conflicts_with = "json")]
    raw: bool,

    /// Show a conversation, also where that is no terminal.
    #[arg(long, conflicts_with_all = ["json", "raw"])]
    chat: bool,

    /// Show every record: its payload below a heading, JSON indented.
    #[arg(long, alias = "pretty", conflicts_with_all = ["json", "raw", "chat"])]
    records: bool,

    /// Show each record in one line, also on a terminal.
    #[arg(long, conflicts_with_all = ["json", "raw", "chat", "records"])]
    lines: bool,

    /// Neither cut nor fold what is long.
    #[arg(long)]
    full: bool,

    /// Do not use a pager.
    #[arg(long)]
    no_pager: bool,

    /// The first record, counted from 0.
    #[arg(long, value_name = "N")]
    from: Option<u64>,

    /// The last record, included.
    #[arg(long, value_name = "N")]
    to: Option<u64>,

    /// Only the last N records.
    #[arg(short = 'n', long, alias = "last", value_name = "N")]
    #[arg(conflicts_with_all = ["from", "to"])]
    limit: Option<usize>,

    /// Only what this one says: user, assistant, tool, or as the records call it; may be repeated.
    #[arg(long, conflicts_with = "raw")]
    role: Vec<String>,

    /// Only records of this kind; may be repeated.
    #[arg(long, conflicts_with = "raw")]
    kind: Vec<String>,
}

pub(crate) fn run(args: &ShowArgs, path: &Path, out: &mut Output) -> Result<Exit, Failure> {
    let log = store::open_to_read(path)?;
    let exit = show(&log, args, out)?;
    out.flush()?;
    Ok(if store::tell_early_end(&log) { Exit::Damage } else { exit })
}

fn show(log: &Reader, args: &ShowArgs, out: &mut Output) -> Result<Exit, Failure> {
    // The summary first: a run that is missing or ambiguous is an error before any output.
    let summary = find::run(log, &args.run)?;
    let run = RunRef::from(&summary);
    let (from, to) = (args.from.unwrap_or(0), args.to.map_or(u64::MAX, |to| to.saturating_add(1)));
    let records: Box<dyn Iterator<Item = _>> = match args.limit {
        Some(most) => Box::new(records::last(log, run, most)?.into_iter()),
        None => Box::new(log.trace(run)?.range(Seq(from)..Seq(to.max(from)))?),
    };
    let origin = Origin::of(log.metadata(run)?.as_ref());
    if !args.raw && !args.no_pager {
        out.page()?;
    }
    let is_whole = from == 0 && to == u64::MAX && args.limit.is_none();
    let count = if is_whole { summary.records } else { 0 };
    let mut printer = Printer::new(args, out, origin, count);
    printer.heading(&summary)?;
    let mut exit = Exit::Fine;
    for record in records {
        match record {
            Ok(record) => printer.record(&record)?,
            Err(error) if error.is_corruption() => {
                damaged(&error.to_string());
                exit = Exit::Damage;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if args.raw && is_whole {
        printer.whole.finish(printer.out.unescaped())?;
    }
    printer.chat.end(printer.out)?;
    Ok(exit)
}

/// Prints records in the form that was asked for.
struct Printer<'a> {
    args: &'a ShowArgs,
    out: &'a mut Output,
    /// Where the run was imported from, if it was.
    origin: Option<Origin>,
    /// The file that it makes.
    whole: Whole,
    chat: Chat,
}

impl<'a> Printer<'a> {
    fn new(args: &'a ShowArgs, out: &'a mut Output, origin: Option<Origin>, records: u64) -> Self {
        let whole = Whole::new(origin.as_ref(), records);
        Self { args, out, origin, whole, chat: Chat::new(args.full) }
    }

    fn facts(&self, record: &Record) -> Option<Facts> {
        let format = self.origin.as_ref()?.format?;
        facts_of(format, record.kind(), record.content_type(), record.payload())
    }

    /// The same, also of a record that no import brought.
    fn any_facts(&self, record: &Record) -> Facts {
        let format = self.origin.as_ref().and_then(|origin| origin.format);
        let format = format.unwrap_or(Format::JsonLines);
        let (kind, content) = (record.kind(), record.content_type());
        facts_of(format, kind, content, record.payload()).unwrap_or_default()
    }

    /// Whether the record is one of those that are asked for.
    fn is_wanted(&self, record: &Record) -> bool {
        let ShowArgs { role, kind, .. } = self.args;
        let is_of_kind = |wanted: &String| record.kind() == Some(wanted);
        if !kind.is_empty() && !kind.iter().any(is_of_kind) {
            return false;
        }
        if role.is_empty() {
            return true;
        }
        let facts = self.any_facts(record);
        let speaker = Turn::of(record, &facts).speaker;
        role.iter().any(|wanted| *wanted == speaker || facts.role.as_ref() == Some(wanted))
    }

    fn heading(&mut self, run: &RunSummary) -> Result<(), Failure> {
        if self.args.raw || self.out.is_json() {
            return Ok(());
        }
        let started = if run.started { "started" } else { "without a start, first record" };
        let mut parts =
            vec![run.status.to_string(), format!("{started} {}", self.out.time(run.started_at))];
        parts.extend(run.ended_at.map(|at| format!("ended {}", self.out.time(at))));
        parts.extend([count(run.records, "record"), size(run.bytes)]);
        let name = format!("run {} of agent {}:", run.run, run.agent);
        let width = self.out.screen().map(|screen| screen.width().saturating_sub(INDENT.len()));
        let lines = wrapped(&escaped(format!("{name} {}", parts.join(", ")).as_bytes()), width);
        for (at, line) in lines.iter().enumerate() {
            let indent = if at > 0 { INDENT } else { "" };
            self.out.styled(Style::Strong, format!("{indent}{line}"))?;
            self.out.line("")?;
        }
        Ok(())
    }

    /// A record as a heading, with the payload below.
    fn pretty(&mut self, record: &Record) -> Result<(), Failure> {
        let facts = self.facts(record).unwrap_or_default();
        let is_late = record.is_late().then(|| "after the end".to_owned());
        let speaker = facts.role.as_deref().or(record.kind()).unwrap_or("-");
        let style = match speaker {
            "user" | "human" => Style::Good,
            _ => Style::Lively,
        };
        self.out.line("")?;
        self.out.styled(Style::Strong, format!("#{}", record.seq()))?;
        self.out.text(format!("  {}  ", self.out.time(record.timestamp())))?;
        self.out.styled(style, speaker)?;
        let rest = [Some(facts.tools.join(", ")), facts.model, is_late];
        for said in rest.into_iter().flatten().filter(|said| !said.is_empty()) {
            self.out.text(format!("  {said}"))?;
        }
        self.out.line(format!("  {}", size(record.payload().len() as u64)))?;
        let fold = if self.args.full { Fold::NONE } else { SHORT };
        Ok(pretty::write(self.out, record.payload(), fold)?)
    }

    fn record(&mut self, record: &Record) -> Result<(), Failure> {
        if self.args.raw {
            return self.raw(record);
        }
        if !self.is_wanted(record) {
            return Ok(());
        }
        if self.out.is_json() {
            return Ok(self.out.object(&RecordRow::new(record, self.facts(record)))?);
        }
        if self.args.records {
            return self.pretty(record);
        }
        if self.args.chat || (!self.args.lines && self.out.screen().is_some()) {
            let facts = self.any_facts(record);
            let turn = Turn::of(record, &facts);
            return Ok(self.chat.print((record, &facts, turn), self.out)?);
        }
        let max = if self.args.full { usize::MAX } else { CUT };
        let facts = self.facts(record).unwrap_or_default();
        let words = [facts.role.unwrap_or_default(), facts.tools.join(",")];
        let kind = record.kind().unwrap_or("-").to_owned();
        let said =
            words.iter().filter(|word| !word.is_empty()).fold(kind, |said, word| said + " " + word);
        Ok(line::write(self.out, record, &said, (0, max))?)
    }

    /// The bytes of the record, and those around it that make the file that was imported.
    fn raw(&mut self, record: &Record) -> Result<(), Failure> {
        let is_enveloped = self.origin.is_some() && record.kind() == Some(ENVELOPE);
        let out = self.out.unescaped();
        Ok(self.whole.write(out, record.kind(), record.payload(), is_enveloped)?)
    }
}
