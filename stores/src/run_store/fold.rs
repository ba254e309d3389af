//! The state of a run that follows from its records: whether it started, how it ended, how many
//! turns it has.
//!
//! Only the records define the state. START and END of the engine are there for speed, and so that
//! lists and policies of the engine include the run:
//!
//! - START is in front of the first record of a run and has a [`Mark`]. Without a record behind it,
//!   the run has not begun.
//! - END is behind a record `ended` and has a [`Checkpoint`]: the fold of all records up to then. A
//!   reader reads only the later records, of which there are few.
//!
//! So a crash between any two frames leaves a state that every reader understands, and the next
//! call that writes or adopts completes it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::error::{Result, RunStoreError};
use super::line::{self, is_blank};
use super::list::RunStatus;
use super::open::Opened;
use super::records::{RunCancellationStatus, RunRecord, RunTermination};
use crate::objects;
use runlog::{ContentType, Error, Outcome, RecordView, RunMetadata, RunRef, RunSummary, Seq};

/// The most remembered runs; beyond it, all are forgotten.
const MANY_FOLDS: usize = 1 << 16;

/// How often a run that is deleted while it is read is looked for again.
const LOOKS: u32 = 8;

/// The name that marks START and END of this store.
const STORE: &str = "run_store";

/// The fold of the records of a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Fold {
    /// It includes all records with a smaller sequence.
    pub(super) records: u64,
    /// How many records the run had then: fewer than the sequence if one is lost. Zero if an
    /// earlier version wrote it, which did not state it.
    #[serde(default)]
    pub(super) counted: u64,
    pub(super) turns: u64,
    pub(super) model_turns: u64,
    /// The last start.
    #[serde(default, deserialize_with = "objects::optional")]
    pub(super) started: Option<Boundary>,
    /// The last end.
    #[serde(default, deserialize_with = "objects::optional")]
    pub(super) ended: Option<End>,
    /// A cancellation was requested, and no record states that it is finished.
    pub(super) pending: bool,
    /// Lines that are not records, and damaged records.
    pub(super) damaged: u64,
    /// The start was rolled back.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(super) rolled_back: bool,
}

/// What is remembered of a run.
#[derive(Debug, Clone)]
pub(super) struct Remembered {
    fold: Fold,
    /// The engine knew its end then.
    ended: bool,
}

/// A record that starts or ends a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Boundary {
    pub(super) seq: u64,
    pub(super) at: DateTime<Utc>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct End {
    #[serde(deserialize_with = "objects::one")]
    pub(super) record: Boundary,
    pub(super) status: RunStatus,
    /// The status in the engine.
    pub(super) code: u8,
}

/// The payload of an END.
#[derive(Serialize, Deserialize)]
struct Checkpoint {
    store: String,
    #[serde(deserialize_with = "objects::one")]
    fold: Fold,
}

/// The metadata of a START.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    store: String,
    /// There was a file without lines.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    pub(super) empty: bool,
    /// The names of folder and file that the run was imported from, if they differ from its ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<(String, String)>,
}

impl Mark {
    pub(super) fn new() -> Self {
        Self { store: STORE.to_owned(), empty: false, file: None }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    fn from_json(json: &[u8]) -> Option<Self> {
        objects::from_slice(json).ok().filter(|mark: &Self| mark.store == STORE)
    }
}

/// The metadata that `runlog import` writes.
#[derive(Deserialize)]
struct ImportMark {
    #[serde(rename = "imported_from")]
    _imported_from: String,
}

/// The owner of a run, by its START.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// This store's.
    Ours(Mark),
    /// It may have records of this store: it was imported, or has no START.
    Anybody,
    /// Another program's.
    Foreign,
}

impl Fold {
    fn with_count(mut self) -> Self {
        if self.counted == 0 {
            self.counted = self.records;
        }
        self
    }

    /// Adds the next record.
    fn add(&mut self, record: &RecordView<'_>) {
        self.records = record.seq().0 + 1;
        // This store parsed what it wrote as JSON, so the kind can be trusted.
        match record.kind() {
            Some("turn") if record.content_type() == ContentType::JSON => self.turns += 1,
            _ => self.add_line(record.seq().0, record.payload()),
        }
    }

