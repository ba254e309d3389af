//! The lines of a file, and what those that were read have said.

use std::borrow::Cow;
use std::fs::File;
use std::io;

use memchr::memchr;
use runlog_stores::json_lines::{Ending, Lines, LinesError, MAX_LINE, UNTERMINATED};
use sha2::{Digest as _, Sha256};

use crate::formats::Format;
use crate::formats::encoding::Encoding;
use crate::formats::envelope::{self, ENVELOPE};
use crate::formats::line::{Line, RAW};
use crate::formats::origin::{digest, digest_text};

use super::done::{Mark, Seen};
use super::feed::Item;
use super::input::{Text, read, seek};

/// How many damaged lines of one file are remembered by number; all are counted.
const DAMAGED_KEPT: usize = 1000;

/// How many bytes before a mark must still be there.
pub(crate) const CHECKED: usize = 4096;

/// How many lines are read at most to find the first time, and how many bytes.
const AHEAD: usize = 256;
const AHEAD_BYTES: u64 = 16 << 20;

/// The lines of a file, or of its end.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    rest: Rest<'a>,
    /// The next line, once it was looked at.
    next: Option<Bytes<'a>>,
    options: Options,
    pub(crate) seen: Seen,
    /// Of the lines of a file on the disk, which may be others in another reading.
    hash: Option<Sha256>,
    /// The last bytes of the lines that were read, if more may come.
    pub(crate) before: Vec<u8>,
}

/// The lines that are not read.
#[derive(Debug)]
enum Rest<'a> {
    InMemory(&'a [u8]),
    OnDisk(Lines<&'a File>),
}

/// The bytes of a line, and whether it has an end.
type Bytes<'a> = (Cow<'a, [u8]>, bool);

/// How a file is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Its lines are text.
    pub(crate) is_text: bool,
    /// A last line without an end is left where it is, because more of it is to come.
    pub(crate) holds_tail: bool,
}

impl<'a> Reading<'a> {
    /// The lines from the first one on.
    pub(crate) fn new(text: &'a Text, options: Options) -> io::Result<Self> {
        let (rest, hash) = match text {
            Text::InMemory(bytes) => (Rest::InMemory(bytes), None),
            Text::OnDisk(file, from, len) => {
                // The digest of a file is also that of its byte order mark.
                let mark = Encoding::Utf8Mark.mark().len() as u64;
                let hash = Sha256::new_with_prefix(read(file, 0, mark.min(*from))?);
                (Rest::OnDisk(Lines::new(seek(file, *from)?, *len)), Some(hash))
            }
        };
        let (next, seen, before) = (None, Seen::default(), Vec::new());
        Ok(Self { rest, next, options, seen, hash, before })
    }

    /// Reads all lines, but not what they say.
    pub(crate) fn survey(mut self) -> Result<Self, LinesError> {
        while self.line()?.is_some() {}
        Ok(self)
    }

    /// The digest of the lines that were read, if the file is on the disk.
    pub(crate) fn digest(&self) -> Option<String> {
        self.hash.clone().map(|hash| digest_text(&hash.finalize()))
    }

    /// Reads lines until one gives a time, if none did before.
    pub(crate) fn ahead(&mut self) -> Result<Vec<Item<'a>>, LinesError> {
        let (mut items, most) = (Vec::new(), self.seen.bytes + AHEAD_BYTES);
        while self.seen.first_time.is_none() && items.len() < AHEAD && self.seen.bytes < most {
            let Some(item) = self.item()? else { break };
            items.push(item);
        }
        Ok(items)
    }

    /// Where to continue later, now that all lines are read.
    pub(crate) fn mark(&self, format: Format) -> Mark {
        let seen = Seen { damaged: Vec::new(), damaged_count: 0, ..self.seen.clone() };
        Mark { format, before: digest(last(&self.before)), seen }
    }

    /// The next line, also one that is left where it is.
    pub(crate) fn peek(&mut self) -> Result<Option<&Bytes<'a>>, LinesError> {
        if self.next.is_none() {
            let too_long = LinesError::TooLong { line: self.seen.records + 1 };
            self.next = match self.rest.line() {
                Err(LinesError::TooLong { .. }) => return Err(too_long),
                Ok(Some((line, _))) if line.len() as u64 > MAX_LINE => return Err(too_long),
                line => line?,
            };
        }
        Ok(self.next.as_ref())
    }

    /// Takes the next line.
    fn line(&mut self) -> Result<Option<Bytes<'a>>, LinesError> {
        let holds_tail = self.options.holds_tail;
        if self.peek()?.is_some_and(|(_, has_end)| !has_end && holds_tail) {
            return Ok(None);
        }
        let Some((line, has_end)) = self.next.take() else { return Ok(None) };
        self.seen.records += 1;
        self.seen.bytes += line.len() as u64;
        let end: &[u8] = if has_end { b"\n" } else { b"" };
        if let Some(hash) = &mut self.hash {
            hash.update(&line);
            hash.update(end);
        }
        if holds_tail {
            self.before.extend([last(&line), end].concat());
            self.before.drain(..self.before.len().saturating_sub(CHECKED));
        }
        Ok(Some((line, has_end)))
    }

    /// Takes the next line as a record.
    pub(crate) fn item(&mut self) -> Result<Option<Item<'a>>, LinesError> {
        let Some((bytes, has_end)) = self.line()? else { return Ok(None) };
        let is_text = self.options.is_text;
        let line = if is_text { Line::text(&bytes) } else { Line::new(&bytes) };
        self.seen.take(&line);
        let may_be_opened = has_end && !is_text;
        if let Some(payload) = may_be_opened.then(|| envelope::open(&bytes)).flatten() {
            let content = Line::text(&payload).content_type();
            let kind = Some(ENVELOPE.to_owned());
            return Ok(Some(Item { payload: Cow::Owned(payload), kind, content, at: None }));
        }
        // These kinds come before the one that the line gives.
        let given = match (has_end, line.damage) {
            (false, _) => Some(UNTERMINATED),
            (true, Some(_)) => Some(RAW),
            (true, None) => None,
        };
        let (content, at) = (line.content_type(), line.at);
        let kind = given.map(str::to_owned).or(line.kind);
        Ok(Some(Item { payload: bytes, kind, content, at }))
    }
}

impl<'a> Rest<'a> {
    fn line(&mut self) -> Result<Option<Bytes<'a>>, LinesError> {
        match self {
            Self::InMemory(rest) => {
                let all: &'a [u8] = rest;
                let end = memchr(b'\n', all);
                let line = all.get(..end.unwrap_or(all.len())).unwrap_or_default();
                *rest = end.and_then(|end| all.get(end + 1..)).unwrap_or_default();
                Ok((!all.is_empty()).then_some((Cow::Borrowed(line), end.is_some())))
            }
            Self::OnDisk(lines) => {
                let mut line = Vec::new();
                let ending = lines.read_onto(&mut line)?;
                Ok(ending.map(|ending| (Cow::Owned(line), ending == Ending::Newline)))
            }
        }
    }
}

/// The bytes at the end of these that are checked before more is read.
fn last(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(CHECKED)..).unwrap_or_default()
}

impl Seen {
    fn take(&mut self, line: &Line) {
        self.first_time = self.first_time.or(line.at);
        self.last_time = line.at.or(self.last_time);
        self.end = line.end.or(self.end.filter(|_| !line.goes_on));
        if let Some(damage) = line.damage {
            self.damaged_count += 1;
            if self.damaged.len() < DAMAGED_KEPT {
                self.damaged.push((self.records, damage));
            }
        }
    }
}
