//! Searches the records of a run, and prints what it finds.

use std::io;
use std::ops::Deref;

use runlog::{
    AgentId, Error, Lsn, Reader, Record, RecordView, RunId, RunRef, RunSummary, Seq, Trace,
};
use runlog_formats::origin::Origin;
use runlog_formats::{Format, facts_of};
use serde::Serialize;

use super::excerpt::{CUT, Excerpt};
use super::options::SearchArgs;
use super::pattern::{Hit, Pattern};
use super::turns::Found;
use crate::conversation;
use crate::failure::Failure;
use crate::json::RecordRow;
use crate::output::{Output, size};
use crate::screen::{Screen, Style};

/// How many bytes of the results of a run are printed at once.
pub(super) const CHUNK: usize = 1 << 20;

/// The least room for text on a terminal.
const LEAST_ROOM: usize = 20;

/// A run that is being searched.
pub(super) struct Searched<'r> {
    pub(super) run: &'r RunSummary,
    /// The records that are left; `None` when it is over.
    pub(super) trace: Option<Trace>,
    /// The place of the last record in the log.
    pub(super) at: Lsn,
    matches: u64,
    /// Results that are not printed yet.
    pub(super) out: Output<Vec<u8>>,
    /// Where the matches begin in it.
    starts: Vec<usize>,
    /// The records that could not be read.
    damage: Vec<String>,
    /// Whether a part of the results was given.
    has_given: bool,
    /// The record after the last one that is shown.
    shown: Option<Seq>,
    /// The number of records to show after it.
    wanted: u64,
    /// How its records are read, once that is known.
    format: Option<Format>,
}

impl<'r> Searched<'r> {
    pub(super) fn new(run: &'r RunSummary, trace: Option<Trace>, out: Output<Vec<u8>>) -> Self {
        let (starts, damage, shown, format) = (Vec::new(), Vec::new(), None, None);
        let (at, matches, wanted) = (Lsn(0), 0, 0);
        let has_given = false;
        Self { run, trace, at, matches, out, starts, damage, has_given, shown, wanted, format }
    }

    /// The results since the last call, if there are any.
    pub(super) fn take(&mut self) -> Option<Found> {
        if self.out.len() == 0 && self.damage.is_empty() {
            return None;
        }
        let (bytes, goes_on) = (self.out.take(), self.has_given);
        self.has_given |= !bytes.is_empty();
        let (starts, damage) = (std::mem::take(&mut self.starts), std::mem::take(&mut self.damage));
        Some(Found { bytes, starts, damage, goes_on })
    }
}

/// A result.
#[derive(Serialize)]
struct Row<'a> {
    agent: &'a AgentId,
    run: &'a RunId,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
    /// Whether it only stands around a match.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<bool>,
    #[serde(flatten)]
    record: Option<RecordRow<'a>>,
}

/// Searches runs.
pub(super) struct Searcher<'a> {
    pub(super) args: &'a SearchArgs,
    pub(super) log: Reader,
    pub(super) pattern: Pattern,
    pub(super) is_json: bool,
    pub(super) screen: Option<Screen>,
}

