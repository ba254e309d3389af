//! Rollouts of the Codex CLI: lines with `timestamp`, `type` and `payload`. The first versions
//! wrote what is the payload now as the line itself. Since version 0.148 messages and calls are
//! `item_completed` events.

use serde_json::Value;

use super::{Format, Known, codex_exec};
use crate::facts::{Facts, Thread, Total, Usage, at, text, time};

const ENVELOPES: [&str; 8] = [
    "session_meta",
    "response_item",
    "event_msg",
    "turn_context",
    "compacted",
    "world_state",
    "inter_agent_communication",
    "token_usage_record",
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
    let is_completed = item.get("type").is_some_and(|kind| kind == "item_completed");
    if let Some(completed) = item.get("item").filter(|_| is_completed) {
        let facts = Facts { time: time(line, "timestamp"), ..codex_exec::item(completed) };
        return Some((Format::Codex, facts));
    }
    let [last, running] = ["last_token_usage", "total_token_usage"]
        .map(|key| item.get("info")?.get(key).and_then(Usage::of));
    // The first versions gave the sum only.
    let sum = running.clone().filter(|_| last.is_none());
    let totals = sum.map(|usage| Total { usage, ..Total::default() }).into_iter().collect();
    let facts = Facts {
        time: time(line, "timestamp"),
        role: text(item, "role"),
        tools: tool(item).into_iter().collect(),
        model: text(item, "model"),
        id: text(item, "id").or_else(|| text(item, "call_id")),
        message_id: text(item, "response_id"),
        usage: last.or_else(|| at(item, "usage").and_then(Usage::of)),
        thread: if kind == Some("session_meta") { thread(item) } else { None },
        totals,
        running,
        ..Facts::default()
    };
    Some((Format::Codex, facts))
}

/// The thread that a rollout is of.
fn thread(meta: &Value) -> Option<Thread> {
    let parents = ["forked_from_id", PARENT, "parent_thread_id"];
    let parent = parents.iter().find_map(|path| text(meta, path));
    Some(Thread { id: text(meta, "id")?, parent })
}

/// Where a thread names the one that started it for a part of its work.
const PARENT: &str = "source.subagent.thread_spawn.parent_thread_id";

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
    fn completed_items_name_who_speaks_or_which_tool_runs() {
        let item =
            |item: Value| facts("event_msg", &json!({"type": "item_completed", "item": item}));
        let said = item(json!({"type": "UserMessage", "id": "i1", "content": []}));
        assert_eq!((said.role.as_deref(), said.id.as_deref()), (Some("user"), Some("i1")));
        assert_eq!(item(json!({"type": "AgentMessage"})).role.as_deref(), Some("assistant"));
        assert_eq!(item(json!({"type": "CommandExecution", "command": ["ls"]})).tools, ["shell"]);
        assert_eq!(item(json!({"type": "McpToolCall", "tool": "find"})).tools, ["find"]);
        assert_eq!(item(json!({"type": "Reasoning"})).tools, Vec::<String>::new());
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
        let record = json!({"response_id": "resp_1", "usage": {"input_tokens": 4}});
        let facts = facts("token_usage_record", &record);
        assert_eq!(facts.message_id.as_deref(), Some("resp_1"));
        assert_eq!(facts.usage.expect("usage").input_tokens, Some(4));
    }

    #[test]
    fn threads_name_the_one_that_they_began_as_a_copy_of() {
        let spawned = json!({"subagent": {"thread_spawn": {"parent_thread_id": "p"}}});
        for meta in [
            json!({"id": "c", "forked_from_id": "p"}),
            json!({"id": "c", "source": spawned}),
            json!({"id": "c", "source": "cli", "parent_thread_id": "p"}),
        ] {
            let thread = facts("session_meta", &meta).thread.expect("a thread");
            assert_eq!((&*thread.id, thread.parent.as_deref()), ("c", Some("p")), "{meta}");
        }
        let alone = facts("session_meta", &json!({"id": "c"})).thread.expect("a thread");
        assert_eq!(alone.parent, None);
    }
}
