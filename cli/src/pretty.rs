//! A payload as a person reads it: JSON indented, other text line by line, and long ones folded.
//!
//! JSON is not built anew: its tokens are printed as they are stored, so that every digit and every
//! repeated key is there.

use std::io::{self, Write};

use serde::de::IgnoredAny;

use crate::output::Output;
use crate::readable::string_end;
use crate::screen::Style;
use crate::wrap::{Fold, Folded};

/// How far in each line begins.
const MARGIN: usize = 4;

/// What fits a look.
pub(crate) const SHORT: Fold = Fold { lines: 20, characters: 400 };

/// Writes a payload as lines with a margin, and how many were left out as the last line.
pub(crate) fn write<W: Write>(out: &mut Output<W>, payload: &[u8], fold: Fold) -> io::Result<()> {
    let mut lines = Folded::new(out, MARGIN, fold);
    let text = std::str::from_utf8(payload).ok();
    match text.filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok()) {
        Some(json) => {
            each_line(json, |depth, key, line| {
                lines.line(2 * depth, key, Style::Plain, line.as_bytes())
            })?;
        }
        None => {
            for line in payload.split_inclusive(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let line = line.strip_suffix(b"\r").unwrap_or(line);
                lines.line(0, 0, Style::Plain, line)?;
            }
        }
    }
    lines.end()
}

/// Calls `each` with each line of a JSON text as it is indented: how deep it is, how long its key
/// is, and the line.
fn each_line(
    json: &str,
    mut each: impl FnMut(usize, usize, &str) -> io::Result<()>,
) -> io::Result<()> {
    let bytes = json.as_bytes();
    let (mut line, mut key, mut depth) = (String::new(), 0, 0_usize);
    let mut at = blank_end(bytes, 0);
    while let Some(byte) = bytes.get(at) {
        let end = token_end(bytes, at);
        let next = blank_end(bytes, end);
        let closes = |at: usize| matches!(bytes.get(at), Some(b'}' | b']'));
        if closes(at) && !line.ends_with(['{', '[']) {
            each(depth, key, &line)?;
            (line, key, depth) = (String::new(), 0, depth.saturating_sub(1));
        }
        line.push_str(&json[at..end]);
        match byte {
            b':' => {
                key = line.len() - 1;
                line.push(' ');
            }
            b',' | b'{' | b'[' if !(closes(next) && *byte != b',') => {
                each(depth, key, &line)?;
                (line, key) = (String::new(), 0);
                depth += usize::from(*byte != b',');
            }
            _ => {}
        }
        at = next;
    }
    each(depth, key, &line)
}

/// Where the blanks end that begin at `at`.
fn blank_end(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).count()
}

/// Where the token ends that begins at `at`: a sign, a string, a number or a word.
fn token_end(bytes: &[u8], at: usize) -> usize {
    match bytes[at] {
        b'"' => (string_end(bytes, at + 1) + 1).min(bytes.len()),
        b'{' | b'}' | b'[' | b']' | b',' | b':' => at + 1,
        _ => {
            let ends = |byte: &&u8| !b",:]} \t\r\n".contains(byte);
            at + bytes[at..].iter().take_while(ends).count()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Screen;

    fn shown(payload: &[u8], fold: Fold) -> String {
        let mut out = Output::memory(false, None);
        write(&mut out, payload, fold).expect("memory");
        String::from_utf8(out.take()).expect("UTF-8")
    }

    #[test]
    fn json_is_indented_and_its_tokens_are_kept() {
        let json = br#" {"a":1.50,"a" : [ ],"b":[true,{"c\"}":"x,\\"},null], "d":{}}
"#;
        let lines = [
            "    {",
            "      \"a\": 1.50,",
            "      \"a\": [],",
            "      \"b\": [",
            "        true,",
            "        {",
            "          \"c\\\"}\": \"x,\\\\\"",
            "        },",
            "        null",
            "      ],",
            "      \"d\": {}",
            "    }",
            "",
        ];
        assert_eq!(shown(json, Fold::NONE), lines.join("\n"));
        assert_eq!(shown(json, SHORT), lines.join("\n"));
        assert_eq!(shown(b"7", Fold::NONE), "    7\n");
        assert_eq!(shown(br#""a b""#, Fold::NONE), "    \"a b\"\n");
    }

    #[test]
    fn what_is_indented_is_the_same_json() {
        let text = br#"{"a":[1,-2.5e9,"\u001b\\\"",[[],{"x":{"y":[0]}}]],"b":"\\","":null}"#;
        let value: serde_json::Value = serde_json::from_slice(text).expect("JSON");
        let read: serde_json::Value =
            serde_json::from_str(&shown(text, Fold::NONE)).expect("JSON again");
        assert_eq!(read, value);
    }

    #[test]
    fn other_text_is_shown_line_by_line() {
        assert_eq!(shown(b"{torn\r\n\n\x1bend", Fold::NONE), "    {torn\n\n    \\u{1b}end\n");
        assert_eq!(shown(b"\xff\n", Fold::NONE), "    \\xff\n");
        assert_eq!(shown(b"", Fold::NONE), "");
    }

    #[test]
    fn what_is_wider_than_the_terminal_goes_on_below_where_its_line_began() {
        let folded = |payload: &str, width: usize| {
            let mut out = Output::memory(false, Some(Screen::plain(width)));
            write(&mut out, payload.as_bytes(), Fold::NONE).expect("memory");
            String::from_utf8(out.take()).expect("UTF-8")
        };
        let long = "0123456789".repeat(4);
        let (first, second) = long.split_at(20);
        assert_eq!(folded(&long, 24), format!("    {first}\n    {second}\n"));
        let json = format!("[\"{}\"]", &long[1..39]);
        let (first, second) = json[1..41].split_at(20);
        let lines = format!("    [\n      {first}\n      {second}\n    ]\n");
        assert_eq!(folded(&json, 26), lines);
        // Letters of two columns stay whole.
        let wide = "\u{3042}".repeat(11);
        assert_eq!(folded(&wide, 24), format!("    {}\n    \u{3042}\n", &wide[..30]));
        let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
        assert!(folded(&deep, 20).lines().all(|line| line.trim() != ""));
    }

    #[test]
    fn what_is_long_is_folded() {
        let fold = Fold { lines: 2, characters: 10 };
        assert_eq!(
            shown(b"0123456789abc\nx\ny\nz", fold),
            "    0123456789 ...\n    x\n    ... 2 more lines (--full)\n"
        );
        assert_eq!(shown(b"[1,2,3]", fold), "    [\n      1,\n    ... 3 more lines (--full)\n");
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(shown(deep.as_bytes(), fold).lines().count(), 3);
    }
}
