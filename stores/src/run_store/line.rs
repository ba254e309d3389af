//! Lines: the bytes of one record, and their meaning.

use core::fmt;
use std::borrow::Cow;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::error::RunStoreError;
use super::records::{OtherRecord, RunRecord};
use crate::json_lines::{Ending, UNTERMINATED};
use crate::objects;
use runlog::{ContentType, MAX_KIND_LEN, NewRecord, Seq, Timestamp};

/// JSON that is nested deeper is not read.
const MAX_DEPTH: usize = 127;

/// Why a line is not a record. It has no bytes of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LineFault {
    /// The bytes are not UTF-8.
    NotUtf8 {
        /// How many bytes in front of the fault are UTF-8.
        valid: usize,
    },
    /// It is not one JSON value. A torn line ends where it was torn.
    NotJson {
        /// The column of the fault, from 1.
        column: usize,
    },
    /// It is JSON, but not an object with a text as `record`.
    NotARecord {
        /// The column of the fault, from 1; 0 if the field is missing.
        column: usize,
    },
    /// The kind of the record is known, and its fields are not those of that kind.
    WrongShape {
        /// The kind.
        kind: &'static str,
        /// The column of the fault, from 1; the end of the object if a field is missing.
        column: usize,
    },
}

impl fmt::Display for LineFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotUtf8 { valid } => write!(f, "not UTF-8 behind the first {valid} bytes"),
            Self::NotJson { column } => write!(f, "not one JSON value, at column {column}"),
            Self::NotARecord { column } => {
                write!(f, "not an object with a text named `record`, at column {column}")
            }
            Self::WrongShape { kind, column } => {
                write!(f, "not the fields of a record `{kind}`, at column {column}")
            }
        }
    }
}

impl std::error::Error for LineFault {}

/// A line as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub struct RunLine {
    pub(super) seq: Seq,
    pub(super) bytes: Vec<u8>,
}

impl RunLine {
    /// Its place in the run, from 0. It never changes.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The bytes as they were stored, without the newline.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether it has only white space. Such a line is neither record nor damage.
    pub fn is_blank(&self) -> bool {
        is_blank(&self.bytes)
    }

    /// The record of the line.
    ///
    /// # Errors
    /// [`LineFault`] if it is not a record; the bytes stay readable.
    pub fn record(&self) -> Result<RunRecord, LineFault> {
        parse(&self.bytes)
    }
}

impl fmt::Debug for RunLine {
    /// Shows the length only: payloads do not belong in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunLine({}, {} bytes)", self.seq, self.bytes.len())
    }
}

/// The one field that all records have.
#[derive(Deserialize)]
struct Tag<'a> {
    #[serde(borrow)]
    record: Cow<'a, str>,
}

pub(super) fn is_blank(line: &[u8]) -> bool {
    std::str::from_utf8(line).is_ok_and(|text| text.trim().is_empty())
}

pub(super) fn parse(line: &[u8]) -> Result<RunRecord, LineFault> {
    let text = std::str::from_utf8(line)
        .map_err(|error| LineFault::NotUtf8 { valid: error.valid_up_to() })?;
    let tag: Tag<'_> = objects::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => LineFault::NotARecord { column: error.column() },
        _ => LineFault::NotJson { column: error.column() },
    })?;
    Ok(match &*tag.record {
        "started" => RunRecord::Started(shape(text, "started")?),
        "turn" => RunRecord::Turn(shape(text, "turn")?),
        "ended" => RunRecord::Ended(shape(text, "ended")?),
        "model_turn" => RunRecord::ModelTurn(shape(text, "model_turn")?),
        "cancellation_requested" => {
            RunRecord::CancellationRequested(shape(text, "cancellation_requested")?)
        }
        "cancellation_result" => RunRecord::CancellationResult(shape(text, "cancellation_result")?),
        "model_call_refused" => RunRecord::ModelCallRefused(shape(text, "model_call_refused")?),
        kind => {
            let kind = kind.to_owned();
            RunRecord::Other(OtherRecord { kind, line: line.to_vec() })
        }
    })
}

