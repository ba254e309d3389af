//! What a run is about: the name that its user gave it, or else the first thing that the user says.
//!
//! A name may be anywhere, the last one counts. [`Titles`] finds it in the records of an import;
//! [`of`] reads the first records and the last ones of a run that is stored, within bounds, so that
//! a list of runs stays fast. What programs write into the messages of users is left out.

use runlog::{ContentType, Reader, RunRef, RunSummary};
use serde_json::Value;

use super::facts::{at, items, text};
use super::{documents, json, lines};

/// How many records are looked at.
const RECORDS: usize = 512;

/// How many bytes of them are looked through. The record that goes beyond is still read, unless it
/// has more by itself.
const BYTES: usize = 1 << 20;

/// How many of the last records are looked at for a name.
const LAST: usize = 32;

/// The most characters of a title.
const MAX: usize = 200;

/// Where a record says who speaks.
const SPEAKERS: [&str; 10] = [
    "role",
    "message.role",
    "payload.role",
    "payload.type",
    "payload.item.type",
    "llm_message.role",
    "info.role",
    "source",
    "say",
    "type",
];

/// Where a record has what is said.
const SAID: [&str; 11] = [
    "message.content",
    "payload.content",
    "payload.message",
    "payload.item.content",
    "llm_message.content",
    "data.content",
    "args.content",
    "content",
    "message",
    "parts",
    "text",
];

/// Each record that may have a title has one of these.
const WORDS: [&str; 8] = [
    "user",
    "human",
    "\"intent\"",
    "UserMessage",
    "\"requestId\"",
    "\"messageID\"",
    "itle\"",
    "\"working_dir\"",
];

/// The kinds of records that name their run, and what programs call them.
const NAMES: [(&str, &str, Rank); 5] = [
    // Claude Code.
    ("custom-title", "customTitle", Rank::Given),
    ("ai-title", "aiTitle", Rank::Generated),
    // Codex.
    ("thread_name_updated", "payload.thread_name", Rank::Given),
    // pi.
    ("session_info", "name", Rank::Given),
    // VS Code.
    ("customTitle", "v", Rank::Given),
];

/// How good a title is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A command of the program, with what the user asked of it.
    Command,
    /// The user's words.
    Words,
    /// A name that a model gave.
    Generated,
    /// A name that the user gave.
    Given,
}

/// The title of a run, of whose records one after the other is added.
#[derive(Debug, Clone, Default)]
pub struct Titles {
    best: Option<(Rank, String)>,
}

impl Titles {
    /// Looks at a record, the more briefly the better the title is.
    pub fn add(&mut self, kind: Option<&str>, content: ContentType, payload: &[u8]) {
        if (self.has_words() && !is_name(kind)) || payload.len() > BYTES {
            return;
        }
        let Some((rank, title)) = of_record(kind, content, payload) else { return };
        // The first words, and the last name.
        let is_better = match &self.best {
            Some((best, _)) => rank > *best || (rank == *best && rank > Rank::Words),
            None => true,
        };
        if is_better {
            self.best = Some((rank, title));
        }
    }

    /// The title, if a record gives one.
    pub fn title(self) -> Option<String> {
        self.best.map(|(_, title)| title)
    }

    /// Whether only a name is better.
    fn has_words(&self) -> bool {
        self.best.as_ref().is_some_and(|(rank, _)| *rank >= Rank::Words)
    }
}

/// The title of a run; `None` if there is none in its first records, or they cannot be read.
pub fn of(log: &Reader, run: &RunSummary) -> Option<String> {
    let mut trace = log.trace(RunRef::from(run)).ok()?;
    let (mut titles, mut bytes) = (Titles::default(), 0);
    for _ in 0..RECORDS {
        let Some(record) = trace.next_view() else { return titles.title() };
        // One that is damaged is for `show` to tell.
        let Ok(record) = record else { continue };
        bytes += record.payload().len();
        titles.add(record.kind(), record.content_type(), record.payload());
        if titles.has_words() || bytes > BYTES {
            break;
        }
    }
    let last = trace.rev().take(LAST).flatten().filter(|record| is_name(record.kind()));
    let names =
        last.filter_map(|record| of_record(record.kind(), record.content_type(), record.payload()));
    let name = names.reduce(|best, name| if name.0 > best.0 { name } else { best });
    let is_better =
        |(rank, _): &(Rank, String)| titles.best.as_ref().is_none_or(|(best, _)| rank >= best);
    name.filter(is_better).map(|(_, title)| title).or_else(|| titles.title())
}

