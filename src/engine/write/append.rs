//! Appending records to a run.
//!
//! Checks, checksums and chunks of large records are done outside of the lock. Frames are placed
//! under the lock, and waiting for durability follows after it.
//!
//! The **fast path** stores one record at Process level of a run that the tail's segment knows,
//! onto zeros: most records. It does what [`place`](Log::place) does, in the same order, without
//! the steps that such a record never needs: rolling, allocating, binding, stating a new durable
//! position, writing zeros, and collecting frames in a buffer. If a record needs one of them, the
//! fast path changes nothing and leaves the record to `place`.

use std::sync::Arc;

use crate::engine::setup::locks::Held;
use crate::engine::state::fold::note_record;
use crate::engine::state::log_state::{LogState, Urgency, reserve_len};
use crate::engine::state::tail::MAX_STORED;
use crate::engine::values::new_record::NewRecord;
use crate::engine::values::{Allow, Metadata, Outcome};
use crate::engine::write::Log;
use crate::engine::write::chunks::{Body, ChunksOf, Rows, pending_record};
use crate::engine::write::lifecycle::check_outcome;
use crate::engine::write::pending_frame::{HEAD, PendingFrame};
use crate::engine::write::ticket::{Appended, Ticket};
use crate::error::{Error, Result, Sized};
use crate::format::frames::block::MAX_RECORD;
use crate::format::frames::frame::{
    self, FLAG_BATCH, FLAG_CHUNKS, FLAG_IMPLICIT, FLAG_LATE, FRAME_HEADER_LEN,
};
use crate::format::segments::run_entry::records_cost;
use crate::format::{ExtentSize, FrameHeader, FrameKind};
use crate::types::{AgentId, Durability, LogPosition, Lsn, RunId, RunNo, Seq, Timestamp};

/// The run that a call writes to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target<'a> {
    There(RunNo),
    /// A run that does not exist. It is created, as of this time, with the first frames.
    New((&'a AgentId, &'a RunId), Option<Timestamp>),
}

impl Target<'_> {
    /// The number of the run; 0 for a new one.
    pub(crate) fn run_no(self) -> RunNo {
        match self {
            Self::There(run_no) => run_no,
            Self::New(..) => RunNo(0),
        }
    }
}

impl Log {
    /// Places frames of a run. For a new run, memory must say that there is no run with its ids.
    pub(crate) fn place_for(
        &self,
        state: &mut LogState,
        target: Target<'_>,
        pending: &mut [PendingFrame<'_>],
        urgency: Urgency,
        durability: Durability,
    ) -> Result<(RunNo, LogPosition)> {
        let (ids, at) = match target {
            Target::There(no) => return Ok((no, self.place(state, pending, urgency, durability)?)),
            Target::New(ids, at) => (ids, at),
        };
        state.check_open()?;
        if state.active.find(ids.0, ids.1).is_some() {
            // It did not exist a moment ago.
            return Err(Error::Evicted { run: None });
        }
        // The run is as old as its first frame.
        let at = at.or_else(|| pending.first().map(|pending_frame| pending_frame.header.at));
        let metadata = Metadata { durability, at, ..Metadata::default() };
        self.create_run(state, ids, &metadata, FLAG_IMPLICIT, pending)
    }

    /// Appends a record by ids.
    pub(crate) fn append_to(
        self: &Arc<Self>,
        agent: &str,
        run: &str,
        record: &NewRecord<'_>,
        allow: Allow,
    ) -> Result<Appended> {
        self.check_record(record)?;
        let append = |target: Target<'_>| self.append(target, record, allow);
        self.on_run(agent, run, allow, record.time(), append)
    }

    /// Appends a batch by ids.
    pub(crate) fn append_batch_to(
        self: &Arc<Self>,
        agent: &str,
        run: &str,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        self.check_batch(records)?;
        let first = records.first().and_then(NewRecord::time);
        let append = |target: Target<'_>| self.append_batch(target, records, allow);
        self.on_run(agent, run, allow, first, append)
    }

    /// Ends a run by ids.
    pub(crate) fn end_run(
        self: &Arc<Self>,
        agent: &str,
        run: &str,
        outcome: &Outcome,
        allow: Allow,
    ) -> Result<Appended> {
        check_outcome(outcome)?;
        let end = |target: Target<'_>| self.end(target, outcome);
        self.on_run(agent, run, allow, outcome.time(), end)
    }

    /// Calls `act` with the run that has these ids, or with a new run if that is allowed. If the
    /// run is deleted meanwhile, it tries again with the next one.
    fn on_run(
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
            let found = self.reader.loaded((&agent, &run))?.active.find(&agent, &run);
            if found.is_none() && !allow.unstarted {
                return Err(Error::RunNotFound { run, agent: Some(agent) });
            }
            match act(found.map_or(Target::New((&agent, &run), at), Target::There)) {
                // The run was deleted, or another call created it.
                Err(Error::Evicted { .. }) if found.is_none() || last != found => last = found,
                done => return done,
            }
        }
    }

