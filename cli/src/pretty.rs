//! A payload as a person reads it: JSON indented, other text line by line, and long ones folded.
//!
//! JSON is not built anew: its tokens are printed as they are stored, so that every digit and every
//! repeated key is there. Nothing is held in memory but the payload.

use std::io::{self, Write};
use std::ops::ControlFlow;

use serde::de::IgnoredAny;

use crate::escape::cut;
use crate::output::{Output, size};
use crate::screen::Style;

/// In front of each line.
const MARGIN: &str = "    ";

/// How much of a payload is shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fold {
    /// The most lines.
    pub(crate) lines: usize,
    /// The most characters of a line.
    pub(crate) characters: usize,
}

impl Fold {
    /// What fits a look.
    pub(crate) const SHORT: Self = Self { lines: 20, characters: 400 };
    /// Everything.
    pub(crate) const NONE: Self = Self { lines: usize::MAX, characters: usize::MAX };
}

/// Writes a payload as lines with a margin, and what was left out as the last line.
pub(crate) fn write<W: Write>(out: &mut Output<W>, payload: &[u8], fold: Fold) -> io::Result<()> {
    let mut lines = Lines { out, fold, line: 0, left: fold.characters, cut: 0, is_open: false };
    let text = std::str::from_utf8(payload).ok();
    let json = text.filter(|text| serde_json::from_str::<IgnoredAny>(text).is_ok());
    let shown = match json {
        Some(json) => lines.json(json)?,
        None => lines.text(payload)?,
    };
    lines.end()?;
    match payload.len() - shown {
        0 => Ok(()),
        rest => out.line(format!("{MARGIN}... {} more (--full)", size(rest as u64))),
    }
}

/// Writes lines until there are enough.
struct Lines<'a, W> {
    out: &'a mut Output<W>,
    fold: Fold,
    /// How many lines are complete.
    line: usize,
    /// How many characters the line may still have.
    left: usize,
    /// How many bytes of the line were cut.
    cut: usize,
    /// Whether the line has its margin.
    is_open: bool,
}

impl<W: Write> Lines<'_, W> {
    /// Writes a part of a line.
    fn part(&mut self, style: Style, text: &[u8]) -> io::Result<()> {
        if !self.is_open {
            self.out.text(MARGIN)?;
            self.is_open = true;
        }
        let shown = cut(text, self.left);
        if self.left != usize::MAX {
            self.left -= String::from_utf8_lossy(shown).chars().count().min(self.left);
        }
        self.cut += text.len() - shown.len();
        if shown.is_empty() { Ok(()) } else { self.out.styled(style, shown) }
    }

    /// Ends the line, if there is one.
    fn end(&mut self) -> io::Result<()> {
        if !self.is_open {
            return Ok(());
        }
        if self.cut > 0 {
            self.out.text(format!(" ... {} more", size(self.cut as u64)))?;
        }
        (self.is_open, self.left, self.cut) = (false, self.fold.characters, 0);
        self.line += 1;
        self.out.line("")
    }

    /// Ends the line, and begins one at this depth, if there may be one more.
    fn next(&mut self, depth: usize) -> io::Result<ControlFlow<()>> {
        self.end()?;
        if self.line == self.fold.lines {
            return Ok(ControlFlow::Break(()));
        }
        self.part(Style::Plain, " ".repeat(2 * depth).as_bytes())?;
        Ok(ControlFlow::Continue(()))
    }

    /// Writes a JSON text; answers how many of its bytes were written.
    fn json(&mut self, json: &str) -> io::Result<usize> {
        let bytes = json.as_bytes();
        let (mut at, mut depth) = (0, 0_usize);
        while let Some(byte) = bytes.get(at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => at += 1,
                b'{' | b'[' => {
                    let next = blank_end(bytes, at + 1);
                    if matches!(bytes.get(next), Some(b'}' | b']')) {
                        self.part(Style::Plain, &[*byte, bytes[next]])?;
                        at = next + 1;
                        continue;
                    }
                    self.part(Style::Plain, &[*byte])?;
                    (at, depth) = (next, depth + 1);
                    if self.next(depth)?.is_break() {
                        return Ok(at);
                    }
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    if self.next(depth)?.is_break() {
                        return Ok(at);
                    }
                    self.part(Style::Plain, &[*byte])?;
                    at += 1;
                }
                b',' => {
                    self.part(Style::Plain, b",")?;
                    at = blank_end(bytes, at + 1);
                    if self.next(depth)?.is_break() {
                        return Ok(at);
                    }
                }
                b':' => {
                    self.part(Style::Plain, b": ")?;
                    at += 1;
                }
                _ => {
                    let end = token_end(bytes, at);
                    let is_key = bytes.get(blank_end(bytes, end)) == Some(&b':');
                    self.part(if is_key { Style::Lively } else { Style::Plain }, &bytes[at..end])?;
                    at = end;
                }
            }
        }
        Ok(at)
    }

    /// Writes a text that is no JSON; answers how many of its bytes were written.
    fn text(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut at = 0;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            if self.line == self.fold.lines {
                break;
            }
            let shown = line.strip_suffix(b"\n").unwrap_or(line);
            let shown = shown.strip_suffix(b"\r").unwrap_or(shown);
            if shown.is_empty() {
                // No margin, which would be blanks at the end of a line.
                self.line += 1;
                self.out.line("")?;
            } else {
                self.part(Style::Plain, shown)?;
                self.end()?;
            }
            at += line.len();
        }
        Ok(at)
    }
}

/// Where the blanks end that begin at `at`.
fn blank_end(bytes: &[u8], at: usize) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n')).count()
}

/// Where the string, number or word ends that begins at `at`.
fn token_end(bytes: &[u8], at: usize) -> usize {
    if bytes[at] != b'"' {
        let ends = |byte: &&u8| !b",:]} \t\r\n".contains(byte);
        return at + bytes[at..].iter().take_while(ends).count().max(1);
    }
    let mut end = at + 1;
    while let Some(found) = memchr::memchr2(b'"', b'\\', &bytes[end..]) {
        end += found + 1;
        if bytes[end - 1] == b'"' {
            return end;
        }
        end = (end + 1).min(bytes.len());
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(shown(json, Fold::SHORT), lines.join("\n"));
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
    fn what_is_long_is_folded() {
        let fold = Fold { lines: 2, characters: 10 };
        assert_eq!(
            shown(b"0123456789abc\nx\ny\nz", fold),
            "    0123456789 ... 3 B more\n    x\n    ... 3 B more (--full)\n"
        );
        assert_eq!(shown(b"[1,2,3]", fold), "    [\n      1,\n    ... 4 B more (--full)\n");
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert_eq!(shown(deep.as_bytes(), fold).lines().count(), 3);
    }
}
