//! The findings, and how they are printed.

use std::path::Path;

use serde::Serialize;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::output::{Output, count};
use crate::screen::Style;
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

/// One finding.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    event: &'static str,
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
}

impl Report {
    pub(super) fn new(path: &Path) -> Self {
        Self { findings: Vec::new(), store: quoted(&path.to_string_lossy()) }
    }

    /// A command of `runlog` for this store.
    pub(super) fn runlog(&self, arguments: &str) -> String {
        format!("runlog --store {} {arguments}", self.store)
    }

    pub(super) fn add(
        &mut self,
        check: &'static str,
        severity: Severity,
        message: impl Into<String>,
    ) -> &mut Finding {
        let (message, advice, command) = (message.into(), None, None);
        let event = "finding";
        self.findings.push_mut(Finding {
            event,
            check,
            severity,
            damage: false,
            message,
            advice,
            command,
        })
    }

    pub(super) fn print(&self, out: &mut Output) -> Result<Exit, Failure> {
        let of = |severity| self.findings.iter().filter(|one| one.severity == severity).count();
        let [ok, notes] = [Severity::Ok, Severity::Note].map(of);
        let [warnings, errors] = [Severity::Warning, Severity::Error].map(of);
        let damaged = self.findings.iter().any(|finding| finding.damage);
        for finding in &self.findings {
            if out.is_json() {
                out.object(finding)?;
            } else {
                line(finding, out)?;
            }
        }
        let counted = [(errors, "error"), (warnings, "warning"), (notes, "note")];
        let some = counted.iter().filter(|(found, _)| *found > 0);
        let said: Vec<_> = some.map(|(found, noun)| count(*found as u64, noun)).collect();
        let object = json!({
            "event": "summary",
            "ok": ok,
            "notes": notes,
            "warnings": warnings,
            "errors": errors,
            "damaged": damaged,
        });
        out.tell(
            &object,
            if said.is_empty() { "nothing to do".to_owned() } else { said.join(", ") },
        )?;
        out.flush()?;
        Ok(match (damaged, errors + warnings) {
            (true, _) => Exit::Damage,
            (false, 0) => Exit::Fine,
            (false, _) => Exit::Error,
        })
    }
}

/// Where the text of a finding begins.
const TEXT_AT: usize = 22;

fn line(finding: &Finding, out: &mut Output) -> Result<(), Failure> {
    let (severity, style) = match finding.severity {
        Severity::Ok => ("ok", Style::Good),
        Severity::Note => ("note", Style::Plain),
        Severity::Warning => ("warning", Style::Lively),
        Severity::Error => ("error", Style::Bad),
    };
    out.styled(style, format!("{severity:<9}"))?;
    out.text(format!("{:<13}", finding.check))?;
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
fn quoted(text: &str) -> String {
    let is_bare = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/+:@%".contains(&byte);
    if !text.is_empty() && !text.starts_with('-') && text.bytes().all(is_bare) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
