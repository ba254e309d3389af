//! The report of an agent at the end of its run: the types of `car-ir`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::objects;

/// The report of an agent at the end. All fields are always written; all but `status` may be
/// missing in a line that is read.
///
/// The original gives a missing `timestamp` the time of reading. Here it is the start of the Unix
/// epoch, so that a line always gives the same value.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AgentOutcome {
    /// The outcome in one word.
    pub status: OutcomeStatus,
    /// A summary.
    #[serde(default)]
    pub summary: String,
    /// The evidence for it.
    #[serde(default, deserialize_with = "objects::list")]
    pub evidence: Vec<Evidence>,
    /// Its numbers.
    #[serde(default, deserialize_with = "objects::one")]
    pub metrics: OutcomeMetrics,
    /// When it was determined.
    #[serde(default)]
    pub timestamp: DateTime<Utc>,
}

/// An outcome in one word. A run with any of them is completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    /// All goals were met.
    Success,
    /// Some goals were met.
    PartialSuccess,
    /// The agent says that it cannot be done.
    GiveUp,
    /// The time or the steps were used up.
    Timeout,
    /// Errors kept it from being done.
    Failure,
    /// The agent reports the end, and not how well it went.
    #[default]
    Done,
}

/// Evidence for an outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Where it comes from.
    pub kind: EvidenceKind,
    /// What it is.
    pub description: String,
    /// More details, for programs.
    pub data: Option<Value>,
}

/// Where evidence comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words are all there is to say")]
pub enum EvidenceKind {
    SelfAssessment,
    ToolResult,
    StateChange,
    ExternalVerification,
    StopReason,
    Evaluator,
}

/// An outcome in numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OutcomeMetrics {
    /// Turns.
    #[serde(default)]
    pub turns: u32,
    /// Calls of tools.
    #[serde(default)]
    pub tool_calls: u32,
    /// Milliseconds. JSON has no form of NaN: it is written as `null`, and read again as NaN.
    #[serde(default, deserialize_with = "number_or_null")]
    pub duration_ms: f64,
    /// Retries.
    #[serde(default)]
    pub retries: u32,
    /// Actions that succeeded.
    #[serde(default)]
    pub actions_succeeded: u32,
    /// Actions that failed.
    #[serde(default)]
    pub actions_failed: u32,
}

fn number_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}
