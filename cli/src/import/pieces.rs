//! A document in pieces, from the first byte to the last: its steps, and the parts between them.
//! Each becomes a record.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use runlog::ContentType;

use crate::formats::Format;
use crate::formats::documents::series;
use crate::formats::documents::split::Step;
use crate::store::MAX_RECORD;

use super::feed::Item;

/// The longest part of a document or an archive that is one record.
pub(crate) const MAX_PART: usize = 4 << 20;

/// The longest text between two steps that counts as what joins all of them.
const MAX_JOIN: usize = 64;

/// Cuts a document into its steps and the parts between them, and finds what joins the steps. The
/// parts have the kind `part`; the only part of a document without steps has the type `whole`.
pub(crate) fn cut<'a>(
    text: &'a str,
    steps: &[Step],
    format: Format,
    (part, whole): (&str, ContentType),
) -> (Vec<Item<'a>>, String) {
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
    let most = counts.into_iter().max_by_key(|(gap, n)| (*n, Reverse(*gap)));
    let join = most.map_or("", |(gap, _)| gap);
    let (mut items, mut at, mut follows_step) = (Vec::new(), 0, false);
    let parts = |range: Range<usize>, items: &mut Vec<Item<'a>>| {
        let mut rest = text.get(range).unwrap_or_default();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(MAX_PART));
            items.push(Item::new(piece.as_bytes(), part, ContentType::TEXT));
            rest = after;
        }
    };
    for step in steps {
        let gap = at..step.range.start;
        let is_record = step.range.len() as u64 <= MAX_RECORD;
        if !(follows_step && is_record && text.get(gap.clone()) == Some(join)) {
            parts(gap, &mut items);
        }
        if is_record {
            let json = text.get(step.range.clone()).unwrap_or_default().as_bytes();
            let item = Item::new(json, step.array, ContentType::JSON);
            let (word, at) = series::step(format, json);
            items.push(Item { kind: word.or(item.kind), at, ..item });
        } else {
            parts(step.range.clone(), &mut items);
        }
        (at, follows_step) = (step.range.end, is_record);
    }
    parts(at..text.len(), &mut items);
    if let [only] = &mut *items
        && !only.is_step(part)
    {
        only.content = whole;
    }
    (items, join.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::formats::PART;
    use crate::formats::documents;
    use crate::formats::documents::split::{Shallow, steps};
    use crate::formats::json::without_mark;

    use super::*;

    /// The document again, as `show --raw` puts it together.
    fn joined(pieces: &[Item<'_>], join: &str) -> String {
        let mut whole = String::new();
        let mut was_step = false;
        for piece in pieces {
            let is_step = piece.is_step(PART);
            if was_step && is_step {
                whole.push_str(join);
            }
            whole.push_str(std::str::from_utf8(&piece.payload).expect("text"));
            was_step = is_step;
        }
        whole
    }

    fn pieces(text: &str) -> (Vec<Item<'_>>, String) {
        let document = Shallow::new(without_mark(text)).expect("JSON");
        let steps = steps(text, &document, documents::places(Format::SweAgent));
        cut(text, &steps, Format::SweAgent, (PART, ContentType::JSON))
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
            assert_eq!(joined(&pieces, &join), text);
            assert!(pieces.iter().all(|piece| !piece.payload.is_empty()), "{text}");
        }
    }

    #[test]
    fn steps_that_are_joined_alike_have_nothing_between_them() {
        let text = "{\"trajectory\": [\n  {},\n  {},\n  {}\n], \"x\": 1}";
        let (pieces, join) = pieces(text);
        assert_eq!(join, ",\n  ");
        let kinds: Vec<_> = pieces.iter().filter_map(|piece| piece.kind.as_deref()).collect();
        assert_eq!(kinds, [PART, "trajectory", "trajectory", "trajectory", PART]);
    }

    #[test]
    fn long_parts_are_cut_between_letters() {
        let text = format!("{{\"x\":\"{}\"}}", "\u{e9}".repeat(MAX_PART));
        let (pieces, join) = pieces(&text);
        assert_eq!(pieces.len(), 3);
        assert_eq!(joined(&pieces, &join), text);
    }
}
