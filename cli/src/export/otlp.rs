//! Runs as traces of OpenTelemetry, in OTLP/JSON: a line for each run, which is an
//! `ExportTraceServiceRequest`.
//!
//! The names are those of the semantic conventions for generative AI in version [`VERSION`], the
//! last one before they got a repository of their own. What has no name there is called `runlog.*`.
//!
//! | of a run | becomes |
//! |---|---|
//! | the run | the root span `invoke_agent AGENT`, from its start to its end, or its last record |
//! | what the run used | attributes of the root span |
//! | a message of a model | a span `chat MODEL` |
//! | a call of a tool | a span `execute_tool TOOL`, to the answer if the ids connect them |
//! | another message | an event of the root span |
//!
//! Nothing is made up: of records that give no time there is nothing but what the root span says,
//! and a span is as long as the data says, else without length. What messages say, and what goes
//! into tools and comes out of them, is not exported.
//!
//! Each message counts once, as in `runlog usage`: the usage of a span is what its message adds.
//!
//! The ids are digests of what they name, so that a later export gives the same ones.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use runlog::{Reader, RecordView, RunStatus, RunSummary, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::formats::calls::Calls;
use crate::formats::count::{Amount, Counting, Said, Sum, Words};
use crate::formats::facts::Facts;
use crate::formats::origin::Origin;
use crate::formats::{Format, facts_in, value_of};

use super::outcome::{Counted, Why, Written, each_record};

/// The version of the semantic conventions.
const VERSION: &str = "1.41.0";

/// Those who speak for a model.
const MODELS: [&str; 4] = ["assistant", "agent", "gemini", "model"];

/// The kinds of spans.
const INTERNAL: u8 = 1;
const CLIENT: u8 = 3;

/// The status of a span that failed.
const ERROR: u8 = 2;

/// Writes a run as a line. Takes memory for the longest record as a value, and for the facts and
/// spans of all records.
pub(crate) fn write(
    log: &Reader,
    run: &RunSummary,
    origin: Option<&Origin>,
    out: &mut impl Write,
) -> Result<Written, Why> {
    let format = origin.and_then(|origin| origin.format).unwrap_or(Format::JsonLines);
    let (words, mut said, mut steps) = (Words::default(), Vec::new(), Vec::new());
    let mut written = Written::default();
    each_record(log, run, &mut written, |_, record| {
        words.read(format, record, &mut said);
        let stored = origin.is_none().then(|| record.timestamp());
        steps.extend(Step::of(record, format, stored));
        Ok(())
    })?;
    let schema = format!("https://opentelemetry.io/schemas/{VERSION}");
    let request = json!({"resourceSpans": [{
        "resource": {"attributes": attributes(&json!({"service.name": run.agent}))},
        "schemaUrl": schema,
        "scopeSpans": [{
            "scope": {"name": "runlog", "version": env!("CARGO_PKG_VERSION")},
            "schemaUrl": schema,
            "spans": Trace::of(run).spans(&steps, &said),
        }],
    }]});
    let mut out = Counted::new(out, None);
    serde_json::to_writer(&mut out, &request).map_err(io::Error::from)?;
    writeln!(out)?;
    written.bytes = out.bytes;
    Ok(written)
}

/// A record with its time, and what it says.
struct Step {
    seq: u64,
    kind: Option<String>,
    at: Timestamp,
    facts: Facts,
    calls: Calls,
    /// Whether a model speaks.
    is_of_model: bool,
}

impl Step {
    /// What a record says, at its time: that of the data, else the one of the store.
    fn of(record: &RecordView<'_>, format: Format, stored: Option<Timestamp>) -> Option<Self> {
        let value = value_of(record.kind(), record.content_type(), record.payload())?;
        let facts = facts_in(format, &value);
        let role = facts.role.as_deref();
        let speaks = role.is_some_and(|role| MODELS.contains(&role));
        Some(Self {
            seq: record.seq().0,
            kind: record.kind().map(str::to_owned),
            // Times before 1970 have no place in OTLP.
            at: facts.time.or(stored).filter(|at| at.0 >= 0)?,
            calls: Calls::of(&value),
            is_of_model: facts.usage.is_some() || value["event"] == "model" || speaks,
            facts,
        })
    }

