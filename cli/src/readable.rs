//! Text in JSON as a person reads it.

use std::ops::Range;

use memchr::{memchr, memchr2};

/// Whether bytes look like JSON.
pub(crate) fn is_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first().is_some_and(|first| b"{[\"".contains(first))
}

/// The bytes with the escapes of JSON taken out. What is no escape stays.
pub(crate) fn unescaped(bytes: &[u8]) -> Vec<u8> {
    let (mut text, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some(at) = memchr(b'\\', rest) {
        let (plain, after) = rest.split_at(at);
        text.extend_from_slice(plain);
        let (character, len) = escape(after);
        match character {
            Some(character) => {
                text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            None => text.extend_from_slice(&after[..len]),
        }
        rest = &after[len..];
    }
    text.extend_from_slice(rest);
    text
}

/// The character of the escape that the bytes begin with, and how long the escape is.
fn escape(bytes: &[u8]) -> (Option<char>, usize) {
    let short = match bytes.get(1) {
        Some(b'u') => return unicode(bytes),
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(other @ (b'"' | b'\\' | b'/')) => char::from(*other),
        _ => return (None, 1),
    };
    (Some(short), 2)
}

/// The same of `\u` and four digits, and of two of these for characters beyond.
fn unicode(bytes: &[u8]) -> (Option<char>, usize) {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let Some(first) = unit(0) else { return (None, 2) };
    if let Some(character) = char::from_u32(first.into()) {
        return (Some(character), 6);
    }
    let both = unit(6).map(|second| char::decode_utf16([first, second]).next());
    match both {
        Some(Some(Ok(character))) => (Some(character), 12),
        // Half a character.
        _ => (Some(char::REPLACEMENT_CHARACTER), 6),
    }
}

/// The inside of the string of a JSON text that the range is in.
pub(crate) fn string_around(json: &[u8], range: &Range<usize>) -> Option<Range<usize>> {
    let mut at = 0;
    loop {
        let start = at + memchr(b'"', json.get(at..range.end)?)? + 1;
        let end = string_end(json, start);
        if start <= range.start && range.end <= end {
            return Some(start..end);
        }
        if end >= range.end {
            return None;
        }
        at = end + 1;
    }
}

/// Where the string ends whose inside begins at `start`.
pub(crate) fn string_end(json: &[u8], start: usize) -> usize {
    let mut end = start;
    while let Some(found) = json.get(end..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        end += found;
        if json.get(end) == Some(&b'"') {
            return end;
        }
        end += 2;
    }
    json.len()
}

/// A text in one line: every row of blanks is one space.
pub(crate) fn in_one_line(bytes: &[u8]) -> String {
    let mut line = String::with_capacity(bytes.len());
    for character in String::from_utf8_lossy(bytes).chars() {
        let is_blank = character.is_whitespace();
        if !is_blank {
            line.push(character);
        } else if !line.ends_with(' ') {
            line.push(' ');
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_become_what_they_stand_for() {
        for (escaped, text) in [
            (r#"a\nb\t\"\\\/"#, "a\nb\t\"\\/"),
            (r"\u00f6\u00F6", "\u{f6}\u{f6}"),
            (r"\ud83d\ude00", "\u{1f600}"),
            (r"\ud83dx", "\u{fffd}x"),
            (r"\x\u12", r"\x\u12"),
            (r"end\", r"end\"),
        ] {
            assert_eq!(unescaped(escaped.as_bytes()), text.as_bytes(), "{escaped}");
        }
    }

    #[test]
    fn a_place_is_within_one_string_or_none() {
        let json = br#"{"a":"b\"c","d":["e"]}"#;
        let around = |range: Range<usize>| string_around(json, &range).map(|found| &json[found]);
        assert_eq!(around(6..7), Some(&b"b\\\"c"[..]));
        assert_eq!(around(9..10), Some(&b"b\\\"c"[..]));
        assert_eq!(around(2..3), Some(&b"a"[..]));
        assert_eq!(around(2..7), None);
        assert_eq!(around(4..5), None);
        assert_eq!(string_around(b"[1,2]", &(1..2)), None);
    }
}
