//! `runs.parquet`: a row for each run.
//!
//! - `agent`, `run`: text. Its ids.
//! - `run_number`: `uint64`. The number that no other run of the store ever has; joins the tables.
//! - `status`: text. As `runlog ls` prints it.
//! - `started_at`, `ended_at`, `last_at`: time in UTC, to the nanosecond. `ended_at` is null while
//!   the run is in progress.
//! - `records`, `late_records`: `uint64`. How many records it has.
//! - `bytes`, `stored_bytes`: `uint64`. Of all payloads; of all frames in the file.
//! - `held`: boolean. Whether it is held.
//! - `metadata`, `outcome`: text. What its start and its end say, where that is UTF-8.
//! - `metadata_bytes`, `outcome_bytes`: bytes. The same, whatever it is.
//! - `imported_from`, `format`, `digest`: text. The file that it was imported from.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, StringBuilder, TimestampNanosecondBuilder, UInt64Builder,
};
use arrow_schema::{DataType, Field};
use runlog::{RunMetadata, RunOutcome, RunSummary};
use runlog_formats::origin::Origin;

use crate::error::ExportError;
use crate::table::{Table, UTC, Whole, time};

/// The rows of one write.
const ROWS: usize = 8192;

/// What a run says when it starts and when it ends.
pub(crate) struct Said {
    pub(crate) metadata: Option<RunMetadata>,
    pub(crate) outcome: Option<RunOutcome>,
}

/// The table while it is written.
#[derive(Debug)]
pub(crate) struct Runs {
    table: Table,
    rows: usize,
    agent: StringBuilder,
    run: StringBuilder,
    run_number: UInt64Builder,
    status: StringBuilder,
    started_at: TimestampNanosecondBuilder,
    ended_at: TimestampNanosecondBuilder,
    last_at: TimestampNanosecondBuilder,
    counts: [UInt64Builder; 4],
    held: BooleanBuilder,
    said: [(StringBuilder, BinaryBuilder); 2],
    origin: [StringBuilder; 3],
}

fn times() -> TimestampNanosecondBuilder {
    TimestampNanosecondBuilder::new().with_timezone(UTC)
}

impl Runs {
    pub(crate) fn create(folder: &Path) -> Result<Self, ExportError> {
        let text = |name| Field::new(name, DataType::Utf8, false);
        let number = |name| Field::new(name, DataType::UInt64, false);
        let maybe = |name| Field::new(name, DataType::Utf8, true);
        let bytes = |name| Field::new(name, DataType::Binary, true);
        let fields = vec![
            text("agent"),
            text("run"),
            number("run_number"),
            text("status"),
            time("started_at", false),
            time("ended_at", true),
            time("last_at", false),
            number("records"),
            number("late_records"),
            number("bytes"),
            number("stored_bytes"),
            Field::new("held", DataType::Boolean, false),
            maybe("metadata"),
            bytes("metadata_bytes"),
            maybe("outcome"),
            bytes("outcome_bytes"),
            maybe("imported_from"),
            maybe("format"),
            maybe("digest"),
        ];
        Ok(Self {
            table: Table::create(folder, "runs.parquet", fields)?,
            rows: 0,
            agent: StringBuilder::new(),
            run: StringBuilder::new(),
            run_number: UInt64Builder::new(),
            status: StringBuilder::new(),
            started_at: times(),
            ended_at: times(),
            last_at: times(),
            counts: Default::default(),
            held: BooleanBuilder::new(),
            said: Default::default(),
            origin: Default::default(),
        })
    }

    pub(crate) fn push(
        &mut self,
        run: &RunSummary,
        said: &Said,
        origin: Option<&Origin>,
    ) -> Result<(), ExportError> {
        self.agent.append_value(&run.agent);
        self.run.append_value(&run.run);
        self.run_number.append_value(run.number().0);
        self.status.append_value(run.status.as_str());
        self.started_at.append_value(run.started_at.0);
        self.ended_at.append_option(run.ended_at.map(|at| at.0));
        self.last_at.append_value(run.last_at.0);
        let counts = [run.records, run.late_records, run.bytes, run.stored_bytes];
        for (column, count) in self.counts.iter_mut().zip(counts) {
            column.append_value(count);
        }
        self.held.append_value(run.held);
        let payloads = [
            said.metadata.as_ref().map(RunMetadata::payload),
            said.outcome.as_ref().map(RunOutcome::payload),
        ];
        for ((text, bytes), payload) in self.said.iter_mut().zip(payloads) {
            text.append_option(payload.and_then(|payload| str::from_utf8(payload).ok()));
            bytes.append_option(payload);
        }
        let of = |part: fn(&Origin) -> Option<String>| origin.and_then(part);
        for (column, value) in self.origin.iter_mut().zip([
            of(|origin| Some(origin.imported_from.clone())),
            of(|origin| Some(origin.format?.to_string())),
            of(|origin| origin.digest.clone()),
        ]) {
            column.append_option(value);
        }
        self.rows += 1;
        if self.rows >= ROWS { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), ExportError> {
        self.rows = 0;
        let [records, late_records, bytes, stored_bytes] = &mut self.counts;
        let [metadata, outcome] = &mut self.said;
        let [imported_from, format, digest] = &mut self.origin;
        self.table.write(vec![
            Arc::new(self.agent.finish()),
            Arc::new(self.run.finish()),
            Arc::new(self.run_number.finish()),
            Arc::new(self.status.finish()),
            Arc::new(self.started_at.finish()),
            Arc::new(self.ended_at.finish()),
            Arc::new(self.last_at.finish()),
            Arc::new(records.finish()),
            Arc::new(late_records.finish()),
            Arc::new(bytes.finish()),
            Arc::new(stored_bytes.finish()),
            Arc::new(self.held.finish()),
            Arc::new(metadata.0.finish()),
            Arc::new(metadata.1.finish()),
            Arc::new(outcome.0.finish()),
            Arc::new(outcome.1.finish()),
            Arc::new(imported_from.finish()),
            Arc::new(format.finish()),
            Arc::new(digest.finish()),
        ])
    }

    pub(crate) fn finish(mut self) -> Result<Whole, ExportError> {
        self.write()?;
        self.table.finish()
    }
}
