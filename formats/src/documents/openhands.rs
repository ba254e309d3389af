//! Conversations of `OpenHands`: a folder with a file for each event, and in newer versions the
//! state of the conversation. Their times have no offset, and are taken as UTC.

use runlog::{RunStatus, Timestamp};
use serde_json::Value;

use super::split::{self, Shallow};
use crate::facts::{Facts, Total, Usage, number, text};

/// Whether a document is an event.
pub fn is_event(event: &Value) -> bool {
    let has = |key: &str| event.get(key).is_some();
    has("timestamp") && has("source") && (has("kind") || has("action") || has("observation"))
}

/// What an event says of itself.
pub(super) fn facts(event: &Value) -> Facts {
    let tool = ["tool_name", "tool_call_metadata.function_name"];
    Facts {
        time: time(event),
        role: role(event),
        tools: tool.iter().find_map(|path| text(event, path)).into_iter().collect(),
        model: text(event, "tool_call_metadata.model_response.model"),
        id: event.get("id").map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned)),
        totals: event.get("llm_metrics").and_then(total).into_iter().collect(),
        ..Facts::default()
    }
}

/// What an event calls itself.
pub(super) fn kind(event: &Value) -> Option<&str> {
    ["kind", "action", "observation"].iter().find_map(|key| event.get(key)?.as_str())
}

/// The time of an event: UTC, unless it has an offset.
fn time(event: &Value) -> Option<Timestamp> {
    let time = event.get("timestamp")?.as_str()?;
    time.parse().or_else(|_| format!("{time}Z").parse()).ok()
}

fn role(event: &Value) -> Option<String> {
    let is_message = event["kind"] == "MessageEvent" || event["action"] == "message";
    let source = event.get("source").and_then(Value::as_str);
    let role = match (source, event.get("kind").and_then(Value::as_str)) {
        (Some("user"), _) if is_message => "user",
        (_, Some("SystemPromptEvent")) => "system",
        (_, Some("ObservationEvent" | "AgentErrorEvent")) => "tool",
        (Some("agent"), _) if event.get("observation").is_some() => "tool",
        (Some("agent"), _) => "assistant",
        _ => return None,
    };
    Some(role.to_owned())
}

/// What the state of a conversation says of its usage: metrics for each purpose of a model.
pub(super) fn totals(state: &str) -> Vec<Total> {
    let metrics = split::value_in(state, "usage_to_metrics");
    let metrics = metrics.as_ref().and_then(Value::as_object);
    let of_purpose = |(purpose, metrics): (&String, &Value)| {
        Some(Total { of: Some(purpose.clone()), ..total(metrics)? })
    };
    metrics.into_iter().flatten().filter_map(of_purpose).collect()
}

/// What metrics add up.
fn total(metrics: &Value) -> Option<Total> {
    let tokens = metrics.get("accumulated_token_usage").and_then(Usage::of).unwrap_or_default();
    let cost = metrics.get("accumulated_cost").and_then(number);
    let usage = Usage { cost, ..tokens };
    let model = ["model_name", "accumulated_token_usage.model"];
    let model = model.iter().find_map(|path| text(metrics, path));
    (usage != Usage::default()).then_some(Total { model, usage, ..Total::default() })
}

/// How a conversation ended, by its state.
pub fn end(state: &Shallow<'_>) -> Option<RunStatus> {
    let status = ["execution_status", "agent_status"].iter().find_map(|key| state.text(key))?;
    match status.to_ascii_lowercase().as_str() {
        "finished" => Some(RunStatus::Completed),
        "error" | "stuck" => Some(RunStatus::Failed),
        "stopped" => Some(RunStatus::Cancelled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_name_who_speaks_and_their_time_in_utc() {
        let facts = |event: Value| facts(&event);
        let user = facts(json!({"id": "e", "timestamp": "1970-01-01T00:00:01.5", "source": "user",
            "kind": "MessageEvent", "llm_message": {"role": "user", "content": []}}));
        assert_eq!(
            (user.role.as_deref(), user.time),
            (Some("user"), Some(Timestamp(1_500_000_000)))
        );
        let call = facts(json!({"id": 4, "timestamp": "x", "source": "agent", "action": "run",
            "tool_call_metadata": {"function_name": "bash"}}));
        assert_eq!(
            (call.role.as_deref(), &call.tools[..]),
            (Some("assistant"), &["bash".into()][..])
        );
        assert_eq!((call.id.as_deref(), call.time), (Some("4"), None));
        let result = facts(json!({"source": "environment", "kind": "ObservationEvent",
            "tool_name": "terminal"}));
        assert_eq!(result.role.as_deref(), Some("tool"));
    }

    #[test]
    fn the_state_says_what_each_purpose_of_a_model_used() {
        let metrics = |tokens: u64| {
            json!({"model_name": "m", "accumulated_cost": 0.5,
            "accumulated_token_usage": {"prompt_tokens": tokens, "cache_read_tokens": 1}})
        };
        let state = json!({"stats": {"usage_to_metrics": {"a": metrics(4), "b": metrics(5)}},
            "execution_status": "FINISHED"});
        let tokens: Vec<_> =
            totals(&state.to_string()).iter().map(|total| total.usage.input_tokens).collect();
        assert_eq!(tokens, [Some(4), Some(5)]);
        let state = state.to_string();
        assert_eq!(end(&Shallow::new(&state).expect("JSON")), Some(RunStatus::Completed));
    }
}
