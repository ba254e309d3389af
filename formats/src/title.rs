//! What a run is about: the first thing that its user says.
//!
//! It is read from the first records each time, and within bounds, so that a list of runs stays
//! fast. Where a message of the user has nothing but what a program wrote into it, the next one is
//! taken.

use runlog::{ContentType, Reader, RecordView, RunRef, RunSummary};
use serde_json::Value;

use super::facts::{at, text};

/// How many records are looked at.
const RECORDS: usize = 512;

/// How many bytes of them are looked through. The record that goes beyond is still read, unless it
/// has more by itself.
const BYTES: usize = 1 << 20;

/// The most characters of a title.
const MAX: usize = 200;

/// Where a record says who speaks.
const SPEAKERS: [&str; 6] =
    ["role", "message.role", "payload.role", "payload.type", "source", "type"];

/// Where a record has what is said.
const SAID: [&str; 6] =
    ["message.content", "payload.content", "payload.message", "content", "message", "text"];

/// The title of a run; `None` if there is no message of a user among its first records, or they
/// cannot be read.
pub fn of(log: &Reader, run: &RunSummary) -> Option<String> {
    let mut trace = log.trace(RunRef::from(run)).ok()?;
    let mut bytes = 0;
    for _ in 0..RECORDS {
        // One that is damaged is for `show` to tell.
        let Ok(record) = trace.next_view()? else { continue };
        bytes += record.payload().len();
        if record.payload().len() > BYTES {
            return None;
        }
        if let Some(title) = of_record(&record) {
            return Some(title);
        }
        if bytes > BYTES {
            return None;
        }
    }
    None
}

fn of_record(record: &RecordView<'_>) -> Option<String> {
    let (kind, payload) = (record.kind(), record.payload());
    if record.content_type() == ContentType::TEXT && kind.is_some_and(is_user) {
        return shown(std::str::from_utf8(payload).ok()?);
    }
    if !matches!(record.content_type(), ContentType::JSON | ContentType::JSON_LINE) {
        return None;
    }
    // Most records are not of a user, and need not be read as JSON.
    let finds = |word: &str| memchr::memmem::find(payload, word.as_bytes()).is_some();
    if !["user", "human", "\"intent\""].into_iter().any(finds) {
        return None;
    }
    title(&serde_json::from_slice(payload).ok()?)
}

/// What a user says in a record.
fn title(record: &Value) -> Option<String> {
    if record["record"] == "started" {
        // The start of a run of CAR, which has no messages.
        return shown(&text(record, "intent")?);
    }
    // What Claude Code says in the name of the user, and examples of SWE-agent.
    if record["isMeta"] == true || record["is_demo"] == true {
        return None;
    }
    let speaks = |path: &&str| at(record, path).and_then(Value::as_str).is_some_and(is_user);
    if !SPEAKERS.iter().any(speaks) {
        return None;
    }
    SAID.iter().find_map(|path| said(at(record, path)?))
}

fn is_user(word: &str) -> bool {
    matches!(word, "user" | "human" | "user_message")
}

/// The first text of a content, which is a text or a list of parts.
fn said(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => shown(text),
        Value::Array(parts) => parts.iter().find_map(|part| match part {
            Value::String(text) => shown(text),
            part => shown(part.get("text")?.as_str()?),
        }),
        _ => None,
    }
}

/// What programs write in front of the task, and the mark behind which it begins.
const TEMPLATES: [(&str, &str); 2] = [
    // SWE-agent.
    ("We're currently solving the following issue", "ISSUE:"),
    // mini-swe-agent.
    ("Please solve this issue:", "issue:"),
];

/// The task within a text that a program wrote around it.
fn task(text: &str) -> &str {
    let written = TEMPLATES.iter().find(|(start, _)| text.starts_with(start));
    let inner = written.and_then(|(_, mark)| text.split_once(mark)).map(|(_, inner)| inner);
    inner.filter(|inner| !inner.trim().is_empty()).unwrap_or(text)
}

