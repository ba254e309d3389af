//! Traces of OpenTelemetry as OTLP/JSON, by the semantic conventions for generative AI. A file has
//! one `ExportTraceServiceRequest`, or one a line; each span is a step.

use runlog::{RunStatus, Timestamp};
use serde_json::{Number, Value};

use super::split::{Place, Shallow};
use crate::facts::{Course, Facts, Total, Usage, at, items, text};

const RESOURCES: Place = Place::Key("resourceSpans");
const SCOPES: Place = Place::Key("scopeSpans");
const SPANS: Place = Place::Key("spans");

/// In one request, and in one of several.
pub(super) const PLACES: [&[Place]; 2] = [
    &[RESOURCES, Place::Each, SCOPES, Place::Each, SPANS],
    &[Place::Each, RESOURCES, Place::Each, SCOPES, Place::Each, SPANS],
];

pub(super) fn is(document: &Shallow<'_>) -> bool {
    let is_array = |value: &Value| value.get("resourceSpans").is_some_and(Value::is_array);
    let first = || document.first_of(None).is_some_and(|first| is_array(&first));
    document.get("resourceSpans").is_some_and(|raw| raw.starts_with('[')) || first()
}

/// Requests, one a line, as the elements of an array.
pub(super) fn lines(text: &str) -> Option<Shallow<'_>> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let requests = lines.map(|line| match Shallow::new(line) {
        Ok(request) if is(&request) => Some(line),
        _ => None,
    });
    let requests = requests.collect::<Option<Vec<_>>>()?;
    (!requests.is_empty()).then_some(Shallow::Array(requests))
}

/// How the first span ended, if it is the only one without a parent that the file is about.
pub(super) fn course(document: &Shallow<'_>) -> Course {
    let first = document.first_of(None);
    let resources =
        document.value("resourceSpans").or_else(|| Some(at(&first?, "resourceSpans")?.clone()));
    let span = resources
        .as_ref()
        .and_then(|all| at(all.get(0)?, "scopeSpans")?.get(0)?.get("spans")?.get(0));
    let Some(span) = span else { return Course::default() };
    let end = match attribute(span, "runlog.status").and_then(Value::as_str) {
        Some("completed") => Some(RunStatus::Completed),
        Some("failed") => Some(RunStatus::Failed),
        Some("cancelled") => Some(RunStatus::Cancelled),
        Some("interrupted") => Some(RunStatus::Interrupted),
        _ => None,
    };
    let ended = end.and_then(|_| nanos(span, "endTimeUnixNano"));
    Course { started: nanos(span, "startTimeUnixNano"), end, ended }
}

/// What a span says of itself.
pub(super) fn facts(span: &Value) -> Facts {
    let word = |key: &str| attribute(span, key)?.as_str().map(str::to_owned);
    let operation = kind(span).unwrap_or_default();
    let is_tool = operation == "execute_tool";
    let role = match operation {
        "chat" | "text_completion" | "generate_content" => Some("assistant"),
        "execute_tool" => Some("tool"),
        _ => None,
    };
    let is_agent = matches!(operation, "invoke_agent" | "create_agent" | "invoke_workflow");
    let (mut usage, mut totals) = (usage(span), Vec::new());
    let model = word("gen_ai.response.model").or_else(|| word("gen_ai.request.model"));
    let is_root = text(span, "parentSpanId").is_none();
    // What an agent used is what its calls of models used, where they have spans.
    if let Some(usage) = usage.take_if(|_| is_agent)
        && is_root
    {
        let of = text(span, "spanId");
        let calls = number(span, "runlog.messages").unwrap_or_default();
        totals.push(Total { of, model: model.clone(), calls, usage });
    }
    Facts {
        time: nanos(span, "startTimeUnixNano"),
        role: role.map(str::to_owned),
        tools: word("gen_ai.tool.name").filter(|_| is_tool).into_iter().collect(),
        model,
        id: text(span, "spanId"),
        message_id: word("gen_ai.response.id"),
        usage,
        totals,
        ..Facts::default()
    }
}

