//! A document that went on after it was imported: import appends its new steps to the run,
//! and then the present parts around the steps.
//!
//! The records of such a run are those of the document as it was first, and then for each time that
//! it went on: its new steps, its parts of the kind [`PART`](crate::PART), and one record of the
//! kind [`REVISION`]. That record says how the parts and all steps of the run make the document.
//! Records after the last revision are no part of the file: an import was cut short there, or
//! another program appended them.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

/// The kind of a record that says how a document went on.
pub const REVISION: &str = "document-revision";

/// A document as it is by now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// How many bytes it has.
    pub bytes: u64,
    /// `sha256:` and the digest of these bytes in hexadecimal digits.
    pub digest: String,
    /// What stands between two steps that follow one another.
    pub join: String,
    /// How many steps it has: the first ones of the run.
    pub steps: u64,
    /// For each of the parts, which are the records before this one, how many steps come before it.
    pub parts: Vec<u64>,
}

impl Revision {
    /// What a record of the kind [`REVISION`] says.
    pub fn of(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }

    /// As the payload of a record.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Writes the document; nothing is written for a step or a part that is not there.
    pub(crate) fn write(
        &self,
        out: &mut impl Write,
        steps: &[Vec<u8>],
        parts: &[Vec<u8>],
    ) -> io::Result<()> {
        let mut ordered = self.parts.iter().zip(parts).peekable();
        let mut follows_step = false;
        let count = usize::try_from(self.steps).unwrap_or(usize::MAX);
        for (before, step) in (0..).zip(steps.iter().take(count)) {
            while let Some((_, part)) = ordered.next_if(|(at, _)| **at <= before) {
                out.write_all(part)?;
                follows_step = false;
            }
            if follows_step {
                out.write_all(self.join.as_bytes())?;
            }
            out.write_all(step)?;
            follows_step = true;
        }
        ordered.try_for_each(|(_, part)| out.write_all(part))
    }
}
