//! A document that goes on: what it has more than its run is appended.
//!
//! | the steps of the document | then |
//! |---|---|
//! | begin with those of the run | the others are appended, and how all of them make the document |
//! | differ | is a change: an error, or with `--replace` imported anew |
//!
//! [`Revision`] says what the records are.

use runlog::{Allow, ContentType, RunSummary, Seq};

use crate::formats::origin::Origin;
use crate::formats::revision::{REVISION, Revision};
use crate::formats::{Layout, PART};

use super::document::{Feed, Item, Piece, Whole};
use super::file::{FileError, Importer};

/// How a document compares with its run.
pub(crate) enum Compared {
    /// It begins with all steps of the run, this many.
    GoesOn { steps: usize },
    /// This step is another one, counted from 1.
    Differs(u64),
}

impl Importer<'_> {
    /// The document as it went on last, if that is what the last record of its run says.
    pub(crate) fn revision(
        &self,
        summary: &RunSummary,
        origin: &Origin,
    ) -> Result<Option<Revision>, FileError> {
        let last = summary.records.checked_sub(1).filter(|last| {
            matches!(origin.layout, Layout::Document | Layout::Files)
                && origin.records.is_some_and(|first| *last >= first)
        });
        let Some(last) = last else { return Ok(None) };
        let Some(record) = self.trace(summary.into())?.range(Seq(last)..)?.next().transpose()?
        else {
            return Ok(None);
        };
        let is_revision = record.kind() == Some(REVISION);
        Ok(Revision::of(record.payload()).filter(|_| is_revision))
    }

    /// Whether the steps of a run are the first ones of a document.
    pub(crate) fn compare_steps(
        &self,
        file: &Whole<'_>,
        summary: &RunSummary,
        pieces: &[Piece],
    ) -> Result<Compared, FileError> {
        let mut own = pieces.iter().filter(|piece| piece.array.is_some());
        let mut steps = 0;
        for record in self.trace(summary.into())? {
            let record = record?;
            if record.kind().is_some_and(|kind| [PART, REVISION].contains(&kind)) {
                continue;
            }
            let bytes = own.next().and_then(|piece| file.bytes.get(piece.range.clone()));
            steps += 1;
            if bytes != Some(record.payload()) {
                return Ok(Compared::Differs(steps as u64));
            }
        }
        Ok(Compared::GoesOn { steps })
    }

    /// Appends the new steps of the document to its run, and the record that says how all steps
    /// make the document.
    pub(crate) fn go_on_with(
        &self,
        file: &Whole<'_>,
        summary: &RunSummary,
        pieces: &[Piece],
        steps: usize,
        origin: &Origin,
        progress: &dyn Fn(u64),
    ) -> Result<(), FileError> {
        let text = std::str::from_utf8(file.bytes).unwrap_or_default();
        let to = self.target(file.source, Allow::nothing().after_end(summary.status.is_ended()));
        let mut feed = Feed::new(to, summary.last_at, progress);
        let (mut parts, mut count) = (Vec::new(), 0_u64);
        for piece in pieces {
            match piece.array {
                Some(_) => count += 1,
                None => parts.push(count),
            }
        }
        let is_step = |piece: &&Piece| piece.array.is_some();
        let new = pieces.iter().filter(is_step).skip(steps);
        for piece in new.chain(pieces.iter().filter(|piece| !is_step(piece))) {
            feed.take(piece.bytes(text), piece.item(text, file.format, PART, false))?;
        }
        let revision = Revision {
            bytes: origin.bytes.unwrap_or_default(),
            digest: origin.digest.clone().unwrap_or_default(),
            join: origin.join.clone(),
            steps: count,
            parts,
        };
        let item = Item { kind: REVISION.to_owned(), content: ContentType::JSON, at: None };
        feed.take(revision.to_json().as_bytes(), item)?;
        feed.flush()?;
        self.end_whole(file, summary).map(drop)
    }
}
