//! Formats of one JSON object a line. Each family says of one line whether it is of its shape, and
//! then what the line says of itself. The shapes exclude one another.

mod car;
mod claude;
mod codex;
mod gemini;
mod pi;

use serde_json::Value;

use super::Format;
use super::facts::{Facts, time};

/// A line of a shape that is known.
type Known = (Format, Facts);

/// The families, in the order in which they are asked.
const FAMILIES: [fn(&Value) -> Option<Known>; 5] =
    [car::line, codex::line, claude::line, gemini::line, pi::line];

/// The format of a line, and what it says of itself.
fn known(line: &Value) -> Option<Known> {
    FAMILIES.iter().find_map(|family| family(line))
}

/// What a line says of itself. Of a line of unknown shape that is its time.
pub fn facts(line: &Value) -> Facts {
    let unknown = || Facts { time: time(line, "timestamp"), ..Facts::default() };
    known(line).map_or_else(unknown, |(_, facts)| facts)
}

/// The format of a file that begins with these lines: that of the first one whose shape is known.
/// `OpenClaw` writes the lines of pi, and is told by those that only it writes.
pub fn format(lines: impl Iterator<Item = Value>) -> Format {
    let mut formats = lines.filter_map(|line| known(&line).map(|(format, _)| format));
    match formats.next() {
        Some(Format::Pi) if formats.any(|format| format == Format::OpenClaw) => Format::OpenClaw,
        Some(format) => format,
        None => Format::JsonLines,
    }
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
                Format::OpenClaw,
                json!({"type": "custom", "customType": "model-snapshot", "data": {}}),
            ),
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
            assert_eq!(super::format([unknown.clone(), line].into_iter()), format);
        }
        assert_eq!(format([unknown].into_iter()), Format::JsonLines);
        let (pi, claw) = (lines()[10].1.clone(), lines()[12].1.clone());
        assert_eq!(format([pi, claw].into_iter()), Format::OpenClaw);
    }
}
