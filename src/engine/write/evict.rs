//! Deleting runs, and holding them against it. All of it may use the space that is kept
//! back, so that a full disk can be cleaned up.

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::engine::setup::due::Wanted;
use crate::engine::state::log_state::{LogState, Urgency};
use crate::engine::write::Log;
use crate::engine::write::pending_frame::Draft;
use crate::error::{Error, Result};
use crate::format::frames::eviction::{Eviction, EvictionReceipt};
use crate::format::{FrameHeader, FrameKind};
use crate::gc::Rule;
use crate::types::{Durability, LogPosition, RunNo, RunRef};

/// The longest reason of a hold.
const MAX_REASON: usize = 4 << 10;

impl Log {
    /// Places an EVICT, and lets go of the runs.
    pub(crate) fn place_evictions(
        &self,
        state: &mut LogState,
        items: &[Eviction],
    ) -> Result<LogPosition> {
        let mut body = Vec::new();
        let mut draft = Draft::evict(items, self.setup.now(), &mut body);
        let end = self.place_one(state, &mut draft, Urgency::Reserve, Durability::Disk)?;
        for item in items {
            state.hot.remove(item.run_no);
        }
        Arc::make_mut(&mut state.deleted).extend(items.iter().map(|item| item.run_no));
        Ok(end)
    }

    /// Deletes an ended run; answers its payload bytes.
    pub(crate) fn delete(self: &Arc<Self>, run: RunRef<'_>, rule: Rule) -> Result<u64> {
        let state = self.reader.open()?;
        let run_no = self.reader.resolve(&state, run)?;
        self.delete_resolved(state, run_no, rule)
    }

    /// The same for a run that was found while `state` was locked.
    pub(crate) fn delete_resolved(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, LogState>,
        run_no: RunNo,
        rule: Rule,
    ) -> Result<u64> {
        self.reader.load(&mut state, run_no)?;
        let row = self.reader.row(&state, run_no)?;
        if !row.status.is_ended() {
            return Err(Error::RunInProgress { agent: row.agent, run: row.run });
        }
        if row.is_held() {
            return Err(Error::RunHeld { agent: row.agent, run: row.run });
        }
        let segments = self.segments_of(&state, &[run_no])?;
        let (agent, run, bytes) = (row.agent.clone(), row.run.clone(), row.stored);
        let receipt =
            EvictionReceipt { agent, run, at: self.setup.now(), rule: rule.code(), bytes };
        let end =
            self.place_evictions(&mut state, &[Eviction { run_no, receipt: Some(receipt) }])?;
        state.suspects.extend(segments);
        self.due.want(Wanted::COMPACT);
        self.finish(state, end, Durability::Disk)?;
        Ok(row.bytes)
    }

    /// Holds a run, so that no policy and no call evicts it; or releases it. Answers whether that
    /// changed anything.
    pub(crate) fn hold(self: &Arc<Self>, run: RunRef<'_>, reason: Option<&str>) -> Result<bool> {
        let body = reason.unwrap_or_default().as_bytes();
        if body.len() > MAX_REASON {
            let what = "the reason of a hold is at most 4,096 bytes long";
            return Err(Error::InvalidArgument { what });
        }
        let mut state = self.reader.open()?;
        let run_no = self.reader.resolve(&state, run)?;
        self.reader.load(&mut state, run_no)?;
        let row = self.reader.row(&state, run_no)?;
        let same = match reason {
            None => !row.is_held(),
            Some(_) => {
                row.is_held()
                    && self
                        .reader
                        .frame_at(&state, row.hold.map(|hold| hold.at))?
                        .is_some_and(|(_, reason)| *reason == *body)
            }
        };
        if same {
            let end = state.end_of_log();
            self.finish(state, end, Durability::Disk)?;
            return Ok(false);
        }
        let mut header = FrameHeader::new(FrameKind::Hold, run_no, self.setup.now());
        header.extra = u32::from(reason.is_some());
        let mut draft = Draft::new(header, &[], body);
        let end = self.place_one(&mut state, &mut draft, Urgency::Reserve, Durability::Disk)?;
        self.finish(state, end, Durability::Disk)?;
        Ok(true)
    }
}
