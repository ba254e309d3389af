//! A file of lines into a run, and what a file that grew adds to it.
//!
//! | the run | and the file | then |
//! |---|---|---|
//! | is not there | | it is imported |
//! | has all lines | | is already there |
//! | has the first lines, and has not ended | has more | they are appended |
//! | has the first lines, and no time from them | has more, and a time | the run is replaced |
//! | has the first lines, and its file says that it ended | has more | the run is replaced |
//! | has the first lines, and was ended by hand or by `--end` | has more | they are late records |
//! | ends in a line without an end, not ended by hand | has more of it | the run is replaced |
//! | has other lines | | is a change: an error, or with `--replace` the run is replaced |
//!
//! So a run in progress is always what its file was, to the byte.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};

use runlog::{Allow, Outcome, RunSummary, Timestamp, Trace};
use runlog_stores::json_lines::UNTERMINATED;

use crate::formats::envelope::ENVELOPE;
use crate::formats::origin::{Origin, digest};
use crate::formats::{Format, Layout};

use super::done::{Done, How, Imported, Mark};
use super::feed::{Feed, Item};
use super::file::{Importer, waits};
use super::input::{Input, Text, read};
use super::reading::{CHECKED, Options, Reading};
use super::refusal::FileError;
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
    /// When the file was last written: the time of lines that come before the first time.
    modified: Timestamp,
    /// All lines, without what they say.
    survey: Reading<'a>,
    reading: Reading<'a>,
}

impl Importer<'_> {
    /// Imports a file of lines.
    pub(crate) fn lines(
        &self,
        source: &Source,
        input: &Input,
        format: Format,
    ) -> Result<Done, FileError> {
        let (text, modified, options) = (&input.text, input.modified, self.options(format));
        let survey = Reading::new(text, options)?.survey()?;
        let (lines, len) = (survey.seen.records, survey.seen.bytes + survey.seen.records);
        let origin =
            |bytes: &[u8]| source.origin((format, Layout::Lines), input.encoding, bytes, lines);
        // The last line may have no end.
        let origin = match text {
            Text::InMemory(bytes) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                origin(bytes.get(..len).unwrap_or(bytes))
            }
            Text::OnDisk(_, from, _) => {
                let bytes = Some((from + len).min(input.len));
                Origin { bytes, digest: survey.digest(), ..origin(b"") }
            }
        };
        let reading = Reading::new(text, options)?;
        let mut file = LinesFile { importer: self, source, format, modified, survey, reading };
        let how = match self.existing(source)? {
            None if self.args.follow && lines == 0 => return Ok(waits()),
            None => {
                file.add(&origin, None)?;
                How::Imported
            }
            Some((summary, stored)) => match file.go_on(&summary, &stored, &origin)? {
                Some(how) => how,
                None => {
                    file.reading = Reading::new(text, options)?;
                    file.add(&origin, Some(&summary))?;
                    How::Replaced
                }
            },
        };
        let is_marked = self.args.follow && input.is_as_it_lies();
        file.done(how, is_marked)
    }

    /// Imports what a file that is followed has got since; `None` if it has to be read whole.
    pub(crate) fn resume(
        &self,
        source: &Source,
        (file, metadata): (&File, &Metadata),
        mark: &Mark,
    ) -> Result<Option<Done>, FileError> {
        let (from, checked) = (mark.offset(), mark.offset().min(CHECKED as u64));
        let Some(len) = metadata.len().checked_sub(from) else {
            return Ok(None);
        };
        let before = read(file, from - checked, checked)?;
        if digest(&before) != mark.before {
            return Ok(None);
        }
        let Some((summary, _)) = self.existing(source)? else {
            return Ok(None);
        };
        // Another program may have appended to it, or it has ended.
        if summary.records != mark.seen.records || summary.status.is_ended() {
            return Ok(None);
        }
        let (format, modified) = (mark.format, metadata.modified()?.into());
        let text = Text::new(file, (from, len), self.in_memory)?;
        let reading = || -> io::Result<_> {
            let mut reading = Reading::new(&text, self.options(format))?;
            (reading.seen, reading.before) = (mark.seen.clone(), before.clone());
            Ok(reading)
        };
        let (survey, reading) = (reading()?.survey()?, reading()?);
        let mut file = LinesFile { importer: self, source, format, modified, survey, reading };
        let how = file.rest(&summary)?;
        how.map(|how| file.done(how, true)).transpose()
    }

    /// How files of a format are read.
    fn options(&self, format: Format) -> Options {
        Options { is_text: format == Format::Text, holds_tail: self.args.follow }
    }

    /// Whether a run is that of a file which has its ids: whether the file begins with its records.
    pub(crate) fn is_run_of(&self, source: &Source, origin: &Origin) -> Result<bool, FileError> {
        let (file, _) = source.location.file()?;
        let input = Input::new(&file, &source.file_name(), self.in_memory)?;
        let format = origin.format.unwrap_or(Format::JsonLines);
        let summary = self.run(source.ids().into())?;
        if origin.layout != Layout::Lines {
            let latest = self.latest(&summary, origin.clone())?;
            let mut bytes = Vec::new();
            if latest.bytes == Some(input.len) {
                input.open()?.read_to_end(&mut bytes)?;
            }
            let own = source.origin((format, origin.layout), input.encoding, &bytes, 0);
            return Ok((latest.bytes, latest.digest) == (own.bytes, own.digest));
        }
        if summary.records == 0 && origin.path.is_some() {
            return Ok(input.len == 0);
        }
        if origin.bytes > Some(input.len) {
            return Ok(false);
        }
        let mut reading = Reading::new(&input.text, self.options(format))?;
        let has_more = match compare(self.trace(source.ids().into())?, &mut reading)? {
            Compared::Beginning => reading.item()?.is_some(),
            Compared::Completed => true,
            Compared::Unfinished => false,
            Compared::Differs(_) => return Ok(false),
        };
        // Of a file that is still there, no other one is how it goes on.
        let is_there = |path: &String| fs::exists(path).unwrap_or(true);
        Ok(!(has_more && origin.path.as_ref().is_some_and(is_there)))
    }
}