    fn add_line(&mut self, seq: u64, bytes: &[u8]) {
        match line::parse(bytes) {
            Ok(RunRecord::Turn(_)) => self.turns += 1,
            Ok(RunRecord::ModelTurn(_)) => self.model_turns += 1,
            Ok(RunRecord::Started(started)) => {
                self.started = Some(Boundary { seq, at: started.started_at });
            }
            Ok(RunRecord::Ended(ended)) => {
                let status = match ended.termination {
                    RunTermination::Outcome { .. } => RunStatus::Completed,
                    RunTermination::Incomplete => RunStatus::Incomplete,
                    RunTermination::Cancelled { .. } => RunStatus::Cancelled,
                };
                let code = engine_status(&ended.termination).code();
                let record = Boundary { seq, at: ended.ended_at };
                self.ended = Some(End { record, status, code });
            }
            Ok(RunRecord::CancellationRequested(_)) => self.pending = true,
            Ok(RunRecord::CancellationResult(result)) => {
                self.pending = result.status != RunCancellationStatus::AlreadyTerminal;
            }
            Ok(_) => {}
            Err(_) if is_blank(bytes) => {}
            Err(_) => self.damaged += 1,
        }
    }

    /// The outcome for the engine, with this as a checkpoint.
    pub(super) fn outcome(&self, end: &End) -> Outcome {
        let status = runlog::RunStatus::from_code(end.code).filter(|status| status.is_ended());
        self.as_outcome(status.unwrap_or(runlog::RunStatus::Interrupted))
            .at(line::timestamp(end.record.at))
    }

    pub(super) fn as_outcome(&self, status: runlog::RunStatus) -> Outcome {
        let checkpoint = Checkpoint { store: STORE.to_owned(), fold: self.clone() };
        let payload = serde_json::to_vec(&checkpoint).unwrap_or_default();
        Outcome::new(status).json(&payload).durability(runlog::Durability::Process)
    }
}

/// The status of an end in the engine.
fn engine_status(termination: &RunTermination) -> runlog::RunStatus {
    use super::outcome::OutcomeStatus as Status;
    use runlog::RunStatus;
    match termination {
        RunTermination::Incomplete => RunStatus::Interrupted,
        RunTermination::Cancelled { .. } => RunStatus::Cancelled,
        RunTermination::Outcome { status, .. } => match status {
            Status::Success | Status::PartialSuccess | Status::Done => RunStatus::Completed,
            Status::GiveUp | Status::Timeout | Status::Failure => RunStatus::Failed,
        },
    }
}

/// A run and its fold.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) run: RunSummary,
    pub(super) fold: Fold,
}

impl Found {
    pub(super) fn key(&self) -> (&str, &str) {
        (self.run.agent.as_str(), self.run.run.as_str())
    }

    /// Its start was rolled back, and it is not deleted yet.
    pub(super) fn is_rolled_back(&self) -> bool {
        self.fold.rolled_back
    }

    /// What ended it, unless its start was rolled back.
    pub(super) fn end(&self) -> Option<&End> {
        self.fold.ended.as_ref().filter(|_| !self.is_rolled_back())
    }

    /// The status by the records; if they do not state how the run ended, the status of the engine.
    pub(super) fn status(&self) -> RunStatus {
        match (&self.fold.ended, self.run.status) {
            (Some(end), _) => end.status,
            (None, runlog::RunStatus::InProgress) if self.fold.pending => {
                RunStatus::CancellationPending
            }
            (None, runlog::RunStatus::InProgress) => RunStatus::InProgress,
            (None, runlog::RunStatus::Completed | runlog::RunStatus::Failed) => {
                RunStatus::Completed
            }
            (None, runlog::RunStatus::Cancelled) => RunStatus::Cancelled,
            (None, _) => RunStatus::Incomplete,
        }
    }

    pub(super) fn ended_at(&self) -> Option<DateTime<Utc>> {
        let by_engine = || self.run.ended_at.map(|at| DateTime::from_timestamp_nanos(at.0));
        self.fold.ended.map(|end| end.record.at).or_else(by_engine)
    }
}

impl Opened {
    /// A run as of now, if there is one with these ids.
    pub(super) fn find(&self, agent: &str, run: &str) -> Result<Option<Found>> {
        Ok(self.find_and(agent, run, |_| Ok(()))?.map(|(found, ())| found))
    }

    /// The same, with what `read` reads of it. If it is deleted meanwhile, this looks again.
    pub(super) fn find_and<T>(
        &self,
        agent: &str,
        run: &str,
        read: impl Fn(&Found) -> Result<T>,
    ) -> Result<Option<(Found, T)>> {
        let mut left = LOOKS;
        loop {
            let found = self.find_once(agent, run).and_then(|found| match found {
                Some(found) => read(&found).map(|read| Some((found, read))),
                None => Ok(None),
            });
            match found {
                Err(RunStoreError::Engine(Error::RunNotFound { .. } | Error::Evicted { .. }))
                    if left > 0 =>
                {
                    left -= 1;
                }
                found => return found,
            }
        }
    }

