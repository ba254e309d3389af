//! A run as lines, or as the file that it was imported from.

use std::io::Write;

use memchr::memchr;
use runlog::{Reader, RecordView, RunSummary};
use sha2::{Digest as _, Sha256};

use crate::formats::Layout;
use crate::formats::envelope::{self, ENVELOPE};
use crate::formats::origin::{Origin, digest_text};
use crate::formats::whole::{Finished, Whole};
use crate::output::count;

use super::otlp;
use super::outcome::{Counted, Why, Written, each_record};

/// What a run becomes.
#[derive(Debug)]
pub(crate) enum Form {
    /// A line for each record: its payload, if that is one line of JSON, else its envelope.
    Records,
    /// The file that it was imported from, and after the lines of one what was appended since.
    Original(Box<Origin>),
    /// A trace of OpenTelemetry, of a run that was imported or not.
    Trace(Option<Box<Origin>>),
}

impl Form {
    fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Records | Self::Trace(_) => None,
            Self::Original(origin) => Some(origin),
        }
    }

    /// Whether it is several files.
    pub(crate) fn is_of_files(&self) -> bool {
        self.origin().is_some_and(|origin| origin.layout == Layout::Files)
    }

    /// As the user knows it.
    pub(crate) fn name(&self) -> String {
        if matches!(self, Self::Trace(_)) {
            return "otlp".to_owned();
        }
        let format = self.origin().and_then(|origin| origin.format);
        format.map_or_else(|| "jsonl".to_owned(), |format| format.to_string())
    }

    /// Whether the payload of a record is written in an envelope.
    fn is_enveloped(&self, record: &RecordView<'_>) -> bool {
        let payload = record.payload();
        match self.origin().map(|origin| origin.layout) {
            None => !envelope::is_line(payload),
            Some(Layout::Lines) => {
                // No line of a file has a newline in it.
                record.kind() == Some(ENVELOPE) || memchr(b'\n', payload).is_some()
            }
            Some(Layout::Document | Layout::Archive | Layout::Files) => false,
        }
    }
}

/// Writes a run in its form.
pub(crate) fn write(
    log: &Reader,
    run: &RunSummary,
    form: &Form,
    out: &mut impl Write,
) -> Result<Written, Why> {
    match form {
        Form::Trace(origin) => otlp::write(log, run, origin.as_deref(), out),
        Form::Records | Form::Original(_) => write_records(log, run, form, out),
    }
}

/// Writes a run. The bytes are those of its file if this returns no error, but for records that are
/// damaged.
///
/// Takes memory for the longest record only.
fn write_records(
    log: &Reader,
    run: &RunSummary,
    form: &Form,
    out: &mut impl Write,
) -> Result<Written, Why> {
    let mut whole = Whole::new(form.origin(), run.records);
    let digest = form.origin().and_then(|origin| Some((origin.records?, origin.digest.as_ref()?)));
    let is_lines = form.origin().is_some_and(|origin| origin.layout == Layout::Lines);
    // What was written when the file that was imported is over.
    let is_over = |records: u64| digest.is_some_and(|(all, _)| records >= all);
    let mut out = Counted::new(out, digest.map(|_| Sha256::new()));
    let (mut written, mut found) = (Written::default(), None);
    each_record(log, run, &mut written, |records, record| {
        if is_lines && is_over(records) && found.is_none() {
            // A file of lines has the byte order mark once, before its first line.
            whole.begin(&mut out)?;
            found = out.digest.take();
        }
        // Of lines that no file had, each has a newline.
        let kind = form.origin().and_then(|_| record.kind());
        Ok(whole.write(&mut out, kind, record.payload(), form.is_enveloped(record))?)
    })?;
    if is_lines && is_over(written.records) && found.is_none() {
        whole.begin(&mut out)?;
        found = out.digest.take();
    }
    let finished = whole.finish(&mut out)?;
    if !is_lines && is_over(written.records) {
        found = out.digest.take();
    }
    written.bytes = out.bytes;
    if let Some(origin) = form.origin() {
        check(origin, &finished, &written, found.map(|digest| digest.finalize().into()))?;
    }
    Ok(written)
}

/// Compares what was written with what is known of the file.
fn check(
    origin: &Origin,
    finished: &Finished,
    written: &Written,
    found: Option<[u8; 32]>,
) -> Result<(), Why> {
    if written.damaged > 0 && origin.layout == Layout::Lines {
        // Lines are of use without those that are lost. A document is not.
        return Ok(());
    }
    if written.damaged > 0 {
        let records = count(written.damaged, "record");
        let why = "damaged, so the file is not whole; --format jsonl exports the others";
        return Err(Why::refused("damaged", format!("{records} {why}")));
    }
    let digest = finished.digest.as_ref().or(origin.digest.as_ref());
    let (Some(records), Some(digest)) = (origin.records, digest) else {
        return Ok(());
    };
    let Some(found) = found else {
        let (found, records) = (written.records, count(records, "record"));
        let how = "import it again, or export it by --format jsonl";
        let message = format!("the import of it has not ended: {found} of {records}; {how}");
        return Err(Why::refused("unfinished", message));
    };
    let is_same = digest_text(&found) == *digest && !finished.has_more;
    if is_same { Ok(()) } else { Err(Why::differs()) }
}
