//! Records on their way into a run.

use std::borrow::Cow;

use runlog::{Allow, ContentType, NewRecord, Timestamp};

use super::file::Importer;
use super::refusal::FileError;

/// How much is appended at once: enough to make the cost of a call small, little enough to keep
/// memory small.
const BATCH_RECORDS: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

/// A record to append.
#[derive(Debug, Clone)]
pub(crate) struct Item<'a> {
    pub(crate) payload: Cow<'a, [u8]>,
    pub(crate) kind: Option<String>,
    pub(crate) content: ContentType,
    /// The time that the payload gives, if it gives one.
    pub(crate) at: Option<Timestamp>,
}

/// Appends records in batches.
#[derive(Debug)]
pub(crate) struct Feed<'a> {
    importer: &'a Importer<'a>,
    ids: (&'a str, &'a str),
    allow: Allow,
    /// The time of the last record that gave one; before the first, the start of the run.
    pub(crate) at: Timestamp,
    batch: Vec<(Item<'a>, Timestamp)>,
    bytes: usize,
}

impl<'a> Item<'a> {
    pub(crate) fn new(payload: &'a [u8], kind: &str, content: ContentType) -> Self {
        Self { payload: Cow::Borrowed(payload), kind: Some(kind.to_owned()), content, at: None }
    }

    /// Whether it is a step of a document whose parts are called so.
    pub(crate) fn is_step(&self, part: &str) -> bool {
        self.kind.as_deref() != Some(part)
    }

    pub(crate) fn into_owned<'o>(self) -> Item<'o> {
        Item { payload: Cow::Owned(self.payload.into_owned()), ..self }
    }
}

impl<'a> Feed<'a> {
    /// Into the run with these ids, whose last record has this time.
    pub(crate) fn new(
        importer: &'a Importer<'a>,
        ids: (&'a str, &'a str),
        allow: Allow,
        at: Timestamp,
    ) -> Self {
        Self { importer, ids, allow, at, batch: Vec::new(), bytes: 0 }
    }

    pub(crate) fn take(&mut self, item: Item<'a>) -> Result<(), FileError> {
        self.at = item.at.unwrap_or(self.at);
        self.bytes += item.payload.len();
        self.batch.push((item, self.at));
        let is_full = self.batch.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES;
        if is_full { self.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self) -> Result<(), FileError> {
        let records: Vec<NewRecord<'_>> = self.batch.iter().map(record).collect();
        if !records.is_empty() {
            self.importer.append(self.ids, &records, self.allow)?;
        }
        self.batch.clear();
        self.bytes = 0;
        Ok(())
    }
}

fn record<'r>((item, at): &'r (Item<'_>, Timestamp)) -> NewRecord<'r> {
    let record = NewRecord::new(&item.payload).content_type(item.content).at(*at);
    item.kind.iter().fold(record, |record, kind| record.kind(kind))
}
