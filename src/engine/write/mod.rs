//! The log of an open store: appending to it, and making it durable.
//!
//! An append is encoded outside of the lock, gets its place under it ([`place`]), and waits for a
//! sync outside of it again ([`group_commit`]). When a segment is full, the log continues in the
//! next one ([`roll`]), which was set aside before ([`next_segment`]).

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

use core::panic::AssertUnwindSafe;
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::read::Reader;
use crate::engine::setup::Setup;
use crate::engine::setup::due::{Due, Wanted};
use crate::engine::setup::locks::{Held, Rank, Ranked};
use crate::engine::setup::observer::Activity;
use crate::engine::space::Space;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::state::tail::Zeros;
use crate::engine::storage::disk::{Disk, OnPoison};
use crate::engine::write::append_queue::AppendQueue;
use crate::engine::write::group_commit::{CommitQueue, Told};
use crate::engine::write::ticket::{Pending, Ticket};
use crate::error::{Error, Result};
use crate::format::ExtentSize;
use crate::types::{Durability, LogPosition, SegmentId};

/// The log, and everything that changes it.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) setup: Arc<Setup>,
    pub(crate) due: Arc<Due>,
    pub(crate) disk: Disk,
    pub(crate) extent_size: ExtentSize,
    pub(crate) space: Arc<Space>,
    pub(crate) state: Arc<Ranked<LogState>>,
    pub(crate) reader: Reader,
    /// Held while telling the manifest about sealed segments.
    noting: Ranked<()>,
    /// Held while writing a large record in chunks.
    rows: Ranked<()>,
    /// Threads that wait for the state to append to it.
    queue: AppendQueue,
    /// Segments that are set aside for when the tail's segment is full, in the order of their ids.
    /// Locked while another one is being prepared.
    pub(crate) reserved: Ranked<VecDeque<Arc<Segment>>>,
    pub(crate) commit: CommitQueue,
    /// The zeros ahead of the tail.
    zeros: Arc<Zeros>,
    /// Whether a sealed segment waits for the sync that covers it.
    sealing: AtomicBool,
    /// Whether the index is so far behind that calls that may wait must help.
    late: AtomicBool,
    /// Whether the index is so far behind that all calls must help.
    overdue: AtomicBool,
}

impl OnPoison for Log {
    fn poisoned(&self) {
        self.ask_to_wake(self.commit.fail());
    }
}

impl Log {
    pub(crate) fn new(
        setup: Arc<Setup>,
        due: Arc<Due>,
        space: Arc<Space>,
        state: LogState,
    ) -> Self {
        let (disk, zeros) = (space.disk.clone(), Arc::clone(&state.tail.zeros));
        let state = Arc::new(Ranked::of(&disk, Rank::State, state));
        Self {
            extent_size: setup.extent_size,
            reader: Reader { setup: Arc::clone(&setup), state: Arc::clone(&state) },
            setup,
            due,
            space,
            state,
            noting: Ranked::of(&disk, Rank::Noting, ()),
            rows: Ranked::of(&disk, Rank::Rows, ()),
            queue: AppendQueue::default(),
            reserved: Ranked::of(&disk, Rank::Reserved, VecDeque::new()),
            commit: CommitQueue::default(),
            zeros,
            sealing: AtomicBool::new(false),
            late: AtomicBool::new(false),
            overdue: AtomicBool::new(false),
            disk,
        }
    }

    /// Reads the directories of all sealed segments.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a segment is quarantined.
    pub(crate) fn check_directories(&self) -> Result<()> {
        let sealed: Vec<_> = {
            let state = self.state.lock();
            state.catalog.segments().iter().chain(&state.unapplied).cloned().collect()
        };
        sealed.iter().try_for_each(|segment| segment.directory().map(drop))
    }

    /// The segments that are known to be quarantined.
    pub(crate) fn quarantined(&self) -> Vec<SegmentId> {
        let state = self.state.lock();
        let sealed = state.catalog.segments().iter().chain(&state.unapplied);
        sealed.filter(|one| one.quarantine().is_some()).map(|one| one.id()).collect()
    }

    /// Writes zeros ahead of the tail. It takes no lock of the state, so no append waits for it.
    pub(crate) fn write_zeros(&self) -> Result<()> {
        let (written, waiters) = (self.commit.written(), self.commit.waiters());
        self.zeros.step(written, waiters, self.setup.options.environment.clock.monotonic())
    }

