//! The types of the stored parts. The caller defines them; serde must be able to convert them to
//! JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A type that can be stored as a part of a session: all types that serde reads and writes.
pub trait Stored: Serialize + DeserializeOwned + Send + Sync + 'static {}

impl<D: Serialize + DeserializeOwned + Send + Sync + 'static> Stored for D {}

/// The types of the parts of a session.
///
/// ```
/// use runlog_stores::sessions::SessionTypes;
/// use serde::{Deserialize, Serialize};
/// use serde_json::Value;
///
/// #[derive(Serialize, Deserialize)]
/// struct Chat {
///     id: String,
///     messages: Vec<String>,
/// }
///
/// struct Chats;
///
/// impl SessionTypes for Chats {
///     type Session = Chat;
///     type Artifacts = Value;
///     type TraceEvent = Value;
///     type RunRecord = Value;
///     type VerificationReport = Value;
///     type SubagentTask = Value;
///     type LoopCheckpoint = Value;
///
///     fn session_id(session: &Chat) -> &str {
///         &session.id
///     }
/// }
/// ```
pub trait SessionTypes: Send + Sync + 'static {
    /// A session.
    type Session: Stored;
    /// All artifacts of a session.
    type Artifacts: Stored;
    /// An event of its trace.
    type TraceEvent: Stored;
    /// A run, with its events.
    type RunRecord: Stored;
    /// A verification report.
    type VerificationReport: Stored;
    /// A task that was given to another agent.
    type SubagentTask: Stored;
    /// The checkpoint from which the loop of a run can continue.
    type LoopCheckpoint: Stored;

    /// The newest `schema_version` of a session that the type knows. A stored session with a larger
    /// number at its top level is refused, whether it would parse or not.
    const SESSION_SCHEMA: u32 = 1;

    /// The same for loop checkpoints.
    const LOOP_CHECKPOINT_SCHEMA: u32 = 1;

    /// The id under which a session is saved.
    fn session_id(session: &Self::Session) -> &str;

    /// The session that a loop checkpoint belongs to, if it names one. While a caller has the
    /// writer lease of that session, the checkpoint is written through that lease only.
    fn checkpoint_session(_: &Self::LoopCheckpoint) -> Option<&str> {
        None
    }
}

/// Sessions as JSON values. The id of a session is its field `id`; a session without it is refused.
/// A loop checkpoint belongs to the session in its field `session_id`. No schema is too new, since
/// the store does not interpret it.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonSessions;

impl SessionTypes for JsonSessions {
    type Session = Value;
    type Artifacts = Value;
    type TraceEvent = Value;
    type RunRecord = Value;
    type VerificationReport = Value;
    type SubagentTask = Value;
    type LoopCheckpoint = Value;

    const SESSION_SCHEMA: u32 = u32::MAX;
    const LOOP_CHECKPOINT_SCHEMA: u32 = u32::MAX;

    fn session_id(session: &Value) -> &str {
        session.get("id").and_then(Value::as_str).unwrap_or_default()
    }

    fn checkpoint_session(checkpoint: &Value) -> Option<&str> {
        checkpoint.get("session_id").and_then(Value::as_str)
    }
}
