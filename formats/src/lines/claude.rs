//! Sessions of Claude Code, and what `claude --output-format stream-json` prints.
//!
//! The several lines of one answer share `message.id` and its usage. Another model that was asked
//! for it is in `usage.iterations`, and not in the sum.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{Facts, Total, Usage, at, items, number, text, time};

/// Lines of a session that have no `uuid`, with a field that tells them from those of others.
const BESIDE: [(&str, &str); 6] = [
    ("summary", "leafUuid"),
    ("file-history-snapshot", "snapshot"),
    ("queue-operation", "operation"),
    ("custom-title", "sessionId"),
    ("ai-title", "sessionId"),
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
    let is_result = kind == "result";
    let model = text(line, "message.model");
    // What Claude Code says in the name of a model used none.
    let is_real = model.as_deref() != Some("<synthetic>");
    let mut usage = at(line, "message.usage").filter(|_| is_real).and_then(Usage::of);
    if let (Some(usage), Some(cost)) = (&mut usage, line.get("costUSD")) {
        usage.cost = usage.cost.take().or_else(|| number(cost));
    }
    let facts = Facts {
        time: time(line, "timestamp"),
        role: text(line, "message.role"),
        tools: uses.filter_map(|part| text(part, "name")).collect(),
        model,
        id: text(line, "uuid"),
        message_id: text(line, "message.id"),
        usage,
        besides: advisors(line),
        totals: if is_result { totals(line) } else { Vec::new() },
        ..Facts::default()
    };
    Some((Format::ClaudeCode, facts))
}

/// What models used that are not the one of the message.
fn advisors(line: &Value) -> Vec<Total> {
    let model = text(line, "message.model");
    let calls = items(line, "message.usage.iterations");
    let others = calls.filter_map(|call| {
        let other = text(call, "model").filter(|other| Some(other) != model.as_ref())?;
        Some(Total { of: None, model: Some(other), calls: 1, usage: Usage::of(call)? })
    });
    others.collect()
}

/// What the last line of a stream says that all of it used.
fn totals(line: &Value) -> Vec<Total> {
    let by_model = line.get("modelUsage").map(Total::of_models).unwrap_or_default();
    if by_model.iter().any(|total| total.usage.cost.is_some()) {
        return by_model;
    }
    let mut whole = line.get("usage").and_then(Total::of).unwrap_or_default();
    whole.usage.cost = line.get("total_cost_usd").and_then(number);
    if whole == Total::default() { by_model } else { vec![whole] }
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

    #[test]
    fn a_result_is_the_sum_of_a_stream_by_model_where_it_has_the_costs() {
        let mut result = json!({"type": "result", "session_id": "s", "total_cost_usd": 0.5,
            "usage": {"input_tokens": 7}, "modelUsage":
            {"a": {"inputTokens": 3, "costUSD": 0.25}, "b": {"inputTokens": 4, "costUSD": 0.25}}});
        let totals = |result: &Value| line(result).expect("a line").1.totals;
        let models: Vec<_> = totals(&result).into_iter().map(|total| total.model).collect();
        assert_eq!(models, [Some("a".to_owned()), Some("b".to_owned())]);
        result["modelUsage"] = json!({});
        let [whole] = &*totals(&result) else { panic!("one") };
        assert_eq!(whole.usage.input_tokens, Some(7));
        assert_eq!(whole.usage.cost.as_ref().expect("a cost").to_string(), "0.5");
    }
}
