//! The tree of the CAR daemon: lines that are tagged by `record`.

use serde_json::Value;

use super::{Format, Known};
use crate::facts::{Facts, Usage, text, time};

const RECORDS: [&str; 8] = [
    "started",
    "ended",
    "turn",
    "model_turn",
    "cancellation_requested",
    "cancellation_result",
    "model_call_refused",
    "incomplete",
];

pub(super) fn line(line: &Value) -> Option<Known> {
    let record = line.get("record")?.as_str()?;
    if !RECORDS.contains(&record) {
        return None;
    }
    let times = ["started_at", "ended_at", "recorded_at", "at"];
    let facts = Facts {
        time: times.iter().find_map(|key| time(line, key)),
        tools: text(line, "tool").into_iter().collect(),
        model: text(line, "model_id").or_else(|| text(line, "model")),
        usage: line.get("token_usage").and_then(Usage::of),
        ..Facts::default()
    };
    Some((Format::Car, facts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn turns_name_their_tool_and_model_turns_their_model() {
        let turn = json!({"record": "turn", "index": 0, "tool": "drive_cli"});
        assert_eq!(line(&turn).expect("a line").1.tools, ["drive_cli"]);
        let turn = json!({"record": "model_turn", "model_id": "m", "recorded_at":
            "2026-01-02T03:04:05Z", "token_usage": {"input_tokens": 3}});
        let facts = line(&turn).expect("a line").1;
        assert_eq!(facts.model.as_deref(), Some("m"));
        assert!(facts.time.is_some());
        assert_eq!(facts.usage.expect("usage").input_tokens, Some(3));
    }
}
