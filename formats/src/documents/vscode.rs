//! Chats of VS Code: `sessionId` and `requests`, each with what the user asks and the response.

use serde_json::Value;

use super::split::Shallow;
use crate::facts::{Facts, Usage, at, items, text, unix_millis};

pub(super) fn is(document: &Shallow<'_>) -> bool {
    let has = |key: &str| document.get(key).is_some();
    let is_request = |request: &Value| request.get("requestId").is_some();
    let first = document.first_of(Some("requests"));
    has("sessionId") && has("requests") && first.as_ref().is_none_or(is_request)
}

/// What a request says of itself.
pub(crate) fn facts(request: &Value) -> Facts {
    Facts {
        time: unix_millis(request, "timestamp"),
        role: request.get("message").map(|_| "user".to_owned()),
        tools: items(request, "response").filter_map(tool).collect(),
        model: text(request, "modelId"),
        id: text(request, "requestId"),
        usage: usage(request),
        ..Facts::default()
    }
}

/// What the user asks in a request, or in the first of several that a change of the chat has.
pub(super) fn asked(record: &Value) -> Option<String> {
    let requests = record.get("v").map(|value| value.get("requests").unwrap_or(value));
    let request = requests.map_or(Some(record), |requests| requests.get(0))?;
    request.get("requestId")?;
    text(request, "message.text")
}

/// What a request used.
pub(crate) fn usage(request: &Value) -> Option<Usage> {
    let places = ["result.usage", "result.metadata"];
    let of_result = || places.iter().find_map(|path| Usage::of(at(request, path)?));
    Usage::of(request).or_else(of_result)
}

/// The tool that a part of a response has called.
pub(crate) fn tool(part: &Value) -> Option<String> {
    text(part, "toolId").filter(|_| part["kind"] == "toolInvocationSerialized")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_names_its_tools_and_its_usage() {
        let part = json!({"kind": "toolInvocationSerialized", "toolId": "find"});
        let request = json!({"requestId": "r", "timestamp": 1000, "message": {"text": "x"},
            "response": [part, {"value": "y"}],
            "result": {"metadata": {"promptTokens": 5, "outputTokens": 2}}});
        let facts = facts(&request);
        assert_eq!((facts.role.as_deref(), &facts.tools[..]), (Some("user"), &["find".into()][..]));
        let usage = facts.usage.expect("usage");
        assert_eq!((usage.input_tokens, usage.output_tokens), (Some(5), Some(2)));
    }
}
