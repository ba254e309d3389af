//! The last steps of opening: torn segments are closed, the tail is found, all is durable (R5, R7).

use std::sync::Arc;

use crate::engine::Engine;
use crate::engine::open::candidate_segments::Homes;
use crate::engine::open::replay::{Recovered, RecoveredLog};
use crate::engine::setup::due::Wanted;
use crate::engine::state::log_state::LogState;
use crate::engine::state::segment::Segment;
use crate::engine::values::report::RecoveryReport;
use crate::engine::write::Log;
use crate::error::{Error, Result};
use crate::format::ExtentSize;
use crate::format::frames::frame::frame_len;
use crate::format::map::superblock::{FLAG_SALVAGED, Superblock};
use crate::format::segments::segment::SEGMENT_HEADER_LEN;
use crate::gc::choose::outputs;
use crate::types::{LogPosition, Lsn, SegmentId};

/// A segment is small if at most one of so many parts of it is used.
const SMALL_PART: u32 = 4;
/// Small segments are merged if so many extents become free.
const WORTH_MERGING: u64 = 8;

/// Puts the log in order. [`open`](super::open) has built the engine.
pub(crate) fn finish(
    engine: &Engine,
    mut recovered: RecoveredLog,
    report: &mut RecoveryReport,
) -> Result<()> {
    let log = &*engine.log;
    secure(log, &recovered, report.same_boot)?;
    let end = {
        let mut state = log.state.lock();
        let in_order = log.space.allocator.lock().superblock.flags & FLAG_SALVAGED == 0;
        let is_youngest = state.make_room(log, &mut recovered, in_order)?;
        let mut found = recovered.segments;
        state.close_beyond(log, &mut found)?;
        let unsealed = found.iter().map(|found| &found.segment);
        let mut homes = Homes::new(&state.catalog, unsealed, in_order);
        let last_used = found.iter().rposition(|found| !found.unused);
        let mut is_open = false;
        for (number, recovered) in found.into_iter().enumerate() {
            state.see_to_header(log, &recovered)?;
            let is_last = Some(number) == last_used || (last_used.is_none() && number == 0);
            // The order of the log is that of the ids: an unused segment before a closed one is
            // closed.
            if recovered.unused && !is_last && Some(number) >= last_used {
                log.reserved.lock().push_back(recovered.segment);
                continue;
            }
            let may_go_on = recovered.sealed.is_none() && !recovered.torn;
            let keep = is_last && may_go_on && (is_youngest || recovered.unused);
            state.take_over(log, recovered, keep, &mut homes)?;
            is_open |= keep;
        }
        if !is_open {
            let next = log.next_segment(&mut state)?;
            state.begin(next, SEGMENT_HEADER_LEN, log.setup.options.tail_writer);
        }
        state.has_next = !log.reserved.lock().is_empty();
        log.disk.sync()?;
        log.space.allocator.lock().manifest.synced();
        let end = state.end_of_log();
        log.commit.begin(end);
        let segments = state.catalog.segments().iter().chain(&state.unapplied);
        report.damaged.extend(segments.filter_map(|segment| segment.quarantine().cloned()));
        end
    };
    // What a truncation marker leaves out is below the floor from the new epoch on, where it would
    // count if the marker was damaged (O22). The sync in front of the superblock covers this.
    log.note_seals()?;
    begin_epoch(log, &mut log.state.lock(), end)?;
    if log.space.allocator.lock().superblock.flags & FLAG_SALVAGED != 0 {
        end_salvage(engine)?;
    }
    Ok(())
}

/// Before anything is overwritten or closed: makes durable what truncation markers keep, and then a
/// superblock that states the floor. What stated it may be torn and be overwritten, and a recovery
/// that finds a lower one ends the log at damage in front of it (O20). So may what is left out, and
/// shows that damage in front of it is no torn tail: the superblock states where that begins. What
/// shows that the page cache is lost may be overwritten too, and a boot id may be the current one
/// nevertheless. So both superblocks say that the boot is unknown, whatever each of them said.
fn secure(log: &Log, recovered: &RecoveredLog, same_boot: bool) -> Result<()> {
    let (found, floor) = (&recovered.segments, recovered.floor);
    let is_torn = |found: &Recovered| found.torn || found.beyond;
    if !found.iter().any(is_torn) {
        return Ok(());
    }
    // In front of the floor everything is durable.
    let is_first = |found: &Recovered| is_torn(found) && found.segment.id() >= floor.segment;
    let kept = found.iter().position(is_first).and_then(|first| {
        // Where the log ended, if that segment is not torn itself.
        let is_beyond = found.get(first).is_some_and(|found| found.beyond);
        found.get(first - usize::from(is_beyond))
    });
    let kept = kept.map(|found| found.segment.position(found.end)).unwrap_or_default();
    log.disk.sync()?;
    // A frame that lies about it must not make the file seem cut off.
    let len = log.disk.len()?;
    let is_within = |at: &LogPosition| {
        let mut segments = found.iter().map(|found| &found.segment);
        let home = segments.find(|segment| segment.id() == at.segment);
        home.is_some_and(|home| home.file_offset() + u64::from(at.offset) <= len)
    };
    let mut allocator = log.space.allocator.lock();
    let Superblock { durable, boot_id, .. } = allocator.superblock;
    let stated = [floor, kept].into_iter().filter(is_within).max();
    let floor = durable.max(stated.unwrap_or_default());
    let (boot_id, count) =
        if same_boot { (boot_id, usize::from(floor > durable)) } else { ([0; 16], 2) };
    for _ in 0..count {
        allocator.write_superblock(|block| (block.durable, block.boot_id) = (floor, boot_id))?;
    }
    Ok(())
}