    fn find_once(&self, agent: &str, run: &str) -> Result<Option<Found>> {
        match self.log().run((agent, run)) {
            Ok(run) => self.found(run).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The fold of a run: from its checkpoint, from memory, and from later records. It reads a
    /// constant number of frames of a run that this store has ended, and of a foreign run, for
    /// which it returns nothing.
    pub(super) fn found(&self, run: RunSummary) -> Result<Found> {
        let (number, ended) = (run.number(), run.status.is_ended());
        // What is remembered of a run in progress does not include its END.
        let known = self.folds.lock().get(&number).filter(|known| known.ended == ended).cloned();
        let known = match known {
            None if ended => self.checkpoint(&run)?,
            known => known.map(|known| known.fold),
        };
        if known.is_none() && self.owner(&run)? == Owner::Foreign {
            let fold = Fold { counted: u64::MAX, ..Fold::default() };
            return Ok(Found { run, fold });
        }
        let mut fold = known.clone().unwrap_or_default();
        if fold.counted < run.records {
            self.read_on(&run, &mut fold)?;
        }
        if known.as_ref() != Some(&fold) {
            let mut folds = self.folds.lock();
            if folds.len() >= MANY_FOLDS {
                folds.clear();
            }
            folds.insert(number, Remembered { fold: fold.clone(), ended });
        }
        Ok(Found { run, fold })
    }

    fn checkpoint(&self, run: &RunSummary) -> Result<Option<Fold>> {
        let outcome = match self.log().outcome(run) {
            Ok(outcome) => outcome,
            // The records state the same.
            Err(Error::Corrupt(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let parsed = outcome.and_then(|outcome| objects::from_slice(outcome.payload()).ok());
        let ours = parsed.filter(|checkpoint: &Checkpoint| checkpoint.store == STORE);
        // If the run had fewer records, it would be a foreign one.
        Ok(ours
            .map(|checkpoint| checkpoint.fold.with_count())
            .filter(|it| it.counted <= run.records))
    }

    fn read_on(&self, run: &RunSummary, fold: &mut Fold) -> Result<()> {
        // There is more than the start that was rolled back.
        fold.rolled_back = false;
        let mut trace = self.log().trace(run)?.range(Seq(fold.records)..)?;
        while let Some(record) = trace.next_view() {
            match record {
                Ok(record) => fold.add(&record),
                Err(Error::Corrupt(corruption)) => {
                    fold.damaged += 1;
                    let next = corruption.seq.map_or(0, |seq| seq.0 + 1);
                    fold.records = fold.records.max(next);
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The last records may be damaged, and their sequence unknown.
        fold.records = fold.records.max(run.records);
        fold.counted = run.records;
        Ok(())
    }

    /// The mark of a run of this store.
    pub(super) fn mark(&self, agent: &str, run: &str) -> Result<Option<Mark>> {
        match self.owner((agent, run))? {
            Owner::Ours(mark) => Ok(Some(mark)),
            Owner::Anybody | Owner::Foreign => Ok(None),
        }
    }

    pub(super) fn owner<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<Owner> {
        let metadata = match self.log().metadata(run) {
            // Its records are there nevertheless.
            Err(Error::Corrupt(_)) => None,
            Err(error) if is_absent(&error) || error.is_evicted() => None,
            metadata => metadata?,
        };
        let Some(json) = metadata.map(RunMetadata::into_payload) else { return Ok(Owner::Anybody) };
        if let Some(mark) = Mark::from_json(&json) {
            return Ok(Owner::Ours(mark));
        }
        let is_import = objects::from_slice::<ImportMark>(&json).is_ok();
        Ok(if is_import { Owner::Anybody } else { Owner::Foreign })
    }

    /// A run as of now, if the original would show it: it has more than a START, and is not a
    /// foreign run in the same log.
    pub(super) fn find_visible(&self, agent: &str, run: &str) -> Result<Option<Found>> {
        let Some(found) = self.find(agent, run)? else { return Ok(None) };
        Ok(self.is_visible(&found)?.then_some(found))
    }

    pub(super) fn is_visible(&self, found: &Found) -> Result<bool> {
        if found.is_rolled_back() {
            return Ok(false);
        }
        if found.fold.started.is_some() {
            return Ok(true);
        }
        let (agent, run) = found.key();
        let mark = self.mark(agent, run)?;
        Ok(mark.is_some_and(|mark| mark.empty || found.run.records > 0))
    }
}

/// Whether an error means that there is no such run, also because the id is invalid.
pub(super) fn is_absent(error: &Error) -> bool {
    matches!(error, Error::RunNotFound { .. } | Error::InvalidId { .. })
}
