//! Chats of the Gemini CLI: `sessionId`, `messages`, and the times of the session.

use serde_json::Value;

use super::split::Shallow;
use crate::facts::{self, Facts, Usage, items, text, time};

pub(super) fn is(document: &Shallow<'_>) -> bool {
    let has = |key: &str| document.get(key).is_some();
    has("sessionId") && has("messages") && (has("projectHash") || has("startTime"))
}

/// What a message says of itself. Its `type` is who speaks, or that a program tells something.
pub fn facts(message: &Value) -> Facts {
    let speakers = ["user", "gemini"];
    Facts {
        time: time(message, "timestamp"),
        role: text(message, "type").filter(|kind| speakers.contains(&kind.as_str())),
        tools: items(message, "toolCalls").filter_map(|call| text(call, "name")).collect(),
        model: text(message, "model"),
        id: text(message, "id"),
        key: facts::key(message, "id"),
        usage: message.get("tokens").and_then(Usage::of),
        ..Facts::default()
    }
}
