//! Sessions of Claude Code, and what `claude --output-format stream-json` prints.
//!
//! The several lines of one answer share `message.id` and its usage.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{Facts, Usage, items, text, time};

/// Lines of a session that have no `uuid`, with a field that tells them from those of others.
const BESIDE: [(&str, &str); 5] = [
    ("summary", "leafUuid"),
    ("file-history-snapshot", "snapshot"),
    ("queue-operation", "operation"),
    ("custom-title", "sessionId"),
    ("last-prompt", "sessionId"),
];

pub(super) fn line(line: &Value) -> Option<Known> {
    let kind = line.get("type")?.as_str()?;
    let has = |key: &str| line.get(key).is_some();
    let is_of_session = has("uuid") && has("sessionId");
    let is_streamed =
        has("session_id") && ["system", "assistant", "user", "result"].contains(&kind);
    let is_beside = BESIDE.iter().any(|(beside, key)| *beside == kind && has(key));
    if !(is_of_session || is_streamed || is_beside) || has("payload") {
        return None;
    }
    let uses = items(line, "message.content").filter(|part| part["type"] == "tool_use");
    let facts = Facts {
        time: time(line, "timestamp"),
        role: text(line, "message.role"),
        tools: uses.filter_map(|part| text(part, "name")).collect(),
        model: text(line, "message.model"),
        id: text(line, "uuid"),
        message_id: text(line, "message.id"),
        usage: line.get("message").and_then(|message| Usage::of(message.get("usage")?)),
    };
    Some((Format::ClaudeCode, facts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_names_its_tools_its_model_and_its_message() {
        let answer = json!({"type": "assistant", "uuid": "u", "sessionId": "s",
            "timestamp": "2026-01-02T03:04:05Z",
            "message": {"role": "assistant", "id": "msg_1", "model": "claude-x",
                "content": [{"type": "text", "text": "t"}, {"type": "tool_use", "name": "Bash"},
                    {"type": "tool_use", "name": "Read"}],
                "usage": {"input_tokens": 1, "output_tokens": 2}}});
        let facts = line(&answer).expect("a line").1;
        assert_eq!(facts.tools, ["Bash", "Read"]);
        assert_eq!(facts.role.as_deref(), Some("assistant"));
        assert_eq!(facts.model.as_deref(), Some("claude-x"));
        assert_eq!((facts.id.as_deref(), facts.message_id.as_deref()), (Some("u"), Some("msg_1")));
        assert_eq!(facts.usage.expect("usage").output_tokens, Some(2));
    }
}
