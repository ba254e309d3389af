//! Steps 0 to 4 of opening: the log is put in order, and everything that counts becomes durable.

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::open::front_matter::Base;
use crate::engine::open::replay::{Recovered, RecoveredLog};
use crate::engine::setup::due::Wanted;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::{Mark, Segment};
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::format::ExtentSize;
use crate::format::map::manifest::{Change, Use};
use crate::format::map::superblock::FLAG_CLEAN;
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::gc::choose::outputs;
use crate::types::{LogPosition, Lsn, RunNo, SegmentId};

/// A segment is small if at most one of so many parts of it is used.
const SMALL_PART: u32 = 4;
/// Small segments are merged if so many extents become free.
const WORTH_MERGING: u64 = 8;

/// Puts the log in order. [`open`](super::open) has built the engine and written nothing.
pub(crate) fn finish(engine: &Engine, base: &Base, mut found: RecoveredLog) -> Result<()> {
    let log = &*engine.log;
    let mut state = log.state.lock();
    let is_written = secure(log, &state, base, &found)?;
    let goes_on = found.ends_clean();
    state.retire_behind(log, &mut found.behind)?;
    let next = if goes_on { None } else { state.next_place(log, found.segments.last_mut())? };
    if !is_written {
        log.space.allocator.lock().write_again(&base.uncounted)?;
    }
    state.take_over(log, found.segments, next.is_none())?;
    log.disk.sync()?;
    log.space.allocator.lock().manifest.synced();
    state.record(log, next)?;
    let end = state.end_of_log();
    state.stated = end;
    log.commit.begin(end);
    begin_epoch(log, &mut state, base, end)
}

/// Step 0. Before a record is added: the records that no superblock counts are durable, and a move
/// of the manifest has come to its end. Before anything is retired: a superblock states the floor,
/// unless a frame that counts does. A later recovery with a lower floor would take damage below
/// this one for a torn end. Before any other superblock is written: one states the numbers that are
/// left out, because two slots that check would let the next opening use them.
///
/// A record that retires a segment behind the end of the log is durable before a SEAL frame lets
/// the log go on there, and one that frees an extent before the extent gets a segment. Otherwise
/// the records share the sync of step 2. Returns whether they were written.
fn secure(log: &Log, state: &LogState, base: &Base, found: &RecoveredLog) -> Result<bool> {
    let mut allocator = log.space.allocator.lock();
    let end = found.segments.last().map(|last| last.segment.id());
    let takes_extent = !found.ends_clean() && !found.behind.iter().any(|(_, is_blank)| *is_blank);
    let must_precede = |change: &Change| match change {
        Change::Free { .. } => takes_extent,
        Change::Retire { extent } => base.extents.uses.get(extent).and_then(Use::segment) > end,
        _ => false,
    };
    let states_floor = found.floor > found.floor_of_kept.max(base.durable);
    let moves = base.is_ahead || allocator.manifest.is_distrusted();
    let retires = found.behind.iter().any(|(_, is_blank)| !is_blank);
    let lacks_numbers = base.lacks_numbers();
    let last_batch = &base.last_batch;
    if !(states_floor || moves || retires || lacks_numbers || last_batch.iter().any(must_precede)) {
        return Ok(false);
    }
    allocator.write_again(&base.uncounted)?;
    allocator.sync()?;
    if lacks_numbers {
        allocator.write_superblock(|block| {
            block.flags &= !FLAG_CLEAN;
            (block.next_run_no, block.next_lsn) = state.promised;
        })?;
    }
    if base.is_ahead {
        allocator.write_superblock(|_| ())?;
    }
    if allocator.manifest.is_distrusted() {
        allocator.commit(&[])?;
    }
    if states_floor {
        allocator.write_superblock(|block| block.durable = found.floor)?;
    }
    Ok(true)
}

/// Step 4: writes a superblock with the durable end of the log and the promised numbers. Only
/// afterwards extents become free.
///
/// If numbers were left out, both slots state it: either may be lost, and the other one must not
/// lead to the same numbers again, or say that the file is a copy.
fn begin_epoch(log: &Log, state: &mut LogState, base: &Base, end: LogPosition) -> Result<()> {
    let mut allocator = log.space.allocator.lock();
    state.promised = state.numbers_ahead();
    allocator.write_superblock(|block| {
        block.durable = end;
        block.flags = 0;
        block.next_segment = state.next_segment;
        (block.next_run_no, block.next_lsn) = state.promised;
    })?;
    if base.lacks_numbers() {
        allocator.write_superblock(|_| ())?;
    }
    state.suspect_remains(log.extent_size);
    if !state.suspects.is_empty() {
        // Something was deleted, and the compaction that this began may have been broken off; or
        // crashes have left many segments with little in them. A store without threads moves
        // nothing while it is opened.
        let moves = log.due.has_thread();
        log.due.want(if moves { Wanted::COMPACT } else { Wanted::RECLAIM });
    } else if !(allocator.freed.is_empty() && state.retired.is_empty()) {
        log.due.want(Wanted::RECLAIM);
    }
    Ok(())
}

impl LogState {
    /// Each crash that tears the log leaves a segment that is not full. Once there are so many that
    /// merging them makes several extents free, they are looked at like segments of which something
    /// was deleted. Only the manifest is asked: a directory is no longer than the frames before it.
    fn suspect_remains(&mut self, size: ExtentSize) {
        let segments = self.catalog.segments().iter().chain(&self.unapplied);
        let ends = segments.filter_map(|segment| Some((segment.id(), segment.sealed()?.end)));
        let is_small = |(_, end): &(SegmentId, u32)| *end <= size.bytes_u32() / SMALL_PART;
        let small: Vec<_> = ends.filter(is_small).collect();
        let bytes: u64 = small.iter().map(|(_, end)| 2 * u64::from(*end)).sum();
        let gained = (small.len() as u64).saturating_sub(outputs(bytes, size.bytes()));
        if gained >= WORTH_MERGING {
            self.suspects.extend(small.iter().map(|(id, _)| *id));
        }
    }