    /// An event of the root span.
    fn event(&self) -> Option<Value> {
        let role = self.facts.role.as_deref().filter(|_| !self.is_of_model)?;
        let named = json!({"runlog.seq": self.seq, "runlog.role": role, "runlog.kind": self.kind});
        Some(json!({
            "timeUnixNano": self.at.0.to_string(),
            "name": "runlog.message",
            "attributes": attributes(&named),
        }))
    }
}

/// The trace of a run.
struct Trace<'a> {
    run: &'a RunSummary,
    id: Sha256,
}

impl<'a> Trace<'a> {
    fn of(run: &'a RunSummary) -> Self {
        let mut id = Sha256::new();
        for part in [run.agent.as_str(), run.run.as_str()] {
            id.update((part.len() as u64).to_le_bytes());
            id.update(part);
        }
        id.update(run.number().0.to_le_bytes());
        id.update(run.started_at.0.to_le_bytes());
        Self { run, id }
    }

    /// The root span, and those below it in the order of their records.
    fn spans(&self, steps: &[Step], said: &[Said]) -> Vec<Value> {
        let (used, sum) = usage_of(said);
        // Several records may be one message, which has one span.
        let mut seen = HashSet::new();
        let is_new = |step: &Step| {
            let id = step.facts.message_id.as_ref();
            step.is_of_model && id.is_none_or(|id| seen.insert(id.clone()))
        };
        let speaks: Vec<bool> = steps.iter().map(is_new).collect();
        // From the last record on, so that the answer to a call is known.
        let (mut spans, mut answers) = (Vec::new(), HashMap::new());
        for (step, speaks) in steps.iter().zip(speaks).rev() {
            for answer in &step.calls.answers {
                answers.insert(&answer.id, (step.at, answer.has_failed));
            }
            // The message's own span has the number 0.
            for (number, call) in (1..).zip(&step.calls.calls).collect::<Vec<_>>().into_iter().rev()
            {
                let id = call.id.as_ref().filter(|_| !call.is_answered);
                let answer = id.and_then(|id| answers.remove(id));
                let (end, has_failed) = answer.unwrap_or((step.at, call.has_failed));
                let attributes = json!({
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.tool,
                    "gen_ai.tool.call.id": call.id,
                    "runlog.seq": step.seq,
                });
                let (place, name) = ((step.seq, number), format!("execute_tool {}", call.tool));
                let times = (step.at, end.max(step.at));
                spans.push(self.span(Some(place), &name, INTERNAL, times, attributes, has_failed));
            }
            if speaks {
                spans.push(self.chat(step, used.get(&step.seq)));
            }
        }
        spans.push(self.root(steps, &sum));
        spans.reverse();
        spans
    }

    /// The root span with its events.
    fn root(&self, steps: &[Step], sum: &Sum) -> Value {
        let run = self.run;
        let mut attributes = usage(&sum.amount);
        attributes["gen_ai.operation.name"] = json!("invoke_agent");
        attributes["gen_ai.agent.name"] = json!(run.agent);
        attributes["gen_ai.conversation.id"] = json!(run.run);
        attributes["runlog.status"] = json!(run.status);
        attributes["runlog.messages"] = json!(some(sum.messages));
        let start = run.started_at.max(Timestamp(0));
        let times = (start, run.ended_at.unwrap_or(run.last_at).max(start));
        let (name, has_failed) =
            (format!("invoke_agent {}", run.agent), run.status == RunStatus::Failed);
        let mut root = self.span(None, &name, INTERNAL, times, attributes, has_failed);
        root["events"] = steps.iter().filter_map(Step::event).collect();
        root
    }

