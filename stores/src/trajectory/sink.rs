//! Recording: what a call writes, in which order, and its result.
//!
//! 1. The link in the parent is written before the start of the child. A crash in between leaves a
//!    link to a run that does not exist, which readers can see. In the other order the parent would
//!    lack the child, which readers could not see.
//! 2. The start is written before the record, so that the run has its identity first.
//! 3. The record is written before the end, since an end without its record would hide that the
//!    record is missing.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use std::sync::Arc;

use super::envelope::{Envelope, seq_of};
use super::links::is_untold;
use super::payload::{RunIdentity, TrajectoryRecord};
use super::states::RunState;
use super::{TrajectoryLog, UNATTRIBUTED};
use runlog::{
    Allow, Appended, ContentType, Durability, Error, Metadata, NewRecord, Outcome, Result, RunId,
    RunLog, RunStatus, RunSummary, Seq, Ticket,
};

/// A call of a [`TrajectorySink`]. It does its work at the first poll. Dropping it before leaves
/// nothing, and dropping it later leaves the whole record.
pub type Recording<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// A receiver of the records of a recorder.
///
/// If a caller awaits each call, its records are stored in that order: a reader that sees a record
/// of a run sees all that were recorded before it.
pub trait TrajectorySink: Send + Sync {
    /// Stores a record, which then survives the death of the process. It takes microseconds and
    /// waits for no disk, so it needs no runtime and no thread.
    ///
    /// # Errors
    /// As [`TrajectoryLog::record`].
    fn record(&self, record: TrajectoryRecord) -> Recording<'_>;

    /// Stores a record, which then survives power loss. Other tasks go on meanwhile; see
    /// [`Ticket`].
    ///
    /// # Errors
    /// As [`TrajectoryLog::record`], and the cause of a failed sync: then the record is stored, and
    /// it is unknown whether it survives.
    fn record_durable(&self, record: TrajectoryRecord) -> Recording<'_>;
}

impl TrajectorySink for TrajectoryLog {
    fn record(&self, record: TrajectoryRecord) -> Recording<'_> {
        Box::pin(async move { Self::record(self, &record).map(|_| ()) })
    }

    fn record_durable(&self, record: TrajectoryRecord) -> Recording<'_> {
        Box::pin(async move { Self::record(self, &record)?.durable().await })
    }
}

/// A record that was stored; it survives the death of the process.
#[derive(Clone)]
pub struct Recorded {
    /// Its sequence in its run in the engine.
    pub place: Seq,
    /// Whether it was there already: the last call had the same bytes, so this one repeats it.
    pub repeated: bool,
    /// The durability of the last write of the call, unless the record was there before the store
    /// was opened.
    ticket: Option<Ticket>,
    log: RunLog,
}

impl Recorded {
    /// Returns once the record survives power loss.
    ///
    /// # Errors
    /// The cause of a failed sync, or [`Error::Poisoned`].
    pub fn wait(&self) -> Result<()> {
        self.ticket.as_ref().map_or_else(|| self.log.sync(), Ticket::wait)
    }

    /// The same as a future: other tasks go on meanwhile. Only for a repeated record that was there
    /// before the store was opened, the poll itself waits.
    ///
    /// # Errors
    /// As [`Recorded::wait`].
    pub async fn durable(&self) -> Result<()> {
        match &self.ticket {
            Some(ticket) => ticket.clone().await,
            None => self.log.sync(),
        }
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("place", &self.place)
            .field("repeated", &self.repeated)
            .finish_non_exhaustive()
    }
}

impl TrajectoryLog {
    /// Stores a record. It is serialised once, and its bytes never change.
    ///
    /// If the last call for its run had the same bytes, the record is stored once. So a caller that
    /// does not know whether a call succeeded can repeat it.
    ///
    /// # Durability
    /// [`Durability::Process`]; [`Recorded::wait`] waits for more.
    ///
    /// # Errors
    /// [`Error::InvalidId`] when the id of the run or of its parent is empty or longer than
    /// [`MAX_ID_LEN`](runlog::MAX_ID_LEN); [`Error::TooLarge`]; [`Error::DiskFull`];
    /// [`Error::Json`]; [`Error::Poisoned`]. Then the record was not stored, unless it is a
    /// `run_ended` and the end of the run failed. Repeating the call completes it in both cases.
    pub fn record(&self, record: &TrajectoryRecord) -> Result<Recorded> {
        let bytes = serde_json::to_vec(record)
            .map_err(|source| Error::Json { source: Arc::new(source) })?;
        self.store_record(&bytes, &Envelope::of(record))
    }

    /// Stores a record as JSON: of this version or a newer one, of any kind. The same bytes come
    /// back, including white space and the order of keys. If the record has not the usual shape,
    /// the log uses the fields that have their usual places: `run_id`, `parent_run_id`, `seq`,
    /// `recorded_at_unix_ms`, `payload.kind`, `payload.identity`, `payload.outcome`.
    ///
    /// # Durability
    /// As [`TrajectoryLog::record`].
    ///
    /// # Errors
    /// [`Error::Json`] for bytes that are not JSON, or nested deeper than 128;
    /// [`Error::InvalidArgument`] for JSON that is not an object; else as
    /// [`TrajectoryLog::record`].
    pub fn record_bytes(&self, json: &[u8]) -> Result<Recorded> {
        self.store_record(json, &Envelope::read(json)?)
    }

