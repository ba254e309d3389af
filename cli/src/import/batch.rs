//! Records that are appended together.

use std::ops::Range;

use runlog::{Allow, ContentType, NewRecord, Outcome, RunLog, RunWriter, Timestamp};

/// How much is appended at once: enough to make the cost of a call small, little enough to keep
/// memory small.
const BATCH_RECORDS: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

/// Records that are appended together. Their payloads lie one behind the other in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    range: Range<usize>,
    kind: Option<String>,
    content_type: ContentType,
    at: Timestamp,
}

/// The run that is appended to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    /// A run that was just started.
    Started(&'a RunWriter),
    /// A run that was there, and may have ended.
    Named { log: &'a RunLog, agent: &'a str, run: &'a str, allow: Allow },
    /// No run: nothing is written.
    Nowhere,
}

impl Target<'_> {
    fn append_batch(self, records: &[NewRecord<'_>]) -> runlog::Result<()> {
        match self {
            Self::Started(run) => run.append_batch(records).map(drop),
            Self::Named { log, agent, run, allow } => {
                log.append_batch_to(agent, run, records, allow).map(drop)
            }
            Self::Nowhere => Ok(()),
        }
    }

    fn append(self, record: &NewRecord<'_>) -> runlog::Result<()> {
        match self {
            Self::Started(run) => run.append_record(record).map(drop),
            Self::Named { log, agent, run, allow } => {
                log.append_to(agent, run, record, allow).map(drop)
            }
            Self::Nowhere => Ok(()),
        }
    }

    /// Ends the run, if it is one that was just started.
    pub(crate) fn end(self, outcome: &Outcome) -> runlog::Result<()> {
        if let Self::Started(run) = self { run.end(outcome).map(drop) } else { Ok(()) }
    }
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether it is time to append, with so many more records.
    pub(crate) fn is_full(&self, more: usize) -> bool {
        self.entries.len() + more >= BATCH_RECORDS || self.bytes.len() >= BATCH_BYTES
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    /// Adds a record whose payload is a range of `bytes`.
    pub(crate) fn add(
        &mut self,
        range: Range<usize>,
        kind: Option<String>,
        content_type: ContentType,
        at: Timestamp,
    ) {
        self.entries.push(Entry { range, kind, content_type, at });
    }

    /// Appends the records.
    pub(crate) fn append(&self, to: Target<'_>) -> runlog::Result<()> {
        let records: Vec<NewRecord<'_>> = self
            .entries
            .iter()
            .map(|entry| {
                let payload = self.bytes.get(entry.range.clone()).unwrap_or_default();
                let record = NewRecord::new(payload).content_type(entry.content_type).at(entry.at);
                match &entry.kind {
                    Some(kind) => record.kind(kind),
                    None => record,
                }
            })
            .collect();
        // A batch is bounded by the extents of the store; its records one by one are not.
        match to.append_batch(&records) {
            Err(runlog::Error::TooLarge { .. }) => {
                records.iter().try_for_each(|record| to.append(record))
            }
            other => other,
        }
    }
}
