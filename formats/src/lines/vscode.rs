//! Chats of VS Code as a log of changes: the first line has the whole chat, each other one the path
//! `k` of what changes, and its new value `v`. The same chats are documents as well.

use serde_json::{Value, json};

use super::{Format, Known};
use crate::documents::vscode;
use crate::facts::{Facts, Total, Usage, items, text, unix_millis};

/// What a line does: sets all, sets a value, or appends to a list.
const ALL: u64 = 0;
const SET: u64 = 1;
const APPEND: u64 = 2;

pub(super) fn line(line: &Value) -> Option<Known> {
    let (kind, value) = (line.get("kind")?.as_u64()?, line.get("v"));
    let path: Vec<&Value> = items(line, "k").collect();
    let is_chat =
        |value: &Value| value.get("sessionId").is_some() && value.get("requests").is_some();
    let facts = match (kind, value) {
        (ALL, Some(chat)) if is_chat(chat) => Facts {
            time: unix_millis(chat, "creationDate"),
            id: text(chat, "sessionId"),
            totals: totals(items(chat, "requests"), Some(0)),
            ..Facts::default()
        },
        (SET | APPEND, Some(value)) if !path.is_empty() => {
            change(kind, &path, value, line.get("i").and_then(Value::as_u64))
        }
        // Takes something out of a list.
        (SET.., _) if !path.is_empty() => Facts::default(),
        _ => return None,
    };
    Some((Format::VsCodeLines, facts))
}

/// The name that the user or a model gave to the chat.
pub(super) fn name(line: &Value) -> Option<&str> {
    let is_name =
        line.get("k").and_then(|path| path.get(0)).is_some_and(|key| key == "customTitle");
    let value = line.get("v")?;
    if is_name { value.as_str() } else { value.get("customTitle")?.as_str() }
}

/// What a change says of itself. `first` is the place of the first value that a list gets.
fn change(kind: u64, path: &[&Value], value: &Value, first: Option<u64>) -> Facts {
    let is = |key: &Value, word: &str| key.as_str() == Some(word);
    let values = || value.as_array().into_iter().flatten();
    match path {
        [list] if is(list, "requests") => {
            let request = values().next().map(vscode::facts).unwrap_or_default();
            Facts { usage: None, totals: totals(values(), first), ..request }
        }
        [list, place, key] if is(list, "requests") && kind == SET => {
            let word = key.as_str().unwrap_or_default();
            let usage = vscode::usage(&json!({ word: value }));
            let totals =
                usage.into_iter().flat_map(|usage| of_request(place.to_string(), None, usage));
            Facts { totals: totals.collect(), ..Facts::default() }
        }
        [list, _, key] if is(list, "requests") && is(key, "response") => {
            let tools = values().filter_map(vscode::tool).collect();
            Facts { role: Some("assistant".to_owned()), tools, ..Facts::default() }
        }
        _ => Facts::default(),
    }
}

/// What requests used. A change names a request by its place: where that is not known, the request
/// has its id.
fn totals<'a>(requests: impl Iterator<Item = &'a Value>, first: Option<u64>) -> Vec<Total> {
    let of = |(number, request): (u64, &Value)| {
        let place = first.map(|first| (first + number).to_string());
        let id = place.or_else(|| text(request, "requestId"))?;
        Some(of_request(id, text(request, "modelId"), vscode::usage(request)?))
    };
    (0..).zip(requests).filter_map(of).flatten().collect()
}

/// What a request used. The tokens that it reads and those that it writes are set one by one.
fn of_request(id: String, model: Option<String>, usage: Usage) -> impl Iterator<Item = Total> {
    let output = Usage { output_tokens: usage.output_tokens, ..Usage::default() };
    let input = Usage { output_tokens: None, ..usage };
    let parts = [("input", 1, input), ("output", 0, output)].into_iter();
    let parts = parts.filter(|(_, _, usage)| *usage != Usage::default());
    parts.map(move |(part, calls, usage)| Total {
        of: Some(format!("{id} {part}")),
        model: model.clone(),
        calls,
        usage,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(change: &Value) -> Facts {
        line(change).expect("a line").1
    }

    #[test]
    fn tokens_that_are_set_are_of_the_request_at_their_place() {
        let set = |key: &str| facts(&json!({"kind": 1, "k": ["requests", 3, key], "v": 18}));
        let prompt = set("promptTokens");
        assert_eq!(prompt.totals[0].of, Some("3 input".to_owned()));
        assert_eq!(prompt.totals[0].usage.input_tokens, Some(18));
        assert_eq!(set("completionTokens").totals[0].usage.output_tokens, Some(18));
        assert_eq!(set("agent").totals, []);
        let all = json!({"kind": 0, "v": {"sessionId": "s", "requests": [{"requestId": "r"},
            {"requestId": "q", "promptTokens": 1}]}});
        assert_eq!(facts(&all).totals[0].of, Some("1 input".to_owned()));
    }

    #[test]
    fn requests_are_of_the_user_and_responses_of_the_assistant() {
        let asks = json!({"kind": 2, "k": ["requests"], "v": [{"requestId": "r",
            "timestamp": 1000, "message": {"text": "x"}, "modelId": "m"}]});
        let asks = facts(&asks);
        assert_eq!((asks.role.as_deref(), asks.model.as_deref()), (Some("user"), Some("m")));
        let answers = facts(&json!({"kind": 2, "k": ["requests", 0, "response"],
            "v": [{"kind": "toolInvocationSerialized", "toolId": "find"}, {"value": "x"}]}));
        assert_eq!(
            (answers.role.as_deref(), &answers.tools[..]),
            (Some("assistant"), &["find".into()][..])
        );
    }
}
