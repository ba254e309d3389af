//! The records of a trajectory, with the JSON of clark-agent.
//!
//! - [`TrajectoryRecord`]: run, sequence and time, and a [`TrajectoryPayload`].
//! - [`RunIdentity`]: the run and its parent.
//! - [`AgentMessage`], [`ToolResult`]: parts of payloads. Parts with a free shape are [`Value`]s.
//!
//! One thing differs: a message without a timestamp has none here, where the original uses the time
//! of the read. So two reads give the same value.

use core::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version that [`TrajectoryRecord::new`] writes, and the newest known one.
pub const SCHEMA_VERSION: u32 = 1;

/// One record of a trajectory.
///
/// ```
/// use runlog_stores::trajectory::TrajectoryRecord;
/// let old = br#"{"seq":3,"recorded_at_unix_ms":5,"payload":{"kind":"turn_started"}}"#;
/// let record: TrajectoryRecord = serde_json::from_slice(old)?;
/// assert_eq!((record.schema_version, record.seq, record.run_id), (0, 3, None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryRecord {
    /// The version of this shape. 0, which is also the meaning of its absence, is from before
    /// versions existed.
    #[serde(default)]
    pub schema_version: u32,
    /// The number of the record at its recorder, from 0.
    pub seq: u64,
    /// The run; `None` for records before the recorder knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The run that started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    /// How many runs are above this one.
    #[serde(default)]
    pub depth: usize,
    /// When it was recorded, in milliseconds since the Unix epoch.
    pub recorded_at_unix_ms: u64,
    /// What happened.
    pub payload: TrajectoryPayload,
}

impl TrajectoryRecord {
    /// A record of a run, of the newest known version.
    pub fn new(
        identity: &RunIdentity,
        seq: u64,
        recorded_at_unix_ms: u64,
        payload: TrajectoryPayload,
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            seq,
            run_id: Some(identity.run_id.clone()),
            parent_run_id: identity.parent_run_id.clone(),
            depth: identity.depth,
            recorded_at_unix_ms,
            payload,
        }
    }
}

/// The run of a trajectory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunIdentity {
    /// The run: a UUID, or an id of the caller.
    pub run_id: String,
    /// The run that started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    /// How many runs are above this one.
    #[serde(default)]
    pub depth: usize,
    /// The conversation that the run belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// When the run must end, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_unix_ms: Option<u64>,
}

impl RunIdentity {
    /// A run without a start.
    pub fn root(run_id: impl Into<String>) -> Self {
        Self { run_id: run_id.into(), ..Self::default() }
    }

    /// A run that this one started.
    #[must_use]
    pub fn child(&self, run_id: impl Into<String>) -> Self {
        Self {
            run_id: run_id.into(),
            parent_run_id: Some(self.run_id.clone()),
            depth: self.depth.saturating_add(1),
            conversation_id: self.conversation_id.clone(),
            deadline_unix_ms: self.deadline_unix_ms,
        }
    }
}

/// The kinds of [`TrajectoryPayload`], in its order.
pub(super) const KINDS: [&str; 12] = [
    "run_started",
    "run_ended",
    "turn_started",
    "turn_ended",
    "message_appended",
    "tool_started",
    "tool_ended",
    "provider_request_prepared",
    "context_transform_applied",
    "tool_gate_applied",
    "tool_gate_conflict_resolved",
    "output_tokens_escalation",
];

