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

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Write};

use runlog::{Reader, RecordView, RunStatus, RunSummary, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::formats::calls::{Call, Calls};
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

/// Writes a run as a line. Takes memory for the longest record as a value, and for the facts of all
/// records.
pub(crate) fn write(
    log: &Reader,
    run: &RunSummary,
    origin: Option<&Origin>,
    out: &mut impl Write,
) -> Result<Written, Why> {
    let mut out = Counted::new(out, None);
    let mut written = Written::default();
    let (trace, steps) = Trace::read(log, run, origin, &mut written)?;
    let schema = format!("https://opentelemetry.io/schemas/{VERSION}");
    let resource = json!({"attributes": [text("service.name", run.agent.as_str())]});
    let scope = json!({"name": "runlog", "version": env!("CARGO_PKG_VERSION")});
    write!(out, "{{\"resourceSpans\":[{{\"resource\":{resource},\"scopeSpans\":[")?;
    write!(out, "{{\"scope\":{scope},\"spans\":[{}", trace.root(&steps))?;
    let mut spans = Spans { trace: &trace, out: &mut out, seen: HashSet::new(), open: Open::new() };
    steps.into_iter().try_for_each(|step| spans.step(step))?;
    spans.end()?;
    writeln!(out, "],\"schemaUrl\":\"{schema}\"}}],\"schemaUrl\":\"{schema}\"}}]}}")?;
    written.bytes = out.bytes;
    Ok(written)
}

/// The trace of a run.
struct Trace<'a> {
    run: &'a RunSummary,
    id: [u8; 16],
    /// What the messages used, by the first record of each, and all of the run.
    used: HashMap<u64, Amount>,
    sum: Sum,
}

/// A record with its time, and what it says.
struct Step {
    seq: u64,
    kind: Option<String>,
    at: Timestamp,
    facts: Facts,
    calls: Calls,
    is_model_event: bool,
}

impl Step {
    /// What a record says, at its time: that of the data, else the one of the store.
    fn of(record: &RecordView<'_>, format: Format, stored: Option<Timestamp>) -> Option<Self> {
        let value = value_of(record.kind(), record.content_type(), record.payload())?;
        let facts = facts_in(format, &value);
        Some(Self {
            seq: record.seq().0,
            kind: record.kind().map(str::to_owned),
            // Times before 1970 have no place in OTLP.
            at: facts.time.or(stored).filter(|at| at.0 >= 0)?,
            calls: Calls::of(&value),
            is_model_event: value["event"] == "model",
            facts,
        })
    }

    /// Whether a model speaks.
    fn is_of_model(&self) -> bool {
        let role = self.facts.role.as_deref();
        let speaks = role.is_some_and(|role| MODELS.contains(&role));
        self.facts.usage.is_some() || self.is_model_event || speaks
    }
}

impl<'a> Trace<'a> {
    /// Reads a run, and what its records say that give a time: that of the data, or in a run that
    /// was not imported that of the record. Without a format, they are read by their shapes.
    fn read(
        log: &Reader,
        run: &'a RunSummary,
        origin: Option<&Origin>,
        written: &mut Written,
    ) -> Result<(Self, Vec<Step>), Why> {
        let mut digest = Sha256::new();
        for part in [run.agent.as_str(), run.run.as_str()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.update(run.number().0.to_le_bytes());
        digest.update(run.started_at.0.to_le_bytes());
        let format = origin.and_then(|origin| origin.format).unwrap_or(Format::JsonLines);
        let (words, mut said, mut steps) = (Words::default(), Vec::new(), Vec::new());
        each_record(log, run, written, |_, record| {
            words.read(format, record, &mut said);
            let stored = origin.is_none().then(|| record.timestamp());
            steps.extend(Step::of(record, format, stored));
            Ok(())
        })?;
        let (used, sum) = usage_of(&said);
        Ok((Self { run, id: first(digest), used, sum }, steps))
    }

    /// The id of a span: that of the root, or of what is at a place of a record.
    fn span_id(&self, place: Option<(u64, u64)>) -> String {
        let mut digest = Sha256::new();
        digest.update(self.id);
        if let Some((seq, number)) = place {
            digest.update(seq.to_le_bytes());
            digest.update(number.to_le_bytes());
        }
        hex(&first::<8>(digest))
    }

    /// The root span with its events.
    fn root(&self, steps: &[Step]) -> Value {
        let run = self.run;
        let start = run.started_at.0.max(0);
        let end = run.ended_at.unwrap_or(run.last_at).0.max(start);
        let mut attributes = vec![
            text("gen_ai.operation.name", "invoke_agent"),
            text("gen_ai.agent.name", run.agent.as_str()),
            text("gen_ai.conversation.id", run.run.as_str()),
            text("runlog.status", run.status.as_str()),
        ];
        if self.sum.messages > 0 {
            attributes.push(number("runlog.messages", self.sum.messages));
            attributes.extend(usage(&self.sum.amount));
        }
        let has_failed = run.status == RunStatus::Failed;
        let name = format!("invoke_agent {}", run.agent);
        let mut span = self.span(None, &name, INTERNAL, (start, end), attributes, has_failed);
        let event = |step: &Step| {
            let role = step.facts.role.as_deref().filter(|_| !step.is_of_model())?;
            let mut attributes = vec![number("runlog.seq", step.seq), text("runlog.role", role)];
            attributes.extend(step.kind.as_deref().map(|kind| text("runlog.kind", kind)));
            Some(json!({"timeUnixNano": step.at.0.to_string(), "name": "runlog.message",
                "attributes": attributes}))
        };
        span["events"] = steps.iter().filter_map(event).collect();
        span
    }

    fn span(
        &self,
        place: Option<(u64, u64)>,
        name: &str,
        kind: u8,
        (start, end): (i64, i64),
        mut attributes: Vec<Value>,
        has_failed: bool,
    ) -> Value {
        if has_failed {
            attributes.push(text("error.type", "_OTHER"));
        }
        let mut span = json!({
            "traceId": hex(&self.id),
            "spanId": self.span_id(place),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": start.to_string(),
            "endTimeUnixNano": end.to_string(),
            "attributes": attributes,
        });
        if place.is_some() {
            span["parentSpanId"] = self.span_id(None).into();
        }
        if has_failed {
            span["status"] = json!({"code": ERROR});
        }
        span
    }
}

/// Calls without an answer yet, by their ids.
type Open = HashMap<String, (Call, Timestamp, (u64, u64))>;

/// Writes the spans below the root.
struct Spans<'a, 'w, W> {
    trace: &'a Trace<'a>,
    out: &'w mut W,
    /// The messages of models that have a span: several records may be one message.
    seen: HashSet<String>,
    open: Open,
}

impl<W: Write> Spans<'_, '_, W> {
    fn step(&mut self, step: Step) -> io::Result<()> {
        if step.is_of_model() && self.is_new(&step.facts) {
            self.chat(&step)?;
        }
        // Behind the number of the message's own span.
        for (number, call) in (1..).zip(step.calls.calls) {
            let place = (step.seq, number);
            match &call.id {
                Some(id) if !call.is_answered => {
                    let replaced = self.open.insert(id.clone(), (call, step.at, place));
                    if let Some((call, at, place)) = replaced {
                        self.tool(&call, place, (at, at))?;
                    }
                }
                _ => self.tool(&call, place, (step.at, step.at))?,
            }
        }
        for answer in step.calls.answers {
            if let Some((mut call, at, place)) = self.open.remove(&answer.id) {
                call.has_failed = answer.has_failed;
                self.tool(&call, place, (at, step.at.max(at)))?;
            }
        }
        Ok(())
    }

