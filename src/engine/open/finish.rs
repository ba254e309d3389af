//! The last steps of opening: what is torn is closed, the tail is found, everything becomes durable
//! (R5, R7).

use std::sync::Arc;

use crate::engine::background::Wanted;
use crate::engine::checkpoint::IndexSlot;
use crate::engine::open::candidate_segments::Homes;
use crate::engine::open::replay::{Recovered, RecoveredLog};
use crate::engine::state::active_runs::HotRun;
use crate::engine::state::log_state::Core;
use crate::engine::state::segment::Segment;
use crate::engine::values::report::RecoveryReport;
use crate::engine::write::Engine;
use crate::error::{Error, Result};
use crate::format::frame::frame_len;
use crate::format::segment::SEGMENT_HEADER_LEN;
use crate::format::superblock::{FLAG_INDEX_OPENING, FLAG_SALVAGED};

pub(crate) fn finish(
    (mut engine, mut log): (Engine, RecoveredLog),
    mut report: RecoveryReport,
) -> Result<Arc<Engine>> {
    {
        let mut core = engine.core.lock();
        let in_order = engine.keeper.lock().superblock.flags & FLAG_SALVAGED == 0;
        let is_youngest = core.make_room(&engine, &mut log, in_order)?;
        let mut found = log.segments;
        core.close_beyond(&engine, &mut found)?;
        let unsealed = found.iter().map(|found| &found.segment);
        let mut homes = Homes::new(&core.catalog, unsealed, in_order);
        let last_used = found.iter().rposition(|found| !found.unused);
        let mut is_open = false;
        for (number, recovered) in found.into_iter().enumerate() {
            let is_last = Some(number) == last_used || (last_used.is_none() && number == 0);
            // The order of the log is the order of the numbers: in front of one that is closed, an
            // unused segment is closed too.
            if recovered.unused && !is_last && Some(number) >= last_used {
                core.see_to_header(&engine, &recovered.segment)?;
                engine.reserved.lock().push_back(recovered.segment);
                continue;
            }
            let may_go_on = recovered.sealed.is_none() && !recovered.torn;
            let keep = is_last && may_go_on && (is_youngest || recovered.unused);
            core.take_over(&engine, recovered, keep, &mut homes)?;
            is_open |= keep;
        }
        if !is_open {
            let next = engine.next_segment(&mut core)?;
            core.begin(next, SEGMENT_HEADER_LEN);
        }
        core.has_next = !engine.reserved.lock().is_empty();
        engine.disk.sync()?;
        engine.keeper.lock().manifest.synced();
        let end = core.end_of_log();
        engine.commit.begin(end);
        // Directories that had to be rebuilt.
        let segments = core.catalog.segments().iter().chain(&core.unapplied);
        report.damaged.extend(segments.filter_map(|segment| segment.directory_damage().cloned()));
        let opening = matches!(*engine.index.lock(), IndexSlot::Stored);
        let mut keeper = engine.keeper.lock();
        core.promised = core.numbers_ahead();
        keeper.write_superblock(|block| {
            block.boot_id = engine.options.environment.boot();
            block.durable = end;
            block.flags &= FLAG_SALVAGED;
            block.flags |= if opening { FLAG_INDEX_OPENING } else { 0 };
            block.next_segment = core.next_segment;
            (block.next_run_no, block.next_lsn) = core.promised;
        })?;
        if !(keeper.freed.is_empty() && core.suspects.is_empty() && core.retired.is_empty()) {
            engine.upkeep.want(Wanted::RECLAIM);
        }
    }
    engine.report = report;
    let engine = Arc::new(engine);
    engine.note_seals()?;
    if engine.keeper.lock().superblock.flags & FLAG_SALVAGED != 0 {
        end_salvage(&engine)?;
    }
    Ok(engine)
}

/// All segments are sealed by now. What only memory has of them may be older than outputs, which no
/// answer reckons with: it is applied before the first one.
fn end_salvage(engine: &Engine) -> Result<()> {
    engine.checkpoint()?;
    let mut keeper = engine.keeper.lock();
    // Into both: the older one says so until it is overwritten, and may be the one that is left.
    for _ in 0..2 {
        keeper.write_superblock(|block| block.flags &= !FLAG_SALVAGED)?;
    }
    Ok(())
}

impl Core {
    /// The header of a segment that has no frames yet may have been lost.
    fn see_to_header(&self, engine: &Engine, segment: &Segment) -> Result<()> {
        if segment.has_header()? {
            return Ok(());
        }
        engine.write_segment_header(segment, self.next_numbers())
    }

