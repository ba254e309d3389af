//! What a record says, as parts of a conversation: text, thoughts, calls of tools and answers.
//!
//! The shapes are those of all formats at once. A record that has none of them says nothing here;
//! `show --records` shows it all the same.

use runlog_formats::facts::{Facts, at, items};
use runlog_formats::json;
use serde_json::Value;

use crate::readable::in_one_line;

/// A part of what is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Part {
    Text(String),
    /// What a model says to itself.
    Thought(String),
    Call {
        tool: String,
        input: String,
    },
    /// What a tool answers.
    Answer(String),
}

/// How deep parts are within parts.
const DEPTH: usize = 4;

/// Where formats keep the message of a record.
const BODIES: [&str; 5] = ["payload.item", "payload.msg", "payload", "message", "item"];

/// Who speaks for a model, and for its user.
const MODELS: [&str; 5] = ["assistant", "agent", "gemini", "model", "ai"];
const USERS: [&str; 2] = ["user", "human"];

/// The parts of a record, in their order.
pub(crate) fn parts(record: &Value) -> Vec<Part> {
    let body = BODIES.iter().find_map(|path| at(record, path).filter(|body| body.is_object()));
    let mut parts = Vec::new();
    read(body.unwrap_or(record), DEPTH, &mut parts);
    let is_said = |part: &Part| match part {
        Part::Text(text) | Part::Thought(text) | Part::Answer(text) => !text.trim().is_empty(),
        Part::Call { .. } => true,
    };
    parts.retain(is_said);
    parts
}

/// Who speaks: `user`, `assistant` or `tool`, or what the record calls it.
pub(crate) fn speaker(record: &Value, facts: &Facts, kind: Option<&str>, parts: &[Part]) -> String {
    let said = ["role", "message.role"].iter().find_map(|path| at(record, path)?.as_str());
    // A step of SWE-agent is what the model says and does, and what comes of it.
    let does = record["action"].is_string().then_some("assistant");
    let role = facts.role.as_deref().or(said).or(does).or(kind).unwrap_or("-");
    let answers = !parts.is_empty() && parts.iter().all(|part| matches!(part, Part::Answer(_)));
    let is_tool = answers || role.starts_with("tool") || role.starts_with("function");
    match role {
        _ if is_tool => "tool",
        role if MODELS.contains(&role) => "assistant",
        role if USERS.contains(&role) => "user",
        role => role,
    }
    .to_owned()
}

/// The same of a payload.
pub(crate) fn speaker_of(payload: &[u8], facts: &Facts, kind: Option<&str>) -> String {
    let value = json::value(payload).unwrap_or_default();
    speaker(&value, facts, kind, &parts(&value))
}

/// What a payload says, in one line; a payload that says nothing is itself.
pub(crate) fn gist(payload: &[u8]) -> String {
    let parts = json::value(payload).map(|value| parts(&value)).unwrap_or_default();
    let words: Vec<String> = parts
        .iter()
        .map(|part| match part {
            Part::Text(text) | Part::Thought(text) | Part::Answer(text) => text.clone(),
            Part::Call { tool, input } => format!("{tool} {input}"),
        })
        .collect();
    if words.is_empty() { in_one_line(payload) } else { in_one_line(words.join(" ").as_bytes()) }
}

/// Reads an object with a message, or a part of one.
fn read(value: &Value, depth: usize, parts: &mut Vec<Part>) {
    if depth == 0 {
        return;
    }
    match value {
        Value::String(text) => parts.push(Part::Text(text.clone())),
        Value::Array(values) => values.iter().for_each(|value| read(value, depth - 1, parts)),
        Value::Object(_) => object(value, depth, parts),
        _ => {}
    }
}

