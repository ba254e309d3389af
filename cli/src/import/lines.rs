//! A file of lines into a run, and what a file that grew adds to it.
//!
//! | the run | and the file | then |
//! |---|---|---|
//! | is not there | | it is imported |
//! | has all lines | | is already there |
//! | has the first lines, and has not ended | has more | they are appended |
//! | has the first lines, and no time from them | has more, and a time | it is imported anew |
//! | has the first lines, and its file says that it ended | has more | it is imported anew |
//! | has the first lines, and was ended by hand or by `--end` | has more | they are late records |
//! | ends in a line without an end, not ended by hand | has more of it | it is imported anew |
//! | has other lines | | is a change: an error, or with `--replace` imported anew |
//!
//! So a run in progress is always what its file was, to the byte.

use std::fs::{self, File};

use runlog::{Allow, Outcome, RunStatus, RunSummary, Timestamp, Trace};
use runlog_stores::json_lines::{Ending, UNTERMINATED};

use crate::formats::envelope::ENVELOPE;
use crate::formats::origin::Origin;
use crate::formats::{Format, Layout};

use super::batch::{Batch, Target};
use super::file::{Done, FileError, How, Imported, Importer, outcome};
use super::input::Input;
use super::reading::{Mark, Options, Reading, is_of_line};
use super::replace::Replacement;
use super::safe_open::Opened;
use super::tree::Source;

/// How a run and its file compare.
#[derive(Debug, PartialEq, Eq)]
enum Compared {
    /// The run is the file, or its beginning.
    Beginning,
    /// The last line of the run had no end, and goes on in the file.
    Completed,
    /// The last line of the run had no end, and has none yet.
    Unfinished,
    /// This line is another one.
    Differs(u64),
}