impl<'a> LinesFile<'a> {
    /// Imports the file as a new run, or in the place of an old one.
    fn add(&mut self, origin: &Origin, old: Option<&RunSummary>) -> Result<(), FileError> {
        let ahead = self.reading.ahead()?;
        let start = self.reading.seen.first_time.unwrap_or(self.modified);
        let (importer, source) = (self.importer, self.source);
        let fill = |ids: (&str, &str)| {
            self.append(ids, Allow::nothing(), ahead, start)?;
            self.check()?;
            self.end(ids)
        };
        match old {
            None => importer.start(source.ids(), &origin.to_json(), start, fill),
            Some(old) => importer.replace(old, origin, start, fill),
        }
    }

    /// Compares a run with its file and appends what is missing; `None` if the run has to be
    /// replaced.
    fn go_on(
        &mut self,
        summary: &RunSummary,
        stored: &Origin,
        origin: &Origin,
    ) -> Result<Option<How>, FileError> {
        let mut line = None;
        if stored.layout == Layout::Lines {
            let is_same = (stored.bytes, &stored.digest) == (origin.bytes, &origin.digest)
                && stored.records == Some(summary.records);
            let compared = if is_same {
                // The lines are read in any case, since they say how the run ended.
                while self.reading.item()?.is_some() {}
                Compared::Beginning
            } else {
                compare(self.importer.trace(self.source.ids().into())?, &mut self.reading)?
            };
            let is_of_file = !summary.status.is_ended() || self.reading.seen.end.is_some();
            line = match compared {
                Compared::Beginning => return self.rest(summary),
                Compared::Unfinished => return Ok(Some(How::AlreadyThere)),
                // A run that the user ended stays as it is.
                Compared::Completed if is_of_file => return Ok(None),
                Compared::Completed => Some(self.reading.seen.records),
                Compared::Differs(line) => Some(line),
            };
        }
        if self.importer.args.replace {
            return Ok(None);
        }
        Err(FileError::differs(self.source.ids(), line.map(|line| ("line", line))))
    }