    fn store_record(&self, bytes: &[u8], envelope: &Envelope) -> Result<Recorded> {
        let mut record = NewRecord::json(bytes).kind(envelope.engine_kind());
        if let Some(at) = envelope.at {
            record = record.at(at);
        }
        let Some(run) = &envelope.run else {
            let key = (UNATTRIBUTED, self.agent().as_str());
            return Ok(self.recorded(self.append(key, &record)?));
        };
        RunId::new(run)?;
        let shared = self.inner.states.lock().of(run);
        let mut state = shared.lock();
        self.look_up(run, &mut state)?;
        let recorded = match self.repeated(run, &state, bytes, envelope.seq)? {
            Some(repeated) => repeated,
            None => self.store_new(run, &mut state, &record, envelope)?,
        };
        let Some(outcome) = &envelope.outcome else { return Ok(recorded) };
        let ended = self.end(run, outcome, envelope)?;
        drop(state);
        self.inner.states.lock().forget(run, &shared);
        Ok(Recorded { ticket: ended.or(recorded.ticket), ..recorded })
    }

    fn store_new(
        &self,
        run: &str,
        state: &mut RunState,
        record: &NewRecord<'_>,
        envelope: &Envelope,
    ) -> Result<Recorded> {
        if let Some(parent) = envelope.parent.as_ref()
            && state.linked.as_ref() != Some(parent)
        {
            self.link(parent, run)?;
            state.linked = Some(parent.clone());
        }
        if let Some(identity) = &envelope.identity {
            self.start(run, identity, envelope)?;
        }
        let appended = self.append((self.agent().as_str(), run), record)?;
        state.last = Some((appended.seq, envelope.seq));
        state.ticket = Some(appended.ticket.clone());
        Ok(self.recorded(appended))
    }

    /// The state of a run from the store: after a restart of the process or of the recorder.
    fn look_up(&self, run: &str, state: &mut RunState) -> Result<()> {
        if state.known {
            return Ok(());
        }
        let key = (self.agent().as_str(), run);
        let found = match self.inner.log.run(key) {
            Ok(found) => found,
            Err(error) if error.is_not_found() => {
                state.known = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        state.linked = self.identity(key)?.and_then(|identity| identity.parent_run_id);
        let last = match self.last_but_links(&found) {
            // A damaged record does not count as repeated.
            Err(error) if is_untold(&error) => None,
            last => last?,
        };
        if let Some(record) = last {
            state.last = Some((record.seq(), seq_of(record.payload())));
            // The link is in front of the record.
            let parent = Envelope::read(record.payload()).ok().and_then(|read| read.parent);
            state.linked = parent.or(state.linked.take());
        }
        state.known = true;
        Ok(())
    }

    /// The result of an earlier call, if this one repeats the last one.
    fn repeated(
        &self,
        run: &str,
        state: &RunState,
        bytes: &[u8],
        seq: Option<u64>,
    ) -> Result<Option<Recorded>> {
        let Some((place, _)) = state.last.filter(|(_, last)| last.is_some() && *last == seq) else {
            return Ok(None);
        };
        let trace = match self.inner.log.trace((self.agent().as_str(), run)) {
            Ok(trace) => trace,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = match trace.range(place..=place)?.next() {
            Some(Ok(record)) => record.payload() == bytes,
            _ => false,
        };
        let (ticket, log) = (state.ticket.clone(), self.inner.log.clone());
        Ok(same.then_some(Recorded { place, repeated: true, ticket, log }))
    }

    fn start(&self, run: &str, identity: &RunIdentity, envelope: &Envelope) -> Result<()> {
        let metadata = serde_json::to_vec(identity)
            .map_err(|source| Error::Json { source: Arc::new(source) })?;
        let mut metadata = Metadata::json(&metadata).durability(Durability::Process);
        if let Some(at) = envelope.at {
            metadata = metadata.at(at);
        }
        match self.inner.log.start_run(self.agent().as_str(), run, metadata) {
            // Started again, or ended before it was started: the record shows it.
            Ok(_) | Err(Error::RunExists { .. } | Error::RunEnded { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends a run. A run that was ended in another way stays so; the record is stored.
    fn end(&self, run: &str, said: &str, envelope: &Envelope) -> Result<Option<Ticket>> {
        let status = match said {
            "failed" => RunStatus::Failed,
            "cancelled" => RunStatus::Cancelled,
            "interrupted" => RunStatus::Interrupted,
            _ => RunStatus::Completed,
        };
        let mut outcome = Outcome::new(status).durability(Durability::Process);
        // A longer one is in the record only.
        if said.len() <= 1024 {
            outcome = outcome.bytes(said.as_bytes()).content_type(ContentType::TEXT);
        }
        if let Some(at) = envelope.at {
            outcome = outcome.at(at);
        }
        let agent = self.agent().as_str();
        match self.inner.log.end_run(agent, run, &outcome, Allow::everything()) {
            Ok(appended) => Ok(Some(appended.ticket)),
            Err(Error::RunEnded { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Ends a run in progress whose last record is its end. Returns whether it did.
    pub(super) fn settle_end(&self, found: &RunSummary) -> Result<bool> {
        let run = found.run.as_str();
        let shared = self.inner.states.lock().of(run);
        let _alone = shared.lock();
        let record = match self.last_but_links(found) {
            Ok(Some(record)) if record.kind() == Some("run_ended") => record,
            Err(error) if !is_untold(&error) => return Err(error),
            _ => return Ok(false),
        };
        let envelope = Envelope::read(record.payload()).unwrap_or_default();
        let said = envelope.outcome.as_deref().unwrap_or_default();
        self.end(run, said, &envelope)?;
        Ok(true)
    }

    /// Appends, whatever the state of the run.
    pub(super) fn append(&self, key: (&str, &str), record: &NewRecord<'_>) -> Result<Appended> {
        self.inner.log.append_to(key.0, key.1, record, Allow::everything())
    }

    fn recorded(&self, appended: Appended) -> Recorded {
        let log = self.inner.log.clone();
        Recorded { place: appended.seq, repeated: false, ticket: Some(appended.ticket), log }
    }
}
