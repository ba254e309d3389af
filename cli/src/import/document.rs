//! A JSON document into a run: its steps, and the parts between them. An archive into a run: its
//! bytes, and then what is compressed in it.
//!
//! A document that grows: its new steps are appended.
//!
//! | the steps of the document | then |
//! |---|---|
//! | begin with those of the run | the others are appended, and how all of them make the document |
//! | differ | is a change: an error, or with `--replace` the run is replaced |
//!
//! [`Revision`] says what the records are.

use std::io::{self, Read as _};

use runlog::{Allow, ContentType, Outcome, RunSummary, Seq, Timestamp};

use crate::formats::documents::split::{Parsed, Shallow, steps};
use crate::formats::documents::{self, series};
use crate::formats::encoding::Encoding;
use crate::formats::json::without_mark;
use crate::formats::line::LineDamage;
use crate::formats::origin::Origin;
use crate::formats::probe::MAX_DOCUMENT;
use crate::formats::revision::{REVISION, Revision};
use crate::formats::{Format, Layout, MEMBER, PART, archive, ends};
use crate::output::size;

use super::done::{Done, How, Imported, Seen};
use super::feed::{Feed, Item};
use super::file::{Importer, waits};
use super::input::Input;
use super::pieces::{MAX_PART, cut};
use super::refusal::FileError;
use super::session_folder::Parts;
use super::tree::Source;

/// The most bytes that are taken out of an archive. A small one may hold what is endless.
const MAX_UNPACKED: u64 = 1 << 30;

/// Takes one record.
type TakeItem<'t> = dyn FnMut(Item<'_>) -> Result<(), FileError> + 't;

/// A file of one document or archive, ready to become a run.
struct Whole<'a> {
    source: &'a Source,
    format: Format,
    origin: Origin,
    bytes: &'a [u8],
    modified: Timestamp,
    parsed: Parsed,
    items: Vec<Item<'a>>,
    /// The first time that a step gives.
    first: Option<Timestamp>,
}

