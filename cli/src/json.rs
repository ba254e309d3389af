//! The JSON objects that several commands print, and payloads as JSON values.

use std::ops::Deref;

use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use runlog::{ContentType, Record, Seq, Timestamp};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::formats::facts::Facts;

/// A record, as `show`, `tail` and `search` print it.
#[derive(Debug, Serialize)]
pub(crate) struct RecordRow<'a> {
    seq: Seq,
    timestamp: Timestamp,
    kind: Option<&'a str>,
    content_type: ContentType,
    /// What the record of an imported run says of itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<Facts>,
    payload: Payload<'a>,
}

impl<'a> RecordRow<'a> {
    pub(crate) fn new<B: Deref<Target = [u8]>>(
        record: &'a Record<B>,
        facts: Option<Facts>,
    ) -> Self {
        Self {
            facts,
            seq: record.seq(),
            timestamp: record.timestamp(),
            kind: record.kind(),
            content_type: record.content_type(),
            payload: Payload::new(record.content_type(), record.payload()),
        }
    }
}

/// A payload inside of a JSON object.
///
/// - JSON (content types `json` and `json_line`) as its value, with all digits unchanged;
///   [`Output::object`](crate::output::Output::object) brings it into one line;
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

    /// The bytes of the payload; of JSON without what is around the value.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        match *self {
            Self::Json(json) => json.get().as_bytes(),
            Self::Text(text) => text.as_bytes(),
            Self::Bytes(bytes) => bytes,
        }
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
}
