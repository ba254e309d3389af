//! The calls of tools in a record, and the answers to them, by the ids that connect them.
//!
//! | who writes it | call | answer |
//! |---|---|---|
//! | Claude Code | `message.content[]` of type `tool_use` | of type `tool_result` |
//! | pi, `OpenClaw` | `message.content[]` of type `toolCall` | message with the role `toolResult` |
//! | Codex | `function_call` and others | the same with `_output` |
//! | chats, mini-swe-agent | `tool_calls[]` | message with the role `tool` |
//! | ATIF | `tool_calls[]` | `observation.results[]` |
//! | Gemini | `toolCalls[]`, with their answers | |
//! | Inspect | event `tool`, with its answer | |
//! | CAR | `tool` of a turn, with its answer | |
//! | Copilot | `tool.execution_start` | `tool.execution_complete` |
//! | Goose | `content[]` of type `toolRequest` | of type `toolResponse` |
//! | Cline | `content[]` of type `tool_use` | of type `tool_result` |
//! | `OpenHands` | event with `action` and `tool_call_id` | with `observation` |
//! | `OpenCode` | part of type `tool`, with its answer | |

use serde_json::Value;

use super::facts::{at, items, text};

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// The id that connects it with its answer.
    pub id: Option<String>,
    /// The name of the tool.
    pub tool: String,
    /// The record has the answer too.
    pub is_answered: bool,
    /// The answer says that the tool failed.
    pub has_failed: bool,
}

/// An answer to a call in an earlier record, or in the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The id of the call.
    pub id: String,
    /// The answer says that the tool failed.
    pub has_failed: bool,
}

/// What tools have to do with a record.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Those that it makes.
    pub calls: Vec<Call>,
    /// Those that it answers.
    pub answers: Vec<Answer>,
}

impl Calls {
    /// Those of a record, whatever format it has.
    pub fn of(record: &Value) -> Self {
        let mut found = Self::default();
        found.anthropic(record);
        found.pi(record);
        found.codex(record);
        found.chat(record);
        found.whole(record);
        found.sessions(record);
        found
    }

    fn call(&mut self, value: &Value, id: &str, tools: &[&str]) {
        if let Some(tool) = tools.iter().find_map(|path| text(value, path)) {
            let id = text(value, id);
            self.calls.push(Call { id, tool, is_answered: false, has_failed: false });
        }
    }

    fn answer(&mut self, value: &Value, id: &str, failed: &str) {
        if let Some(id) = text(value, id) {
            let has_failed = at(value, failed).and_then(Value::as_bool).unwrap_or(false);
            self.answers.push(Answer { id, has_failed });
        }
    }

    fn anthropic(&mut self, record: &Value) {
        for part in items(record, "message.content").chain(items(record, "content")) {
            match part.get("type").and_then(Value::as_str) {
                Some("toolRequest") => self.call(part, "id", &["toolCall.value.name"]),
                Some("toolResponse") => self.answer(part, "id", ""),
                Some("tool_use") => self.call(part, "id", &["name"]),
                Some("tool_result") => self.answer(part, "tool_use_id", "is_error"),
                _ => {}
            }
        }
    }

    fn pi(&mut self, record: &Value) {
        for part in items(record, "message.content").filter(|part| part["type"] == "toolCall") {
            self.call(part, "id", &["name"]);
        }
        if let Some(message) = record.get("message").filter(|m| m["role"] == "toolResult") {
            self.answer(message, "toolCallId", "isError");
        }
    }

    fn codex(&mut self, record: &Value) {
        let item = record.get("payload").filter(|item| item.is_object()).unwrap_or(record);
        match item.get("type").and_then(Value::as_str) {
            Some("function_call" | "custom_tool_call") => self.call(item, "call_id", &["name"]),
            Some("function_call_output" | "custom_tool_call_output") => {
                self.answer(item, "call_id", "");
            }
            _ => {}
        }
    }

    /// Messages of chats, and the steps of ATIF.
    fn chat(&mut self, record: &Value) {
        for call in items(record, "tool_calls") {
            let id = if call.get("tool_call_id").is_some() { "tool_call_id" } else { "id" };
            self.call(call, id, &["function_name", "function.name", "function"]);
        }
        for result in items(record, "observation.results") {
            self.answer(result, "source_call_id", "");
        }
        if record["role"] == "tool" {
            self.answer(record, "tool_call_id", "");
        }
    }

    /// Events of Copilot and of `OpenHands`.
    fn sessions(&mut self, record: &Value) {
        match record.get("type").and_then(Value::as_str) {
            Some("tool.execution_start") => {
                self.call(record, "data.toolCallId", &["data.toolName"]);
            }
            Some("tool.execution_complete") => {
                let failed = at(record, "data.success").is_some_and(|success| success == false);
                self.answer(record, "data.toolCallId", "");
                self.answers.iter_mut().for_each(|answer| answer.has_failed = failed);
            }
            _ => {}
        }
        if record.get("action").is_some_and(Value::is_object) {
            self.call(record, "tool_call_id", &["tool_name"]);
        } else if record.get("observation").is_some_and(Value::is_object) {
            self.answer(record, "tool_call_id", "observation.is_error");
        }
    }

