//! Writing: starts, turns, ends, and records of any kind.
//!
//! What a kill between two frames leaves, and which call completes it:
//!
//! | frames | meaning | completed by |
//! |---|---|---|
//! | START | nothing yet | the start, repeated; `adopt_orphans` removes it |
//! | START, record `started` | the run started | - |
//! | ..., record `ended` | the run ended | the end, repeated; `adopt_orphans`; `gc` |
//! | ..., record `ended`, END | the run ended | - |
//! | START, `started`, END with that status | the start was rolled back | the next start; `gc` |

use std::sync::Arc;

use super::RunStore;
use super::error::{Result, RunStoreError};
use super::fold::{Found, Mark, Owner};
use super::line::NewLine;
use super::open::{Opened, hash_of};
use super::records::{RunEnded, RunRecord, RunStarted};
use runlog::{
    Allow, Appended, Batch, Durability, Error, Metadata, NewRecord, RunStatus, RunWriter, Seq,
    SizedThing, Ticket,
};

/// Records may come before a start and after an end, as in the original.
const ANY_TIME: Allow = Allow::nothing().after_end(true);

/// How many writers are kept; beyond it the store asks again whether a run is foreign.
const MANY_WRITERS: usize = 1 << 16;

impl RunStore {
    /// Appends records to a run, in order and unchanged: the run needs no start and may have ended,
    /// the same record may come twice, and the ids in the records are not checked.
    ///
    /// If they fit a batch, after a crash all of them are there or none; with the default extents
    /// of 4 MiB a batch has at least 2,500 records. If there are more, only the first of them may
    /// be there. An empty slice writes nothing.
    ///
    /// # Durability
    /// They survive the death of the process. If a start or an end is among them, all of them
    /// survive power loss too when the call returns; otherwise within 250 ms.
    ///
    /// # Errors
    /// See [`RunStoreError`]. Nothing was stored, except as stated above.
    pub fn append_records(
        &self,
        agent_id: &str,
        run_id: &str,
        records: &[RunRecord],
    ) -> std::io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let opened = self.create()?;
        let lines = records.iter().map(NewLine::checked).collect::<Result<Vec<_>>>()?;
        Ok(opened.append(agent_id, run_id, &lines)?)
    }

    /// Records that a run started. Repeating the same start leaves one record.
    ///
    /// # Durability
    /// Survives power loss.
    ///
    /// # Errors
    /// [`RunStoreError::StartedDifferently`] if the run was started before and the record differs;
    /// see [`RunStoreError`] for the others.
    pub fn write_started(&self, started: &RunStarted) -> std::io::Result<()> {
        Ok(self.create()?.start(started)?)
    }

    /// Appends records, as [`RunStore::append_records`] does.
    ///
    /// # Errors
    /// See [`RunStoreError`].
    pub fn append_turns(
        &self,
        agent_id: &str,
        run_id: &str,
        turns: &[RunRecord],
    ) -> std::io::Result<()> {
        self.append_records(agent_id, run_id, turns)
    }

    /// Records that a run ended. Repeating the same end leaves one record. The run needs no start.
    ///
    /// On a full disk a short end of a run, of up to 8 KiB with the default extents of 4 MiB, uses
    /// the space that is reserved for ends. If that does not suffice, the store deletes what
    /// [`gc`](Self::gc) would delete, and tries again once.
    ///
    /// # Durability
    /// Survives power loss, and so does everything that was appended to the run.
    ///
    /// # Errors
    /// [`RunStoreError::EndedDifferently`] if the run was ended before and the record differs; see
    /// [`RunStoreError`] for the others.
    pub fn write_ended(&self, ended: &RunEnded) -> std::io::Result<()> {
        let opened = self.create()?;
        let done = match opened.end(ended) {
            Err(RunStoreError::Engine(Error::DiskFull { .. })) => {
                opened.collect(&self.retention())?;
                opened.end(ended)
            }
            done => done,
        };
        Ok(done?)
    }

    /// Rolls a start back, if it is all that the run has. Returns whether it did; a run with more
    /// records, or with another start, stays unchanged.
    ///
    /// # Durability
    /// Survives power loss.
    ///
    /// # Errors
    /// See [`RunStoreError`]. A held run is not rolled back.
    pub fn rollback_empty_run_start(&self, started: &RunStarted) -> std::io::Result<bool> {
        match self.look()? {
            Some(opened) => Ok(opened.roll_back(started)?),
            None => Ok(false),
        }
    }
}

