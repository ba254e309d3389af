//! Deleting and holding runs. These frames may use the reserve, to clean up a full disk.

use std::sync::Arc;

use crate::engine::read::resolve::frame_in;
use crate::engine::setup::due::Wanted;
use crate::engine::setup::locks::Held;
use crate::engine::state::log_state::{LogState, Urgency};
use crate::engine::state::stored_run::Name;
use crate::engine::write::Log;
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::{Error, Result};
use crate::format::frames::eviction::{Eviction, EvictionReceipt};
use crate::format::{FrameHeader, FrameKind};
use crate::gc::Rule;
use crate::types::{AgentId, Durability, LogPosition, RunNo, RunRef, Timestamp};

/// The longest reason of a hold.
const MAX_REASON: usize = 4 << 10;

impl Log {
    /// Places an EVICT, and removes the runs from memory.
    pub(crate) fn place_evictions(
        &self,
        state: &mut LogState,
        items: &[Eviction],
        now: Timestamp,
    ) -> Result<LogPosition> {
        let mut body = Vec::new();
        let mut pending_frame = PendingFrame::evict(items, now, &mut body);
        let end = self.place_one(state, &mut pending_frame, Urgency::Reserve, Durability::Disk)?;
        for item in items {
            let bytes = match &item.receipt {
                Some(receipt) => receipt.bytes,
                None => state.row_in_memory(item.run_no)?.map_or(0, |row| row.stored),
            };
            state.dead = state.dead.saturating_add(bytes);
            state.active.remove(item.run_no);
        }
        Arc::make_mut(&mut state.deleted).extend(items.iter().map(|item| item.run_no));
        Ok(end)
    }

    /// Deletes an ended run; returns its agent and its payload bytes.
    pub(crate) fn delete(
        &self,
        run: RunRef<'_>,
        rule: Rule,
        level: Durability,
    ) -> Result<(AgentId, u64)> {
        let (mut state, run_no, stored) = loop {
            let (run_no, state) = self.lock_named(run)?;
            let agent = state.active.get(run_no).map(|run| run.agent.clone());
            drop(state);
            let name = Name::Run(run.run(), agent.as_ref().map(AgentId::as_str));
            let (state, stored) = self.reader.asked(|moment| moment.stored_in(name, run_no))?;
            if state.active.get(run_no).is_some() {
                break (state, run_no, stored);
            }
        };
        let Some(row) = state.row_in_memory(run_no)? else { return Err(Error::Poisoned) };
        if !row.status.is_ended() {
            return Err(Error::RunInProgress { agent: row.agent, run: row.run });
        }
        if row.is_held() {
            return Err(Error::RunHeld { agent: row.agent, run: row.run });
        }
        let segments: Vec<_> = state.fresh_segments(run_no).chain(stored).collect();
        let (agent, run, bytes) = (row.agent.clone(), row.run.clone(), row.stored);
        let now = self.setup.now();
        let receipt = Some(EvictionReceipt { agent, run, at: now, rule: rule.code(), bytes });
        let end = self.place_evictions(&mut state, &[Eviction { run_no, receipt }], now)?;
        state.suspects.extend(segments);
        self.due.want(Wanted::COMPACT);
        self.finish(state, end, level)?;
        Ok((row.agent, row.bytes))
    }

    /// Holds a run, so that no policy and no call deletes it; or releases it, if there is no
    /// reason. Returns whether that changed anything.
    pub(crate) fn hold(
        &self,
        run: RunRef<'_>,
        reason: Option<&str>,
        level: Durability,
    ) -> Result<bool> {
        let body = reason.unwrap_or_default().as_bytes();
        if body.len() > MAX_REASON {
            let what = "the reason of a hold must be at most 4,096 bytes long";
            return Err(Error::InvalidArgument { what });
        }
        let (run_no, mut state) = self.lock_held(run, reason.map(str::as_bytes))?;
        let Some(run_no) = run_no else {
            let end = state.end_of_log();
            self.finish(state, end, level)?;
            return Ok(false);
        };
        let mut header = FrameHeader::new(FrameKind::Hold, run_no, self.setup.now());
        header.extra = u32::from(reason.is_some());
        let mut pending_frame = PendingFrame::new(header, &[], body);
        let end =
            self.place_one(&mut state, &mut pending_frame, Urgency::Reserve, Durability::Disk)?;
        self.finish(state, end, level)?;
        Ok(true)
    }

    /// The run, and the state with it in memory. No run if nothing has to change: it is already
    /// held for this reason, or, without a reason, is not held.
    fn lock_held(
        &self,
        run: RunRef<'_>,
        reason: Option<&[u8]>,
    ) -> Result<(Option<RunNo>, Held<'_, LogState>)> {
        loop {
            let (run_no, state) = self.lock_named(run)?;
            let hold_of = |state: &LogState, run_no| {
                let hold = state.row_in_memory(run_no)?.and_then(|row| row.hold);
                Ok::<_, Error>(hold.filter(|hold| hold.held))
            };
            let (hold, reason) = match (hold_of(&state, run_no)?, reason) {
                (Some(hold), Some(reason)) => (hold, reason),
                (None, None) => return Ok((None, state)),
                _ => return Ok((Some(run_no), state)),
            };
            let frame = state.frame_at(Some(hold.at))?;
            // The frame is read without the lock.
            drop(state);
            let known = frame.map(|(segment, offset)| frame_in(&segment, offset)).transpose()?;
            let is_same = known.is_some_and(|(_, known)| *known == *reason);
            let (again, state) = self.lock_named(run)?;
            if again == run_no && hold_of(&state, again)?.is_some_and(|now| now.lsn == hold.lsn) {
                return Ok(((!is_same).then_some(run_no), state));
            }
        }
    }
}