    /// Creates the run for records that need chunks, since chunks need a run; but only once there
    /// is space for all of them. `None` if the run exists or nothing needs chunks.
    fn target_of_chunks(&self, target: Target<'_>, rows: &Rows<'_>) -> Result<Option<RunNo>> {
        if matches!(target, Target::There(_)) || !rows.is_long {
            return Ok(None);
        }
        let _one_at_a_time = self.rows.lock();
        self.make_room(rows.need)?;
        let mut state = self.lock_for(target)?;
        let level = Durability::Process;
        Ok(Some(self.place_for(&mut state, target, &mut [], Urgency::Normal, level)?.0))
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

    /// Appends records: after any failure all of them exist, or none.
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

    /// Appends checked records as pending frames.
    fn append_rows(
        self: &Arc<Self>,
        target: Target<'_>,
        records: &[NewRecord<'_>],
        allow: Allow,
    ) -> Result<Appended> {
        let now = self.setup.now();
        self.append_rows_at(target, records, allow, now)
    }

    fn append_rows_at(
        self: &Arc<Self>,
        target: Target<'_>,
        records: &[NewRecord<'_>],
        allow: Allow,
        now: Timestamp,
    ) -> Result<Appended> {
        let limit = match records {
            [_] => self.extent_size.inline_limit() as usize,
            _ => self.limit_for(records, 0)?,
        };
        let of = ChunksOf::Run(allow);
        let mut rows = self.rows_for(records, limit, now);
        if let Some(new) = self.target_of_chunks(target, &rows)? {
            let appended = self.append_rows_at(Target::There(new), records, allow, now);
            return appended.inspect_err(|_| self.give_up([new], now));
        }
        let run_no = target.run_no();
        let bodies: Vec<Body<'_>> = records
            .iter()
            .map(|record| self.body(&mut rows, run_no, record, of))
            .collect::<Result<_>>()?;
        let mut pending: Vec<PendingFrame<'_>> = records
            .iter()
            .zip(&bodies)
            .map(|(record, body)| {
                pending_record(run_no, record, body, record.time().unwrap_or(now))
            })
            .collect();
        if records.len() > 1 {
            let latest =
                pending.iter().map(|pending_frame| pending_frame.header.at).max().unwrap_or(now);
            let mut commit = PendingFrame::empty(FrameKind::Commit, run_no, latest);
            commit.header.extra = u32::try_from(records.len()).unwrap_or(u32::MAX);
            pending.push(commit);
        }
        let level = level_of(records);
        self.place_records(rows, target, (&mut pending, records.len()), allow, level)
    }

    /// Places a record, or a batch whose first `count` frames are records, and waits for the level.
    fn place_records(
        self: &Arc<Self>,
        rows: Rows<'_>,
        target: Target<'_>,
        (pending, count): (&mut [PendingFrame<'_>], usize),
        allow: Allow,
        level: Durability,
    ) -> Result<Appended> {
        let batch = if pending.len() > 1 { FLAG_BATCH } else { 0 };
        let mut state = self.lock_for(target)?;
        let (first, late) = match target {
            Target::There(run_no) => next_seq(&mut state, run_no, allow)?,
            Target::New(..) => (Seq(0), 0),
        };
        for (place, pending_frame) in (0..).zip(pending.iter_mut().take(count)) {
            pending_frame.header.seq = Seq(first.0.saturating_add(place));
            pending_frame.header.flags |= late | batch;
        }
        let (run_no, end) = self.place_for(&mut state, target, pending, Urgency::Normal, level)?;
        drop(rows);
        advance(&mut state, run_no, count as u64);
        self.finish(state, end, level)?;
        let lsn = pending.last().map_or(Lsn(0), |pending_frame| pending_frame.header.lsn);
        Ok(self.appended(Seq(first.0.saturating_add(count as u64 - 1)), lsn, end))
    }

    /// The longest payload that stays in one frame, chosen so that the batch, with `others` bytes
    /// of other frames, fits a segment.
    pub(crate) fn limit_for(&self, records: &[NewRecord<'_>], others: usize) -> Result<usize> {
        let max = self.extent_size.max_batch() as usize;
        let size = |limit: usize| -> usize {
            let len = |record: &NewRecord<'_>| {
                let whole = record.record_kind().len() + record.payload().len();
                let in_chunks = record.record_kind().len() + frame::CHUNKS_LEN;
                if whole <= limit {
                    FrameKind::Record.frame_len(0, whole)
                } else {
                    FrameKind::Record.frame_len(FLAG_CHUNKS, in_chunks)
                }
            };
            records.iter().map(len).sum::<usize>() + FrameKind::Commit.frame_len(0, 0) + others
        };
        let inline = self.extent_size.inline_limit() as usize;
        let limits = [inline, 4096, 256];
        let limit = limits.into_iter().find(|&limit| size(limit) <= max);
        let (what, len) = (Sized::Batch, size(256) as u64);
        let limit = limit.ok_or(Error::TooLarge { what, len, max: max as u64 })?;
        Ok(limit.min(inline))
    }

    /// Refuses a record that can never be stored.
    pub(crate) fn check_record(&self, record: &NewRecord<'_>) -> Result<()> {
        record.check_kind()?;
        let max = self.setup.options.max_record_len.min(MAX_RECORD.into());
        check_len(Sized::Record, record.payload().len(), max)
    }

    /// Refuses a batch that can never be stored.
    pub(crate) fn check_batch(&self, records: &[NewRecord<'_>]) -> Result<()> {
        records.iter().try_for_each(|record| self.check_record(record))?;
        match records {
            [] => Err(Error::InvalidArgument { what: "a batch needs at least one record" }),
            [_] => Ok(()),
            _ => self.limit_for(records, 0).map(|_| ()),
        }
    }

    /// Locks the state with everything in memory that a write to this run needs.
    pub(crate) fn lock_for(&self, target: Target<'_>) -> Result<Held<'_, LogState>> {
        match target {
            Target::There(run_no) => self.reader.loaded_number(run_no),
            Target::New(ids, _) => self.reader.loaded(ids),
        }
    }

    pub(crate) fn appended(self: &Arc<Self>, seq: Seq, lsn: Lsn, end: LogPosition) -> Appended {
        Appended { seq, lsn, ticket: Ticket::new(Arc::clone(self), end) }
    }
}

/// The next sequence of a run in memory that may be appended to, and the flag of a late record.
pub(crate) fn next_seq(state: &mut LogState, run_no: RunNo, allow: Allow) -> Result<(Seq, u8)> {
    let Some(run) = state.active.get_mut(run_no) else { return Err(Error::Evicted { run: None }) };
    run.touched = true;
    let late = run.status.is_ended();
    if late && !allow.after_end {
        return Err(run.has_ended());
    }
    Ok((run.next_seq, if late { FLAG_LATE } else { 0 }))
}

/// The highest level that one of the records asks for.
pub(crate) fn level_of(records: &[NewRecord<'_>]) -> Durability {
    records.iter().map(NewRecord::level).max().unwrap_or(Durability::Process)
}

pub(crate) fn advance(state: &mut LogState, run_no: RunNo, records: u64) {
    if let Some(run) = state.active.get_mut(run_no) {
        run.next_seq = Seq(run.next_seq.0.saturating_add(records));
    }
}

pub(crate) fn check_len(what: Sized, len: usize, max: u64) -> Result<()> {
    let len = len as u64;
    if len > max { Err(Error::TooLarge { what, len, max }) } else { Ok(()) }
}

impl Log {
    /// Appends a record by the fast path; `None` if the record needs another way.
    #[inline]
    pub(crate) fn append_short(
        self: &Arc<Self>,
        run_no: RunNo,
        record: &NewRecord<'_>,
    ) -> Result<Option<Appended>> {
        let (name, payload) = (record.record_kind().as_bytes(), record.payload());
        if record.level() != Durability::Process
            || !is_short(self.extent_size, name.len() + payload.len())
        {
            return Ok(None);
        }
        let now = record.time().is_none().then(|| self.setup.now());
        let at = record.time().or(now).unwrap_or_default();
        let mut header = FrameHeader::new(FrameKind::Record, run_no, at);
        header.content = record.content();
        let mut frame = PendingFrame::new(header, name, payload);
        let mut state = self.state.lock_by(|state| self.queue.lock(state, now));
        let Some(end) = self.store_record(&mut state, &mut frame)? else {
            return Ok(None);
        };
        let is_over = self.queue.is_over();
        self.finish(state, end, Durability::Process)?;
        if is_over {
            self.queue.pass_on();
        }
        Ok(Some(self.appended(frame.header.seq, frame.header.lsn, end)))
    }
}

impl Log {
    /// Stores a record after the last frame, if nothing else has to be done first.
    fn store_record(
        &self,
        state: &mut LogState,
        frame: &mut PendingFrame<'_>,
    ) -> Result<Option<LogPosition>> {
        let header = &mut frame.header;
        let Some(run) = state.active.get_mut(header.run_no) else { return Ok(None) };
        if state.closed || run.status.is_ended() || self.commit.durable() > state.stated {
            return Ok(None);
        }
        let len = header.frame_len();
        let directory = state.tail.builder.encoded_len() + records_cost(1);
        let directory = FrameKind::Seal.frame_len(0, directory);
        let kept = directory + reserve_len(self.extent_size) as usize;
        // This room includes what `place` would allocate, and nothing has to be rolled or sealed.
        let has_room = state.tail.offset as usize + len + kept <= state.tail.allocated as usize;
        if !has_room || !state.tail.has_zeros_for(len) {
            return Ok(None);
        }
        let Some(slot) = state.tail.builder.slot(header.run_no) else { return Ok(None) };
        self.disk.check()?;
        header.seq = run.next_seq;
        header.position = state.tail.segment.position(state.tail.offset);
        header.lsn = state.next_lsn;
        let mut head = [0; HEAD];
        let (head, rest) = frame.in_two(state.tail.segment.frames(), &mut head);
        state.tail.put_frame(head, rest)?;
        state.tail.offset += u32::try_from(len).expect("a frame fits its segment");
        state.next_lsn = Lsn(state.next_lsn.0.saturating_add(1));
        note_record(&mut state.tail.builder, slot, &frame.header);
        run.next_seq = Seq(run.next_seq.0.saturating_add(1));
        run.touched = true;
        let end = state.end_of_log();
        self.commit.wrote(end);
        Ok(Some(end))
    }
}

/// Whether a frame with a payload of this length may be stored.
fn is_short(extent_size: ExtentSize, payload: usize) -> bool {
    payload <= (extent_size.inline_limit() as usize).min(MAX_STORED - FRAME_HEADER_LEN)
}
