//! A JSON document into a run: its steps, and the parts between them, from the first byte to the
//! last. An archive into a run: its bytes, and then what is compressed in it.

use std::collections::HashMap;
use std::io::{Cursor, Read as _};
use std::ops::Range;

use runlog::{ContentType, Outcome, RunSummary, RunWriter, Timestamp};
use serde_json::Value;

use crate::formats::documents::split::{Shallow, Step, steps};
use crate::formats::documents::{self, Course};
use crate::formats::line::kind;
use crate::formats::origin::Origin;
use crate::formats::probe::{MAX_DOCUMENT, ends, json};
use crate::formats::{Format, PART};
use crate::store::MAX_RECORD;

use super::anew::Anew;
use super::batch::{Batch, Target};
use super::file::{Done, FileError, How, Imported, Importer, outcome};
use super::reading::digest;
use super::tree::Source;

/// The longest part of a document or an archive that is one record.
const MAX_PART: usize = 4 << 20;

/// The longest text between two steps that counts as what joins all of them.
const MAX_JOIN: usize = 64;

/// The most bytes that are taken out of an archive. A small one may hold what is endless.
const MAX_UNPACKED: u64 = 1 << 30;

/// The kind of what an archive has besides steps.
const MEMBER: &str = "member";

/// A piece of a document that becomes a record.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    range: Range<usize>,
    /// The array that the step is in; none for parts.
    array: Option<&'static str>,
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
struct Item {
    kind: String,
    content: ContentType,
    at: Option<Timestamp>,
}

impl Piece {
    /// What is told of the record.
    fn item(&self, text: &str, format: Format, part: &str, is_alone: bool) -> Item {
        let Some(array) = self.array else {
            let content = if is_alone { ContentType::JSON } else { ContentType::TEXT };
            return Item { kind: part.to_owned(), content, at: None };
        };
        let json = text.get(self.range.clone()).unwrap_or_default();
        let step = serde_json::from_str::<Value>(json).unwrap_or_default();
        let word = documents::kind(format, &step).and_then(kind);
        let at = documents::facts(format, &step).time;
        Item { kind: word.unwrap_or_else(|| array.to_owned()), content: ContentType::JSON, at }
    }
}

/// Takes one record.
type TakeItem<'t> = dyn FnMut(&[u8], Item) -> Result<(), FileError> + 't;

/// Records on their way into a run.
struct Feed<'i> {
    run: &'i RunWriter,
    batch: Batch,
    /// The time of the last record that gave one; of those in front of the first, the start.
    at: Timestamp,
    progress: &'i dyn Fn(u64),
}

impl Feed<'_> {
    fn take(&mut self, bytes: &[u8], item: Item) -> Result<(), FileError> {
        self.at = item.at.unwrap_or(self.at);
        let start = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(bytes);
        let range = start..self.batch.bytes.len();
        self.batch.add(range, Some(item.kind), item.content, self.at);
        if self.batch.is_full(0) { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), FileError> {
        if !self.batch.is_empty() {
            self.batch.append(Target::Started(self.run))?;
            (self.progress)(self.batch.bytes.len() as u64);
            self.batch.clear();
        }
        Ok(())
    }
}

/// A file of one document or archive, ready to become a run.
struct Whole<'a> {
    source: &'a Source,
    format: Format,
    bytes: &'a [u8],
    modified: Timestamp,
    course: Course,
    /// The first time that a step gives.
    first: Option<Timestamp>,
    records: u64,
    join: String,
}