impl Importer<'_> {
    /// Imports a file of lines.
    pub(crate) fn lines(
        &self,
        source: &Source,
        input: Input,
        format: Format,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let options = Options { is_text: format == Format::Text, holds_tail: self.follows };
        let mut reading = Reading::open(input, options)?;
        let how = match self.existing(source)? {
            None if self.follows && reading.survey.lines == 0 => return Ok(Done::Waits),
            None => {
                self.add(source, format, None, &mut reading, progress)?;
                How::Imported
            }
            Some((summary, origin)) => {
                self.go_on(source, format, &summary, &origin, &mut reading, progress)?
            }
        };
        self.done(source, format, how, reading).map(Done::Run)
    }

    /// Imports what a file that is followed has got since; `None` if it has to be looked at whole.
    pub(crate) fn resume(
        &self,
        source: &Source,
        file: File,
        mark: &Mark,
        progress: &dyn Fn(u64),
    ) -> Result<Option<Done>, FileError> {
        let options = Options { is_text: mark.format() == Format::Text, holds_tail: true };
        let Some(mut reading) = Reading::resume(file, options, mark)? else {
            return Ok(None);
        };
        let Some((summary, _)) = self.existing(source)? else {
            return Ok(None);
        };
        // Another program may have appended to it, or it has ended.
        if summary.records != reading.seen.lines || summary.status.is_ended() {
            return Ok(None);
        }
        let had_time = reading.seen.first_time.is_some();
        let mut batch = Batch::default();
        reading.fill(&mut batch, Some(summary.started_at))?;
        if batch.is_empty() {
            return Ok(Some(Done::Waits));
        }
        if !had_time && reading.seen.first_time.is_some() {
            return Ok(None);
        }
        let to = self.target(source, Allow::nothing());
        append(to, &mut reading, &mut batch, summary.started_at, progress)?;
        self.end(source, &reading)?;
        self.done(source, mark.format(), How::Continued, reading).map(|done| Some(Done::Run(done)))
    }

    /// Imports a file as a new run, or in the place of its run.
    fn add(
        &self,
        source: &Source,
        format: Format,
        replacement: Option<Replacement<'_>>,
        reading: &mut Reading,
        progress: &dyn Fn(u64),
    ) -> Result<(), FileError> {
        let mut batch = Batch::default();
        reading.fill(&mut batch, None)?;
        let start = reading.seen.first_time.unwrap_or(reading.modified);
        let survey = &reading.survey;
        let origin = Origin {
            imported_from: source.file_name(),
            path: source.path_text(),
            format: Some(format),
            layout: Layout::Lines,
            encoding: reading.encoding,
            bytes: Some(survey.bytes),
            digest: Some(survey.digest.clone()),
            records: Some(survey.lines),
            join: String::new(),
        };
        let fill = |to: Target<'_>| {
            append(to, reading, &mut batch, start, progress)?;
            self.ends_as(reading).map_or(Ok(()), |end| Ok(to.end(&end)?))
        };
        match replacement {
            None => self.start(source.ids(), &origin.to_json(), start, fill),
            Some(replacement) => self.replace(replacement, &origin, start, fill),
        }
    }

    /// Compares a run with its file and appends what is missing.
    fn go_on(
        &self,
        source: &Source,
        format: Format,
        summary: &RunSummary,
        origin: &Origin,
        reading: &mut Reading,
        progress: &dyn Fn(u64),
    ) -> Result<How, FileError> {
        let line = if origin.layout == Layout::Lines {
            match self.compare(source, summary, origin, reading, progress)? {
                Compared::Beginning => {
                    return self.rest(source, format, summary, reading, progress);
                }
                Compared::Unfinished => return Ok(How::AlreadyThere),
                // What a user ended stays; what the file ended goes on with it.
                Compared::Completed if !summary.status.is_ended() || reading.seen.end.is_some() => {
                    let replacement = Replacement { old: summary, may_lose: false };
                    return self.import_again(source, format, replacement, reading, progress);
                }
                Compared::Completed => Some(reading.seen.lines),
                Compared::Differs(line) => Some(line),
            }
        } else {
            None
        };
        if self.replace {
            let replacement = Replacement { old: summary, may_lose: true };
            return self.import_again(source, format, replacement, reading, progress);
        }
        Err(Self::differs(source, line.map(|line| ("line", line))))
    }

    /// Appends what is behind the lines that the run has.
    fn rest(
        &self,
        source: &Source,
        format: Format,
        summary: &RunSummary,
        reading: &mut Reading,
        progress: &dyn Fn(u64),
    ) -> Result<How, FileError> {
        let said_its_end = reading.seen.end.is_some();
        let had_time = reading.seen.first_time.is_some();
        let mut batch = Batch::default();
        reading.fill(&mut batch, Some(summary.started_at))?;
        let has_more = !batch.is_empty();
        let has_ended = summary.status.is_ended();
        // A run starts at the first time that its file gives.
        let starts_elsewhere = !had_time && reading.seen.first_time.is_some();
        let must_replace = if has_ended { said_its_end } else { starts_elsewhere };
        if has_more && must_replace {
            let replacement = Replacement { old: summary, may_lose: false };
            return self.import_again(source, format, replacement, reading, progress);
        }
        let to = self.target(source, Allow::nothing().after_end(has_ended));
        append(to, reading, &mut batch, summary.started_at, progress)?;
        let ends = !has_ended && (reading.seen.end.is_some() || self.end.is_some());
        if ends {
            self.end(source, reading)?;
        }
        Ok(if has_more || ends { How::Continued } else { How::AlreadyThere })
    }

    /// Imports the file in the place of its run.
    fn import_again(
        &self,
        source: &Source,
        format: Format,
        replacement: Replacement<'_>,
        reading: &mut Reading,
        progress: &dyn Fn(u64),
    ) -> Result<How, FileError> {
        reading.rewind()?;
        self.add(source, format, Some(replacement), reading, progress)?;
        Ok(How::Replaced)
    }

    /// Ends the run if its lines say so, or the user does.
    fn end(&self, source: &Source, reading: &Reading) -> Result<(), FileError> {
        self.ends_as(reading).map_or(Ok(()), |end| self.end_run(source.ids(), &end))
    }

    /// How the run ends, if its lines say so, or the user does.
    fn ends_as(&self, reading: &Reading) -> Option<Outcome> {
        let at = reading.seen.last_time.unwrap_or(reading.modified);
        self.status_of(reading).map(|status| outcome(status, at))
    }

    fn status_of(&self, reading: &Reading) -> Option<RunStatus> {
        reading.seen.end.map(crate::formats::line::End::status).or(self.end)
    }

    /// Whether a run is that of a file which has its ids: whether the file begins with its records.
    pub(crate) fn is_run_of(&self, source: &Source, origin: &Origin) -> Result<bool, FileError> {
        let (file, metadata) = source.location.file(&mut Opened::default())?;
        let input = Input::new(file, &metadata)?;
        let len = input.unpacked_len;
        let summary = self.run(source.ids().into())?;
        if origin.layout != Layout::Lines {
            let revision = self.revision(&summary, origin)?;
            let imported = (origin.bytes, origin.digest.clone());
            let (bytes, digest) =
                revision.map_or(imported, |revision| (Some(revision.bytes), Some(revision.digest)));
            return Ok(bytes == Some(len) && digest == Some(input.digest()?));
        }
        if summary.records == 0 && origin.path.is_some() {
            return Ok(len == 0);
        }
        if origin.bytes.is_some_and(|bytes| bytes > len) || !self.has_first(source, &input)? {
            return Ok(false);
        }
        let is_text = origin.format == Some(Format::Text);
        let options = Options { is_text, holds_tail: self.follows };
        let mut reading = Reading::open(input, options)?;
        let has_more = match self.compare(source, &summary, origin, &mut reading, &|_| {})? {
            Compared::Beginning => reading.line_onto(&mut Vec::new())?.is_some(),
            Compared::Completed => true,
            Compared::Unfinished => false,
            Compared::Differs(_) => return Ok(false),
        };
        // Of a file that is still there, no other one is how it goes on.
        let is_there = |path: &String| fs::exists(path).unwrap_or(true);
        Ok(!(has_more && origin.path.as_ref().is_some_and(is_there)))
    }

    /// Whether a file begins with the first record of a run. Most that do not differ here.
    fn has_first(&self, source: &Source, input: &Input) -> Result<bool, FileError> {
        let Some(first) = self.trace(source.ids().into())?.next().transpose()? else {
            return Ok(true);
        };
        Ok(first.kind() == Some(ENVELOPE) || input.begins_with(first.payload()))
    }

    /// Whether the stored records are the first lines of the file. What the lines say is read in
    /// any case.
    fn compare(
        &self,
        source: &Source,
        summary: &RunSummary,
        origin: &Origin,
        reading: &mut Reading,
        progress: &dyn Fn(u64),
    ) -> Result<Compared, FileError> {
        let survey = &reading.survey;
        let is_same = origin.bytes == Some(survey.bytes)
            && origin.digest.as_ref() == Some(&survey.digest)
            && origin.records == Some(summary.records);
        if is_same {
            let mut line = Vec::new();
            while reading.line_onto(&mut line)?.is_some() {
                progress(line.len() as u64 + 1);
                line.clear();
            }
            return Ok(Compared::Beginning);
        }
        compare(self.trace(source.ids().into())?, reading, progress)
    }

    /// What is told of a file that was read to its end.
    fn done(
        &self,
        source: &Source,
        format: Format,
        how: How,
        reading: Reading,
    ) -> Result<Imported, FileError> {
        let mark = if self.follows { reading.mark(format)? } else { None };
        let status = match how {
            How::Imported | How::Replaced => {
                self.status_of(&reading).unwrap_or(RunStatus::InProgress)
            }
            How::Continued | How::AlreadyThere => self.status(source)?,
        };
        let seen = reading.seen;
        Ok(Imported {
            how,
            format,
            status,
            records: seen.lines,
            bytes: seen.bytes,
            damaged: seen.damaged,
            damaged_count: seen.damaged_count,
            unread: Vec::new(),
            mark,
        })
    }
}