    /// The calls that were never answered.
    fn end(&mut self) -> io::Result<()> {
        let open = std::mem::take(&mut self.open).into_values();
        let sorted: BTreeMap<_, _> = open.map(|(call, at, place)| (place, (call, at))).collect();
        for (place, (call, at)) in sorted {
            self.tool(&call, place, (at, at))?;
        }
        Ok(())
    }

    /// Whether no record in front is of the same message.
    fn is_new(&mut self, facts: &Facts) -> bool {
        facts.message_id.as_ref().is_none_or(|id| self.seen.insert(id.clone()))
    }

    fn chat(&mut self, step: &Step) -> io::Result<()> {
        let facts = &step.facts;
        let name = match &facts.model {
            Some(model) => format!("chat {model}"),
            None => "chat".to_owned(),
        };
        let mut attributes = vec![
            text("gen_ai.operation.name", "chat"),
            text("gen_ai.conversation.id", self.trace.run.run.as_str()),
            number("runlog.seq", step.seq),
        ];
        for (key, value) in
            [("gen_ai.response.model", &facts.model), ("gen_ai.response.id", &facts.message_id)]
        {
            attributes.extend(value.as_ref().map(|value| text(key, value)));
        }
        attributes.extend(self.trace.used.get(&step.seq).into_iter().flat_map(usage));
        self.span((step.seq, 0), &name, CLIENT, (step.at, step.at), attributes, false)
    }

    fn tool(
        &mut self,
        call: &Call,
        place: (u64, u64),
        times: (Timestamp, Timestamp),
    ) -> io::Result<()> {
        let mut attributes = vec![
            text("gen_ai.operation.name", "execute_tool"),
            text("gen_ai.tool.name", &call.tool),
            number("runlog.seq", place.0),
        ];
        attributes.extend(call.id.as_ref().map(|id| text("gen_ai.tool.call.id", id)));
        let name = format!("execute_tool {}", call.tool);
        self.span(place, &name, INTERNAL, times, attributes, call.has_failed)
    }

    fn span(
        &mut self,
        place: (u64, u64),
        name: &str,
        kind: u8,
        (start, end): (Timestamp, Timestamp),
        attributes: Vec<Value>,
        has_failed: bool,
    ) -> io::Result<()> {
        let (start, end) = (start.0, end.0);
        let span = self.trace.span(Some(place), name, kind, (start, end), attributes, has_failed);
        // The root is in front.
        write!(self.out, ",{span}")
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
fn usage(usage: &Amount) -> Vec<Value> {
    let tokens = [
        ("gen_ai.usage.input_tokens", usage.input_tokens),
        ("gen_ai.usage.output_tokens", usage.output_tokens),
        ("gen_ai.usage.cache_read.input_tokens", usage.cache_read_tokens),
        ("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
    ];
    let cost =
        usage.cost.map(|cost| json!({"key": "runlog.cost_usd", "value": {"doubleValue": cost}}));
    let tokens = tokens.into_iter().filter(|(_, count)| *count > 0);
    tokens.map(|(key, count)| number(key, count)).chain(cost).collect()
}

/// An attribute.
fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

/// An attribute. Integers of 64 bits are strings in OTLP/JSON.
fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

/// The first bytes of a digest, which are never all zero: that is no id.
fn first<const N: usize>(digest: Sha256) -> [u8; N] {
    let mut bytes = [0; N];
    let digest = digest.finalize();
    bytes.iter_mut().zip(digest).for_each(|(byte, digit)| *byte = digit);
    if bytes == [0; N] { [1; N] } else { bytes }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
