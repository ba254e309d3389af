//! A payload as a person reads it: JSON indented, other text line by line, and long ones folded.
//!
//! JSON is not built anew: its tokens are printed as they are stored, so that every digit and every
//! repeated key is there. Nothing is held in memory but the payload.

use std::io::{self, Write};
use std::ops::ControlFlow;

use serde::de::IgnoredAny;

use unicode_width::UnicodeWidthChar as _;

use crate::escape::{cut, is_plain};
use crate::output::{Output, size};
use crate::screen::{Screen, Style};

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
    let (left, is_open) = (fold.characters, false);
    let mut lines = Lines { out, fold, line: 0, left, cut: 0, is_open, indent: 0, column: 0 };
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
    /// How far in the line begins behind its margin.
    indent: usize,
    /// How many columns of the terminal are taken.
    column: usize,
}

impl<W: Write> Lines<'_, W> {
    /// Writes a part of a line.
    fn part(&mut self, style: Style, text: &[u8]) -> io::Result<()> {
        if !self.is_open {
            self.out.text(MARGIN)?;
            (self.is_open, self.column) = (true, MARGIN.len());
        }
        let shown = cut(text, self.left);
        if self.left != usize::MAX {
            self.left -= String::from_utf8_lossy(shown).chars().count().min(self.left);
        }
        self.cut += text.len() - shown.len();
        self.print(style, shown)
    }

    /// Writes text; what does not fit the terminal goes on below, as far in as the line began.
    fn print(&mut self, style: Style, mut text: &[u8]) -> io::Result<()> {
        let Some(width) = self.out.screen().map(Screen::width) else {
            return if text.is_empty() { Ok(()) } else { self.out.styled(style, text) };
        };
        let margin = MARGIN.len() + self.indent;
        while !text.is_empty() {
            let (mut len, columns) = fitting(text, width.saturating_sub(self.column));
            if len == 0 && self.column > margin {
                self.out.line("")?;
                self.out.text(" ".repeat(margin))?;
                self.column = margin;
                continue;
            }
            if len == 0 {
                // The terminal is narrower than a character.
                len = cut(text, 1).len();
            }
            let (now, rest) = text.split_at(len);
            self.out.styled(style, now)?;
            self.column += columns.max(1);
            text = rest;
        }
        Ok(())
    }

    /// Ends the line, if there is one.
    fn end(&mut self) -> io::Result<()> {
        if !self.is_open {
            return Ok(());
        }
        if self.cut > 0 {
            let more = format!(" ... {} more", size(self.cut as u64));
            self.print(Style::Plain, more.as_bytes())?;
        }
        (self.is_open, self.left, self.cut) = (false, self.fold.characters, 0);
        self.indent = 0;
        self.line += 1;
        self.out.line("")
    }

    /// Ends the line, and begins one at this depth, if there may be one more.
    fn next(&mut self, depth: usize) -> io::Result<ControlFlow<()>> {
        self.end()?;
        if self.line == self.fold.lines {
            return Ok(ControlFlow::Break(()));
        }
        // On a terminal, what is far in stays in sight.
        let most = self.out.screen().map_or(usize::MAX, |screen| screen.width() / 2);
        self.indent = (2 * depth).min(most);
        self.part(Style::Plain, " ".repeat(self.indent).as_bytes())?;
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

/// How many bytes of a text fit so many columns as it is printed, and how many columns they take.
fn fitting(text: &[u8], room: usize) -> (usize, usize) {
    let columns_of = |character: char| match character {
        ' '..='~' => 1,
        _ if is_plain(character) => character.width().unwrap_or_default(),
        _ => character.escape_default().len(),
    };
    let pieces = text.utf8_chunks().flat_map(|chunk| {
        let valid = chunk.valid().chars().map(|found| (found.len_utf8(), columns_of(found)));
        // As `\xff`.
        valid.chain(chunk.invalid().iter().map(|_| (1, 4)))
    });
    let (mut len, mut taken) = (0, 0);
    for (bytes, columns) in pieces {
        if taken + columns > room {
            break;
        }
        (len, taken) = (len + bytes, taken + columns);
    }
    (len, taken)
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
    fn what_is_wider_than_the_terminal_goes_on_below_where_its_line_began() {
        let folded = |payload: &str, width: usize| {
            let mut out = Output::memory(false, Some(Screen::plain(width)));
            write(&mut out, payload.as_bytes(), Fold::NONE).expect("memory");
            String::from_utf8(out.take()).expect("UTF-8")
        };
        assert_eq!(folded("0123456789ab", 10), "    012345\n    6789ab\n");
        assert_eq!(folded("[\"0123456789\"]", 14), "    [\n      \"0123456\n      789\"\n    ]\n");
        // Letters of two columns, marks of none, and escapes stay whole.
        assert_eq!(folded("\u{3042}\u{3044}\u{3046}a", 9), "    \u{3042}\u{3044}\n    \u{3046}a\n");
        assert_eq!(folded("abe\u{301}\u{7}", 7), "    abe\u{301}\n    \\u{7}\n");
        // A terminal that is too narrow for anything, and lines that are too far in.
        assert_eq!(folded("ab", 3), "    a\n    b\n");
        let deep = format!("{}1{}", "[".repeat(40), "]".repeat(40));
        assert!(folded(&deep, 20).lines().all(|line| line.trim() != ""));
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