impl Importer<'_> {
    /// Imports a JSON document.
    pub(crate) fn document(
        &self,
        source: &Source,
        input: &Input,
        format: Format,
        text: &str,
    ) -> Result<Done, FileError> {
        let parsed = series::parse(format, text).map_err(io::Error::from)?;
        let (items, join) = cut(text, &parsed.steps, format, (PART, ContentType::JSON));
        let (kind, bytes) = ((format, Layout::Document), text.as_bytes());
        let origin = source.origin(kind, input.encoding, bytes, items.len() as u64);
        let (origin, modified) = (Origin { join, ..origin }, input.modified);
        let first = items.iter().find_map(|item| item.at);
        self.whole(&Whole { source, format, origin, bytes, modified, parsed, items, first })
    }

    /// Imports a session of several files.
    pub(crate) fn session(&self, source: &Source, parts: &Parts) -> Result<Done, FileError> {
        let ((files, modified), format) = (parts.read()?, parts.format);
        self.progress(files.text().len() as u64);
        let (text, parsed) = (files.text(), files.parse(format));
        let (items, join) = cut(text, &parsed.steps, format, (PART, ContentType::TEXT));
        let (kind, bytes) = ((format, Layout::Files), text.as_bytes());
        let origin = source.origin(kind, Encoding::Utf8, bytes, items.len() as u64);
        let origin = Origin { join, ..origin };
        let first = items.iter().find_map(|item| item.at);
        self.whole(&Whole { source, format, origin, bytes, modified, parsed, items, first })
    }

    /// Imports a log of Inspect that is a zip archive.
    pub(crate) fn archive(
        &self,
        source: &Source,
        input: &Input,
        bytes: &[u8],
    ) -> Result<Done, FileError> {
        let (mut parsed, mut first) = (Parsed::default(), None);
        let (format, modified) = (Format::InspectEval, input.modified);
        let item = |bytes| Item::new(bytes, PART, ContentType::BYTES);
        let items: Vec<_> = bytes.chunks(MAX_PART).map(item).collect();
        let mut records = items.len() as u64;
        parsed.unread = members(bytes, &mut |name, text, document| {
            if name == "header.json" {
                parsed.course = documents::course(format, document);
            }
            member_items(text, document, &mut |item| {
                first = first.or(item.at);
                records += 1;
                Ok(())
            })
        })?;
        let origin = source.origin((format, Layout::Archive), Encoding::Utf8, bytes, records);
        self.whole(&Whole { source, format, origin, bytes, modified, parsed, items, first })
    }

    /// Imports a file that is one document or archive.
    fn whole(&self, file: &Whole<'_>) -> Result<Done, FileError> {
        if self.args.follow && file.is_torn() {
            return Ok(waits());
        }
        let how = self.whole_run(file)?;
        let end = self.end_of(file, file.modified);
        let before = |at: usize| file.bytes.get(..at).unwrap_or_default();
        let line = |at: usize| before(at).split(|byte| *byte == b'\n').count() as u64;
        let torn_at = file.parsed.torn_at;
        let seen = Seen {
            records: file.records(),
            bytes: file.bytes.len() as u64,
            damaged: torn_at.into_iter().map(|at| (line(at), LineDamage::Torn)).collect(),
            damaged_count: torn_at.is_some().into(),
            ..Seen::default()
        };
        let status = self.status(file.source, how, end.as_ref())?;
        let (format, unread) = (file.format, file.parsed.unread.clone());
        let done = Imported { how, format, status, seen, unread, mark: None };
        Ok(Done::Run(Box::new(done)))
    }

    fn whole_run(&self, file: &Whole<'_>) -> Result<How, FileError> {
        let (source, origin) = (file.source, &file.origin);
        let Some((summary, stored)) = self.existing(source)? else {
            self.start(source.ids(), &origin.to_json(), file.at(), |ids| self.fill(file, ids))?;
            return Ok(How::Imported);
        };
        let stored = self.latest(&summary, stored)?;
        let is_same = stored.layout == origin.layout
            && (stored.bytes, &stored.digest) == (origin.bytes, &origin.digest);
        if is_same && stored.records == Some(summary.records) {
            let is_ended = self.end_whole(file, &summary)?;
            return Ok(if is_ended { How::Continued } else { How::AlreadyThere });
        }
        // An import that was cut short left a run in progress with a part of the same file.
        let was_cut = is_same && !summary.status.is_ended() && summary.records < file.records();
        let mut from = None;
        if !was_cut && stored.layout == origin.layout && file.steps().next().is_some() {
            let (steps, are_same) = self.compare_steps(file, &summary)?;
            if are_same {
                self.append_steps(file, &summary, steps)?;
                return Ok(How::Continued);
            }
            from = Some(("step", steps as u64 + 1));
        }
        if !was_cut && !self.args.replace {
            return Err(FileError::differs(source.ids(), from));
        }
        self.replace(&summary, origin, file.at(), |ids| self.fill(file, ids))?;
        Ok(if was_cut { How::Imported } else { How::Replaced })
    }

    /// All records of a file, and its end.
    fn fill(&self, file: &Whole<'_>, ids: (&str, &str)) -> Result<(), FileError> {
        let mut feed = Feed::new(self, ids, Allow::nothing(), file.at());
        file.items.iter().try_for_each(|item| feed.take(item.clone()))?;
        if file.origin.layout == Layout::Archive {
            members(file.bytes, &mut |_, text, document| {
                member_items(text, document, &mut |item| feed.take(item.into_owned()))
            })?;
        }
        feed.flush()?;
        self.end_of(file, feed.at).map_or(Ok(()), |end| self.end_run(ids, &end))
    }

    /// How a run ends, if its document says so, or the user does.
    fn end_of(&self, file: &Whole<'_>, last_at: Timestamp) -> Option<Outcome> {
        let course = &file.parsed.course;
        self.outcome_of(course.end, course.ended.unwrap_or(last_at))
    }

    /// Ends a run that has not ended.
    fn end_whole(&self, file: &Whole<'_>, summary: &RunSummary) -> Result<bool, FileError> {
        let end = self.end_of(file, summary.last_at).filter(|_| !summary.status.is_ended());
        end.map_or(Ok(false), |end| self.end_run(file.source.ids(), &end).map(|()| true))
    }

    /// The metadata of a run, with the bytes and the digest of its document as it grew last.
    pub(crate) fn latest(&self, summary: &RunSummary, origin: Origin) -> Result<Origin, FileError> {
        let may_go_on = matches!(origin.layout, Layout::Document | Layout::Files);
        let has_more = origin.records.is_some_and(|first| summary.records > first);
        if !may_go_on || !has_more {
            return Ok(origin);
        }
        let last = Seq(summary.records - 1);
        let record = self.trace(summary.into())?.range(last..)?.next().transpose()?;
        let record = record.filter(|record| record.kind() == Some(REVISION));
        let revision = record.and_then(|record| Revision::of(record.payload()));
        Ok(match revision {
            Some(Revision { bytes, digest, .. }) => Origin {
                bytes: Some(bytes),
                digest: Some(digest),
                records: Some(summary.records),
                ..origin
            },
            None => origin,
        })
    }

    /// How many steps of a run are the first ones of a document, and whether all are.
    fn compare_steps(
        &self,
        file: &Whole<'_>,
        summary: &RunSummary,
    ) -> Result<(usize, bool), FileError> {
        let (mut own, mut steps) = (file.steps(), 0);
        for record in self.trace(summary.into())? {
            let record = record?;
            if record.kind().is_some_and(|kind| [PART, REVISION].contains(&kind)) {
                continue;
            }
            if own.next().is_none_or(|item| item.payload != record.payload()) {
                return Ok((steps, false));
            }
            steps += 1;
        }
        Ok((steps, true))
    }

    /// Appends the steps of the document beyond these to its run, and the record that says how all
    /// steps make the document.
    fn append_steps(
        &self,
        file: &Whole<'_>,
        summary: &RunSummary,
        steps: usize,
    ) -> Result<(), FileError> {
        let allow = Allow::nothing().after_end(summary.status.is_ended());
        let mut feed = Feed::new(self, file.source.ids(), allow, summary.last_at);
        let (mut parts, mut count) = (Vec::new(), 0_u64);
        for item in &file.items {
            if item.is_step(PART) {
                count += 1;
            } else {
                parts.push(count);
            }
        }
        for item in file.steps().skip(steps) {
            feed.take(item.clone())?;
        }
        for item in file.items.iter().filter(|item| !item.is_step(PART)) {
            feed.take(Item { content: ContentType::TEXT, ..item.clone() })?;
        }
        let origin = file.origin.clone();
        let revision = Revision {
            bytes: origin.bytes.unwrap_or_default(),
            digest: origin.digest.unwrap_or_default(),
            join: origin.join,
            steps: count,
            parts,
        };
        let revision = revision.to_json();
        feed.take(Item::new(revision.as_bytes(), REVISION, ContentType::JSON).into_owned())?;
        feed.flush()?;
        self.end_whole(file, summary).map(drop)
    }
}

