//! A document in pieces, from the first byte to the last: its steps, and the parts between them.
//! Each becomes a record.

use std::collections::HashMap;
use std::ops::Range;

use runlog::{ContentType, Timestamp};

use crate::formats::Format;
use crate::formats::documents::series;
use crate::formats::documents::split::Step;
use crate::store::MAX_RECORD;

use super::batch::{Batch, Target};
use super::refusal::FileError;

/// The longest part of a document or an archive that is one record.
pub(crate) const MAX_PART: usize = 4 << 20;

/// The longest text between two steps that counts as what joins all of them.
const MAX_JOIN: usize = 64;

/// A piece of a document that becomes a record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) range: Range<usize>,
    /// The array that the step is in; none for parts.
    pub(crate) array: Option<&'static str>,
}

/// Cuts a document into its steps and the parts between them, and finds what joins the steps.
pub(crate) fn cut(text: &str, steps: &[Step]) -> (Vec<Piece>, String) {
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
    pub(crate) kind: Option<String>,
    pub(crate) content: ContentType,
    pub(crate) at: Option<Timestamp>,
}

impl Item {
    /// One that is no step.
    pub(crate) fn part(kind: &str, content: ContentType) -> Self {
        Self { kind: Some(kind.to_owned()), content, at: None }
    }
}

impl Piece {
    pub(crate) fn is_step(&self) -> bool {
        self.array.is_some()
    }

    pub(crate) fn bytes<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        text.get(self.range.clone()).unwrap_or_default()
    }

    /// What is told of the record; `part` of one that is no step.
    pub(crate) fn item(&self, text: &[u8], format: Format, part: Item) -> Item {
        let Some(array) = self.array else { return part };
        let (word, at) = series::step(format, self.bytes(text));
        let kind = word.or_else(|| Some(array.to_owned()));
        Item { kind, content: ContentType::JSON, at }
    }
}

/// Records on their way into a run.
pub(crate) struct Feed<'i> {
    to: Target<'i>,
    batch: Batch,
    /// The time of the last record that gave one; of those in front of the first, the start.
    pub(crate) at: Timestamp,
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
        self.batch.add(range, item.kind, item.content, self.at);
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

#[cfg(test)]
mod tests {
    use crate::formats::documents;
    use crate::formats::documents::split::{Shallow, steps};
    use crate::formats::json::without_mark;

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
        let document = Shallow::new(without_mark(text)).expect("JSON");
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
