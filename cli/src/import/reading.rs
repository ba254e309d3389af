//! A file that is being read line by line, and what its lines have said so far.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use runlog::Timestamp;
use runlog_stores::json_lines::{Ending, LinesError, UNTERMINATED};
use sha2::{Digest as _, Sha256};

use crate::formats::Format;
use crate::formats::encoding::Encoding;
use crate::formats::envelope::{self, ENVELOPE};
use crate::formats::line::{Line, RAW};
use crate::formats::origin::{digest, digest_text};

use super::batch::Batch;
use super::done::{Mark, Seen};
use super::input::{FileLines, Input};
use super::refusal::FileError;

/// How many damaged lines of one file are remembered by number; all are counted.
const DAMAGED_KEPT: usize = 1000;

/// How many bytes in front of a mark must still be there.
const CHECKED: usize = 4096;

/// A file that is being read, and what was seen of it so far.
#[derive(Debug)]
pub(crate) struct Reading {
    lines: FileLines,
    /// The same file, for looks elsewhere.
    file: File,
    options: Options,
    /// When the file was last written: the time of lines in front of the first that gives one.
    pub(crate) modified: Timestamp,
    /// What a look at the whole file has found.
    pub(crate) survey: Survey,
    pub(crate) encoding: Encoding,
    /// Whether its lines are at the same offsets in the file.
    is_as_it_lies: bool,
    pub(crate) seen: Seen,
    /// The last line, which is not taken because it has no end.
    tail: Option<Vec<u8>>,
}

/// How a file is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Its lines are text.
    pub(crate) is_text: bool,
    /// A last line without an end is left where it is, because more of it is to come.
    pub(crate) holds_tail: bool,
}

/// What a file is made of.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    pub(crate) digest: String,
}

impl Reading {
    /// Opens a file whose lines are records, as far as it goes by now, and looks at all of it: no
    /// line may be too long.
    pub(crate) fn open(input: Input, options: Options) -> Result<Self, FileError> {
        let (modified, encoding) = (input.modified, input.encoding);
        let known = input.whole().map(|bytes| Survey::of(bytes, options, encoding));
        let is_as_it_lies = input.is_as_it_lies();
        let (lines, file) = input.into_lines()?;
        let new = Self::new(lines, file, options, modified);
        let mut reading = Self { encoding, is_as_it_lies, ..new };
        reading.survey = known.map_or_else(|| reading.look(), Ok)?;
        Ok(reading)
    }

    fn new(lines: FileLines, file: File, options: Options, modified: Timestamp) -> Self {
        let (encoding, seen, survey) = (Encoding::Utf8, Seen::default(), Survey::default());
        let (is_as_it_lies, tail) = (true, None);
        Self { lines, file, options, modified, survey, encoding, is_as_it_lies, seen, tail }
    }

    /// Goes on behind a mark with what the file has got since; `None` if it is not what it was.
    pub(crate) fn resume(
        mut file: File,
        options: Options,
        mark: &Mark,
    ) -> Result<Option<Self>, FileError> {
        let metadata = file.metadata()?;
        let (modified, len) = (Timestamp::from(metadata.modified()?), metadata.len());
        let Some(more) = len.checked_sub(mark.seen.offset) else {
            return Ok(None);
        };
        if before(&file, mark.seen.offset)? != mark.before {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(mark.seen.offset))?;
        // A line that is too long is found in the middle of it; what is in front of it is kept.
        let lines = FileLines::new(Box::new(file.try_clone()?), more);
        let seen = mark.seen.clone();
        Ok(Some(Self { seen, ..Self::new(lines, file, options, modified) }))
    }

    /// Where to go on later, if the file is read to its end; `None` if it has to be read whole.
    pub(crate) fn mark(&self, format: Format) -> Result<Option<Mark>, FileError> {
        if !self.is_as_it_lies {
            return Ok(None);
        }
        let seen = Seen { damaged: Vec::new(), damaged_count: 0, ..self.seen.clone() };
        Ok(Some(Mark { format, before: before(&self.file, seen.offset)?, seen }))
    }

    /// Goes back to the first line.
    pub(crate) fn rewind(&mut self) -> Result<(), LinesError> {
        (self.seen, self.tail) = (Seen::default(), None);
        self.lines.rewind()
    }

    /// The file to its end, and back to its beginning.
    fn look(&mut self) -> Result<Survey, LinesError> {
        let (mut hash, mut survey) = (Sha256::new(), Survey::default());
        let mut line = Vec::new();
        while let Some(ending) = self.lines.read_onto(&mut line)? {
            if ending == Ending::Newline {
                line.push(b'\n');
            } else if self.options.holds_tail {
                break;
            }
            hash.update(&line);
            survey.bytes += line.len() as u64;
            survey.lines += 1;
            line.clear();
        }
        self.lines.rewind()?;
        survey.digest = digest_text(&hash.finalize());
        Ok(survey)
    }

