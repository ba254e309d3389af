//! The findings, and how they are printed.

use std::path::Path;

use runlog::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::fields::word;
use crate::output::{Output, count};
use crate::screen::{Screen, Style};
use crate::wrap::wrapped;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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

/// The checks of the machine; all others are of the store.
const MACHINE: [&str; 8] = [
    "clock",
    "file_limit",
    "file_system",
    "free_files",
    "holes",
    "locks",
    "new_files",
    "tail_writer",
];

/// One finding.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    event: &'static str,
    area: &'static str,
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

    /// With a command.
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

/// All findings.
#[derive(Debug)]
pub(super) struct Report {
    findings: Vec<Finding>,
    /// The store, as an argument of a shell.
    pub(super) store: String,
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

    /// A command of `runlog` for this store.
    pub(super) fn runlog(&self, arguments: &str) -> String {
        format!("runlog --store {} {arguments}", self.store)
    }

    pub(super) fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Severity::Ok, message);
    }

    pub(super) fn note(&mut self, check: &'static str, text: impl Into<String>) -> &mut Finding {
        self.add(check, Severity::Note, text)
    }

    pub(super) fn warning(&mut self, check: &'static str, text: impl Into<String>) -> &mut Finding {
        self.add(check, Severity::Warning, text)
    }

    pub(super) fn error(&mut self, check: &'static str, text: impl Into<String>) -> &mut Finding {
        self.add(check, Severity::Error, text)
    }

    pub(super) fn add(
        &mut self,
        check: &'static str,
        severity: Severity,
        message: impl Into<String>,
    ) -> &mut Finding {
        let index = self.findings.len();
        self.findings.push(Finding {
            event: "finding",
            area: if MACHINE.contains(&check) { "machine" } else { "store" },
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
        let of = |severity| self.findings.iter().filter(|one| one.severity == severity).count();
        let [ok, notes] = [Severity::Ok, Severity::Note].map(of);
        let [warnings, errors] = [Severity::Warning, Severity::Error].map(of);
        let damaged = self.findings.iter().any(|finding| finding.damage);
        if out.is_json() {
            self.findings.iter().try_for_each(|finding| out.object(finding))?;
            out.object(&json!({
                "event": "summary",
                "ok": ok,
                "notes": notes,
                "warnings": warnings,
                "errors": errors,
                "damaged": damaged,
            }))?;
        } else {
            for area in ["store", "machine"] {
                out.styled(Style::Strong, area)?;
                out.line("")?;
                let findings = self.findings.iter().filter(|finding| finding.area == area);
                findings.into_iter().try_for_each(|finding| line(finding, out))?;
            }
            let counted = [(errors, "error"), (warnings, "warning"), (notes, "note")];
            let some = counted.iter().filter(|(found, _)| *found > 0);
            let said: Vec<_> = some.map(|(found, noun)| count(*found as u64, noun)).collect();
            out.line(if said.is_empty() { "nothing to do".to_owned() } else { said.join(", ") })?;
        }
        out.flush()?;
        Ok(match (damaged, errors + warnings) {
            (true, _) => Exit::Damage,
            (false, 0) => Exit::Fine,
            (false, _) => Exit::Error,
        })
    }
}

/// Where the text of a finding begins.
const TEXT_AT: usize = 25;

fn line(finding: &Finding, out: &mut Output) -> Result<(), Failure> {
    let severity = word(&finding.severity);
    let style = match finding.severity {
        Severity::Ok => Style::Good,
        Severity::Note => Style::Plain,
        Severity::Warning => Style::Lively,
        Severity::Error => Style::Bad,
    };
    out.text("  ")?;
    out.styled(style, &severity)?;
    out.text(format!("{:1$}{2:<14}", "", 9 - severity.len(), finding.check))?;
    let margin = " ".repeat(TEXT_AT);
    let width = out.screen().map(|screen| screen.width().saturating_sub(TEXT_AT));
    let texts = [Some(&finding.message), finding.advice.as_ref()];
    let lines = texts.into_iter().flatten().flat_map(|text| wrapped(text, width));
    for (at, text) in lines.enumerate() {
        out.line(if at == 0 { text } else { format!("{margin}{text}") })?;
    }
    if let Some(command) = &finding.command {
        // In one line, so that it can be copied.
        out.line(format!("{margin}$ {command}"))?;
    }
    Ok(())
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
