//! The records of a run as their lines have them: the shapes of `car-proto`, old and new.
//!
//! | `record` | type | since |
//! |---|---|---|
//! | `started` | [`RunStarted`] | the first version |
//! | `turn` | [`RunTurn`] | the first version |
//! | `ended` | [`RunEnded`] | the first version |
//! | `model_turn` | [`RunModelTurn`] | later |
//! | `cancellation_requested` | [`RunCancellationRequested`] | later |
//! | `cancellation_result` | [`RunCancelResponse`] | later |
//! | `model_call_refused` | [`RunModelCallRefused`] | later |
//! | anything else | [`OtherRecord`] | kept as it came |
//!
//! Fields that came later are optional and not written while they are `None`, so that a record of
//! the first version is written with the same bytes as then.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::line::LineFault;
use super::outcome::{AgentOutcome, OutcomeStatus};
use crate::objects;

/// One line of a run.
///
/// ```
/// use runlog_stores::run_store::{RunRecord, RunTurn};
/// let turn = RunRecord::Turn(RunTurn { index: 3, ..RunTurn::default() });
/// let line = r#"{"record":"turn","index":3,"verifier_verdict":"not_run"}"#;
/// assert_eq!(turn.to_line(), line.as_bytes());
/// assert_eq!(RunRecord::from_line(line.as_bytes()).unwrap(), turn);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "record", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunRecord {
    /// The run began.
    Started(RunStarted),
    /// The run is over.
    Ended(RunEnded),
    /// A model answered.
    ModelTurn(RunModelTurn),
    /// An action was done.
    Turn(RunTurn),
    /// A caller requested the cancellation of the run.
    CancellationRequested(RunCancellationRequested),
    /// The result of that request.
    CancellationResult(RunCancelResponse),
    /// A call of a model was refused, and the run went on.
    ModelCallRefused(RunModelCallRefused),
    /// A record of a kind that this program does not know.
    #[serde(untagged)]
    Other(OtherRecord),
}

impl RunRecord {
    /// The text of its `record` field.
    pub fn kind(&self) -> &str {
        match self {
            Self::Started(_) => "started",
            Self::Ended(_) => "ended",
            Self::ModelTurn(_) => "model_turn",
            Self::Turn(_) => "turn",
            Self::CancellationRequested(_) => "cancellation_requested",
            Self::CancellationResult(_) => "cancellation_result",
            Self::ModelCallRefused(_) => "model_call_refused",
            Self::Other(other) => other.kind(),
        }
    }

    /// The line of this record, without its newline. For an [`OtherRecord`], the bytes as they
    /// came.
    ///
    /// It never fails. Numbers that are not finite are written as `null`.
    pub fn to_line(&self) -> Vec<u8> {
        match self {
            Self::Other(other) => other.line.clone(),
            known => serde_json::to_vec(known).unwrap_or_default(),
        }
    }

    /// Reads a line, with or without its line ending.
    ///
    /// # Errors
    /// [`LineFault`] has the fault and its column. It never has bytes of the line.
    pub fn from_line(line: &[u8]) -> Result<Self, LineFault> {
        super::line::parse(line)
    }
}

impl<'de> Deserialize<'de> for RunRecord {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let line = serde_json::to_vec(&value).map_err(serde::de::Error::custom)?;
        Self::from_line(&line).map_err(serde::de::Error::custom)
    }
}

/// A run began.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunStarted {
    /// The run.
    pub run_id: String,
    /// The connection that opened the run. Later versions of the original have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The agent of the run.
    pub agent_id: String,
    /// The task of the agent.
    pub intent: String,
    /// The expected result, if it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome_description: Option<String>,
    /// When.
    pub started_at: DateTime<Utc>,
}

/// A run is over.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunEnded {
    /// The run.
    pub run_id: String,
    /// The connection that had opened the run. Later versions of the original have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// The agent of the run.
    pub agent_id: String,
    /// How it ended.
    #[serde(deserialize_with = "objects::one")]
    pub termination: RunTermination,
    /// A digest of `termination` that the writer computed. It is kept and not checked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_digest: Option<String>,
    /// When.
    pub ended_at: DateTime<Utc>,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RunTermination {
    /// The agent reported an outcome, good or bad.
    Outcome {
        /// The status of `outcome` again.
        status: OutcomeStatus,
        /// What was reported.
        #[serde(deserialize_with = "objects::one")]
        outcome: AgentOutcome,
    },
    /// There was no report: the writer of the run died.
    #[default]
    Incomplete,
    /// The run was cancelled, and all of its work has stopped.
    Cancelled {
        /// Which request did it.
        #[serde(deserialize_with = "objects::one")]
        cancellation: RunCancellationIdentity,
    },
}

/// Which request cancelled a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunCancellationIdentity {
    /// The version of this form.
    pub receipt_version: u32,
    /// The run.
    pub run_id: String,
    /// The key by which the request can be repeated.
    pub idempotency_key: String,
    /// A digest of the reason, which itself is not kept.
    pub reason_digest: String,
    /// The caller of the request.
    pub principal: String,
    /// The action, where there was one.
    pub action_id: Option<String>,
    /// The request, where it has an id.
    pub request_id: Option<String>,
}

