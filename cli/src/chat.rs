//! A run as a conversation: who says what, and when, with the calls of tools and what they answer.
//!
//! Texts of users and models are never cut. Input and output of tools, thoughts of models and texts
//! that programs write for them are folded after a few lines.

use std::io::{self, Write};

use runlog::{Record, Timestamp};
use runlog_formats::facts::Facts;
use runlog_formats::{PART, json};

use crate::conversation::{Part, parts, speaker};
use crate::output::{Output, count};
use crate::screen::{Screen, Style};
use crate::wrap::{Fold, Folded};

/// How far in each line begins.
const MARGIN: usize = 2;

/// How much is shown of what is folded.
const FOLD: Fold = Fold { lines: 8, characters: 400 };

/// A record, as far as it is part of a conversation.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) speaker: String,
    parts: Vec<Part>,
}

impl Turn {
    pub(crate) fn of(record: &Record, facts: &Facts) -> Self {
        let value = json::value(record.payload());
        let parts = match &value {
            // A part between the steps of a document.
            _ if record.kind() == Some(PART) => Vec::new(),
            Some(value) => parts(value),
            // Text that is no JSON speaks for itself.
            None => vec![Part::Text(String::from_utf8_lossy(record.payload()).into_owned())],
        };
        let value = value.unwrap_or_default();
        Self { speaker: speaker(&value, facts, record.kind(), &parts), parts }
    }
}

/// Prints turns.
#[derive(Debug, Default)]
pub(crate) struct Chat {
    is_full: bool,
    /// Who spoke last, and what.
    last: Option<(String, Vec<Part>)>,
    /// How many records since say nothing new.
    silent: u64,
}

impl Chat {
    pub(crate) fn new(is_full: bool) -> Self {
        Self { is_full, ..Self::default() }
    }

    /// Prints a record, if it says something.
    pub(crate) fn print<W: Write>(
        &mut self,
        (record, facts, turn): (&Record, &Facts, Turn),
        out: &mut Output<W>,
    ) -> io::Result<()> {
        let Turn { speaker, parts } = turn;
        // Some formats write each message twice, for a program and for a person.
        let is_said =
            self.last.as_ref().is_some_and(|(who, said)| *who == speaker && *said == parts);
        if parts.is_empty() || is_said {
            self.silent += 1;
            return Ok(());
        }
        self.end(out)?;
        let at = facts.time.unwrap_or(record.timestamp());
        heading(&speaker, at, facts, out)?;
        let is_of_person = matches!(speaker.as_str(), "user" | "assistant");
        for part in &parts {
            match part {
                Part::Text(text) if is_of_person => self.text(text, Style::Plain, false, out)?,
                Part::Text(text) | Part::Answer(text) => {
                    self.text(text, Style::Plain, !self.is_full, out)?;
                }
                Part::Thought(text) => self.text(text, Style::Dim, !self.is_full, out)?,
                Part::Call { tool, input } => {
                    let call = format!("> {tool}  {input}");
                    self.text(&call, Style::Lively, !self.is_full, out)?;
                }
            }
        }
        self.last = Some((speaker, parts));
        Ok(())
    }

    /// Says how many records in a row are not shown.
    pub(crate) fn end<W: Write>(&mut self, out: &mut Output<W>) -> io::Result<()> {
        if self.silent > 0 {
            let records = count(std::mem::take(&mut self.silent), "record");
            out.line("")?;
            out.styled(Style::Dim, format!("({records} not shown: --records)"))?;
            out.line("")?;
        }
        Ok(())
    }

    fn text<W: Write>(
        &self,
        text: &str,
        style: Style,
        folds: bool,
        out: &mut Output<W>,
    ) -> io::Result<()> {
        let text = text.trim_end().replace('\t', "    ");
        let mut folded = Folded::new(out, MARGIN, if folds { FOLD } else { Fold::NONE });
        for line in text.lines().skip_while(|line| line.trim().is_empty()) {
            folded.line(0, 0, style, line.as_bytes())?;
        }
        folded.end()
    }
}

fn heading<W: Write>(
    speaker: &str,
    at: Timestamp,
    facts: &Facts,
    out: &mut Output<W>,
) -> io::Result<()> {
    let style = match speaker {
        "user" => Style::Good,
        "assistant" => Style::Strong,
        _ => Style::Lively,
    };
    out.line("")?;
    out.styled(style, speaker)?;
    let mut rest =
        vec![out.screen().map_or_else(|| out.time(at), |screen| Screen::clock(screen, at))];
    if speaker == "tool" {
        rest.extend(facts.tools.iter().cloned());
    }
    rest.extend(facts.model.clone());
    out.styled(Style::Dim, format!("  {}", rest.join("  ")))?;
    out.line("")
}
