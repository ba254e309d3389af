//! A line on standard error that says how far a command is, where that is a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// How often it is shown, and when for the first time.
const EVERY: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Progress {
    /// When it was shown last; none without a terminal.
    shown: Option<Instant>,
    is_on_screen: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { shown: io::stderr().is_terminal().then(Instant::now), is_on_screen: false }
    }

    /// Shows the text if it is time.
    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        if self.shown.is_some_and(|shown| shown.elapsed() > EVERY) {
            (self.shown, self.is_on_screen) = (Some(Instant::now()), true);
            write(&text());
        }
    }

    /// Takes the line away, so that something else can be printed.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_on_screen) {
            write("");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// It is only a service: a failure to show it is none.
fn write(text: &str) {
    let _ = io::stderr().lock().write_all(format!("\r\x1b[K{text}").as_bytes());
}