/// R7: writes a superblock with the durable end of the log and the promised numbers.
fn begin_epoch(log: &Log, state: &mut LogState, end: LogPosition) -> Result<()> {
    let mut allocator = log.space.allocator.lock();
    state.promised = state.numbers_ahead();
    allocator.write_superblock(|block| {
        block.boot_id = log.setup.options.environment.boot();
        block.durable = end;
        block.flags &= FLAG_SALVAGED;
        block.next_segment = state.next_segment;
        (block.next_run_no, block.next_lsn) = state.promised;
    })?;
    let is_salvaged = allocator.superblock.flags & FLAG_SALVAGED != 0;
    state.suspect_remains(log.extent_size);
    if !state.suspects.is_empty() {
        // Something was deleted, and the compaction that this began may have been broken off; or
        // crashes have left many segments with little in them. A store without threads, or one that
        // was just salvaged, moves nothing while it is opened.
        let moves = log.due.has_thread() && !is_salvaged;
        log.due.want(if moves { Wanted::COMPACT } else { Wanted::RECLAIM });
    } else if !(allocator.freed.is_empty() && state.retired.is_empty()) {
        log.due.want(Wanted::RECLAIM);
    }
    Ok(())
}

/// Ends a salvage, when all segments are sealed. Segments that only memory covers may be older than
/// outputs, which no answer allows for, so they are applied before the first answer.
fn end_salvage(engine: &Engine) -> Result<()> {
    engine.checkpoints.checkpoint()?;
    // Nothing moves for what this checkpoint found dead: see `begin_epoch`.
    engine.log.due.forget(Wanted::MOVES);
    let mut allocator = engine.log.space.allocator.lock();
    // Into both slots: the older one still has the flag, and may be the one that survives.
    for _ in 0..2 {
        allocator.write_superblock(|block| block.flags &= !FLAG_SALVAGED)?;
    }
    Ok(())
}

impl LogState {
    /// Each crash that tears the log leaves a segment that is not full. Once there are so many side
    /// by side that merging them makes several extents free, they are looked at like segments of
    /// which something was deleted: others cannot be merged if a run has frames in all segments.
    /// Only the manifest is asked: a directory is no longer than the frames in front of it.
    fn suspect_remains(&mut self, size: ExtentSize) {
        let segments = self.catalog.segments().iter().chain(&self.unapplied);
        let ends: Vec<_> =
            segments.filter_map(|segment| Some((segment.id(), segment.sealed()?.end))).collect();
        let is_small = |(_, end): &(SegmentId, u32)| *end <= size.bytes_u32() / SMALL_PART;
        let rows = ends.chunk_by(|one, next| is_small(one) && is_small(next));
        let (mut small, mut gained) = (Vec::new(), 0);
        for row in rows.filter(|row| row.iter().all(is_small)) {
            let bytes: u64 = row.iter().map(|(_, end)| 2 * u64::from(*end)).sum();
            let gains = (row.len() as u64).saturating_sub(outputs(bytes, size.bytes()));
            if gains > 0 {
                gained += gains;
                small.extend(row.iter().map(|(id, _)| *id));
            }
        }
        if gained >= WORTH_MERGING {
            self.suspects.extend(small);
        }
    }

    /// Writes the header of a segment again if it was lost. With frames the segment is older than
    /// what was sealed since, so the order that it states excludes nothing.
    pub(super) fn see_to_header(&self, log: &Log, found: &Recovered) -> Result<()> {
        if found.segment.has_header()? {
            return Ok(());
        }
        let (next_run_no, now) = self.next_numbers();
        let next_lsn = if found.end == SEGMENT_HEADER_LEN { now } else { Lsn(1) };
        log.write_segment_header(&found.segment, (next_run_no, next_lsn))
    }

