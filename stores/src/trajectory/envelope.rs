//! The fields of a record that a log needs to store it, taken from the JSON as it came.
//!
//! Only reading is strict. Here everything that is one JSON object is accepted, so that a record of
//! a newer version or of an unusual shape is stored as it came.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::payload::{RunIdentity, TrajectoryPayload, TrajectoryRecord};
use crate::objects;
use runlog::{Error, MAX_KIND_LEN, Result, Timestamp};

/// The fields of a record that are known without reading all of it.
#[derive(Debug, Default)]
pub(super) struct Envelope {
    pub(super) seq: Option<u64>,
    pub(super) run: Option<String>,
    pub(super) parent: Option<String>,
    pub(super) at: Option<Timestamp>,
    pub(super) kind: String,
    /// The run of a `run_started`.
    pub(super) identity: Option<RunIdentity>,
    /// The outcome of a `run_ended`.
    pub(super) outcome: Option<String>,
}

/// The shape that records of known versions have.
#[derive(Deserialize)]
struct Usual<'a> {
    seq: u64,
    #[serde(default, borrow)]
    run_id: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    parent_run_id: Option<Cow<'a, str>>,
    recorded_at_unix_ms: u64,
    #[serde(borrow, deserialize_with = "objects::one")]
    payload: UsualPayload<'a>,
}

#[derive(Deserialize)]
struct UsualPayload<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    identity: Option<Value>,
    #[serde(default)]
    outcome: Option<Value>,
}

impl Envelope {
    /// Reads it from JSON.
    pub(super) fn read(bytes: &[u8]) -> Result<Self> {
        let json = |source| Error::Json { source: Arc::new(source) };
        if let Ok(usual) = objects::from_slice::<Usual<'_>>(bytes) {
            return Ok(Self::usual(usual));
        }
        match serde_json::from_slice(bytes).map_err(json)? {
            Value::Object(object) => Ok(Self::odd(&Value::Object(object))),
            _ => Err(Error::InvalidArgument { what: "a trajectory record is one JSON object" }),
        }
    }

    fn usual(usual: Usual<'_>) -> Self {
        let payload = usual.payload;
        let envelope = Self {
            seq: Some(usual.seq),
            run: usual.run_id.map(Cow::into_owned),
            parent: usual.parent_run_id.map(Cow::into_owned),
            at: time(usual.recorded_at_unix_ms),
            kind: payload.kind.into_owned(),
            ..Self::default()
        };
        envelope.with_payload(payload.identity.as_ref(), payload.outcome.as_ref())
    }

    /// Takes the fields that have their usual places, and ignores the rest.
    fn odd(record: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let payload = &record["payload"];
        let envelope = Self {
            seq: record["seq"].as_u64(),
            run: text(&record["run_id"]),
            parent: text(&record["parent_run_id"]),
            at: record["recorded_at_unix_ms"].as_u64().and_then(time),
            kind: text(&payload["kind"]).unwrap_or_default(),
            ..Self::default()
        };
        envelope.with_payload(payload.get("identity"), payload.get("outcome"))
    }

    fn with_payload(mut self, identity: Option<&Value>, outcome: Option<&Value>) -> Self {
        if self.kind == "run_started" {
            self.identity = identity.and_then(|value| RunIdentity::deserialize(value).ok());
        }
        if self.kind == "run_ended" {
            self.outcome = Some(outcome.and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        self.of_identity()
    }

    /// Knows it already.
    pub(super) fn of(record: &TrajectoryRecord) -> Self {
        let (identity, outcome) = match &record.payload {
            TrajectoryPayload::RunStarted { identity } => (Some(identity.clone()), None),
            TrajectoryPayload::RunEnded { outcome, .. } => (None, Some(outcome.clone())),
            _ => (None, None),
        };
        let envelope = Self {
            seq: Some(record.seq),
            run: record.run_id.clone(),
            parent: record.parent_run_id.clone(),
            at: time(record.recorded_at_unix_ms),
            kind: record.payload.kind().to_owned(),
            identity,
            outcome,
        };
        envelope.of_identity()
    }

    /// A start names its run, even if the record does not.
    fn of_identity(mut self) -> Self {
        if let Some(identity) = &self.identity {
            self.run.get_or_insert_with(|| identity.run_id.clone());
            if self.parent.is_none() {
                self.parent.clone_from(&identity.parent_run_id);
            }
        }
        self
    }

    /// The kind for the engine; `None` if it is too long, or is the kind of the log's own records.
    pub(super) fn engine_kind(&self) -> &str {
        let fits = self.kind.len() <= MAX_KIND_LEN && !self.kind.starts_with('\0');
        if fits { &self.kind } else { "" }
    }
}

/// The sequence of a record, if it has one.
pub(super) fn seq_of(bytes: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: u64,
    }
    let numbered = objects::from_slice::<Numbered>(bytes).map(|numbered| numbered.seq);
    numbered.ok().or_else(|| Envelope::read(bytes).ok()?.seq)
}

/// The time of a record. A recorder whose clock is before 1970 writes 0, which does not count as a
/// time.
fn time(milliseconds: u64) -> Option<Timestamp> {
    let nanos = i64::try_from(milliseconds).unwrap_or(i64::MAX).saturating_mul(1_000_000);
    (milliseconds > 0).then_some(Timestamp(nanos))
}
