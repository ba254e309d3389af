//! Rollouts of the Codex CLI: lines with `timestamp`, `type` and `payload`. The first versions
//! wrote what is the payload now as the line itself.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{Facts, Usage, at, text, time};

const ENVELOPES: [&str; 7] = [
    "session_meta",
    "response_item",
    "event_msg",
    "turn_context",
    "compacted",
    "world_state",
    "inter_agent_communication",
];

pub(super) fn line(line: &Value) -> Option<Known> {
    let kind = line.get("type").and_then(Value::as_str);
    let payload = line.get("payload").filter(|payload| payload.is_object());
    let has = |key: &str| line.get(key).is_some();
    let item = match (kind, payload) {
        (Some(kind), Some(payload)) if ENVELOPES.contains(&kind) => payload,
        (None, None) if has("record_type") => line,
        // The first line of a rollout without envelopes.
        (None, None) if has("instructions") && has("id") && has("timestamp") => line,
        (Some("message"), None) if has("role") && has("content") => line,
        (Some("function_call"), None) if has("name") && has("call_id") => line,
        (Some("function_call_output"), None) if has("call_id") && has("output") => line,
        (Some("reasoning"), None) if has("summary") => line,
        _ => return None,
    };
    let facts = Facts {
        time: time(line, "timestamp"),
        role: text(item, "role"),
        tools: tool(item).into_iter().collect(),
        model: text(item, "model"),
        id: text(item, "id").or_else(|| text(item, "call_id")),
        message_id: None,
        usage: at(item, "info.last_token_usage").and_then(Usage::of),
    };
    Some((Format::Codex, facts))
}

/// The tool that is called.
fn tool(item: &Value) -> Option<String> {
    let calls = ["function_call", "custom_tool_call", "mcp_tool_call"];
    let is_call =
        item.get("type").and_then(Value::as_str).is_some_and(|kind| calls.contains(&kind));
    if is_call { text(item, "name") } else { text(item, "invocation.tool") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(kind: &str, payload: &Value) -> Facts {
        let at = "2026-01-02T03:04:05Z";
        line(&json!({"timestamp": at, "type": kind, "payload": payload})).expect("a line").1
    }

    #[test]
    fn items_name_their_role_their_tool_and_their_call() {
        let call = json!({"type": "function_call", "name": "shell", "call_id": "c"});
        let called = facts("response_item", &call);
        assert_eq!((&*called.tools, called.id.as_deref()), (&["shell".to_owned()][..], Some("c")));
        let message = json!({"type": "message", "role": "user", "content": []});
        assert_eq!(facts("response_item", &message).role.as_deref(), Some("user"));
        assert_eq!(line(&call).expect("a line").1.tools, ["shell"]);
    }

    #[test]
    fn turns_name_their_model_and_counts_their_last_usage() {
        assert_eq!(
            facts("turn_context", &json!({"model": "gpt-x"})).model.as_deref(),
            Some("gpt-x")
        );
        let count = json!({"type": "token_count", "info": {
            "total_token_usage": {"input_tokens": 9},
            "last_token_usage": {"input_tokens": 4, "cached_input_tokens": 3,
                "output_tokens": 2, "reasoning_output_tokens": 1}}});
        let usage = facts("event_msg", &count).usage.expect("usage");
        assert_eq!((usage.input_tokens, usage.cache_read_tokens), (Some(4), Some(3)));
        assert_eq!((usage.output_tokens, usage.reasoning_tokens), (Some(2), Some(1)));
    }
}