fn object(value: &Value, depth: usize, parts: &mut Vec<Part>) {
    let kind = value["type"].as_str().unwrap_or_default();
    match kind {
        "tool_use" | "toolCall" | "tool_call" | "function_call" | "custom_tool_call"
        | "server_tool_use" | "functionCall" => return call(value, parts),
        "local_shell_call" => {
            return parts.push(Part::Call {
                tool: "shell".to_owned(),
                input: shown(&value["action"]["command"]),
            });
        }
        "CommandExecution" | "command_execution" => {
            parts.push(Part::Call { tool: "shell".to_owned(), input: shown(&value["command"]) });
            return answer(value, &["aggregated_output", "output"], parts);
        }
        "thinking" | "reasoning" | "Reasoning" | "redacted_thinking" | "agent_reasoning" => {
            let fields = ["thinking", "summary", "content", "text"];
            let said = fields.iter().map(|field| text_of(&value[*field]));
            return parts.extend(said.filter(|text| !text.is_empty()).take(1).map(Part::Thought));
        }
        "image" | "image_url" | "input_image" | "audio" | "file" | "document" => {
            return parts.push(Part::Text(format!("[{kind}]")));
        }
        _ => {}
    }
    let role = value["role"].as_str().unwrap_or_default();
    if kind.ends_with("_output")
        || kind.to_ascii_lowercase().ends_with("result")
        || role.starts_with("tool")
        || role == "function"
    {
        return answer(value, &["content", "output", "result", "toolUseResult", "text"], parts);
    }
    for field in ["reasoning_content", "reasoning"] {
        parts.extend(value[field].as_str().map(|text| Part::Thought(text.to_owned())));
    }
    // In front of an action it is what the model says, and a response repeats both.
    let is_new = !(value["thought"].is_string() && value["action"].is_string());
    let thought = value["thought"].as_str().map(str::to_owned);
    parts.extend(thought.map(if is_new { Part::Thought } else { Part::Text }));
    // The first of them: others say the same again.
    let said = ["content", "parts", "text", "message", "response", "prompt", "display"];
    let mut said = said.iter().map(|field| &value[*field]);
    if let Some(said) = said.find(|said| is_new && is_said(said)) {
        read(said, depth - 1, parts);
    }
    for calls in ["tool_calls", "toolCalls"] {
        for one in items(value, calls) {
            call(one, parts);
            answer(one, &["result", "output"], parts);
        }
    }
    if value["functionCall"].is_object() {
        call(&value["functionCall"], parts);
    }
    answer(&value["functionResponse"], &["response"], parts);
    if let Some(action) = value["action"].as_str().filter(|action| !action.is_empty()) {
        parts.push(Part::Call { tool: "action".to_owned(), input: action.to_owned() });
    }
    answer(value, &["observation"], parts);
}

fn is_said(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(parts) => !parts.is_empty(),
        Value::Object(_) => true,
        _ => false,
    }
}

fn call(value: &Value, parts: &mut Vec<Part>) {
    let inner = if value["function"].is_object() { &value["function"] } else { value };
    let names = ["name", "function_name", "tool", "toolName"];
    let Some(tool) = names.iter().find_map(|name| inner[*name].as_str()) else { return };
    let inputs = ["input", "arguments", "args", "parameters"];
    let input = inputs.iter().map(|input| &inner[*input]).find(|input| !input.is_null());
    parts.push(Part::Call { tool: tool.to_owned(), input: input.map(shown).unwrap_or_default() });
}

fn answer(value: &Value, fields: &[&str], parts: &mut Vec<Part>) {
    let found = fields.iter().filter_map(|field| value.get(*field)).find(|found| is_said(found));
    parts.extend(found.map(|found| Part::Answer(text_of(found))));
}

/// The text of an answer or a thought, or its JSON where it has none.
fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => {
            let texts: Vec<String> = values.iter().map(text_of).collect();
            texts.join("\n")
        }
        Value::Object(_) => {
            let fields = ["text", "content", "output", "results", "stdout", "thinking"];
            let found = fields.iter().map(|field| &value[*field]).find(|found| is_said(found));
            found.map_or_else(|| value.to_string(), text_of)
        }
        other => other.to_string(),
    }
}

