//! A JSON document into a run: its steps, and the parts between them. An archive into a run: its
//! bytes, and then what is compressed in it.
//!
//! A document that goes on: what it has more than its run is appended.
//!
//! | the steps of the document | then |
//! |---|---|
//! | begin with those of the run | the others are appended, and how all of them make the document |
//! | differ | is a change: an error, or with `--replace` imported anew |
//!
//! [`Revision`] says what the records are.

use std::io::{self, Read as _};

use runlog::{Allow, ContentType, Outcome, RunStatus, RunSummary, Seq, Timestamp};

use crate::formats::documents::split::{Parsed, Shallow, steps};
use crate::formats::documents::{self, series};
use crate::formats::encoding::Encoding;
use crate::formats::json::without_mark;
use crate::formats::line::LineDamage;
use crate::formats::origin::{Origin, digest};
use crate::formats::probe::MAX_DOCUMENT;
use crate::formats::revision::{REVISION, Revision};
use crate::formats::{Format, Layout, MEMBER, PART, archive, ends};
use crate::output::size;

use super::batch::Target;
use super::done::{Done, How, Imported};
use super::file::{Importer, waits};
use super::input::Input;
use super::pieces::{Feed, Item, MAX_PART, Piece, cut};
use super::refusal::{FileError, Problem};
use super::replace::Replacement;
use super::safe_open::Opened;
use super::session_folder::Parts;
use super::tree::Source;

/// The most bytes that are taken out of an archive. A small one may hold what is endless.
const MAX_UNPACKED: u64 = 1 << 30;

/// Takes one record.
type TakeItem<'t> = dyn FnMut(&[u8], Item) -> Result<(), FileError> + 't;

/// A file of one document or archive, ready to become a run.
struct Whole<'a> {
    source: &'a Source,
    format: Format,
    layout: Layout,
    encoding: Encoding,
    bytes: &'a [u8],
    modified: Timestamp,
    parsed: Parsed,
    pieces: Vec<Piece>,
    join: String,
    /// The first time that a step gives.
    first: Option<Timestamp>,
    records: u64,
    progress: &'a dyn Fn(u64),
}

