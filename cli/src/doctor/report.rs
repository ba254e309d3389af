//! The findings, and how they are printed.

use std::borrow::Cow;
use std::path::Path;

use runlog::Timestamp;
use serde::Serialize;
use textwrap::{Options, WordSeparator, WordSplitter, wrap};

use crate::failure::{Exit, Failure};
use crate::output::{Output, count};
use crate::screen::{Screen, Style};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// It was looked at, and is as it should be.
    Ok,
    /// Something to know.
    Note,
    /// Something to do soon.
    Warning,
    /// Something that does not work, or will not.
    Error,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Ok => Style::Good,
            Self::Note => Style::Plain,
            Self::Warning => Style::Lively,
            Self::Error => Style::Bad,
        }
    }
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Area {
    Store,
    Machine,
}

/// One finding.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    area: Area,
    /// The name of the check, which is the same in every release.
    check: &'static str,
    severity: Severity,
    /// Whether stored bytes are damaged.
    damage: bool,
    message: String,
    advice: Option<String>,
    /// What to type.
    command: Option<String>,
}

impl Finding {
    /// With what to do.
    pub(super) fn advise(&mut self, advice: impl Into<String>) -> &mut Self {
        self.advice = Some(advice.into());
        self
    }

    /// With a command: its arguments behind `runlog`.
    pub(super) fn command(&mut self, command: impl Into<String>) -> &mut Self {
        self.command = Some(command.into());
        self
    }

    /// As damage of the store.
    pub(super) fn damaged(&mut self) -> &mut Self {
        self.damage = true;
        self
    }
}

/// A finding, or at the end the sum.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Finding(&'a Finding),
    Summary { ok: usize, notes: usize, warnings: usize, errors: usize, damaged: bool },
}

/// All findings.
#[derive(Debug)]
pub(super) struct Report {
    findings: Vec<Finding>,
    /// The store, as an argument of a shell.
    store: String,
    screen: Option<Screen>,
}

impl Report {
    pub(super) fn new(path: &Path, out: &Output) -> Self {
        let store = quoted(&path.to_string_lossy());
        Self { findings: Vec::new(), store, screen: out.screen().cloned() }
    }

    /// A time, as [`Output::time`] shows it.
    pub(super) fn time(&self, at: Timestamp) -> String {
        self.screen.as_ref().map_or_else(|| format!("{at:.0}"), |screen| screen.time(at))
    }

    pub(super) fn store(&self) -> &str {
        &self.store
    }

    /// A command of `runlog` for this store.
    pub(super) fn runlog(&self, arguments: &str) -> String {
        format!("runlog --store {} {arguments}", self.store)
    }

    pub(super) fn add(
        &mut self,
        (area, check): (Area, &'static str),
        severity: Severity,
        message: impl Into<String>,
    ) -> &mut Finding {
        let index = self.findings.len();
        self.findings.push(Finding {
            area,
            check,
            severity,
            damage: false,
            message: message.into(),
            advice: None,
            command: None,
        });
        &mut self.findings[index]
    }

    pub(super) fn print(&self, out: &mut Output) -> Result<Exit, Failure> {
        let of = |severity| self.findings.iter().filter(move |one| one.severity == severity);
        let [ok, notes, warnings, errors] =
            [Severity::Ok, Severity::Note, Severity::Warning, Severity::Error]
                .map(|severity| of(severity).count());
        let damaged = self.findings.iter().any(|finding| finding.damage);
        if out.is_json() {
            for finding in &self.findings {
                out.object(&Event::Finding(finding))?;
            }
            out.object(&Event::Summary { ok, notes, warnings, errors, damaged })?;
        } else {
            for (area, name) in [(Area::Store, "store"), (Area::Machine, "machine")] {
                out.styled(Style::Strong, name)?;
                out.line("")?;
                for finding in self.findings.iter().filter(|finding| finding.area == area) {
                    line(finding, out)?;
                }
            }
            let counted = [(errors, "error"), (warnings, "warning"), (notes, "note")];
            let said: Vec<String> = counted
                .iter()
                .filter(|(found, _)| *found > 0)
                .map(|(found, noun)| count(*found as u64, noun))
                .collect();
            let said = if said.is_empty() { "nothing to do".to_owned() } else { said.join(", ") };
            out.line(said)?;
        }
        out.flush()?;
        Ok(match (damaged, errors + warnings) {
            (true, _) => Exit::Damage,
            (false, 0) => Exit::Fine,
            (false, _) => Exit::Error,
        })
    }
}

/// With less room than this, lines are as long as they are.
const LEAST_ROOM: usize = 30;

/// Where the text of a finding begins.
const TEXT_AT: usize = 25;

fn line(finding: &Finding, out: &mut Output) -> Result<(), Failure> {
    let severity = finding.severity.as_str();
    out.text("  ")?;
    out.styled(finding.severity.style(), severity)?;
    out.text(" ".repeat(9 - severity.len()))?;
    let room = out.screen().map(|screen| screen.width().saturating_sub(TEXT_AT));
    let margin = " ".repeat(TEXT_AT);
    for (at, text) in wrapped(&finding.message, room).iter().enumerate() {
        if at == 0 {
            out.line(format!("{:<14}{text}", finding.check))?;
        } else {
            out.line(format!("{margin}{text}"))?;
        }
    }
    for text in finding.advice.iter().flat_map(|advice| wrapped(advice, room)) {
        out.line(format!("{margin}{text}"))?;
    }
    if let Some(command) = &finding.command {
        // In one line, so that it can be copied.
        out.line(format!("{margin}$ {command}"))?;
    }
    Ok(())
}

/// The lines of a text that has so much room; one line without a limit, or if there is little.
fn wrapped(text: &str, room: Option<usize>) -> Vec<String> {
    let Some(room) = room.filter(|room| *room >= LEAST_ROOM) else { return vec![text.to_owned()] };
    let options = Options::new(room)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .break_words(false);
    wrap(text, options).into_iter().map(Cow::into_owned).collect()
}

/// A text as one argument of a shell.
pub(super) fn quoted(text: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+:@%".contains(&byte);
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(is_bare) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_between_words() {
        let text = "one two three four five six seven eight";
        assert_eq!(wrapped(text, None), [text]);
        assert_eq!(wrapped(text, Some(10)), [text], "there is no room");
        assert_eq!(wrapped(text, Some(30)), ["one two three four five six", "seven eight"]);
        let long = "x".repeat(99);
        assert_eq!(wrapped(&format!("a {long} b"), Some(30)), ["a", &long, "b"]);
    }

    #[test]
    fn an_argument_of_a_command_stays_one_argument() {
        for (text, shown) in [
            ("runs.runlog", "runs.runlog"),
            ("/a b/it's", r"'/a b/it'\''s'"),
            ("", "''"),
            ("$HOME", "'$HOME'"),
            ("-x", "'-x'"),
        ] {
            assert_eq!(quoted(text), shown);
        }
    }
}
