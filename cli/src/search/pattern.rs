//! The pattern of a search: text as a person reads it, or a regular expression.
//!
//! Payloads are JSON, and whoever wrote them may have escaped what a person reads: Python writes
//! `\u00f6` for an o with two dots, and everybody `\"` for a quotation mark. A text is compared
//! with all its forms at once; a regular expression with the payload as it is, and if that has
//! escapes, with what a reader of JSON makes of them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use memchr::memchr;
use regex::bytes::{Regex, RegexBuilder};

use crate::failure::Failure;
use crate::readable::{is_json, unescaped};

/// Text, or a regular expression, over bytes.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    /// All forms of a text.
    Forms(Regex),
    Regex(Regex),
}

/// Where something is found, and in which bytes: the payload, or what it reads like.
#[derive(Debug)]
pub(super) struct Hit<'p> {
    pub(super) bytes: Cow<'p, [u8]>,
    pub(super) range: Range<usize>,
}

impl Pattern {
    pub(super) fn new(text: &str, is_regex: bool, ignores_case: bool) -> Result<Self, Failure> {
        let is_plain = |character: char| {
            character.is_ascii_alphanumeric() || " _-.,:;()[]{}=+*!?#@$%^|~`".contains(character)
        };
        if is_regex {
            return built(text, ignores_case).map(Self::Regex).map_err(|why| {
                Failure::said(format!("{text} is not a regular expression that can be used: {why}"))
            });
        }
        let each = |character: char| {
            let plain = || regex::escape(character.encode_utf8(&mut [0; 4]));
            if is_plain(character) { plain() } else { forms(character, ignores_case) }
        };
        let forms: String = text.chars().map(each).collect();
        built(&forms, ignores_case).map(Self::Forms).map_err(Failure::said)
    }

    /// Where it is first found.
    pub(super) fn find<'p>(&self, payload: &'p [u8]) -> Option<Hit<'p>> {
        let as_it_is = |range| Hit { bytes: Cow::Borrowed(payload), range };
        match self {
            Self::Forms(regex) => {
                let mut found = regex.find_iter(payload).map(|found| found.range());
                found.find(|range| is_read(payload, range)).map(as_it_is)
            }
            Self::Regex(regex) => {
                if let Some(found) = regex.find(payload) {
                    return Some(as_it_is(found.range()));
                }
                if !is_json(payload) || memchr(b'\\', payload).is_none() {
                    return None;
                }
                let bytes = unescaped(payload);
                let range = regex.find(&bytes)?.range();
                Some(Hit { bytes: Cow::Owned(bytes), range })
            }
        }
    }
}

fn built(pattern: &str, ignores_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(pattern).case_insensitive(ignores_case).build().map_err(|error| {
        let error = error.to_string();
        // The lines above show the place.
        error.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// A regular expression for a character as it is, and for its escapes, also within a text that is
/// itself JSON in a text.
fn forms(character: char, ignores_case: bool) -> String {
    let short = match character {
        '"' => return r#"(?:\\*"|(?i-u:\\+u0022))"#.to_owned(),
        '/' => return r"(?:\\*/|(?i-u:\\+u002f))".to_owned(),
        '\\' => return r"(?:\\+|(?i-u:\\+u005c))".to_owned(),
        '\n' => r"|\\+n|\\+r\\+n",
        '\r' => r"|\\+r",
        '\t' => r"|\\+t",
        _ => "",
    };
    let mut all = vec![character];
    if ignores_case {
        all.extend(character.to_lowercase().chain(character.to_uppercase()));
    }
    let mut pattern = format!("(?:{}{short}", regex::escape(character.encode_utf8(&mut [0; 4])));
    for one in all {
        pattern.push_str("|(?i-u:");
        for unit in one.encode_utf16(&mut [0; 2]).iter() {
            // Writing to a string cannot fail.
            let _ = write!(pattern, r"\\+u{unit:04x}");
        }
        pattern.push(')');
    }
    pattern + ")"
}

/// Whether what is found begins with a character, and not within an escape, such as the `n` of a
/// newline.
fn is_read(payload: &[u8], range: &Range<usize>) -> bool {
    let before = payload.get(..range.start).unwrap_or_default();
    let slashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
    let is_escape = payload.get(range.start).is_some_and(|byte| b"nrtbfu".contains(byte));
    slashes % 2 == 0 || !is_escape || !is_json(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, payload: &str) -> Option<String> {
        let pattern = Pattern::new(pattern, false, false).expect("a pattern");
        let hit = pattern.find(payload.as_bytes())?;
        Some(String::from_utf8_lossy(&hit.bytes[hit.range]).into_owned())
    }

    #[test]
    fn a_text_is_found_in_each_of_its_forms() {
        for (pattern, payload) in [
            ("sch\u{f6}n", r#"{"a":"sch\u00f6n"}"#),
            ("sch\u{f6}n", r#"{"a":"sch\u00F6n"}"#),
            ("sch\u{f6}n", "{\"a\":\"sch\u{f6}n\"}"),
            ("\u{1f600}!", r#"{"a":"\ud83d\ude00!"}"#),
            ("say \"hi\"", r#"{"a":"say \"hi\" now"}"#),
            ("say \"hi\"", r#"{"a":"{\"b\":\"say \\\"hi\\\"\"}"}"#),
            ("a/b <c>", r#"{"a":"a\/b \u003cc\u003e"}"#),
            (r"C:\new", r#"{"a":"C:\\new"}"#),
            ("one\ntwo", r#"{"a":"one\ntwo"}"#),
            ("one\ntwo", "one\ntwo"),
            ("new", r"C:\new is no JSON"),
            ("\"a\":\"x", r#"{"a":"x"}"#),
        ] {
            assert!(found(pattern, payload).is_some(), "{pattern} in {payload}");
        }
        for (pattern, payload) in [
            ("nested", r#"{"a":"line\nested"}"#),
            ("u00f6", r#"{"a":"sch\u00f6n"}"#),
            ("\u{f6}", r#"{"a":"o"}"#),
        ] {
            assert_eq!(found(pattern, payload), None, "{pattern} in {payload}");
        }
        let pattern = Pattern::new("SCH\u{d6}N", false, true).expect("a pattern");
        assert!(pattern.find(br#"{"a":"sch\u00f6n"}"#).is_some());
    }

    #[test]
    fn a_regular_expression_is_compared_with_what_is_read_too() {
        let pattern = Pattern::new("sch.n \"gut\"$", true, false).expect("a pattern");
        assert!(pattern.find("sch\u{f6}n \"gut\"".as_bytes()).is_some());
        let pattern = Pattern::new("sch.n \"gut\"", true, false).expect("a pattern");
        let hit = pattern.find(br#"{"a":"sch\u00f6n \"gut\""}"#).expect("a hit");
        assert_eq!(&hit.bytes[hit.range], "sch\u{f6}n \"gut\"".as_bytes());
    }
}