/// Whether records of a kind name their run.
fn is_name(kind: Option<&str>) -> bool {
    kind.is_some_and(|kind| NAMES.iter().any(|(name, _, _)| *name == kind))
}

fn of_record(kind: Option<&str>, content: ContentType, payload: &[u8]) -> Option<(Rank, String)> {
    if content == ContentType::TEXT && kind.is_some_and(is_user) {
        return words(std::str::from_utf8(payload).ok()?);
    }
    if !matches!(content, ContentType::JSON | ContentType::JSON_LINE) {
        return None;
    }
    // Most records are not of a user, and need not be read as JSON.
    let finds = |word: &str| memchr::memmem::find(payload, word.as_bytes()).is_some();
    if !is_name(kind) && !WORDS.into_iter().any(finds) {
        return None;
    }
    title(&json::value(payload)?)
}

/// The name that a record gives its run, or what a user says in it.
fn title(record: &Value) -> Option<(Rank, String)> {
    if record["record"] == "started" {
        // The start of a run of CAR, which has no messages.
        return words(&text(record, "intent")?);
    }
    let kinds = ["type", "payload.type"].map(|path| at(record, path).and_then(Value::as_str));
    let named = NAMES.iter().find(|(kind, _, _)| kinds.contains(&Some(kind)));
    if let Some((_, path, rank)) = named {
        return Some((*rank, clipped(at(record, path)?.as_str()?)?));
    }
    if let Some(name) = lines::name(record).or_else(|| documents::opencode::name(record)) {
        return Some((Rank::Given, clipped(name)?));
    }
    if let Some(asked) = documents::asked(record) {
        return words(&asked);
    }
    // What Gemini writes anew.
    if let Some(rewritten) = items(record, "$set.messages").find_map(title) {
        return Some(rewritten);
    }
    if WRITTEN.iter().any(|key| record[key] == true) {
        return None;
    }
    let speaks = |path: &&str| at(record, path).and_then(Value::as_str).is_some_and(is_user);
    if !SPEAKERS.iter().any(speaks) {
        return None;
    }
    SAID.iter().find_map(|path| said(at(record, path)?))
}

/// What Claude Code says in the name of the user, and examples of SWE-agent.
const WRITTEN: [&str; 4] = ["isMeta", "isCompactSummary", "isVisibleInTranscriptOnly", "is_demo"];

fn is_user(word: &str) -> bool {
    matches!(
        word,
        "user" | "human" | "user_message" | "UserMessage" | "user.message" | "user_feedback"
    )
}

/// The first text of a content, which is a text or a list of parts.
fn said(content: &Value) -> Option<(Rank, String)> {
    match content {
        Value::String(text) => words(text),
        Value::Array(parts) => parts.iter().find_map(|part| match part {
            Value::String(text) => words(text),
            part => words(part.get("text")?.as_str()?),
        }),
        _ => None,
    }
}

/// What programs write in front of the task, and the mark behind which it begins.
const TEMPLATES: [(&str, &str); 4] = [
    // SWE-agent.
    ("We're currently solving the following issue", "ISSUE:"),
    // mini-swe-agent.
    ("Please solve this issue:", "issue:"),
    // Codex, from an editor.
    ("# Context from my IDE setup:", "## My request for Codex:"),
    ("# Files mentioned by the user:", "## My request for Codex:"),
];

/// How messages begin that a program writes whole: instructions, what was compacted, what it says
/// of itself.
const PROGRAMS: [&str; 8] = [
    "Caveat: ",
    "# AGENTS.md instructions",
    "# Context from my IDE setup:",
    "[Request interrupted",
    "This session is being continued from a previous conversation",
    "The conversation history before this point was compacted",
    "Another language model started to solve this problem",
    "This is the Gemini CLI. We are setting up the context",
];

/// The tags around what a user says.
const TASKS: [&str; 5] = ["task", "user_query", "user_message", "userRequest", "user-request"];