    /// Takes over a scanned segment, as the tail or sealed, by its SEAL frame or a new one.
    fn take_over(
        &mut self,
        log: &Log,
        found: Recovered,
        keep: bool,
        homes: &mut Homes,
    ) -> Result<()> {
        // What is torn there may be damaged, and `salvage` can read it for as long as it stays.
        if found.builder.is_empty() && !keep && !found.torn {
            self.suspects.insert(found.segment.id());
        }
        let (segment, builder) = (found.segment.id(), &found.builder);
        let runs = builder.runs().iter().map(|built| built.entry.run_no);
        self.remember(segment, builder, runs, &mut |run_no, begins| homes.row(run_no, begins))?;
        // Space behind the end may never have been allocated: `fits` allocates it again.
        let allocated = found.end.next_multiple_of(4096).min(log.extent_size.bytes_u32());
        self.begin(Arc::clone(&found.segment), allocated, log.setup.options.tail_writer);
        (self.tail.offset, self.tail.builder) = (found.end, found.builder);
        if keep {
            return Ok(());
        }
        let Some(at) = found.sealed else {
            if !found.torn {
                return log.seal_tail(self, found.end);
            }
            let seal = self.seal_behind(log, found.seal_at);
            return log.seal_tail(self, seal);
        };
        log.note_seal(self, found.segment, at);
        Ok(())
    }

    /// Where the SEAL frame of a torn segment goes: behind all evidence, which ends at `evidence`.
    /// Room for the directory was always kept and allocated there.
    fn seal_behind(&self, log: &Log, evidence: u32) -> u32 {
        let len = frame_len(self.tail.builder.encoded_len());
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let seal = evidence.min(log.extent_size.bytes_u32().saturating_sub(len));
        seal.max(self.tail.offset)
    }

    /// Whether a segment of the log is younger than all outputs, even if the manifest was lost.
    pub(crate) fn is_behind_outputs(&self, segment: &Segment) -> bool {
        let mut outputs = self.catalog.segments().iter().filter(|segment| segment.is_output());
        let end = |output: &Segment| output.read_header(output.sealed()?.seal).ok();
        segment.header().is_ok_and(|header| {
            outputs.all(|output| end(output).is_some_and(|seal| seal.lsn < header.next_lsn))
        })
    }

    /// Prepares a segment in which the log can continue. Returns whether the last segment is
    /// younger than all others. If there is no space for another segment, torn segments are cleared
    /// instead of closed, so that opening never needs space; after a salvage they stay as they are.
    fn make_room(
        &mut self,
        log: &Log,
        recovered: &mut RecoveredLog,
        in_order: bool,
    ) -> Result<bool> {
        let (found, floor) = (&mut recovered.segments, recovered.floor);
        let last = found.iter().rfind(|found| !found.unused);
        // Runs that begin in the tail are in no other segment.
        let is_youngest = in_order || last.is_none_or(|last| self.is_behind_outputs(&last.segment));
        let is_open = last.is_some_and(|last| last.sealed.is_none() && !last.torn);
        // An unused segment before a closed one is closed too.
        if (is_open && is_youngest) || found.last().is_some_and(|found| found.unused) {
            return Ok(is_youngest);
        }
        let full = match log.next_segment(self) {
            Ok(next) => {
                log.reserved.lock().push_back(next);
                return Ok(is_youngest);
            }
            Err(error @ Error::DiskFull { .. }) if in_order => error,
            Err(error) => return Err(error),
        };
        let (count, mut any) = (found.len(), false);
        for (number, found) in found.iter_mut().enumerate() {
            if found.beyond || number + 1 == count {
                any |= found.clear(&log.disk, floor)?;
            }
        }
        if !any {
            return Err(full);
        }
        // Segments behind the end are durably empty before the one in which the log ends is closed.
        log.disk.sync()?;
        Ok(is_youngest)
    }

    /// Closes the segments behind the end of the log, durably, before the last one is (O14).
    fn close_beyond(&mut self, log: &Log, found: &mut [Recovered]) -> Result<()> {
        let mut any = false;
        for found in found.iter_mut().filter(|found| found.beyond && !found.unused) {
            self.begin(Arc::clone(&found.segment), 0, log.setup.options.tail_writer);
            self.tail.offset = found.end;
            let seal = self.seal_behind(log, found.seal_at);
            found.sealed = Some(log.write_seal(self, seal)?);
            any = true;
        }
        if any { log.disk.sync() } else { Ok(()) }
    }
}