/// The beginning of a text in one line; `None` of one that a program wrote into the message.
fn shown(text: &str) -> Option<String> {
    let is_written = ["Caveat: ", "# AGENTS.md instructions", "[Request interrupted"]
        .iter()
        .any(|start| text.starts_with(start));
    if is_written || is_tagged(text.trim_start()) {
        return None;
    }
    let mut title = String::new();
    let mut left = MAX;
    for word in task(text).split_whitespace() {
        if !title.is_empty() {
            title.push(' ');
            left -= 1;
        }
        let cut: String = word.chars().take(left).collect();
        left -= cut.chars().count();
        title.push_str(&cut);
        if left <= 1 {
            break;
        }
    }
    Some(title).filter(|title| !title.is_empty())
}

/// Whether a text begins with a tag such as `<environment_context>`.
fn is_tagged(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('<') else { return false };
    let name = rest.find(|letter: char| !(letter.is_alphanumeric() || "_-".contains(letter)));
    rest.starts_with(char::is_alphabetic)
        && name.is_some_and(|end| rest[end..].starts_with(['>', ' ']))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_message_of_a_user_is_found_in_every_shape() {
        let parts = json!([{"type": "text", "text": "Fix\n the  bug"}]);
        for record in [
            json!({"role": "user", "content": "Fix the bug"}),
            json!({"type": "user", "uuid": "u", "message": {"role": "user", "content": parts}}),
            json!({"type": "message", "message": {"role": "user", "content": parts}}),
            json!({"type": "response_item", "payload": {"type": "message", "role": "user",
                "content": [{"type": "input_text", "text": "Fix the bug"}]}}),
            json!({"type": "event_msg", "payload": {"type": "user_message",
                "message": "Fix the bug"}}),
            json!({"id": "1", "type": "user", "content": [{"text": "Fix the bug"}]}),
            json!({"step_id": 1, "source": "user", "message": "Fix the bug"}),
            json!({"record": "started", "intent": "Fix the bug"}),
            json!({"from": 1, "role": "human", "text": " Fix the bug\r\n"}),
        ] {
            assert_eq!(title(&record).as_deref(), Some("Fix the bug"), "{record}");
        }
    }

    #[test]
    fn others_and_programs_are_passed_over() {
        let tool = json!([{"type": "tool_result", "tool_use_id": "t", "content": "out"}]);
        for record in [
            json!({"role": "assistant", "content": "I fix it"}),
            json!({"role": "system", "content": "the user is right"}),
            json!({"type": "user", "message": {"role": "user", "content": tool}}),
            json!({"type": "user", "isMeta": true, "message": {"role": "user", "content": "x"}}),
            json!({"role": "user", "content": "<environment_context>\n  <cwd>/"}),
            json!({"role": "user", "content": "<command-name>/clear</command-name>"}),
            json!({"role": "user", "content": " \n "}),
            json!({"role": "user", "content": 7}),
            json!({"record": "turn", "intent": "x"}),
            json!(["user"]),
        ] {
            assert_eq!(title(&record), None, "{record}");
        }
        let two = json!({"role": "user", "content":
            [{"text": "<system-reminder>x</system-reminder>"}, {"text": "a < b"}]});
        assert_eq!(title(&two).as_deref(), Some("a < b"));
        assert!(!is_tagged("<3 you") && !is_tagged("<") && !is_tagged("<b"));
    }

    #[test]
    fn what_a_program_writes_around_a_task_is_left_out() {
        let text = "We're currently solving the following issue within our repository. Here's the \
            issue text:\nISSUE:\nTimeDelta is rounded\n\nINSTRUCTIONS: none";
        let title = shown(text).expect("a title");
        assert!(title.starts_with("TimeDelta is rounded"), "{title}");
        assert_eq!(shown("Please solve this issue: Fix it").as_deref(), Some("Fix it"));
        assert_eq!(shown("Please solve this issue: ").as_deref(), Some("Please solve this issue:"));
    }

    #[test]
    fn a_title_has_an_end() {
        let long = shown(&"word ".repeat(1000)).expect("a title");
        assert!(long.chars().count() <= MAX && long.ends_with("word"), "{long}");
        assert_eq!(shown(&"\u{4e16}".repeat(1000)).expect("a title").chars().count(), MAX);
    }
}
