//! Appending to a run: [`RunWriter`], and calls by ids.

use core::fmt;
use std::sync::Arc;

use crate::engine::api::run_log::RunLog;
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::{Allow, Outcome};
use crate::engine::write::append::{Target, level_of};
use crate::engine::write::lifecycle::OpenedRun;
use crate::engine::write::ticket::Appended;
use crate::error::{Error, Result};
use crate::types::{AgentId, Durability, RunId, RunRef};

/// A run in progress. Dropping it without an end leaves the run in progress.
///
/// A run can have several writers, each from [`RunLog::start_run`] with the same metadata or from
/// [`RunLog::writer`]. Their records are stored in the order of the appends.
pub struct RunWriter {
    pub(crate) log: RunLog,
    pub(crate) to: OpenedRun,
}

impl RunWriter {
    pub(crate) fn new(log: RunLog, to: OpenedRun) -> Self {
        Self { log, to }
    }

    /// The agent of the run.
    pub fn agent(&self) -> &AgentId {
        &self.to.agent
    }

    /// The id of the run.
    pub fn run(&self) -> &RunId {
        &self.to.run
    }

    /// Whether the run existed before this writer was made: it had records or was started before
    /// with the same metadata. Always true for a writer from [`RunLog::writer`].
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-found-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// let log = runlog::Options::new().open(&path)?;
    /// assert!(!log.start_run("planner", "run-1", ())?.was_found());
    /// assert!(log.start_run("planner", "run-1", ())?.was_found());
    /// # log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    pub fn was_found(&self) -> bool {
        self.to.found
    }

    /// Appends bytes without a kind or content type.
    ///
    /// # Durability
    /// [`crate::Durability::Process`].
    ///
    /// # Errors
    /// As [`RunWriter::append_record`].
    pub fn append(&self, payload: &[u8]) -> Result<Appended> {
        self.append_record(&NewRecord::new(payload))
    }

    /// Appends a value as JSON.
    ///
    /// # Durability
    /// [`crate::Durability::Process`].
    ///
    /// # Errors
    /// [`Error::Json`] if the value cannot be serialised; and those of
    /// [`RunWriter::append_record`].
    pub fn append_json<T: serde::Serialize + ?Sized>(&self, value: &T) -> Result<Appended> {
        self.append_json_with(value, NewRecord::default())
    }

    /// Appends a value as JSON, with the kind, durability and time of `record`. The value replaces
    /// the payload of `record`.
    ///
    /// ```
    /// # fn main() -> runlog::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("runlog-doc-json-{}", std::process::id()));
    /// # let _ = std::fs::remove_file(&path);
    /// use runlog::{Durability, NewRecord};
    ///
    /// let log = runlog::Options::new().open(&path)?;
    /// let run = log.start_run("planner", "run-1", ())?;
    /// let paid = NewRecord::default().kind("payment").durability(Durability::Disk);
    /// let _ = run.append_json_with(&["tea", "2.50"], paid)?;
    /// let record = log.trace("run-1")?.next().expect("it was appended")?;
    /// assert_eq!(record.kind(), Some("payment"));
    /// assert_eq!(record.payload(), b"[\"tea\",\"2.50\"]");
    /// # drop(run); log.close()?; let _ = std::fs::remove_file(&path);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`RunWriter::append_json`].
    pub fn append_json_with<T: serde::Serialize + ?Sized>(
        &self,
        value: &T,
        record: NewRecord<'_>,
    ) -> Result<Appended> {
        self.append_record(&record.with_json(&to_json(value)?))
    }

    /// Appends a record. Returns once the record has reached the durability that it asks for.
    ///
    /// # Errors
    /// [`Error::RunEnded`]; [`Error::Evicted`] if the run was deleted; [`Error::TooLarge`];
    /// [`Error::DiskFull`] (nothing was stored; appends work again when there is space);
    /// [`Error::Poisoned`] after a failed write or sync.
    pub fn append_record(&self, record: &NewRecord<'_>) -> Result<Appended> {
        self.told(self.log.log().append(self.target(), record, Allow::nothing()), record.level())
    }

    /// Appends records so that after any crash all of them exist or none. They are adjacent in the
    /// run. The highest durability level among them applies to all.
    ///
    /// # Errors
    /// Those of [`RunWriter::append_record`]; [`Error::TooLarge`] if the batch is longer than a
    /// quarter of an extent, not counting payloads above 256 bytes; [`Error::InvalidArgument`] if
    /// it is empty.
    pub fn append_batch(&self, records: &[NewRecord<'_>]) -> Result<Appended> {
        let appended = self.log.log().append_batch(self.target(), records, Allow::nothing());
        self.told(appended, level_of(records))
    }

    /// Ends the run. Ending it again with the same outcome succeeds and changes nothing.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`] unless the outcome says otherwise.
    ///
    /// # Errors
    /// [`Error::RunEnded`] if it was ended with another outcome; and those of
    /// [`RunWriter::append_record`].
    pub fn end(&self, outcome: &Outcome) -> Result<Appended> {
        self.told(self.log.log().end(self.target(), outcome), outcome.level())
    }

    pub(crate) fn target(&self) -> Target<'static> {
        Target::There(self.to.run_no)
    }

    fn told(&self, appended: Result<Appended>, level: Durability) -> Result<Appended> {
        self.log.log().told(appended, level).map_err(|error| self.explain(error))
    }

    /// Adds the run's id to an error: the engine knows a deleted run by its number only.
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error {
            Error::Evicted { run: None } => Error::Evicted { run: Some(self.to.run.clone()) },
            other => other,
        }
    }
}

/// A value as JSON.
pub(crate) fn to_json<T: serde::Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|source| Error::Json { source: Arc::new(source) })
}

impl<'a> From<&'a RunWriter> for RunRef<'a> {
    /// The run that the writer appends to, and not a later run with the same ids.
    fn from(writer: &'a RunWriter) -> Self {
        Self::from((&writer.to.agent, &writer.to.run)).numbered(writer.to.run_no)
    }
}

/// Appending without a writer.
impl RunLog {
    /// Appends a record by ids. If [`Allow`] permits an append that a writer could not do, the
    /// record and the summary of the run are marked.
    ///
    /// # Errors
    /// Those of [`RunWriter::append_record`], and [`Error::RunNotFound`].
    pub fn append_to(
        &self,
        agent: &str,
        run: &str,
        record: &NewRecord<'_>,
        allow: Allow,
    ) -> Result<Appended> {
        let log = self.log();
        log.told(log.append_to(agent, run, record, allow), record.level())
    }

    /// Appends a batch by ids; see [`RunWriter::append_batch`].
    ///
    /// # Errors
    /// Those of [`RunWriter::append_batch`], and [`Error::RunNotFound`].
    pub fn append_batch_to(
        &self,
        agent: &str,
        run: &str,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        let log = self.log();
        log.told(log.append_batch_to(agent, run, records, allow), level_of(records))
    }

    /// Ends a run by ids; see [`RunWriter::end`].
    ///
    /// # Errors
    /// Those of [`RunWriter::end`], and [`Error::RunNotFound`] unless `allow.unstarted`.
    pub fn end_run(
        &self,
        agent: &str,
        run: &str,
        outcome: &Outcome,
        allow: Allow,
    ) -> Result<Appended> {
        let log = self.log();
        log.told(log.end_run(agent, run, outcome, allow), outcome.level())
    }
}

impl fmt::Debug for RunWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunWriter")
            .field("agent", &self.to.agent)
            .field("run", &self.to.run)
            .finish_non_exhaustive()
    }
}