    fn chat(&self, step: &Step, used: Option<&Amount>) -> Value {
        let facts = &step.facts;
        let mut attributes = used.map_or(json!({}), usage);
        attributes["gen_ai.operation.name"] = json!("chat");
        attributes["gen_ai.conversation.id"] = json!(self.run.run);
        attributes["gen_ai.response.model"] = json!(facts.model);
        attributes["gen_ai.response.id"] = json!(facts.message_id);
        attributes["runlog.seq"] = json!(step.seq);
        let model = facts.model.iter().flat_map(|model| [" ", model]);
        let name: String = std::iter::once("chat").chain(model).collect();
        self.span(Some((step.seq, 0)), &name, CLIENT, (step.at, step.at), attributes, false)
    }

    /// The root span, or the span of what is at a place of a record.
    fn span(
        &self,
        place: Option<(u64, u64)>,
        name: &str,
        kind: u8,
        (start, end): (Timestamp, Timestamp),
        mut named: Value,
        has_failed: bool,
    ) -> Value {
        if has_failed {
            named["error.type"] = json!("_OTHER");
        }
        let trace = &hex(&self.id.clone().finalize())[..32];
        let id_of = |place: Option<(u64, u64)>| {
            let mut id = Sha256::new();
            id.update(&self.id.clone().finalize()[..16]);
            for number in place.into_iter().flat_map(|(seq, number)| [seq, number]) {
                id.update(number.to_le_bytes());
            }
            hex(&id.finalize()[..8])
        };
        let mut value = json!({
            "traceId": trace,
            "spanId": id_of(place),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": start.0.to_string(),
            "endTimeUnixNano": end.0.to_string(),
            "attributes": attributes(&named),
        });
        if place.is_some() {
            value["parentSpanId"] = json!(id_of(None));
        }
        if has_failed {
            value["status"] = json!({"code": ERROR});
        }
        value
    }
}

/// What the messages of a run used, by the first record of each, and all of it.
fn usage_of(said: &[Said]) -> (HashMap<u64, Amount>, Sum) {
    // Several records may be one message, which has one span.
    let (mut firsts, mut messages) = (HashMap::new(), HashMap::new());
    for said in said {
        if let Some(id) = said.message_id() {
            let first = *messages.entry(id).or_insert(said.seq());
            firsts.insert(said.seq(), first);
        }
    }
    let (mut used, mut sum): (HashMap<_, Amount>, _) = (HashMap::new(), Sum::default());
    let mut last = 0;
    Counting::default().run(said, &mut |counted| {
        // What a message adds that is written again is of its first span as well.
        last = if counted.sum.messages > 0 { counted.seq } else { last };
        let seq = firsts.get(&counted.seq).copied().unwrap_or(last);
        let amount = used.entry(seq).or_default();
        *amount = amount.plus(counted.sum.amount);
        sum = sum.plus(counted.sum);
    });
    (used, sum)
}

/// Tokens and cost. What the data counts as input may or may not include cached tokens.
fn usage(usage: &Amount) -> Value {
    json!({
        "gen_ai.usage.input_tokens": some(usage.input_tokens),
        "gen_ai.usage.output_tokens": some(usage.output_tokens),
        "gen_ai.usage.cache_read.input_tokens": some(usage.cache_read_tokens),
        "gen_ai.usage.cache_creation.input_tokens": some(usage.cache_write_tokens),
        "gen_ai.usage.reasoning.output_tokens": some(usage.reasoning_tokens),
        "runlog.cost_usd": usage.cost,
    })
}

fn some(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}

/// Attributes of these names. Integers of 64 bits are strings in OTLP/JSON.
fn attributes(named: &Value) -> Vec<Value> {
    let attribute = |(key, value): (&String, &Value)| {
        let value = match value {
            Value::Null => return None,
            Value::Number(number) if number.is_f64() => json!({"doubleValue": number}),
            Value::Number(number) => json!({"intValue": number.to_string()}),
            text => json!({"stringValue": text}),
        };
        Some(json!({"key": key, "value": value}))
    };
    named.as_object().into_iter().flatten().filter_map(attribute).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