/// Appends the batch and the rest of the file.
fn append(
    to: Target<'_>,
    reading: &mut Reading,
    batch: &mut Batch,
    start: Timestamp,
    progress: &dyn Fn(u64),
) -> Result<(), FileError> {
    while !batch.is_empty() {
        batch.append(to)?;
        progress(batch.bytes.len() as u64);
        reading.fill(batch, Some(start))?;
    }
    Ok(())
}

fn compare(
    mut trace: Trace,
    reading: &mut Reading,
    progress: &dyn Fn(u64),
) -> Result<Compared, FileError> {
    let mut line = Vec::new();
    while let Some(record) = trace.next() {
        let record = record?;
        line.clear();
        let number = reading.seen.lines + 1;
        let had_no_end = record.kind() == Some(UNTERMINATED);
        let Some((_, ending)) = reading.line_onto(&mut line)? else {
            let is_tail = reading.tail().is_some_and(|tail| tail.starts_with(record.payload()));
            let is_unfinished = had_no_end && is_tail && trace.next().is_none();
            return Ok(if is_unfinished {
                Compared::Unfinished
            } else {
                Compared::Differs(number)
            });
        };
        let has_end = ending == Ending::Newline;
        if is_of_line(record.kind(), record.payload(), &line) && had_no_end != has_end {
            progress(line.len() as u64 + 1);
            continue;
        }
        let goes_on = had_no_end && line.starts_with(record.payload()) && trace.next().is_none();
        return Ok(if goes_on { Compared::Completed } else { Compared::Differs(number) });
    }
    Ok(Compared::Beginning)
}
