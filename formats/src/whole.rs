//! Puts the records of a run together again: the file that was imported, or a line for each.

use std::io::{self, Write};

use runlog_stores::json_lines::UNTERMINATED;

use super::encoding::Encoding;
use super::origin::Origin;
use super::revision::{REVISION, Revision};
use super::{Layout, PART, envelope};

/// Writes the records of a run, one after the other, as a file. [`Whole::finish`] ends it.
#[derive(Debug)]
pub struct Whole {
    layout: Layout,
    encoding: Encoding,
    /// Whether the mark of the encoding is written.
    is_begun: bool,
    join: String,
    due: Due,
    /// The records of a document that went on, which are written at the end.
    kept: Option<Kept>,
}

/// What is written only when something follows: the newline that the last line of the imported file
/// did not have, or what stands between two steps of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    Newline,
    Join,
}

/// The records of a document that may have gone on.
#[derive(Debug, Default)]
struct Kept {
    /// The document as it was imported, and later records that are no part of a revision.
    written: Vec<u8>,
    steps: Vec<Vec<u8>>,
    /// Since the last revision.
    parts: Vec<Vec<u8>>,
    revised: Option<(Revision, Vec<Vec<u8>>)>,
}

/// What a file turned out to be.
#[derive(Debug, Default)]
pub struct Finished {
    /// The digest of a document that went on.
    pub digest: Option<String>,
    /// Whether the run has records that are no part of the document.
    pub has_more: bool,
}

impl Whole {
    /// The file that a run of so many records was imported from; of a run that was not imported its
    /// payloads, each followed by a newline.
    pub fn new(origin: Option<&Origin>, records: u64) -> Self {
        let layout = match origin.map(|origin| origin.layout) {
            // The text of several files is a document.
            Some(Layout::Files) => Layout::Document,
            layout => layout.unwrap_or_default(),
        };
        let encoding = origin.map_or_else(Encoding::default, |origin| origin.encoding);
        let join = origin.map_or_else(String::new, |origin| origin.join.clone());
        // Only a document that has more records than it was imported with may have gone on.
        let first = origin.and_then(|origin| origin.records).filter(|first| *first < records);
        let kept = first.filter(|_| layout == Layout::Document).map(|_| Kept::default());
        Self { layout, encoding, is_begun: false, join, due: Due::Nothing, kept }
    }

    /// Writes what the next record adds, in its envelope if it `is_enveloped`.
    pub fn write(
        &mut self,
        out: &mut impl Write,
        kind: Option<&str>,
        payload: &[u8],
        is_enveloped: bool,
    ) -> io::Result<()> {
        if let Some(mut kept) = self.kept.take() {
            self.add(&mut kept.written, kind, payload, false)?;
            kept.take(kind, payload);
            self.kept = Some(kept);
            return Ok(());
        }
        if self.encoding.is_plain() {
            return self.add(out, kind, payload, is_enveloped);
        }
        self.begin(out)?;
        let mut text = Vec::new();
        self.add(&mut text, kind, payload, is_enveloped)?;
        out.write_all(&self.encoding.encoded(&text))
    }

    /// Writes what is left.
    pub fn finish(&mut self, out: &mut impl Write) -> io::Result<Finished> {
        self.begin(out)?;
        let Some(kept) = self.kept.take() else { return Ok(Finished::default()) };
        let Some((revision, parts)) = kept.revised else {
            out.write_all(&self.encoding.encoded(&kept.written))?;
            return Ok(Finished { digest: None, has_more: true });
        };
        let mut text = Vec::new();
        (self.join, self.due) = (revision.join.clone(), Due::Nothing);
        for (kind, piece) in revision.pieces(&kept.steps, &parts) {
            self.add(&mut text, kind, piece, false)?;
        }
        out.write_all(&self.encoding.encoded(&text))?;
        let has_more = !kept.parts.is_empty() || kept.steps.len() as u64 > revision.steps;
        Ok(Finished { digest: Some(revision.digest), has_more })
    }

    /// Writes the bytes of the file before its first record.
    pub fn begin(&mut self, out: &mut impl Write) -> io::Result<()> {
        if std::mem::replace(&mut self.is_begun, true) {
            return Ok(());
        }
        out.write_all(self.encoding.mark())
    }

    fn add(
        &mut self,
        out: &mut impl Write,
        kind: Option<&str>,
        payload: &[u8],
        is_enveloped: bool,
    ) -> io::Result<()> {
        let is_part = kind == Some(PART);
        if self.layout == Layout::Archive && !is_part {
            // It is in the archive.
            return Ok(());
        }
        match self.due {
            Due::Newline => out.write_all(b"\n")?,
            Due::Join if !is_part => out.write_all(self.join.as_bytes())?,
            _ => {}
        }
        if is_enveloped {
            envelope::write(out, payload)?;
        } else {
            out.write_all(payload)?;
        }
        self.due = match self.layout {
            Layout::Lines if kind == Some(UNTERMINATED) => Due::Newline,
            Layout::Document if !is_part => Due::Join,
            _ => Due::Nothing,
        };
        if self.layout == Layout::Lines && self.due == Due::Nothing {
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

impl Kept {
    fn take(&mut self, kind: Option<&str>, payload: &[u8]) {
        match kind {
            Some(REVISION) => {
                let parts = std::mem::take(&mut self.parts);
                if let Some(revision) = Revision::of(payload) {
                    // Parts of an import that was cut short come before those of the revision.
                    let skipped = parts.len().saturating_sub(revision.parts.len());
                    self.revised = Some((revision, parts.into_iter().skip(skipped).collect()));
                }
            }
            Some(PART) => self.parts.push(payload.to_vec()),
            _ => self.steps.push(payload.to_vec()),
        }
    }
}
