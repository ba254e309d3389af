//! How runs begin and end.

use std::sync::Arc;

use crate::engine::read::named::{Detail, metadata_in};
use crate::engine::read::resolve::frame_in;
use crate::engine::setup::locks::Held;
use crate::engine::state::active_runs::ActiveRun;
use crate::engine::state::log_state::{LogState, Urgency};
use crate::engine::state::segment::Segment;
use crate::engine::values::summary::RunSummary;
use crate::engine::values::{Metadata, Outcome};
use crate::engine::write::Log;
use crate::engine::write::append::{Target, check_len};
use crate::engine::write::pending_frame::PendingFrame;
use crate::engine::write::ticket::Appended;
use crate::error::{Error, Result, Sized};
use crate::format::frames::frame::FLAG_CREATES;
use crate::format::frames::ids;
use crate::format::{FrameHeader, FrameKind, MAX_OUTCOME};
use crate::index::{Order, RunList, Statuses};
use crate::types::{AgentId, Durability, LogPosition, Lsn, RunId, RunNo, RunRef, RunStatus, Seq};

/// A run that a writer may append to.
#[derive(Debug, Clone)]
pub(crate) struct OpenedRun {
    pub(crate) run_no: RunNo,
    pub(crate) agent: AgentId,
    pub(crate) run: RunId,
    /// Whether it existed before.
    pub(crate) found: bool,
}

impl Log {
    /// Starts a run, or finds that it was already started with the same metadata.
    pub(crate) fn start(
        self: &Arc<Self>,
        agent: &str,
        run: &str,
        metadata: &Metadata<'_>,
    ) -> Result<OpenedRun> {
        let (agent, run) = (AgentId::new(agent)?, RunId::new(run)?);
        let max = self.extent_size.max_metadata().into();
        check_len(Sized::Metadata, metadata.payload.len(), max)?;
        let ids = (&agent, &run);
        loop {
            let mut state = self.reader.loaded(ids)?;
            let known = state.active.find(&agent, &run);
            let found = known.is_some();
            let (run_no, end) = match known {
                Some(run_no) if state.active.get(run_no).is_some_and(|run| run.started) => {
                    let end = state.end_of_log();
                    let start = state.row_in_memory(run_no)?.and_then(|row| row.start);
                    let start = state.frame_at(start)?;
                    // The frame is read without the lock.
                    drop(state);
                    if !is_same_start(start, metadata)? {
                        return Err(Error::RunExists { agent, run });
                    }
                    state = match self.reader.loaded_number(run_no) {
                        // It was deleted meanwhile.
                        Err(Error::Evicted { .. }) => continue,
                        loaded => loaded?,
                    };
                    (run_no, end)
                }
                Some(run_no) => {
                    if let Some(run) = state.active.get(run_no).filter(|run| run.status.is_ended())
                    {
                        return Err(run.has_ended());
                    }
                    (run_no, self.place_start(&mut state, run_no, ids, metadata, 0, &mut [])?)
                }
                None => self.create_run(&mut state, ids, metadata, 0, &mut [])?,
            };
            if let Some(active) = state.active.get_mut(run_no) {
                (active.started, active.touched) = (true, true);
            }
            self.finish(state, end, metadata.durability)?;
            return Ok(OpenedRun { run_no, agent, run, found });
        }
    }

    /// Opens a run in progress to continue it.
    pub(crate) fn resume(&self, run: RunRef<'_>) -> Result<OpenedRun> {
        let (run_no, mut state) = self.lock_named(run)?;
        let active = state.active.get_mut(run_no).ok_or(Error::Closed)?;
        let (agent, run, status) = (active.agent.clone(), active.run.clone(), active.status);
        if status.is_ended() {
            return Err(Error::RunEnded { agent, run, status });
        }
        (active.touched, active.has_writer) = (true, true);
        Ok(OpenedRun { run_no, agent, run, found: true })
    }