    /// Records that have call and answer.
    fn whole(&mut self, record: &Value) {
        let is_turn = record["record"] == "turn";
        let is_event = record["event"] == "tool";
        let of_gemini = items(record, "toolCalls").map(|call| (call, "id", "name"));
        let of_turn = is_turn.then_some((record, "", "tool"));
        let of_event = is_event.then_some((record, "id", "function"));
        let parts =
            items(record, "parts").chain(Some(record)).filter(|part| part["type"] == "tool");
        let of_parts = parts.map(|part| (part, "callID", "tool"));
        let all: Vec<_> = of_gemini.chain(of_turn).chain(of_event).chain(of_parts).collect();
        for (call, id, tool) in all {
            let is_error = |status: Option<&Value>| status.is_some_and(|status| status == "error");
            let has_failed = is_error(call.get("status"))
                || is_error(at(call, "state.status"))
                || call["error"].is_object();
            if let Some(tool) = text(call, tool) {
                self.calls.push(Call { id: text(call, id), tool, is_answered: true, has_failed });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Tools with their ids, and ids of answers; a failure has an exclamation mark.
    fn said(record: &Value) -> String {
        let found = Calls::of(record);
        let mark = |has_failed: bool| if has_failed { "!" } else { "" };
        let calls = found.calls.iter().map(|call| {
            let (id, end) = (call.id.as_deref().unwrap_or("-"), mark(call.has_failed));
            format!("{}({id}){}{end}", call.tool, if call.is_answered { "=" } else { "" })
        });
        let answers =
            found.answers.iter().map(|answer| format!("={}{}", answer.id, mark(answer.has_failed)));
        calls.chain(answers).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn calls_and_answers_are_found_in_each_format() {
        for (record, wanted) in [
            (
                json!({"message": {"content": [{"type": "text"},
                    {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}},
                    {"type": "tool_use", "id": "t2", "name": "Read", "input": {}}]}}),
                "Bash(t1) Read(t2)",
            ),
            (
                json!({"message": {"content": [
                    {"type": "tool_result", "tool_use_id": "t1", "is_error": true},
                    {"type": "tool_result", "tool_use_id": "t2"}]}}),
                "=t1! =t2",
            ),
            (
                json!({"message": {"content": [{"type": "toolCall", "id": "1", "name": "read"}]}}),
                "read(1)",
            ),
            (
                json!({"message": {"role": "toolResult", "toolCallId": "1", "toolName": "read",
                    "isError": false}}),
                "=1",
            ),
            (
                json!({"payload": {"type": "function_call", "call_id": "c", "name": "shell"}}),
                "shell(c)",
            ),
            (json!({"type": "custom_tool_call_output", "call_id": "c", "output": "x"}), "=c"),
            (json!({"tool_calls": [{"id": "c", "function": {"name": "bash"}}]}), "bash(c)"),
            (json!({"tool_calls": [{"id": "c", "function": "browse"}]}), "browse(c)"),
            (json!({"role": "tool", "tool_call_id": "c", "content": "x"}), "=c"),
            (
                json!({"tool_calls": [{"tool_call_id": "c", "function_name": "bash"}],
                    "observation": {"results": [{"source_call_id": "c", "content": "x"}]}}),
                "bash(c) =c",
            ),
            (json!({"toolCalls": [{"id": "g", "name": "glob", "status": "error"}]}), "glob(g)=!"),
            (
                json!({"event": "tool", "id": "c", "function": "browse", "error": null}),
                "browse(c)=",
            ),
            (json!({"record": "turn", "tool": "sh"}), "sh(-)="),
            (json!({"record": "turn"}), ""),
            (
                json!({"type": "tool.execution_start",
                    "data": {"toolCallId": "c", "toolName": "bash"}}),
                "bash(c)",
            ),
            (
                json!({"type": "tool.execution_complete",
                    "data": {"toolCallId": "c", "success": false}}),
                "=c!",
            ),
            (
                json!({"content": [{"type": "toolRequest", "id": "r",
                    "toolCall": {"value": {"name": "shell"}}}, {"type": "toolResponse",
                    "id": "q"}]}),
                "shell(r) =q",
            ),
            (json!({"action": {}, "tool_name": "term", "tool_call_id": "c"}), "term(c)"),
            (json!({"observation": {"is_error": true}, "tool_call_id": "c"}), "=c!"),
            (
                json!({"type": "tool", "callID": "c", "tool": "bash",
                    "state": {"status": "error"}}),
                "bash(c)=!",
            ),
            (json!({"role": "user", "content": "tool_use"}), ""),
            (json!([1]), ""),
            (json!("tool"), ""),
        ] {
            assert_eq!(said(&record), wanted, "{record}");
        }
    }
}