/// What a user says in a text, without what programs write around it.
fn words(text: &str) -> Option<(Rank, String)> {
    let mut text = text.trim_start();
    if text.starts_with("<command-") {
        let name = between(text, "command-name")?;
        let asked = between(text, "command-args").filter(|asked| !asked.trim().is_empty())?;
        return Some((Rank::Command, clipped(&format!("{name} {asked}"))?));
    }
    while let Some(tag) = tag(text) {
        let inner = between(text, tag);
        text = match inner {
            Some(inner) if TASKS.contains(&tag) => inner,
            Some(_) => text.split_once(&format!("</{tag}>"))?.1,
            // The text goes on in the next part, or was cut.
            None if TASKS.contains(&tag) => text.split_once('>')?.1,
            None => return None,
        }
        .trim_start();
    }
    let template = TEMPLATES.iter().find(|(start, _)| text.starts_with(start));
    let task = template.and_then(|(_, mark)| text.split_once(mark)).map(|(_, task)| task);
    if let Some(task) = task.filter(|task| !task.trim().is_empty()) {
        text = task;
    } else if PROGRAMS.iter().any(|start| text.starts_with(start)) {
        return None;
    }
    Some((Rank::Words, clipped(text)?))
}

/// The name of the tag that a text begins with, such as `<environment_context>`.
fn tag(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('<').filter(|rest| rest.starts_with(char::is_alphabetic))?;
    let end = rest.find(|letter: char| !(letter.is_alphanumeric() || "_-".contains(letter)))?;
    let (name, rest) = rest.split_at_checked(end)?;
    rest.starts_with(['>', ' ']).then_some(name)
}

/// What is between the first tags of this name.
fn between<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, begins) = text.split_once(&format!("<{tag}"))?;
    let (inner, _) = begins.split_once(&format!("</{tag}>"))?;
    inner.split_once('>').map(|(_, inner)| inner)
}

