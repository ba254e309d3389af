//! What a command says besides its results, on standard error: failures, notes, and that there is
//! more. With `--json` each is an object, as docs/schema/messages.schema.json says.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::escape::{escaped, write_object};
use crate::failure::{Exit, Failure};
use crate::output::count;

/// Whether messages are objects. It is said once, before the command begins.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From here on, messages are objects.
pub(crate) fn speak_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Reports the failure that ends the command with this code.
pub(crate) fn fail(failure: &Failure, exit: Exit) {
    if !is_json() {
        return complain(&failure.to_string());
    }
    let (text, candidates) = match failure {
        Failure::NoRun { message, candidates, .. } => (message.clone(), candidates.as_slice()),
        other => (other.to_string(), &[][..]),
    };
    let (kind, code) = (failure.kind(), exit.code());
    let mut object = json!({"event": "error", "error": kind, "message": text, "exit_code": code});
    if !candidates.is_empty() {
        object["candidates"] = json!(candidates);
    }
    say(&object);
}

/// Reports a command line that is refused, in several lines. They are escaped already.
pub(crate) fn refuse(text: &str) {
    if is_json() {
        let message = text.trim_end();
        say(&json!({"event": "error", "error": "usage", "message": message, "exit_code": 2}));
    } else {
        text.lines().for_each(note);
    }
}

/// Reports a failure that does not end the command, in one line.
pub(crate) fn complain(message: &str) {
    complain_of("other", message);
}

/// Reports damage that is passed over, in one line.
pub(crate) fn damaged(message: &str) {
    complain_of("damage", message);
}

fn complain_of(error: &'static str, message: &str) {
    if is_json() {
        say(&json!({"event": "error", "error": error, "message": message}));
    } else {
        note(&format!("runlog: {message}"));
    }
}

/// Says that a list was cut: how to continue it, and how else to see more.
pub(crate) fn more(what: &str, after: Option<&str>, otherwise: &str) {
    if is_json() {
        return say(&json!({"event": "more", "what": what, "after": after}));
    }
    match after {
        Some(after) => note(&format!("more {what}: --after {after}, or {otherwise}")),
        None => note(&format!("more {what}: {otherwise}")),
    }
}

/// Reports extents that still have bytes of what was erased.
pub(crate) fn tell_pinned(extents: u64) -> Exit {
    if extents == 0 {
        return Exit::Fine;
    }
    // No other process reads here, so this is not expected; but it must be reported.
    let extents = count(extents, "extent");
    complain(&format!("{extents} may still have bytes of it, since a reader holds them"));
    Exit::Error
}

/// Writes one line. It ignores a reader that closed the pipe.
pub(crate) fn note(line: &str) {
    if is_json() {
        return say(&json!({"event": "note", "message": line}));
    }
    let _ = writeln!(io::stderr().lock(), "{}", escaped(line.as_bytes()));
}

fn say(message: &Value) {
    let mut line = Vec::new();
    // Writing to a vector cannot fail; a closed pipe is ignored.
    if write_object(&mut line, message).is_ok() {
        let _ = io::stderr().lock().write_all(&line);
    }
}