impl Opened {
    pub(super) fn append(&self, agent: &str, run: &str, lines: &[NewLine]) -> Result<()> {
        let is_boundary = |line: &&NewLine| matches!(line.kind.as_str(), "started" | "ended");
        if !lines.iter().any(|line| is_boundary(&line)) {
            let put = self.put(agent, run, lines, &Mark::new());
            return put.map(|_| ()).map_err(|error| self.settled(error));
        }
        let put = {
            let _guard = self.lock_boundary(agent, run);
            self.put(agent, run, lines, &Mark::new()).and_then(|put| {
                let ended = lines.iter().any(|line| line.kind == "ended");
                let end = if ended { self.finish(agent, run)? } else { None };
                Ok(Some(end.unwrap_or(put.ticket)))
            })
        };
        self.wait(put)
    }

    /// Appends lines, with a START in front of the first line of a run. If they fit a batch, all of
    /// them are there or none.
    pub(super) fn put(
        &self,
        agent: &str,
        run: &str,
        lines: &[NewLine],
        mark: &Mark,
    ) -> Result<Appended> {
        let _shared = self.share_removal();
        let records: Vec<NewRecord<'_>> = lines.iter().map(NewLine::as_record).collect();
        match self.put_records(agent, run, &records) {
            Err(RunStoreError::Engine(Error::RunNotFound { .. })) => {}
            done => return done,
        }
        let json = mark.to_json();
        let at = lines.iter().find_map(|line| line.at).unwrap_or_else(|| self.log().now());
        let start = Metadata::json(&json).at(at).durability(Durability::Process);
        match self.log().start_run(agent, run, start) {
            // Another caller was faster, perhaps one that does not use this store.
            Err(Error::RunExists { .. } | Error::RunEnded { .. }) => {}
            started => drop(self.keep_writer(started?)),
        }
        self.put_records(agent, run, &records)
    }