/// The beginning of a text in one line.
fn clipped(text: &str) -> Option<String> {
    let word = |word: &str| word.chars().take(MAX).collect();
    let words: Vec<String> = text.split_whitespace().take(MAX).map(word).collect();
    let title: String = words.join(" ").chars().take(MAX).collect();
    Some(title.trim_end().to_owned()).filter(|title| !title.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(record: &Value) -> Option<String> {
        title(record).map(|(_, title)| title)
    }

    fn said_in(text: &str) -> Option<String> {
        words(text).map(|(_, words)| words)
    }

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
            json!({"$set": {"messages": [{"type": "user", "content": [{"text": "Fix the bug"}]}]}}),
            json!({"type": "event_msg", "payload": {"type": "item_completed",
                "item": {"type": "UserMessage", "content": parts}}}),
            json!({"type": "user.message", "data": {"content": "Fix the bug"}}),
            json!({"role": "user", "content": [{"text": "<task>\nFix the bug\n</task>"}]}),
            json!({"source": "user", "kind": "MessageEvent",
                "llm_message": {"role": "user", "content": parts}}),
            json!({"source": "user", "action": "message", "args": {"content": "Fix the bug"}}),
            json!({"info": {"role": "user"}, "parts": parts}),
            json!({"messageID": "m", "type": "text", "text": "Fix the bug"}),
            json!({"requestId": "r", "message": {"text": "Fix the bug"}}),
            json!({"kind": 2, "k": ["requests"],
                "v": [{"requestId": "r", "message": {"text": "Fix the bug"}}]}),
            json!({"from": 1, "role": "human", "text": " Fix the bug\r\n"}),
        ] {
            assert_eq!(shown(&record).as_deref(), Some("Fix the bug"), "{record}");
        }
    }

    #[test]
    fn a_session_that_states_its_name_has_it_as_title() {
        for record in [
            json!({"working_dir": "/w", "description": "Fix the bug", "message_count": 1}),
            json!({"kind": 1, "k": ["customTitle"], "v": "Fix the bug"}),
            json!({"id": "ses", "directory": "/w", "title": "Fix the bug",
                "time": {"created": 1, "updated": 2}}),
        ] {
            assert_eq!(shown(&record).as_deref(), Some("Fix the bug"), "{record}");
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
            assert_eq!(shown(&record), None, "{record}");
        }
        let two = json!({"role": "user", "content":
            [{"text": "<system-reminder>x</system-reminder>"}, {"text": "a < b"}]});
        assert_eq!(shown(&two).as_deref(), Some("a < b"));
        assert_eq!(["<3 you", "<", "<b"].map(tag), [None; 3]);
    }

    #[test]
    fn what_a_program_writes_around_a_task_is_left_out() {
        let text = "We're currently solving the following issue within our repository. Here's the \
            issue text:\nISSUE:\nTimeDelta is rounded\n\nINSTRUCTIONS: none";
        let title = said_in(text).expect("a title");
        assert!(title.starts_with("TimeDelta is rounded"), "{title}");
        assert_eq!(said_in("Please solve this issue: Fix it").as_deref(), Some("Fix it"));
        assert_eq!(
            said_in("Please solve this issue: ").as_deref(),
            Some("Please solve this issue:")
        );
    }

    #[test]
    fn a_title_has_an_end() {
        let long = clipped(&"word ".repeat(1000)).expect("a title");
        assert!(long.chars().count() <= MAX && long.ends_with("word"), "{long}");
        assert_eq!(clipped(&"\u{4e16}".repeat(1000)).expect("a title").chars().count(), MAX);
    }

    #[test]
    fn what_editors_and_commands_write_around_the_words_of_a_user_is_left_out() {
        for (text, title) in [
            ("<ide_opened_file>The user opened a.rs.</ide_opened_file>\nRename it", "Rename it"),
            ("<a_b x=\"1\">c</a_b> <d-e></d-e>Rename it", "Rename it"),
            ("<user_query>\nRename it\n</user_query>", "Rename it"),
            ("<task>\nRename it\n</task>\n<environment_details>x", "Rename it"),
            (
                "# Context from my IDE setup:\n\n## Tabs: a\n## My request for Codex:\nRename it",
                "Rename it",
            ),
            (
                "<command-message>review</command-message>\n<command-name>/review</command-name>\n\
                <command-args>PR 42</command-args>",
                "/review PR 42",
            ),
        ] {
            assert_eq!(said_in(text).as_deref(), Some(title), "{text}");
        }
        for text in [
            "<ide_opened_file>The user opened a.rs.</ide_opened_file>",
            "# Context from my IDE setup:\n\n## Active file: a\n",
            "This session is being continued from a previous conversation that ran out of context.",
            "<command-name>/clear</command-name><command-args></command-args>",
            "<environment_context>\n  <cwd>/",
        ] {
            assert_eq!(said_in(text), None, "{text}");
        }
        let compacted = json!({"type": "user", "isCompactSummary": true,
            "message": {"role": "user", "content": "What we did"}});
        assert_eq!(shown(&compacted), None);
    }

    #[test]
    fn the_name_that_a_user_gave_comes_first_and_the_last_one_counts() {
        let user =
            |text: &str| json!({"type": "user", "message": {"role": "user", "content": text}});
        let command = user("<command-name>/a</command-name><command-args>b</command-args>");
        let generated = json!({"type": "ai-title", "aiTitle": "By a model", "sessionId": "s"});
        let named = |name: &str| json!({"type": "custom-title", "customTitle": name});
        let of = |records: &[&Value]| {
            let mut titles = Titles::default();
            for record in records {
                let payload = record.to_string();
                titles.add(record["type"].as_str(), ContentType::JSON_LINE, payload.as_bytes());
            }
            titles.title().expect("a title")
        };
        assert_eq!(of(&[&command, &user("Fix it"), &user("And that")]), "Fix it");
        assert_eq!(of(&[&command]), "/a b");
        assert_eq!(of(&[&user("Fix it"), &generated, &user("x")]), "By a model");
        assert_eq!(of(&[&named("One"), &user("x"), &named("Two"), &generated]), "Two");
        let codex = json!({"type": "event_msg", "payload":
            {"type": "thread_name_updated", "thread_name": "Release"}});
        assert_eq!(title(&codex), Some((Rank::Given, "Release".to_owned())));
        let pi = json!({"type": "session_info", "name": "Release"});
        assert_eq!(title(&pi), Some((Rank::Given, "Release".to_owned())));
    }
}
