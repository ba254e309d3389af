//! Formats of one JSON object a line. Each family says of one line whether it is of its shape, and
//! then what the line says of itself. The shapes exclude one another.

mod car;
mod claude;
mod codex;
mod codex_exec;
pub(crate) mod copilot;
mod gemini;
mod goose;
mod pi;
mod vscode;

use serde_json::Value;

use super::Format;
use super::documents::messages;
use super::facts::Facts;
use super::json;

/// A line of a shape that is known.
type Known = (Format, Facts);

/// The families, in the order in which they are asked.
const FAMILIES: [fn(&Value) -> Option<Known>; 9] = [
    car::line,
    codex::line,
    claude::line,
    gemini::line,
    pi::line,
    codex_exec::line,
    copilot::line,
    goose::line,
    vscode::line,
];

/// The format of a line, and what it says of itself.
fn known(line: &Value) -> Option<Known> {
    FAMILIES.iter().find_map(|family| family(line))
}

/// What a line says of itself. One of unknown shape is read as the message of a chat.
pub fn facts(line: &Value) -> Facts {
    known(line).map_or_else(|| messages::facts(line), |(_, facts)| facts)
}

/// The name that a line says its session has.
pub(crate) fn name(line: &Value) -> Option<&str> {
    goose::name(line).or_else(|| vscode::name(line))
}

/// The format of a file that begins with these lines: that of the first one whose shape is known.
/// `OpenClaw` writes the lines of pi, and is told by those that only it writes.
pub fn format(lines: &[u8]) -> Format {
    // Most files of unknown lines have none of these anywhere.
    if !has_any(lines, KEYS) {
        return Format::JsonLines;
    }
    let mut lines = lines.split(|byte| *byte == b'\n');
    let format = |line: &[u8]| {
        let line = json::value(line)?;
        known(&line).map(|(format, _)| format)
    };
    match lines.by_ref().filter(|line| has_any(line, KEYS)).find_map(format) {
        Some(Format::Pi) => {
            let mut formats = lines.filter(|line| has_any(line, CLAWS)).filter_map(format);
            let is_claw = formats.any(|format| format == Format::OpenClaw);
            if is_claw { Format::OpenClaw } else { Format::Pi }
        }
        Some(format) => format,
        None => Format::JsonLines,
    }
}

/// Each line of a known shape has one of these. Other lines need not be read.
const KEYS: [&str; 7] = [
    "\"type\"",
    "\"record",
    "\"instructions\"",
    "\"projectHash\"",
    "\"working_dir\"",
    "\"created\"",
    "\"kind\"",
];
/// Each line that only `OpenClaw` writes has one of these.
const CLAWS: [&str; 3] = ["\"leaf\"", "model-snapshot", "openclaw"];

/// Whether a line has one of these, or a letter that is written as its number: then it may.
fn has_any<const N: usize>(line: &[u8], parts: [&str; N]) -> bool {
    let has = |part: &str| memchr::memmem::find(line, part.as_bytes()).is_some();
    parts.into_iter().any(has) || has("\\u00")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A line of each kind that is known.
    fn lines() -> Vec<(Format, Value)> {
        let at = "2026-01-02T03:04:05Z";
        vec![
            (Format::Car, json!({"record": "started", "run_id": "r", "started_at": at})),
            (Format::Car, json!({"record": "turn", "index": 0, "verifier_verdict": "pass"})),
            (Format::Codex, json!({"timestamp": at, "type": "session_meta", "payload": {}})),
            (Format::Codex, json!({"type": "function_call", "name": "shell", "call_id": "c"})),
            (Format::Codex, json!({"record_type": "state"})),
            (Format::ClaudeCode, json!({"type": "summary", "summary": "s", "leafUuid": "u"})),
            (
                Format::ClaudeCode,
                json!({"type": "user", "uuid": "u", "sessionId": "s", "timestamp": at,
                    "message": {"role": "user", "content": "hello"}}),
            ),
            (Format::ClaudeCode, json!({"type": "system", "subtype": "init", "session_id": "s"})),
            (Format::GeminiLines, json!({"sessionId": "s", "projectHash": "p", "startTime": at})),
            (
                Format::GeminiLines,
                json!({"id": "1", "timestamp": at, "type": "gemini", "content": "x"}),
            ),
            (Format::Pi, json!({"type": "session", "id": "s", "timestamp": at, "cwd": "/"})),
            (Format::Pi, json!({"type": "message", "message": {"role": "user", "content": []}})),
            (
                Format::Codex,
                json!({"timestamp": at, "type": "event_msg", "payload":
                    {"type": "item_completed", "item": {"type": "UserMessage", "id": "i"}}}),
            ),
            (
                Format::OpenClaw,
                json!({"type": "custom", "customType": "model-snapshot", "data": {}}),
            ),
            (Format::CodexExec, json!({"type": "thread.started", "thread_id": "t"})),
            (
                Format::CodexExec,
                json!({"type": "item.completed", "item": {"id": "i", "type": "agent_message"}}),
            ),
            (
                Format::Copilot,
                json!({"type": "session.start", "data": {"sessionId": "s"}, "id": "e",
                    "timestamp": at, "parentId": null}),
            ),
            (Format::Goose, json!({"working_dir": "/w", "description": "d", "message_count": 1})),
            (
                Format::Goose,
                json!({"id": "m", "role": "user", "created": 1, "content": [{"type": "text"}]}),
            ),
            (Format::VsCodeLines, json!({"kind": 0, "v": {"sessionId": "s", "requests": []}})),
            (Format::VsCodeLines, json!({"kind": 1, "k": ["customTitle"], "v": "t"})),
        ]
    }

    #[test]
    fn a_line_is_of_one_family_only() {
        for (format, line) in lines() {
            let found: Vec<Format> = FAMILIES
                .iter()
                .filter_map(|family| family(&line))
                .map(|(found, _)| found)
                .collect();
            assert_eq!(found, [format], "{line}");
        }
        for line in [json!({}), json!({"type": "message"}), json!(["turn"]), json!("started")] {
            assert_eq!(known(&line), None, "{line}");
        }
    }

    #[test]
    fn a_file_is_what_its_first_known_line_is() {
        let unknown = json!({"a": 1});
        for (format, line) in lines() {
            assert_eq!(of(&[&unknown, &line]), format);
        }
        assert_eq!(of(&[&unknown]), Format::JsonLines);
        let of_format = |format| lines().into_iter().find(|(found, _)| *found == format);
        let [pi, claw] =
            [Format::Pi, Format::OpenClaw].map(|format| of_format(format).expect("one").1);
        assert_eq!(of(&[&pi]), Format::Pi);
        assert_eq!(of(&[&pi, &claw]), Format::OpenClaw);
        assert_eq!(format(b"torn {\"type"), Format::JsonLines);
    }

    fn of(lines: &[&Value]) -> Format {
        let lines: Vec<String> = lines.iter().map(ToString::to_string).collect();
        format(lines.join("\n").as_bytes())
    }

    #[test]
    fn a_line_whose_letters_are_numbers_is_known_too() {
        let codex = br#"{"\u0074ype": "reasoning", "summary": []}"#;
        assert_eq!(format(codex), Format::Codex);
        let pi = br#"{"type": "session", "cwd": "/"}"#;
        let claw = br#"{"type": "custom", "customType": "\u006fpenclaw.x"}"#;
        assert_eq!(format(&[&pi[..], claw].join(&b'\n')), Format::OpenClaw);
    }
}