impl Searcher<'_> {
    /// Searches a run until its records come after this place of the log, or there are none left,
    /// or so much is found that it is to be printed first.
    pub(super) fn records(&self, one: &mut Searched<'_>, until: Lsn) -> Result<(), Failure> {
        let mut trace = one.trace.take();
        while let Some(record) = trace.as_mut().and_then(Trace::next_view) {
            let record = match record {
                Ok(record) => record,
                Err(Error::Evicted { .. }) => break,
                Err(error) if error.is_corruption() => {
                    one.damage.push(error.to_string());
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            one.at = record.lsn();
            let is_wanted = self.is_wanted(&record);
            if let Some(hit) = self.pattern.find(record.payload()).filter(|_| is_wanted) {
                one.matches += 1;
                if self.args.runs {
                    break;
                }
                if !self.args.count {
                    self.found(one, &record, &hit)?;
                }
            } else if one.wanted > 0 {
                one.wanted -= 1;
                self.print(one, &record, None)?;
            }
            if one.at > until || one.out.len() >= CHUNK {
                one.trace = trace;
                return Ok(());
            }
        }
        if one.matches > 0 && (self.args.runs || self.args.count) {
            self.print_run(one)?;
        }
        Ok(())
    }

    fn is_wanted(&self, record: &RecordView<'_>) -> bool {
        let (at, kinds) = (record.timestamp(), &self.args.kind);
        self.args.filters.takes_time(at)
            && (kinds.is_empty()
                || record.kind().is_some_and(|kind| kinds.iter().any(|wanted| wanted == kind)))
    }

    /// Prints a matching record, and the records before it that the user asked for.
    fn found(
        &self,
        one: &mut Searched<'_>,
        record: &RecordView<'_>,
        hit: &Hit<'_>,
    ) -> Result<(), Failure> {
        let (before, after) = self.args.context();
        let is_first = one.shown.is_none();
        one.starts.push(one.out.len());
        if is_first && !self.is_json && self.screen.is_some() {
            self.heading(one)?;
        }
        let seq = record.seq();
        let from = Seq(seq.0.saturating_sub(before)).max(one.shown.unwrap_or(Seq(0)));
        let has_gap = (before > 0 || after > 0) && one.shown.is_some_and(|shown| shown < from);
        if has_gap && !self.is_json {
            one.out.line("--")?;
        }
        if from < seq {
            // One that is damaged is reported when its turn comes.
            for record in self.log.trace(RunRef::from(one.run))?.range(from..seq)?.flatten() {
                self.print(one, &record, None)?;
            }
        }
        one.wanted = after;
        Ok(self.print(one, record, Some(hit))?)
    }

    /// The line above the matches of a run, on a terminal.
    fn heading(&self, one: &mut Searched<'_>) -> io::Result<()> {
        let name = format!("{}/{}", one.run.agent, one.run.run);
        let started = one.out.time(one.run.started_at);
        one.out.styled(Style::Strong, name)?;
        one.out.line(format!("  {started}"))
    }

    /// Prints a record: one that matches, or one beside it.
    fn print<B: Deref<Target = [u8]>>(
        &self,
        one: &mut Searched<'_>,
        record: &Record<B>,
        hit: Option<&Hit<'_>>,
    ) -> io::Result<()> {
        one.shown = Some(Seq(record.seq().0 + 1));
        let (agent, run) = (&one.run.agent, &one.run.run);
        if self.is_json {
            let context = hit.is_none().then_some(true);
            let record = Some(RecordRow::new(record, None));
            return one.out.object(&Row { agent, run, count: None, context, record });
        }
        let mark = if hit.is_some() { ' ' } else { '-' };
        let late = if record.is_late() { " (after the end)" } else { "" };
        let (seq, kind) = (record.seq(), record.kind().unwrap_or("-"));
        let said = match &self.screen {
            Some(screen) => {
                let format = self.format(one);
                let facts =
                    facts_of(format, record.kind(), record.content_type(), record.payload());
                let facts = facts.unwrap_or_default();
                let speaker = conversation::speaker_of(record.payload(), &facts, record.kind());
                format!("{seq:>5}{mark} {}  {speaker}{late}  ", screen.clock(record.timestamp()))
            }
            None => {
                let time = record.timestamp();
                format!("{agent}/{run}  {seq:>5}{mark} {time:.3}  {kind}{late}  ")
            }
        };
        let room = match &self.screen {
            _ if self.args.full => usize::MAX,
            Some(screen) => screen.width().saturating_sub(said.len()).max(LEAST_ROOM),
            None => CUT,
        };
        one.out.text(said)?;
        let Some(hit) = hit else {
            let gist = conversation::gist(record.payload());
            let shown: String = gist.chars().take(room).collect();
            return one.out.line(shown);
        };
        self.excerpt(&Excerpt::of(hit, room), &mut one.out)
    }

    fn excerpt(&self, excerpt: &Excerpt, out: &mut Output<Vec<u8>>) -> io::Result<()> {
        let Excerpt { is_cut, before, hit, after, left } = excerpt;
        if *is_cut {
            out.text(if self.screen.is_some() { "\u{2026}" } else { "... " })?;
        }
        out.text(before)?;
        out.styled(Style::Match, hit)?;
        out.text(after)?;
        match left {
            0 => out.line(""),
            _ if self.screen.is_some() => out.line("\u{2026}"),
            left => out.line(format!(" ... {} more", size(*left as u64))),
        }
    }

    /// How the records of a run are read.
    fn format(&self, one: &mut Searched<'_>) -> Format {
        *one.format.get_or_insert_with(|| {
            let metadata = self.log.metadata(RunRef::from(one.run)).ok().flatten();
            let origin = Origin::of(metadata.as_ref());
            origin.and_then(|origin| origin.format).unwrap_or(Format::JsonLines)
        })
    }

    fn print_run(&self, one: &mut Searched<'_>) -> io::Result<()> {
        let (agent, run) = (&one.run.agent, &one.run.run);
        let count = self.args.count.then_some(one.matches);
        one.starts.push(one.out.len());
        if self.is_json {
            return one.out.object(&Row { agent, run, count, context: None, record: None });
        }
        one.out.line(match count {
            Some(count) => format!("{agent}/{run}:{count}"),
            None => format!("{agent}/{run}"),
        })
    }
}
