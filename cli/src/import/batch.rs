//! Lines that are appended together.

use std::ops::Range;

use runlog::{ContentType, NewRecord, RunWriter, Timestamp};
use runlog_stores::json_lines::{Ending, LinesError, UNTERMINATED};

use super::line::RAW;
use super::reading::Reading;

/// How much is appended at once: enough to make the cost of a call small, little enough to keep
/// memory small.
const BATCH_RECORDS: usize = 256;
const BATCH_BYTES: usize = 256 << 10;

/// Lines that are appended together. They lie one behind the other in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// The number of the first line.
    pub(crate) first_line: u64,
}

#[derive(Debug)]
struct Entry {
    range: Range<usize>,
    kind: Option<String>,
    content_type: ContentType,
    at: Option<Timestamp>,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first time that a line gives.
    pub(crate) fn first_time(&self) -> Option<Timestamp> {
        self.entries.iter().find_map(|entry| entry.at)
    }

    /// Replaces the lines by the next ones of the file.
    pub(crate) fn fill(&mut self, reading: &mut Reading) -> Result<(), LinesError> {
        self.bytes.clear();
        self.entries.clear();
        self.first_line = reading.lines_read + 1;
        while self.entries.len() < BATCH_RECORDS && self.bytes.len() < BATCH_BYTES {
            let start = self.bytes.len();
            let Some((line, ending)) = reading.line_onto(&mut self.bytes)? else {
                break;
            };
            let content_type = line.content_type();
            let kind = match (ending, line.damage) {
                (Ending::EndOfFile, _) => Some(UNTERMINATED.to_owned()),
                (Ending::Newline, Some(_)) => Some(RAW.to_owned()),
                (Ending::Newline, None) => line.kind,
            };
            let range = start..self.bytes.len();
            self.entries.push(Entry { range, kind, content_type, at: line.at });
        }
        Ok(())
    }

    pub(crate) fn append(&self, writer: &RunWriter, modified: Timestamp) -> runlog::Result<()> {
        let records: Vec<NewRecord<'_>> = self
            .entries
            .iter()
            .map(|entry| {
                let payload = self.bytes.get(entry.range.clone()).unwrap_or_default();
                let record = NewRecord::new(payload)
                    .content_type(entry.content_type)
                    .at(entry.at.unwrap_or(modified));
                match &entry.kind {
                    Some(kind) => record.kind(kind),
                    None => record,
                }
            })
            .collect();
        // A batch is bounded by the extents of the store; its records one by one are not.
        match writer.append_batch(&records) {
            Err(runlog::Error::TooLarge { .. }) => {
                records.iter().try_for_each(|record| writer.append_record(record).map(drop))
            }
            other => other.map(drop),
        }
    }
}
