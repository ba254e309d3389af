//! Rolling: the directory of the full segment is written as its SEAL frame, and the manifest learns
//! that the segment is sealed once that frame is durable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine::setup::due::Wanted;
use crate::engine::setup::observer::Activity;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::write::Log;
use crate::engine::write::pending_frame::PendingFrame;
use crate::error::{Damage, Error, Result};
use crate::format::map::manifest::{Change, SealedAt};
use crate::format::segments::segment::{LAST_SEGMENT, SEGMENT_HEADER_LEN};
use crate::format::{FrameHeader, FrameKind};
use crate::types::{Lsn, RunNo, Seq};

/// The last ids of segments, which are kept for recoveries and compactions.
const KEPT_SEGMENTS: u32 = 1 << 16;

impl Log {
    /// Seals the tail's segment and continues in the next one.
    pub(crate) fn roll(&self, state: &mut LogState) -> Result<()> {
        state.check_open()?;
        if state.next_segment.0 > LAST_SEGMENT.0 - KEPT_SEGMENTS {
            return Err(Error::Exhausted { what: "segments" });
        }
        if state.is_overdue()
            && let Some(lost) = state.unapplied.iter().find_map(|segment| segment.quarantine())
        {
            // The checkpoint that would make room in memory stops there.
            return Err(Error::Corrupt(lost.clone()));
        }
        // The next segment must follow the last one; otherwise its id would be a gap.
        self.setup.watch(Activity::Roll, || self.go_on_in_next(state))
    }

    fn go_on_in_next(&self, state: &mut LogState) -> Result<()> {
        let next = self.next_segment(state)?;
        if let Err(error) = self.seal_tail(state) {
            self.reserved.lock().push_front(next);
            state.has_next = true;
            return Err(error);
        }
        // Segments that were set aside before the store was opened are allocated as needed.
        let whole = self.extent_size.bytes_u32();
        let allocated = if next.is(Mark::Allocated) { whole } else { SEGMENT_HEADER_LEN };
        state.begin(next, allocated, self.setup.options.tail_writer);
        self.commit.wrote(state.end_of_log());
        self.due.want(Wanted::RESERVE);
        if state.has_free() {
            self.due.want(Wanted::RECLAIM);
        }
        Ok(())
    }

    /// Writes the directory of the tail's segment. Afterwards the segment counts as
    /// sealed, except that the manifest does not know it yet.
    pub(crate) fn seal_tail(&self, state: &mut LogState) -> Result<()> {
        let segment = Arc::clone(&state.tail.segment);
        debug_assert!(state.unapplied.back().is_none_or(|last| last.id() < segment.id()));
        debug_assert!(state.catalog.through() < Some(segment.id()));
        let at = self.setup.watch(Activity::Seal, || self.write_seal(state))?;
        self.note_seal(state, segment, at);
        Ok(())
    }

    /// Notes that the tail's segment has its SEAL frame. The manifest does not list it yet.
    pub(crate) fn note_seal(&self, state: &mut LogState, segment: Arc<Segment>, at: SealedAt) {
        segment.seal(at);
        state.take_sealed(segment);
        self.sealing.store(true, Ordering::Release);
    }

    /// Writes the directory of the tail as the SEAL frame of its segment. A full disk is noticed
    /// before anything is written: closing the store released the space that was allocated for it.
    pub(crate) fn write_seal(&self, state: &mut LogState) -> Result<SealedAt> {
        // Before the SEAL frame, onto which no zeros may be written.
        state.tail.stop_storing();
        let segment = &state.tail.segment;
        let seal = state.tail.offset;
        let directory = state.tail.builder.encode(&segment.directory_key(seal), state.next_run_no);
        let now = self.setup.now();
        let mut pending_frame =
            PendingFrame::new(FrameHeader::new(FrameKind::Seal, RunNo(0), now), &[], &directory);
        pending_frame.header.extra = seal;
        // With it the directory can be built again from the frames, byte by byte.
        pending_frame.header.seq = Seq(state.next_run_no.0);
        pending_frame.header.position = segment.position(seal);
        pending_frame.header.lsn = state.next_lsn;
        let mut bytes = Vec::with_capacity(pending_frame.header.frame_len());
        pending_frame.encode(segment.frames(), &mut bytes);
        let (at, end) = (segment.file_offset() + u64::from(seal), seal as usize + bytes.len());
        let (found, max) = (end as u64, self.extent_size.bytes());
        if found > max {
            // The bytes behind the extent belong to another segment.
            return Err(segment.damaged_directory(Damage::OutOfRange { found, max }));
        }
        if end > state.tail.allocated as usize {
            self.disk.allocate(at, bytes.len() as u64)?;
        }
        self.disk.write(at, &bytes)?;
        state.next_lsn = Lsn(state.next_lsn.0.saturating_add(1));
        Ok(SealedAt::of(&state.tail.builder, seal, &pending_frame.header, state.next_run_no))
    }

    /// Tells the manifest about segments whose seal is now durable.
    pub(crate) fn note_synced(&self) {
        if self.sealing.swap(false, Ordering::AcqRel) {
            // A failure does not undo the sync, and the next sync tries again.
            let _ = self.setup.watch_failure(Activity::Seal, || self.note_seals());
        }
    }

    /// See [`Log::note_synced`].
    pub(crate) fn note_seals(&self) -> Result<()> {
        // One call must not overtake another: the manifest must learn of older segments first,
        // since recovery takes the segments that it has as sealed for older than all others.
        let _one_at_a_time = self.noting.lock();
        let (durable, size) = (self.commit.durable(), self.extent_size.bytes_u32());
        let unknown = |segment: &&Arc<Segment>| !segment.is(Mark::Durable);
        let waiting: Vec<Arc<Segment>> =
            self.state.lock().unapplied.iter().filter(unknown).cloned().collect();
        let is_covered = |segment: &&Arc<Segment>| segment.position(size) <= durable;
        let covered: Vec<_> = waiting.iter().take_while(is_covered).collect();
        let changes: Vec<Change> = covered.iter().filter_map(|segment| segment.sealing()).collect();
        let noted =
            if changes.is_empty() { Ok(()) } else { self.space.allocator.lock().commit(&changes) };
        if waiting.len() > covered.len() || noted.is_err() {
            // The next sync tries again.
            self.sealing.store(true, Ordering::Release);
        }
        noted?;
        if !covered.is_empty() {
            for segment in covered {
                segment.note(Mark::Durable);
            }
            self.due.want(Wanted::CHECKPOINT);
        }
        Ok(())
    }
}
