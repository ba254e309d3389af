//! The Agent Trajectory Interchange Format: `schema_version` "ATIF-v...", and `steps`.

use serde_json::Value;

use super::split::Shallow;
use crate::facts::{Facts, Usage, items, text, time};

pub(super) fn is(document: &Shallow<'_>) -> bool {
    document.text("schema_version").is_some_and(|version| version.starts_with("ATIF-"))
}

pub(super) fn facts(step: &Value) -> Facts {
    Facts {
        time: time(step, "timestamp"),
        role: text(step, "source"),
        tools: items(step, "tool_calls").filter_map(|call| text(call, "function_name")).collect(),
        model: text(step, "model_name"),
        id: step.get("step_id").filter(|id| id.is_number()).map(Value::to_string),
        message_id: None,
        usage: step.get("metrics").and_then(Usage::of),
    }
}
