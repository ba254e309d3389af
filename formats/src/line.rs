//! What one line of an imported file is: its kind, its content type, its time, its damage.

use std::borrow::Cow;

use runlog::{ContentType, RunStatus, Timestamp};
use runlog_stores::json_lines::UNTERMINATED;

use super::PART;
use super::envelope::ENVELOPE;
use super::json::{NotJson, Scanner, string};
use super::revision::REVISION;

/// The kind of a line that is not exactly one JSON value.
pub const RAW: &str = "raw";

/// The longest `type` of a line that becomes its kind.
const MAX_KIND: usize = 32;

/// A line, classified.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// What the line calls itself in its `record` or `type`, where that is a plain word.
    pub kind: Option<String>,
    /// The time that the line gives itself.
    pub at: Option<Timestamp>,
    /// How the run ended, where the line says that it did.
    pub end: Option<RunStatus>,
    /// The run goes on, although an earlier line may say that it ended.
    pub goes_on: bool,
    /// Why it is kept as a raw record.
    pub damage: Option<LineDamage>,
    /// It is of a file of text.
    is_plain: bool,
    /// It is of a file of text, and UTF-8.
    is_text: bool,
}

/// What is wrong with a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineDamage {
    /// It is not UTF-8.
    NotUtf8,
    /// It has NUL bytes, as a file that was never written to its end.
    Nul,
    /// Several values, as when two writers share a file.
    Welded,
    /// Ends within a value.
    Torn,
    /// It is not JSON.
    NotJson,
}

impl LineDamage {
    /// What is wrong, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotUtf8 => "not UTF-8",
            Self::Nul => "NUL bytes",
            Self::Welded => "more than one JSON value",
            Self::Torn => "torn off within a JSON value",
            Self::NotJson => "not JSON",
        }
    }
}

impl Line {
    /// Looks at the bytes between two newlines.
    pub fn new(bytes: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self::damaged(LineDamage::NotUtf8);
        };
        // A blank line is kept like any other and is no damage.
        if text.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r')) {
            return Self::default();
        }
        let mut object = Object::default();
        let mut scanner = Scanner::new(text);
        let read = scanner.each(|key, value| object.take(key.as_deref(), value));
        if read.is_ok() && scanner.is_at_end() {
            return object.line();
        }
        Self::damaged(damage(text, read, scanner))
    }

    /// A line of a file of text: nothing is expected of it.
    pub fn text(bytes: &[u8]) -> Self {
        Self { is_text: std::str::from_utf8(bytes).is_ok(), is_plain: true, ..Self::default() }
    }

    fn damaged(damage: LineDamage) -> Self {
        Self { damage: Some(damage), ..Self::default() }
    }

    /// The content type that the line is stored with.
    pub fn content_type(&self) -> ContentType {
        match (self.damage, self.is_plain) {
            (None, false) => ContentType::JSON_LINE,
            (None, true) if self.is_text => ContentType::TEXT,
            _ => ContentType::BYTES,
        }
    }
}

/// Why the text is not exactly one JSON value, after the first value was read.
fn damage(text: &str, read: Result<(), NotJson>, mut scanner: Scanner<'_>) -> LineDamage {
    match (read, text.contains('\0')) {
        (Err(error), false) if error.is_eof() => LineDamage::Torn,
        (Ok(()), has_nul) => match scanner.skip() {
            Ok(_) => LineDamage::Welded,
            Err(_) if has_nul => LineDamage::Nul,
            Err(error) if error.is_eof() => LineDamage::Welded,
            Err(_) => LineDamage::NotJson,
        },
        (_, true) => LineDamage::Nul,
        (_, false) => LineDamage::NotJson,
    }
}

/// The fields of a line that are of interest, whatever their values are.
const FIELDS: [&str; 11] = [
    "record",
    "type",
    "termination",
    "payload",
    "is_error",
    "session_id",
    "data",
    // Of a message of Goose: when it was created.
    "created",
    // Of a change of a chat of VS Code: what it does, what it changes, and the new value.
    "kind",
    "k",
    "v",
];

/// The fields that give a line its time, the best first.
const TIMES: [&str; 5] = ["timestamp", "started_at", "ended_at", "recorded_at", "startTime"];

