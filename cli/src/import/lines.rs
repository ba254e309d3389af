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
use super::done::{Done, How, Imported, Mark};
use super::file::{Importer, waits};
use super::input::Input;
use super::reading::{Options, Reading, is_of_line};
use super::refusal::{FileError, Problem};
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

/// A file of lines on its way into a run.
struct LinesFile<'a> {
    importer: &'a Importer<'a>,
    source: &'a Source,
    format: Format,
    reading: Reading,
    progress: &'a dyn Fn(u64),
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
        let reading = Reading::open(input, self.options(format))?;
        let mut file = LinesFile { importer: self, source, format, reading, progress };
        let how = match self.existing(source)? {
            None if self.args.follow && file.reading.survey.lines == 0 => return Ok(waits()),
            None => {
                file.add(None)?;
                How::Imported
            }
            Some((summary, origin)) => file.go_on(&summary, &origin)?,
        };
        file.done(how)
    }

    /// Imports what a file that is followed has got since; `None` if it has to be looked at whole.
    pub(crate) fn resume(
        &self,
        source: &Source,
        file: File,
        mark: &Mark,
        progress: &dyn Fn(u64),
    ) -> Result<Option<Done>, FileError> {
        let Some(reading) = Reading::resume(file, self.options(mark.format), mark)? else {
            return Ok(None);
        };
        let Some((summary, _)) = self.existing(source)? else {
            return Ok(None);
        };
        // Another program may have appended to it, or it has ended.
        if summary.records != reading.seen.lines || summary.status.is_ended() {
            return Ok(None);
        }
        let mut file = LinesFile { importer: self, source, format: mark.format, reading, progress };
        let had_time = file.reading.seen.first_time.is_some();
        let mut batch = Batch::default();
        file.reading.fill(&mut batch, Some(summary.started_at))?;
        if batch.is_empty() {
            return Ok(Some(waits()));
        }
        if !had_time && file.reading.seen.first_time.is_some() {
            return Ok(None);
        }
        file.append(self.target(source, Allow::nothing()), batch, summary.started_at)?;
        file.end()?;
        file.done(How::Continued).map(Some)
    }

    /// How files of a format are read.
    fn options(&self, format: Format) -> Options {
        Options { is_text: format == Format::Text, holds_tail: self.args.follow }
    }

    /// Whether a run is that of a file which has its ids: whether the file begins with its records.
    pub(crate) fn is_run_of(&self, source: &Source, origin: &Origin) -> Result<bool, FileError> {
        let (file, metadata) = source.location.file(&mut Opened::default())?;
        let input = Input::new(file, &metadata)?;
        let len = input.unpacked_len;
        let summary = self.run(source.ids().into())?;
        if origin.layout != Layout::Lines {
            let latest = self.latest(&summary, origin.clone())?;
            return Ok(latest.bytes == Some(len) && latest.digest == Some(input.digest()?));
        }
        if summary.records == 0 && origin.path.is_some() {
            return Ok(len == 0);
        }
        if origin.bytes.is_some_and(|bytes| bytes > len) || !self.has_first(source, &input)? {
            return Ok(false);
        }
        let format = origin.format.unwrap_or(Format::JsonLines);
        let reading = Reading::open(input, self.options(format))?;
        let mut file = LinesFile { importer: self, source, format, reading, progress: &|_| {} };
        let has_more = match file.compare(&summary, origin)? {
            Compared::Beginning => file.reading.line_onto(&mut Vec::new())?.is_some(),
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
}

impl LinesFile<'_> {
    /// Imports the file as a new run, or in the place of its run.
    fn add(&mut self, replacement: Option<Replacement<'_>>) -> Result<(), FileError> {
        let mut batch = Batch::default();
        self.reading.fill(&mut batch, None)?;
        let start = self.reading.seen.first_time.unwrap_or(self.reading.modified);
        let survey = &self.reading.survey;
        let origin = Origin {
            encoding: self.reading.encoding,
            bytes: Some(survey.bytes),
            digest: Some(survey.digest.clone()),
            records: Some(survey.lines),
            ..self.source.origin(self.format, Layout::Lines)
        };
        let (importer, ids) = (self.importer, self.source.ids());
        let fill = |to: Target<'_>| {
            self.append(to, batch, start)?;
            self.outcome().map_or(Ok(()), |end| Ok(to.end(&end)?))
        };
        match replacement {
            None => importer.start(ids, &origin.to_json(), start, fill),
            Some(replacement) => importer.replace(replacement, &origin, start, fill),
        }
    }

    /// Compares a run with its file and appends what is missing.
    fn go_on(&mut self, summary: &RunSummary, origin: &Origin) -> Result<How, FileError> {
        let mut line = None;
        if origin.layout == Layout::Lines {
            let compared = self.compare(summary, origin)?;
            let is_of_file = !summary.status.is_ended() || self.reading.seen.end.is_some();
            line = match compared {
                Compared::Beginning => return self.rest(summary),
                Compared::Unfinished => return Ok(How::AlreadyThere),
                // What a user ended stays; what the file ended goes on with it.
                Compared::Completed if is_of_file => return self.import_again(summary, false),
                Compared::Completed => Some(self.reading.seen.lines),
                Compared::Differs(line) => Some(line),
            };
        }
        if self.importer.args.replace {
            return self.import_again(summary, true);
        }
        Err(Problem::Differs(line.map(|line| ("line", line))).of(self.source.ids()))
    }

    /// Appends what is behind the lines that the run has.
    fn rest(&mut self, summary: &RunSummary) -> Result<How, FileError> {
        let said_its_end = self.reading.seen.end.is_some();
        let had_time = self.reading.seen.first_time.is_some();
        let mut batch = Batch::default();
        self.reading.fill(&mut batch, Some(summary.started_at))?;
        let has_more = !batch.is_empty();
        let has_ended = summary.status.is_ended();
        // A run starts at the first time that its file gives.
        let starts_elsewhere = !had_time && self.reading.seen.first_time.is_some();
        let must_replace = if has_ended { said_its_end } else { starts_elsewhere };
        if has_more && must_replace {
            return self.import_again(summary, false);
        }
        let to = self.importer.target(self.source, Allow::nothing().after_end(has_ended));
        self.append(to, batch, summary.started_at)?;
        let ends = !has_ended && self.outcome().is_some();
        if ends {
            self.end()?;
        }
        Ok(if has_more || ends { How::Continued } else { How::AlreadyThere })
    }

    /// Imports the file in the place of its run, which may have what the file has not.
    fn import_again(&mut self, old: &RunSummary, may_lose: bool) -> Result<How, FileError> {
        self.reading.rewind()?;
        self.add(Some(Replacement { old, may_lose }))?;
        Ok(How::Replaced)
    }

    /// Appends the batch and the rest of the file to a run that started then.
    fn append(
        &mut self,
        to: Target<'_>,
        mut batch: Batch,
        start: Timestamp,
    ) -> Result<(), FileError> {
        while !batch.is_empty() {
            batch.append(to)?;
            (self.progress)(batch.bytes.len() as u64);
            self.reading.fill(&mut batch, Some(start))?;
        }
        Ok(())
    }

    /// How the run ends, if its lines say so, or the user does.
    fn outcome(&self) -> Option<Outcome> {
        let seen = &self.reading.seen;
        self.importer.outcome_of(seen.end, seen.last_time.unwrap_or(self.reading.modified))
    }

    /// Ends the run then.
    fn end(&self) -> Result<(), FileError> {
        self.outcome().map_or(Ok(()), |end| self.importer.end_run(self.source.ids(), &end))
    }

    /// Whether the stored records are the first lines of the file. What the lines say is read in
    /// any case.
    fn compare(&mut self, summary: &RunSummary, origin: &Origin) -> Result<Compared, FileError> {
        let survey = &self.reading.survey;
        let is_same = origin.bytes == Some(survey.bytes)
            && origin.digest.as_ref() == Some(&survey.digest)
            && origin.records == Some(summary.records);
        if is_same {
            let mut line = Vec::new();
            while self.reading.line_onto(&mut line)?.is_some() {
                (self.progress)(line.len() as u64 + 1);
                line.clear();
            }
            return Ok(Compared::Beginning);
        }
        let trace = self.importer.trace(self.source.ids().into())?;
        compare(trace, &mut self.reading, self.progress)
    }

    /// What is told of the file, which was read to its end.
    fn done(self, how: How) -> Result<Done, FileError> {
        let mark = if self.importer.args.follow { self.reading.mark(self.format)? } else { None };
        let status = match how {
            How::Imported | How::Replaced => {
                self.outcome().map_or(RunStatus::InProgress, |end| end.status())
            }
            How::Continued | How::AlreadyThere => {
                self.importer.run(self.source.ids().into())?.status
            }
        };
        let seen = self.reading.seen;
        Ok(Done::Run(Imported {
            how,
            format: self.format,
            status,
            records: seen.lines,
            bytes: seen.bytes,
            damaged: seen.damaged,
            damaged_count: seen.damaged_count,
            unread: Vec::new(),
            mark,
        }))
    }
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
