//! A run in progress, to be appended to: [`RunWriter`].

use core::fmt;
use std::sync::Arc;

use crate::engine::api::run_log::RunLog;
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::{Allow, Outcome};
use crate::engine::write::append::{Target, level_of};
use crate::engine::write::lifecycle::check_outcome;
use crate::engine::write::ticket::Appended;
use crate::error::{Error, Result};
use crate::types::{AgentId, RunId, RunNo};

/// A run in progress. Dropping it without an end leaves the run in progress.
///
/// Several writers of one run are possible (each by [`RunLog::start_run`] with the same metadata
/// or by [`RunLog::writer`]); their records are in the order of the appends.
pub struct RunWriter {
    log: RunLog,
    run_no: RunNo,
    agent: AgentId,
    run: RunId,
}

impl RunWriter {
    pub(crate) fn new(log: RunLog, run_no: RunNo, agent: AgentId, run: RunId) -> Self {
        Self { log, run_no, agent, run }
    }

    /// The agent of the run.
    pub fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// The id of the run.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Appends bytes of which nothing is said.
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
    /// [`Error::Json`] if the value cannot be JSON; else as [`RunWriter::append_record`].
    pub fn append_json<T: serde::Serialize + ?Sized>(&self, value: &T) -> Result<Appended> {
        let payload =
            serde_json::to_vec(value).map_err(|source| Error::Json { source: Arc::new(source) })?;
        self.append_record(&NewRecord::json(&payload))
    }

    /// Appends a record. Returns once it has reached the durability that the record asks for.
    ///
    /// # Errors
    /// [`Error::RunEnded`], [`Error::Evicted`] if the run was deleted, [`Error::TooLarge`],
    /// [`Error::DiskFull`] (nothing was stored, later appends work when space returns),
    /// [`Error::Poisoned`] after a failed write or sync.
    pub fn append_record(&self, record: &NewRecord<'_>) -> Result<Appended> {
        let engine = self.log.engine();
        let appended = engine.log.append(Target::There(self.run_no), record, Allow::nothing());
        engine.log.told(appended, record.level()).map_err(|error| self.explain(error))
    }

    /// Appends records so that after any crash all of them are there or none. They are next to one
    /// another. The strictest durability that one of them asks for holds for all.
    ///
    /// # Errors
    /// As [`RunWriter::append_record`]; [`Error::TooLarge`] when the batch is longer than a quarter
    /// of an extent, not counting payloads above 256 bytes; [`Error::InvalidArgument`] when it is
    /// empty.
    pub fn append_batch(&self, records: &[NewRecord<'_>]) -> Result<Appended> {
        let engine = self.log.engine();
        let appended =
            engine.log.append_batch(Target::There(self.run_no), records, Allow::nothing());
        engine.log.told(appended, level_of(records)).map_err(|error| self.explain(error))
    }

    /// Ends the run. Ending it again in the same way is fine.
    ///
    /// # Durability
    /// [`crate::Durability::Disk`] unless the outcome says otherwise.
    ///
    /// # Errors
    /// [`Error::RunEnded`] if it was ended in another way; as [`RunWriter::append_record`].
    pub fn end(&self, outcome: &Outcome) -> Result<Appended> {
        let engine = self.log.engine();
        let ended = engine.log.end(Target::There(self.run_no), outcome);
        engine.log.told(ended, outcome.level()).map_err(|error| self.explain(error))
    }

    /// The engine knows a deleted run by its number only.
    fn explain(&self, error: Error) -> Error {
        match error {
            Error::Evicted { run: None } => Error::Evicted { run: Some(self.run.clone()) },
            other => other,
        }
    }
}

/// Appending without a writer.
impl RunLog {
    /// Appends a record by ids. What [`Allow`] permits beyond a writer's rights is marked in the
    /// record and in the run's summary.
    ///
    /// # Errors
    /// As [`RunWriter::append_record`], and [`Error::RunNotFound`].
    pub fn append_to(
        &self,
        agent: &str,
        run: &str,
        record: &NewRecord<'_>,
        allow: Allow,
    ) -> Result<Appended> {
        let engine = self.engine();
        engine.log.check_record(record)?;
        let append = |target: Target<'_>| engine.log.append(target, record, allow);
        let appended = engine.log.on_run(agent, run, allow, record.time(), append);
        engine.log.told(appended, record.level())
    }

    /// Appends a batch by ids; see [`RunWriter::append_batch`].
    ///
    /// # Errors
    /// As [`RunWriter::append_batch`], and [`Error::RunNotFound`].
    pub fn append_batch_to(
        &self,
        agent: &str,
        run: &str,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        let engine = self.engine();
        engine.log.check_batch(records)?;
        let first = records.first().and_then(NewRecord::time);
        let append = |target: Target<'_>| engine.log.append_batch(target, records, allow);
        let appended = engine.log.on_run(agent, run, allow, first, append);
        engine.log.told(appended, level_of(records))
    }

    /// Ends a run by ids; see [`RunWriter::end`].
    ///
    /// # Errors
    /// As [`RunWriter::end`], and [`Error::RunNotFound`] unless `allow.unstarted`.
    pub fn end_run(
        &self,
        agent: &str,
        run: &str,
        outcome: &Outcome,
        allow: Allow,
    ) -> Result<Appended> {
        check_outcome(outcome)?;
        let engine = self.engine();
        let end = |target: Target<'_>| engine.log.end(target, outcome);
        let ended = engine.log.on_run(agent, run, allow, outcome.time(), end);
        engine.log.told(ended, outcome.level())
    }
}

impl fmt::Debug for RunWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunWriter")
            .field("agent", &self.agent)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}
