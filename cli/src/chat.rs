//! A run as a conversation: who says what, and when, with the calls of tools and what they answer.
//!
//! What users and models say is never cut. What tools take and answer, what models think and what
//! programs write for them is folded after a few lines.

use std::io::{self, Write};

use runlog::{Record, Timestamp};
use runlog_formats::facts::Facts;
use runlog_formats::{PART, json};
use textwrap::core::display_width;
use textwrap::{Options, WordSplitter, wrap};

use crate::conversation::{Part, parts, speaker};
use crate::escape::escaped;
use crate::output::{Output, count};
use crate::screen::{Screen, Style};

/// In front of each line.
const MARGIN: &str = "  ";

/// The most lines of what is folded, and the most characters of one of them.
const LINES: u64 = 8;
const CHARACTERS: usize = 400;

/// Text is not wrapped narrower than this.
const LEAST_WIDTH: usize = 20;

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
            // What stands between the steps of a document.
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
        let (most, longest) = if folds { (LINES, CHARACTERS) } else { (u64::MAX, usize::MAX) };
        let width = out.screen().map(|screen| screen.width().saturating_sub(MARGIN.len()));
        let (mut shown, mut all) = (0, 0_u64);
        for line in text.lines().skip_while(|line| line.trim().is_empty()) {
            all += 1;
            if shown >= most {
                continue;
            }
            let end = line.char_indices().nth(longest).map_or(line.len(), |(at, _)| at);
            let shown_of_line = escaped(&line.as_bytes()[..end]);
            let line = shown_of_line + if end < line.len() { " ..." } else { "" };
            for line in wrapped(&line, width) {
                if line.is_empty() {
                    out.line("")?;
                    continue;
                }
                out.text(MARGIN)?;
                out.styled(style, line)?;
                out.line("")?;
            }
            shown += 1;
        }
        if all > shown {
            out.styled(
                Style::Dim,
                format!("{MARGIN}... {} (--full)", count(all - shown, "more line")),
            )?;
            out.line("")?;
        }
        Ok(())
    }
}

/// A line in lines that fit.
fn wrapped(line: &str, width: Option<usize>) -> Vec<String> {
    match width.map(|width| width.max(LEAST_WIDTH)) {
        Some(width) if display_width(line) > width => {
            let options = Options::new(width).word_splitter(WordSplitter::NoHyphenation);
            wrap(line, options).into_iter().map(std::borrow::Cow::into_owned).collect()
        }
        _ => vec![line.to_owned()],
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
