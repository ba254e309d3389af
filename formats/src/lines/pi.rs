//! Sessions of pi, and of `OpenClaw`, which writes the same lines and some of its own.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{self, Facts, Usage, at, items, text, time};

/// Lines that are no messages, with a field that tells them from those of others.
const BESIDE: [(&str, &str); 10] = [
    ("session", "cwd"),
    ("model_change", "modelId"),
    ("thinking_level_change", "thinkingLevel"),
    ("compaction", "tokensBefore"),
    ("branch_summary", "fromId"),
    ("custom", "customType"),
    ("custom_message", "customType"),
    ("label", "targetId"),
    ("session_info", "name"),
    ("leaf", "targetId"),
];

pub(super) fn line(line: &Value) -> Option<Known> {
    let kind = line.get("type")?.as_str()?;
    let has = |key: &str| line.get(key).is_some();
    let is_message = kind == "message" && at(line, "message.role").is_some_and(Value::is_string);
    let is_beside = BESIDE.iter().any(|(beside, key)| *beside == kind && has(key));
    if !(is_message || is_beside) || has("payload") || has("sessionId") {
        return None;
    }
    let calls = items(line, "message.content").filter(|part| part["type"] == "toolCall");
    let called = calls.filter_map(|part| text(part, "name"));
    let facts = Facts {
        time: time(line, "timestamp"),
        role: text(line, "message.role"),
        tools: called.chain(text(line, "message.toolName")).collect(),
        model: text(line, "message.model").or_else(|| text(line, "modelId")),
        id: text(line, "id"),
        message_id: text(line, "message.responseId"),
        usage: at(line, "message.usage").and_then(Usage::of),
        key: facts::key(line, "id"),
        ..Facts::default()
    };
    Some((if is_openclaw(line, kind) { Format::OpenClaw } else { Format::Pi }, facts))
}

/// Whether only `OpenClaw` writes such a line.
fn is_openclaw(line: &Value, kind: &str) -> bool {
    let custom = line.get("customType").and_then(Value::as_str).unwrap_or_default();
    kind == "leaf"
        || custom == "model-snapshot"
        || custom.starts_with("openclaw")
        || at(line, "message.__openclaw").is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_name_their_role_their_tools_and_their_usage() {
        let answer = json!({"type": "message", "id": "1", "timestamp": "2026-01-02T03:04:05Z",
            "message": {"role": "assistant", "model": "m", "content":
                [{"type": "toolCall", "name": "read"}, {"type": "text", "text": "x"}],
                "usage": {"input": 1, "output": 2, "cost": {"total": 0.25}}}});
        let (format, facts) = line(&answer).expect("a line");
        assert_eq!(format, Format::Pi);
        assert_eq!((&*facts.tools, facts.model.as_deref()), (&["read".to_owned()][..], Some("m")));
        assert_eq!(facts.usage.expect("usage").cost.expect("a cost").as_f64(), Some(0.25));
        let result = json!({"type": "message", "message": {"role": "toolResult", "toolName": "read",
            "__openclaw": {}}});
        let (format, facts) = line(&result).expect("a line");
        assert_eq!((format, &*facts.tools), (Format::OpenClaw, &["read".to_owned()][..]));
    }
}
