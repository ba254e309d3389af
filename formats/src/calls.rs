//! The calls of tools in a record, and the answers to them, by the ids that connect them.

use serde_json::Value;

use super::facts::{at, text};

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

/// A part of a record: where it is, the key and the word that tell it from others, and where its id
/// and the name of its tool are. Where there are several paths, a bar is between them; an empty one
/// leads to the record itself.
type Shape = (&'static str, (&'static str, &'static str), &'static str, &'static str);

const CONTENT: &str = "message.content|content";
/// Each part that is there.
const ANY: (&str, &str) = ("", "");
/// The word of a key whose value is an object.
const OBJECT: &str = "{";

/// Calls whose answers are elsewhere.
const CALLS: [Shape; 8] = [
    // Claude Code, Cline; pi, OpenClaw; Goose.
    (CONTENT, ("type", "tool_use"), "id", "name"),
    (CONTENT, ("type", "toolCall"), "id", "name"),
    (CONTENT, ("type", "toolRequest"), "id", "toolCall.value.name"),
    // Codex.
    ("payload|", ("type", "function_call"), "call_id", "name"),
    ("payload|", ("type", "custom_tool_call"), "call_id", "name"),
    // Chats, mini-swe-agent, ATIF; Copilot; OpenHands.
    ("tool_calls", ANY, "tool_call_id|id", "function_name|function.name|function"),
    ("", ("type", "tool.execution_start"), "data.toolCallId", "data.toolName"),
    ("", ("action", OBJECT), "tool_call_id", "tool_name"),
];

/// Calls that have their answers: of Gemini, `OpenCode`, Inspect and CAR.
const ANSWERED: [Shape; 4] = [
    ("toolCalls", ANY, "id", "name"),
    ("parts|", ("type", "tool"), "callID", "tool"),
    ("", ("event", "tool"), "id", "function"),
    ("", ("record", "turn"), "", "tool"),
];

/// Answers, which name no tool.
const ANSWERS: [Shape; 9] = [
    (CONTENT, ("type", "tool_result"), "tool_use_id", ""),
    (CONTENT, ("type", "toolResponse"), "id", ""),
    ("message", ("role", "toolResult"), "toolCallId", ""),
    ("payload|", ("type", "function_call_output"), "call_id", ""),
    ("payload|", ("type", "custom_tool_call_output"), "call_id", ""),
    ("observation.results", ANY, "source_call_id", ""),
    ("", ("role", "tool"), "tool_call_id", ""),
    ("", ("type", "tool.execution_complete"), "data.toolCallId", ""),
    ("", ("observation", OBJECT), "tool_call_id", ""),
];

impl Calls {
    /// Those of a record, whatever format it has.
    pub fn of(record: &Value) -> Self {
        let open = CALLS.iter().map(|shape| (shape, false));
        let shapes = open.chain(ANSWERED.iter().map(|shape| (shape, true)));
        let calls = shapes.flat_map(|(shape, is_answered)| {
            parts(record, shape).filter_map(move |part| {
                let (id, tool) = (first(part, shape.2), first(part, shape.3)?);
                let has_failed = is_answered && has_failed(part);
                Some(Call { id, tool, is_answered, has_failed })
            })
        });
        let answers = ANSWERS.iter().flat_map(|shape| {
            let answer =
                |part| Some(Answer { id: first(part, shape.2)?, has_failed: has_failed(part) });
            parts(record, shape).filter_map(answer)
        });
        Self { calls: calls.collect(), answers: answers.collect() }
    }
}

/// The parts of a record that have a shape.
fn parts<'a>(
    record: &'a Value,
    (places, (key, word), ..): &'static Shape,
) -> impl Iterator<Item = &'a Value> {
    let all = places.split('|').flat_map(|path| match at(record, path) {
        Some(Value::Array(parts)) => parts.as_slice(),
        Some(part) => std::slice::from_ref(part),
        None if path.is_empty() => std::slice::from_ref(record),
        None => &[],
    });
    all.filter(move |part| match part.get(key) {
        Some(Value::String(found)) => found == word,
        found => key.is_empty() || *word == OBJECT && found.is_some_and(Value::is_object),
    })
}

/// The first string at one of these paths.
fn first(part: &Value, paths: &str) -> Option<String> {
    paths.split('|').find_map(|path| text(part, path))
}

/// Whether an answer says that its tool failed.
fn has_failed(answer: &Value) -> bool {
    let is = |path: &str, wanted: bool| at(answer, path).is_some_and(|value| *value == wanted);
    ["is_error", "isError", "observation.is_error"].iter().any(|path| is(path, true))
        || ["status", "state.status"]
            .iter()
            .any(|path| text(answer, path).as_deref() == Some("error"))
        || is("data.success", false)
        || answer.get("error").is_some_and(Value::is_object)
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