    /// Appends the next line to the buffer and says what it is.
    pub(crate) fn line_onto(
        &mut self,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<(Line, Ending)>, LinesError> {
        let start = buffer.len();
        let Some(ending) = self.lines.read_onto(buffer)? else {
            return Ok(None);
        };
        if ending == Ending::EndOfFile && self.options.holds_tail {
            self.tail = Some(buffer.split_off(start));
            return Ok(None);
        }
        let bytes = buffer.get(start..).unwrap_or_default();
        let line = if self.options.is_text { Line::text(bytes) } else { Line::new(bytes) };
        let seen = &mut self.seen;
        seen.lines += 1;
        seen.bytes += bytes.len() as u64;
        seen.offset += bytes.len() as u64 + u64::from(ending == Ending::Newline);
        seen.first_time = seen.first_time.or(line.at);
        seen.last_time = line.at.or(seen.last_time);
        seen.end = line.end.or(seen.end.filter(|_| !line.goes_on));
        if let Some(damage) = line.damage {
            seen.damaged_count += 1;
            if seen.damaged.len() < DAMAGED_KEPT {
                seen.damaged.push((seen.lines, damage));
            }
        }
        Ok(Some((line, ending)))
    }

    /// The last line, if it has no end and was not taken.
    pub(crate) fn tail(&self) -> Option<&[u8]> {
        self.tail.as_deref()
    }

    /// Replaces what is in the batch by the next lines. `start` is the time of lines in front of
    /// the first one that gives a time; without it, that is the first time of these lines.
    pub(crate) fn fill(
        &mut self,
        batch: &mut Batch,
        start: Option<Timestamp>,
    ) -> Result<(), LinesError> {
        batch.clear();
        let mut at = self.seen.last_time.or(start);
        let mut lines = Vec::new();
        while !batch.is_full(lines.len()) {
            let from = batch.bytes.len();
            let Some((line, ending)) = self.line_onto(&mut batch.bytes)? else {
                break;
            };
            let payload = self.opened(batch.bytes.get(from..).unwrap_or_default(), ending);
            let (line, is_opened) = match payload {
                Some(payload) => {
                    batch.bytes.truncate(from);
                    batch.bytes.extend_from_slice(&payload);
                    (Line::text(&payload), true)
                }
                None => (line, false),
            };
            let given = if is_opened { Some(ENVELOPE) } else { given_kind(&line, ending) };
            lines.push((from..batch.bytes.len(), line, given));
        }
        let first = lines.iter().find_map(|(_, line, _)| line.at);
        for (range, line, given) in lines {
            let content_type = line.content_type();
            at = line.at.or(at);
            let kind = given.map(str::to_owned).or(line.kind);
            batch.add(range, kind, content_type, at.or(first).unwrap_or(self.modified));
        }
        Ok(())
    }

    /// The payload in a line that is its envelope.
    fn opened(&self, line: &[u8], ending: Ending) -> Option<Vec<u8>> {
        let may_be = !self.options.is_text && ending == Ending::Newline;
        may_be.then(|| envelope::open(line))?
    }
}

/// The kind that a line has whatever it calls itself.
fn given_kind(line: &Line, ending: Ending) -> Option<&'static str> {
    match (ending, line.damage) {
        (Ending::EndOfFile, _) => Some(UNTERMINATED),
        (Ending::Newline, Some(_)) => Some(RAW),
        (Ending::Newline, None) => None,
    }
}

impl Survey {
    /// Of a file that is in memory, and was written in this encoding.
    fn of(bytes: &[u8], options: Options, encoding: Encoding) -> Self {
        let newlines = count_newlines(bytes);
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let has_tail = end < bytes.len() && !options.holds_tail;
        let bytes = if has_tail { bytes } else { bytes.get(..end).unwrap_or_default() };
        let lines = newlines + u64::from(has_tail);
        let bytes = encoding.encode(bytes);
        Self { bytes: bytes.len() as u64, lines, digest: digest(&bytes) }
    }
}

/// How many newlines there are, counted many at a time.
fn count_newlines(bytes: &[u8]) -> u64 {
    let in_chunk = |chunk: &[u8]| chunk.iter().map(|byte| u8::from(*byte == b'\n')).sum::<u8>();
    bytes.chunks(u8::MAX.into()).map(|chunk| u64::from(in_chunk(chunk))).sum()
}

/// Whether a record is what a line becomes.
pub(crate) fn is_of_line(kind: Option<&str>, payload: &[u8], line: &[u8]) -> bool {
    if kind == Some(ENVELOPE) { envelope::is_of(line, payload) } else { payload == line }
}

/// The digest of the last bytes in front of a place.
fn before(file: &File, offset: u64) -> io::Result<String> {
    let len = usize::try_from(offset).map_or(CHECKED, |offset| offset.min(CHECKED));
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset - len as u64)?;
    Ok(digest(&bytes))
}
