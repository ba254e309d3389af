//! The lines of a file, and what those that were read have said.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter};
use runlog_stores::json_lines::{LinesError, MAX_LINE, UNTERMINATED};

use crate::formats::Format;
use crate::formats::envelope::{self, ENVELOPE};
use crate::formats::line::{Line, RAW};
use crate::formats::origin::digest;

use super::done::{Mark, Seen};
use super::feed::Item;

/// How many damaged lines of one file are remembered by number; all are counted.
const DAMAGED_KEPT: usize = 1000;

/// How many bytes before a mark must still be there.
pub(crate) const CHECKED: usize = 4096;

/// How many lines are read at most to find the first time.
const AHEAD: usize = 256;

/// The lines of a file, or of its end.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    bytes: &'a [u8],
    /// Where the next line begins in them.
    at: usize,
    options: Options,
    pub(crate) seen: Seen,
}

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
    pub(crate) fn new(bytes: &'a [u8], options: Options) -> Self {
        Self { bytes, at: 0, options, seen: Seen::default() }
    }

    /// The lines from a place on, where a mark says what those before it have said.
    pub(crate) fn resume(bytes: &'a [u8], at: usize, options: Options, seen: Seen) -> Self {
        Self { bytes, at, options, seen }
    }

    /// The bytes that are not read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// How many lines are left, and how many bytes they have with their ends.
    pub(crate) fn survey(&self) -> Result<(u64, usize), LinesError> {
        let rest = self.rest();
        let (mut lines, mut start) = (0, 0);
        for end in memchr_iter(b'\n', rest).chain([rest.len()]) {
            if (end - start) as u64 > MAX_LINE {
                return Err(LinesError::TooLong { line: self.seen.records + lines + 1 });
            }
            if end < rest.len() {
                (lines, start) = (lines + 1, end + 1);
            }
        }
        let has_tail = start < rest.len() && !self.options.holds_tail;
        Ok(if has_tail { (lines + 1, rest.len()) } else { (lines, start) })
    }

    /// Reads lines until one gives a time, if none did before.
    pub(crate) fn ahead(&mut self) -> Vec<Item<'a>> {
        let mut items = Vec::new();
        while self.seen.first_time.is_none() && items.len() < AHEAD {
            let Some(item) = self.next() else { break };
            items.push(item);
        }
        items
    }

    /// Where to continue later, now that all lines are read.
    pub(crate) fn mark(&self, format: Format) -> Mark {
        let seen = Seen { damaged: Vec::new(), damaged_count: 0, ..self.seen.clone() };
        let before = self.bytes.get(self.at.saturating_sub(CHECKED)..self.at);
        Mark { format, before: digest(before.unwrap_or_default()), seen }
    }
}

impl<'a> Iterator for Reading<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        let rest = self.rest();
        let end = memchr(b'\n', rest);
        if rest.is_empty() || end.is_none() && self.options.holds_tail {
            return None;
        }
        let bytes = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        self.at += bytes.len() + usize::from(end.is_some());
        let is_text = self.options.is_text;
        let line = if is_text { Line::text(bytes) } else { Line::new(bytes) };
        self.seen.take(&line, bytes.len());
        let may_be_opened = end.is_some() && !is_text;
        if let Some(payload) = may_be_opened.then(|| envelope::open(bytes)).flatten() {
            let content = Line::text(&payload).content_type();
            let kind = Some(ENVELOPE.to_owned());
            return Some(Item { payload: Cow::Owned(payload), kind, content, at: None });
        }
        // These kinds come before the one that the line gives.
        let given = match (end, line.damage) {
            (None, _) => Some(UNTERMINATED),
            (Some(_), Some(_)) => Some(RAW),
            (Some(_), None) => None,
        };
        let (content, at) = (line.content_type(), line.at);
        let kind = given.map(str::to_owned).or(line.kind);
        Some(Item { payload: Cow::Borrowed(bytes), kind, content, at })
    }
}

impl Seen {
    fn take(&mut self, line: &Line, len: usize) {
        self.records += 1;
        self.bytes += len as u64;
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
