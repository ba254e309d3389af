//! What is found, printed in the order of the runs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::failure::{Exit, Failure};
use crate::message::damaged;
use crate::output::{Output, count, grouped, size};

/// How often progress is shown, and when for the first time.
const PROGRESS: Duration = Duration::from_millis(500);

/// What was found in a run or in a part of it, as it is printed.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    /// Where each match begins.
    pub(super) starts: Vec<usize>,
    /// The records that could not be read.
    pub(super) damage: Vec<String>,
    /// The bytes of the run, if it is over.
    pub(super) over: Option<u64>,
}

/// Prints what was found.
pub(super) struct Turns<'o> {
    out: &'o mut Output,
    /// How many more matches are wanted.
    left: usize,
    /// Whether runs stand apart from one another.
    has_groups: bool,
    has_found: bool,
    /// Whether a part of the run is printed.
    is_within: bool,
    is_damaged: bool,
    /// How many runs are done, of how many, and their bytes.
    done: usize,
    runs: usize,
    bytes: u64,
    /// When progress was shown last, where a terminal shows it, and whether it is there.
    shown: Option<Instant>,
    is_on_screen: bool,
}

impl<'o> Turns<'o> {
    pub(super) fn new(out: &'o mut Output, runs: usize, most: usize, has_groups: bool) -> Self {
        Self {
            out,
            left: most,
            has_groups,
            has_found: false,
            is_within: false,
            is_damaged: false,
            done: 0,
            runs,
            bytes: 0,
            shown: io::stderr().is_terminal().then(Instant::now),
            is_on_screen: false,
        }
    }

    /// Prints what was found in the run whose turn it is. Answers whether to go on.
    pub(super) fn take(&mut self, found: &Found) -> Result<bool, Failure> {
        for message in &found.damage {
            self.clear();
            self.is_damaged = true;
            damaged(message);
        }
        let most = found.starts.get(self.left).copied().unwrap_or(found.bytes.len());
        let bytes = found.bytes.get(..most).unwrap_or_default();
        if !bytes.is_empty() && self.left > 0 {
            self.left -= found.starts.len().min(self.left);
            self.clear();
            if self.has_groups && self.has_found && !self.is_within {
                self.out.raw(b"\n")?;
            }
            (self.has_found, self.is_within) = (true, true);
            self.out.raw(bytes)?;
            // At once, as it is found.
            self.out.flush()?;
        }
        if let Some(bytes) = found.over {
            (self.done, self.bytes) = (self.done + 1, self.bytes + bytes);
            self.is_within = false;
        }
        if self.shown.is_some_and(|shown| shown.elapsed() > PROGRESS) {
            (self.shown, self.is_on_screen) = (Some(Instant::now()), true);
            let (done, all) = (grouped(self.done as u64), count(self.runs as u64, "run"));
            let text = format!("\r\x1b[Ksearched {done} of {all}, {}", size(self.bytes));
            // It is only a service.
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
        Ok(self.left > 0)
    }

    /// Takes the line of progress away.
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_on_screen) {
            let _ = io::stderr().lock().write_all(b"\r\x1b[K");
        }
    }

    /// The exit code: those of grep.
    pub(super) fn end(mut self) -> Exit {
        self.clear();
        match (self.is_damaged, self.has_found) {
            (true, _) => Exit::Trouble,
            (false, true) => Exit::Fine,
            (false, false) => Exit::Error,
        }
    }
}
