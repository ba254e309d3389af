//! Documents that are messages with roles, or steps that have no name of their own: SWE-agent,
//! mini-swe-agent, and chats in general.

use runlog::RunStatus;
use serde_json::{Number, Value};

use super::split::{Place, Shallow, value_in};
use crate::Format;
use crate::facts::{Course, Facts, Total, Usage, at, items, number, text, time, unix_time};

/// Where the steps are; the last one is the document itself, where it is an array.
pub(super) const PLACES: &[&[Place]] =
    &[&[Place::Key("trajectory")], &[Place::Key("history")], &[Place::Key("messages")], &[]];

/// What the document is, as none of the formats that name themselves.
pub(super) fn format(document: &Shallow<'_>, name: &str) -> Format {
    let has = |step: Option<Value>, keys: &[&str]| {
        step.is_some_and(|step| keys.iter().all(|key| step.get(key).is_some()))
    };
    let is_message = |key: Option<&str>| has(document.first_of(key), &["role", "content"]);
    let is_traj = crate::ends(name, &[".traj"]);
    let says_mini = document
        .text("trajectory_format")
        .is_some_and(|format| format.starts_with("mini-swe-agent"));
    let info = document.value("info");
    let is_mini = says_mini || has(info, &["mini_version"]) || crate::ends(name, &[".traj.json"]);
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
        if submitted { RunStatus::Completed } else { RunStatus::Failed }
    });
    Course { end, ..Course::default() }
}

/// SWE-agent and mini-swe-agent say what they used in `info.model_stats`: `total_cost`, where it is
/// there, is of all runs of a batch.
pub(super) fn totals(part: &str) -> Option<Total> {
    let stats = value_in(part, "model_stats").filter(Value::is_object)?;
    let count = |key: &str| stats.get(key).and_then(Value::as_u64);
    let usage = Usage {
        input_tokens: count("tokens_sent"),
        output_tokens: count("tokens_received"),
        cost: stats.get("instance_cost").and_then(number),
        ..Usage::default()
    };
    let is_none = |tokens: Option<u64>| tokens.is_none_or(|tokens| tokens == 0);
    let is_free = usage.cost.as_ref().and_then(Number::as_f64).is_none_or(|cost| cost == 0.0);
    let says_nothing = is_none(usage.input_tokens) && is_none(usage.output_tokens) && is_free;
    let calls = count("api_calls").unwrap_or_default();
    let model = value_in(part, "model_name").and_then(|name| name.as_str().map(str::to_owned));
    (calls > 0 || !says_nothing).then_some(Total { of: None, model, calls, usage })
}

/// What a message says of itself.
pub fn facts(message: &Value) -> Facts {
    let calls = items(message, "tool_calls");
    // The name of the function: of OpenAI, of Inspect.
    let called =
        calls.filter_map(|call| text(call, "function.name").or_else(|| text(call, "function")));
    let is_answer = message.get("role").is_some_and(|role| role == "tool");
    let answers = ["function", "name"].iter().find_map(|key| text(message, key));
    // The agent that speaks, as `AutoGen` names it.
    let speaker = || message.get("models_usage").and_then(|_| text(message, "source"));
    let times = ["timestamp", "extra.timestamp", "created_at", "timing.start_time"];
    Facts {
        time: times
            .iter()
            .find_map(|path| time(message, path).or_else(|| unix_time(message, path))),
        role: text(message, "role").or_else(speaker),
        tools: called.chain(answers.filter(|_| is_answer)).collect(),
        model: text(message, "model").or_else(|| text(message, "extra.response.model")),
        id: text(message, "id"),
        message_id: text(message, "extra.response.id"),
        usage: USAGE.iter().find_map(|path| Usage::of(at(message, path)?)),
        ..Facts::default()
    }
}

/// Where messages say what they used: of most programs, of mini-swe-agent, `AutoGen`, smolagents,
/// and `LangChain`.
const USAGE: [&str; 6] = [
    "usage",
    "extra.response.usage",
    "models_usage",
    "token_usage",
    "usage_metadata",
    "response_metadata.token_usage",
];
