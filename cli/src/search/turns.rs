//! Prints the results in the order of the runs.

use crate::failure::{Exit, Failure};
use crate::message::damaged;
use crate::output::Output;

/// The results in a run or in a part of it, as they are printed.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    /// Where each match begins.
    pub(super) starts: Vec<usize>,
    /// The records that could not be read.
    pub(super) damage: Vec<String>,
    /// Whether an earlier part of the run was given.
    pub(super) goes_on: bool,
}

/// Prints what was found.
pub(super) struct Turns<'o> {
    out: &'o mut Output,
    /// How many more matches are wanted.
    left: usize,
    /// Whether runs stand apart from one another.
    has_groups: bool,
    has_found: bool,
    is_damaged: bool,
}

impl<'o> Turns<'o> {
    pub(super) fn new(out: &'o mut Output, most: usize, has_groups: bool) -> Self {
        Self { out, left: most, has_groups, has_found: false, is_damaged: false }
    }

    /// Prints what was found in the run whose turn it is. Answers whether to go on.
    pub(super) fn take(&mut self, found: &Found) -> Result<bool, Failure> {
        for message in &found.damage {
            self.is_damaged = true;
            damaged(message);
        }
        let most = found.starts.get(self.left).copied().unwrap_or(found.bytes.len());
        let bytes = found.bytes.get(..most).unwrap_or_default();
        if !bytes.is_empty() && self.left > 0 {
            self.left -= found.starts.len().min(self.left);
            if self.has_groups && self.has_found && !found.goes_on {
                self.out.raw(b"\n")?;
            }
            self.has_found = true;
            self.out.raw(bytes)?;
            // At once, as it is found.
            self.out.flush()?;
        }
        Ok(self.left > 0)
    }

    /// The exit code: those of grep.
    pub(super) fn end(&self) -> Exit {
        match (self.is_damaged, self.has_found) {
            (true, _) => Exit::Trouble,
            (false, true) => Exit::Fine,
            (false, false) => Exit::Error,
        }
    }
}
