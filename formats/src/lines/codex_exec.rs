//! What `codex exec --json` prints: `thread.started`, `item.completed` and others, and at the end
//! of each turn what the thread has used so far.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{Facts, Total, text};

pub(super) fn line(line: &Value) -> Option<Known> {
    let has = |key: &str| line.get(key).is_some();
    let facts = match line.get("type")?.as_str()? {
        "thread.started" if has("thread_id") => {
            Facts { id: text(line, "thread_id"), ..Facts::default() }
        }
        "turn.started" | "turn.failed" => Facts::default(),
        "turn.completed" => {
            let totals = line.get("usage").and_then(Total::of).into_iter().collect();
            Facts { totals, ..Facts::default() }
        }
        // An item that is completed says all that it said before.
        "item.completed" => item(line.get("item")?),
        "item.started" | "item.updated" if has("item") => Facts::default(),
        // Other programs write errors as well: those of Codex have only a message.
        "error" if has("message") && line.as_object()?.len() == 2 => Facts::default(),
        _ => return None,
    };
    Some((Format::CodexExec, facts))
}

/// What an item says of itself. Sessions write the same items with types such as `AgentMessage`.
pub(super) fn item(item: &Value) -> Facts {
    let tool = |tool: &str| vec![tool.to_owned()];
    let (role, tools) = match item.get("type").and_then(Value::as_str).unwrap_or_default() {
        "user_message" | "UserMessage" => (Some("user"), Vec::new()),
        "agent_message" | "AgentMessage" => (Some("assistant"), Vec::new()),
        "command_execution" | "CommandExecution" => (None, tool("shell")),
        "file_change" | "FileChange" => (None, tool("apply_patch")),
        "web_search" | "WebSearch" => (None, tool("web_search")),
        _ => (None, text(item, "tool").into_iter().collect()),
    };
    Facts { role: role.map(str::to_owned), tools, id: text(item, "id"), ..Facts::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_turn_that_completes_states_what_the_thread_has_used_so_far() {
        let turn = json!({"type": "turn.completed",
            "usage": {"input_tokens": 7, "cached_input_tokens": 5, "output_tokens": 2}});
        let (format, facts) = line(&turn).expect("a line");
        assert_eq!(format, Format::CodexExec);
        let [total] = &facts.totals[..] else { panic!("one") };
        assert_eq!((&total.of, total.usage.input_tokens), (&None, Some(7)));
    }

    #[test]
    fn items_name_who_speaks_or_which_tool_runs_once() {
        let item = |kind: &str, item: Value| {
            let facts = line(&json!({"type": kind, "item": item})).expect("a line").1;
            facts.tools.into_iter().chain(facts.role).collect::<Vec<_>>().join(" ")
        };
        let command = json!({"id": "item_1", "type": "command_execution", "command": "ls"});
        assert_eq!(item("item.started", command.clone()), "");
        assert_eq!(item("item.completed", command), "shell");
        assert_eq!(item("item.completed", json!({"type": "agent_message"})), "assistant");
        assert_eq!(item("item.completed", json!({"type": "mcp_tool_call", "tool": "f"})), "f");
    }

    #[test]
    fn what_other_programs_call_so_is_not_taken() {
        for other in [
            json!({"type": "error"}),
            json!({"type": "error", "message": "m", "id": 1}),
            json!({"type": "item.completed"}),
            json!({"type": "thread.started"}),
        ] {
            assert_eq!(line(&other), None, "{other}");
        }
    }
}