/// A caller requested the cancellation of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunCancellationRequested {
    /// The version of this form.
    pub receipt_version: u32,
    /// The run.
    pub run_id: String,
    /// The key by which the request can be repeated.
    pub idempotency_key: String,
    /// A digest of the reason, which itself is not kept.
    pub reason_digest: String,
    /// The caller of the request.
    pub principal: String,
    /// The action, where there was one.
    pub action_id: Option<String>,
    /// The request, where it has an id.
    pub request_id: Option<String>,
}

/// The result of a request to cancel a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunCancelResponse {
    /// The version of this form.
    pub receipt_version: u32,
    /// The run.
    pub run_id: String,
    /// The key of the request.
    pub idempotency_key: String,
    /// A digest of the reason.
    pub reason_digest: String,
    /// The caller of the request.
    pub principal: String,
    /// The result.
    pub status: RunCancellationStatus,
    /// The digest of the end, where there is one.
    pub terminal_digest: Option<String>,
    /// The action, where there was one.
    pub action_id: Option<String>,
    /// The request, where it has an id.
    pub request_id: Option<String>,
    /// A digest of all these fields.
    pub receipt_digest: String,
}

/// The result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunCancellationStatus {
    /// All work of the run has stopped.
    CancelledConfirmed,
    /// The run was over before.
    AlreadyTerminal,
    /// It is unknown whether the work stopped.
    TerminationUnconfirmed,
}

/// An action of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunTurn {
    /// Its place among the turns of the run, from 0.
    pub index: usize,
    /// The proposal that it comes from. This and the next six came with later versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proposal_id: Option<String>,
    /// The action within the proposal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_id: Option<String>,
    /// The state of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_status: Option<ActionStatus>,
    /// How long it took, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_duration_ms: Option<f64>,
    /// When it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_completed_at: Option<DateTime<Utc>>,
    /// The actions that it waited for; may be empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depends_on: Option<Vec<String>>,
    /// The keys of the state that it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_dependencies: Option<Vec<String>>,
    /// The prompt that was given to a command-line agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The parameters of the action; `null` if there are none.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub parameters: Value,
    /// The result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How the command-line agent ended.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "objects::optional"
    )]
    pub cli_outcome: Option<CliOutcome>,
    /// The verdict of the verifier. Besides `index`, the only required field of a turn.
    pub verifier_verdict: VerifierVerdict,
    /// The rule that prevented the action.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "objects::optional"
    )]
    pub policy_rejected: Option<PolicyRejection>,
}

/// The state of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words are all there is to say")]
pub enum ActionStatus {
    Proposed,
    Validated,
    Rejected,
    Executing,
    Succeeded,
    Failed,
    Skipped,
}

/// How a command-line agent ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CliOutcome {
    /// By itself.
    Exited {
        /// Its exit code.
        code: i64,
    },
    /// By a signal.
    Killed,
    /// It took too long.
    Timeout,
}

/// The verdict of the verifier on a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifierVerdict {
    /// Good.
    Pass,
    /// Not good.
    Fail,
    /// It was not asked.
    #[default]
    NotRun,
}

/// The rule that prevented an action.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PolicyRejection {
    /// The text of the rule.
    pub rule: String,
    /// The affected parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<String>,
}

/// An answer of a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunModelTurn {
    /// Its place among the turns of the run, actions included.
    pub index: usize,
    /// Its number among the answers, from 1.
    pub turn_index: usize,
    /// The text of the model; may be empty.
    pub assistant_text: String,
    /// The tools that it asked for.
    #[serde(default, deserialize_with = "objects::list")]
    pub requested_tool_calls: Vec<RunModelToolCall>,
    /// The model.
    pub model_id: String,
    /// The tokens, where the provider counts them.
    #[serde(default, deserialize_with = "objects::optional")]
    pub token_usage: Option<RunModelTokenUsage>,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// When.
    pub recorded_at: DateTime<Utc>,
}

/// A tool that a model asked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunModelToolCall {
    /// The id of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub arguments: Value,
}

/// The tokens of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunModelTokenUsage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
    /// Of both.
    pub total_tokens: u64,
    /// The limit of the model.
    pub context_window: u64,
    /// The tokens of the prompt that came from a cache.
    #[serde(default)]
    pub cache_read_input_tokens: u64,
    /// The tokens of the prompt that were written to a cache.
    #[serde(default)]
    pub cache_creation_input_tokens: u64,
}

/// A call of a model that was refused.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunModelCallRefused {
    /// When.
    pub at: DateTime<Utc>,
    /// The model.
    pub model: String,
    /// Why, as a word.
    pub reason: String,
    /// Why, as the agent was told.
    pub message: String,
    /// The cap that was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cap: Option<Value>,
    /// The amount spent until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent_usd: Option<f64>,
    /// When calls are possible again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<String>,
    /// The time zone of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// A record of a kind that this program does not know: its line, byte for byte.
#[derive(Clone, PartialEq, Eq)]
pub struct OtherRecord {
    pub(super) kind: String,
    pub(super) line: Vec<u8>,
}

impl OtherRecord {
    /// The text of its `record` field.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The bytes of the line.
    pub fn line(&self) -> &[u8] {
        &self.line
    }
}

impl Serialize for OtherRecord {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: Value = serde_json::from_slice(&self.line).map_err(serde::ser::Error::custom)?;
        value.serialize(serializer)
    }
}

impl core::fmt::Debug for OtherRecord {
    /// Shows the length only: payloads do not belong in logs.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "OtherRecord({:?}, {} bytes)", self.kind, self.line.len())
    }
}
