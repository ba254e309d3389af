//! What a record says of itself. Every field is what the data has, and absent where it has none.

use std::sync::LazyLock;

use runlog::{RunStatus, Timestamp};
use serde::Serialize;
use serde_json::{Number, Value};

/// What a record says of itself. The fields that are not serialized are for
/// [`count`](crate::count).
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
    /// What tells the message from others of its format, where no provider gave it an id.
    #[serde(skip)]
    pub key: Option<String>,
    /// What other models used for it besides.
    #[serde(skip)]
    pub besides: Vec<Total>,
    /// What the run used so far, by model or as a whole. It replaces what the run said before.
    #[serde(skip)]
    pub totals: Vec<Total>,
    /// The sum that Codex gives with the usage of each turn. It stays while the turn is the last.
    #[serde(skip)]
    pub running: Option<Usage>,
    /// The thread of Codex that the lines after this one belong to.
    #[serde(skip)]
    pub thread: Option<Thread>,
}

/// What a run used, or one of its models, as the data adds it up.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Total {
    /// The part of the run that it is the total of, where the run states several.
    pub of: Option<String>,
    /// The model, where it is named.
    pub model: Option<String>,
    /// How often it was called; 0 where that is not said.
    pub calls: u64,
    /// What all calls used.
    pub usage: Usage,
}

impl Total {
    /// The totals of an object that has an object of usage for each model.
    pub fn of_models(models: &Value) -> Vec<Self> {
        let total = |(model, usage)| {
            let (model, usage) = (Some(String::clone(model)), Usage::of(usage)?);
            Some(Self { model, usage, ..Self::default() })
        };
        models.as_object().into_iter().flatten().filter_map(total).collect()
    }

    /// What the data adds up without the name of a model.
    pub fn of(value: &Value) -> Option<Self> {
        Usage::of(value).map(|usage| Self { usage, ..Self::default() })
    }
}

/// A thread of Codex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub id: String,
    /// The thread that it was forked from, whose history it may begin with.
    pub parent: Option<String>,
}

/// When a run began and ended, and how, as far as its file says it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Course {
    /// When it started.
    pub started: Option<Timestamp>,
    /// How it ended.
    pub end: Option<RunStatus>,
    /// When it ended.
    pub ended: Option<Timestamp>,
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
        let first = |paths: &[&str]| paths.iter().find_map(|path| count(at(value, path)?));
        let [input, output, cache_read, cache_write, reasoning, cost] = &*PATHS;
        let usage = Self {
            input_tokens: first(input),
            output_tokens: first(output),
            cache_read_tokens: first(cache_read),
            cache_write_tokens: first(cache_write),
            reasoning_tokens: first(reasoning),
            cost: cost.iter().find_map(|path| number(at(value, path)?)),
        };
        Some(usage).filter(|usage| *usage != Self::default())
    }
}

/// The names that providers and programs give what a model read, what it wrote, what was read from
/// a cache and written into it, what the model wrote to itself, and the cost in US dollars.
const NAMES: [&str; 6] = [
    "input_tokens prompt_tokens input inputTokens promptTokens tokensIn prompt promptTokenCount \
     total_prompt_tokens",
    "output_tokens completion_tokens output outputTokens completionTokens tokensOut completion \
     candidatesTokenCount total_completion_tokens",
    "cache_read_input_tokens cached_input_tokens input_tokens_cache_read cacheRead cached_tokens \
     cached prompt_tokens_details.cached_tokens input_tokens_details.cached_tokens \
     input_token_details.cache_read cacheReadInputTokens cacheReadTokens cacheReads \
     cache_read_tokens cache.read cachedContentTokenCount total_cached_tokens",
    "cache_creation_input_tokens input_tokens_cache_write cacheWrite cache_write_input_tokens \
     input_token_details.cache_creation cacheCreationInputTokens cacheWriteTokens cacheWrites \
     cache_write_tokens cache.write",
    "reasoning_output_tokens reasoning_tokens thoughts completion_tokens_details.reasoning_tokens \
     output_tokens_details.reasoning_tokens output_token_details.reasoning reasoningTokens \
     reasoning thoughtsTokenCount",
    "cost.total cost_usd total_cost cost costUSD total_cost_usd",
];

/// The same, one by one.
static PATHS: LazyLock<[Vec<&str>; 6]> =
    LazyLock::new(|| NAMES.map(|names| names.split_ascii_whitespace().collect()));

/// A count, which some programs write as `10.0` or `"10"`.
fn count(value: &Value) -> Option<u64> {
    let number = number(value)?;
    let whole = |count: f64| count.fract() == 0.0 && (0.0..=9e15).contains(&count);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in range")]
    number.as_u64().or_else(|| number.as_f64().filter(|count| whole(*count)).map(|n| n as u64))
}

/// A number, which some programs write as a string.
pub fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
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

/// The id of a message with its time, which a copy of it has too. By itself an id of a few letters
/// tells only the messages of one session apart.
pub fn key(message: &Value, id: &str) -> Option<String> {
    let time = message.get("timestamp").map(Value::to_string)?;
    Some(text(message, id)? + "@" + &time)
}

/// The time at a path that counts seconds since 1970.
pub fn unix_time(value: &Value, path: &str) -> Option<Timestamp> {
    since_1970(value, path, 1e6)
}

/// The time at a path that counts milliseconds since 1970.
pub fn unix_millis(value: &Value, path: &str) -> Option<Timestamp> {
    since_1970(value, path, 1e3)
}

fn since_1970(value: &Value, path: &str, micros_of_unit: f64) -> Option<Timestamp> {
    // Microseconds are what a f64 still tells of this century.
    let micros = (at(value, path)?.as_f64()? * micros_of_unit).round();
    #[expect(clippy::cast_possible_truncation, reason = "it is a whole number in range")]
    (0.0..=9e15).contains(&micros).then(|| Timestamp(micros as i64 * 1000))
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
        let odd = json!({"input_tokens": 10.0, "output_tokens": "20", "cached_tokens": 0.5,
            "cost": "0.25"});
        let usage = Usage::of(&odd).expect("usage");
        assert_eq!(tokens(&usage), (Some(10), Some(20), None));
        assert_eq!(usage.cost.expect("a cost").to_string(), "0.25");
        assert_eq!(Usage::of(&json!({"input": "much", "output": -1})), None);
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
