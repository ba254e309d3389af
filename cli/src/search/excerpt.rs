//! The part of a payload that is shown: the match, and the text around it.

use std::borrow::Cow;
use std::ops::Range;

use super::pattern::Hit;
use crate::readable::{in_one_line, is_json, string_around, unescaped};

/// How many characters of a payload are shown where no terminal shows them.
pub(super) const CUT: usize = 240;

/// The most characters of a long payload that are shown before the match.
const LEAD: usize = 60;

/// A part of a payload in one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excerpt {
    /// Whether something before it is left out.
    pub(super) is_cut: bool,
    pub(super) before: String,
    pub(super) hit: String,
    pub(super) after: String,
    /// The bytes that are left out after it.
    pub(super) left: usize,
}

impl Excerpt {
    /// The text that a hit is in, in `room` characters: of JSON the string, as a person reads it.
    pub(super) fn of(hit: &Hit<'_>, room: usize) -> Self {
        let bytes = &*hit.bytes;
        let is_stored = matches!(hit.bytes, Cow::Borrowed(_)) && is_json(bytes);
        let string = is_stored.then(|| string_around(bytes, &hit.range)).flatten();
        let is_string = string.is_some();
        let Range { start, end } = string.unwrap_or(0..bytes.len());
        let read = |range: Range<usize>| {
            let part = bytes.get(range).unwrap_or_default();
            if is_string { in_one_line(&unescaped(part)) } else { in_one_line(part) }
        };
        let before = read(start..hit.range.start);
        let (before, hit, after) =
            (before.trim_start(), read(hit.range.clone()), read(hit.range.end..end));
        let lead = LEAD.min(room / 3);
        let skipped = match before.chars().count() {
            len if len.saturating_add(lead) <= room => 0,
            len => len - lead.min(len),
        };
        let before: String = before.chars().skip(skipped).collect();
        let taken = before.chars().count() + hit.chars().count();
        let after = after.trim_end();
        let mut ends = after.char_indices().map(|(at, _)| at).skip(room.saturating_sub(taken));
        let shown = ends.next().unwrap_or(after.len());
        let (after, rest) = after.split_at(shown);
        Self { is_cut: skipped > 0, before, hit, after: after.to_owned(), left: rest.len() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pattern::Pattern;
    use super::*;

    fn excerpt(pattern: &str, payload: &str, room: usize) -> (String, String, String) {
        let pattern = Pattern::new(pattern, false, false).expect("a pattern");
        let hit = pattern.find(payload.as_bytes()).expect("a hit");
        let Excerpt { before, hit, after, .. } = Excerpt::of(&hit, room);
        (before, hit, after)
    }

    #[test]
    fn the_string_with_the_hit_is_shown_as_it_reads() {
        let json = r#"{"role":"user","content":"one\n\"two\" \u00f6 three"}"#;
        let words = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(excerpt("two", json, 99), words("one \"", "two", "\" \u{f6} three"));
        assert_eq!(excerpt("\u{f6}", json, 99), words("one \"two\" ", "\u{f6}", " three"));
        assert_eq!(excerpt("\"two\"", json, 9), words("one ", "\"two\"", ""));
        assert_eq!(excerpt("user\",", json, 99).0, "{\"role\":\"");
        assert_eq!(excerpt("b", "a\n  b\nc", 99), words("a ", "b", " c"));
    }
}
