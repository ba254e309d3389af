//! JSON as programs really write it.
//!
//! Beyond RFC 8259 this reads `NaN`, `Infinity` and `-Infinity`, which Python writes, halves of
//! surrogate pairs, which JavaScript writes where it cuts a text, keys that an object has twice,
//! any depth, and the mark of the byte order in front.
//!
//! [`Scanner`] passes over values without building them, and needs memory only for their depth.
//! [`value`] builds one.

use std::borrow::Cow;
use std::{fmt, io};

use serde_bytes::ByteBuf;
use serde_json::{Map, Value};

/// How deep a value is built. What is deeper becomes null: no fact of a record is there.
const MAX_DEPTH: usize = 128;

/// The values that are words.
const WORDS: [&str; 6] = ["true", "false", "null", "NaN", "Infinity", "-Infinity"];

/// Where a text stops being JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotJson {
    line: usize,
    column: usize,
    is_eof: bool,
}

impl NotJson {
    /// Whether more text could make it JSON.
    pub fn is_eof(&self) -> bool {
        self.is_eof
    }
}

impl fmt::Display for NotJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_eof { "it ends early" } else { "it is not valid" };
        write!(f, "not JSON: {what} in line {}, column {}", self.line, self.column)
    }
}

impl std::error::Error for NotJson {}

impl From<NotJson> for io::Error {
    fn from(error: NotJson) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// A text without the mark of its byte order.
pub fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The value that the bytes are, if they are one.
pub fn value(bytes: &[u8]) -> Option<Value> {
    // Almost all values are strict JSON.
    serde_json::from_slice(bytes).ok().or_else(|| {
        let mut scanner = Scanner::new(std::str::from_utf8(bytes).ok()?);
        let value = scanner.build(0).ok()?;
        scanner.is_at_end().then_some(value)
    })
}

/// The value that a text begins with.
pub fn first_value(text: &str) -> Option<Value> {
    Scanner::new(text).build(0).ok()
}

/// The string that a value is, if it is one. Halves of surrogate pairs become U+FFFD.
pub fn string(value: &str) -> Option<Cow<'_, str>> {
    let mut scanner = Scanner::new(value);
    if scanner.peek() == Some(b'"') { scanner.string().ok() } else { None }
}

/// Reads the value of a key, or an element, that a [`Scanner`] stands at.
type Read<'a, 'r> = dyn FnMut(&mut Scanner<'a>, Option<Cow<'a, str>>) -> Result<(), NotJson> + 'r;

/// Reads a text from its beginning to its end, a value at a time.
#[derive(Debug)]
pub struct Scanner<'a> {
    text: &'a str,
    at: usize,
    /// The brackets that close what is open.
    open: Vec<u8>,
}

impl<'a> Scanner<'a> {
    /// Stands at the beginning of a text.
    pub fn new(text: &'a str) -> Self {
        let text = without_mark(text);
        Self { text, at: 0, open: Vec::new() }
    }

    /// Whether only space is left.
    pub fn is_at_end(&mut self) -> bool {
        self.space();
        self.rest().is_empty()
    }

    /// Checks that only space is left.
    pub fn end(&mut self) -> Result<(), NotJson> {
        if self.is_at_end() { Ok(()) } else { self.fail() }
    }