/// What happened: an object whose `kind` names the variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TrajectoryPayload {
    /// A run began.
    RunStarted {
        /// Which one.
        identity: RunIdentity,
    },
    /// A run ended.
    RunEnded {
        /// The outcome; recorders of clark-agent always write "ended".
        outcome: String,
        /// The messages that the run added to the conversation.
        new_messages: Vec<AgentMessage>,
    },
    /// A turn began.
    TurnStarted,
    /// A turn ended.
    TurnEnded {
        /// The message of the model.
        assistant: AgentMessage,
        /// The results of the tools.
        tool_results: Vec<AgentMessage>,
    },
    /// A message joined the conversation, in its final form.
    MessageAppended {
        /// The message.
        message: AgentMessage,
    },
    /// A tool was called.
    ToolStarted {
        /// The call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// Its arguments.
        args: Value,
    },
    /// A tool answered.
    ToolEnded {
        /// The call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// Its result.
        result: ToolResult,
        /// Whether the call failed.
        is_error: bool,
    },
    /// A request to the model was put together.
    ProviderRequestPrepared {
        /// The number of the request in the run.
        iteration: usize,
        /// The model; written as null if unknown.
        model_id: Option<String>,
        /// The length of the system prompt.
        system_prompt_chars: usize,
        /// How many messages the request has.
        message_count: usize,
        /// How many tools it offers.
        tool_count: usize,
        /// Their names.
        tools: Vec<String>,
    },
    /// A plugin changed the messages of a request.
    ContextTransformApplied {
        /// Of which request.
        iteration: usize,
        /// Which plugin.
        plugin: String,
        /// How many messages there were.
        before_count: usize,
        /// How many there are now.
        after_count: usize,
    },
    /// A plugin decided which tools a request may offer.
    ToolGateApplied {
        /// Of which request.
        iteration: usize,
        /// Which plugin.
        plugin: String,
        /// The tools; `None` for all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        allow: Option<Vec<String>>,
    },
    /// Plugins together left no tool, so the tools of one of them were offered.
    ToolGateConflictResolved {
        /// Of which request.
        iteration: usize,
        /// The plugins whose tools had nothing in common.
        plugins: Vec<String>,
        /// The plugin whose tools were offered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chosen_plugin: Option<String>,
        /// These tools.
        allow: Vec<String>,
        /// The reason.
        reason: String,
    },
    /// An answer was cut off, and requested again with a higher limit.
    OutputTokensEscalation {
        /// Which attempt. The original has 8 bits for it up to 0.2, and 32 since 0.4.
        attempt: u32,
        /// The limit of the answer that was cut off.
        prev_cap: u32,
        /// The limit of the next one.
        new_cap: u32,
    },
}

impl TrajectoryPayload {
    /// The `kind` of the JSON.
    pub fn kind(&self) -> &'static str {
        let number = match self {
            Self::RunStarted { .. } => 0,
            Self::RunEnded { .. } => 1,
            Self::TurnStarted => 2,
            Self::TurnEnded { .. } => 3,
            Self::MessageAppended { .. } => 4,
            Self::ToolStarted { .. } => 5,
            Self::ToolEnded { .. } => 6,
            Self::ProviderRequestPrepared { .. } => 7,
            Self::ContextTransformApplied { .. } => 8,
            Self::ToolGateApplied { .. } => 9,
            Self::ToolGateConflictResolved { .. } => 10,
            Self::OutputTokensEscalation { .. } => 11,
        };
        KINDS[number]
    }
}

/// A message of the conversation: an object whose `role` names the variant.
///
/// Timestamps are in milliseconds since the Unix epoch. A missing one stays missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum AgentMessage {
    /// The system prompt.
    System {
        /// The prompt.
        content: String,
        /// When.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timestamp: Option<u64>,
    },
    /// A message of the user.
    User {
        /// Text, or blocks.
        content: Value,
        /// When.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timestamp: Option<u64>,
    },
    /// A message of the model.
    Assistant {
        /// Text, thoughts and calls.
        content: Value,
        /// Why it stopped.
        stop_reason: Value,
        /// The error, if there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error_message: Option<String>,
        /// When.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timestamp: Option<u64>,
        /// The usage.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Value>,
    },
    /// The result of a tool.
    ToolResult {
        /// The call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// The answer.
        content: Value,
        /// Whether the call failed.
        #[serde(default)]
        is_error: bool,
        /// Details for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        narration: Option<String>,
        /// Details that the model does not see.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        details: Option<Value>,
        /// When.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timestamp: Option<u64>,
    },
    /// A message of the application.
    Custom {
        /// The type of the message.
        kind: String,
        /// The message.
        #[serde(default)]
        payload: Value,
        /// When.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timestamp: Option<u64>,
    },
}

/// The result of a tool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ToolResult {
    /// The answer, for the model.
    pub content: Value,
    /// Whether the call failed.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub is_error: bool,
    /// Details that the model does not see.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    /// Whether the run should end here.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub terminate: bool,
    /// Details for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub narration: Option<String>,
}
