//! The operations that change the store: starting, appending, ending, deleting.
//!
//! Each does what it can outside of the lock (checks, checksums, pieces of large records), places
//! its frames under it, and waits for durability after it.

use std::sync::Arc;

use crate::engine::state::active_runs::HotRun;
use crate::engine::state::log_state::{Core, Urgency};
use crate::engine::values::{Allow, Appended, Metadata, Outcome, RunSummary};
use crate::engine::write::Engine;
use crate::engine::write::chunks::{Body, PiecesOf, Rows, record_draft};
use crate::engine::write::group_commit::Ticket;
use crate::engine::write::pending_frame::{CREATES, Draft, NewRecord};
use crate::error::{Error, Result, Sized};
use crate::format::block::MAX_RECORD;
use crate::format::frame::{self, FLAG_BATCH, FLAG_IMPLICIT, FLAG_LATE, frame_len};
use crate::format::{FrameHeader, FrameKind, MAX_OUTCOME};
use crate::types::{
    AgentId, Durability, LogPosition, Lsn, RunId, RunNo, RunStatus, Seq, Timestamp,
};

/// The run that a call writes to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    There(RunNo),
    /// It is not there, and begins, as of this time, with what is written.
    New((&'a AgentId, &'a RunId), Option<Timestamp>),
}

impl Target<'_> {
    /// The number of the run, if it has one.
    fn run_no(self) -> RunNo {
        match self {
            Self::There(run_no) => run_no,
            Self::New(..) => RunNo(0),
        }
    }
}

impl Engine {
    /// Starts a run, or finds that it was started with the same metadata.
    pub(crate) fn start(
        self: &Arc<Self>,
        agent: &str,
        run: &str,
        metadata: &Metadata<'_>,
    ) -> Result<(RunNo, AgentId, RunId)> {
        let (agent, run) = (AgentId::new(agent)?, RunId::new(run)?);
        let max = self.extent_size.max_metadata().into();
        check_len(Sized::Metadata, metadata.payload.len(), max)?;
        let mut core = self.open_core()?;
        self.load_id(&mut core, run.as_str())?;
        let ids = (&agent, &run);
        let (run_no, end) = match find(&core, &agent, &run) {
            Some(run_no) if core.hot.get(run_no).is_some_and(|run| run.started) => {
                if !self.same_start(&core, run_no, metadata)? {
                    return Err(Error::RunExists { agent, run });
                }
                (run_no, core.end_of_log())
            }
            Some(run_no) => {
                if let Some(run) = core.hot.get(run_no).filter(|run| run.status.is_ended()) {
                    return Err(run.has_ended());
                }
                (run_no, self.place_start(&mut core, run_no, ids, metadata, (0, 0), &mut [])?)
            }
            None => self.create_run(&mut core, ids, metadata, 0, &mut [])?,
        };
        if let Some(hot) = core.hot.get_mut(run_no) {
            (hot.started, hot.touched) = (true, true);
        }
        self.finish(core, end, metadata.durability)?;
        Ok((run_no, agent, run))
    }

