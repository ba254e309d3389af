//! Sessions of `OpenCode`: an export has `info` and `messages`, each with an `info` and `parts`. In
//! the folder `storage` the session, each message and each part is a file.

use serde_json::Value;

use super::split::Shallow;
use crate::facts::{Facts, Usage, at, items, text, unix_millis};

pub(super) fn is(document: &Shallow<'_>) -> bool {
    let info = document.value("info");
    let is_info = info.is_some_and(|info| info.get("id").is_some() && info.get("time").is_some());
    let is_message = |message: &Value| {
        message.get("info").is_some() && message.get("parts").is_some_and(Value::is_array)
    };
    is_info && document.first_of(Some("messages")).is_some_and(|first| is_message(&first))
}

/// What a message says of itself, or a file of the storage.
pub(super) fn facts(step: &Value) -> Facts {
    let info = step.get("info").unwrap_or(step);
    let is_tool = |part: &&Value| part["type"] == "tool";
    let parts = items(step, "parts").chain(Some(step)).filter(is_tool);
    let cost = info.get("cost").and_then(Value::as_number).cloned();
    let usage = info.get("tokens").and_then(Usage::of).map(|usage| Usage { cost, ..usage });
    let is_message = info.get("role").is_some();
    Facts {
        time: ["time.created", "time.start"].iter().find_map(|path| unix_millis(info, path)),
        role: text(info, "role"),
        tools: parts.filter_map(|part| text(part, "tool")).collect(),
        model: ["modelID", "model.modelID"].iter().find_map(|path| text(info, path)),
        id: text(info, "id"),
        message_id: text(info, "id").filter(|_| is_message),
        usage: usage.filter(|_| is_message),
        ..Facts::default()
    }
}

/// The name that a session has, unless it is the one that each new session gets.
pub(crate) fn name(session: &Value) -> Option<&str> {
    let is_session = at(session, "time.updated").is_some() && session.get("directory").is_some();
    let title = session.get("title")?.as_str()?;
    let is_given = !title.starts_with("New session") && !title.starts_with("Child session");
    (is_session && is_given).then_some(title)
}

/// What the user asks in a part of a message. The first part of a session is of the user.
pub(super) fn asked(part: &Value) -> Option<String> {
    let is_text = part.get("messageID").is_some() && part["type"] == "text";
    text(part, "text").filter(|_| is_text && part["synthetic"] != true)
}

/// What a step of the storage calls itself.
pub(super) fn kind(step: &Value) -> Option<&str> {
    let has = |key: &str| step.get(key).is_some();
    match () {
        () if has("messageID") => step.get("type")?.as_str(),
        () if has("role") => Some("message"),
        () if has("directory") => Some("session"),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_says_the_same_in_an_export_and_in_a_file() {
        let info = json!({"id": "msg", "role": "assistant", "modelID": "m", "cost": 0.25,
            "time": {"created": 1000}, "tokens": {"input": 5, "output": 2, "reasoning": 1,
                "cache": {"read": 4, "write": 3}}});
        let step = json!({"info": info, "parts": [{"type": "tool", "tool": "bash"}]});
        let exported = facts(&step);
        assert_eq!(exported.tools, ["bash"]);
        assert_eq!(Facts { tools: Vec::new(), ..exported.clone() }, facts(&info));
        let usage = exported.usage.expect("usage");
        assert_eq!((usage.cache_read_tokens, usage.cache_write_tokens), (Some(4), Some(3)));
        assert_eq!(usage.cost.and_then(|cost| cost.as_f64()), Some(0.25));
    }

    #[test]
    fn a_title_that_each_new_session_gets_is_none() {
        let session = |title: &str| {
            json!({"id": "ses", "directory": "/w", "title": title,
            "time": {"created": 1, "updated": 2}})
        };
        assert_eq!(name(&session("Fix login")), Some("Fix login"));
        assert_eq!(name(&session("New session - 2026-01-01")), None);
        assert_eq!(name(&json!({"title": "x"})), None);
    }
}
