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

use runlog::{Error, Reader, RecordView, RunRef, RunStatus, RunSummary, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::formats::calls::{Call, Calls};
use crate::formats::count::{Amount, Counting, Sum, Words};
use crate::formats::facts::Facts;
use crate::formats::origin::Origin;
use crate::formats::{Format, facts_in, value_of};

use super::outcome::{Counted, Why, Written};

/// The version of the semantic conventions.
const VERSION: &str = "1.41.0";

/// Those who speak for a model.
const MODELS: [&str; 4] = ["assistant", "agent", "gemini", "model"];

/// The kinds of spans.
const INTERNAL: u8 = 1;
const CLIENT: u8 = 3;

/// The status of a span that failed.
const ERROR: u8 = 2;

/// Writes a run as a line. Takes memory for the longest record as a value, for the ids of its
/// messages and open calls, and for what its messages say of their usage.
pub(crate) fn write(
    log: &Reader,
    run: &RunSummary,
    origin: Option<&Origin>,
    out: &mut impl Write,
) -> Result<Written, Why> {
    let mut out = Counted::new(out, None);
    let mut written = Written::default();
    let trace = Trace::new(log, run, origin)?;
    let schema = format!("https://opentelemetry.io/schemas/{VERSION}");
    let resource = json!({"attributes": [text("service.name", run.agent.as_str())]});
    let scope = json!({"name": "runlog", "version": env!("CARGO_PKG_VERSION")});
    write!(out, "{{\"resourceSpans\":[{{\"resource\":{resource},\"scopeSpans\":[")?;
    write!(out, "{{\"scope\":{scope},\"spans\":[")?;
    // The usage first, then the root span, and then the others: three looks at the same records.
    trace.root(&mut out, log, &mut written)?;
    let mut spans = Spans { trace: &trace, out: &mut out, seen: HashSet::new(), open: Open::new() };
    let seen = written.records + written.damaged;
    trace.each(log, Some(seen), &mut |step| spans.step(step))?;
    spans.end()?;
    writeln!(out, "],\"schemaUrl\":\"{schema}\"}}],\"schemaUrl\":\"{schema}\"}}]}}")?;
    written.bytes = out.bytes;
    Ok(written)
}

/// The trace of a run.
struct Trace<'a> {
    run: &'a RunSummary,
    /// The format of its records; without one, they are read by their shapes.
    format: Format,
    /// Whether the times of the records are those of the data.
    is_imported: bool,
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
    /// Whether a model speaks.
    fn is_of_model(&self) -> bool {
        let role = self.facts.role.as_deref();
        let speaks = role.is_some_and(|role| MODELS.contains(&role));
        self.facts.usage.is_some() || self.is_model_event || speaks
    }
}