    /// Appends the record that ends a run. On a full disk it uses the reserved space.
    pub(super) fn put_end(&self, agent: &str, run: &str, line: NewLine) -> Result<Ticket> {
        let line = [line];
        let full = match self.put(agent, run, &line, &Mark::new()) {
            Err(RunStoreError::Engine(full @ Error::DiskFull { .. })) => full,
            put => return Ok(put?.ticket),
        };
        let mut batch = Batch::new();
        for line in &line {
            batch.append(agent, run, line.as_record());
        }
        match self.log().commit(batch.urgent()) {
            Ok(committed) => Ok(committed.ticket),
            // No space is reserved for these.
            Err(Error::RunNotFound { .. } | Error::RunEnded { .. }) => Err(full.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends records by name, or in halves if they are too many for a batch.
    fn put_records(&self, agent: &str, run: &str, records: &[NewRecord<'_>]) -> Result<Appended> {
        let put = self.put_batch(agent, run, records);
        if let Err(RunStoreError::Engine(Error::TooLarge { what: SizedThing::Batch, .. })) = put {
            let (first, second) = records.split_at(records.len() / 2);
            let _ = self.put_records(agent, run, first)?;
            return self.put_records(agent, run, second);
        }
        put
    }

    /// Appends a batch, unless another program keeps the run in the same log: this store would not
    /// show it.
    fn put_batch(&self, agent: &str, run: &str, records: &[NewRecord<'_>]) -> Result<Appended> {
        if let Some(writer) = self.writer(agent, run)? {
            match writer.append_batch(records) {
                // Another run may have its ids by now.
                Err(Error::RunEnded { .. } | Error::Evicted { .. }) => {
                    self.writers.lock().remove(&hash_of(agent, run));
                }
                done => return Ok(done?),
            }
        }
        if self.owner((agent, run))? == Owner::Foreign {
            return Err(foreign(agent, run));
        }
        Ok(self.log().append_batch_to(agent, run, records, ANY_TIME)?)
    }

    /// A writer of a run that is in progress and not foreign; an error if it is foreign.
    fn writer(&self, agent: &str, run: &str) -> Result<Option<Arc<RunWriter>>> {
        let known = self.writers.lock().get(&hash_of(agent, run)).cloned();
        let is_of = |writer: &Arc<RunWriter>| {
            (writer.agent().as_str(), writer.run().as_str()) == (agent, run)
        };
        if known.as_ref().is_some_and(is_of) {
            return Ok(known);
        }
        // First without a writer: with one, the run would count as in use by this program.
        if self.owner((agent, run))? == Owner::Foreign {
            return Err(foreign(agent, run));
        }
        let writer = match self.log().writer((agent, run)) {
            Err(Error::RunEnded { .. }) => return Ok(None),
            Err(error) if error.is_not_found() => return Ok(None),
            writer => writer?,
        };
        // Of this run, whatever has its ids by now.
        if self.owner(&writer)? == Owner::Foreign {
            return Err(foreign(agent, run));
        }
        Ok(Some(self.keep_writer(writer)))
    }

    /// Keeps the writer of a run that is not foreign.
    fn keep_writer(&self, writer: RunWriter) -> Arc<RunWriter> {
        let hash = hash_of(writer.agent().as_str(), writer.run().as_str());
        let writer = Arc::new(writer);
        let mut writers = self.writers.lock();
        if writers.len() >= MANY_WRITERS {
            writers.clear();
        }
        writers.insert(hash, Arc::clone(&writer));
        writer
    }

    fn start(&self, started: &RunStarted) -> Result<()> {
        self.wait(self.put_start(started))
    }

    fn put_start(&self, started: &RunStarted) -> Result<Option<Ticket>> {
        let (agent, run) = (started.agent_id.as_str(), started.run_id.as_str());
        let _guard = self.lock_boundary(agent, run);
        self.delete_rolled_back(agent, run)?;
        let found = self.find_and(agent, run, |found| self.started(found))?;
        if let Some((_, stored)) = found.filter(|(found, _)| found.fold.started.is_some()) {
            if stored.as_ref() != Some(started) {
                let (agent, run) = (agent.to_owned(), run.to_owned());
                return Err(RunStoreError::StartedDifferently { agent, run });
            }
            return Ok(None);
        }
        let line = NewLine::checked(&RunRecord::Started(started.clone()))?;
        Ok(Some(self.put(agent, run, &[line], &Mark::new())?.ticket))
    }

    /// Waits until the appended records, or those of an earlier attempt, are durable. A refusal is
    /// told once what justifies it is durable: the caller gives up what it had.
    fn wait(&self, put: Result<Option<Ticket>>) -> Result<()> {
        match put {
            Ok(Some(ticket)) => Ok(ticket.wait()?),
            Ok(None) => Ok(self.log().sync()?),
            Err(error) => Err(self.settled(error)),
        }
    }

    /// A refusal, once what justifies it is durable.
    fn settled(&self, error: RunStoreError) -> RunStoreError {
        let rests_on_writes = matches!(
            error,
            RunStoreError::Engine(Error::RunHeld { .. })
                | RunStoreError::Foreign { .. }
                | RunStoreError::StartedDifferently { .. }
                | RunStoreError::EndedDifferently { .. }
        );
        match rests_on_writes.then(|| self.log().sync()) {
            Some(Err(failed)) => failed.into(),
            _ => error,
        }
    }

    fn end(&self, ended: &RunEnded) -> Result<()> {
        self.wait(self.put_ended(ended))
    }

    fn put_ended(&self, ended: &RunEnded) -> Result<Option<Ticket>> {
        let (agent, run) = (ended.agent_id.as_str(), ended.run_id.as_str());
        let line = NewLine::checked(&RunRecord::Ended(ended.clone()))?;
        let _guard = self.lock_boundary(agent, run);
        let found = self.find_and(agent, run, |found| match found.end() {
            Some(end) => self.record_at(found, end.record.seq),
            None => Ok(None),
        })?;
        let put = match found.filter(|(found, _)| found.end().is_some()) {
            Some((_, stored)) => {
                // Compared as lines, since NaN does not equal itself.
                if stored.is_none_or(|stored| stored.to_line() != line.bytes) {
                    let (agent, run) = (agent.to_owned(), run.to_owned());
                    return Err(RunStoreError::EndedDifferently { agent, run });
                }
                None
            }
            None => Some(self.put_end(agent, run, line)?),
        };
        Ok(self.finish(agent, run)?.or(put))
    }

    /// Writes an END behind the record that ended a run, unless there is one.
    pub(super) fn finish(&self, agent: &str, run: &str) -> Result<Option<Ticket>> {
        let Some(found) = self.find(agent, run)? else { return Ok(None) };
        let Some(end) = found.fold.ended else { return Ok(None) };
        if found.run.status.is_ended() {
            return Ok(None);
        }
        let outcome = found.fold.outcome(&end);
        match self.log().end_run(agent, run, &outcome, Allow::nothing()) {
            Err(Error::RunEnded { .. }) => Ok(None),
            ended => {
                let ended = ended?;
                // From now on its END states it.
                self.folds.lock().remove(&found.run.number());
                Ok(Some(ended.ticket))
            }
        }
    }

    /// The start of a run.
    pub(super) fn started(&self, found: &Found) -> Result<Option<RunStarted>> {
        let Some(start) = found.fold.started else { return Ok(None) };
        match self.record_at(found, start.seq)? {
            Some(RunRecord::Started(started)) => Ok(Some(started)),
            _ => Ok(None),
        }
    }

    /// One record of a run; `None` if it is damaged.
    fn record_at(&self, found: &Found, seq: u64) -> Result<Option<RunRecord>> {
        let mut one = self.log().trace(&found.run)?.range(Seq(seq)..=Seq(seq))?;
        match one.next_view() {
            Some(Ok(record)) => Ok(RunRecord::from_line(record.payload()).ok()),
            Some(Err(Error::Corrupt(_))) | None => Ok(None),
            Some(Err(error)) => Err(error.into()),
        }
    }

    fn roll_back(&self, started: &RunStarted) -> Result<bool> {
        let (agent, run) = (started.agent_id.as_str(), started.run_id.as_str());
        let is_out = {
            let _guard = self.lock_boundary(agent, run);
            self.take_out(agent, run, |found| {
                let is_all = found.run.records == 1 && !found.run.status.is_ended();
                Ok(is_all && self.started(found)?.as_ref() == Some(started))
            })
        };
        // What keeps it, or another caller that took it out, may not be durable yet.
        let is_out = is_out.map_err(|error| self.settled(error))?;
        self.log().sync()?;
        Ok(is_out)
    }

    /// Deletes a run that has not begun, if `is_nothing` accepts its state, or if an earlier call
    /// accepted it and was interrupted. Only ended runs can be deleted, so the run is first ended
    /// with a mark for this.
    pub(super) fn take_out(
        &self,
        agent: &str,
        run: &str,
        is_nothing: impl FnOnce(&Found) -> Result<bool>,
    ) -> Result<bool> {
        // Held from the check to the deletion.
        let _alone = self.lock_removal();
        let Some(found) = self.find(agent, run)? else { return Ok(false) };
        if !found.is_rolled_back() && !is_nothing(&found)? {
            return Ok(false);
        }
        if found.run.held {
            let (agent, run) = (found.run.agent, found.run.run);
            return Err(Error::RunHeld { agent, run }.into());
        }
        if !found.run.status.is_ended() {
            let mut fold = found.fold.clone();
            fold.rolled_back = true;
            let outcome = fold.as_outcome(RunStatus::Interrupted);
            drop(self.log().end_run(agent, run, &outcome, Allow::nothing())?);
            self.folds.lock().remove(&found.run.number());
            // If another handle of the log added a record, that record and the run stay.
            if !self.find(agent, run)?.is_some_and(|now| now.is_rolled_back()) {
                return Ok(false);
            }
        }
        self.log().delete_run(&found.run)?;
        Ok(true)
    }

    /// Completes an interrupted [`Self::take_out`] of a run, if there is one.
    pub(super) fn delete_rolled_back(&self, agent: &str, run: &str) -> Result<()> {
        if self.find(agent, run)?.is_some_and(|found| found.is_rolled_back()) {
            self.take_out(agent, run, |_| Ok(false))?;
        }
        Ok(())
    }
}

fn foreign(agent: &str, run: &str) -> RunStoreError {
    RunStoreError::Foreign { agent: agent.to_owned(), run: run.to_owned() }
}