    /// A run that is not there, and begins with these frames; if they are refused it does not.
    /// What ends a run that it begins is refused like any START on a full disk.
    fn create_run(
        &self,
        core: &mut Core,
        ids: (&AgentId, &RunId),
        metadata: &Metadata<'_>,
        flags: u8,
        drafts: &mut [Draft<'_>],
    ) -> Result<(RunNo, LogPosition)> {
        let run_no = core.take_run_no()?;
        let now = metadata.at.unwrap_or_else(|| self.now());
        let mut new = HotRun::new(run_no, ids.0.clone(), ids.1.clone(), now);
        // The records of who begins it are on their way: it is no orphan.
        new.touched = true;
        core.hot.insert(new);
        core.hot.complete(ids.1.as_str());
        let at = Metadata { at: Some(now), ..*metadata };
        let placed = self.place_start(core, run_no, ids, &at, (CREATES, flags), drafts);
        let end = placed.inspect_err(|_| core.hot.remove(run_no))?;
        Ok((run_no, end))
    }

    /// Places a START, and frames of its run next to it.
    fn place_start(
        &self,
        core: &mut Core,
        run_no: RunNo,
        (agent, run): (&AgentId, &RunId),
        metadata: &Metadata<'_>,
        (extra, flags): (u32, u8),
        drafts: &mut [Draft<'_>],
    ) -> Result<LogPosition> {
        let at = metadata.at.unwrap_or_else(|| self.now());
        let mut header = FrameHeader::new(FrameKind::Start, run_no, at);
        (header.content, header.extra, header.flags) = (metadata.content, extra, flags);
        let mut payload = Vec::new();
        frame::encode_ids(agent, run, &mut payload);
        payload.extend_from_slice(metadata.payload);
        let mut all = vec![Draft::new(header, &[], &payload)];
        all.extend_from_slice(drafts);
        for draft in &mut all {
            draft.header.run_no = run_no;
        }
        let end = core.place(self, &mut all, Urgency::Normal, metadata.durability)?;
        for (draft, placed) in drafts.iter_mut().zip(all.iter().skip(1)) {
            draft.header = placed.header;
        }
        Ok(end)
    }

    /// Places frames of a run.
    fn place_for(
        &self,
        core: &mut Core,
        target: Target<'_>,
        drafts: &mut [Draft<'_>],
        urgency: Urgency,
        durability: Durability,
    ) -> Result<(RunNo, LogPosition)> {
        let (ids, at) = match target {
            Target::There(no) => return Ok((no, core.place(self, drafts, urgency, durability)?)),
            Target::New(ids, at) => (ids, at),
        };
        self.check_open(core)?;
        self.load_id(core, ids.1.as_str())?;
        if find(core, ids.0, ids.1).is_some() {
            // It was not there a moment ago.
            return Err(Error::Evicted { run: None });
        }
        // It is as old as the first of what begins it.
        let at = at.or_else(|| drafts.first().map(|draft| draft.header.at));
        let metadata = Metadata { durability, at, ..Metadata::default() };
        self.create_run(core, ids, &metadata, FLAG_IMPLICIT, drafts)
    }

    /// Whether the run was started with this metadata.
    fn same_start(&self, core: &Core, run_no: RunNo, metadata: &Metadata<'_>) -> Result<bool> {
        let start = self.start_frame(core, run_no)?;
        Ok(start.is_some_and(|(header, stored)| {
            stored == metadata.payload && header.content == metadata.content
        }))
    }

    /// Acts on the run with these ids, which begins with what is written if that is allowed; if it
    /// is deleted meanwhile, on the next one.
    pub(crate) fn on_run(
        self: &Arc<Self>,
        agent: &str,
        run: &str,
        allow: Allow,
        at: Option<Timestamp>,
        act: impl Fn(Target<'_>) -> Result<Appended>,
    ) -> Result<Appended> {
        let (agent, run) = (AgentId::new(agent)?, RunId::new(run)?);
        let mut last = None;
        loop {
            let found = {
                let mut core = self.open_core()?;
                self.load_id(&mut core, run.as_str())?;
                find(&core, &agent, &run)
            };
            if found.is_none() && !allow.unstarted {
                return Err(Error::RunNotFound { run, agent: Some(agent) });
            }
            match act(found.map_or(Target::New((&agent, &run), at), Target::There)) {
                // It went, or another call began it.
                Err(Error::Evicted { .. }) if found.is_none() || last != found => last = found,
                done => return done,
            }
        }
    }

    /// The run that records go to which need pieces, and those need a run: one that is not there
    /// begins now, once there is space for all of them.
    fn target_of_pieces(&self, target: Target<'_>, rows: &Rows<'_>) -> Result<Option<RunNo>> {
        if matches!(target, Target::There(_)) || !rows.is_long {
            return Ok(None);
        }
        let _one_at_a_time = self.rows.lock();
        self.make_room(rows.need)?;
        let mut core = self.open_core()?;
        let level = Durability::Process;
        Ok(Some(self.place_for(&mut core, target, &mut [], Urgency::Normal, level)?.0))
    }

    /// Appends one record.
    pub(crate) fn append(
        self: &Arc<Self>,
        target: Target<'_>,
        record: &NewRecord<'_>,
        allow: Allow,
    ) -> Result<Appended> {
        self.check_record(record)?;
        if let Target::There(run_no) = target
            && let Some(appended) = self.append_short(run_no, record)?
        {
            return Ok(appended);
        }
        self.append_rows(target, core::slice::from_ref(record), allow)
    }

    /// Appends records so that all or none of them are there, whatever happens.
    pub(crate) fn append_batch(
        self: &Arc<Self>,
        target: Target<'_>,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        self.check_batch(records)?;
        match records {
            [only] => self.append(target, only, allow),
            _ => self.append_rows(target, records, allow),
        }
    }

    /// Appends records that were checked, the long way.
    fn append_rows(
        self: &Arc<Self>,
        target: Target<'_>,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        let limit = match records {
            [_] => self.extent_size.inline_limit() as usize,
            _ => self.limit_for(records, 0)?,
        };
        let of = PiecesOf::Run(allow);
        let mut rows = self.rows_for(records, limit);
        if let Some(new) = self.target_of_pieces(target, &rows)? {
            let appended = self.append_rows(Target::There(new), records, allow);
            return appended.inspect_err(|_| self.give_up([new]));
        }
        let run_no = target.run_no();
        let bodies: Vec<Body<'_>> = records
            .iter()
            .map(|record| self.body(&mut rows, run_no, record, of))
            .collect::<Result<_>>()?;
        let now = self.now();
        let mut drafts: Vec<Draft<'_>> = records
            .iter()
            .zip(&bodies)
            .map(|(record, body)| record_draft(run_no, record, body, record.time().unwrap_or(now)))
            .collect();
        if records.len() > 1 {
            let latest = drafts.iter().map(|draft| draft.header.at).max().unwrap_or(now);
            let mut commit = Draft::empty(FrameKind::Commit, run_no, latest);
            commit.header.extra = u32::try_from(records.len()).unwrap_or(u32::MAX);
            drafts.push(commit);
        }
        let level = level_of(records);
        self.place_records(rows, target, (&mut drafts, records.len()), allow, level)
    }

    /// Places a record, or the first so many frames as records of a batch, and waits for what was
    /// asked for.
    fn place_records(
        self: &Arc<Self>,
        rows: Rows<'_>,
        target: Target<'_>,
        (drafts, count): (&mut [Draft<'_>], usize),
        allow: Allow,
        level: Durability,
    ) -> Result<Appended> {
        let batch = if drafts.len() > 1 { FLAG_BATCH } else { 0 };
        let mut core = self.core.lock();
        let (first, late) = match target {
            Target::There(run_no) => self.next_seq(&mut core, run_no, allow)?,
            Target::New(..) => (Seq(0), 0),
        };
        for (place, draft) in (0..).zip(drafts.iter_mut().take(count)) {
            draft.header.seq = Seq(first.0 + place);
            draft.header.flags |= late | batch;
        }
        let (run_no, end) = self.place_for(&mut core, target, drafts, Urgency::Normal, level)?;
        drop(rows);
        advance(&mut core, run_no, count as u64);
        self.finish(core, end, level)?;
        let lsn = drafts.last().map_or(Lsn(0), |draft| draft.header.lsn);
        Ok(self.appended(Seq(first.0 + count as u64 - 1), lsn, end))
    }

    /// The longest payload that stays in one frame, so that a batch with so many bytes of other
    /// frames fits its segment.
    pub(crate) fn limit_for(&self, records: &[NewRecord<'_>], others: usize) -> Result<usize> {
        let max = self.extent_size.max_batch() as usize;
        let size = |limit: usize| -> usize {
            let len = |record: &NewRecord<'_>| {
                let whole = record.name().len() + record.payload().len();
                let in_pieces = record.name().len() + frame::PIECES_LEN;
                frame_len(if whole <= limit { whole } else { in_pieces })
            };
            records.iter().map(len).sum::<usize>() + frame_len(0) + others
        };
        let inline = self.extent_size.inline_limit() as usize;
        let limits = [inline, 4096, 256];
        let limit = limits.into_iter().find(|&limit| size(limit) <= max);
        let (what, len) = (Sized::Batch, size(256) as u64);
        let limit = limit.ok_or(Error::TooLarge { what, len, max: max as u64 })?;
        Ok(limit.min(inline))
    }

    /// Refuses a record that could never be stored.
    pub(crate) fn check_record(&self, record: &NewRecord<'_>) -> Result<()> {
        record.check_kind()?;
        let max = self.options.max_record_len.min(MAX_RECORD.into());
        check_len(Sized::Record, record.payload().len(), max)
    }

    /// Refuses a batch that could never be stored.
    pub(crate) fn check_batch(&self, records: &[NewRecord<'_>]) -> Result<()> {
        records.iter().try_for_each(|record| self.check_record(record))?;
        match records {
            [] => Err(Error::InvalidArgument { what: "a batch has at least one record" }),
            [_] => Ok(()),
            _ => self.limit_for(records, 0).map(|_| ()),
        }
    }

    /// The next sequence of a run that may be appended to, and the flag of a late record.
    pub(crate) fn next_seq(
        &self,
        core: &mut Core,
        run_no: RunNo,
        allow: Allow,
    ) -> Result<(Seq, u8)> {
        self.load(core, run_no)?;
        let Some(run) = core.hot.get_mut(run_no) else { return Err(Error::Poisoned) };
        run.touched = true;
        let late = run.status.is_ended();
        if late && !allow.after_end {
            return Err(run.has_ended());
        }
        Ok((run.next_seq, if late { FLAG_LATE } else { 0 }))
    }

    /// Ends a run, or finds that it was ended in the same way.
    pub(crate) fn end(self: &Arc<Self>, target: Target<'_>, outcome: &Outcome) -> Result<Appended> {
        check_outcome(outcome)?;
        let body = end_body(outcome);
        let mut core = self.open_core()?;
        let mut last = Seq(0);
        if let Target::There(run_no) = target {
            self.load(&mut core, run_no)?;
            let Some(run) = core.hot.get(run_no) else { return Err(Error::Poisoned) };
            last = Seq(run.next_seq.0.saturating_sub(1));
            if run.status.is_ended() {
                let refused = run.has_ended();
                let same = self.end_frame(&core, run_no)?;
                let same = same.filter(|(header, payload)| {
                    header.content.code() == outcome.status().code() && **payload == *body
                });
                let Some((header, _)) = same else { return Err(refused) };
                let end = core.end_of_log();
                self.finish(core, end, outcome.level())?;
                return Ok(self.appended(last, header.lsn, end));
            }
        }
        let (lsn, end) = self.place_end(&mut core, target, outcome, &body)?;
        self.finish(core, end, outcome.level())?;
        Ok(self.appended(last, lsn, end))
    }

    /// Writes the END of a run in progress.
    fn place_end(
        &self,
        core: &mut Core,
        target: Target<'_>,
        outcome: &Outcome,
        body: &[u8],
    ) -> Result<(Lsn, LogPosition)> {
        let at = outcome.time().unwrap_or_else(|| self.now());
        let mut header = FrameHeader::new(FrameKind::End, target.run_no(), at);
        header.content = crate::types::ContentType::from_code(outcome.status().code());
        let mut draft = [Draft::new(header, &[], body)];
        let level = outcome.level();
        let (run_no, end) = self.place_for(core, target, &mut draft, Urgency::Reserve, level)?;
        core.hot.set_status(run_no, outcome.status());
        if let Some(run) = core.hot.get_mut(run_no) {
            run.touched = true;
        }
        let [draft] = draft;
        Ok((draft.header.lsn, end))
    }

    /// Ends, as interrupted, all runs in progress that nobody touched since the store was opened.
    pub(crate) fn adopt(self: &Arc<Self>) -> Result<Vec<(AgentId, RunId)>> {
        let mut adopted = Vec::new();
        let mut after = None;
        let outcome = Outcome::new(RunStatus::Interrupted).durability(Durability::Process);
        let body = end_body(&outcome);
        loop {
            let page = self.in_progress_page(after, 256)?;
            let Some(last) = page.last().map(RunSummary::number) else { break };
            for run_no in page.iter().map(RunSummary::number) {
                let mut core = self.core.lock();
                match self.load(&mut core, run_no) {
                    // Somebody ended and deleted it meanwhile.
                    Err(Error::Evicted { .. }) => continue,
                    loaded => loaded?,
                }
                let Some(run) = core.hot.get(run_no) else { continue };
                if run.touched || run.status.is_ended() {
                    continue;
                }
                adopted.push((run.agent.clone(), run.run.clone()));
                // Under the same lock: whoever touches the run from here on finds it ended.
                let (_, end) = self.place_end(&mut core, Target::There(run_no), &outcome, &body)?;
                self.finish(core, end, outcome.level())?;
            }
            after = Some(last);
        }
        self.sync_all()?;
        Ok(adopted)
    }

    pub(crate) fn check_open(&self, core: &Core) -> Result<()> {
        if core.closed { Err(Error::Closed) } else { Ok(()) }
    }

    pub(crate) fn appended(self: &Arc<Self>, seq: Seq, lsn: Lsn, end: LogPosition) -> Appended {
        Appended { seq, lsn, ticket: Ticket::new(Arc::clone(self), end) }
    }

    /// Unlocks, waits for what was asked for, and does what is due.
    pub(crate) fn finish(
        &self,
        core: parking_lot::MutexGuard<'_, Core>,
        end: LogPosition,
        level: Durability,
    ) -> Result<()> {
        let (waiting, runs) = (core.unapplied.len(), core.hot.len());
        if !core.has_next && core.tail.offset > self.extent_size.bytes_u32() / 2 {
            self.upkeep.want(crate::engine::background::Wanted::RESERVE);
        }
        drop(core);
        if level == Durability::Disk {
            self.commit.sync_through(self, end)?;
        }
        self.after_change();
        self.keep_up(waiting, runs);
        Ok(())
    }
}

/// The strictest level that one of the records asks for.
pub(crate) fn level_of(records: &[NewRecord<'_>]) -> Durability {
    records.iter().map(NewRecord::level).max().unwrap_or(Durability::Process)
}

pub(crate) fn find(core: &Core, agent: &AgentId, run: &RunId) -> Option<RunNo> {
    let (numbers, _) = core.hot.by_id(run.as_str());
    numbers.iter().copied().find(|&no| core.hot.get(no).is_some_and(|run| run.agent == *agent))
}

pub(crate) fn advance(core: &mut Core, run_no: RunNo, records: u64) {
    if let Some(run) = core.hot.get_mut(run_no) {
        run.next_seq = Seq(run.next_seq.0 + records);
    }
}

fn check_len(what: Sized, len: usize, max: u64) -> Result<()> {
    let len = len as u64;
    if len > max { Err(Error::TooLarge { what, len, max }) } else { Ok(()) }
}

/// Refuses an outcome that could never be stored.
pub(crate) fn check_outcome(outcome: &Outcome) -> Result<()> {
    if !outcome.status().is_ended() {
        return Err(Error::InvalidArgument { what: "an outcome is not `in_progress`" });
    }
    check_len(Sized::Outcome, outcome.payload().len(), MAX_OUTCOME.into())
}

/// The payload of an END frame.
fn end_body(outcome: &Outcome) -> Vec<u8> {
    let mut body = vec![outcome.content_type().code()];
    body.extend_from_slice(outcome.payload());
    body
}