fn shape<T: DeserializeOwned>(text: &str, kind: &'static str) -> Result<T, LineFault> {
    objects::from_str(text).map_err(|error| LineFault::WrongShape { kind, column: error.column() })
}

/// A line to be stored: its bytes and their attributes for the engine.
pub(super) struct NewLine {
    pub(super) bytes: Vec<u8>,
    /// The kind of the record; empty if the line is not a record, or the kind is too long.
    pub(super) kind: String,
    pub(super) content: ContentType,
    pub(super) at: Option<Timestamp>,
}

impl NewLine {
    /// The line of a record.
    pub(super) fn of(record: &RunRecord) -> Self {
        // The kind of unterminated lines has a meaning here.
        let fits = |kind: &&str| kind.len() <= MAX_KIND_LEN && *kind != UNTERMINATED;
        let kind = Some(record.kind()).filter(fits);
        Self {
            bytes: record.to_line(),
            kind: kind.unwrap_or_default().to_owned(),
            content: ContentType::JSON,
            at: time_of(record),
        }
    }

    /// The line of a record of the caller, if it can be read again.
    pub(super) fn checked(record: &RunRecord) -> Result<Self, RunStoreError> {
        let line = Self::of(record);
        // Only JSON that the caller nests can be too deep, and that takes so many brackets.
        let brackets = line.bytes.iter().filter(|byte| matches!(byte, b'[' | b'{')).count();
        if brackets >= MAX_DEPTH {
            parse(&line.bytes).map_err(|fault| RunStoreError::Unreadable { fault })?;
        }
        Ok(line)
    }

    /// For the engine.
    pub(super) fn as_record(&self) -> NewRecord<'_> {
        let record = NewRecord::new(&self.bytes).kind(&self.kind).content_type(self.content);
        match self.at {
            Some(at) => record.at(at),
            None => record,
        }
    }

    /// The newline behind a torn last line, where no other line is behind it yet. It is stored as
    /// an unterminated line without bytes, which no file has.
    pub(super) fn of_newline() -> Self {
        let (kind, content) = (UNTERMINATED.to_owned(), ContentType::JSON_LINE);
        Self { bytes: Vec::new(), kind, content, at: None }
    }

    /// A line of a file. A line that is not a record is stored without a kind.
    pub(super) fn of_file(bytes: Vec<u8>, ending: Ending) -> (Self, Result<(), LineFault>) {
        let parsed = parse(&bytes);
        let mut line = match &parsed {
            Ok(record) => Self::of(record),
            Err(_) => Self {
                bytes: Vec::new(),
                kind: String::new(),
                content: ContentType::JSON_LINE,
                at: None,
            },
        };
        line.bytes = bytes;
        if ending == Ending::EndOfFile {
            UNTERMINATED.clone_into(&mut line.kind);
        }
        let fault = if is_blank(&line.bytes) { Ok(()) } else { parsed.map(|_| ()) };
        (line, fault)
    }
}

/// The time in a record.
fn time_of(record: &RunRecord) -> Option<Timestamp> {
    let at = match record {
        RunRecord::Started(started) => started.started_at,
        RunRecord::Ended(ended) => ended.ended_at,
        RunRecord::ModelTurn(turn) => turn.recorded_at,
        RunRecord::ModelCallRefused(refused) => refused.at,
        RunRecord::Turn(turn) => turn.action_completed_at?,
        _ => return None,
    };
    Some(timestamp(at))
}