    /// Takes a scanned segment over: as the tail, or sealed, by its own SEAL frame or by one that
    /// is written now.
    fn take_over(
        &mut self,
        engine: &Engine,
        found: Recovered,
        keep: bool,
        homes: &mut Homes,
    ) -> Result<()> {
        if found.builder.is_empty() && !keep {
            self.suspects.insert(found.segment.id());
        }
        // Without its header it was never used: what else is there is an earlier owner's.
        if found.end == SEGMENT_HEADER_LEN {
            self.see_to_header(engine, &found.segment)?;
        }
        self.remember(&found, homes)?;
        // Space behind the end may never have been allocated: `fits` sees to it again.
        let allocated = found.end.next_multiple_of(4096).min(engine.extent_size.bytes_u32());
        self.begin(Arc::clone(&found.segment), allocated);
        (self.tail.offset, self.tail.builder) = (found.end, found.builder);
        if keep {
            return Ok(());
        }
        let Some(at) = found.sealed else {
            if !found.torn {
                return self.seal_tail(engine, found.end);
            }
            // What a decree leaves in front of its end is durable before it (O20).
            engine.disk.sync()?;
            return self.seal_tail(engine, self.seal_behind(engine, found.seal_at));
        };
        self.note_seal(engine, found.segment, at);
        Ok(())
    }

    /// Where the SEAL frame of a torn segment goes: behind all evidence, which ends at `evidence`.
    /// Room for the directory was always kept, and allocated, there.
    fn seal_behind(&self, engine: &Engine, evidence: u32) -> u32 {
        let len = frame_len(self.tail.builder.encoded_len());
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let seal = evidence.min(engine.extent_size.bytes_u32().saturating_sub(len));
        seal.max(self.tail.offset)
    }

    /// Whether a segment of the log is younger than all outputs, also where the manifest was lost.
    fn is_behind_outputs(&self, segment: &Segment) -> bool {
        let mut outputs = self.catalog.segments().iter().filter(|segment| segment.is_output());
        let end = |output: &Segment| output.read_header(output.sealed()?.seal).ok();
        segment.header().is_ok_and(|header| {
            outputs.all(|output| end(output).is_some_and(|seal| seal.lsn < header.next_lsn))
        })
    }

    /// Sees to it that the log has a segment to go on in; answers whether the last one is younger
    /// than all others. Where there is no space for another, what is torn is cleared and not
    /// closed, so that opening never needs space; but what salvage found stays as it is.
    fn make_room(
        &mut self,
        engine: &Engine,
        log: &mut RecoveredLog,
        in_order: bool,
    ) -> Result<bool> {
        let (found, floor) = (&mut log.segments, log.floor);
        let last = found.iter().rfind(|found| !found.unused);
        // Runs that begin in the tail are in no other segment.
        let is_youngest = in_order || last.is_none_or(|last| self.is_behind_outputs(&last.segment));
        let is_open = last.is_some_and(|last| last.sealed.is_none() && !last.torn);
        // An unused segment in front of one that is closed is closed too.
        if (is_open && is_youngest) || found.last().is_some_and(|found| found.unused) {
            return Ok(is_youngest);
        }
        let full = match engine.next_segment(self) {
            Ok(next) => {
                engine.reserved.lock().push_back(next);
                return Ok(is_youngest);
            }
            Err(error @ Error::DiskFull { .. }) if in_order => error,
            Err(error) => return Err(error),
        };
        let (count, mut any) = (found.len(), false);
        for (number, found) in found.iter_mut().enumerate() {
            if found.beyond || number + 1 == count {
                any |= found.clear(&engine.disk, floor)?;
            }
        }
        if !any {
            return Err(full);
        }
        // Segments behind the end are empty durably before the one in which the log ends is closed.
        engine.disk.sync()?;
        Ok(is_youngest)
    }

    /// Closes the segments behind the one in which the log ends, durably, before that one is
    /// closed (O14).
    fn close_beyond(&mut self, engine: &Engine, found: &mut [Recovered]) -> Result<()> {
        let mut any = false;
        for found in found.iter_mut().filter(|found| found.beyond && !found.unused) {
            self.begin(Arc::clone(&found.segment), 0);
            self.tail.offset = found.end;
            let seal = self.seal_behind(engine, found.seal_at);
            found.sealed = Some(self.write_seal(engine, seal)?);
            any = true;
        }
        if any { engine.disk.sync() } else { Ok(()) }
    }

    /// Brings the runs of a scanned segment into memory.
    fn remember(&mut self, found: &Recovered, homes: &mut Homes) -> Result<()> {
        for built in found.builder.runs() {
            let entry = &built.entry;
            if self.deleted.contains(&entry.run_no) {
                continue;
            }
            if self.hot.get(entry.run_no).is_none() {
                let mut run = match homes.row(entry.run_no, entry.created_at.is_some())? {
                    Some(row) => HotRun::from_row(row),
                    None => {
                        let (agent, run) = (entry.agent.clone(), entry.run.clone());
                        let mut new = HotRun::new(entry.run_no, agent, run, entry.last_at);
                        new.document = entry.document;
                        new
                    }
                };
                // After a salvage, what is sealed may follow the beginning.
                run.created_at = entry.created_at.unwrap_or(run.created_at);
                self.hot.insert(run);
            }
            if let Some(run) = self.hot.get_mut(entry.run_no) {
                run.next_seq = run.next_seq.max(entry.next_seq);
                run.started |= entry.start.is_some();
            }
            if entry.end.is_some()
                && let Some(run) = self.hot.get(entry.run_no)
                && let Some(row) = run.row(found.segment.id(), &found.builder)
            {
                self.hot.set_status(entry.run_no, row.status);
            }
        }
        Ok(())
    }
}
