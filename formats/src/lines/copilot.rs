//! Sessions of the Copilot CLI: `type`, `data`, `id` and `timestamp`, where types are words with a
//! dot. What a session used stands in its `session.shutdown`, from its start or its last resume on.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{Facts, Total, Usage, at, items, text, time};

pub(super) fn line(line: &Value) -> Option<Known> {
    let (kind, data) = (line.get("type")?.as_str()?, line.get("data")?.as_object()?);
    let has = |key: &str| line.get(key).is_some();
    let is_event = kind.contains('.') && has("id") && has("timestamp") && has("parentId");
    if !is_event {
        return None;
    }
    let role = match kind {
        "user.message" => Some("user"),
        "assistant.message" => Some("assistant"),
        "system.message" => Some("system"),
        _ => None,
    };
    let requests = items(line, "data.toolRequests").filter_map(|request| text(request, "name"));
    let models = ["data.model", "data.currentModel", "data.newModel", "data.selectedModel"];
    let usage = at(line, "data").and_then(Usage::of);
    let mut facts = Facts {
        time: time(line, "timestamp"),
        role: role.map(str::to_owned),
        tools: requests.chain(text(line, "data.toolName").filter(|_| role.is_none())).collect(),
        model: models.iter().find_map(|path| text(line, path)),
        id: text(line, "id"),
        ..Facts::default()
    };
    // The counts of a session begin anew where it is resumed, so that each shutdown adds.
    let metrics = data.get("modelMetrics").and_then(Value::as_object).into_iter().flatten();
    match (kind, usage) {
        ("session.shutdown", _) => {
            let of = text(line, "id").unwrap_or_default();
            facts.totals = metrics.filter_map(|metrics| of_model(&of, metrics)).collect();
        }
        ("assistant.message", usage) => facts.usage = usage,
        _ => {}
    }
    Some((Format::Copilot, facts))
}

/// What a session used with a model. Its `cost` is in requests, and not in dollars.
fn of_model(of: &str, (model, metrics): (&String, &Value)) -> Option<Total> {
    let usage = Usage { cost: None, ..Usage::of(metrics.get("usage")?)? };
    let calls = at(metrics, "requests.count").and_then(Value::as_u64).unwrap_or_default();
    let of = Some(format!("{of} {model}"));
    Some(Total { of, model: Some(model.clone()), calls, usage })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn facts(kind: &str, data: &Value) -> Facts {
        let event = json!({"type": kind, "data": data, "id": "e", "parentId": null,
            "timestamp": "2026-06-01T07:00:00.000Z"});
        let (format, facts) = line(&event).expect("a line");
        assert_eq!(format, Format::Copilot);
        facts
    }

    #[test]
    fn messages_name_their_role_and_the_tools_that_they_ask_for() {
        let asks = json!({"messageId": "m", "content": "", "outputTokens": 12,
            "toolRequests": [{"toolCallId": "c", "name": "bash"}]});
        let asks = facts("assistant.message", &asks);
        assert_eq!(
            (asks.role.as_deref(), &asks.tools[..]),
            (Some("assistant"), &["bash".into()][..])
        );
        assert_eq!(asks.usage.expect("usage").output_tokens, Some(12));
        assert_eq!(facts("user.message", &json!({"content": "x"})).role.as_deref(), Some("user"));
        assert_eq!(facts("tool.execution_start", &json!({"toolName": "bash"})).tools, ["bash"]);
    }

    #[test]
    fn a_shutdown_states_what_each_model_used() {
        let shutdown = facts(
            "session.shutdown",
            &json!({"modelMetrics": {
            "a": {"requests": {"count": 2, "cost": 1}, "usage": {"inputTokens": 9,
                "outputTokens": 4, "cacheReadTokens": 3, "cacheWriteTokens": 2}},
            "b": {"requests": {"count": 0}}}}),
        );
        let [total] = &shutdown.totals[..] else { panic!("one model") };
        assert_eq!((total.model.as_deref(), total.calls), (Some("a"), 2));
        let usage = &total.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens), (Some(9), Some(4)));
        assert_eq!((usage.cache_read_tokens, usage.cache_write_tokens), (Some(3), Some(2)));
        assert_eq!(usage.cost, None, "its cost is in requests");
    }
}