impl Importer<'_> {
    /// Imports a JSON document.
    pub(crate) fn document(
        &self,
        source: &Source,
        modified: Timestamp,
        format: Format,
        text: &str,
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let document = Shallow::new(json(text)).map_err(std::io::Error::from)?;
        let steps = steps(text, &document, documents::places(format));
        let course = documents::course(format, &document);
        drop(document);
        let (pieces, join) = cut(text, &steps);
        let items = || {
            let is_alone = pieces.len() == 1;
            pieces.iter().map(move |piece| (piece, piece.item(text, format, PART, is_alone)))
        };
        let first = items().find_map(|(_, item)| item.at);
        let records = pieces.len() as u64;
        let bytes = text.as_bytes();
        let whole = Whole { source, format, bytes, modified, course, first, records, join };
        self.whole(&whole, progress, &|feed| {
            items().try_for_each(|(piece, item)| {
                feed.take(bytes.get(piece.range.clone()).unwrap_or_default(), item)
            })
        })
    }

    /// Imports a log of Inspect that is a zip archive.
    pub(crate) fn archive(
        &self,
        source: &Source,
        modified: Timestamp,
        bytes: &[u8],
        progress: &dyn Fn(u64),
    ) -> Result<Done, FileError> {
        let (mut course, mut first, mut records) = (Course::default(), None, 0);
        members(bytes, &mut |name, text, document| {
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
        let (format, join) = (Format::InspectEval, String::new());
        let whole = Whole { source, format, bytes, modified, course, first, records, join };
        self.whole(&whole, progress, &|feed| {
            for chunk in bytes.chunks(MAX_PART) {
                let (kind, content) = (PART.to_owned(), ContentType::BYTES);
                feed.take(chunk, Item { kind, content, at: None })?;
            }
            members(bytes, &mut |_, text, document| {
                member_items(text, document, &mut |bytes, item| feed.take(bytes, item))
            })
        })
    }

    /// Imports a file that is one document or archive.
    fn whole(
        &self,
        file: &Whole<'_>,
        progress: &dyn Fn(u64),
        feed_it: &dyn Fn(&mut Feed<'_>) -> Result<(), FileError>,
    ) -> Result<Done, FileError> {
        let source = file.source;
        let origin = Origin {
            imported_from: source.file_name(),
            path: Some(source.path_text()),
            format: Some(file.format),
            layout: file.format.layout(),
            bytes: Some(file.bytes.len() as u64),
            digest: Some(digest(file.bytes)),
            records: Some(file.records),
            join: file.join.clone(),
        };
        let (mut how, existing) = (How::Imported, self.existing(source)?);
        let mut anew = None;
        if let Some((summary, stored)) = &existing {
            let is_same = stored.digest == origin.digest && stored.layout == origin.layout;
            if is_same && stored.records == Some(summary.records) {
                how =
                    if self.end_whole(file, summary)? { How::Continued } else { How::AlreadyThere };
                return self.told(file, how);
            }
            // An import that was cut short left a run in progress with a part of the same file.
            let was_cut = is_same && !summary.status.is_ended() && summary.records < file.records;
            if !was_cut && !self.replace {
                return Err(Self::differs(source, None));
            }
            anew = Some(Anew { old: summary, may_lose: true });
            how = if was_cut { How::Imported } else { How::Replaced };
        }
        let at = file.course.started.or(file.first).unwrap_or(file.modified);
        let add = |run: &RunWriter| {
            let mut feed = Feed { run, batch: Batch::default(), at, progress };
            feed_it(&mut feed)?;
            feed.flush()?;
            let end = self.end_of(file, &self.log.run(run)?);
            end.map_or(Ok(()), |end| Ok(run.end(&end).map(drop)?))
        };
        match anew {
            None => self.start(source.ids(), &origin.to_json(), at, add)?,
            Some(anew) => self.replace(anew, &origin, at, add)?,
        }
        self.told(file, how)
    }

    /// How a run ends that has not ended, if its document says so, or the user does.
    fn end_of(&self, file: &Whole<'_>, summary: &RunSummary) -> Option<Outcome> {
        let status = file.course.end.map(crate::formats::line::End::status).or(self.end)?;
        let at = file.course.ended.unwrap_or(summary.last_at);
        (!summary.status.is_ended()).then(|| outcome(status, at))
    }

    /// Ends such a run.
    fn end_whole(&self, file: &Whole<'_>, summary: &RunSummary) -> Result<bool, FileError> {
        let end = self.end_of(file, summary);
        end.map_or(Ok(false), |end| self.end_run(file.source.ids(), &end).map(|()| true))
    }

    fn told(&self, file: &Whole<'_>, how: How) -> Result<Done, FileError> {
        Ok(Done::Run(Imported {
            how,
            format: file.format,
            status: self.status(file.source)?,
            records: file.records,
            bytes: file.bytes.len() as u64,
            damaged: Vec::new(),
            damaged_count: 0,
            mark: None,
        }))
    }
}

/// The JSON documents in an archive, one after the other. What cannot be read is passed over: the
/// bytes of the archive are kept in any case.
fn members(
    bytes: &[u8],
    each: &mut dyn FnMut(&str, &str, &Shallow<'_>) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let Ok(mut archive) = zip::ZipArchive::new(Cursor::new(bytes)) else {
        return Ok(());
    };
    let mut left = MAX_UNPACKED;
    for index in 0..archive.len() {
        let Ok(member) = archive.by_index(index) else {
            continue;
        };
        let name = member.name().map(std::borrow::Cow::into_owned).unwrap_or_default();
        if !ends(&name, &[".json"]) {
            continue;
        }
        let mut text = String::new();
        let max = left.min(MAX_DOCUMENT);
        let read = member.take(max + 1).read_to_string(&mut text);
        if read.is_err() || text.len() as u64 > max {
            continue;
        }
        left -= text.len() as u64;
        if let Ok(document) = Shallow::new(json(&text)) {
            each(&name, &text, &document)?;
        }
    }
    Ok(())
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
        let bytes = text.as_bytes().get(piece.range.clone()).unwrap_or_default();
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
