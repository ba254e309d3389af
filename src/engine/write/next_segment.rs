//! Segments that are set aside, and the numbers that are promised, before they are needed.

use std::sync::Arc;

use crate::engine::setup::due::Wanted;
use crate::engine::setup::observer::Activity;
use crate::engine::state::log_state::{LogState, NUMBERS_AHEAD};
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::write::Log;
use crate::error::{Error, IoAction, Result};
use crate::format::segments::segment::{Purpose, SEGMENT_HEADER_LEN, SegmentHeader};
use crate::format::{LAST_WRITTEN, SegmentKey};
use crate::types::{ExtentNo, Lsn, RunNo, SegmentId};

impl Log {
    /// The segment that the log goes on in: the next of those that are set aside, or else one that
    /// is made while the state is locked.
    pub(crate) fn next_segment(&self, state: &mut LogState) -> Result<Arc<Segment>> {
        // One may be on its way. It must be used first: the order of the log is the order of the
        // numbers, and an unused segment in front of a used one would look like a lost one.
        let mut reserved = self.reserved.lock();
        let next = reserved.pop_front();
        state.has_next = !reserved.is_empty();
        drop(reserved);
        if let Some(next) = next {
            return Ok(next);
        }
        let id = state.take_segment_id()?;
        self.reserve(id, state.next_numbers()).inspect_err(|error| {
            // Nothing refers to the number yet.
            state.next_segment = id;
            let tail = state.tail.segment.id();
            if error.is_disk_full() && state.suspects.iter().any(|suspect| *suspect != tail) {
                // What is dead there is the space for the next try.
                self.due.want(Wanted::COMPACT);
            }
        })
    }

    /// Prepares an extent as a segment of the log: allocates it, writes its header, and makes both
    /// and the manifest's record durable (O4).
    pub(crate) fn reserve(&self, id: SegmentId, next: (RunNo, Lsn)) -> Result<Arc<Segment>> {
        let _watch = self.setup.watch(Activity::Reserve);
        let written = self.commit.written();
        let reserved = self.set_aside(&[id], Purpose::Log, next)?.pop().ok_or(Error::Poisoned)?;
        // The sync of the record covers the log too: so the seals of earlier segments become known
        // soon, and an open after a crash reads few segments however fast appends are.
        self.commit.cover(written);
        Ok(reserved)
    }

    /// Sets segments aside: in free extents that are allocated, with headers, and with records of
    /// the manifest, all of it durable (O4). A single output may take the compaction reserve on a
    /// full disk.
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

    /// A segment in an extent that is ready for it, with its header in the file.
    fn new_segment(
        &self,
        extent: ExtentNo,
        (id, purpose): (SegmentId, Purpose),
        next: (RunNo, Lsn),
    ) -> Result<Arc<Segment>> {
        let mut salt = [0; 8];
        let entropy = &self.setup.options.environment.entropy;
        entropy.fill(&mut salt).map_err(|source| Error::io(IoAction::Randomness, source))?;
        let key = SegmentKey { id, salt: u64::from_le_bytes(salt) };
        let segment = Segment::new(self.disk.clone(), self.extent_size, extent, key, purpose);
        self.write_segment_header(&segment, next)?;
        Ok(Arc::new(segment))
    }

    pub(crate) fn write_segment_header(
        &self,
        segment: &Segment,
        (next_run_no, next_lsn): (RunNo, Lsn),
    ) -> Result<()> {
        let (uuid, key, purpose) = (self.setup.uuid, segment.key(), segment.purpose());
        let header = SegmentHeader { uuid, key, purpose, next_run_no, next_lsn };
        self.disk.write(segment.file_offset(), &header.encode())
    }

    /// Sets a segment aside if none is, so that rolling costs no sync.
    pub(crate) fn reserve_ahead(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.closed || state.has_next {
            return Ok(());
        }
        let id = state.take_segment_id()?;
        // Locked before the state is let go, so that a roll waits for this segment.
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

    /// Gives back what was allocated for appends that will not come. The store is closed.
    pub(crate) fn trim_unused(&self) -> Result<()> {
        let state = self.state.lock();
        self.space.trim(state.tail.segment.file_offset(), state.tail.offset)?;
        for segment in self.reserved.lock().iter() {
            self.space.trim(segment.file_offset(), SEGMENT_HEADER_LEN)?;
        }
        Ok(())
    }

    /// Sees to it that all numbers that the next frames may get are promised durably: recovery goes
    /// on behind the promise, so that a power loss that takes a frame does not free its numbers.
    pub(crate) fn promise_numbers(&self, state: &mut LogState) -> Result<()> {
        if state.next_lsn.0 >= LAST_WRITTEN {
            return Err(Error::Exhausted { what: "records" });
        }
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

    /// Makes durable which segment ids are in use: the segments that have them may go.
    pub(crate) fn secure_numbers(&self) -> Result<()> {
        let next = self.state.lock().next_segment;
        let mut allocator = self.space.allocator.lock();
        allocator.write_superblock(|block| block.next_segment = block.next_segment.max(next))
    }
}