    /// Returns once everything that was written before the call is durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_through(self.commit.written())
    }

    /// Returns once everything in front of `end` is durable.
    pub(crate) fn sync_through(&self, end: LogPosition) -> Result<()> {
        self.wait_for_sync(end, true)
    }

    /// Like [`Log::sync_all`], for a thread that wakes the tasks itself.
    pub(crate) fn sync_in_step(&self) -> Result<()> {
        self.wait_for_sync(self.commit.written(), false)
    }

    fn wait_for_sync(&self, end: LogPosition, asks_to_wake: bool) -> Result<()> {
        while self.commit.durable() < end {
            let led = self.disk.check().and_then(|()| match self.commit.join(end) {
                Told::Lead => self.lead(asks_to_wake),
                Told::Look => Ok(()),
            });
            if self.commit.durable() < end {
                self.disk.unless_closed(led)?;
            }
            // Otherwise closing the store has made it durable meanwhile.
        }
        Ok(())
    }

    /// Syncs for all callers that wait.
    fn lead(&self, asks_to_wake: bool) -> Result<()> {
        let covered = self.commit.written();
        let sync = || self.setup.watch(Activity::Sync, || self.disk.sync());
        let result = catch_unwind(AssertUnwindSafe(sync)).unwrap_or_else(|panic| {
            self.disk.poison(&Error::Panicked);
            // Otherwise the waiting callers would wait for a leader that does not exist.
            self.ask_to_wake(self.commit.settle(None, true));
            resume_unwind(panic)
        });
        let any_ready = self.commit.settle(result.is_ok().then_some(covered), true);
        self.ask_to_wake(any_ready && asks_to_wake);
        if result.is_ok() {
            self.note_synced();
        }
        result
    }

    /// Asks a background thread to wake the tasks that are ready. The caller may hold locks.
    pub(crate) fn ask_to_wake(&self, any_ready: bool) {
        if any_ready {
            self.due.want_wake();
        }
    }

    /// The answer of a call at this level. A refusal that rests on other writes is returned once
    /// these are durable, so that no power loss makes it untrue.
    pub(crate) fn told<T>(&self, result: Result<T>, level: Durability) -> Result<T> {
        if level == Durability::Disk && result.as_ref().is_err_and(Self::rests_on_writes) {
            self.sync_all()?;
        }
        self.catch_up();
        self.disk.unless_closed(result)
    }

    /// The answer of a call whose caller waits for the disk itself.
    pub(crate) fn told_later<T>(self: &Arc<Self>, result: Result<T>) -> Pending<T> {
        let ticket = Ticket::new(Arc::clone(self), self.commit.written());
        if self.overdue.load(Ordering::Relaxed) && self.overdue.swap(false, Ordering::Relaxed) {
            self.due.catch_up();
        }
        Pending::new(self.disk.unless_closed(result), ticket)
    }

    /// Whether a power loss could make a refusal untrue.
    pub(crate) fn rests_on_writes(error: &Error) -> bool {
        matches!(
            error,
            Error::Ambiguous { .. }
                | Error::Conflict { .. }
                | Error::Evicted { .. }
                | Error::RunEnded { .. }
                | Error::RunExists { .. }
                | Error::RunHeld { .. }
                | Error::RunInProgress { .. }
                | Error::RunNotFound { .. }
        )
    }

    /// Helps with a late checkpoint, so that memory stays bounded. Waits for the disk.
    #[inline]
    pub(crate) fn catch_up(&self) {
        if self.late.load(Ordering::Relaxed) && self.late.swap(false, Ordering::Relaxed) {
            self.due.catch_up();
        }
    }

    /// Unlocks the state, waits for the requested level, and does the due work.
    #[inline]
    pub(crate) fn finish(
        &self,
        state: Held<'_, LogState>,
        end: LogPosition,
        level: Durability,
    ) -> Result<()> {
        if state.is_late() {
            self.late.store(true, Ordering::Relaxed);
            if state.is_overdue() {
                self.overdue.store(true, Ordering::Relaxed);
            }
        }
        if !state.has_next && state.tail.offset > self.extent_size.bytes_u32() / 2 {
            self.due.want(Wanted::RESERVE);
        }
        drop(state);
        if level == Durability::Disk {
            self.commit.note_waiter();
            self.sync_through(end)?;
        }
        self.due.after_change();
        Ok(())
    }
}
