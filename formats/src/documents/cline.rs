//! Tasks of Cline, Roo Code and Kilo Code. A task is a folder with two documents:
//!
//! | file | has |
//! |---|---|
//! | `api_conversation_history.json` | the messages as the model gets them |
//! | `ui_messages.json` | the same as the user sees them, and what each request used |
//!
//! Newer versions of Cline have one document, `SESSION.messages.json`.

use runlog::RunStatus;
use serde_json::Value;

use super::split::{Place, Shallow};
use crate::facts::{Facts, Total, Usage, at, items, text, unix_millis};

/// Where the steps are.
pub(super) const PLACES: [&[Place]; 2] = [&[Place::Key("messages")], &[]];

pub(super) fn is(document: &Shallow<'_>) -> bool {
    let is_message = |message: &Value| {
        let is_of_model = message.get("role").is_some() && message.get("content").is_some();
        let has_time = message.get("ts").is_some_and(Value::is_number);
        has_time && (is_of_model || is_of_user_interface(message))
    };
    let first = document.first_of(Some("messages")).or_else(|| document.first_of(None));
    first.is_some_and(|first| is_message(&first))
}

/// What a message says of itself, in either file.
pub(super) fn facts(message: &Value) -> Facts {
    if is_of_user_interface(message) {
        let is_user = message["say"] == "user_feedback" || message["say"] == "task";
        return Facts {
            time: unix_millis(message, "ts"),
            role: is_user.then(|| "user".to_owned()),
            tools: tool(message).into_iter().collect(),
            totals: total(message).into_iter().collect(),
            ..Facts::default()
        };
    }
    let metrics = message.get("metrics");
    let tokens = metrics.and_then(|metrics| Usage::of(metrics.get("tokens").unwrap_or(metrics)));
    let cost = metrics.and_then(|metrics| metrics.get("cost")?.as_number().cloned());
    let calls = items(message, "content").filter(|part| part["type"] == "tool_use");
    Facts {
        time: unix_millis(message, "ts"),
        role: text(message, "role"),
        tools: calls.filter_map(|part| text(part, "name")).collect(),
        model: ["modelInfo.modelId", "modelInfo.id"].iter().find_map(|path| text(message, path)),
        id: text(message, "id"),
        usage: tokens.map(|usage| Usage { cost, ..usage }),
        ..Facts::default()
    }
}

/// What a request of the user interface used. The messages of newer versions state the same.
fn total(message: &Value) -> Option<Total> {
    if message.get("say")? != "api_req_started" {
        return None;
    }
    let request: Value = serde_json::from_str(message.get("text")?.as_str()?).ok()?;
    let cost = request.get("cost").and_then(Value::as_number).cloned();
    let usage = Usage { cost, ..Usage::of(&request)? };
    let model = text(message, "modelInfo.modelId");
    let of = Some(message.get("ts")?.to_string());
    Some(Total { of, model, calls: 1, usage })
}

/// How a task ended, if this is its last message in the user interface.
pub fn end(message: &Value) -> Option<RunStatus> {
    let is_result = |key: &str| message.get(key).is_some_and(|kind| kind == "completion_result");
    (is_result("ask") || is_result("say")).then_some(RunStatus::Completed)
}

/// Whether a message is one that the user sees.
pub(crate) fn is_of_user_interface(message: &Value) -> bool {
    let is_word = |key: &str| message.get(key).is_some_and(Value::is_string);
    message.get("ts").is_some_and(Value::is_number) && (is_word("say") || is_word("ask"))
}

/// The tool that a message of the user interface is about.
fn tool(message: &Value) -> Option<String> {
    match message.get("say")?.as_str()? {
        "tool" => {
            let call: Value = serde_json::from_str(message.get("text")?.as_str()?).ok()?;
            text(&call, "tool")
        }
        "command" => Some("execute_command".to_owned()),
        _ => None,
    }
}

/// What a message of the user interface calls itself.
pub(super) fn kind(message: &Value) -> Option<&str> {
    at(message, "say").or_else(|| message.get("ask"))?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_shapes_of_metrics_are_read() {
        let old = json!({"role": "assistant", "ts": 1000, "modelInfo": {"modelId": "m"},
            "metrics": {"tokens": {"prompt": 9, "completion": 8, "cached": 3}, "cost": 0.5}});
        let new = json!({"role": "assistant", "ts": 1000, "modelInfo": {"id": "m"},
            "metrics": {"inputTokens": 9, "outputTokens": 8, "cacheReadTokens": 3, "cost": 0.5}});
        assert_eq!(facts(&old), facts(&new));
        let usage = facts(&old).usage.expect("usage");
        assert_eq!((usage.input_tokens, usage.cache_read_tokens), (Some(9), Some(3)));
        assert_eq!(usage.cost.and_then(|cost| cost.as_f64()), Some(0.5));
    }

    #[test]
    fn a_request_of_the_user_interface_states_what_it_used() {
        let request = json!({"ts": 1, "type": "say", "say": "api_req_started",
            "text": r#"{"request":"x","tokensIn":9,"tokensOut":8,"cacheReads":3,"cost":0.5}"#});
        let total = total(&request).expect("usage");
        assert_eq!((total.usage.input_tokens, total.usage.output_tokens), (Some(9), Some(8)));
        assert_eq!(facts(&json!({"ts": 1, "say": "text", "text": "{"})).totals, []);
    }
}