    /// Step 1: retires the segments behind the end of the log that have frames or anything else,
    /// durably, before the SEAL frame of step 2 lets the log go on there (O14). Blank ones are set
    /// aside for later.
    fn retire_behind(&mut self, log: &Log, behind: &mut Vec<(Arc<Segment>, bool)>) -> Result<()> {
        let mut changes = Vec::new();
        for (segment, is_blank) in behind.drain(..) {
            if is_blank {
                log.write_segment_header(&segment, self.next_numbers())?;
                log.reserved.lock().push_back(segment);
                continue;
            }
            changes.push(Change::Retire { extent: segment.extent() });
            segment.note(Mark::Retired);
            self.retired.push(segment);
        }
        if changes.is_empty() {
            return Ok(());
        }
        log.space.allocator.lock().commit_durably(&changes)
    }

    /// The segment in which the log goes on behind a torn or full one. Without space for another
    /// segment the log goes on in that one, over zeros, so that opening never needs space: `None`.
    fn next_place(
        &mut self,
        log: &Log,
        last: Option<&mut Recovered>,
    ) -> Result<Option<Arc<Segment>>> {
        if let Some(next) = log.reserved.lock().pop_front() {
            return Ok(Some(next));
        }
        match (self.prepare_next(log), last) {
            (Err(Error::DiskFull { .. }), Some(last)) => last.clear(&log.disk).map(|()| None),
            (prepared, _) => prepared.map(Some),
        }
    }

    /// A new segment, of which the manifest does not know yet.
    fn prepare_next(&mut self, log: &Log) -> Result<Arc<Segment>> {
        let id = self.take_segment_id()?;
        let next = self.next_numbers();
        log.prepare_segment(id, next).inspect_err(|_| self.next_segment = id)
    }

    /// Step 2: takes over the segments up to the end of the log. It writes what counts above the
    /// floor again, and SEAL frames where they are missing, except in the segment where the log
    /// goes on. It leaves only zeros behind SEAL frames, because erasing a run does not look there.
    fn take_over(&mut self, log: &Log, found: Vec<Recovered>, goes_on: bool) -> Result<()> {
        let count = found.len();
        for (number, found) in found.into_iter().enumerate() {
            let (segment, builder) = (Arc::clone(&found.segment), &found.builder);
            log.write_segment_header(&segment, self.numbers_of_header(&found))?;
            found.write_again(&log.disk)?;
            let runs = builder.runs().iter().map(|built| built.entry.run_no);
            self.remember(segment.id(), builder, runs)?;
            // Space behind the end may never have been allocated: `fits` allocates it again.
            let allocated = found.end.next_multiple_of(4096).min(log.extent_size.bytes_u32());
            self.begin(Arc::clone(&segment), allocated, log.setup.options.tail_writer);
            (self.tail.offset, self.tail.builder) = (found.end, found.builder);
            if goes_on && number + 1 == count {
                return Ok(());
            }
            if self.tail.builder.is_empty() {
                self.suspects.insert(segment.id());
            }
            match found.sealed {
                Some(at) => log.note_seal(self, Arc::clone(&segment), at),
                None => log.seal_tail(self)?,
            }
            if let Some(at) = segment.sealed() {
                log.space.clear_behind(segment.file_offset(), at.bytes_end())?;
            }
        }
        Ok(())
    }

    /// The numbers in the header of a segment. A crash may leave the record of the segment without
    /// it; a segment with frames is older than what was sealed since, so it then excludes nothing.
    fn numbers_of_header(&self, found: &Recovered) -> (RunNo, Lsn) {
        if let Some(header) = &found.header {
            return (header.next_run_no, header.next_lsn);
        }
        let (next_run_no, now) = self.next_numbers();
        (next_run_no, if found.end == SEGMENT_HEADER_LEN { now } else { Lsn(1) })
    }

    /// Step 3: one batch of the manifest records the seals, in the order of the log, and the
    /// segment in which the log goes on. It is durable before a superblock states a floor behind
    /// the seals.
    fn record(&mut self, log: &Log, next: Option<Arc<Segment>>) -> Result<()> {
        let unknown = self.unapplied.iter().filter(|segment| !segment.is(Mark::Durable));
        let sealed: Vec<Arc<Segment>> = unknown.cloned().collect();
        let mut changes: Vec<Change> = sealed.iter().filter_map(|one| one.sealing()).collect();
        self.has_next = !log.reserved.lock().is_empty();
        let mut allocator = log.space.allocator.lock();
        if let Some(next) = &next
            && !allocator.manifest.extents().uses.contains_key(&next.extent())
        {
            changes.push(next.reservation());
            next.note(Mark::Allocated);
        }
        if !changes.is_empty() {
            allocator.commit_durably(&changes)?;
        }
        for segment in sealed {
            segment.note(Mark::Durable);
            log.due.want(Wanted::CHECKPOINT);
        }
        if let Some(next) = next {
            let whole = log.extent_size.bytes_u32();
            let allocated = if next.is(Mark::Allocated) { whole } else { SEGMENT_HEADER_LEN };
            self.begin(next, allocated, log.setup.options.tail_writer);
        }
        Ok(())
    }
}
