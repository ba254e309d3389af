//! `records.parquet`: a row for each record, in the order of the runs and of their records.
//!
//! - `agent`, `run`, `run_number`: text, text, `uint64`. The run.
//! - `seq`: `uint64`. Its place in the run, from 0.
//! - `time`: time in UTC, to the nanosecond. When it was appended; of an imported record, what its
//!   source says.
//! - `late`: boolean. Appended after the end of the run.
//! - `kind`, `content_type`: text. As they were appended.
//! - `payload`: bytes. The payload.
//! - `text`: text. The payload where it is UTF-8, else null.
//! - `role`, `model`, `id`, `message_id`: text. What an imported record says of itself.
//! - `tools`: list of text. The tools that it calls, or that answer.
//! - `message_time`: time. The time of the message, where the record says what it used.
//! - `messages`: `uint64`. 1 in the row of each message that says what it used, else 0. In the row
//!   of what a run says that it used as a whole, how many messages that are besides those.
//! - `input_tokens`, `output_tokens`, `cache_read_tokens`, `cache_write_tokens`,
//!   `reasoning_tokens`: `uint64`. What the record adds to what its message used, each message
//!   counted once.
//! - `cost`: double. The same in US dollars; null where the data has none.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, Float64Builder, ListBuilder, StringBuilder,
    TimestampNanosecondBuilder, UInt64Builder,
};
use arrow_schema::{DataType, Field};
use runlog::{RecordView, RunSummary};
use runlog_formats::count::Counted;
use runlog_formats::facts::Facts;
use runlog_formats::{Format, facts_in, value_of};

use crate::error::ExportError;
use crate::table::{Table, UTC, Whole, time};

/// The rows of one write, and the most bytes of payloads in it.
const ROWS: usize = 8192;
const BYTES: usize = 16 << 20;

/// The table while it is written.
#[derive(Debug)]
pub(crate) struct Records {
    table: Table,
    rows: usize,
    bytes: usize,
    agent: StringBuilder,
    run: StringBuilder,
    run_number: UInt64Builder,
    seq: UInt64Builder,
    time: TimestampNanosecondBuilder,
    late: BooleanBuilder,
    kind: StringBuilder,
    content_type: StringBuilder,
    payload: BinaryBuilder,
    text: StringBuilder,
    facts: [StringBuilder; 4],
    tools: ListBuilder<StringBuilder>,
    message_time: TimestampNanosecondBuilder,
    messages: UInt64Builder,
    tokens: [UInt64Builder; 5],
    cost: Float64Builder,
}

/// The columns of tokens.
const TOKENS: [&str; 5] = [
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
];

impl Records {
    pub(crate) fn create(folder: &Path) -> Result<Self, ExportError> {
        let text = |name| Field::new(name, DataType::Utf8, false);
        let number = |name| Field::new(name, DataType::UInt64, false);
        let maybe = |name| Field::new(name, DataType::Utf8, true);
        let tool = Arc::new(Field::new_list_field(DataType::Utf8, true));
        let mut fields = vec![
            text("agent"),
            text("run"),
            number("run_number"),
            number("seq"),
            time("time", false),
            Field::new("late", DataType::Boolean, false),
            maybe("kind"),
            text("content_type"),
            Field::new("payload", DataType::Binary, false),
            maybe("text"),
            maybe("role"),
            maybe("model"),
            maybe("id"),
            maybe("message_id"),
            Field::new("tools", DataType::List(tool), true),
            time("message_time", true),
            number("messages"),
        ];
        fields.extend(TOKENS.map(number));
        fields.push(Field::new("cost", DataType::Float64, true));
        let times = || TimestampNanosecondBuilder::new().with_timezone(UTC);
        Ok(Self {
            table: Table::create(folder, "records.parquet", fields)?,
            rows: 0,
            bytes: 0,
            agent: StringBuilder::new(),
            run: StringBuilder::new(),
            run_number: UInt64Builder::new(),
            seq: UInt64Builder::new(),
            time: times(),
            late: BooleanBuilder::new(),
            kind: StringBuilder::new(),
            content_type: StringBuilder::new(),
            payload: BinaryBuilder::new(),
            text: StringBuilder::new(),
            facts: Default::default(),
            tools: ListBuilder::new(StringBuilder::new()),
            message_time: times(),
            messages: UInt64Builder::new(),
            tokens: Default::default(),
            cost: Float64Builder::new(),
        })
    }

