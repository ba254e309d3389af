//! A document that went on after it was imported: import appends its new steps to the run,
//! and then the present parts around the steps.
//!
//! The records of such a run are those of the document as it was first, and then for each time that
//! it went on: its new steps, its parts of the kind [`PART`], and one record of the
//! kind [`REVISION`]. That record says how the parts and all steps of the run make the document.
//! Records after the last revision are no part of the file: an import was cut short there, or
//! another program appended them.

use serde::{Deserialize, Serialize};

use super::PART;

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

    /// The parts and the steps in the order of the document, each with its kind if it is a part.
    pub(crate) fn pieces<'r>(
        &self,
        steps: &'r [Vec<u8>],
        parts: &'r [Vec<u8>],
    ) -> impl Iterator<Item = (Option<&'static str>, &'r Vec<u8>)> {
        let parts = self.parts.iter().zip(parts).map(|(at, part)| ((*at, false), part));
        let steps = (0..self.steps).zip(steps).map(|(at, step)| ((at, true), step));
        let mut pieces: Vec<_> = parts.chain(steps).collect();
        pieces.sort_by_key(|(at, _)| *at);
        pieces.into_iter().map(|((_, is_step), piece)| ((!is_step).then_some(PART), piece))
    }
}
