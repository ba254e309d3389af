//! A JSON document into a run: its steps, and the parts between them, from the first byte to the
//! last. An archive into a run: its bytes, and then what is compressed in it.

use std::collections::HashMap;
use std::io::Read as _;
use std::ops::Range;

use runlog::{ContentType, Outcome, RunStatus, RunSummary, Timestamp};

use crate::formats::archive;
use crate::formats::documents::split::{Shallow, Step, steps};
use crate::formats::documents::{self, Course, series};
use crate::formats::encoding::Encoding;
use crate::formats::line::{End, LineDamage};
use crate::formats::origin::Origin;
use crate::formats::probe::{MAX_DOCUMENT, ends, json};
use crate::formats::{Format, Layout, MEMBER, PART};
use crate::output::size;
use crate::store::MAX_RECORD;

use super::batch::{Batch, Target};
use super::file::{Done, FileError, How, Imported, Importer, outcome};
use super::grow::Compared;
use super::input::Input;
use super::reading::digest;
use super::replace::Replacement;
use super::safe_open::Opened;
use super::session_folder::Parts;
use super::sidecars::Kind;
use super::tree::Source;

/// The longest part of a document or an archive that is one record.
const MAX_PART: usize = 4 << 20;

/// The longest text between two steps that counts as what joins all of them.
const MAX_JOIN: usize = 64;

/// The most bytes that are taken out of an archive. A small one may hold what is endless.
const MAX_UNPACKED: u64 = 1 << 30;

/// A piece of a document that becomes a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range<usize>,
    /// The array that the step is in; none for parts.
    pub(crate) array: Option<&'static str>,
}

/// Cuts a document into its steps and the parts between them, and finds what joins the steps.
fn cut(text: &str, steps: &[Step]) -> (Vec<Piece>, String) {
    let between = |pair: &[Step]| match pair {
        [left, right] => text.get(left.range.end..right.range.start).unwrap_or_default(),
        _ => "",
    };
    let mut counts = HashMap::new();
    let gaps = steps.windows(2).map(between);
    for gap in gaps.filter(|gap| gap.len() <= MAX_JOIN) {
        *counts.entry(gap).or_insert(0_u64) += 1;
    }
    // The shorter one of two that are as frequent, so that the same document gives the same pieces.
    let most = counts.into_iter().max_by_key(|(gap, n)| (*n, std::cmp::Reverse(*gap)));
    let join = most.map_or("", |(gap, _)| gap);
    let (mut pieces, mut at, mut is_behind_step) = (Vec::new(), 0, false);
    for step in steps {
        let gap = at..step.range.start;
        let is_record = step.range.len() as u64 <= MAX_RECORD;
        if !(is_behind_step && is_record && text.get(gap.clone()) == Some(join)) {
            parts(text, gap, &mut pieces);
        }
        if is_record {
            pieces.push(Piece { range: step.range.clone(), array: Some(step.array) });
        } else {
            parts(text, step.range.clone(), &mut pieces);
        }
        (at, is_behind_step) = (step.range.end, is_record);
    }
    parts(text, at..text.len(), &mut pieces);
    (pieces, join.to_owned())
}

/// A range in parts that are short enough to be records.
fn parts(text: &str, range: Range<usize>, pieces: &mut Vec<Piece>) {
    let mut start = range.start;
    while start < range.end {
        let end = text.floor_char_boundary((start + MAX_PART).min(range.end));
        pieces.push(Piece { range: start..end, array: None });
        start = end;
    }
}

/// A record of a document.
pub(crate) struct Item {
    pub(crate) kind: String,
    pub(crate) content: ContentType,
    pub(crate) at: Option<Timestamp>,
}

impl Piece {
    pub(crate) fn bytes<'t>(&self, text: &'t str) -> &'t [u8] {
        text.as_bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// What is told of the record.
    pub(crate) fn item(&self, text: &str, format: Format, part: &str, is_alone: bool) -> Item {
        let Some(array) = self.array else {
            let content = if is_alone { ContentType::JSON } else { ContentType::TEXT };
            return Item { kind: part.to_owned(), content, at: None };
        };
        let json = text.get(self.range.clone()).unwrap_or_default();
        let (word, at) = series::step(format, json);
        Item { kind: word.unwrap_or_else(|| array.to_owned()), content: ContentType::JSON, at }
    }
}

