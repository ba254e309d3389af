//! The JSON objects that several commands print, and payloads as JSON values.

use std::borrow::Cow;

use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use runlog::{ContentType, Record, RunSummary};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::time;

/// A run, as `ls` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct RunRow<'a> {
    run: &'a str,
    agent: &'a str,
    status: &'static str,
    started_at: String,
    ended_at: Option<String>,
    records: u64,
    bytes: u64,
    held: bool,
}

impl<'a> From<&'a RunSummary> for RunRow<'a> {
    fn from(summary: &'a RunSummary) -> Self {
        Self {
            run: summary.run.as_str(),
            agent: summary.agent.as_str(),
            status: summary.status.as_str(),
            started_at: time::precise(summary.started_at),
            ended_at: summary.ended_at.map(time::precise),
            records: summary.records,
            bytes: summary.bytes,
            held: summary.held,
        }
    }
}

/// A record, as `show` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct RecordRow<'a> {
    seq: u64,
    timestamp: String,
    kind: Option<&'a str>,
    content_type: Cow<'static, str>,
    payload: Payload<'a>,
}

impl<'a> From<&'a Record> for RecordRow<'a> {
    fn from(record: &'a Record) -> Self {
        Self {
            seq: record.seq().0,
            timestamp: time::precise(record.timestamp()),
            kind: record.kind(),
            content_type: content_type(record.content_type()),
            payload: Payload::new(record.content_type(), record.payload()),
        }
    }
}

/// The name of a content type. Applications' own are `custom:N`.
pub(crate) fn content_type(content_type: ContentType) -> Cow<'static, str> {
    Cow::Borrowed(match content_type {
        ContentType::BYTES => "bytes",
        ContentType::JSON => "json",
        ContentType::TEXT => "text",
        ContentType::JSON_LINE => "json_line",
        ContentType::MSGPACK => "msgpack",
        ContentType::CBOR => "cbor",
        other if other.code() >= 128 => return Cow::Owned(format!("custom:{}", other.code())),
        other => return Cow::Owned(format!("unknown:{}", other.code())),
    })
}

/// A payload inside of a JSON object.
///
/// - JSON (content types `json` and `json_line`) as the value it is, digit by digit as it came,
///   which [`Output::object`](crate::output::Output::object) brings into one line;
/// - other UTF-8 as a string;
/// - anything else as `{"base64": "..."}`.
#[derive(Debug)]
pub(crate) enum Payload<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> Payload<'a> {
    pub(crate) fn new(content_type: ContentType, bytes: &'a [u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return Self::Bytes(bytes);
        };
        if !matches!(content_type, ContentType::JSON | ContentType::JSON_LINE) {
            return Self::Text(text);
        }
        serde_json::from_str(text).map_or(Self::Text(text), Self::Json)
    }
}

impl Serialize for Payload<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Json(json) => json.serialize(serializer),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => {
                let mut map = serializer.serialize_map(Some(1))?;
                let text = Base64Display::new(bytes, &BASE64_STANDARD);
                map.serialize_entry("base64", &format_args!("{text}"))?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(content_type: ContentType, bytes: &[u8]) -> String {
        serde_json::to_string(&Payload::new(content_type, bytes)).expect("JSON")
    }

    #[test]
    fn json_payloads_keep_their_digits() {
        let text = br#"{"b":1.000000000000000000001,"a":1e400,"a":"\ud800"}"#;
        assert_eq!(json(ContentType::JSON, text).as_bytes(), text);
    }

    #[test]
    fn other_payloads_become_strings_or_base64() {
        assert_eq!(json(ContentType::JSON_LINE, b""), r#""""#);
        assert_eq!(json(ContentType::JSON_LINE, b"{torn"), r#""{torn""#);
        assert_eq!(json(ContentType::BYTES, b"{}"), r#""{}""#);
        assert_eq!(json(ContentType::TEXT, b"\xff\x00"), r#"{"base64":"/wA="}"#);
    }

    #[test]
    fn content_types_have_names() {
        assert_eq!(content_type(ContentType::JSON_LINE), "json_line");
        assert_eq!(content_type(ContentType::from_code(200)), "custom:200");
        assert_eq!(content_type(ContentType::from_code(99)), "unknown:99");
    }
}
