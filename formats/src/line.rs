//! What one line of an imported file is: its kind, its content type, its time, its damage.

use std::borrow::Cow;

use runlog::{ContentType, RunStatus, Timestamp};
use runlog_stores::json_lines::UNTERMINATED;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::PART;
use super::envelope::ENVELOPE;
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
    pub end: Option<End>,
    /// Why it is kept as a raw record.
    pub damage: Option<LineDamage>,
    /// It is of a file of text.
    is_plain: bool,
    /// It is of a file of text, and UTF-8.
    is_text: bool,
}

/// How a run says that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did what it was to do.
    Completed,
    /// It did not.
    Failed,
    /// It was asked to stop.
    Cancelled,
    /// It was stopped by something else.
    Interrupted,
}

impl End {
    /// The status of such a run.
    pub fn status(self) -> RunStatus {
        match self {
            Self::Completed => RunStatus::Completed,
            Self::Failed => RunStatus::Failed,
            Self::Cancelled => RunStatus::Cancelled,
            Self::Interrupted => RunStatus::Interrupted,
        }
    }
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
        // Objects first: that reads valid lines of the usual form in one pass.
        if let Some(object) = object::<Object<'_>>(text) {
            return object.line();
        }
        match damage(text) {
            None => Self::default(),
            Some(damage) => Self::damaged(damage),
        }
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

/// Whether the bytes are exactly one JSON value.
pub fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok() && std::str::from_utf8(bytes).is_ok()
}

/// Why the text is not exactly one JSON value, if it is not.
fn damage(text: &str) -> Option<LineDamage> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    match (values.next(), values.next()) {
        (Some(Ok(_)), None) => None,
        (Some(Ok(_)), Some(Ok(_))) => Some(LineDamage::Welded),
        _ if text.contains('\0') => Some(LineDamage::Nul),
        (Some(Ok(_)), Some(Err(error))) if error.is_eof() => Some(LineDamage::Welded),
        (Some(Err(error)), _) if error.is_eof() => Some(LineDamage::Torn),
        _ => Some(LineDamage::NotJson),
    }
}

/// The fields of a JSON object. serde would take them from an array as well, one after the other:
/// what resembles a record that way is none.
fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    let is_object = json.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{');
    is_object.then(|| serde_json::from_str(json).ok())?
}

/// The few fields of a line that are of interest, whatever their values are.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow)]
    record: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    type_: Option<&'a RawValue>,
    #[serde(borrow)]
    timestamp: Option<&'a RawValue>,
    #[serde(borrow)]
    started_at: Option<&'a RawValue>,
    #[serde(borrow)]
    ended_at: Option<&'a RawValue>,
    #[serde(borrow)]
    recorded_at: Option<&'a RawValue>,
    #[serde(borrow, rename = "startTime")]
    start_time: Option<&'a RawValue>,
    #[serde(borrow)]
    termination: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    #[serde(borrow)]
    is_error: Option<&'a RawValue>,
    #[serde(borrow)]
    session_id: Option<&'a RawValue>,
}

/// What the items in the envelopes of Codex call themselves.
#[derive(Deserialize)]
struct Payload<'a> {
    #[serde(borrow, rename = "type")]
    type_: Option<&'a RawValue>,
}

impl Object<'_> {
    fn line(&self) -> Line {
        let (record, type_) = (string(self.record), string(self.type_));
        let times =
            [self.timestamp, self.started_at, self.ended_at, self.recorded_at, self.start_time];
        let inner = self.payload.and_then(|payload| object::<Payload<'_>>(payload.get()));
        let inner = inner.and_then(|payload| string(payload.type_));
        let end = match (record.as_deref(), type_.as_deref()) {
            (Some("ended"), _) => Some(end(self.termination)),
            (None, Some("result")) => self.result(),
            _ => None,
        };
        Line {
            at: times.into_iter().find_map(|time| string(time)?.parse().ok()),
            end,
            kind: [record, inner, type_].into_iter().flatten().find_map(|word| kind(&word)),
            ..Line::default()
        }
    }

    /// How a run of `claude --output-format stream-json` ended, by its last line.
    fn result(&self) -> Option<End> {
        string(self.session_id)?;
        match self.is_error?.get() {
            "false" => Some(End::Completed),
            "true" => Some(End::Failed),
            _ => None,
        }
    }
}

/// The value as a string, if it is one.
fn string(value: Option<&RawValue>) -> Option<Cow<'_, str>> {
    let json = value?.get();
    if !json.starts_with('"') {
        return None;
    }
    serde_json::from_str::<String>(json).ok().map(Cow::Owned)
}

/// A word that can be the kind of a record: short, plain, and none of the kinds that this import
/// gives a meaning of its own.
pub fn kind(word: &str) -> Option<String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    let fits = (1..=MAX_KIND).contains(&word.len()) && word.bytes().all(is_plain);
    (fits && ![RAW, UNTERMINATED, PART, REVISION, ENVELOPE].contains(&word))
        .then(|| word.to_owned())
}

#[derive(Deserialize)]
struct Termination {
    kind: Option<String>,
    status: Option<String>,
}

/// How the run ended, by what its termination says. A termination of an unknown form is an end all
/// the same.
fn end(termination: Option<&RawValue>) -> End {
    let parsed = termination.and_then(|json| object::<Termination>(json.get()));
    let Some(termination) = parsed else {
        return End::Completed;
    };
    match (termination.kind.as_deref(), termination.status.as_deref()) {
        (Some("incomplete"), _) => End::Interrupted,
        (Some("cancelled"), _) => End::Cancelled,
        (_, Some("failure" | "give_up" | "timeout")) => End::Failed,
        _ => End::Completed,
    }
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
        assert_eq!(damage_of("\u{feff}{}".as_bytes()), Some(LineDamage::NotJson));
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
            (r#"{"kind":"incomplete"}"#, End::Interrupted),
            (r#"{"kind":"outcome","status":"success","outcome":{}}"#, End::Completed),
            (r#"{"kind":"outcome","status":"give_up"}"#, End::Failed),
            (r#"{"kind":"cancelled","cancellation":{}}"#, End::Cancelled),
            ("17", End::Completed),
            (r#"["incomplete","failure"]"#, End::Completed),
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
        assert_eq!(end_of(&result("false")), Some(End::Completed));
        assert_eq!(end_of(&result("true")), Some(End::Failed));
        assert_eq!(end_of(&result("1")), None);
        assert_eq!(end_of(r#"{"type":"result","is_error":false}"#), None);
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