    /// Passes over one value and returns its text.
    pub fn skip(&mut self) -> Result<&'a str, NotJson> {
        self.space();
        let (start, outer) = (self.at, self.open.len());
        let end = loop {
            match self.peek() {
                Some(bracket @ (b'{' | b'[')) => {
                    self.at += 1;
                    self.open.push(bracket + 2);
                    self.space();
                    if self.peek() != Some(bracket + 2) {
                        self.colon(bracket == b'{')?;
                        continue;
                    }
                }
                Some(b'"') => self.pass_string()?,
                _ => self.scalar()?,
            }
            if self.close(outer)? {
                break self.at;
            }
        };
        Ok(self.text.get(start..end).unwrap_or_default())
    }

    /// Closes the brackets that end after a value. Answers whether all are closed since there
    /// were `outer` brackets; else the next value is due.
    fn close(&mut self, outer: usize) -> Result<bool, NotJson> {
        while self.open.len() > outer {
            self.space();
            let close = self.open.last().copied();
            if self.eat(b',') {
                self.space();
                self.colon(close == Some(b'}'))?;
                return Ok(false);
            }
            if self.peek() != close {
                self.open.truncate(outer);
                return self.fail();
            }
            self.at += 1;
            self.open.pop();
        }
        Ok(true)
    }

    /// Passes over a key and its colon, where there is one.
    fn colon(&mut self, has_key: bool) -> Result<(), NotJson> {
        if has_key {
            self.pass_string()?;
            self.space();
            if !self.eat(b':') {
                return self.fail();
            }
        }
        self.space();
        Ok(())
    }

    /// Passes over one value. `each` gets the text of every member of an object, and of every
    /// element of an array, without a key.
    pub fn each(
        &mut self,
        mut each: impl FnMut(Option<Cow<'a, str>>, &'a str),
    ) -> Result<(), NotJson> {
        self.space();
        if !matches!(self.peek(), Some(b'{' | b'[')) {
            return self.skip().map(drop);
        }
        self.inside(&mut |scanner, key| {
            each(key, scanner.skip()?);
            Ok(())
        })
    }

    /// Goes through what the bracket opens that is next; `read` reads each value.
    fn inside(&mut self, read: &mut Read<'a, '_>) -> Result<(), NotJson> {
        let is_object = self.peek() == Some(b'{');
        let close = if is_object { b'}' } else { b']' };
        self.at += 1;
        self.space();
        if self.eat(close) {
            return Ok(());
        }
        loop {
            let key = if is_object { Some(self.string()?) } else { None };
            self.space();
            if is_object && !self.eat(b':') {
                return self.fail();
            }
            read(self, key)?;
            self.space();
            if self.eat(close) {
                return Ok(());
            }
            if !self.eat(b',') {
                return self.fail();
            }
            self.space();
        }
    }

    /// Builds a value. Of a key that an object has twice, the last one is taken.
    fn build(&mut self, depth: usize) -> Result<Value, NotJson> {
        self.space();
        match self.peek() {
            Some(b'{') if depth < MAX_DEPTH => {
                let mut map = Map::new();
                self.inside(&mut |scanner, key| {
                    map.insert(key.unwrap_or_default().into_owned(), scanner.build(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::Object(map))
            }
            Some(b'[') if depth < MAX_DEPTH => {
                let mut array = Vec::new();
                self.inside(&mut |scanner, _| {
                    array.push(scanner.build(depth + 1)?);
                    Ok(())
                })?;
                Ok(Value::Array(array))
            }
            Some(b'"') => self.string().map(|text| Value::String(text.into_owned())),
            _ => {
                let text = self.skip()?;
                // No `Value` is NaN or out of range: that becomes null.
                let is_deep = text.starts_with(['{', '[']);
                Ok(if is_deep { Value::Null } else { text.parse().unwrap_or_default() })
            }
        }
    }

    /// Reads a string.
    fn string(&mut self) -> Result<Cow<'a, str>, NotJson> {
        let start = self.at;
        self.pass_string()?;
        Ok(unescaped(self.text.get(start..self.at).unwrap_or_default()))
    }

    /// Passes over a string.
    fn pass_string(&mut self) -> Result<(), NotJson> {
        if !self.eat(b'"') {
            return self.fail();
        }
        loop {
            self.at += plain(self.rest());
            match self.rest() {
                [b'"', ..] => {
                    self.at += 1;
                    return Ok(());
                }
                [b'\\', b'u', rest @ ..] => {
                    let digits = rest.iter().take(4).take_while(|byte| byte.is_ascii_hexdigit());
                    self.at += 2 + digits.clone().count();
                    if digits.count() < 4 {
                        return self.fail();
                    }
                }
                [b'\\', byte, ..] if b"\"\\/bfnrt".contains(byte) => self.at += 2,
                [b'\\'] => {
                    self.at += 1;
                    return self.fail();
                }
                _ => return self.fail(),
            }
        }
    }

    /// Passes over a number or a word.
    fn scalar(&mut self) -> Result<(), NotJson> {
        let rest = self.rest();
        if let Some(word) = WORDS.iter().find(|word| rest.starts_with(word.as_bytes())) {
            self.at += word.len();
            return Ok(());
        }
        if WORDS.iter().any(|word| word.as_bytes().starts_with(rest)) {
            self.at = self.text.len();
            return self.fail();
        }
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            if !self.eat(b'+') {
                self.eat(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), NotJson> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { self.fail() } else { Ok(()) }
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn rest(&self) -> &'a [u8] {
        self.text.as_bytes().get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// What is next cannot be there.
    fn fail<T>(&self) -> Result<T, NotJson> {
        let bytes = self.text.as_bytes();
        let is_eof = self.at >= bytes.len();
        let before = bytes.get(..self.at).unwrap_or(bytes);
        let line = memchr::memchr_iter(b'\n', before).count();
        let start = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
        let column = before.len() - start + usize::from(!is_eof);
        Err(NotJson { line: line + 1, column, is_eof })
    }
}

/// The number of bytes before the first quote, backslash or control character.
fn plain(bytes: &[u8]) -> usize {
    let len = memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
    let text = bytes.get(..len).unwrap_or_default();
    // The smallest one is found many bytes at a time.
    let has_control = text.iter().copied().fold(u8::MAX, u8::min) < b' ';
    let control = || text.iter().position(|byte| *byte < b' ');
    has_control.then(control).flatten().unwrap_or(len)
}

/// What a string is that was passed over. The library gives halves of surrogate pairs as bytes that
/// are not UTF-8.
fn unescaped(quoted: &str) -> Cow<'_, str> {
    let raw = quoted.get(1..quoted.len() - 1).unwrap_or_default();
    if memchr::memchr(b'\\', raw.as_bytes()).is_none() {
        return Cow::Borrowed(raw);
    }
    let bytes = serde_json::from_str::<ByteBuf>(quoted).unwrap_or_default();
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        // Each half has three bytes, of which only the first one is this.
        if chunk.invalid() == [0xed] {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn skipped(text: &str) -> Result<&str, NotJson> {
        let mut scanner = Scanner::new(text);
        let value = scanner.skip()?;
        assert!(scanner.is_at_end(), "{text}");
        Ok(value)
    }

    #[test]
    fn what_is_strict_json_is_read_as_the_library_reads_it() {
        for text in [
            "{}",
            "[]",
            "null",
            "-0",
            "1.5e-3",
            "1E+2",
            "\"\"",
            " [1 , {\"a\" : [ ] } ]\n",
            r#"{"a":{"b":[true,false,null]},"":"x\\\"\/\b\f\n\r\t\u00e9\ud83d\ude00"}"#,
            r#"["\\\\n", "a long text without any escape \u0041 in it \\", {"\u0061": 1}]"#,
        ] {
            let strict: Value = text.parse().expect("JSON");
            assert_eq!(Scanner::new(text).build(0), Ok(strict), "{text}");
            assert_eq!(skipped(text), Ok(text.trim()), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused_as_the_library_refuses_it() {
        for text in [
            "",
            " ",
            "{",
            "[",
            "[1",
            "[1,",
            "{\"a",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,",
            "tru",
            "-",
            "1.",
            "1e",
            "1e+",
            "\"\\",
            "\"\\u12",
            "[,",
            "[1,]",
            "{,",
            "{1:2}",
            "{\"a\" 1}",
            "[1 2]",
            "{]",
            "[}",
            "\"\u{1}\"",
            "\"\\x\"",
            "\"\\u00g0\"",
            "+1",
            ".5",
            "nul]",
            "x",
            "'a'",
        ] {
            let strict = text.parse::<Value>().expect_err("no JSON");
            let error = skipped(text).expect_err("no JSON");
            assert_eq!(error.is_eof(), strict.is_eof(), "{text}");
            assert_eq!(
                Scanner::new(text).build(0).map_err(|error| error.is_eof),
                Err(error.is_eof)
            );
        }
    }

    #[test]
    fn what_programs_write_beyond_the_standard_is_read() {
        let read = |text: &str| value(text.as_bytes());
        assert_eq!(read("[NaN, Infinity, -Infinity, 1]"), Some(json!([null, null, null, 1])));
        assert_eq!(read(r#""cut \ud83d\u2026""#), Some(json!("cut \u{fffd}\u{2026}")));
        assert_eq!(read(r#""\ud83d\n\ude00""#), Some(json!("\u{fffd}\n\u{fffd}")));
        assert_eq!(read(r#"{"a":NaN,"a":2}"#), Some(json!({"a": 2})));
        assert_eq!(read("\u{feff}[1e999]"), Some(json!([null])));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!(r#"{{"deep":{deep},"role":"user"}}"#);
        assert_eq!(read(&text).expect("a value")["role"], "user");
        assert_eq!(first_value("{\"a\":NaN}, and so on"), Some(json!({"a": null})));
        assert_eq!(read("[NaN]]"), None);
    }

    #[test]
    fn an_error_says_where_it_is() {
        let error = skipped("{\n  \"a\": nothing}").expect_err("no JSON");
        assert_eq!(error.to_string(), "not JSON: it is not valid in line 2, column 8");
        let error = skipped("{\"a\":").expect_err("no JSON");
        assert_eq!(error.to_string(), "not JSON: it ends early in line 1, column 5");
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_read_or_refused() {
        let text = r#"{"a":[1.5e3,"\ud83d\u00e9",{"b":-Infinity}],"c":null} "#;
        for end in 0..=text.len() {
            let cut = text.get(..end).expect("ASCII");
            assert_eq!(skipped(cut).is_err(), end < text.len() - 1);
            for byte in [b'"', b'\\', b'{', b']', b',', b'0', b'N'] {
                let changed =
                    format!("{cut}{}{}", char::from(byte), text.get(end + 1..).unwrap_or(""));
                let mut scanner = Scanner::new(&changed);
                let is_read = scanner.skip().is_ok() && scanner.is_at_end();
                assert_eq!(value(changed.as_bytes()).is_some(), is_read, "{changed}");
            }
        }
    }
}