/// What a span calls itself.
pub(super) fn kind(span: &Value) -> Option<&str> {
    attribute(span, "gen_ai.operation.name")?.as_str()
}

/// The first message of a user in a span, if the span has messages.
pub(super) fn asked(span: &Value) -> Option<String> {
    let messages = ["gen_ai.input.messages", "gen_ai.prompt"];
    let text = messages.iter().find_map(|key| attribute(span, key)?.as_str())?;
    let messages: Value = serde_json::from_str(text).ok()?;
    let asked = messages.as_array()?.iter().find(|message| message["role"] == "user")?;
    let content = asked.get("content").or_else(|| at(asked, "parts")?.get(0)?.get("content"))?;
    content.as_str().map(str::to_owned)
}

/// What a span used, by the names of this and of earlier versions.
fn usage(span: &Value) -> Option<Usage> {
    let first = |keys: &[&str]| keys.iter().find_map(|key| number(span, key));
    let usage = Usage {
        input_tokens: first(&["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"]),
        output_tokens: first(&["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"]),
        cache_read_tokens: first(&["gen_ai.usage.cache_read.input_tokens"]),
        cache_write_tokens: first(&["gen_ai.usage.cache_creation.input_tokens"]),
        reasoning_tokens: first(&["gen_ai.usage.reasoning.output_tokens"]),
        cost: attribute(span, "runlog.cost_usd").and_then(Value::as_f64).and_then(Number::from_f64),
    };
    Some(usage).filter(|usage| *usage != Usage::default())
}

/// The value of an attribute, whatever its type.
fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a Value> {
    let found = items(span, "attributes").find(|attribute| attribute["key"] == key)?;
    found.get("value")?.as_object()?.values().next()
}

/// The value of an attribute that is a number, or the text of one.
fn number(span: &Value, key: &str) -> Option<u64> {
    let value = attribute(span, key)?;
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// A time in nanoseconds, which is a number or the text of one.
fn nanos(span: &Value, key: &str) -> Option<Timestamp> {
    let time = span.get(key)?;
    let nanos = time.as_i64().or_else(|| time.as_str()?.parse().ok())?;
    (nanos > 0).then_some(Timestamp(nanos))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn span(operation: &str, more: &[(&str, Value)]) -> Value {
        let operation = ("gen_ai.operation.name", json!({"stringValue": operation}));
        let all = std::iter::once(&operation).chain(more);
        let attributes: Vec<_> =
            all.map(|(key, value)| json!({"key": key, "value": value})).collect();
        json!({"spanId": "1", "startTimeUnixNano": "5", "attributes": attributes})
    }

    #[test]
    fn a_call_of_a_model_says_what_it_used() {
        let tokens = ("gen_ai.usage.input_tokens", json!({"intValue": "77"}));
        let model = ("gen_ai.request.model", json!({"stringValue": "m"}));
        let chat = facts(&span("chat", &[tokens.clone(), model]));
        assert_eq!((chat.role.as_deref(), chat.model.as_deref()), (Some("assistant"), Some("m")));
        assert_eq!(
            (chat.usage.expect("usage").input_tokens, chat.time),
            (Some(77), Some(Timestamp(5)))
        );
        let agent = facts(&span("invoke_agent", &[tokens]));
        assert_eq!((agent.usage, agent.totals.len()), (None, 1));
    }

    #[test]
    fn a_tool_is_named_and_the_user_is_heard() {
        let tool = ("gen_ai.tool.name", json!({"stringValue": "bash"}));
        assert_eq!(facts(&span("execute_tool", &[tool])).tools, ["bash"]);
        let said =
            json!({"stringValue": r#"[{"role":"user","parts":[{"type":"text","content":"Hi"}]}]"#});
        assert_eq!(asked(&span("chat", &[("gen_ai.input.messages", said)])).as_deref(), Some("Hi"));
    }
}
