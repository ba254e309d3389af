//! The log of an open store: appending to it, and making it durable.
//!
//! An append is encoded outside of the lock, gets its place under it ([`place`]), and waits for a
//! sync outside of it again ([`group_commit`]). When a segment is full the log goes on in the next
//! one ([`roll`]), which was set aside before ([`next_segment`]).

pub(crate) mod append;
pub(crate) mod append_queue;
pub(crate) mod batch;
pub(crate) mod chunks;
pub(crate) mod evict;
pub(crate) mod group_commit;
pub(crate) mod lifecycle;
pub(crate) mod next_segment;
pub(crate) mod pending_frame;
pub(crate) mod place;
pub(crate) mod roll;
pub(crate) mod ticket;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::engine::read::Reader;
use crate::engine::setup::Setup;
use crate::engine::setup::due::{Due, Wanted};
use crate::engine::setup::locks::{Held, Rank, Ranked};
use crate::engine::setup::observer::Activity;
use crate::engine::space::Space;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::storage::disk::{Disk, OnPoison};
use crate::engine::write::append_queue::AppendQueue;
use crate::engine::write::group_commit::{CommitQueue, Told};
use crate::error::{Error, Result};
use crate::format::ExtentSize;
use crate::types::{Durability, LogPosition};

/// The log, and all that changes it.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) setup: Arc<Setup>,
    pub(crate) due: Arc<Due>,
    pub(crate) disk: Disk,
    pub(crate) extent_size: ExtentSize,
    pub(crate) space: Arc<Space>,
    pub(crate) state: Arc<Ranked<LogState>>,
    pub(crate) reader: Reader,
    /// Held by the one who tells the manifest of sealed segments.
    noting: Ranked<()>,
    /// Held by the one who writes a large record in chunks.
    rows: Ranked<()>,
    /// Threads that wait for the state to append to it.
    queue: AppendQueue,
    /// Segments that are set aside for when the tail's is full, in the order of their numbers;
    /// locked while another one is in the background.
    pub(crate) reserved: Ranked<VecDeque<Arc<Segment>>>,
    pub(crate) commit: CommitQueue,
    /// A sealed segment waits for the sync that covers it.
    sealing: AtomicBool,
}

impl OnPoison for Log {
    fn poisoned(&self) {
        self.commit.fail();
    }
}

impl Log {
    pub(crate) fn new(
        setup: Arc<Setup>,
        due: Arc<Due>,
        space: Arc<Space>,
        state: LogState,
    ) -> Self {
        let state = Arc::new(Ranked::new(Rank::State, state));
        Self {
            disk: space.disk.clone(),
            extent_size: setup.extent_size,
            reader: Reader { setup: Arc::clone(&setup), state: Arc::clone(&state) },
            setup,
            due,
            space,
            state,
            noting: Ranked::new(Rank::Noting, ()),
            rows: Ranked::new(Rank::Rows, ()),
            queue: AppendQueue::default(),
            reserved: Ranked::new(Rank::Reserved, VecDeque::new()),
            commit: CommitQueue::default(),
            sealing: AtomicBool::new(false),
        }
    }

    /// Returns once everything that was written so far is durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_through(self.commit.written())
    }

    /// Returns once everything in front of `end` is durable.
    pub(crate) fn sync_through(&self, end: LogPosition) -> Result<()> {
        while self.commit.durable() < end {
            let led = self.disk.check().and_then(|()| match self.commit.join(end) {
                Told::Lead => self.lead(),
                Told::Look => Ok(()),
            });
            if self.commit.durable() < end {
                self.disk.unless_closed(led)?;
            }
            // Else closing the store has made it durable in between.
        }
        Ok(())
    }

    /// Syncs for everybody who waits.
    fn lead(&self) -> Result<()> {
        let covered = self.commit.written();
        let result = {
            let _watch = self.setup.watch(Activity::Sync);
            self.disk.sync()
        };
        self.commit.settle(result.is_ok().then_some(covered), true);
        if result.is_ok() {
            self.note_synced();
        }
        result
    }

    /// What a call at this level tells: a refusal that rests on what others wrote is told once that
    /// is durable, so that no power loss makes it untrue.
    pub(crate) fn told<T>(&self, result: Result<T>, level: Durability) -> Result<T> {
        let rests_on_writes = |error: &Error| {
            matches!(
                error,
                Error::Conflict { .. }
                    | Error::Evicted { .. }
                    | Error::RunEnded { .. }
                    | Error::RunExists { .. }
                    | Error::RunHeld { .. }
                    | Error::RunInProgress { .. }
                    | Error::RunNotFound { .. }
            )
        };
        if level == Durability::Disk && result.as_ref().is_err_and(rests_on_writes) {
            self.sync_all()?;
        }
        self.disk.unless_closed(result)
    }

    /// Unlocks, waits for what was asked for, and does what is due.
    #[inline]
    pub(crate) fn finish(
        &self,
        state: Held<'_, LogState>,
        end: LogPosition,
        level: Durability,
    ) -> Result<()> {
        let is_late = state.is_late();
        if !state.has_next && state.tail.offset > self.extent_size.bytes_u32() / 2 {
            self.due.want(Wanted::RESERVE);
        }
        drop(state);
        if level == Durability::Disk {
            self.sync_through(end)?;
        }
        self.due.after_change();
        if is_late {
            self.due.catch_up();
        }
        Ok(())
    }
}