    /// The named run, and the state with it in memory.
    pub(crate) fn lock_named(&self, run: RunRef<'_>) -> Result<(RunNo, Held<'_, LogState>)> {
        let mut last = None;
        loop {
            let (run_no, agent) = self.reader.named(run, Detail::Name)?.resolve()?;
            match self.reader.loaded_run((&agent, &RunId::new(run.run())?), run_no) {
                // It was deleted meanwhile: the name may now stand for another run, or none.
                Err(Error::Evicted { .. }) if last != Some(run_no) => last = Some(run_no),
                loaded => return Ok((run_no, loaded?)),
            }
        }
    }

    /// Creates a run with these frames; if they are refused, it is not created. An END that creates
    /// its run may not use the reserve, like any START.
    pub(crate) fn create_run(
        &self,
        state: &mut LogState,
        ids: (&AgentId, &RunId),
        metadata: &Metadata<'_>,
        flags: u8,
        pending: &mut [PendingFrame<'_>],
    ) -> Result<(RunNo, LogPosition)> {
        let now = metadata.at.unwrap_or_else(|| self.setup.now());
        let run_no = state.take_run_no();
        let mut new = ActiveRun::new(run_no, ids.0.clone(), ids.1.clone(), now);
        // Its creator is about to append, so it is not an orphan.
        new.touched = true;
        let is_only = state.active.with_id(ids.1.as_str(), None).next().is_none()
            && state.catalog.is_known_to_lack(ids.1.as_str());
        state.active.insert(new);
        state.active.complete(ids, is_only);
        let at = Metadata { at: Some(now), ..*metadata };
        let placed = self.place_start(state, run_no, ids, &at, FLAG_CREATES | flags, pending);
        let end = placed.inspect_err(|_| state.active.remove(run_no))?;
        Ok((run_no, end))
    }

    /// Places a START, and frames of its run after it.
    fn place_start(
        &self,
        state: &mut LogState,
        run_no: RunNo,
        (agent, run): (&AgentId, &RunId),
        metadata: &Metadata<'_>,
        flags: u8,
        pending: &mut [PendingFrame<'_>],
    ) -> Result<LogPosition> {
        let at = metadata.at.unwrap_or_else(|| self.setup.now());
        let mut header = FrameHeader::new(FrameKind::Start, run_no, at);
        (header.content, header.flags) = (metadata.content, flags);
        let mut payload = Vec::new();
        ids::encode_ids(agent, run, &mut payload);
        payload.extend_from_slice(metadata.payload);
        let mut all = vec![PendingFrame::new(header, &[], &payload)];
        all.extend_from_slice(pending);
        for pending_frame in &mut all {
            pending_frame.header.run_no = run_no;
        }
        let end = self.place(state, &mut all, Urgency::Normal, metadata.durability)?;
        for (pending_frame, placed) in pending.iter_mut().zip(all.iter().skip(1)) {
            pending_frame.header = placed.header;
        }
        Ok(end)
    }

    /// Ends a run, or finds that it was already ended with the same outcome.
    pub(crate) fn end(self: &Arc<Self>, target: Target<'_>, outcome: &Outcome) -> Result<Appended> {
        check_outcome(outcome)?;
        let body = end_body(outcome);
        let mut state = self.lock_for(target)?;
        let mut last = Seq(0);
        if let Target::There(run_no) = target {
            let Some(run) = state.active.get(run_no) else { return Err(Error::Poisoned) };
            last = Seq(run.next_seq.0.saturating_sub(1));
            if run.status.is_ended() {
                let refused = run.has_ended();
                let (row, end) = (state.row_in_memory(run_no)?, state.end_of_log());
                let known = state.frame_at(row.and_then(|row| row.end))?;
                // The frame is read without the lock.
                drop(state);
                let known =
                    known.map(|(segment, offset)| frame_in(&segment, offset)).transpose()?;
                let same = known.filter(|(header, payload)| {
                    header.content.code() == outcome.status().code() && **payload == *body
                });
                let Some((header, _)) = same else { return Err(refused) };
                self.finish(self.reader.open()?, end, outcome.level())?;
                return Ok(self.appended(last, header.lsn, end));
            }
        }
        let (lsn, end) = self.place_end(&mut state, target, outcome, &body)?;
        self.finish(state, end, outcome.level())?;
        Ok(self.appended(last, lsn, end))
    }

    /// Writes the END of a run in progress.
    fn place_end(
        &self,
        state: &mut LogState,
        target: Target<'_>,
        outcome: &Outcome,
        body: &[u8],
    ) -> Result<(Lsn, LogPosition)> {
        let at = outcome.time().unwrap_or_else(|| self.setup.now());
        let mut header = FrameHeader::new(FrameKind::End, target.run_no(), at);
        header.content = crate::types::ContentType::from_code(outcome.status().code());
        let mut pending_frame = [PendingFrame::new(header, &[], body)];
        let level = outcome.level();
        let (run_no, end) =
            self.place_for(state, target, &mut pending_frame, Urgency::Reserve, level)?;
        state.active.set_status(run_no, outcome.status());
        if let Some(run) = state.active.get_mut(run_no) {
            run.touched = true;
        }
        let [pending_frame] = pending_frame;
        Ok((pending_frame.header.lsn, end))
    }

    /// Ends, as interrupted, all runs in progress that no call has touched since the opening.
    pub(crate) fn adopt(self: &Arc<Self>) -> Result<Vec<(AgentId, RunId)>> {
        let mut adopted = Vec::new();
        let statuses = Statuses::NONE.with(RunStatus::InProgress);
        let mut rest = RunList { statuses, order: Order::Ascending, ..RunList::ALL };
        let outcome = Outcome::new(RunStatus::Interrupted).durability(Durability::Process);
        let body = end_body(&outcome);
        loop {
            let page = self.reader.page(&rest, 256)?;
            for run_no in page.runs.iter().map(RunSummary::number) {
                let mut state = match self.reader.loaded_number(run_no) {
                    // It was ended and deleted meanwhile.
                    Err(Error::Evicted { .. }) => continue,
                    loaded => loaded?,
                };
                let Some(run) = state.active.get(run_no) else { continue };
                if run.touched || run.status.is_ended() {
                    continue;
                }
                adopted.push((run_no, run.agent.clone(), run.run.clone()));
                // Under the same lock: a call that touches the run later finds it ended.
                let (_, end) =
                    self.place_end(&mut state, Target::There(run_no), &outcome, &body)?;
                self.finish(state, end, outcome.level())?;
                self.catch_up();
            }
            let Some(next) = page.next else { break };
            rest = rest.behind(next.key());
        }
        self.sync_all()?;
        adopted.sort_unstable_by_key(|run| run.0);
        Ok(adopted.into_iter().map(|(_, agent, run)| (agent, run)).collect())
    }
}

/// Whether the START at this place has this metadata.
fn is_same_start(start: Option<(Arc<Segment>, u32)>, metadata: &Metadata<'_>) -> Result<bool> {
    let Some((segment, offset)) = start else { return Ok(false) };
    let (header, payload) = frame_in(&segment, offset)?;
    let stored = metadata_in(&header, &payload)?;
    Ok(stored.payload == metadata.payload && stored.content == metadata.content)
}

/// Refuses an outcome that can never be stored.
pub(crate) fn check_outcome(outcome: &Outcome) -> Result<()> {
    if !outcome.status().is_ended() {
        return Err(Error::InvalidArgument { what: "an outcome must not be `in_progress`" });
    }
    check_len(Sized::Outcome, outcome.payload().len(), MAX_OUTCOME.into())
}

/// The payload of an END frame.
fn end_body(outcome: &Outcome) -> Vec<u8> {
    let mut body = vec![outcome.content().code()];
    body.extend_from_slice(outcome.payload());
    body
}