/// The texts of the values of [`FIELDS`] and [`TIMES`]: memory for no others.
#[derive(Default)]
struct Object<'a>([Option<&'a str>; FIELDS.len() + TIMES.len()]);

impl<'a> Object<'a> {
    fn place(key: &str) -> Option<usize> {
        FIELDS.iter().chain(&TIMES).position(|field| *field == key)
    }

    /// Takes a member if it is of interest.
    fn take(&mut self, key: Option<&str>, value: &'a str) {
        let place = key.and_then(Self::place);
        if let Some(place) = place.and_then(|place| self.0.get_mut(place)) {
            *place = Some(value);
        }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        *self.0.get(Self::place(key)?)?
    }

    fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        string(self.get(key)?)
    }

    /// The string of a key of the object that a field is.
    fn inner(&self, key: &str, inner: &str) -> Option<Cow<'a, str>> {
        string(member(self.get(key)?, inner)?)
    }

    fn line(&self) -> Line {
        let (record, type_) = (self.text("record"), self.text("type"));
        let end = match (record.as_deref(), type_.as_deref()) {
            (Some("ended"), _) => Some(self.termination()),
            (None, Some("result")) => self.result(),
            (None, Some("turn.completed")) => Some(RunStatus::Completed),
            (None, Some("turn.failed")) => Some(RunStatus::Failed),
            (None, Some("session.shutdown")) => self.shutdown(),
            _ => None,
        };
        let at = TIMES.iter().find_map(|key| self.text(key)?.parse().ok());
        let goes_on = matches!(type_.as_deref(), Some("turn.started" | "session.resume"));
        // What the items in the envelopes of Codex call themselves.
        let inner = self.inner("payload", "type");
        let mut words = [record, inner, type_, self.changed()].into_iter().flatten();
        let kind = words.find_map(|word| kind(&word));
        Line { at: at.or_else(|| self.unix_time()), end, goes_on, kind, ..Line::default() }
    }

    /// What a change of a chat of VS Code changes.
    fn changed(&self) -> Option<Cow<'a, str>> {
        self.get("kind").filter(|change| matches!(*change, "1" | "2" | "3"))?;
        let mut first = None;
        let path = Scanner::new(self.get("k")?).each(|_, value| {
            first = first.or(Some(value));
        });
        path.ok().and_then(|()| string(first?))
    }

    /// A time that is a number: of a message of Goose in seconds, of a chat of VS Code in
    /// milliseconds.
    fn unix_time(&self) -> Option<Timestamp> {
        let seconds = self.get("created").and_then(|created| created.parse::<i64>().ok());
        let millis = || {
            let chat = self.get("v").filter(|_| self.get("kind") == Some("0"))?;
            member(chat, "creationDate")?.parse::<i64>().ok()
        };
        let millis = seconds.and_then(|seconds| seconds.checked_mul(1000)).or_else(millis)?;
        (millis >= 0).then(|| millis.checked_mul(1_000_000))?.map(Timestamp)
    }

    /// How a run of CAR ended. A termination of an unknown form is an end all the same.
    fn termination(&self) -> RunStatus {
        let [kind, status] = ["kind", "status"].map(|key| self.inner("termination", key));
        match (kind.as_deref(), status.as_deref()) {
            (Some("incomplete"), _) => RunStatus::Interrupted,
            (Some("cancelled"), _) => RunStatus::Cancelled,
            (_, Some("failure" | "give_up" | "timeout")) => RunStatus::Failed,
            _ => RunStatus::Completed,
        }
    }

    /// How a run of `claude --output-format stream-json` ended, by its last line.
    fn result(&self) -> Option<RunStatus> {
        self.text("session_id")?;
        match self.get("is_error")? {
            "false" => Some(RunStatus::Completed),
            "true" => Some(RunStatus::Failed),
            _ => None,
        }
    }

    /// How a session of Copilot ended.
    fn shutdown(&self) -> Option<RunStatus> {
        Some(match &*self.inner("data", "shutdownType")? {
            "routine" => RunStatus::Completed,
            "error" => RunStatus::Failed,
            _ => RunStatus::Interrupted,
        })
    }
}

/// The text of the value that an object has for a key.
fn member<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let mut found = None;
    Scanner::new(object)
        .each(|name, value| {
            if name.as_deref() == Some(key) {
                found = Some(value);
            }
        })
        .ok()?;
    found
}

