//! Segments that are set aside, and numbers that are promised, before they are needed.

use std::sync::Arc;

use crate::engine::setup::due::Wanted;
use crate::engine::setup::observer::Activity;
use crate::engine::state::log_state::{LogState, NUMBERS_AHEAD, reserve_len};
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::format::segments::directory::IdHash;
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{FrameKind, SegmentKey};
use crate::types::{ExtentNo, Lsn, RunNo, SegmentId};

impl Log {
    /// The segment in which the log continues: the next of those that are set aside, or else one
    /// that is prepared now, under the lock of the state.
    pub(crate) fn next_segment(&self, state: &mut LogState) -> Result<Arc<Segment>> {
        // A segment that is being prepared must be used first: the order of the log is the order of
        // the ids, and an unused segment in front of a used one would look like a lost one.
        let mut reserved = self.reserved.lock();
        let next = reserved.pop_front();
        state.has_next = !reserved.is_empty();
        drop(reserved);
        if let Some(next) = next {
            return Ok(next);
        }
        let id = state.take_segment_id()?;
        self.reserve(id, state.next_numbers()).inspect_err(|error| {
            // Nothing refers to the id yet.
            state.next_segment = id;
            let tail = state.tail.segment.id();
            let is_dead = state.suspects.iter().any(|suspect| *suspect != tail);
            if error.is_disk_full() && (is_dead || state.has_free()) {
                // What is dead there is the space for the next attempt.
                self.due.want(Wanted::COMPACT);
            }
        })
    }

    /// Prepares an extent as a segment of the log: allocates it, writes its header, and makes both
    /// and the record of the manifest durable (O4).
    pub(crate) fn reserve(&self, id: SegmentId, next: (RunNo, Lsn)) -> Result<Arc<Segment>> {
        let written = self.commit.written();
        let reserved = self.setup.watch(Activity::Reserve, || {
            self.set_aside(&[id], Purpose::Log, next)?.pop().ok_or(Error::Poisoned)
        })?;
        // The sync of the record covers the log too. So the manifest learns of the seals of earlier
        // segments soon, and opening after a crash reads few segments however fast appends are.
        self.ask_to_wake(self.commit.cover(written));
        Ok(reserved)
    }

    /// Sets segments aside: allocates free extents, writes headers and the records of the manifest,
    /// and makes all of it durable (O4). On a full disk a single output may take the compaction
    /// reserve.
    pub(crate) fn set_aside(
        &self,
        ids: &[SegmentId],
        purpose: Purpose,
        next: (RunNo, Lsn),
    ) -> Result<Vec<Arc<Segment>>> {
        let mut allocator = self.space.allocator.lock();
        let extents = match (self.space.prepare_extents(&mut allocator, ids.len()), purpose, ids) {
            (Err(full @ Error::DiskFull { .. }), Purpose::Output, [_]) => {
                allocator.compaction_reserve.take().map(|extent| vec![extent]).ok_or(full)
            }
            (prepared, ..) => prepared,
        }?;
        let new =
            |(id, extent): (&SegmentId, &ExtentNo)| self.new_segment(*extent, (*id, purpose), next);
        let segments: Result<Vec<_>> = ids.iter().zip(&extents).map(new).collect();
        let reserved = segments.and_then(|segments| {
            let changes = segments.iter().map(|segment| segment.reservation());
            allocator.commit_durably(&changes.collect::<Vec<_>>())?;
            for segment in &segments {
                segment.note(Mark::Allocated);
            }
            Ok(segments)
        });
        if reserved.is_err() {
            for extent in extents {
                allocator.let_go(extent);
            }
        }
        reserved
    }

    /// A segment with space and a header, of which the manifest does not know yet.
    pub(crate) fn prepare_segment(
        &self,
        id: SegmentId,
        next: (RunNo, Lsn),
    ) -> Result<Arc<Segment>> {
        let mut allocator = self.space.allocator.lock();
        let extents = self.space.prepare_extents(&mut allocator, 1)?;
        let extent = extents.first().copied().ok_or(Error::Poisoned)?;
        self.new_segment(extent, (id, Purpose::Log), next)
    }

    /// A segment in a prepared extent, with its header written to the file.
    fn new_segment(
        &self,
        extent: ExtentNo,
        (id, purpose): (SegmentId, Purpose),
        next: (RunNo, Lsn),
    ) -> Result<Arc<Segment>> {
        let key = SegmentKey { id, salt: self.setup.options.environment.random()? };
        let ids = IdHash::new(self.setup.uuid);
        let segment = Segment::new(self.disk.clone(), self.extent_size, extent, key, purpose, ids);
        self.write_segment_header(&segment, next)?;
        Ok(Arc::new(segment))
    }

    pub(crate) fn write_segment_header(
        &self,
        segment: &Segment,
        (next_run_no, next_lsn): (RunNo, Lsn),
    ) -> Result<()> {
        let (uuid, key, purpose) = (self.setup.uuid, segment.key(), segment.purpose());
        let extent_size = self.extent_size;
        let header = SegmentHeader { uuid, key, purpose, extent_size, next_run_no, next_lsn };
        self.disk.write(segment.file_offset(), &header.encode())
    }