/// The time for the engine; a time outside of 64 bits of nanoseconds becomes the nearest one
/// inside.
pub(super) fn timestamp(at: chrono::DateTime<chrono::Utc>) -> Timestamp {
    let limit = if at.timestamp() < 0 { i64::MIN } else { i64::MAX };
    Timestamp(at.timestamp_nanos_opt().unwrap_or(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = r#""2026-01-02T03:04:05Z""#;

    /// Lines with a struct written as an object in one place, and as an array there instead.
    fn pairs() -> Vec<(String, String)> {
        let ended = |termination: &str| {
            format!(
                r#"{{"record":"ended","run_id":"r","agent_id":"a","termination":{termination},
                "ended_at":{AT}}}"#
            )
        };
        let outcome = |outcome: &str| {
            ended(&format!(r#"{{"kind":"outcome","status":"done","outcome":{outcome}}}"#))
        };
        let turn = |field: &str| {
            format!(r#"{{"record":"turn","index":0,"verifier_verdict":"pass",{field}}}"#)
        };
        let model_turn = |field: &str| {
            format!(
                r#"{{"record":"model_turn","index":0,"turn_index":1,"assistant_text":"",
                "model_id":"m","duration_ms":1,"recorded_at":{AT},{field}}}"#
            )
        };
        let same =
            |line: &dyn Fn(&str) -> String, object: &str, array: &str| (line(object), line(array));
        vec![
            same(&str::to_owned, r#"{"record":"future"}"#, r#"["future"]"#),
            same(&ended, r#"{"kind":"incomplete"}"#, r#"["incomplete"]"#),
            same(
                &ended,
                r#"{"kind":"outcome","status":"done","outcome":{"status":"done"}}"#,
                r#"["outcome","done",{"status":"done"}]"#,
            ),
            same(
                &|cancellation| {
                    ended(&format!(r#"{{"kind":"cancelled","cancellation":{cancellation}}}"#))
                },
                r#"{"receipt_version":1,"run_id":"r","idempotency_key":"k","reason_digest":"d",
                "principal":"p"}"#,
                r#"[1,"r","k","d","p",null,null]"#,
            ),
            same(&outcome, r#"{"status":"done"}"#, &format!(r#"["done","",[],{{}},{AT}]"#)),
            same(
                &|evidence| outcome(&format!(r#"{{"status":"done","evidence":[{evidence}]}}"#)),
                r#"{"kind":"evaluator","description":"d"}"#,
                r#"["evaluator","d",null]"#,
            ),
            same(
                &|metrics| outcome(&format!(r#"{{"status":"done","metrics":{metrics}}}"#)),
                "{}",
                "[0,0,0,0,0,0]",
            ),
            same(
                &|end| turn(&format!(r#""cli_outcome":{end}"#)),
                r#"{"kind":"exited","code":3}"#,
                r#"["exited",3]"#,
            ),
            same(
                &|rejection| turn(&format!(r#""policy_rejected":{rejection}"#)),
                r#"{"rule":"r"}"#,
                r#"["r",null]"#,
            ),
            same(
                &|call| model_turn(&format!(r#""requested_tool_calls":[{call}]"#)),
                r#"{"id":"i","name":"n"}"#,
                r#"["i","n",null]"#,
            ),
            same(
                &|usage| model_turn(&format!(r#""token_usage":{usage}"#)),
                r#"{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"context_window":4}"#,
                "[1,2,3,4,5,6]",
            ),
        ]
    }

    #[test]
    fn an_array_is_not_the_object_that_it_resembles() {
        for (object, array) in pairs() {
            assert!(parse(object.as_bytes()).is_ok(), "{object}: {:?}", parse(object.as_bytes()));
            assert!(parse(array.as_bytes()).is_err(), "{array}");
        }
    }

    #[test]
    fn a_line_with_null_for_what_may_be_missing_is_read() {
        for field in ["cli_outcome", "policy_rejected"] {
            let line = format!(
                r#"{{"record":"turn","index":0,"verifier_verdict":"pass","{field}":null}}"#
            );
            assert!(parse(line.as_bytes()).is_ok(), "{line}");
        }
    }
}
