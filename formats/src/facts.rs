//! What a record says of itself. Every field is what the data has, and absent where it has none.

use runlog::Timestamp;
use serde::Serialize;
use serde_json::{Number, Value};

/// What a record says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facts {
    /// When it happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timestamp>,
    /// Who speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The tools that are called or that answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The id of the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The id that the model's provider gave the message. Several records may be one message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Tokens and cost as the data counts them: whether `input` includes what was cached differs from
/// provider to provider.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Usage {
    /// What the model read; with or without cached tokens, as the data counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// What the model wrote.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// What was read from the cache of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u64>,
    /// What was written into the cache of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u64>,
    /// What the model wrote to itself, as far as the data tells it apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// In US dollars.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Number>,
}

impl Usage {
    /// The usage of an object, by the names that providers and programs give its fields.
    pub fn of(value: &Value) -> Option<Self> {
        let first = |paths: &[&str]| paths.iter().find_map(|path| at(value, path)?.as_u64());
        let usage = Self {
            input_tokens: first(&["input_tokens", "prompt_tokens", "input"]),
            output_tokens: first(&["output_tokens", "completion_tokens", "output"]),
            cache_read_tokens: first(&[
                "cache_read_input_tokens",
                "cached_input_tokens",
                "input_tokens_cache_read",
                "cacheRead",
                "cached_tokens",
                "cached",
                "prompt_tokens_details.cached_tokens",
            ]),
            cache_write_tokens: first(&[
                "cache_creation_input_tokens",
                "input_tokens_cache_write",
                "cacheWrite",
            ]),
            reasoning_tokens: first(&[
                "reasoning_output_tokens",
                "reasoning_tokens",
                "thoughts",
                "completion_tokens_details.reasoning_tokens",
            ]),
            cost: ["cost.total", "cost_usd", "total_cost"].iter().find_map(|path| {
                if let Value::Number(cost) = at(value, path)? { Some(cost.clone()) } else { None }
            }),
        };
        Some(usage).filter(|usage| *usage != Self::default())
    }
}

/// The value at a path of keys, with dots between them.
pub fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, key| value.get(key))
}

/// The string at a path, if it is one and not empty.
pub fn text(value: &Value, path: &str) -> Option<String> {
    at(value, path)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The time at a path, if it is written with its offset.
pub fn time(value: &Value, path: &str) -> Option<Timestamp> {
    at(value, path)?.as_str()?.parse().ok()
}

/// The time at a path that counts seconds since 1970.
pub fn unix_time(value: &Value, path: &str) -> Option<Timestamp> {
    let seconds = at(value, path)?.as_f64()?;
    // Microseconds are what a f64 still tells of this century.
    let micros = (seconds * 1e6).round();
    if !(0.0..=9e15).contains(&micros) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it is a whole number in range")]
    (micros as i64).checked_mul(1000).map(Timestamp)
}

/// The objects of the array at a path.
pub fn items<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    at(value, path).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_read_by_the_names_of_each_provider() {
        let anthropic = json!({"input_tokens": 1, "output_tokens": 2,
            "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4});
        let usage = Usage::of(&anthropic).expect("usage");
        let tokens =
            |usage: &Usage| (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens);
        assert_eq!(tokens(&usage), (Some(1), Some(2), Some(4)));
        assert_eq!(usage.cache_write_tokens, Some(3));
        let openai = json!({"prompt_tokens": 5, "completion_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 7}});
        assert_eq!(tokens(&Usage::of(&openai).expect("usage")), (Some(5), Some(6), Some(7)));
        let pi = json!({"input": 1, "output": 2, "cost": {"input": 0.5, "total": 1.5}});
        let cost = Usage::of(&pi).expect("usage").cost.expect("a cost");
        assert_eq!(cost.to_string(), "1.5");
        assert_eq!(Usage::of(&json!({"input": "much"})), None);
        assert_eq!(Usage::of(&json!([1])), None);
    }

    #[test]
    fn times_without_an_offset_are_none() {
        let value = json!({"a": "2026-01-02T03:04:05", "b": "2026-01-02T03:04:05-04:00", "c": 1.5});
        assert_eq!(time(&value, "a"), None);
        assert_eq!(
            time(&value, "b").expect("a time").to_string(),
            "2026-01-02T07:04:05.000000000Z"
        );
        assert_eq!(unix_time(&value, "c"), Some(Timestamp(1_500_000_000)));
        assert_eq!(unix_time(&json!({"c": 1e300}), "c"), None);
        assert_eq!(unix_time(&json!({"c": -1}), "c"), None);
    }
}