impl<'a> Whole<'a> {
    fn steps(&self) -> impl Iterator<Item = &Item<'a>> {
        self.items.iter().filter(|item| item.is_step(PART))
    }

    fn records(&self) -> u64 {
        self.origin.records.unwrap_or_default()
    }

    /// Whether a part of it is cut off. What an archive has is whole, or not in it.
    fn is_torn(&self) -> bool {
        self.parsed.torn_at.is_some()
            || self.origin.layout == Layout::Files && !self.parsed.unread.is_empty()
    }

    /// When the run started.
    fn at(&self) -> Timestamp {
        self.parsed.course.started.or(self.first).unwrap_or(self.modified)
    }
}

/// The JSON documents in an archive, one after the other. Returns the names of those that cannot be
/// read, and why; without a name, why the archive is not whole. Its bytes are kept in any case.
fn members(
    bytes: &[u8],
    each: &mut dyn FnMut(&str, &str, &Shallow<'_>) -> Result<(), FileError>,
) -> Result<Vec<(String, String)>, FileError> {
    let (mut unread, mut left) = (Vec::new(), MAX_UNPACKED);
    let whole = archive::members(bytes, &mut |name, member| {
        if !ends(name, &[".json"]) {
            return Ok(());
        }
        let mut text = String::new();
        let max = left.min(MAX_DOCUMENT);
        let read = member.and_then(|member| {
            let read = member.take(max + 1).read_to_string(&mut text);
            read.map_err(|error| error.to_string())?;
            left = left.saturating_sub(text.len() as u64);
            if text.len() as u64 > max { Err(format!("more than {}", size(max))) } else { Ok(()) }
        });
        let document = read
            .and_then(|()| Shallow::new(without_mark(&text)).map_err(|error| error.to_string()));
        match document {
            Ok(document) => each(name, &text, &document),
            Err(why) => {
                unread.push((name.to_owned(), why));
                Ok(())
            }
        }
    })?;
    unread.extend(whole.map(|why| (String::new(), why)));
    Ok(unread)
}

/// The steps of a member of an archive, and what else it says between them.
fn member_items(
    text: &str,
    document: &Shallow<'_>,
    each: &mut TakeItem<'_>,
) -> Result<(), FileError> {
    let format = Format::InspectEval;
    let steps = steps(text, document, documents::places(format));
    let (items, _) = cut(text, &steps, format, (MEMBER, ContentType::JSON));
    let says = |byte: &u8| !byte.is_ascii_whitespace() && !b"[]{},".contains(byte);
    for item in items {
        if item.is_step(MEMBER) || item.payload.iter().any(says) {
            each(item)?;
        }
    }
    Ok(())
}