impl<'a> Trace<'a> {
    fn new(log: &Reader, run: &'a RunSummary, origin: Option<&Origin>) -> Result<Self, Why> {
        let mut digest = Sha256::new();
        for part in [run.agent.as_str(), run.run.as_str()] {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.update(run.number().0.to_le_bytes());
        digest.update(run.started_at.0.to_le_bytes());
        let format = origin.and_then(|origin| origin.format).unwrap_or(Format::JsonLines);
        let (used, sum) = usage_of(log, run, format)?;
        Ok(Self { run, format, is_imported: origin.is_some(), id: first(digest), used, sum })
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

    /// Calls `each` with each of the first `max` records that gives a time.
    fn each(
        &self,
        log: &Reader,
        max: Option<u64>,
        each: &mut dyn FnMut(Step) -> io::Result<()>,
    ) -> Result<Written, Why> {
        let mut written = Written::default();
        let mut trace = log.trace(RunRef::from(self.run))?;
        while max.is_none_or(|max| written.records + written.damaged < max) {
            match trace.next_view() {
                None => break,
                Some(Ok(record)) => {
                    written.records += 1;
                    if let Some(step) = self.step(&record) {
                        each(step)?;
                    }
                }
                Some(Err(Error::Corrupt(_))) => written.damaged += 1,
                Some(Err(error)) => return Err(error.into()),
            }
        }
        Ok(written)
    }

    fn step(&self, record: &RecordView<'_>) -> Option<Step> {
        let value = value_of(record.kind(), record.content_type(), record.payload())?;
        let facts = facts_in(self.format, &value);
        let stored = (!self.is_imported).then(|| record.timestamp());
        Some(Step {
            seq: record.seq().0,
            kind: record.kind().map(str::to_owned),
            // Times before 1970 have no place in OTLP.
            at: facts.time.or(stored).filter(|at| at.0 >= 0)?,
            calls: Calls::of(&value),
            is_model_event: value["event"] == "model",
            facts,
        })
    }

    /// Writes the root span with its events.
    fn root(&self, out: &mut impl Write, log: &Reader, written: &mut Written) -> Result<(), Why> {
        let run = self.run;
        let start = run.started_at.0.max(0);
        let end = run.ended_at.unwrap_or(run.last_at).0.max(start);
        let mut attributes = vec![
            text("gen_ai.operation.name", "invoke_agent"),
            text("gen_ai.agent.name", run.agent.as_str()),
            text("gen_ai.conversation.id", run.run.as_str()),
            text("runlog.status", run.status.as_str()),
        ];
        if run.status == RunStatus::Failed {
            attributes.push(text("error.type", "_OTHER"));
        }
        if self.sum.messages > 0 {
            attributes.push(number("runlog.messages", self.sum.messages));
            attributes.extend(usage(&self.sum.amount));
        }
        let mut span = span(self, None, &format!("invoke_agent {}", run.agent), INTERNAL);
        span["startTimeUnixNano"] = start.to_string().into();
        span["endTimeUnixNano"] = end.to_string().into();
        span["attributes"] = attributes.into();
        if run.status == RunStatus::Failed {
            span["status"] = json!({"code": ERROR});
        }
        // What follows is written into the object, so that no list of events is in memory.
        let json = span.to_string();
        write!(out, "{},\"events\":[", json.strip_suffix('}').unwrap_or(&json))?;
        let mut is_first = true;
        *written = self.each(log, None, &mut |step| {
            let Some(role) = step.facts.role.as_deref().filter(|_| !step.is_of_model()) else {
                return Ok(());
            };
            let mut attributes = vec![number("runlog.seq", step.seq), text("runlog.role", role)];
            attributes.extend(step.kind.as_deref().map(|kind| text("runlog.kind", kind)));
            let event = json!({"timeUnixNano": step.at.0.to_string(), "name": "runlog.message",
                "attributes": attributes});
            let comma = if std::mem::take(&mut is_first) { "" } else { "," };
            write!(out, "{comma}{event}")
        })?;
        Ok(out.write_all(b"]}")?)
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
        mut attributes: Vec<Value>,
        has_failed: bool,
    ) -> io::Result<()> {
        let mut span = span(self.trace, Some(place), name, kind);
        span["parentSpanId"] = self.trace.span_id(None).into();
        span["startTimeUnixNano"] = start.0.to_string().into();
        span["endTimeUnixNano"] = end.0.to_string().into();
        if has_failed {
            attributes.push(text("error.type", "_OTHER"));
            span["status"] = json!({"code": ERROR});
        }
        span["attributes"] = attributes.into();
        // The root is in front.
        write!(self.out, ",{span}")
    }
}

fn span(trace: &Trace<'_>, place: Option<(u64, u64)>, name: &str, kind: u8) -> Value {
    json!({"traceId": hex(&trace.id), "spanId": trace.span_id(place), "name": name, "kind": kind})
}

/// What the messages of a run used, by the first record of each, and all of it.
fn usage_of(
    log: &Reader,
    run: &RunSummary,
    format: Format,
) -> Result<(HashMap<u64, Amount>, Sum), Why> {
    let (words, mut said) = (Words::default(), Vec::new());
    let mut trace = log.trace(RunRef::from(run))?;
    while let Some(record) = trace.next_view() {
        match record {
            Ok(record) => words.read(format, &record, &mut said),
            // It is counted when the spans are written.
            Err(Error::Corrupt(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // Several records may be one message, which has one span.
    let (mut firsts, mut messages) = (HashMap::new(), HashMap::new());
    for said in &said {
        if let Some(id) = said.message_id() {
            let first = *messages.entry(id).or_insert(said.seq());
            firsts.insert(said.seq(), first);
        }
    }
    let (mut used, mut sum): (HashMap<_, Amount>, _) = (HashMap::new(), Sum::default());
    let mut last = 0;
    Counting::default().run(&said, &mut |counted| {
        // What a message adds that is written again is of its first span as well.
        last = if counted.sum.messages > 0 { counted.seq } else { last };
        let seq = firsts.get(&counted.seq).copied().unwrap_or(last);
        let amount = used.entry(seq).or_default();
        *amount = amount.plus(counted.sum.amount);
        sum = sum.plus(counted.sum);
    });
    Ok((used, sum))
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