impl Importer<'_> {
    /// Imports a JSON document.
    pub(crate) fn document(
        &self,
        source: &Source,
        input: &Input,
        format: Format,
        text: &str,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let parsed = series::parse(format, text).map_err(io::Error::from)?;
        let file = Whole::of_text(source, (format, Layout::Document), text, parsed, progress);
        self.whole(&Whole { encoding: input.encoding, modified: input.modified, ..file })
    }

    /// Imports a session of several files.
    pub(crate) fn session(
        &self,
        source: &Source,
        parts: &Parts,
        opened: &mut Opened,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let (files, modified) = parts.read(opened)?;
        let (text, parsed) = (files.text(), files.parse(parts.format));
        let file = Whole::of_text(source, (parts.format, Layout::Files), text, parsed, progress);
        self.whole(&Whole { modified, ..file })
    }

    /// Imports a log of Inspect that is a zip archive.
    pub(crate) fn archive(
        &self,
        source: &Source,
        input: &Input,
        bytes: &[u8],
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let (mut parsed, mut first, mut records) = (Parsed::default(), None, 0);
        let format = Format::InspectEval;
        parsed.unread = members(bytes, &mut |name, text, document| {
            if name == "header.json" {
                parsed.course = documents::course(format, document);
            }
            member_items(text, document, &mut |_, item| {
                first = first.or(item.at);
                records += 1;
                Ok(())
            })
        })?;
        let starts = (0..bytes.len()).step_by(MAX_PART);
        let piece =
            |start: usize| Piece { range: start..bytes.len().min(start + MAX_PART), array: None };
        let pieces: Vec<Piece> = starts.map(piece).collect();
        self.whole(&Whole {
            source,
            format,
            layout: Layout::Archive,
            encoding: Encoding::Utf8,
            bytes,
            modified: input.modified,
            parsed,
            records: records + pieces.len() as u64,
            pieces,
            join: String::new(),
            first,
            progress,
        })
    }

    /// Imports a file that is one document or archive.
    fn whole(&self, file: &Whole<'_>) -> Result<Done, FileError> {
        if self.args.follow && file.is_torn() {
            return Ok(waits());
        }
        let (source, origin) = (file.source, file.origin());
        let new = |how| Ok(file.done(how, self.end_of(file, file.modified).as_ref()));
        let Some((summary, stored)) = self.existing(source)? else {
            self.start(source.ids(), &origin.to_json(), file.at(), |to| self.fill(file, to))?;
            return new(How::Imported);
        };
        let old = |how| {
            let status = self.run(source.ids().into())?.status;
            Ok(Done::Run(Imported { status, ..file.imported(how) }))
        };
        let stored = self.latest(&summary, stored)?;
        let is_same = stored.layout == origin.layout
            && (stored.bytes, &stored.digest) == (origin.bytes, &origin.digest);
        if is_same && stored.records == Some(summary.records) {
            let is_ended = self.end_whole(file, &summary)?;
            return old(if is_ended { How::Continued } else { How::AlreadyThere });
        }
        // An import that was cut short left a run in progress with a part of the same file.
        let was_cut = is_same && !summary.status.is_ended() && summary.records < file.records;
        let mut from = None;
        if !was_cut && stored.layout == file.layout && file.steps().next().is_some() {
            let (steps, are_same) = self.compare_steps(file, &summary)?;
            if are_same {
                self.go_on_with(file, &summary, steps, &origin)?;
                return old(How::Continued);
            }
            from = Some(("step", steps as u64 + 1));
        }
        if !was_cut && !self.args.replace {
            return Err(Problem::Differs(from).of(source.ids()));
        }
        let replacement = Replacement { old: &summary, may_lose: true };
        self.replace(replacement, &origin, file.at(), |to| self.fill(file, to))?;
        new(if was_cut { How::Imported } else { How::Replaced })
    }

    /// All records of a file, and its end.
    fn fill(&self, file: &Whole<'_>, to: Target<'_>) -> Result<(), FileError> {
        let mut feed = Feed::new(to, file.at(), file.progress);
        for piece in &file.pieces {
            feed.take(piece.bytes(file.bytes), file.item(piece))?;
        }
        if file.layout == Layout::Archive {
            members(file.bytes, &mut |_, text, document| {
                member_items(text, document, &mut |bytes, item| feed.take(bytes, item))
            })?;
        }
        feed.flush()?;
        self.end_of(file, feed.at).map_or(Ok(()), |end| Ok(to.end(&end)?))
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

    /// What the metadata of a run say of its file, as the document went on last.
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
            if own.next().map(|piece| piece.bytes(file.bytes)) != Some(record.payload()) {
                return Ok((steps, false));
            }
            steps += 1;
        }
        Ok((steps, true))
    }

    /// Appends the steps of the document beyond these to its run, and the record that says how all
    /// steps make the document.
    fn go_on_with(
        &self,
        file: &Whole<'_>,
        summary: &RunSummary,
        steps: usize,
        origin: &Origin,
    ) -> Result<(), FileError> {
        let to = self.target(file.source, Allow::nothing().after_end(summary.status.is_ended()));
        let mut feed = Feed::new(to, summary.last_at, file.progress);
        let (mut parts, mut count) = (Vec::new(), 0_u64);
        for piece in &file.pieces {
            if piece.is_step() {
                count += 1;
            } else {
                parts.push(count);
            }
        }
        let new = file.steps().skip(steps);
        for piece in new.chain(file.pieces.iter().filter(|piece| !piece.is_step())) {
            let item = piece.item(file.bytes, file.format, Item::part(PART, ContentType::TEXT));
            feed.take(piece.bytes(file.bytes), item)?;
        }
        let revision = Revision {
            bytes: origin.bytes.unwrap_or_default(),
            digest: origin.digest.clone().unwrap_or_default(),
            join: origin.join.clone(),
            steps: count,
            parts,
        };
        feed.take(revision.to_json().as_bytes(), Item::part(REVISION, ContentType::JSON))?;
        feed.flush()?;
        self.end_whole(file, summary).map(drop)
    }
}