    /// Appends the lines that the run does not have; `None` if the run has to be replaced.
    fn rest(&mut self, summary: &RunSummary) -> Result<Option<How>, FileError> {
        let has_ended = summary.status.is_ended();
        let has_more = self.reading.seen.records < self.survey.seen.records;
        if has_more {
            let said_its_end = has_ended && self.reading.seen.end.is_some();
            let at = self.reading.seen.last_time.unwrap_or(summary.started_at);
            let ahead = self.reading.ahead()?;
            // A run starts at the first time that its file gives.
            let starts_elsewhere = !has_ended && ahead.iter().any(|item| item.at.is_some());
            if said_its_end || starts_elsewhere {
                return Ok(None);
            }
            let allow = Allow::nothing().after_end(has_ended);
            self.append(self.source.ids(), allow, ahead, at)?;
        }
        self.check()?;
        let ends = !has_ended && self.outcome().is_some();
        if ends {
            self.end(self.source.ids())?;
        }
        Ok(Some(if has_more || ends { How::Continued } else { How::AlreadyThere }))
    }

    /// Appends lines that were read ahead, and all that are left.
    fn append(
        &mut self,
        ids: (&str, &str),
        allow: Allow,
        ahead: Vec<Item<'a>>,
        at: Timestamp,
    ) -> Result<(), FileError> {
        let mut feed = Feed::new(self.importer, ids, allow, at);
        ahead.into_iter().try_for_each(|item| feed.take(item))?;
        while let Some(item) = self.reading.item()? {
            feed.take(item)?;
        }
        feed.flush()
    }

    /// Whether all lines were read, as the survey found them.
    fn check(&self) -> Result<(), FileError> {
        if self.reading.digest() == self.survey.digest() {
            return Ok(());
        }
        Err(FileError::not_yet("the file changed while it was read"))
    }

    /// How the run ends, if its lines say so, or the user does.
    fn outcome(&self) -> Option<Outcome> {
        let seen = &self.reading.seen;
        self.importer.outcome_of(seen.end, seen.last_time.unwrap_or(self.modified))
    }

    /// Ends the run then.
    fn end(&self, ids: (&str, &str)) -> Result<(), FileError> {
        self.outcome().map_or(Ok(()), |end| self.importer.end_run(ids, &end))
    }

    /// The result for a file that was read to its end.
    fn done(self, how: How, is_marked: bool) -> Result<Done, FileError> {
        let mark = is_marked.then(|| self.reading.mark(self.format));
        let status = self.importer.status(self.source, how, self.outcome().as_ref())?;
        let (format, seen) = (self.format, self.reading.seen);
        let done = Imported { how, format, status, seen, unread: Vec::new(), mark };
        Ok(Done::Run(Box::new(done)))
    }
}

/// Whether the stored records are the first lines of a file.
fn compare(mut trace: Trace, reading: &mut Reading<'_>) -> Result<Compared, FileError> {
    // Two kinds make a record another one than its payload does.
    let is_kind = |kind: Option<&str>, one: &str| kind == Some(one);
    while let Some(record) = trace.next() {
        let record = record?;
        let (kind, payload) = (record.kind(), record.payload());
        let number = reading.seen.records + 1;
        let has_no_end = is_kind(kind, UNTERMINATED);
        let goes_on =
            has_no_end && reading.peek()?.is_some_and(|(line, _)| line.starts_with(payload));
        let item = reading.item()?;
        let own = item.as_ref().and_then(|item| item.kind.as_deref());
        let is_same = item.as_ref().is_some_and(|item| item.payload == payload)
            && [UNTERMINATED, ENVELOPE].iter().all(|one| is_kind(kind, one) == is_kind(own, one));
        if is_same {
            continue;
        }
        return Ok(match item {
            _ if !goes_on || trace.next().is_some() => Compared::Differs(number),
            Some(_) => Compared::Completed,
            None => Compared::Unfinished,
        });
    }
    Ok(Compared::Beginning)
}
