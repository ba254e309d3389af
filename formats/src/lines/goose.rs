//! Sessions of Goose: a heading with the folder, the title and what the session used so far, and a
//! message a line, with `created` in seconds.

use serde_json::{Value, json};

use super::{Format, Known};
use crate::facts::{Facts, Total, items, text, unix_time};

pub(super) fn line(line: &Value) -> Option<Known> {
    let has = |key: &str| line.get(key).is_some();
    if has("working_dir") && (has("message_count") || has("description")) {
        let total = Total::of(&json!({
            "input": first(line, ["accumulated_input_tokens", "input_tokens"]),
            "output": first(line, ["accumulated_output_tokens", "output_tokens"]),
        }));
        let totals = total.into_iter().collect();
        return Some((Format::Goose, Facts { totals, ..Facts::default() }));
    }
    let is_message = has("role") && line.get("created")?.is_number();
    if !(is_message && line.get("content")?.is_array()) || has("type") {
        return None;
    }
    let calls = items(line, "content").filter(|part| part["type"] == "toolRequest");
    let facts = Facts {
        time: unix_time(line, "created"),
        role: text(line, "role"),
        tools: calls.filter_map(|part| text(part, "toolCall.value.name")).collect(),
        id: text(line, "id"),
        ..Facts::default()
    };
    Some((Format::Goose, facts))
}

/// The name that a heading says the session has.
pub(super) fn name(line: &Value) -> Option<&str> {
    line.get("working_dir")?;
    line.get("description")?.as_str().filter(|name| !name.is_empty())
}

fn first<'a>(line: &'a Value, keys: [&str; 2]) -> Option<&'a Value> {
    keys.iter().find_map(|key| line.get(key).filter(|value| value.is_number()))
}

#[cfg(test)]
mod tests {
    use runlog::Timestamp;

    use super::*;

    #[test]
    fn the_heading_states_what_all_of_the_session_used() {
        let heading = json!({"working_dir": "/w", "description": "Sort", "message_count": 2,
            "input_tokens": 4, "output_tokens": 3, "accumulated_input_tokens": 80,
            "accumulated_output_tokens": null});
        let facts = line(&heading).expect("a line").1;
        let usage = &facts.totals[0].usage;
        assert_eq!((usage.input_tokens, usage.output_tokens), (Some(80), Some(3)));
    }

    #[test]
    fn messages_name_their_time_and_their_tools() {
        let call = json!({"role": "assistant", "created": 2, "content": [{"type": "toolRequest",
            "id": "r", "toolCall": {"status": "success", "value": {"name": "shell"}}}]});
        let facts = line(&call).expect("a line").1;
        assert_eq!(
            (facts.time, &facts.tools[..]),
            (Some(Timestamp(2_000_000_000)), &["shell".into()][..])
        );
    }
}