    pub(crate) fn push(
        &mut self,
        run: &RunSummary,
        format: Option<Format>,
        record: &RecordView<'_>,
        counted: Option<&Counted>,
    ) -> Result<(), ExportError> {
        self.agent.append_value(&run.agent);
        self.run.append_value(&run.run);
        self.run_number.append_value(run.number().0);
        self.seq.append_value(record.seq().0);
        self.time.append_value(record.timestamp().0);
        self.late.append_value(record.is_late());
        self.kind.append_option(record.kind());
        self.content_type.append_value(record.content_type().to_string());
        self.payload.append_value(record.payload());
        self.text.append_option(str::from_utf8(record.payload()).ok());
        let value = value_of(record.kind(), record.content_type(), record.payload());
        let format = format.unwrap_or(Format::JsonLines);
        let facts = value.map_or_else(Facts::default, |value| facts_in(format, &value));
        self.facts(facts, counted);
        self.counted(counted);
        self.rows += 1;
        self.bytes += record.payload().len();
        if self.rows >= ROWS || self.bytes >= BYTES { self.write() } else { Ok(()) }
    }

    fn facts(&mut self, facts: Facts, counted: Option<&Counted>) {
        let model = facts.model.or_else(|| counted.and_then(|counted| counted.model.clone()));
        for (column, fact) in
            self.facts.iter_mut().zip([facts.role, model, facts.id, facts.message_id])
        {
            column.append_option(fact);
        }
        for tool in &facts.tools {
            self.tools.values().append_value(tool);
        }
        self.tools.append(!facts.tools.is_empty());
    }

    fn counted(&mut self, counted: Option<&Counted>) {
        self.message_time.append_option(counted.map(|counted| counted.time.0));
        self.messages.append_value(counted.map_or(0, |counted| counted.sum.messages));
        let added = counted.map(|counted| counted.sum.amount).unwrap_or_default();
        let tokens = [
            added.input_tokens,
            added.output_tokens,
            added.cache_read_tokens,
            added.cache_write_tokens,
            added.reasoning_tokens,
        ];
        for (column, tokens) in self.tokens.iter_mut().zip(tokens) {
            column.append_value(tokens);
        }
        self.cost.append_option(added.cost);
    }

    fn write(&mut self) -> Result<(), ExportError> {
        (self.rows, self.bytes) = (0, 0);
        let mut columns: Vec<arrow_array::ArrayRef> = vec![
            Arc::new(self.agent.finish()),
            Arc::new(self.run.finish()),
            Arc::new(self.run_number.finish()),
            Arc::new(self.seq.finish()),
            Arc::new(self.time.finish()),
            Arc::new(self.late.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.content_type.finish()),
            Arc::new(self.payload.finish()),
            Arc::new(self.text.finish()),
        ];
        for column in &mut self.facts {
            columns.push(Arc::new(column.finish()));
        }
        columns.push(Arc::new(self.tools.finish()));
        columns.push(Arc::new(self.message_time.finish()));
        columns.push(Arc::new(self.messages.finish()));
        for column in &mut self.tokens {
            columns.push(Arc::new(column.finish()));
        }
        columns.push(Arc::new(self.cost.finish()));
        self.table.write(columns)
    }

    pub(crate) fn finish(mut self) -> Result<Whole, ExportError> {
        self.write()?;
        self.table.finish()
    }
}
