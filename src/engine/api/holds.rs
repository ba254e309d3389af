//! Holds: runs that no policy evicts and nobody deletes, until they are released.

use std::sync::Arc;

use crate::engine::api::run_log::RunLog;
use crate::engine::state::log_state::{Core, Urgency};
use crate::engine::write::Engine;
use crate::engine::write::pending_frame::Draft;
use crate::error::{Error, Result};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{AgentId, Durability, LogPosition, RunId, RunRef, Timestamp};

/// The longest reason of a hold.
const MAX_REASON: usize = 4 << 10;

/// A run that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldRun {
    /// The agent.
    pub agent: AgentId,
    /// The run.
    pub run: RunId,
    /// Since when.
    pub since: Timestamp,
    /// Why, as the caller said.
    pub reason: String,
}

impl RunLog {
    /// Holds a run: no policy evicts it and nobody deletes it until it is released. Answers
    /// whether that is new; holding it for another reason replaces the reason.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::DiskFull`];
    /// [`Error::InvalidArgument`] for a reason of more than 4,096 bytes.
    pub fn hold<'r>(&self, run: impl Into<RunRef<'r>>, reason: &str) -> Result<bool> {
        let held = self.engine().hold(run.into(), Some(reason));
        self.engine().told(held, Durability::Disk)
    }

    /// Releases a run. Answers whether it was held.
    ///
    /// # Durability
    /// Disk.
    ///
    /// # Errors
    /// [`Error::RunNotFound`], [`Error::Ambiguous`], [`Error::DiskFull`].
    pub fn release<'r>(&self, run: impl Into<RunRef<'r>>) -> Result<bool> {
        let released = self.engine().hold(run.into(), None);
        self.engine().told(released, Durability::Disk)
    }

    /// All runs that are held, by agent and run. Looks at every run.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Corrupt`].
    pub fn held_runs(&self) -> Result<Vec<HeldRun>> {
        self.engine().held_runs()
    }
}

impl Engine {
    /// Holds a run, so that no policy and nobody evicts it; or releases it. Answers whether that
    /// changed anything.
    pub(crate) fn hold(self: &Arc<Self>, run: RunRef<'_>, reason: Option<&str>) -> Result<bool> {
        let body = reason.unwrap_or_default().as_bytes();
        if body.len() > MAX_REASON {
            let what = "the reason of a hold is at most 4,096 bytes long";
            return Err(Error::InvalidArgument { what });
        }
        let mut core = self.open_core()?;
        let run_no = self.resolve(&core, run)?;
        self.load(&mut core, run_no)?;
        let row = self.row(&core, run_no)?;
        let same = match reason {
            None => !row.is_held(),
            Some(_) => {
                row.is_held() && self.hold_reason(&core, row.hold.map(|hold| hold.at))?.1 == body
            }
        };
        if same {
            let end = core.end_of_log();
            self.finish(core, end, Durability::Disk)?;
            return Ok(false);
        }
        let mut header = FrameHeader::new(FrameKind::Hold, run_no, self.now());
        header.extra = u32::from(reason.is_some());
        let mut draft = Draft::new(header, &[], body);
        let end = core.place_one(self, &mut draft, Urgency::Reserve, Durability::Disk)?;
        self.finish(core, end, Durability::Disk)?;
        Ok(true)
    }

    /// The time and the bytes of the reason of a hold.
    fn hold_reason(&self, core: &Core, at: Option<LogPosition>) -> Result<(Timestamp, Vec<u8>)> {
        match self.frame_at(core, at)? {
            Some((header, payload)) => Ok((header.at, payload.to_vec())),
            None => Ok((Timestamp(0), Vec::new())),
        }
    }

    /// All runs that are held.
    pub(crate) fn held_runs(&self) -> Result<Vec<HeldRun>> {
        let (listed, _) = self.list_all()?;
        let mut held = Vec::new();
        for run in listed.runs.iter().filter(|run| run.held) {
            let id = listed.run_id(run)?;
            let core = self.core.lock();
            let Ok(run_no) = self.resolve(&core, RunRef::from((run.agent.as_str(), id.as_str())))
            else {
                continue;
            };
            let row = self.row(&core, run_no)?;
            if row.is_held() {
                let (since, reason) = self.hold_reason(&core, row.hold.map(|hold| hold.at))?;
                let reason = String::from_utf8_lossy(&reason).into_owned();
                held.push(HeldRun { agent: run.agent.clone(), run: id, since, reason });
            }
        }
        // Memory and catalog, and the two kinds of catalog, have orders of their own.
        held.sort_by(|one, two| (&one.agent, &one.run).cmp(&(&two.agent, &two.run)));
        Ok(held)
    }
}