/// Takes one record.
type TakeItem<'t> = dyn FnMut(&[u8], Item) -> Result<(), FileError> + 't;

/// Records on their way into a run.
pub(crate) struct Feed<'i> {
    to: Target<'i>,
    batch: Batch,
    /// The time of the last record that gave one; of those in front of the first, the start.
    at: Timestamp,
    progress: &'i dyn Fn(u64),
}

impl<'i> Feed<'i> {
    pub(crate) fn new(to: Target<'i>, at: Timestamp, progress: &'i dyn Fn(u64)) -> Self {
        Self { to, batch: Batch::default(), at, progress }
    }

    pub(crate) fn take(&mut self, bytes: &[u8], item: Item) -> Result<(), FileError> {
        self.at = item.at.unwrap_or(self.at);
        let start = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(bytes);
        let range = start..self.batch.bytes.len();
        self.batch.add(range, Some(item.kind), item.content, self.at);
        if self.batch.is_full(0) { self.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self) -> Result<(), FileError> {
        if !self.batch.is_empty() {
            self.batch.append(self.to)?;
            (self.progress)(self.batch.bytes.len() as u64);
            self.batch.clear();
        }
        Ok(())
    }
}

/// A file of one document or archive, ready to become a run.
pub(crate) struct Whole<'a> {
    pub(crate) source: &'a Source,
    pub(crate) format: Format,
    layout: Layout,
    encoding: Encoding,
    pub(crate) bytes: &'a [u8],
    modified: Timestamp,
    course: Course,
    /// The first time that a step gives.
    first: Option<Timestamp>,
    records: u64,
    join: String,
    /// What of it cannot be read.
    damaged: Vec<(u64, LineDamage)>,
    unread: Vec<(String, String)>,
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
        let parsed = series::parse(format, text).map_err(std::io::Error::from)?;
        if self.follows && parsed.torn_at.is_some() {
            return Ok(Done::Waits);
        }
        let (pieces, join) = cut(text, &parsed.steps);
        let items = |from: usize| {
            let is_alone = pieces.len() == 1;
            let pieces = pieces.iter().skip(from);
            pieces.map(move |piece| (piece, piece.item(text, format, PART, is_alone)))
        };
        let torn = parsed.torn_at.map(|at| text.get(..at).unwrap_or_default().lines().count());
        let file = Whole {
            source,
            format,
            layout: Layout::Document,
            encoding: input.encoding,
            bytes: text.as_bytes(),
            modified: input.modified,
            course: parsed.course,
            first: items(0).find_map(|(_, item)| item.at),
            records: pieces.len() as u64,
            join,
            damaged: torn.map(|line| (line as u64 + 1, LineDamage::Torn)).into_iter().collect(),
            unread: Vec::new(),
        };
        self.whole(&file, &pieces, progress, &|feed| {
            items(0).try_for_each(|(piece, item)| feed.take(piece.bytes(text), item))
        })
    }

    /// Imports a session of several files.
    pub(crate) fn session(
        &self,
        source: &Source,
        parts: &Parts,
        opened: &mut Opened,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let format = parts.format;
        if !self.only.is_empty() && !self.only.contains(&format) {
            return Ok(Done::Sidecar(Kind::OtherFormats));
        }
        let (files, modified) = parts.read(opened)?;
        let parsed = files.parse(format);
        if self.follows && !parsed.damaged.is_empty() {
            return Ok(Done::Waits);
        }
        let text = files.text();
        let (pieces, join) = cut(text, &parsed.steps);
        let items = || pieces.iter().map(|piece| (piece, piece.item(text, format, PART, false)));
        let file = Whole {
            source,
            format,
            layout: Layout::Files,
            encoding: Encoding::Utf8,
            bytes: text.as_bytes(),
            modified,
            course: parsed.course,
            first: items().find_map(|(_, item)| item.at),
            records: pieces.len() as u64,
            join,
            damaged: Vec::new(),
            unread: parsed.damaged,
        };
        self.whole(&file, &pieces, progress, &|feed| {
            items().try_for_each(|(piece, item)| feed.take(piece.bytes(text), item))
        })
    }

    /// Imports a log of Inspect that is a zip archive.
    pub(crate) fn archive(
        &self,
        source: &Source,
        input: &Input,
        bytes: &[u8],
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let (mut course, mut first, mut records) = (Course::default(), None, 0);
        let unread = members(bytes, &mut |name, text, document| {
            if name == "header.json" {
                course = documents::course(Format::InspectEval, document);
            }
            member_items(text, document, &mut |_, item| {
                first = first.or(item.at);
                records += 1;
                Ok(())
            })
        })?;
        records += bytes.chunks(MAX_PART).len() as u64;
        let file = Whole {
            source,
            format: Format::InspectEval,
            layout: Layout::Archive,
            encoding: Encoding::Utf8,
            bytes,
            modified: input.modified,
            course,
            first,
            records,
            join: String::new(),
            damaged: Vec::new(),
            unread,
        };
        self.whole(&file, &[], progress, &|feed| {
            for chunk in bytes.chunks(MAX_PART) {
                let (kind, content) = (PART.to_owned(), ContentType::BYTES);
                feed.take(chunk, Item { kind, content, at: None })?;
            }
            members(bytes, &mut |_, text, document| {
                member_items(text, document, &mut |bytes, item| feed.take(bytes, item))
            })
            .map(drop)
        })
    }

    /// Imports a file that is one document, which has these pieces, or an archive.
    fn whole(
        &self,
        file: &Whole<'_>,
        pieces: &[Piece],
        progress: &dyn Fn(u64),
        feed_it: &dyn Fn(&mut Feed<'_>) -> Result<(), FileError>,
    ) -> Result<Done, FileError> {
        let source = file.source;
        let encoded = file.encoding.encode(file.bytes);
        let origin = Origin {
            imported_from: source.file_name(),
            path: source.path_text(),
            format: Some(file.format),
            layout: file.layout,
            encoding: file.encoding,
            bytes: Some(encoded.len() as u64),
            digest: Some(digest(&encoded)),
            records: Some(file.records),
            join: file.join.clone(),
        };
        drop(encoded);
        let existing = self.existing(source)?;
        let Some((summary, stored)) = &existing else {
            self.start(source.ids(), &origin.to_json(), file.at(), |to| {
                self.fill(file, to, progress, feed_it)
            })?;
            return Ok(file.done(How::Imported, file.status(self)));
        };
        let last = self.revision(summary, stored)?;
        let stored_file = last.as_ref().map_or_else(
            || (stored.bytes, stored.digest.clone()),
            |revision| (Some(revision.bytes), Some(revision.digest.clone())),
        );
        let is_same =
            stored.layout == origin.layout && stored_file == (origin.bytes, origin.digest.clone());
        if is_same && (last.is_some() || stored.records == Some(summary.records)) {
            let is_ended = self.end_whole(file, summary)?;
            let how = if is_ended { How::Continued } else { How::AlreadyThere };
            return Ok(file.done(how, self.status(source)?));
        }
        // An import that was cut short left a run in progress with a part of the same file.
        let was_cut = is_same && !summary.status.is_ended() && summary.records < file.records;
        let mut from = None;
        let are_documents = file.layout != Layout::Archive && file.layout == stored.layout;
        let has_steps = pieces.iter().any(|piece| piece.array.is_some());
        if !was_cut && are_documents && has_steps {
            match self.compare_steps(file, summary, pieces)? {
                Compared::GoesOn { steps } => {
                    self.go_on_with(file, summary, pieces, steps, &origin, progress)?;
                    return Ok(file.done(How::Continued, self.status(source)?));
                }
                Compared::Differs(step) => from = Some(("step", step)),
            }
        }
        if !was_cut && !self.replace {
            return Err(Self::differs(source, from));
        }
        let replacement = Replacement { old: summary, may_lose: true };
        self.replace(replacement, &origin, file.at(), |to| self.fill(file, to, progress, feed_it))?;
        let how = if was_cut { How::Imported } else { How::Replaced };
        Ok(file.done(how, file.status(self)))
    }

    /// All records of a file, and its end.
    fn fill(
        &self,
        file: &Whole<'_>,
        to: Target<'_>,
        progress: &dyn Fn(u64),
        feed_it: &dyn Fn(&mut Feed<'_>) -> Result<(), FileError>,
    ) -> Result<(), FileError> {
        let mut feed = Feed::new(to, file.at(), progress);
        feed_it(&mut feed)?;
        feed.flush()?;
        let end = self.end_of(file, feed.at);
        end.map_or(Ok(()), |end| Ok(to.end(&end)?))
    }

    /// How a run ends that has not ended, if its document says so, or the user does.
    fn end_of(&self, file: &Whole<'_>, last_at: Timestamp) -> Option<Outcome> {
        let status = file.course.end.map(End::status).or(self.end)?;
        Some(outcome(status, file.course.ended.unwrap_or(last_at)))
    }

    /// Ends such a run.
    pub(crate) fn end_whole(
        &self,
        file: &Whole<'_>,
        summary: &RunSummary,
    ) -> Result<bool, FileError> {
        let end = self.end_of(file, summary.last_at).filter(|_| !summary.status.is_ended());
        end.map_or(Ok(false), |end| self.end_run(file.source.ids(), &end).map(|()| true))
    }
}

impl Whole<'_> {
    /// When the run started.
    fn at(&self) -> Timestamp {
        self.course.started.or(self.first).unwrap_or(self.modified)
    }

    /// The status of a run that was just imported.
    fn status(&self, importer: &Importer<'_>) -> RunStatus {
        let end = importer.end_of(self, self.modified);
        end.map_or(RunStatus::InProgress, |end| end.status())
    }

    /// What became of the file.
    fn done(&self, how: How, status: RunStatus) -> Done {
        Done::Run(Imported {
            how,
            format: self.format,
            status,
            records: self.records,
            bytes: self.bytes.len() as u64,
            damaged: self.damaged.clone(),
            damaged_count: self.damaged.len() as u64,
            unread: self.unread.clone(),
            mark: None,
        })
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
        let document =
            read.and_then(|()| Shallow::new(json(&text)).map_err(|error| error.to_string()));
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
    let is_alone = pieces.len() == 1;
    for piece in &pieces {
        let bytes = piece.bytes(text);
        let says = |byte: &u8| !byte.is_ascii_whitespace() && !b"[]{},".contains(byte);
        if piece.array.is_some() || bytes.iter().any(says) {
            each(bytes, piece.item(text, format, MEMBER, is_alone))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document again, as `show --raw` puts it together.
    fn joined(text: &str, pieces: &[Piece], join: &str) -> String {
        let mut whole = String::new();
        let mut was_step = false;
        for piece in pieces {
            let is_step = piece.array.is_some();
            if was_step && is_step {
                whole.push_str(join);
            }
            whole.push_str(&text[piece.range.clone()]);
            was_step = is_step;
        }
        whole
    }

    fn pieces(text: &str) -> (Vec<Piece>, String) {
        let document = Shallow::new(json(text)).expect("JSON");
        cut(text, &steps(text, &document, documents::places(Format::SweAgent)))
    }

    #[test]
    fn the_pieces_are_the_document() {
        for text in [
            "{}",
            "[]",
            "12",
            r#"{"trajectory":[]}"#,
            r#"{"trajectory":[{"a":1}]}"#,
            r#"{"trajectory":[{"a":1},{"a":2},{"a":3}],"history":[{"b":1},{"b":2}]}"#,
            "{\n  \"history\" : [ {} ,\n {} ,\n {}, {} ] , \"info\": {}\n}\n",
            "\u{feff}{\"trajectory\":[{},{}]}\n\n",
            r#"[{"role":"a"},7,{"role":"b"},{"role":"c"}]"#,
            r#"{"trajectory":[{},{}],"trajectory":[{}, {}]}"#,
        ] {
            let (pieces, join) = pieces(text);
            assert_eq!(joined(text, &pieces, &join), text);
            assert!(pieces.iter().all(|piece| !piece.range.is_empty()), "{text}");
        }
    }

    #[test]
    fn steps_that_are_joined_alike_have_nothing_between_them() {
        let text = "{\"trajectory\": [\n  {},\n  {},\n  {}\n], \"x\": 1}";
        let (pieces, join) = pieces(text);
        assert_eq!(join, ",\n  ");
        let arrays: Vec<_> = pieces.iter().map(|piece| piece.array).collect();
        let step = Some("trajectory");
        assert_eq!(arrays, [None, step, step, step, None]);
    }

    #[test]
    fn long_parts_are_cut_between_letters() {
        let text = format!("{{\"x\":\"{}\"}}", "\u{e9}".repeat(MAX_PART));
        let (pieces, join) = pieces(&text);
        assert_eq!(pieces.len(), 3);
        assert_eq!(joined(&text, &pieces, &join), text);
    }
}
