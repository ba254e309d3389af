//! Logs of Inspect: `eval`, `status`, `stats`, and `samples` with messages and events. In an
//! `.eval` the same parts are files of a zip archive: `header.json`, and one for each sample.

use runlog::RunStatus;
use serde_json::Value;

use super::messages;
use super::split::{self, Place, Shallow};
use crate::facts::{self, Course, Facts, Total, Usage, at, text, time};

const SAMPLES: Place = Place::Key("samples");
const MESSAGES: Place = Place::Key("messages");
const EVENTS: Place = Place::Key("events");
const TRANSCRIPT: Place = Place::Key("transcript");

/// In a log, and in the file of one sample.
pub(super) const PLACES: [&[Place]; 6] = [
    &[SAMPLES, Place::Each, MESSAGES],
    &[SAMPLES, Place::Each, EVENTS],
    &[SAMPLES, Place::Each, TRANSCRIPT, EVENTS],
    &[MESSAGES],
    &[EVENTS],
    &[TRANSCRIPT, EVENTS],
];

pub(super) fn is(document: &Shallow<'_>) -> bool {
    let is_object = |key: &str| document.get(key).is_some_and(|value| value.starts_with('{'));
    is_object("eval") && document.text("status").is_some()
}

pub(super) fn course(document: &Shallow<'_>) -> Course {
    let (stats, eval) = (document.value("stats"), document.value("eval"));
    let at = |value: &Option<Value>, key: &str| time(value.as_ref()?, key);
    let end = match document.text("status").as_deref() {
        Some("success") => Some(RunStatus::Completed),
        Some("error") => Some(RunStatus::Failed),
        Some("cancelled") => Some(RunStatus::Cancelled),
        // "started", and whatever later versions write.
        _ => None,
    };
    Course {
        started: at(&stats, "started_at").or_else(|| at(&eval, "created")),
        ended: end.and_then(|_| at(&stats, "completed_at")),
        end,
    }
}

/// What an event or a message says of itself.
pub(super) fn facts(step: &Value) -> Facts {
    if step.get("event").is_none() {
        return messages::facts(step);
    }
    let is_tool = step["event"] == "tool";
    // The answer was taken from a cache, and nothing was used for it.
    let is_cached = step["cache"] == "read";
    Facts {
        time: time(step, "timestamp"),
        tools: text(step, "function").filter(|_| is_tool).into_iter().collect(),
        model: text(step, "model"),
        id: text(step, "uuid"),
        key: facts::key(step, "uuid"),
        usage: at(step, "output.usage").filter(|_| !is_cached).and_then(Usage::of),
        ..Facts::default()
    }
}

/// What `stats` say that the models used, in a part of a log or in the header of an archive.
pub(super) fn totals(part: &str) -> Vec<Total> {
    let stats = split::value_in(part, "stats");
    stats.and_then(|stats| stats.get("model_usage").map(Total::of_models)).unwrap_or_default()
}
