//! The Agent Trajectory Interchange Format: `schema_version` "ATIF-v...", and `steps`.

use serde_json::Value;

use super::split::{self, Shallow};
use crate::facts::{Facts, Total, Usage, items, text, time};

pub(super) fn is(document: &Shallow<'_>) -> bool {
    document.text("schema_version").is_some_and(|version| version.starts_with("ATIF-"))
}

pub(super) fn facts(step: &Value) -> Facts {
    Facts {
        time: time(step, "timestamp"),
        role: text(step, "source"),
        tools: items(step, "tool_calls").filter_map(|call| text(call, "function_name")).collect(),
        model: text(step, "model_name"),
        id: step.get("step_id").filter(|id| id.is_number()).map(Value::to_string),
        // A copy of a step of the trajectory that this one continues was counted there.
        usage: step
            .get("metrics")
            .filter(|_| step["is_copied_context"] != true)
            .and_then(Usage::of),
        ..Facts::default()
    }
}

/// What `final_metrics` say that the run used.
pub(super) fn totals(part: &str) -> Vec<Total> {
    split::value_in(part, "final_metrics").as_ref().and_then(Total::of).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_step_that_was_copied_uses_nothing() {
        let mut step = json!({"step_id": 2, "source": "agent", "metrics": {"prompt_tokens": 5}});
        assert_eq!(facts(&step).usage.expect("usage").input_tokens, Some(5));
        step["is_copied_context"] = true.into();
        assert_eq!(facts(&step).usage, None);
    }
}