impl<'a> Whole<'a> {
    /// A document, or the files of a session.
    fn of_text(
        source: &'a Source,
        (format, layout): (Format, Layout),
        text: &'a str,
        parsed: Parsed,
        progress: &'a dyn Fn(u64),
    ) -> Self {
        let (pieces, join) = cut(text, &parsed.steps);
        let (bytes, records) = (text.as_bytes(), pieces.len() as u64);
        let (encoding, modified, first) = (Encoding::Utf8, Timestamp(0), None);
        let mut whole = Self {
            source,
            format,
            layout,
            encoding,
            bytes,
            modified,
            parsed,
            pieces,
            join,
            first,
            records,
            progress,
        };
        let first = whole.steps().find_map(|step| whole.item(step).at);
        whole.first = first;
        whole
    }

    fn steps(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().filter(|piece| piece.is_step())
    }

    /// What is told of the record of a piece.
    fn item(&self, piece: &Piece) -> Item {
        let content = match self.layout {
            Layout::Archive => ContentType::BYTES,
            Layout::Document if self.pieces.len() == 1 => ContentType::JSON,
            _ => ContentType::TEXT,
        };
        piece.item(self.bytes, self.format, Item::part(PART, content))
    }

    /// Whether a part of it is cut off. What an archive has is whole, or not in it.
    fn is_torn(&self) -> bool {
        self.parsed.torn_at.is_some()
            || self.layout == Layout::Files && !self.parsed.unread.is_empty()
    }

    /// When the run started.
    fn at(&self) -> Timestamp {
        self.parsed.course.started.or(self.first).unwrap_or(self.modified)
    }

    /// What the metadata say of it.
    fn origin(&self) -> Origin {
        let encoded = self.encoding.encode(self.bytes);
        Origin {
            encoding: self.encoding,
            bytes: Some(encoded.len() as u64),
            digest: Some(digest(&encoded)),
            records: Some(self.records),
            join: self.join.clone(),
            ..self.source.origin(self.format, self.layout)
        }
    }

    /// What became of the file, whose run has ended so, if it has.
    fn done(&self, how: How, end: Option<&Outcome>) -> Done {
        let status = end.map_or(RunStatus::InProgress, Outcome::status);
        Done::Run(Imported { status, ..self.imported(how) })
    }

    fn imported(&self, how: How) -> Imported {
        let before = |at: usize| self.bytes.get(..at).unwrap_or_default();
        let line = |at: usize| before(at).split(|byte| *byte == b'\n').count() as u64;
        let damaged: Vec<_> =
            self.parsed.torn_at.map(|at| (line(at), LineDamage::Torn)).into_iter().collect();
        Imported {
            how,
            format: self.format,
            status: RunStatus::InProgress,
            records: self.records,
            bytes: self.bytes.len() as u64,
            damaged_count: damaged.len() as u64,
            damaged,
            unread: self.parsed.unread.clone(),
            mark: None,
        }
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
    let (pieces, _) = cut(text, &steps(text, document, documents::places(format)));
    let content = if pieces.len() == 1 { ContentType::JSON } else { ContentType::TEXT };
    for piece in &pieces {
        let bytes = piece.bytes(text.as_bytes());
        let says = |byte: &u8| !byte.is_ascii_whitespace() && !b"[]{},".contains(byte);
        if piece.is_step() || bytes.iter().any(says) {
            each(bytes, piece.item(text.as_bytes(), format, Item::part(MEMBER, content)))?;
        }
    }
    Ok(())
}
