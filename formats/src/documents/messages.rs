//! Documents that are messages with roles, or steps that have no name of their own: SWE-agent,
//! mini-swe-agent, and chats in general.

use serde_json::Value;

use super::Course;
use super::split::{Place, Shallow};
use crate::Format;
use crate::facts::{Facts, Usage, at, items, text, time, unix_time};
use crate::line::End;
use crate::probe::ends;

/// Where the steps are; the last one is the document itself, where it is an array.
pub(super) const PLACES: &[&[Place]] =
    &[&[Place::Key("trajectory")], &[Place::Key("history")], &[Place::Key("messages")], &[]];

/// What the document is, as none of the formats that name themselves.
pub(super) fn format(document: &Shallow<'_>, name: &str) -> Format {
    let has = |step: Option<Value>, keys: &[&str]| {
        step.is_some_and(|step| keys.iter().all(|key| step.get(key).is_some()))
    };
    let is_message = |key: Option<&str>| has(document.first_of(key), &["role", "content"]);
    let is_traj = ends(name, &[".traj"]);
    let says_mini = document
        .text("trajectory_format")
        .is_some_and(|format| format.starts_with("mini-swe-agent"));
    let info = document.value("info");
    let is_mini = says_mini || has(info, &["mini_version"]) || ends(name, &[".traj.json"]);
    if has(document.first_of(Some("trajectory")), &["action", "observation"])
        || has(document.first_of(Some("history")), &["role", "content", "agent"])
        || (is_traj && (document.get("trajectory").is_some() || document.get("history").is_some()))
    {
        Format::SweAgent
    } else if is_message(Some("messages")) || is_message(None) {
        if is_mini { Format::MiniSweAgent } else { Format::Chat }
    } else {
        Format::Json
    }
}

/// SWE-agent and mini-swe-agent say how they ended in `info.exit_status`: "submitted" if there is a
/// submission, and else why there is none.
pub(super) fn course(document: &Shallow<'_>) -> Course {
    let status = document.value("info").and_then(|info| text(&info, "exit_status"));
    let end = status.map(|status| {
        let submitted = status.to_ascii_lowercase().starts_with("submitted");
        if submitted { End::Completed } else { End::Failed }
    });
    Course { end, ..Course::default() }
}

/// What a message says of itself.
pub(super) fn facts(message: &Value) -> Facts {
    let calls = items(message, "tool_calls");
    // The name of the function: of OpenAI, of Inspect.
    let called =
        calls.filter_map(|call| text(call, "function.name").or_else(|| text(call, "function")));
    let is_answer = message.get("role").is_some_and(|role| role == "tool");
    let answers = ["function", "name"].iter().find_map(|key| text(message, key));
    Facts {
        time: time(message, "timestamp")
            .or_else(|| unix_time(message, "timestamp"))
            .or_else(|| unix_time(message, "extra.timestamp")),
        role: text(message, "role"),
        tools: called.chain(answers.filter(|_| is_answer)).collect(),
        model: text(message, "model").or_else(|| text(message, "extra.response.model")),
        id: text(message, "id"),
        message_id: text(message, "extra.response.id"),
        usage: ["usage", "extra.response.usage"]
            .iter()
            .find_map(|path| Usage::of(at(message, path)?)),
    }
}