/// A word that can be the kind of a record: short, plain, and none of the kinds that this import
/// gives a meaning of its own.
pub fn kind(word: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    let fits = (1..=MAX_KIND).contains(&word.len()) && word.bytes().all(is_plain);
    (fits && ![RAW, UNTERMINATED, PART, REVISION, ENVELOPE].contains(&word))
        .then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage_of(line: &[u8]) -> Option<LineDamage> {
        Line::new(line).damage
    }

    #[test]
    fn one_json_value_of_any_type_is_fine() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        for line in ["{}", " {\"a\":1} \r", "1", "null", "\"x\"", "[1e999]", "{\"a\":1,\"a\":2}"] {
            assert_eq!(damage_of(line.as_bytes()), None, "{line}");
        }
        assert_eq!(damage_of(deep.as_bytes()), None);
        assert_eq!(damage_of(br#"{"timestamp":1,"timestamp":"x","type":["a"]}"#), None);
        assert_eq!(damage_of(br#""\ud800""#), None);
        assert_eq!(damage_of(br#"{"a":NaN,"b":[Infinity,-Infinity]}"#), None);
        assert_eq!(damage_of("\u{feff}{}".as_bytes()), None);
    }

    #[test]
    fn lines_beyond_the_standard_have_kinds_and_times() {
        let time = r#""timestamp":"1970-01-01T00:00:01Z""#;
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        for line in [
            format!(r#"{{"type":"x",{time},"score":NaN}}"#),
            format!(r#"{{"type":"w","type":"x",{time},{time}}}"#),
            format!(r#"{{"deep":{deep},"type":"x",{time}}}"#),
            format!(r#"{{"cut":"\ud83d","type":"x",{time}}}"#),
            format!("\u{feff}{{{time},\"type\":\"x\"}}"),
        ] {
            let line = Line::new(line.as_bytes());
            assert_eq!(
                (line.kind.as_deref(), line.at),
                (Some("x"), Some(Timestamp(1_000_000_000)))
            );
        }
    }

    #[test]
    fn damage_is_named() {
        assert_eq!(damage_of(br#"{"a":1}{"b":2}"#), Some(LineDamage::Welded));
        assert_eq!(damage_of(br#"{"a":1} {"b":"#), Some(LineDamage::Welded));
        assert_eq!(damage_of(br#"{"a":"b"#), Some(LineDamage::Torn));
        assert_eq!(damage_of(b"\0\0\0\0"), Some(LineDamage::Nul));
        assert_eq!(damage_of(b"{\"a\":1}\0"), Some(LineDamage::Nul));
        assert_eq!(damage_of(b"{\"a\":\"\xff\"}"), Some(LineDamage::NotUtf8));
        assert_eq!(damage_of(b"hello"), Some(LineDamage::NotJson));
        assert_eq!(damage_of(b"{\"a\":1},"), Some(LineDamage::NotJson));
        assert_eq!(damage_of("{}\u{feff}".as_bytes()), Some(LineDamage::NotJson));
        assert_eq!(damage_of(b"[NaN"), Some(LineDamage::Torn));
    }

    #[test]
    fn blank_lines_are_no_damage() {
        for line in [&b""[..], b"\r", b" \t"] {
            assert_eq!(Line::new(line), Line::default());
        }
    }

    #[test]
    fn kinds_and_times_come_from_the_line() {
        let line = Line::new(br#"{"type":"message","timestamp":"1970-01-01T00:00:01Z","x":[]}"#);
        assert_eq!(line.kind.as_deref(), Some("message"));
        assert_eq!(line.at, Some(Timestamp(1_000_000_000)));
        let line = Line::new(br#"{"type":"unterminated-line","timestamp":1}"#);
        assert_eq!((line.kind, line.at), (None, None));
        assert_eq!(Line::new(br#"{"type":"two words"}"#).kind, None);
    }

    #[test]
    fn an_array_is_not_the_object_that_it_resembles() {
        let time = r#""2026-01-02T03:04:05Z""#;
        for line in [
            r#"["ended",null,null,null,null,null]"#.to_owned(),
            r#" ["started","message",null,null,null,null]"#.to_owned(),
            format!(r#"["ended","message",{time},{time},{time},{{"kind":"incomplete"}}]"#),
        ] {
            assert_eq!(Line::new(line.as_bytes()), Line::default(), "{line}");
        }
    }

    #[test]
    fn the_ends_of_car_files_are_understood() {
        let end_of = |line: &str| Line::new(line.as_bytes()).end;
        assert_eq!(end_of(r#"{"record":"started","run_id":"r"}"#), None);
        assert_eq!(end_of(r#"{"record":"turn"}"#), None);
        for (termination, end) in [
            (r#"{"kind":"incomplete"}"#, RunStatus::Interrupted),
            (r#"{"kind":"outcome","status":"success","outcome":{}}"#, RunStatus::Completed),
            (r#"{"kind":"outcome","status":"give_up"}"#, RunStatus::Failed),
            (r#"{"kind":"cancelled","cancellation":{}}"#, RunStatus::Cancelled),
            ("17", RunStatus::Completed),
            (r#"["incomplete","failure"]"#, RunStatus::Completed),
        ] {
            let line = format!(r#"{{"record":"ended","termination":{termination}}}"#);
            assert_eq!(end_of(&line), Some(end), "{line}");
        }
    }

    #[test]
    fn the_last_line_of_a_stream_of_claude_says_how_it_ended() {
        let end_of = |line: &str| Line::new(line.as_bytes()).end;
        let result = |error: &str| {
            format!(
                r#"{{"type":"result","subtype":"success","is_error":{error},"session_id":"s"}}"#
            )
        };
        assert_eq!(end_of(&result("false")), Some(RunStatus::Completed));
        assert_eq!(end_of(&result("true")), Some(RunStatus::Failed));
        assert_eq!(end_of(&result("1")), None);
        assert_eq!(end_of(r#"{"type":"result","is_error":false}"#), None);
    }

    #[test]
    fn the_last_turn_of_codex_exec_and_the_shutdown_of_copilot_say_how_a_run_ended() {
        let line = |line: &str| Line::new(line.as_bytes());
        let shutdown = |kind: &str| {
            format!(r#"{{"type":"session.shutdown","data":{{"shutdownType":"{kind}"}}}}"#)
        };
        for (text, end) in [
            (r#"{"type":"turn.completed","usage":{}}"#, RunStatus::Completed),
            (r#"{"type":"turn.failed","error":{"message":"m"}}"#, RunStatus::Failed),
            (&shutdown("routine"), RunStatus::Completed),
            (&shutdown("error"), RunStatus::Failed),
        ] {
            assert_eq!(line(text).end, Some(end), "{text}");
        }
        assert!(line(r#"{"type":"turn.started"}"#).goes_on);
        assert!(line(r#"{"type":"session.resume","data":{}}"#).goes_on);
    }

    #[test]
    fn times_that_are_numbers_are_those_of_goose_and_of_vs_code() {
        let at = |line: &str| Line::new(line.as_bytes()).at;
        assert_eq!(at(r#"{"role":"user","created":2}"#), Some(Timestamp(2_000_000_000)));
        let chat = r#"{"kind":0,"v":{"creationDate":2000,"requests":[]}}"#;
        assert_eq!(at(chat), Some(Timestamp(2_000_000_000)));
        assert_eq!(at(r#"{"kind":1,"v":{"creationDate":2000}}"#), None);
        let change = Line::new(br#"{"kind":1,"k":["customTitle"],"v":"x"}"#);
        assert_eq!(change.kind.as_deref(), Some("customTitle"));
        assert_eq!(at(r#"{"created":9e99}"#), None);
    }

    #[test]
    fn an_envelope_is_of_the_kind_of_what_is_in_it() {
        let kind_of = |line: &str| Line::new(line.as_bytes()).kind;
        let call = r#"{"type":"response_item","payload":{"type":"function_call"}}"#;
        assert_eq!(kind_of(call).as_deref(), Some("function_call"));
        assert_eq!(kind_of(r#"{"type":"x","payload":["y"]}"#).as_deref(), Some("x"));
        assert_eq!(kind_of(r#"{"type":"document"}"#), None);
    }

    #[test]
    fn a_line_of_text_is_what_it_is() {
        assert_eq!(Line::text(b"hello").content_type(), ContentType::TEXT);
        assert_eq!(Line::text(b"\xff").content_type(), ContentType::BYTES);
        assert_eq!(Line::text(b"{\"type\":\"x\"}").kind, None);
    }
}
