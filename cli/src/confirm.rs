//! Asks a person at a terminal, such as before something that cannot be undone.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;

use runlog::RunSummary;

use crate::escape::escaped;
use crate::failure::Failure;

/// How many runs are named in the question.
const NAMED: usize = 10;

/// Whether `what` may happen to the runs: where standard input is no terminal it may, and so it may
/// if the user has said so in advance; else the user is asked.
pub(crate) fn is_wanted(what: &str, runs: &[RunSummary], yes: bool) -> Result<bool, Failure> {
    if yes || !io::stdin().is_terminal() {
        return Ok(true);
    }
    let names = runs.iter().take(NAMED).map(|run| format!("{}/{}", run.agent, run.run));
    let mut names = names.collect::<Vec<_>>().join(", ");
    if runs.len() > NAMED {
        names.push_str(", ...");
    }
    asked(&format!("{what}: {names}?"))
}

/// Whether a person at a terminal says yes to a question. Without a terminal nobody does.
pub(crate) fn asked(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    let mut stderr = io::stderr().lock();
    // In one piece, also where the answer is typed early. Without a question that can be read, the
    // answer is no.
    let question = format!("{} [y/N] ", escaped(question.as_bytes()));
    if stderr.write_all(question.as_bytes()).is_err() {
        return Ok(false);
    }
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|source| Failure::file(Path::new("standard input"), source))?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