/// The input of a call: a command as it is typed, anything else as JSON.
fn shown(input: &Value) -> String {
    let is_text = |value: &&Value| value.is_string() || value.is_array();
    let only = input.as_object().filter(|fields| fields.len() == 1);
    let only = only.and_then(|fields| fields.values().next().filter(is_text));
    match only.unwrap_or(input) {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(value @ Value::Object(_)) => shown(&value),
            _ => text.clone(),
        },
        Value::Array(words) if words.iter().all(Value::is_string) => {
            words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Part {
        Part::Text(text.to_owned())
    }

    fn call(tool: &str, input: &str) -> Part {
        Part::Call { tool: tool.to_owned(), input: input.to_owned() }
    }

    fn answer(text: &str) -> Part {
        Part::Answer(text.to_owned())
    }

    #[test]
    fn each_format_says_its_parts() {
        for (record, expected) in [
            (json!({"role": "user", "content": "Fix it"}), vec![text("Fix it")]),
            (
                json!({"type": "assistant", "message": {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."},
                    {"type": "tool_use", "name": "Bash", "input": {"command": "ls -l"}}]}}),
                vec![Part::Thought("Hm.".to_owned()), text("Yes."), call("Bash", "ls -l")],
            ),
            (
                json!({"type": "user", "message": {"role": "user", "content": [
                    {"type": "tool_result", "content": [{"type": "text", "text": "total 0"}]}]}}),
                vec![answer("total 0")],
            ),
            (
                json!({"type": "response_item", "payload": {"type": "function_call",
                    "name": "shell", "arguments": "{\"command\":[\"ls\",\"-l\"]}"}}),
                vec![call("shell", "ls -l")],
            ),
            (
                json!({"type": "response_item", "payload": {"type": "function_call_output",
                    "output": "total 0"}}),
                vec![answer("total 0")],
            ),
            (
                json!({"role": "assistant", "content": null, "tool_calls": [{"function":
                    {"name": "ls", "arguments": "{\"path\":\".\"}"}}]}),
                vec![call("ls", ".")],
            ),
            (json!({"role": "tool", "content": "total 0"}), vec![answer("total 0")]),
            (
                json!({"type": "gemini", "content": "Yes.", "toolCalls": [
                    {"name": "ls", "args": {"path": "."}}]}),
                vec![text("Yes."), call("ls", ".")],
            ),
            (
                json!({"role": "model", "parts": [{"text": "Yes."},
                    {"functionCall": {"name": "ls", "args": {"path": "."}}}]}),
                vec![text("Yes."), call("ls", ".")],
            ),
            (
                json!({"thought": "Hm.", "action": "ls", "response": "Hm. ls", "observation": "a"}),
                vec![text("Hm."), call("action", "ls"), answer("a")],
            ),
            (json!({"type": "summary", "leafUuid": "x", "n": 1}), vec![]),
            (json!([1, 2]), vec![]),
            (json!({"role": "user", "content": " "}), vec![]),
        ] {
            assert_eq!(parts(&record), expected, "{record}");
        }
    }

    #[test]
    fn a_user_that_only_brings_answers_is_a_tool() {
        let of = |role: &str, parts: &[Part]| {
            let facts = Facts { role: Some(role.to_owned()), ..Facts::default() };
            speaker(&Value::Null, &facts, None, parts)
        };
        assert_eq!(of("user", &[answer("ok")]), "tool");
        assert_eq!(of("human", &[text("ok")]), "user");
        assert_eq!(of("gemini", &[text("ok")]), "assistant");
        assert_eq!(of("developer", &[text("ok")]), "developer");
    }

    #[test]
    fn a_gist_is_one_line() {
        assert_eq!(gist(br#"{"role":"user","content":"one\ntwo"}"#), "one two");
        assert_eq!(gist(br#"{"role":"user","n":NaN,"content":"not a number"}"#), "not a number");
        assert_eq!(gist(b"no\nJSON"), "no JSON");
        assert_eq!(gist(br#"{"n":1}"#), r#"{"n":1}"#);
    }
}