    /// Sets a segment aside if there is none, so that rolling needs no sync.
    pub(crate) fn reserve_ahead(&self) -> Result<()> {
        self.promise_ahead()?;
        let mut state = self.state.lock();
        if state.closed || state.has_next {
            return Ok(());
        }
        let id = state.take_segment_id()?;
        // Locked before the state is unlocked, so that a roll waits for this segment.
        let mut reserved = self.reserved.lock();
        state.has_next = true;
        let next = state.next_numbers();
        drop(state);
        let set_aside = self.reserve(id, next).map(|segment| reserved.push_back(segment));
        drop(reserved);
        if set_aside.is_err() {
            let mut state = self.state.lock();
            state.has_next = !self.reserved.lock().is_empty();
        }
        set_aside?;
        self.note_synced();
        Ok(())
    }

    /// Returns the space that was allocated for further appends, but for the reserve: the disk may
    /// be full when the store is opened again, and runs must be deleted then. The store must be
    /// closed.
    pub(crate) fn trim_unused(&self) -> Result<()> {
        let state = self.state.lock();
        let directory = FrameKind::Seal.frame_len(0, state.tail.builder.encoded_len());
        let kept = u32::try_from(directory).unwrap_or(u32::MAX);
        let kept = kept.saturating_add(reserve_len(self.extent_size));
        let end = state.tail.offset.saturating_add(kept).min(self.extent_size.bytes_u32());
        self.space.trim(state.tail.segment.file_offset(), end)?;
        for segment in self.reserved.lock().iter() {
            self.space.trim(segment.file_offset(), SEGMENT_HEADER_LEN)?;
        }
        Ok(())
    }

    /// Makes sure that all numbers for the next frames are durably promised. Recovery continues
    /// behind the promise, so a power loss that takes a frame does not free its numbers.
    pub(crate) fn promise_numbers(&self, state: &mut LogState) -> Result<()> {
        let (promised, ahead) = (state.promised, state.numbers_ahead());
        let is_far = |end: u64, next: u64| end.saturating_add(NUMBERS_AHEAD / 2) >= next;
        if is_far(promised.0.0, ahead.0.0) && is_far(promised.1.0, ahead.1.0) {
            return Ok(());
        }
        let mut allocator = self.space.allocator.lock();
        allocator.write_superblock(|block| (block.next_run_no, block.next_lsn) = ahead)?;
        state.promised = ahead;
        Ok(())
    }

    /// Promises more numbers before calls run out of them, so that no call has to do it.
    fn promise_ahead(&self) -> Result<()> {
        let ahead = {
            let state = self.state.lock();
            let (promised, ahead) = (state.promised, state.numbers_ahead());
            let is_far = |end: u64, next: u64| end.saturating_add(NUMBERS_AHEAD / 4) >= next;
            if state.closed || is_far(promised.0.0, ahead.0.0) && is_far(promised.1.0, ahead.1.0) {
                return Ok(());
            }
            ahead
        };
        self.space.allocator.lock().write_superblock(|block| {
            // A call may have promised more meanwhile.
            block.next_run_no = block.next_run_no.max(ahead.0);
            block.next_lsn = block.next_lsn.max(ahead.1);
        })?;
        let mut state = self.state.lock();
        state.promised = (state.promised.0.max(ahead.0), state.promised.1.max(ahead.1));
        Ok(())
    }

    /// Makes durable which segment ids were used, and how far the log is durable, before segments
    /// are retired. So a process that only reads finds the evictions below the floor for which they
    /// were (FORMAT.md, section 24).
    pub(crate) fn secure_numbers(&self) -> Result<()> {
        let (next, durable) = (self.state.lock().next_segment, self.commit.durable());
        let mut allocator = self.space.allocator.lock();
        allocator.write_superblock(|block| {
            block.next_segment = block.next_segment.max(next);
            block.durable = block.durable.max(durable);
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Options;
    use crate::storage::MemoryStorage;

    #[test]
    fn numbers_are_promised_before_a_call_runs_out_of_them_and_never_taken_back() {
        let options = Options::new().background(false);
        let store = options.create_storage(Arc::new(MemoryStorage::new())).unwrap();
        let log = store.log();
        let promises = || {
            let allocator = log.space.allocator.lock();
            (allocator.superblock.next_run_no, allocator.superblock.next_lsn)
        };
        let at_first = promises();
        assert_eq!(log.state.lock().promised, at_first);
        log.reserve_ahead().unwrap();
        assert_eq!(promises(), at_first, "enough is left");
        // As if three tenths of the orders had been given out.
        log.state.lock().next_lsn.0 += NUMBERS_AHEAD / 10 * 3;
        log.reserve_ahead().unwrap();
        let ahead = log.state.lock().numbers_ahead();
        assert_eq!(promises(), ahead);
        assert_eq!(log.state.lock().promised, ahead);
        // Another call has promised more, which this one does not know.
        let more = (RunNo(ahead.0.0 + 5), Lsn(ahead.1.0 + NUMBERS_AHEAD));
        let mut allocator = log.space.allocator.lock();
        allocator.write_superblock(|block| (block.next_run_no, block.next_lsn) = more).unwrap();
        drop(allocator);
        log.state.lock().next_lsn.0 += NUMBERS_AHEAD / 10 * 3;
        log.reserve_ahead().unwrap();
        assert_eq!(promises(), more);
    }
}
